//! Whether two files hold the same.

use std::{ffi::CStr, fs::File, io, os::fd::BorrowedFd, os::unix::fs::FileExt as _};

use rustix::fs::{Mode, OFlags, openat};

const CHUNK: usize = 64 << 10;

/// Both have the same length, and nobody writes.
pub(super) fn is_same_content(one: &File, at: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let other = File::from(openat(at, name, flags, Mode::empty())?);
    let (mut left, mut right) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut offset = 0;
    loop {
        let len = one.read_at(&mut left, offset)?;
        if len == 0 {
            return Ok(other.read_at(&mut right, offset)? == 0);
        }
        match other.read_exact_at(&mut right[..len], offset) {
            Err(err) if err.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            result => result?,
        }
        if left[..len] != right[..len] {
            return Ok(false);
        }
        offset += len as u64;
    }
}
