//! Sockets: connections inside, listeners, and those that are connected to nobody.

use std::{cell::OnceCell, collections::HashMap, os::fd::AsRawFd as _};

use super::{Connections, files::Seen, tcp};
use crate::{
    coverage::Reason,
    image::{Bytes, Datagram, FileKind, Listener, SocketOption},
    sys::{
        socket,
        unix::{UnixSocket, unix_sockets},
    },
};

/// All unix sockets of the sandbox; asked for when there is one.
#[derive(Debug)]
pub(super) struct UnixSockets {
    init: i32,
    found: OnceCell<HashMap<u64, UnixSocket>>,
}

impl UnixSockets {
    pub(super) fn of(init: i32) -> Self {
        Self { init, found: OnceCell::new() }
    }

    fn socket(&self, inode: u64) -> Result<UnixSocket, String> {
        if self.found.get().is_none() {
            let found = unix_sockets(self.init);
            let found = found.map_err(|err| format!("sockets cannot be asked for ({err})"))?;
            let _ = self.found.set(found);
        }
        let found = self.found.get().and_then(|found| found.get(&inode));
        found.copied().ok_or_else(|| "the kernel does not tell of it".to_owned())
    }
}

impl UnixSockets {
    /// Whether the other end knows this one.
    fn is_pair(&self, inode: u64) -> bool {
        let peer = self.socket(inode).map_or(0, |socket| socket.peer);
        peer != 0 && self.socket(peer).is_ok_and(|other| other.peer == inode)
    }
}

/// What is carried over: level, name and length.
const OPTIONS: [(i32, i32, usize); 16] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR, 4),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT, 4),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 4),
    (libc::SOL_SOCKET, libc::SO_BROADCAST, 4),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE, 4),
    (libc::SOL_SOCKET, libc::SO_PASSCRED, 4),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 4),
    (libc::SOL_SOCKET, libc::SO_LINGER, 8),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO, 16),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO, 16),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY, 4),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 4),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 4),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 4),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 4),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 4),
];

pub(super) fn kind(
    seen: &Seen<'_>,
    unix: &UnixSockets,
    cwd: &str,
    connections: Connections,
) -> Result<FileKind, Reason> {
    let fd = seen.fd.as_raw_fd();
    let option = |name| {
        socket::option(fd, libc::SOL_SOCKET, name)
            .map_err(|err| format!("it tells nothing ({err})"))
    };
    if seen.info.field("scm_fds:").is_some_and(|count| count != "0") {
        return Err(Reason::passing("descriptors are on their way through it; try again"));
    }
    let (family, kind) = (option(libc::SO_DOMAIN)?, option(libc::SO_TYPE)?);
    let listens = option(libc::SO_ACCEPTCONN)? != 0;
    match (family, kind) {
        (libc::AF_UNIX, _) => of_unix(seen, unix, kind, listens, cwd),
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM) => {
            of_tcp(fd, family, listens, connections)
        }
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM) => {
            datagram(fd, family, kind, option(libc::SO_PROTOCOL)?)
        }
        _ => {
            Err(format!("sockets of family {family}, kind {kind} are not captured; close it first")
                .into())
        }
    }
}

pub(super) fn carried(fd: i32, family: i32) -> Vec<SocketOption> {
    let fits = |level| match level {
        libc::IPPROTO_IPV6 => family == libc::AF_INET6,
        libc::IPPROTO_TCP => family != libc::AF_UNIX,
        _ => true,
    };
    let options = OPTIONS.iter().filter(|(level, ..)| fits(*level));
    let value = |(level, name, len): &(i32, i32, usize)| {
        let value = socket::option_bytes(fd, *level, *name, *len).ok()?;
        let differs = value.iter().any(|byte| *byte != 0);
        let value = Bytes(value);
        differs.then_some(SocketOption { level: *level, name: *name, value })
    };
    let mut all: Vec<SocketOption> = options.filter_map(value).collect();
    all.extend(buffers(fd));
    all
}

/// Sizes of buffers, where the program has set them. The kernel tells twice what it was given.
fn buffers(fd: i32) -> impl Iterator<Item = SocketOption> {
    const BUFFER_LOCK: i32 = 72;
    let level = libc::SOL_SOCKET;
    let locked = socket::option(fd, level, BUFFER_LOCK).unwrap_or(0);
    let set = [(1, libc::SO_SNDBUF), (2, libc::SO_RCVBUF)].into_iter();
    set.filter(move |(bit, _)| locked & bit != 0).filter_map(move |(_, name)| {
        let value = socket::option(fd, level, name).ok()? / 2;
        Some(SocketOption { level, name, value: Bytes(value.to_le_bytes().to_vec()) })
    })
}

