//! Replacing a small file at once.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::Path,
};

use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};

/// Whoever reads `path` finds the old bytes or the new ones. `spare` is beside it, for us alone.
pub(crate) fn replace(path: &Path, spare: &Path, bytes: &[u8]) -> io::Result<()> {
    write_spare(spare, bytes)?;
    exchange(path, spare)
}

/// The first half of [`replace`], which nobody sees.
pub(crate) fn write_spare(spare: &Path, bytes: &[u8]) -> io::Result<()> {
    // Not emptied first: ext4 begins to write to the disk for that.
    let file = File::options().write(true).create(true).truncate(false).open(spare)?;
    file.write_all_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)
}

/// The second half of [`replace`], which is one moment.
///
/// The two change places: ext4 begins to write to the disk when a file replaces another, which takes
/// milliseconds when the disk has much to do. Survives the death of processes, not a power cut.
pub(crate) fn exchange(path: &Path, spare: &Path) -> io::Result<()> {
    match renameat_with(CWD, spare, CWD, path, RenameFlags::EXCHANGE) {
        // The first time there is nothing to change places with. Not every file system can.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => fs::rename(spare, path),
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_are_there_and_nothing_of_those_before() {
        let directory = tempfile::tempdir().unwrap();
        let (path, spare) = (directory.path().join("a"), directory.path().join("a.new"));
        for bytes in ["one", "a much longer second", "3", ""] {
            replace(&path, &spare, bytes.as_bytes()).unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes.as_bytes());
        }
    }
}
