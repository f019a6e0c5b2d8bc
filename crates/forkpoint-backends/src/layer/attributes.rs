//! Owners, modes, times and extended attributes, from one inode to another.
//!
//! The order matters: changing the owner clears set-user-id and capabilities, and whatever is done
//! last must be the times.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
};

use rustix::{
    fs::{
        AtFlags, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat,
        chownat, fchmod, fchown, fgetxattr, flistxattr, fremovexattr, fsetxattr, futimens,
        lgetxattr, llistxattr, lremovexattr, lsetxattr, utimensat,
    },
    io::Errno,
};

use super::{
    error::{During as _, Fault},
    marks::{Fate, Marks},
};

/// The kernel's own limit for a list and for a value.
const XATTR_MAX: usize = 64 * 1024;

/// Enough for nearly all. The kernel allocates as much as it is offered, at each call.
const XATTR_USUAL: usize = 512;

/// Labels that the machine's own policy gives: what cannot be copied was not the sandbox's.
pub(crate) const OF_THE_MACHINE: [&[u8]; 3] =
    [b"security.selinux", b"security.ima", b"security.evm"];

/// Copies attributes into inodes that were made just now.
#[derive(Debug)]
pub(super) struct Attributes {
    pub(super) marks: Marks,
    /// Whom a new inode belongs to without being asked.
    newborn: (u32, u32),
    names: Vec<u8>,
    value: Vec<u8>,
}

/// A thing to which attributes are read or written.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    Open(BorrowedFd<'a>),
    /// A thing that must not be opened, by its directory and name.
    Named(BorrowedFd<'a>, &'a CStr),
}

impl Attributes {
    pub(super) fn new(marks: Marks, newborn: (u32, u32)) -> Self {
        Self { marks, newborn, names: vec![0; XATTR_MAX], value: vec![0; XATTR_MAX] }
    }

    /// Everything that `stat` and the source's extended attributes tell, but for the content.
    /// `has_mode` when it was made with the right mode, which an access list may have changed.
    pub(super) fn copy(
        &mut self,
        from: Place,
        stat: &Stat,
        to: Place,
        has_mode: bool,
    ) -> Result<(), Fault> {
        if (stat.st_uid, stat.st_gid) != self.newborn {
            set_owner(to, stat).during("set the owner of")?;
        }
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let extended = self.copy_extended(from, to, is_file)?;
        if has_mode && !extended { Ok(()) } else { set_mode(to, stat).during("set the mode of") }
    }

    /// Of a file that has nothing to copy: whether it was one of a layer below before somebody wrote to it.
    pub(super) fn only_origin(&mut self, file: BorrowedFd) -> Result<Option<bool>, Fault> {
        let len = match list(Place::Open(file), &mut self.names) {
            Err(Errno::OPNOTSUPP) => 0,
            result => result.during("list attributes of")?,
        };
        let mut origin = false;
        for name in self.names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            match self.marks.fate(name) {
                Fate::Emptied => origin = true,
                Fate::Dropped => {}
                Fate::Kept | Fate::Refused => return Ok(None),
            }
        }
        Ok(Some(origin))
    }

    /// Whether there were any.
    pub(super) fn copy_extended(
        &mut self,
        from: Place,
        to: Place,
        is_file: bool,
    ) -> Result<bool, Fault> {
        let len = match list(from, &mut self.names) {
            Err(Errno::OPNOTSUPP) => 0,
            result => result.during("list attributes of")?,
        };
        let mut rest = &self.names[..len];
        let mut any = false;
        while let Ok(name) = CStr::from_bytes_until_nul(rest) {
            rest = &rest[name.to_bytes_with_nul().len()..];
            match self.marks.fate(name.to_bytes()) {
                Fate::Kept => {
                    copy_one(from, to, name, &mut self.value)?;
                    any = true;
                }
                Fate::Emptied if is_file => write(to, name, b"").during("set attributes of")?,
                Fate::Emptied | Fate::Dropped => {}
                Fate::Refused => {
                    return Err(Fault::Unsupported {
                        reason: "overlayfs keeps part of it elsewhere (`redirect_dir`, `metacopy`)",
                    });
                }
            }
        }
        Ok(any)
    }
}

fn copy_one(from: Place, to: Place, name: &CStr, value: &mut [u8]) -> Result<(), Fault> {
    let len = match read(from, name, value) {
        Err(Errno::NODATA) => return Ok(()),
        result => result.during("read attributes of")?,
    };
    match write(to, name, &value[..len]) {
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::ACCESS)
            if OF_THE_MACHINE.contains(&name.to_bytes()) =>
        {
            Ok(())
        }
        result => result.during("set attributes of"),
    }
}

