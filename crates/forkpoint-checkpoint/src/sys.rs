//! The system calls that nobody else wraps. All `unsafe` of this crate is below here, in `arch`, and where
//! a restored process takes the place of ours.

#![expect(unsafe_code, reason = "raw system calls; each says why it is sound")]

use std::{
    fs::File,
    io::{self, Read as _},
    num::NonZeroU64,
    os::fd::OwnedFd,
    path::Path,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, RawDir, Stat, openat, readlinkat, statat},
    time::{ClockId, Timespec, clock_gettime},
};

pub(crate) mod fault;
pub(crate) mod ipc;
pub(crate) mod memory;
pub(crate) mod ptrace;
pub(crate) mod socket;
pub(crate) mod task;
pub(crate) mod unix;

pub(crate) const PAGE: u64 = 4096;

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// How many steps a process may make before it is killed: for tests of what its death leaves.
#[cfg(debug_assertions)]
pub(crate) static STEPS_LEFT: std::sync::atomic::AtomicU64 =
    std::sync::atomic::AtomicU64::new(u64::MAX);

/// Something that others see is about to be done.
pub(crate) fn step() {
    #[cfg(debug_assertions)]
    if STEPS_LEFT.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) == 0 {
        let _ = task::kill(std::process::id() as i32, libc::SIGKILL);
        pause(Duration::from_secs(1));
    }
}

/// The directory of a process in `/proc`: what is in it is found without looking for the process each time.
#[derive(Debug)]
pub(crate) struct Proc(OwnedFd);

impl Proc {
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty())?))
    }

    pub(crate) fn open(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::empty())?.into())
    }

    pub(crate) fn text(&self, name: &str) -> io::Result<String> {
        read_all(&self.open(name)?, More::Perhaps)
    }

    /// Of a file of which the kernel tells all at once if there is room.
    pub(crate) fn text_at_once(&self, name: &str) -> io::Result<String> {
        read_all(&self.open(name)?, More::IfFull)
    }

    /// The same where the program has chosen a part of it: what is no text is marked.
    pub(crate) fn marked_text(&self, name: &str) -> io::Result<String> {
        Ok(marked(read_bytes(&self.open(name)?, More::IfFull)?))
    }

    /// A path that a link tells. Others than text are not taken.
    pub(crate) fn link(&self, name: &str) -> io::Result<String> {
        let target = readlinkat(&self.0, name, Vec::with_capacity(256))?;
        target.into_string().map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// What a link leads to.
    pub(crate) fn stat(&self, name: &str) -> io::Result<Stat> {
        Ok(statat(&self.0, name, AtFlags::empty())?)
    }

    /// Names in a directory that are numbers.
    pub(crate) fn numbers(&self, name: &str) -> io::Result<Vec<i32>> {
        const ROOM: usize = 4096;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(&self.0, name, flags, Mode::empty())?;
        let mut room = Vec::with_capacity(ROOM);
        let mut entries = RawDir::new(directory, room.spare_capacity_mut());
        let mut numbers = Vec::new();
        while let Some(entry) = entries.next() {
            let number = |name: &str| name.parse::<i32>().ok();
            numbers.extend(entry?.file_name().to_str().ok().and_then(number));
        }
        Ok(numbers)
    }
}

/// Which of our descriptors below `end` are open.
pub(crate) fn open_below(end: i32) -> io::Result<Vec<i32>> {
    let each = |fd| libc::pollfd { fd, events: 0, revents: 0 };
    let mut all: Vec<_> = (0..end).map(each).collect();
    // SAFETY: as many as are told, and nobody is waited for.
    check(unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, 0) }.into())?;
    Ok(all.iter().filter(|each| each.revents & libc::POLLNVAL == 0).map(|each| each.fd).collect())
}

/// What a file of `/proc` says.
pub(crate) fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    read_all(&File::open(path)?, More::Perhaps)
}

/// The same where the program has chosen a part of it: what is no text is marked.
pub(crate) fn read_marked(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(marked(read_bytes(&File::open(path)?, More::Perhaps)?))
}

/// The same of which the kernel tells all at once if there is room.
pub(crate) fn read_marked_at_once(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(marked(read_bytes(&File::open(path)?, More::IfFull)?))
}

fn marked(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|err| String::from_utf8_lossy(err.as_bytes()).into())
}

/// Whether a text is all that it was read from.
pub(crate) fn is_whole_text(text: &str) -> bool {
    !text.contains(char::REPLACEMENT_CHARACTER)
}

/// Whether there may be more after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum More {
    Perhaps,
    IfFull,
}

fn read_all(file: &File, more: More) -> io::Result<String> {
    String::from_utf8(read_bytes(file, more)?).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// It has neither a length nor a place that could be asked for: as the standard library would, before it reads.
fn read_bytes(mut file: &File, more: More) -> io::Result<Vec<u8>> {
    const USUAL: usize = 8 << 10;
    let mut text = vec![0; USUAL];
    let mut len = 0;
    loop {
        if len == text.len() {
            text.resize(2 * len, 0);
        }
        match file.read(&mut text[len..]) {
            Ok(0) => break,
            Ok(read) => {
                len += read;
                if more == More::IfFull && len < text.len() {
                    break;
                }
            }
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    text.truncate(len);
    Ok(text)
}

/// A moment after which nobody waits any longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Duration);

pub(crate) fn now() -> Duration {
    clock_gettime(ClockId::Monotonic).try_into().unwrap_or_default()
}

impl Deadline {
    pub(crate) fn after(time: Duration) -> Self {
        Self(now() + time)
    }

    pub(crate) fn passed(self) -> bool {
        self.0 <= now()
    }

    pub(crate) fn earlier(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

/// Lets others run before a condition is looked at again: at first at once, then after a little while.
#[derive(Debug, Default)]
pub(crate) struct Patience(u32);

impl Patience {
    const EAGER: u32 = 60;

    pub(crate) fn wait(&mut self) {
        self.0 += 1;
        if self.0 < Self::EAGER {
            rustix::thread::sched_yield();
        } else {
            if self.0 == Self::EAGER {
                // Else the kernel may wake this thread fifty microseconds late, each time. Only ever a matter of time.
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            }
            pause(Duration::from_micros(20 + u64::from(self.0.min(2_000)) / 4));
        }
    }
}

/// An interrupted pause is a shorter one.
pub(crate) fn pause(time: Duration) {
    if let Ok(time) = Timespec::try_from(time) {
        let _ = rustix::thread::nanosleep(&time);
    }
}
