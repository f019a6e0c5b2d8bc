//! Pages that come when they are asked for: the part of `userfaultfd` that answers faults.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    ptr,
};

use super::check;
use crate::script::Call;

const FLAGS: i32 = libc::O_CLOEXEC | libc::O_NONBLOCK;
const NEW: libc::Ioctl = 0xaa00;
const API: libc::Ioctl = 0xc018_aa3f;
const REGISTER: libc::Ioctl = 0xc020_aa00;
const WAKE: libc::Ioctl = 0x8010_aa02;
const COPY: libc::Ioctl = 0xc028_aa03;
const ZERO: libc::Ioctl = 0xc020_aa04;

/// Told of forks, moves, throwing away and unmapping, each before it is over.
const EVENTS: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;

/// What makes descriptors that answer faults, also those of system calls. Who opened the device may let
/// others use it, in whatever user namespace they are.
#[derive(Debug)]
pub(crate) struct Maker(File);

impl Maker {
    /// `None`: this kernel has none, or we may not be told of forks.
    pub(crate) fn find() -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/userfaultfd").ok()?;
        // SAFETY: the request takes plain flags, and makes a descriptor.
        let number = check(unsafe { libc::ioctl(device.as_raw_fd(), NEW, FLAGS) }.into()).ok()?;
        // SAFETY: just made, and nobody else's.
        let tried = unsafe { OwnedFd::from_raw_fd(number as RawFd) };
        begin(&tried).ok()?;
        Some(Self(device))
    }

    pub(crate) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// What a process calls that has the device under a number.
    pub(crate) fn call(number: RawFd) -> Call {
        Call::new(libc::SYS_ioctl, &[number as u64, NEW, FLAGS as u64])
    }
}

/// Says what is understood. Only who may trace everybody is told of forks.
pub(crate) fn begin(uffd: impl AsFd) -> io::Result<()> {
    let mut args = [0xaa_u64, EVENTS, 0];
    // SAFETY: the request takes three words.
    check(unsafe { libc::ioctl(uffd.as_fd().as_raw_fd(), API, args.as_mut_ptr()) }.into()).map(drop)
}

/// From now on, whoever touches a page that is not there waits for us.
pub(crate) fn register(uffd: impl AsFd, start: u64, end: u64) -> io::Result<()> {
    const MISSING: u64 = 1;
    let mut args = [start, end - start, MISSING, 0];
    let fd = uffd.as_fd().as_raw_fd();
    // SAFETY: the request takes four words.
    check(unsafe { libc::ioctl(fd, REGISTER, args.as_mut_ptr()) }.into()).map(drop)
}

/// How far a page was put where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// So many bytes.
    Done(u64),
    /// Something is there already.
    There,
    /// There is no such memory, or it is not asked about.
    Nowhere,
    /// Its mappings change; first hear what is told.
    Later,
    /// The process is no more.
    Gone,
}

fn put(result: io::Result<i64>, done: i64) -> io::Result<Put> {
    let err = match result {
        Ok(_) => return Ok(Put::Done(done.max(0) as u64)),
        Err(_) if done > 0 => return Ok(Put::Done(done as u64)),
        Err(err) => err,
    };
    match err.raw_os_error() {
        Some(libc::EEXIST) => Ok(Put::There),
        Some(libc::ENOENT) => Ok(Put::Nowhere),
        Some(libc::EAGAIN) => Ok(Put::Later),
        Some(libc::ESRCH | libc::ENOSPC) => Ok(Put::Gone),
        _ => Err(err),
    }
}

/// Puts pages there, and wakes who waits for them.
pub(crate) fn copy(uffd: impl AsFd, to: u64, pages: &[u8]) -> io::Result<Put> {
    let mut args = [to, pages.as_ptr() as u64, pages.len() as u64, 0, 0];
    let fd = uffd.as_fd().as_raw_fd();
    // SAFETY: the request takes five words, and only reads `pages`. What it writes to is the memory of a
    // process that was registered, and in it only what is not there yet.
    let result = check(unsafe { libc::ioctl(fd, COPY, args.as_mut_ptr()) }.into());
    put(result, args[4] as i64)
}

