//! Pipes, with and without a name, and what waits in them.

use std::{io, os::fd::OwnedFd};

use rustix::pipe::{
    PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, tee,
};

use super::files::{Seen, is_writer, told};
use crate::{
    coverage::Reason,
    image::{Bytes, FileKind},
};

pub(super) fn kind(seen: &Seen<'_>) -> Result<FileKind, Reason> {
    let (capacity, content) = capacity_and_content(seen)?;
    Ok(FileKind::Pipe { pipe: seen.stat.st_ino, capacity, content })
}

/// With a name, which leads to it.
pub(super) fn named(seen: &Seen<'_>) -> Result<FileKind, Reason> {
    let (capacity, content) = capacity_and_content(seen)?;
    let path = seen.name.to_owned();
    Ok(FileKind::Fifo { path, pipe: seen.stat.st_ino, capacity, content })
}

fn capacity_and_content(seen: &Seen<'_>) -> Result<(u32, Bytes), String> {
    let capacity = fcntl_getpipe_size(seen.fd).map_err(told)? as u32;
    let content = match is_writer(seen.flags) {
        true => Vec::new(),
        false => pipe_content(seen.fd, capacity).map_err(told)?,
    };
    Ok((capacity, Bytes(content)))
}

/// Without taking it out.
fn pipe_content(fd: &OwnedFd, capacity: u32) -> io::Result<Vec<u8>> {
    let waiting = rustix::io::ioctl_fionread(fd)? as usize;
    if waiting == 0 {
        return Ok(Vec::new());
    }
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // A copied page takes a place in the other pipe even if it holds one byte.
    fcntl_setpipe_size(&writer, (capacity as usize).max(1 << 20))?;
    tee(fd, &writer, waiting, SpliceFlags::NONBLOCK)?;
    let mut content = vec![0; waiting];
    let mut filled = 0;
    while filled < waiting {
        match rustix::io::read(&reader, &mut content[filled..]) {
            Ok(0) | Err(rustix::io::Errno::AGAIN) => break,
            Ok(len) => filled += len,
            Err(err) => return Err(err.into()),
        }
    }
    if filled == waiting { Ok(content) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_read_without_taking_anything_out() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        for part in [b"one".as_slice(), b"two", b"three"] {
            rustix::io::write(&writer, part).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(pipe_content(&reader, 65536).unwrap(), b"onetwothree");
        }
        let mut buffer = [0; 32];
        assert_eq!(rustix::io::read(&reader, &mut buffer).unwrap(), 11);
        assert_eq!(pipe_content(&reader, 65536).unwrap(), b"");
    }
}
