//! Sockets and terminals of others: what `getsockopt` and `ioctl` tell.

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd, RawFd},
    ptr,
};

use super::check;

/// An integer option, or 0 where there is none.
pub(crate) fn option(fd: RawFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let bytes = option_bytes(fd, level, name, 4)?;
    for (index, byte) in bytes.iter().take(4).enumerate() {
        value |= i32::from(*byte) << (8 * index);
    }
    Ok(value)
}

pub(crate) fn option_bytes(fd: RawFd, level: i32, name: i32, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; max];
    let mut len = max as libc::socklen_t;
    let buffer = bytes.as_mut_ptr().cast();
    // SAFETY: `bytes` is as long as `len` says.
    let result = unsafe { libc::getsockopt(fd, level, name, buffer, &raw mut len) };
    check(result.into())?;
    bytes.truncate(len as usize);
    Ok(bytes)
}

pub(crate) fn set_option(fd: RawFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: `value` is as long as is told.
    let result = unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len) };
    check(result.into()).map(drop)
}

pub(crate) fn address(fd: RawFd) -> io::Result<Vec<u8>> {
    name_of(fd, false)
}

pub(crate) fn peer_address(fd: RawFd) -> io::Result<Vec<u8>> {
    name_of(fd, true)
}

fn name_of(fd: RawFd, of_peer: bool) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; 128];
    let mut len = bytes.len() as libc::socklen_t;
    let call = if of_peer { libc::getpeername } else { libc::getsockname };
    // SAFETY: `bytes` is as long as `len` says.
    check(unsafe { call(fd, bytes.as_mut_ptr().cast(), &raw mut len) }.into())?;
    bytes.truncate((len as usize).min(128));
    Ok(bytes)
}

pub(crate) fn bind(fd: RawFd, address: &[u8]) -> io::Result<()> {
    let len = address.len() as libc::socklen_t;
    // SAFETY: `address` is as long as is told, and the kernel checks what is in it.
    check(unsafe { libc::bind(fd, address.as_ptr().cast(), len) }.into()).map(drop)
}

pub(crate) fn listen(fd: RawFd, backlog: i32) -> io::Result<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::listen(fd, backlog) }.into()).map(drop)
}

pub(crate) fn connect(fd: RawFd, address: &[u8]) -> io::Result<()> {
    let len = address.len() as libc::socklen_t;
    // SAFETY: `address` is as long as is told, and the kernel checks what is in it.
    check(unsafe { libc::connect(fd, address.as_ptr().cast(), len) }.into()).map(drop)
}

/// Receiving 1, sending 2.
pub(crate) fn shut(fd: RawFd, what: u8) -> io::Result<()> {
    let how = match what {
        1 => libc::SHUT_RD,
        2 => libc::SHUT_WR,
        _ => libc::SHUT_RDWR,
    };
    // SAFETY: plain integers.
    check(unsafe { libc::shutdown(fd, how) }.into()).map(drop)
}

/// What waits to be read from a stream, without taking it out.
pub(crate) fn peek(fd: RawFd, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; len];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: `bytes` is as long as is told.
    let got = check(unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), len, flags) } as i64)?;
    bytes.truncate(got as usize);
    Ok(bytes)
}

/// How much there is to read.
pub(crate) fn waiting(fd: RawFd) -> io::Result<usize> {
    ask(fd, libc::FIONREAD).map(|len| len as usize)
}

/// How much was sent that the other end has not confirmed.
pub(crate) fn unconfirmed(fd: RawFd) -> io::Result<usize> {
    const OUT_QUEUE: libc::Ioctl = 0x5411;
    ask(fd, OUT_QUEUE).map(|len| len as usize)
}

