//! What an inotify watches, under the same numbers.

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
};

use rustix::fs::{MemfdFlags, OFlags, inotify, memfd_create};

use super::files::inside;
use crate::{
    image::{FileKind, OpenFile},
    sys::socket,
};

pub(super) fn open(flags: OFlags) -> io::Result<OwnedFd> {
    let mut how = inotify::CreateFlags::CLOEXEC;
    how.set(inotify::CreateFlags::NONBLOCK, flags.contains(OFlags::NONBLOCK));
    Ok(inotify::init(how)?)
}

/// Numbers are given out in order; what was watched in between is made up and forgotten.
pub(super) fn watch(fd: RawFd, kind: &FileKind) -> io::Result<()> {
    let look_up = |path: &str| inside(path, OFlags::PATH | OFlags::NOFOLLOW);
    match kind {
        FileKind::Watch { watches } => watch_all(fd, watches, look_up),
        _ => Ok(()),
    }
}

/// The same with names that are looked up in their own way.
pub(crate) fn watch_again(
    file: &OpenFile,
    look_up: impl Fn(&str) -> io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    let FileKind::Watch { watches } = &file.kind else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let fd = open(OFlags::from_bits_retain(file.flags as u32))?;
    watch_all(fd.as_raw_fd(), watches, look_up)?;
    Ok(fd)
}

fn watch_all(
    fd: RawFd,
    watches: &[(i32, String, u32)],
    look_up: impl Fn(&str) -> io::Result<OwnedFd>,
) -> io::Result<()> {
    let nothing = memfd_create("nothing", MemfdFlags::CLOEXEC)?;
    let mut next = 1;
    for (number, path, mask) in watches {
        while next < *number {
            let given = socket::watch(fd, &through(&nothing)?, libc::IN_DELETE_SELF)?;
            socket::unwatch(fd, given)?;
            next = given + 1;
            forget_events(fd)?;
        }
        let watched = look_up(path)?;
        next = socket::watch(fd, &through(&watched)?, *mask)? + 1;
        if next != number + 1 {
            return Err(io::Error::other(format!("`{path}` is watched under another number")));
        }
    }
    Ok(())
}

fn through(fd: &OwnedFd) -> io::Result<CString> {
    CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(io::Error::other)
}

/// That something is no longer watched is an event too.
#[expect(unsafe_code, reason = "a descriptor is known by its number")]
fn forget_events(fd: RawFd) -> io::Result<()> {
    // SAFETY: it is open until the image's files are closed, and nobody else reads from it.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    while rustix::io::ioctl_fionread(fd)? > 0 {
        rustix::io::read(fd, &mut [0; 4096])?;
    }
    Ok(())
}
