//! What the kernel's diagnosis tells of unix sockets.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::{AsFd as _, FromRawFd as _, OwnedFd, RawFd},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::check;

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
