//! Directories of this machine, by descriptors: no link on the way down is followed.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use forkpoint_core::{Error, ErrorKind};
use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, fchmod, fstat, mkdirat, openat, renameat, statat, unlinkat,
    },
    io::Errno,
};

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory here, and its path for messages.
#[derive(Clone, Debug)]
pub(super) struct Here {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) path: PathBuf,
}

impl Here {
    /// As it was typed: links on the way to it are whoever's who typed it.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(failed("open", path))?;
        Ok(Self { fd: Arc::new(fd), path: path.to_owned() })
    }

    pub(super) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn enter(&self, name: &OsStr) -> Result<Self, Error> {
        let path = self.path_of(name);
        let fd = openat(&self.fd, name, DIRECTORY, Mode::empty()).map_err(failed("open", &path))?;
        Ok(Self { fd: Arc::new(fd), path })
    }

    /// A directory to copy into: a new one, or one that is there. What else is there stays.
    pub(super) fn make(&self, name: &OsStr) -> Result<(Self, bool), Error> {
        let is_new = match mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(err) => return Err(failed("create", &self.path_of(name))(err)),
        };
        Ok((self.enter(name)?, is_new))
    }

    pub(super) fn mode(&self) -> Result<u32, Error> {
        let stat = fstat(&self.fd).map_err(failed("look at", &self.path))?;
        Ok(stat.st_mode)
    }

    pub(super) fn set_mode(&self, mode: u32) -> Result<(), Error> {
        fchmod(&self.fd, Mode::from_raw_mode(mode)).map_err(failed("set the mode of", &self.path))
    }

    pub(super) fn kind(&self, name: &OsStr) -> Result<Option<FileType>, Error> {
        match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(err) => Err(failed("look at", &self.path_of(name))(err)),
        }
    }

    /// A regular file, to be read. Nobody waits for a FIFO.
    pub(super) fn read(&self, name: &OsStr) -> Result<File, Error> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::empty());
        Ok(File::from(fd.map_err(failed("open", &self.path_of(name)))?))
    }

    /// Puts a symbolic link in the place of what is there, unless that is a directory.
    pub(super) fn link(&self, name: &OsStr, target: &Path) -> Result<(), Error> {
        let new = Unfinished::new(self);
        let made = rustix::fs::symlinkat(target, &self.fd, new.name.as_str());
        made.map_err(failed("create", &self.path_of(name)))?;
        new.put(name)
    }

    /// A file that is seen when it is complete.
    pub(super) fn write(&self, name: &OsStr) -> Result<NewFile<'_>, Error> {
        let new = Unfinished::new(self);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = openat(&self.fd, new.name.as_str(), flags, Mode::RUSR | Mode::WUSR);
        let fd = fd.map_err(failed("create", &self.path_of(name)))?;
        Ok(NewFile { file: File::from(fd), new, path: self.path_of(name) })
    }
}

/// A name that goes away with this, unless it was put in its place.
struct Unfinished<'a> {
    here: &'a Here,
    name: String,
    done: bool,
}

impl<'a> Unfinished<'a> {
    fn new(here: &'a Here) -> Self {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!(".forkpoint-{}-{count}", std::process::id());
        Self { here, name, done: false }
    }

    fn put(mut self, name: &OsStr) -> Result<(), Error> {
        let fd = &self.here.fd;
        let put = renameat(fd, self.name.as_str(), fd, name);
        put.map_err(failed("replace", &self.here.path_of(name)))?;
        self.done = true;
        Ok(())
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.done {
            let _ = unlinkat(&self.here.fd, self.name.as_str(), AtFlags::empty());
        }
    }
}

pub(super) struct NewFile<'a> {
    file: File,
    new: Unfinished<'a>,
    path: PathBuf,
}

impl NewFile<'_> {
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(failed("write", &self.path))
    }

    pub(super) fn finish(self, name: &OsStr, mode: u32) -> Result<(), Error> {
        let set = fchmod(self.file.as_fd(), Mode::from_raw_mode(mode));
        set.map_err(failed("set the mode of", &self.path))?;
        self.new.put(name)
    }
}

pub(super) fn failed<E: Into<io::Error>>(
    what: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> Error {
    let message = format!("failed to {what} `{}`", path.display());
    move |err| {
        let err: io::Error = err.into();
        let kind = match err.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => ErrorKind::Invalid,
            _ => ErrorKind::Unavailable,
        };
        Error::new(kind, message).with_source(err)
    }
}
