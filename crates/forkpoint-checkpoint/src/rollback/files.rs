//! Descriptors in place: what is new is closed, and places, contents and counts go back.

use std::{collections::HashMap, io, os::fd::OwnedFd};

use rustix::{
    fs::{OFlags, SeekFrom, fcntl_getfl, fcntl_setfl, seek},
    io::Errno,
    pipe::{fcntl_getpipe_size, fcntl_setpipe_size},
    process::{PidfdGetfdFlags, pidfd_getfd},
};

use crate::{
    dump::Draft,
    error::{Error, Result},
    freeze::Held,
    image::{Alive, Descriptor, FileKind, OpenFile, OtherEnd, Process, Snapshot},
    restore::record_locks,
    script::Script,
    sys::socket::set_timer,
};

/// Which open files of the image are which now. Two descriptors that shared one still do, and no others.
#[derive(Debug, Default)]
pub(super) struct Same {
    now: HashMap<usize, usize>,
    was: HashMap<usize, usize>,
}

impl Same {
    fn is(&mut self, was: usize, now: usize) -> bool {
        *self.now.entry(was).or_insert(now) == now && *self.was.entry(now).or_insert(was) == was
    }
}

/// Whether every descriptor of the image is still there and the same open file, as far as can be told.
pub(super) fn still_fit(
    process: &Process,
    was: &Alive,
    snapshot: &Snapshot,
    (is, files): (&Alive, &[OpenFile]),
    same: &mut Same,
) -> Result<()> {
    let Process { pid, name, .. } = process;
    for Descriptor { number, file, .. } in &was.descriptors {
        let now = is.descriptors.iter().find(|other| other.number == *number);
        let fits = |now: &&Descriptor| is_same(&snapshot.files[*file], &files[now.file]);
        let Some(now) = now.filter(fits) else {
            let why = format!("process {pid} (`{name}`) has something else as descriptor {number}");
            return Err(Error::NotInPlace { why });
        };
        if !same.is(*file, now.file) {
            let why = format!("process {pid} (`{name}`) shares descriptor {number} with others");
            return Err(Error::NotInPlace { why });
        }
    }
    Ok(())
}

/// Whether one can become the other: what else differs is set by [`positions`].
fn is_same(was: &OpenFile, is: &OpenFile) -> bool {
    use FileKind::{Client, Connection, Deleted, Event, Fifo, Memory, Path, Pipe, Poll, Timer};
    (was.flags, &was.locks) == (is.flags, &is.locks)
        && (was.identity.is_none() || was.identity == is.identity)
        && match (&was.kind, &is.kind) {
            (Path { path: a, lock: b, .. }, Path { path: c, lock: d, .. }) => (a, b) == (c, d),
            (Deleted { inode: a, content: b, .. }, Deleted { inode: c, content: d, .. }) => {
                (a, b) == (c, d)
            }
            (Pipe { pipe: a, .. }, Pipe { pipe: b, .. })
            | (Client { pipe: a, .. }, Client { pipe: b, .. })
            | (Fifo { pipe: a, .. }, Fifo { pipe: b, .. }) => a == b,
            (Memory { memory: a, .. }, Memory { memory: b, .. }) => a == b,
            (Poll { watched: a, .. }, Poll { watched: b, .. }) => a == b,
            (Connection(a), Connection(b)) => a == b && a.other_end != OtherEnd::Lost,
            (Event { semaphore: a, .. }, Event { semaphore: b, .. }) => a == b,
            (Timer { clock: a, .. }, Timer { clock: b, .. }) => a == b,
            (was, is) => was == is,
        }
}

/// Closes what the image does not have. That may give back locks of the process, which are taken again.
pub(super) fn steps(script: &mut Script, draft: &Draft, was: &Alive) -> io::Result<()> {
    for (index, descriptor) in draft.alive.descriptors.iter().enumerate() {
        let number = descriptor.number as u64;
        match was.descriptors.iter().find(|other| other.number == descriptor.number) {
            None => {
                script.call(libc::SYS_close, &[number]);
            }
            Some(was)
                if was.close_on_exec != descriptor.close_on_exec
                    || draft.unsure.contains(&index) =>
            {
                let flag = if was.close_on_exec { libc::FD_CLOEXEC } else { 0 };
                script.call(libc::SYS_fcntl, &[number, libc::F_SETFD as u64, flag as u64]);
            }
            Some(_) => {}
        }
    }
    record_locks(script, was)
}

/// Sets what belongs to an open file, through a copy of the descriptor.
pub(super) fn positions(held: &Held, was: &Alive, snapshot: &Snapshot) -> io::Result<()> {
    for descriptor in &was.descriptors {
        let pull = || pidfd_getfd(&held.pidfd, descriptor.number, PidfdGetfdFlags::empty());
        match &snapshot.files[descriptor.file].kind {
            FileKind::Path { position, directory: false, .. }
            | FileKind::Deleted { position, .. }
            | FileKind::Memory { position, .. } => {
                // A device has no place.
                let _ = seek(pull()?, SeekFrom::Start(*position));
            }
            FileKind::Pipe { content, capacity, .. } | FileKind::Fifo { content, capacity, .. }
                if !is_writer(snapshot.files[descriptor.file].flags) =>
            {
                refill(&pull()?, &content.0, *capacity as usize)?;
            }
            FileKind::Pipe { capacity, .. } | FileKind::Fifo { capacity, .. } => {
                resize(&pull()?, *capacity as usize)?;
            }
            FileKind::Event { count, .. } => {
                let fd = pull()?;
                drain(&fd)?;
                if *count > 0 {
                    rustix::io::write(&fd, &count.to_ne_bytes())?;
                }
            }
            FileKind::Timer { value, ticks, .. } => set_timer(&pull()?, value, *ticks)?,
            _ => {}
        }
    }
    Ok(())
}

fn is_writer(flags: i32) -> bool {
    flags & libc::O_ACCMODE == libc::O_WRONLY
}

/// Takes out all that is in it, without waiting.
fn drain(fd: &OwnedFd) -> io::Result<()> {
    let flags = fcntl_getfl(fd)?;
    fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
    let mut buffer = vec![0; 64 << 10];
    while rustix::io::read(fd, &mut buffer).is_ok_and(|len| len > 0) {}
    Ok(fcntl_setfl(fd, flags)?)
}

/// One end may be here whose other end has what is in it: then it does not become smaller.
fn resize(end: &OwnedFd, capacity: usize) -> io::Result<()> {
    if fcntl_getpipe_size(end)? != capacity {
        match fcntl_setpipe_size(end, capacity) {
            Err(Errno::BUSY) => {}
            set => set.map(drop)?,
        }
    }
    Ok(())
}

fn refill(reader: &OwnedFd, content: &[u8], capacity: usize) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    drain(reader)?;
    resize(reader, capacity)?;
    if content.is_empty() {
        return Ok(());
    }
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let writer = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    let mut rest = content;
    while !rest.is_empty() {
        let len = rustix::io::write(&writer, rest)?;
        rest = &rest[len..];
    }
    Ok(())
}
