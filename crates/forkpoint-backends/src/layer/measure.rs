//! Counts what a layer holds.

use std::{collections::HashSet, ffi::CString, io, mem::MaybeUninit, os::fd::OwnedFd};

use rustix::fs::{AtFlags, FileType, RawDir, Stat, statat};

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
    let mut left = entries_max;
    while let Some(directory) = pending.pop() {
        // Names tell that there are too many at a fraction of what it costs to look at each.
        let names = few_names(&directory, left)?;
        left -= names.len();
        for (name, kind) in names {
            if kind == FileType::Directory {
                pending.push(open_directory(&directory, &name).ok()?);
                continue;
            }
            let stat = statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => pending.push(open_directory(&directory, &name).ok()?),
                _ => counter.add(&stat),
            }
        }
    }
    Some(counter.size)
}

/// `None` if there are more than `most`, or they cannot be read.
fn few_names(directory: &OwnedFd, most: usize) -> Option<Vec<(CString, FileType)>> {
    let mut names = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut raw = RawDir::new(directory, &mut buffer);
    while let Some(entry) = raw.next() {
        let entry = entry.ok()?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        if names.len() == most {
            return None;
        }
        names.push((entry.file_name().to_owned(), entry.file_type()));
    }
    Some(names)
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
