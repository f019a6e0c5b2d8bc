//! Counts what a layer holds.

use std::{collections::HashSet, ffi::CString, io, os::fd::OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Stat, statat};

use super::{
    LayerResult, LayerSize,
    copy::allocated,
    cursor::{DirCursor, FileId, names, open_directory},
    error::{At as _, During as _, Fault},
    marks::is_whiteout,
    site::file_id,
};

pub(super) fn measure(mut cursor: DirCursor) -> LayerResult<LayerSize> {
    let mut counter = Counter::default();
    let mut pending = vec![counter.count(&cursor).at(|| cursor.path())?];
    while let Some(directories) = pending.last_mut() {
        if let Some(name) = directories.pop() {
            match cursor.enter(&name) {
                Ok(()) => pending.push(counter.count(&cursor).at(|| cursor.path())?),
                // A tree that is in use may change while it is counted. And without root there may be
                // directories that their owner may not look into: what is in them is not counted.
                Err(Fault::Io { source, .. }) if is_passed_over(&source) => {}
                Err(fault) => return Err(fault.at(cursor.path_of(&name))),
            }
        } else {
            cursor.leave().at(|| cursor.path())?;
            pending.pop();
        }
    }
    Ok(counter.size)
}

/// The same for a tree that is known to be small: `None` as soon as it has more than `entries_max`
/// entries, or cannot be looked at so quickly.
pub(super) fn measure_small(root: OwnedFd, entries_max: usize) -> Option<LayerSize> {
    let mut counter = Counter::default();
    let mut pending = vec![root];
    let mut entries = 0;
    while let Some(directory) = pending.pop() {
        for entry in Dir::read_from(&directory).ok()? {
            let entry = entry.ok()?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            entries += 1;
            if entries > entries_max {
                return None;
            }
            let stat = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => pending.push(open_directory(&directory, name).ok()?),
                _ => counter.add(&stat),
            }
        }
    }
    Some(counter.size)
}

fn is_passed_over(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}

#[derive(Default)]
struct Counter {
    size: LayerSize,
    seen: HashSet<FileId>,
}

impl Counter {
    /// Counts one directory, and answers with the directories in it.
    fn count(&mut self, cursor: &DirCursor) -> Result<Vec<CString>, Fault> {
        let mut directories = Vec::new();
        for (name, _) in names(cursor.fd())? {
            let stat = match statat(cursor.fd(), &name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(err) if is_passed_over(&err.into()) => continue,
                result => result.during("inspect")?,
            };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                directories.push(name);
            } else {
                self.add(&stat);
            }
        }
        Ok(directories)
    }

    fn add(&mut self, stat: &Stat) {
        if is_whiteout(stat) {
            return;
        }
        self.size.files += 1;
        if stat.st_nlink <= 1 || self.seen.insert(file_id(stat)) {
            self.size.bytes += allocated(stat);
        }
    }
}
