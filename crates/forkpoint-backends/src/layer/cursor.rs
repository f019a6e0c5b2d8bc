//! A place in a directory tree, held by descriptors.
//!
//! No path is ever resolved: one step goes down by one name, and no symbolic link and no mount is
//! followed. So a tree of any depth can be walked, and a hostile one cannot lead outside.

use std::{
    ffi::{CStr, CString, OsStr},
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::PathBuf,
};

use rustix::fs::{FileType, Mode, OFlags, RawDir, ResolveFlags, fstat, openat, openat2};

use super::error::{During as _, Fault};

/// Ancestors that a single walk keeps open; one that is wanted back later is found by `..`.
pub(super) const KEEP: usize = 32;

/// Of a message: a tree may be deeper than anybody wants to read.
const PATH_MAX: usize = 4096;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

#[derive(Debug)]
pub(super) struct DirCursor {
    /// For messages only.
    root: PathBuf,
    current: OwnedFd,
    above: Vec<Ancestor>,
    keep: usize,
}

#[derive(Debug)]
struct Ancestor {
    held: Held,
    /// Of the directory below it on our way.
    name: CString,
}

#[derive(Debug)]
enum Held {
    Open(OwnedFd),
    Closed(FileId),
}

pub(super) type FileId = (u64, u64);

pub(super) fn id_of(fd: impl AsFd) -> io::Result<FileId> {
    let stat = fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

pub(crate) fn open_directory(at: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(at, name, DIRECTORY, Mode::empty(), resolve)?)
}

/// A directory, by a path in which no symbolic link counts and nothing leads up.
pub(crate) fn open_below(root: &OwnedFd, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let path = if path.is_empty() { b"." } else { path };
    openat2(root, path, flags, Mode::empty(), resolve)
}

impl DirCursor {
    pub(super) fn new(root: PathBuf, fd: OwnedFd, keep: usize) -> Self {
        Self { root, current: fd, above: Vec::new(), keep }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.current.as_fd()
    }

    pub(super) fn enter(&mut self, name: &CStr) -> Result<(), Fault> {
        self.try_enter(name).during("open")
    }

    fn try_enter(&mut self, name: &CStr) -> io::Result<()> {
        let below = open_directory(&self.current, name)?;
        let held = Held::Open(std::mem::replace(&mut self.current, below));
        self.above.push(Ancestor { held, name: name.to_owned() });
        if let Some(oldest) = self.above.len().checked_sub(self.keep + 1)
            && let Held::Open(fd) = &self.above[oldest].held
        {
            self.above[oldest].held = Held::Closed(id_of(fd)?);
        }
        Ok(())
    }

    /// Goes up, and answers with the name of what was left; `None` at the root.
    pub(super) fn leave(&mut self) -> Result<Option<CString>, Fault> {
        let Some(Ancestor { held, name }) = self.above.pop() else { return Ok(None) };
        self.current = match held {
            Held::Open(fd) => fd,
            Held::Closed(id) => self.reopen(id)?,
        };
        Ok(Some(name))
    }

    fn reopen(&self, id: FileId) -> Result<OwnedFd, Fault> {
        let parent = openat(&self.current, c"..", DIRECTORY, Mode::empty()).during("leave")?;
        // Somebody who moves directories about could make `..` another place than where we came from.
        if id_of(&parent).during("inspect")? == id { Ok(parent) } else { Err(Fault::Changed) }
    }

    pub(super) fn path(&self) -> PathBuf {
        let mut path = self.root.clone();
        for ancestor in &self.above {
            if path.as_os_str().len() > PATH_MAX {
                path.push("…");
                break;
            }
            path.push(OsStr::from_bytes(ancestor.name.to_bytes()));
        }
        path
    }

    pub(super) fn path_of(&self, name: &CStr) -> PathBuf {
        self.path().join(OsStr::from_bytes(name.to_bytes()))
    }
}

/// Every name in a directory but `.` and `..`, with its type as far as the directory tells it.
pub(super) fn names(directory: BorrowedFd<'_>) -> Result<Vec<(CString, FileType)>, Fault> {
    let listed = numbered_names(directory)?;
    Ok(listed.into_iter().map(|(_, name, kind)| (name, kind)).collect())
}

/// The same, each with the number of its inode in front.
pub(super) fn numbered_names(
    directory: BorrowedFd<'_>,
) -> Result<Vec<(u64, CString, FileType)>, Fault> {
    let mut names = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
    let mut raw = RawDir::new(directory, &mut buffer);
    while let Some(entry) = raw.next() {
        let entry = entry.during("list")?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push((entry.ino(), entry.file_name().to_owned(), entry.file_type()));
        }
    }
    Ok(names)
}
