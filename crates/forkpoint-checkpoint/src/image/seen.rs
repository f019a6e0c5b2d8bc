//! Pages that were compared with their checksums already, since this machine started.
//!
//! Beside an image's pages, `checked` says which file it was: the image's id, the boot, and what the file
//! system says of the file. Whatever changes the file changes that, and it is compared again. It is no part
//! of the image, and worth nothing anywhere else.

use std::{
    fs::{self, File, Metadata},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    time::Duration,
};

use super::ImageId;
use crate::sys::read_text;

const NAME: &str = "checked";
const LINE_MAX: u64 = 512;
/// Fewer bytes are compared faster than they are remembered.
const WORTH: u64 = 128 << 10;
/// A clock of files that is coarser than each change has ticked after so long.
const SETTLED: Duration = Duration::from_millis(100);

/// Whether these are the pages that were compared.
pub(super) fn is_seen(directory: &Path, id: ImageId, pages: &File) -> bool {
    let read = || {
        let file = File::open(directory.join(NAME))?;
        let found = file.metadata()?;
        let mut text = String::new();
        file.take(LINE_MAX).read_to_string(&mut text)?;
        Ok::<_, io::Error>((found, text))
    };
    let Ok((found, text)) = read() else { return false };
    let ours = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o7777 == 0o600;
    ours && pages.metadata().and_then(|pages| line(id, &pages)).is_ok_and(|line| line == text)
}

/// Pages as they were before they were compared: what changes them meanwhile is not taken for them.
pub(super) struct Sight {
    line: String,
    pages: Metadata,
}

impl Sight {
    pub(super) fn of(id: ImageId, pages: &File) -> io::Result<Self> {
        let pages = pages.metadata()?;
        Ok(Self { line: line(id, &pages)?, pages })
    }

    /// They were compared. If that cannot be remembered, they are compared again the next time.
    pub(super) fn remember(self, directory: &Path) {
        if self.pages.len() < WORTH {
            return;
        }
        let staged = directory.join(format!("{NAME}.new-{}", std::process::id()));
        let written = write(&staged, &self.line, &self.pages);
        let kept = matches!(written, Ok(true)) && fs::rename(&staged, directory.join(NAME)).is_ok();
        if !kept {
            let _ = fs::remove_file(&staged);
        }
    }
}

/// `false`: the file could be changed from now on without a trace.
fn write(path: &Path, line: &str, pages: &Metadata) -> io::Result<bool> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(line.as_bytes())?;
    Ok(has_settled(pages, &file.metadata()?) || tells_every_change(&mut file, line)?)
}

/// By the clock of the file system, which is that of a file that was made just now.
fn has_settled(pages: &Metadata, now: &Metadata) -> bool {
    let changed = |found: &Metadata| {
        Duration::new(found.ctime().max(0) as u64, found.ctime_nsec().max(0) as u32)
    };
    changed(now).saturating_sub(changed(pages)) > SETTLED
}

/// Whether this file system gives each change that comes after a look a time of its own: twice in a row,
/// which a clock that ticks every few milliseconds does not do.
fn tells_every_change(file: &mut File, line: &str) -> io::Result<bool> {
    use std::os::unix::fs::FileExt as _;
    let time = |file: &File| file.metadata().map(|found| (found.ctime(), found.ctime_nsec()));
    let first = time(file)?;
    file.write_all_at(line.as_bytes(), 0)?;
    let second = time(file)?;
    file.write_all_at(line.as_bytes(), 0)?;
    Ok(first < second && second < time(file)?)
}

pub(super) fn line(id: ImageId, pages: &Metadata) -> io::Result<String> {
    let boot = read_text("/proc/sys/kernel/random/boot_id")?;
    Ok(format!(
        "{id} {} {} {} {} {}.{:09} {}.{:09}\n",
        boot.trim(),
        pages.dev(),
        pages.ino(),
        pages.len(),
        pages.mtime(),
        pages.mtime_nsec(),
        pages.ctime(),
        pages.ctime_nsec()
    ))
}