/// Puts an empty page there, and wakes who waits for it.
pub(crate) fn zero(uffd: impl AsFd, at: u64) -> io::Result<Put> {
    let mut args = [at, super::PAGE, 0, 0];
    let fd = uffd.as_fd().as_raw_fd();
    // SAFETY: the request takes four words, and fills only what is not there yet.
    let result = check(unsafe { libc::ioctl(fd, ZERO, args.as_mut_ptr()) }.into());
    put(result, args[3] as i64)
}

/// Wakes who waits for a page: whoever finds it missing comes again.
pub(crate) fn wake(uffd: impl AsFd, at: u64) -> io::Result<()> {
    let mut args = [at, super::PAGE];
    // SAFETY: the request takes two words.
    check(unsafe { libc::ioctl(uffd.as_fd().as_raw_fd(), WAKE, args.as_mut_ptr()) }.into())
        .map(drop)
}

/// What a process does with memory that is asked about.
#[derive(Debug)]
pub(crate) enum Told {
    Fault(u64),
    /// The copy has its own descriptor.
    Fork(OwnedFd),
    Remap {
        from: u64,
        to: u64,
        len: u64,
    },
    /// Thrown away or unmapped.
    Gone(u64, u64),
}

/// The next thing, if there is one. Who did it goes on when this returns, but for a fault.
pub(crate) fn next(uffd: impl AsFd) -> io::Result<Option<Told>> {
    let mut message = [0u64; 4];
    let fd = uffd.as_fd().as_raw_fd();
    // SAFETY: the kernel writes a message of 32 bytes, or nothing.
    let got = unsafe { libc::read(fd, message.as_mut_ptr().cast(), size_of_val(&message)) };
    match check(got as i64) {
        Ok(_) => {}
        Err(err) if err.raw_os_error() == Some(libc::EAGAIN) => return Ok(None),
        Err(err) if err.raw_os_error() == Some(libc::EINTR) => return Ok(None),
        Err(err) => return Err(err),
    }
    let [kind, first, second, third] = message;
    Ok(Some(match kind & 0xff {
        0x12 => Told::Fault(second & !(super::PAGE - 1)),
        // SAFETY: the kernel made it for us just now.
        0x13 => Told::Fork(unsafe { OwnedFd::from_raw_fd(first as u32 as RawFd) }),
        0x14 => Told::Remap { from: first, to: second, len: third },
        0x15 | 0x16 => Told::Gone(first, second),
        _ => return Err(io::ErrorKind::InvalidData.into()),
    }))
}

/// A file, to read from.
#[derive(Debug)]
pub(crate) struct Mapped {
    start: u64,
    len: usize,
}

impl Mapped {
    pub(crate) fn new(file: &File, len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if len == 0 {
            return Ok(Self { start: 0, len });
        }
        let (access, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start as u64, len })
    }

    /// What only the kernel reads for us: where a file was cut meanwhile, it says so, and nobody dies.
    pub(crate) fn slice(&self, at: u64, len: u64) -> io::Result<&[u8]> {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.len as u64);
        if !fits || len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: mapped until this is dropped, and inside as was checked. Images do not change; whoever
        // changes one has other bytes restored, and nothing here looks at them.
        Ok(unsafe { std::slice::from_raw_parts((self.start + at) as *const u8, len as usize) })
    }

    /// Has the kernel map a part before it is read, which is faster than page by page.
    pub(crate) fn expect(&self, at: u64, len: u64) {
        const POPULATE_READ: i32 = 22;
        if self.slice(at, len).is_ok() {
            let (at, len) = ((self.start + at) as *mut libc::c_void, len as usize);
            // SAFETY: a part of our own mapping, which is only read. That it fails costs time only.
            unsafe { libc::madvise(at, len, POPULATE_READ) };
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: it was mapped by `new`, and goes with its only owner.
            unsafe { libc::munmap(self.start as *mut libc::c_void, self.len) };
        }
    }
}

/// Closes everything but these.
pub(crate) fn close_all_but(kept: &[RawFd]) {
    let mut kept: Vec<u32> = kept.iter().map(|fd| *fd as u32).collect();
    kept.sort_unstable();
    let mut first = 0;
    for number in kept.into_iter().chain([u32::MAX]) {
        if first < number {
            // SAFETY: what this process was is given up; nobody uses these again.
            unsafe { libc::syscall(libc::SYS_close_range, first, number - 1, 0) };
        }
        first = number.saturating_add(1);
    }
}
