//! Counts what a layer holds.

use std::{collections::HashSet, ffi::CString};

use rustix::fs::{AtFlags, FileType, statat};

use super::{
    LayerResult, LayerSize,
    copy::{allocated, file_id},
    cursor::{DirCursor, FileId, names},
    error::{At as _, During as _, Fault},
    marks::is_whiteout,
};

pub(super) fn measure(mut cursor: DirCursor) -> LayerResult<LayerSize> {
    let mut counter = Counter::default();
    let mut pending = vec![counter.count(&cursor).at(|| cursor.path())?];
    while let Some(directories) = pending.last_mut() {
        if let Some(name) = directories.pop() {
            cursor.enter(&name).at(|| cursor.path_of(&name))?;
            pending.push(counter.count(&cursor).at(|| cursor.path())?);
        } else {
            cursor.leave().at(|| cursor.path())?;
            pending.pop();
        }
    }
    Ok(counter.size)
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
            let stat = statat(cursor.fd(), &name, AtFlags::SYMLINK_NOFOLLOW).during("inspect")?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                directories.push(name);
            } else if !is_whiteout(&stat) {
                self.size.files += 1;
                if stat.st_nlink <= 1 || self.seen.insert(file_id(&stat)) {
                    self.size.bytes += allocated(&stat);
                }
            }
        }
        Ok(directories)
    }
}