fn of_tcp(
    fd: i32,
    family: i32,
    listens: bool,
    connections: Connections,
) -> Result<FileKind, Reason> {
    const CLOSED: u8 = 7;
    let told = |err| format!("it tells nothing ({err})");
    let info = socket::option_bytes(fd, libc::IPPROTO_TCP, libc::TCP_INFO, 64).map_err(told)?;
    let number = |at: usize| {
        let bytes = info.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes)
    };
    if !listens {
        return match info.first() {
            Some(&CLOSED) => datagram(fd, family, libc::SOCK_STREAM, libc::IPPROTO_TCP),
            state => tcp::connection(fd, family, state.copied().unwrap_or(0), connections),
        };
    }
    // Of a listener, these two tell how many wait and how many may.
    let (waiting, backlog) = (number(24), number(28));
    if waiting > 0 {
        return Err(Reason::passing(format!(
            "{waiting} connections wait to be accepted; try again"
        )));
    }
    listener(fd, family, libc::SOCK_STREAM, backlog as i32)
}

fn listener(fd: i32, family: i32, kind: i32, backlog: i32) -> Result<FileKind, Reason> {
    let address = socket::address(fd).map_err(|err| format!("it has no address ({err})"))?;
    let options = carried(fd, family);
    Ok(FileKind::Listener(Listener { family, kind, address: Bytes(address), backlog, options }))
}

fn datagram(fd: i32, family: i32, kind: i32, protocol: i32) -> Result<FileKind, Reason> {
    let address = socket::address(fd).map_err(|err| format!("it has no address ({err})"))?;
    let peer = socket::peer_address(fd).ok().filter(|peer| is_name(family, peer));
    if socket::has_message(fd) {
        return Err(Reason::passing("something came that was not read yet; try again"));
    }
    let options = carried(fd, family);
    let address = is_name(family, &address).then_some(Bytes(address));
    let peer = peer.map(Bytes);
    Ok(FileKind::Datagram(Datagram { family, kind, protocol, address, options, peer }))
}

/// Whether an address is one.
fn is_name(family: i32, address: &[u8]) -> bool {
    const UNBOUND_UNIX: usize = 2;
    match family {
        libc::AF_UNIX => address.len() > UNBOUND_UNIX,
        _ => address.get(2..4).is_some_and(|port| port != [0, 0]),
    }
}

/// A name that was relative when it was given is of the directory that its process is in, if it is there.
fn absolute(address: Vec<u8>, cwd: &str) -> Result<Bytes, String> {
    const NAME: usize = 2;
    const MAX: usize = 108;
    match address.get(NAME) {
        None | Some(0 | b'/') => Ok(Bytes(address)),
        Some(_) => {
            let (family, name) = address.split_at(NAME);
            let name = [cwd.trim_end_matches('/').as_bytes(), b"/", name].concat();
            if name.len() > MAX {
                return Err("its name is relative, and too long otherwise".to_owned());
            }
            Ok(Bytes([family, &name].concat()))
        }
    }
}

fn of_unix(
    seen: &Seen<'_>,
    unix: &UnixSockets,
    kind: i32,
    listens: bool,
    cwd: &str,
) -> Result<FileKind, Reason> {
    let fd = seen.fd.as_raw_fd();
    let socket = unix.socket(seen.stat.st_ino)?;
    if listens {
        if socket.waiting > 0 {
            return Err(Reason::passing("connections wait to be accepted; try again"));
        }
        let mut listener = listener(fd, libc::AF_UNIX, kind, socket.backlog as i32)?;
        if let FileKind::Listener(listener) = &mut listener {
            listener.address = absolute(std::mem::take(&mut listener.address.0), cwd)?;
        }
        return Ok(listener);
    }
    if kind == libc::SOCK_DGRAM && !unix.is_pair(seen.stat.st_ino) || !socket.connected {
        return of_unconnected(fd, kind, socket, cwd);
    }
    let address = socket::address(fd).map_err(|err| format!("it has no address ({err})"))?;
    let address =
        if is_name(libc::AF_UNIX, &address) { absolute(address, cwd)? } else { Bytes::default() };
    let waiting = rustix::io::ioctl_fionread(seen.fd).unwrap_or(0) as usize;
    let queued = match (waiting, kind) {
        (0, libc::SOCK_STREAM) => Vec::new(),
        (_, libc::SOCK_STREAM) => {
            let bytes = socket::peek(fd, waiting);
            vec![Bytes(bytes.map_err(|err| format!("it cannot be read ({err})"))?)]
        }
        _ if socket::has_message(fd) => {
            return Err(Reason::passing("messages wait that were not read yet; try again"));
        }
        _ => Vec::new(),
    };
    let (peer, shut) = (socket.peer, socket.shut);
    let options = carried(fd, libc::AF_UNIX);
    Ok(FileKind::Pair { socket: seen.stat.st_ino, peer, kind, queued, address, shut, options })
}

fn of_unconnected(fd: i32, kind: i32, socket: UnixSocket, cwd: &str) -> Result<FileKind, Reason> {
    if socket.shut != 0 {
        return Err("half of it is shut; close it first".into());
    }
    let mut found = datagram(fd, libc::AF_UNIX, kind, 0)?;
    if let FileKind::Datagram(found) = &mut found {
        for address in found.address.iter_mut().chain(&mut found.peer) {
            *address = absolute(std::mem::take(&mut address.0), cwd)?;
        }
        if socket.peer != 0 && found.peer.is_none() {
            return Err("whom it is connected to has no name; close it first".into());
        }
    }
    Ok(found)
}
