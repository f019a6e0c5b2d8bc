//! Owners, modes, times and attributes of what came.

use std::{ffi::CString, os::fd::AsFd as _, os::unix::ffi::OsStrExt as _, path::Path};

use forkpoint_core::part::EntryMeta;
use rustix::{
    fs::{
        AtFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid, chmodat, chownat, fchmod, fchown,
        futimens, utimensat,
    },
    io::Errno,
};

use super::{
    super::{
        super::{
            LayerError, LayerResult, LayerSize,
            attributes::{self, OF_THE_MACHINE, Place},
        },
        COPIED_UP,
    },
    Arrival, Bad, During as _, Later, open_below, refused,
};

/// Of a directory that nobody told of.
const OPEN_TO_ALL: Mode = Mode::from_raw_mode(0o755);

impl Arrival {
    /// Changing the owner clears set-user-id and capabilities, and an access list changes the mode;
    /// whatever is last must be the times.
    pub(super) fn describe(&self, meta: &EntryMeta, of: Place, kind: FileType) -> Result<(), Bad> {
        if self.keeps_owners {
            let (uid, gid) = (Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)));
            match of {
                Place::Open(fd) => fchown(fd, uid, gid),
                Place::Named(at, name) => chownat(at, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW),
            }
            .during("set the owner of")?;
        }
        self.set_attributes(meta, of, kind)?;
        let mode = Mode::from_raw_mode(meta.mode);
        match of {
            Place::Open(fd) => fchmod(fd, mode).during("set the mode of")?,
            Place::Named(..) if kind == FileType::Symlink => {}
            Place::Named(at, name) => {
                chmodat(at, name, mode, AtFlags::empty()).during("set the mode of")?;
            }
        }
        let times = times(meta);
        match of {
            Place::Open(fd) => futimens(fd, &times),
            Place::Named(at, name) => utimensat(at, name, &times, AtFlags::SYMLINK_NOFOLLOW),
        }
        .during("set the times of")
    }

    fn set_attributes(&self, meta: &EntryMeta, of: Place, kind: FileType) -> Result<(), Bad> {
        for (name, value) in &meta.xattrs {
            let name = name.as_bytes();
            if name == COPIED_UP.as_bytes() {
                match (kind, of) {
                    (FileType::RegularFile, Place::Open(fd)) => self.marks.set_origin(fd)?,
                    _ => return refused("only a file can have been copied up"),
                }
                continue;
            }
            if OF_THE_MACHINE.contains(&name) {
                continue;
            }
            // Whatever it is called: overlayfs takes it for one that somebody inside set.
            let Ok(stored) = CString::new(self.marks.stored(name)) else {
                return refused("the name of an attribute has a NUL byte");
            };
            let shown = || String::from_utf8_lossy(name).into_owned();
            match attributes::write(of, &stored, value) {
                Err(Errno::PERM | Errno::ACCESS) => {
                    return refused(format!("its attribute `{}` cannot be set here", shown()));
                }
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::RANGE | Errno::TOOBIG) => {
                    return refused(format!("its attribute `{}` is none that can be", shown()));
                }
                set => set.during("set attributes of")?,
            }
        }
        Ok(())
    }

    /// From the bottom up: a directory may be closed to us from now on.
    pub fn finish(mut self) -> LayerResult<LayerSize> {
        self.parent = None;
        for (path, later) in std::mem::take(&mut self.directories).iter().rev() {
            let shown = || Path::new("/").join(std::ffi::OsStr::from_bytes(path));
            let directory = open_below(&self.root, path).during("open");
            let described = directory.and_then(|directory| match later {
                Later::Told(meta) => {
                    self.describe(meta, Place::Open(directory.as_fd()), FileType::Directory)
                }
                Later::Implied => fchmod(&directory, OPEN_TO_ALL).during("set the mode of"),
            });
            described.map_err(|bad| match bad {
                Bad::Refused(reason) => LayerError::Refused { path: shown(), reason },
                Bad::Io(operation, source) => LayerError::Io { operation, path: shown(), source },
                Bad::Layer(fault) => fault.at(shown()),
            })?;
        }
        Ok(self.size)
    }
}

fn times(meta: &EntryMeta) -> Timestamps {
    let (mut seconds, mut nanoseconds) =
        (meta.modified.as_second(), i64::from(meta.modified.subsec_nanosecond()));
    if nanoseconds < 0 {
        (seconds, nanoseconds) = (seconds - 1, nanoseconds + 1_000_000_000);
    }
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    Timestamps { last_access: time, last_modification: time }
}
