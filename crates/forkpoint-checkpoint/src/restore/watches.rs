//! What an inotify watches, under the same numbers.

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
};

use rustix::fs::{MemfdFlags, OFlags, inotify, memfd_create};

use super::files::inside;
use crate::{image::FileKind, sys::socket};

pub(super) fn open(flags: OFlags) -> io::Result<OwnedFd> {
    let mut how = inotify::CreateFlags::CLOEXEC;
    how.set(inotify::CreateFlags::NONBLOCK, flags.contains(OFlags::NONBLOCK));
    Ok(inotify::init(how)?)
}

/// Numbers are given out in order; what was watched in between is made up and forgotten.
pub(super) fn watch(fd: RawFd, kind: &FileKind) -> io::Result<()> {
    let FileKind::Watch { watches } = kind else { return Ok(()) };
    let nothing = memfd_create("nothing", MemfdFlags::CLOEXEC)?;
    let mut next = 1;
    for (number, path, mask) in watches {
        while next < *number {
            let given = socket::watch(fd, &through(&nothing)?, libc::IN_DELETE_SELF)?;
            socket::unwatch(fd, given)?;
            next = given + 1;
            forget_events(fd)?;
        }
        let watched = inside(path, OFlags::PATH | OFlags::NOFOLLOW)?;
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
