//! Directories that only a container sees: `tmpfs` mounts and `/dev/shm`.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

use super::notes;
use crate::layer::LayerResult;

/// A directory as the processes of a container see it. While it is open it has a path here, which can
/// be captured, and exchanged, like that of a volume.
#[derive(Debug)]
pub struct Inside {
    directory: OwnedFd,
}

impl Inside {
    /// Through a process of the container, on this machine. Links on the way lead to where they lead
    /// for the container: it could have put one there that points at the machine.
    pub fn open(pid: u32, path: &Path) -> LayerResult<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let open = || -> io::Result<OwnedFd> {
            let root = openat(CWD, &root, flags, Mode::empty())?;
            Ok(openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?)
        };
        Ok(Self { directory: open().map_err(notes::io("open", path))? })
    }

    /// The directory itself, not the link to it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}/.", self.directory.as_raw_fd()).into()
    }
}