/// Where both directions of a connection are, and what was sent and not confirmed yet. The kernel tells it to who
/// repairs; that ends before anything moves, and leaves all but what it sets by itself as it was.
pub(crate) fn repaired(fd: RawFd, unconfirmed: usize) -> io::Result<Flow> {
    let tcp = libc::IPPROTO_TCP;
    let reuse = option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    set_option(fd, tcp, libc::TCP_REPAIR, &1i32.to_ne_bytes())?;
    let result = flow(fd, unconfirmed);
    let quietly = -1i32;
    set_option(fd, tcp, libc::TCP_REPAIR, &quietly.to_ne_bytes())?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &reuse.to_ne_bytes())?;
    result
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Flow {
    pub(crate) received: u32,
    pub(crate) sent: u32,
    pub(crate) unconfirmed: Vec<u8>,
}

fn flow(fd: RawFd, unconfirmed: usize) -> io::Result<Flow> {
    let tcp = libc::IPPROTO_TCP;
    let position = |queue: i32| {
        set_option(fd, tcp, libc::TCP_REPAIR_QUEUE, &queue.to_ne_bytes())?;
        option(fd, tcp, libc::TCP_QUEUE_SEQ).map(|position| position as u32)
    };
    let (received, sent) = (position(1)?, position(2)?);
    let unconfirmed = if unconfirmed == 0 { Vec::new() } else { peek(fd, unconfirmed)? };
    Ok(Flow { received, sent, unconfirmed })
}

/// Whether a message waits, also an empty one; of a stream, whether it has ended.
pub(crate) fn has_message(fd: RawFd) -> bool {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: nothing is written to a buffer of no length.
    unsafe { libc::recv(fd, ptr::null_mut(), 0, flags) >= 0 }
}

/// The kernel's `struct termios`.
const SETTINGS: usize = 36;

pub(crate) fn terminal_settings(fd: RawFd) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; SETTINGS];
    // SAFETY: the request writes a `termios` of the kernel's, which is as long.
    check(unsafe { libc::ioctl(fd, libc::TCGETS, bytes.as_mut_ptr()) }.into())?;
    Ok(bytes)
}

pub(crate) fn set_terminal_settings(fd: RawFd, settings: &[u8]) -> io::Result<()> {
    let mut bytes = settings.to_vec();
    bytes.resize(SETTINGS, 0);
    // SAFETY: the request reads a `termios` of the kernel's, which is as long.
    check(unsafe { libc::ioctl(fd, libc::TCSETS, bytes.as_ptr()) }.into()).map(drop)
}

pub(crate) fn terminal_size(fd: RawFd) -> io::Result<[u16; 4]> {
    let mut size = [0u16; 4];
    // SAFETY: the request writes four short numbers.
    check(unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, size.as_mut_ptr()) }.into())?;
    Ok(size)
}

pub(crate) fn set_terminal_size(fd: RawFd, size: [u16; 4]) -> io::Result<()> {
    // SAFETY: the request reads four short numbers.
    check(unsafe { libc::ioctl(fd, libc::TIOCSWINSZ, size.as_ptr()) }.into()).map(drop)
}

fn ask(fd: RawFd, request: libc::Ioctl) -> io::Result<i32> {
    let mut value = 0i32;
    // SAFETY: the requests below write one integer.
    check(unsafe { libc::ioctl(fd, request, ptr::from_mut(&mut value)) }.into())?;
    Ok(value)
}

pub(crate) fn terminal_number(fd: RawFd) -> io::Result<u32> {
    ask(fd, libc::TIOCGPTN).map(|number| number as u32)
}

pub(crate) fn terminal_is_locked(fd: RawFd) -> io::Result<bool> {
    const GET_LOCK: libc::Ioctl = 0x8004_5439;
    ask(fd, GET_LOCK).map(|locked| locked != 0)
}

/// 0 if there is none.
pub(crate) fn terminal_group(fd: RawFd) -> io::Result<i32> {
    match ask(fd, libc::TIOCGPGRP) {
        Err(err) if err.raw_os_error() == Some(libc::ENOTTY) => Ok(0),
        result => result,
    }
}

fn tell(fd: RawFd, request: libc::Ioctl, value: i32) -> io::Result<()> {
    // SAFETY: the requests below read one integer.
    check(unsafe { libc::ioctl(fd, request, ptr::from_ref(&value)) }.into()).map(drop)
}

