//! Files that processes have mapped to write.
//!
//! Whoever writes to a page that is dirty already leaves no trace in the inode. So such a file counts
//! as changed at the next capture, whatever its times say.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt as _};

use super::Inodes;

/// Of every process that we may look at: a volume may be used by more than one container. On whatever
/// device, since some file systems tell another one here than elsewhere; one file too many costs a copy.
pub(super) fn shared_inodes() -> Inodes {
    let Ok(processes) = fs::read_dir("/proc") else { return Inodes::new() };
    let is_process = |name: &OsStr| name.as_bytes().iter().all(u8::is_ascii_digit);
    let processes = processes.flatten().filter(|entry| is_process(&entry.file_name()));
    let maps = processes.filter_map(|entry| fs::read(entry.path().join("maps")).ok());
    maps.flat_map(|maps| shared_in(&maps)).collect()
}

fn shared_in(maps: &[u8]) -> Vec<u64> {
    maps.split(|byte| *byte == b'\n').filter_map(shared_inode).collect()
}

/// Of a line such as `7f54d000-7f54e000 rw-s 00000000 00:2b 1234    /name of a file`. What may not be
/// written to at this moment may have been written to before.
fn shared_inode(line: &[u8]) -> Option<u64> {
    let mut fields = line.split(|byte| *byte == b' ');
    fields.nth(1).filter(|rights| rights.ends_with(b"s"))?;
    let inode = fields.nth(2)?;
    std::str::from_utf8(inode).ok()?.parse().ok().filter(|inode| *inode != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_shared_counts() {
        let maps = b"7f54d000-7f54e000 rw-s 00000000 00:2b 1234    /a b\n\
            7f54d000-7f54e000 r--s 00000000 08:01 77   /c\n\
            7f54d000-7f54e000 rw-p 00000000 08:01 5    /private\n\
            7f54d000-7f54e000 rw-p 00000000 00:00 0 \n\
            nonsense\n";
        assert_eq!(shared_in(maps), [1234, 77]);
    }
}
