//! File systems in memory that belong to a sandbox, `/dev/shm` above all: they are in no layer, so an
//! image keeps what is in them.
//!
//! Who makes names there is not trusted: no link is followed, and nothing mounted below is entered.

use std::{io, os::fd::OwnedFd};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, fstatfs, openat2, statat,
    },
    io::Errno,
};

use crate::image::{EntryKind, KeptEntry};

mod fill;
mod look;

pub(crate) use self::{
    fill::{fill_all, fill_from_outside},
    look::{Names, copy, look},
};

/// Looking does not count as access.
const LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOATIME);

const TMPFS: i64 = 0x0102_1994;

/// A mount's root, if there is a file system in memory at `path`.
fn open_mount(root: &OwnedFd, path: &str) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let mount = match openat2(root, path.trim_start_matches('/'), flags, Mode::empty(), confined) {
        Ok(mount) => mount,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(err) => return Err(err.into()),
    };
    // What is in another file system's directory is kept with that.
    let is_own = statat(&mount, "..", AtFlags::SYMLINK_NOFOLLOW)?.st_dev != fstat(&mount)?.st_dev;
    Ok((is_own && fstatfs(&mount)?.f_type == TMPFS).then_some(mount))
}

/// A file of it, as it is. `None` is the root of another mount.
fn open_in(mount: &OwnedFd, path: &str, flags: OFlags) -> io::Result<Option<OwnedFd>> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let confined = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    let path = if path.is_empty() { "." } else { path };
    match openat2(mount, path, flags, Mode::empty(), confined) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::XDEV) => Ok(None),
        Err(err) => Err(err.into()),
    }
}

/// Everything in it, directories before what is in them; the first is the root.
fn walk(
    mount: &OwnedFd,
    mut see: impl FnMut(&str, &OwnedFd, &Stat) -> io::Result<()>,
) -> io::Result<()> {
    let mut waiting = vec![String::new()];
    while let Some(path) = waiting.pop() {
        let Some(file) = open_in(mount, &path, OFlags::PATH)? else { continue };
        let stat = fstat(&file)?;
        see(&path, &file, &stat)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            continue;
        }
        let Some(directory) = open_in(mount, &path, LIST)? else { continue };
        for entry in Dir::new(directory)? {
            let entry = entry?;
            let odd = || io::Error::other(format!("a name in `{path}` is not UTF-8"));
            let name = entry.file_name().to_str().map_err(|_| odd())?;
            if name != "." && name != ".." {
                let slash = if path.is_empty() { "" } else { "/" };
                waiting.push(format!("{path}{slash}{name}"));
            }
        }
    }
    Ok(())
}

impl KeptEntry {
    pub(crate) fn is_directory(&self) -> bool {
        self.kind == EntryKind::Directory
    }
}