pub(crate) fn lock_terminal(fd: RawFd, locked: bool) -> io::Result<()> {
    tell(fd, libc::TIOCSPTLCK, locked.into())
}

pub(crate) fn set_terminal_group(fd: RawFd, group: i32) -> io::Result<()> {
    tell(fd, libc::TIOCSPGRP, group)
}

/// Makes the terminal the controlling one of this session.
pub(crate) fn take_terminal(fd: RawFd) -> io::Result<()> {
    // SAFETY: the request takes an integer.
    check(unsafe { libc::ioctl(fd, libc::TIOCSCTTY, 0) }.into()).map(drop)
}

const _: () = assert!(size_of::<libc::winsize>() == 8, "as the kernel has it");

/// Locks an open file as a whole.
pub(crate) fn lock_file(fd: RawFd, exclusive: bool) -> io::Result<()> {
    let how = if exclusive { libc::LOCK_EX } else { libc::LOCK_SH };
    // SAFETY: plain integers.
    check(unsafe { libc::flock(fd, how | libc::LOCK_NB) }.into()).map(drop)
}

/// Locks a part of an open file, which is the owner. The form is [`record`]'s.
pub(crate) fn lock_part(fd: RawFd, record: &[u64; 4]) -> io::Result<()> {
    // SAFETY: the words are a `flock` of the kernel's, which outlives the call.
    check(unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, record.as_ptr()) }.into()).map(drop)
}

/// The kernel's `struct flock`. `end` is the first byte behind it, or none.
pub(crate) fn record(exclusive: bool, start: u64, end: Option<u64>) -> [u64; 4] {
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    [kind as u64, start, end.map_or(0, |end| end - start), 0]
}

const _: () = assert!(size_of::<libc::flock>() == 32, "as the kernel has it");

/// Watches an inode, and tells the number of the watch.
pub(crate) fn watch(inotify: RawFd, path: &std::ffi::CStr, mask: u32) -> io::Result<i32> {
    // SAFETY: the name ends with a zero and outlives the call.
    check(unsafe { libc::inotify_add_watch(inotify, path.as_ptr(), mask) }.into())
        .map(|number| number as i32)
}

pub(crate) fn unwatch(inotify: RawFd, number: i32) -> io::Result<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::inotify_rm_watch(inotify, number) }.into()).map(drop)
}

/// A timer with a descriptor: interval and value, seconds and nanoseconds; and how often it rang unheard.
pub(crate) fn timer(clock: i32, value: &[u64; 4], ticks: u64) -> io::Result<OwnedFd> {
    // SAFETY: plain integers; the descriptor is new and nobody else's.
    let fd = unsafe {
        OwnedFd::from_raw_fd(check(libc::timerfd_create(clock, libc::TFD_CLOEXEC).into())? as RawFd)
    };
    set_timer(&fd, value, ticks)?;
    Ok(fd)
}

pub(crate) fn set_timer(timer: &OwnedFd, value: &[u64; 4], ticks: u64) -> io::Result<()> {
    const SET_TICKS: libc::Ioctl = 0x4008_5400;
    let fd = std::os::fd::AsRawFd::as_raw_fd(timer);
    // SAFETY: the value has the kernel's form, four words.
    check(unsafe { libc::syscall(libc::SYS_timerfd_settime, fd, 0, value.as_ptr(), 0) })?;
    if ticks > 0 {
        // SAFETY: the request reads one word.
        check(unsafe { libc::ioctl(fd, SET_TICKS, ptr::from_ref(&ticks)) }.into())?;
    }
    Ok(())
}

/// A descriptor that tells of signals.
pub(crate) fn signals(mask: u64) -> io::Result<OwnedFd> {
    // SAFETY: the mask has 64 signals and outlives the call; the descriptor is new and nobody else's.
    unsafe {
        let fd = libc::syscall(libc::SYS_signalfd4, -1, ptr::from_ref(&mask), 8, libc::SFD_CLOEXEC);
        Ok(OwnedFd::from_raw_fd(check(fd)? as RawFd))
    }
}
