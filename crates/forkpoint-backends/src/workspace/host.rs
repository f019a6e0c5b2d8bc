//! The directory on the host, held by one descriptor from which everything is found.

use std::{
    ffi::{CString, OsString},
    fs::File,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        CWD, Dir, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat, flock, fstat, openat,
        openat2, readlinkat,
    },
    io::Errno,
};

use super::{
    error::{Doing as _, WorkspaceError, WorkspaceResult},
    shown,
};

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

#[derive(Debug)]
pub(super) struct HostDir {
    pub(super) path: PathBuf,
    pub(super) fd: OwnedFd,
    pub(super) device: u64,
    /// As it was before anything of ours was put into it.
    pub(super) begun: Stat,
}

/// What a path leads to on the host.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    There(Stat),
    /// There is nothing.
    Open,
    /// A symbolic link is in the way.
    Blocked,
    /// Something is mounted there or on the way, perhaps from elsewhere on the same file system.
    Mounted,
}

/// Nobody else applies to the directory.
#[derive(Debug)]
pub(super) struct Lock(OwnedFd);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a process that another thread starts has it too for a moment.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl HostDir {
    pub(super) fn open(path: &Path) -> WorkspaceResult<Self> {
        let fd = openat(CWD, path, OFlags::RDONLY | DIRECTORY, Mode::empty());
        let fd = fd.doing("open", || path.to_owned())?;
        let stat = fstat(&fd).doing("inspect", || path.to_owned())?;
        Ok(Self { path: path.to_owned(), fd, device: stat.st_dev, begun: stat })
    }

    /// The kernel lets go of it when we die.
    pub(super) fn lock(&self) -> WorkspaceResult<Lock> {
        let fd = beneath(&self.fd, Path::new("."), OFlags::RDONLY | DIRECTORY);
        let fd = fd.doing("open", || self.path.clone())?;
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(WorkspaceError::Busy { path: self.path.clone() }),
            result => result.doing("lock", || self.path.clone()).map(|()| Lock(fd)),
        }
    }

    pub(super) fn look(&self, path: &Path) -> WorkspaceResult<Way> {
        let found = match path.as_os_str().is_empty() {
            true => fstat(&self.fd),
            false => self.hold(path).and_then(fstat),
        };
        match found {
            Ok(stat) if stat.st_dev != self.device => Ok(Way::Mounted),
            Ok(stat) => Ok(Way::There(stat)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(Way::Open),
            Err(Errno::LOOP) => Ok(Way::Blocked),
            Err(Errno::XDEV) => Ok(Way::Mounted),
            Err(err) => Err(err).doing("inspect", || shown(&self.path, path)),
        }
    }

    /// Whatever is there, a link itself and not what it points to, without any right to it.
    pub(super) fn hold(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let (directory, name) = self.parent(path)?;
        beneath(&directory, &name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)
    }

    /// The directory that a path's last name is in, and that name.
    pub(super) fn parent(&self, path: &Path) -> rustix::io::Result<(OwnedFd, CString)> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        Ok((beneath(&self.fd, parent, OFlags::PATH | DIRECTORY)?, name))
    }

    /// A regular file, to be compared. Nobody waits for a fifo that was put there meanwhile.
    pub(super) fn open_file(&self, path: &Path) -> WorkspaceResult<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let doing = || shown(&self.path, path);
        let fd = beneath(&self.fd, path, flags).doing("open", doing)?;
        let stat = fstat(&fd).doing("inspect", doing)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(fd.into()),
            _ => Err(WorkspaceError::Changed { path: doing() }),
        }
    }

    pub(super) fn read_link(&self, path: &Path) -> WorkspaceResult<PathBuf> {
        let read = self
            .parent(path)
            .and_then(|(directory, name)| readlinkat(&directory, &name, Vec::new()));
        let target = read.doing("read the link", || shown(&self.path, path))?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    pub(super) fn names(&self, path: &Path) -> WorkspaceResult<Vec<OsString>> {
        let list = || {
            let mut names = Vec::new();
            for entry in Dir::new(beneath(&self.fd, path, OFlags::RDONLY | DIRECTORY)?)? {
                let name = entry?.file_name().to_bytes().to_vec();
                if name != b"." && name != b".." {
                    names.push(OsString::from_vec(name));
                }
            }
            Ok::<_, Errno>(names)
        };
        list().doing("list", || shown(&self.path, path))
    }
}

/// What is at a path below an open directory, if nothing on the way leads elsewhere.
pub(super) fn beneath(
    at: impl AsFd,
    path: impl rustix::path::Arg,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    openat2(at, path, flags, Mode::empty(), resolve)
}

pub(super) fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

pub(super) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

pub(super) fn is_link(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
}
