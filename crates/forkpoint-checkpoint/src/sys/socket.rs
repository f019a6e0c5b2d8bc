//! Sockets and terminals of others: what `getsockopt` and `ioctl` tell, and what the kernel's diagnosis does.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::{AsFd as _, FromRawFd as _, OwnedFd, RawFd},
    ptr,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

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

/// Whether a message waits, also an empty one; of a stream, whether it has ended.
pub(crate) fn has_message(fd: RawFd) -> bool {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: nothing is written to a buffer of no length.
    unsafe { libc::recv(fd, ptr::null_mut(), 0, flags) >= 0 }
}

/// What the kernel's diagnosis tells of a unix socket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UnixSocket {
    pub(crate) peer: u64,
    /// Of a listener: connections that wait; of others: bytes.
    pub(crate) waiting: u32,
    /// Of a listener: how many may wait.
    pub(crate) backlog: u32,
    pub(crate) connected: bool,
    pub(crate) shut: u8,
}

/// All unix sockets of the network namespace of a process, by inode.
///
/// Asked by a thread of its own, which enters the namespace and ends there.
pub(crate) fn unix_sockets(pid: i32) -> io::Result<HashMap<u64, UnixSocket>> {
    let namespace = File::open(format!("/proc/{pid}/ns/net"))?;
    let asking = std::thread::spawn(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        ask_unix_sockets()
    });
    asking.join().map_err(|_| io::Error::other("the asking thread failed"))?
}

fn ask_unix_sockets() -> io::Result<HashMap<u64, UnixSocket>> {
    const SOCK_DIAG: i32 = 4;
    const BY_FAMILY: u16 = 20;
    const DUMP: u16 = 0x301;
    const SHOW_PEER_AND_QUEUE: u32 = 4 | 16;
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: plain integers; the descriptor is new and nobody else's.
    let socket = unsafe {
        OwnedFd::from_raw_fd(check(libc::socket(libc::AF_NETLINK, kind, SOCK_DIAG).into())? as RawFd)
    };
    let mut request = [0u8; 40];
    request[0..4].copy_from_slice(&40u32.to_ne_bytes());
    request[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    request[16] = libc::AF_UNIX as u8;
    request[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    request[28..32].copy_from_slice(&SHOW_PEER_AND_QUEUE.to_ne_bytes());
    rustix::net::send(&socket, &request, rustix::net::SendFlags::empty())?;
    let mut found = HashMap::new();
    let mut buffer = vec![0u8; 64 << 10];
    loop {
        let flags = rustix::net::RecvFlags::empty();
        let (len, _) = rustix::net::recv(&socket, &mut buffer, flags)?;
        if len == 0 || !take_messages(&buffer[..len], &mut found)? {
            return Ok(found);
        }
    }
}

/// Whether more is to come.
fn take_messages(mut bytes: &[u8], found: &mut HashMap<u64, UnixSocket>) -> io::Result<bool> {
    const DONE: u16 = 3;
    const ERROR: u16 = 2;
    const HEADER: usize = 16;
    const BODY: usize = 16;
    const ESTABLISHED: u8 = 1;
    while bytes.len() >= HEADER {
        let len = number(bytes, 0) as usize;
        match (number(bytes, 4) & 0xffff) as u16 {
            DONE => return Ok(false),
            ERROR => return Err(io::Error::other("sockets cannot be asked for")),
            _ => {}
        }
        let Some(message) = bytes.get(..len).filter(|_| len >= HEADER + BODY) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let inode = u64::from(number(message, HEADER + 4));
        let connected = message[HEADER + 2] == ESTABLISHED;
        found.insert(inode, UnixSocket { connected, ..attributes(&message[HEADER + BODY..]) });
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

fn attributes(mut bytes: &[u8]) -> UnixSocket {
    const PEER: u32 = 2;
    const QUEUE: u32 = 4;
    const SHUTDOWN: u32 = 6;
    let mut socket = UnixSocket::default();
    while bytes.len() >= 4 {
        let head = number(bytes, 0);
        let (len, kind) = ((head & 0xffff) as usize, head >> 16);
        match kind {
            PEER => socket.peer = number(bytes, 4).into(),
            QUEUE => (socket.waiting, socket.backlog) = (number(bytes, 4), number(bytes, 8)),
            SHUTDOWN => socket.shut = (number(bytes, 4) & 0xff) as u8,
            _ => {}
        }
        bytes = bytes.get(len.max(4).next_multiple_of(4)..).unwrap_or_default();
    }
    socket
}

fn number(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_ne_bytes)
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