pub(super) fn set_times(to: Place, stat: &Stat) -> Result<(), Fault> {
    let times = Timestamps {
        last_access: Timespec { tv_sec: stat.st_atime as _, tv_nsec: stat.st_atime_nsec as _ },
        last_modification: Timespec {
            tv_sec: stat.st_mtime as _,
            tv_nsec: stat.st_mtime_nsec as _,
        },
    };
    match to {
        Place::Open(fd) => futimens(fd, &times),
        Place::Named(dir, name) => utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW),
    }
    .during("set the times of")
}

fn set_owner(to: Place, stat: &Stat) -> rustix::io::Result<()> {
    let owner = Some(Uid::from_raw(stat.st_uid));
    let group = Some(Gid::from_raw(stat.st_gid));
    match to {
        Place::Open(fd) => fchown(fd, owner, group),
        Place::Named(dir, name) => chownat(dir, name, owner, group, AtFlags::SYMLINK_NOFOLLOW),
    }
}

fn set_mode(to: Place, stat: &Stat) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(stat.st_mode);
    match to {
        Place::Open(fd) => fchmod(fd, mode),
        Place::Named(..) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => Ok(()),
        Place::Named(dir, name) => chmodat(dir, name, mode, AtFlags::empty()),
    }
}

fn list(place: Place, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    offer(buffer, |buffer| match place {
        Place::Open(fd) => flistxattr(fd, buffer),
        Place::Named(dir, name) => llistxattr(by_proc(dir, name), buffer),
    })
}

/// The names of all attributes.
pub(super) fn listed(place: Place) -> rustix::io::Result<Vec<CString>> {
    let mut buffer = vec![0; XATTR_MAX];
    let len = match list(place, &mut buffer) {
        Err(Errno::OPNOTSUPP) => 0,
        len => len?,
    };
    let names = buffer[..len].split_inclusive(|byte| *byte == 0);
    Ok(names.filter_map(|name| CStr::from_bytes_with_nul(name).ok().map(CStr::to_owned)).collect())
}

pub(super) fn value_of(place: Place, attribute: &CStr) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; XATTR_MAX];
    let len = read(place, attribute, &mut value)?;
    value.truncate(len);
    Ok(value)
}

/// Every attribute of what must not be opened, by its directory and name, or of what is open.
pub(crate) fn all_attributes(
    at: BorrowedFd,
    name: Option<&CStr>,
) -> rustix::io::Result<Vec<(CString, Vec<u8>)>> {
    let place = name.map_or(Place::Open(at), |name| Place::Named(at, name));
    listed(place)?.into_iter().map(|name| Ok((name.clone(), value_of(place, &name)?))).collect()
}

pub(super) fn remove(place: Place, attribute: &CStr) -> rustix::io::Result<()> {
    match place {
        Place::Open(fd) => fremovexattr(fd, attribute),
        Place::Named(dir, name) => lremovexattr(by_proc(dir, name), attribute),
    }
}

fn read(place: Place, attribute: &CStr, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    offer(buffer, |buffer| match place {
        Place::Open(fd) => fgetxattr(fd, attribute, buffer),
        Place::Named(dir, name) => lgetxattr(by_proc(dir, name), attribute, buffer),
    })
}

fn offer(
    buffer: &mut [u8],
    call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<usize> {
    match call(&mut buffer[..XATTR_USUAL]) {
        Err(Errno::RANGE) => call(buffer),
        result => result,
    }
}

pub(super) fn write(place: Place, attribute: &CStr, value: &[u8]) -> rustix::io::Result<()> {
    match place {
        Place::Open(fd) => fsetxattr(fd, attribute, value, XattrFlags::empty()),
        Place::Named(dir, name) => {
            lsetxattr(by_proc(dir, name), attribute, value, XattrFlags::empty())
        }
    }
}

/// There are no calls for attributes relative to a directory before Linux 6.13; the `l` calls do
/// not follow the last name.
fn by_proc(directory: impl AsFd, name: &CStr) -> CString {
    let mut path = format!("/proc/self/fd/{}/", directory.as_fd().as_raw_fd()).into_bytes();
    path.extend_from_slice(name.to_bytes());
    CString::new(path).unwrap_or_default()
}
