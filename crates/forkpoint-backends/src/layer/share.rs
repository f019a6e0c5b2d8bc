//! A tree that came from elsewhere, and files of an earlier layer that are the same: those are linked
//! instead. Unlike a capture this has to read them.

use std::{
    ffi::{CStr, CString},
    fs::File,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fstat, linkat, openat, renameat, statat, unlinkat,
};

use super::{
    Layer, LayerResult, LayerSize,
    attributes::{Place, listed, set_times, value_of},
    copy::allocated,
    cursor::{DirCursor, KEEP, names, open_directory},
    diff::same_bytes,
    error::{At as _, During as _, Fault},
    stage::Stage,
    store::{open_path, unique},
};

impl Stage {
    /// Counts what is in a tree that was filled by hand, and links what `base` has just so. Answers with
    /// what it does not share.
    pub fn share_with(&mut self, base: Option<&Layer>) -> LayerResult<LayerSize> {
        let path = self.tree_path();
        let mut cursor = DirCursor::new(path.clone(), open_path(&path)?, KEEP);
        let base = base.and_then(|layer| open_path(&layer.tree_path()).ok());
        let mut sharer = Sharer::default();
        let mut way = vec![sharer.enter(&cursor, base).at(|| cursor.path())?];
        while let Some(stay) = way.last_mut() {
            if let Some(name) = stay.pending.pop() {
                let base = stay.base.as_ref().and_then(|base| open_directory(base, &name).ok());
                cursor.enter(&name).at(|| cursor.path_of(&name))?;
                way.push(sharer.enter(&cursor, base).at(|| cursor.path())?);
            } else if way.pop().is_some() {
                cursor.leave().at(|| cursor.path())?;
            }
        }
        self.set_size(sharer.all);
        Ok(sharer.own)
    }
}

#[derive(Default)]
struct Sharer {
    all: LayerSize,
    own: LayerSize,
}

struct Stay {
    base: Option<OwnedFd>,
    pending: Vec<CString>,
}

impl Sharer {
    fn enter(&mut self, cursor: &DirCursor, base: Option<OwnedFd>) -> Result<Stay, Fault> {
        let here = cursor.fd();
        let before = fstat(here).during("inspect")?;
        let mut pending = Vec::new();
        for (name, _) in names(here)? {
            let stat = statat(here, &name, AtFlags::SYMLINK_NOFOLLOW).during("inspect")?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                pending.push(name);
                continue;
            }
            let shared = match &base {
                Some(base) if is_worth_it(&stat) => share(here, base.as_fd(), &name, &stat)?,
                _ => false,
            };
            self.count(&stat, shared);
        }
        // Names that were replaced changed them.
        set_times(Place::Open(here), &before)?;
        Ok(Stay { base, pending })
    }

    /// Files with several names count with each of them.
    fn count(&mut self, stat: &Stat, shared: bool) {
        let bytes = allocated(stat) / u64::from(stat.st_nlink as u32).max(1);
        for size in [Some(&mut self.all), (!shared).then_some(&mut self.own)].into_iter().flatten()
        {
            size.files += 1;
            size.bytes += bytes;
        }
    }
}

/// A file with other names would leave them.
fn is_worth_it(stat: &Stat) -> bool {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_file && stat.st_nlink == 1 && stat.st_size > 0
}

fn share(here: BorrowedFd, base: BorrowedFd, name: &CStr, stat: &Stat) -> Result<bool, Fault> {
    let Ok(there) = open(base, name) else { return Ok(false) };
    let ours = open(here, name).during("read")?;
    let other = fstat(&there).during("inspect")?;
    if facts(stat) != facts(&other) || !same_attributes(&ours, &there)? {
        return Ok(false);
    }
    if !same_bytes(ours, there).during("compare")? {
        return Ok(false);
    }
    let spare = unique("same");
    // As many names as there can be, or gone meanwhile: it stays what it is.
    if linkat(base, name, here, &spare, AtFlags::empty()).is_err() {
        return Ok(false);
    }
    let replaced = renameat(here, &spare, here, name).during("link");
    if replaced.is_err() {
        let _ = unlinkat(here, &spare, AtFlags::empty());
    }
    replaced.map(|()| true)
}

fn open(at: BorrowedFd, name: &CStr) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty()).map(File::from)
}

fn facts(stat: &Stat) -> (u32, u32, u32, i64, i64, i64) {
    let Stat { st_mode, st_uid, st_gid, st_size, st_mtime, st_mtime_nsec, .. } = *stat;
    (st_mode, st_uid, st_gid, st_size, st_mtime, st_mtime_nsec as i64)
}

fn same_attributes(one: &File, other: &File) -> Result<bool, Fault> {
    let all = |file: &File| -> rustix::io::Result<Vec<_>> {
        let place = Place::Open(file.as_fd());
        let mut names = listed(place)?;
        names.sort_unstable();
        names.into_iter().map(|name| Ok((value_of(place, &name)?, name))).collect()
    };
    let all = |file| all(file).during("read attributes of");
    Ok(all(one)? == all(other)?)
}
