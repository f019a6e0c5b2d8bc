//! Sockets of the image: made first, and given names and peers when all of them are there.

use std::{
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd, RawFd},
        unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    },
};

use rustix::{
    fs::{OFlags, fcntl_setfl},
    net::{AddressFamily, SocketFlags, SocketType},
};

use super::tcp;
use crate::{
    image::{Connection, Datagram, FileKind, Listener, SocketOption},
    sys::socket,
};

pub(super) fn new(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    let family = AddressFamily::from_raw(family as u16);
    let protocol = u32::try_from(protocol).ok().and_then(std::num::NonZero::new);
    let protocol = protocol.map(rustix::net::Protocol::from_raw);
    let kind = SocketType::from_raw(kind as u32);
    Ok(rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, protocol)?)
}

pub(super) fn options(fd: &OwnedFd, options: &[SocketOption]) -> io::Result<()> {
    set_options(fd.as_raw_fd(), options)
}

pub(super) fn set_options(fd: RawFd, options: &[SocketOption]) -> io::Result<()> {
    options
        .iter()
        .try_for_each(|option| socket::set_option(fd, option.level, option.name, &option.value.0))
}

/// Not bound yet.
pub(super) fn listener(listener: &Listener, flags: OFlags) -> io::Result<OwnedFd> {
    let fd = new(listener.family, listener.kind, 0)?;
    options(&fd, &listener.options)?;
    fcntl_setfl(&fd, flags & OFlags::NONBLOCK)?;
    Ok(fd)
}

/// Not connected yet.
pub(super) fn datagram(socket: &Datagram, flags: OFlags) -> io::Result<OwnedFd> {
    let fd = new(socket.family, socket.kind, socket.protocol)?;
    options(&fd, &socket.options)?;
    if let Some(address) = &socket.address {
        bind(fd.as_raw_fd(), socket.family, &address.0)?;
    }
    fcntl_setfl(&fd, flags & OFlags::NONBLOCK)?;
    Ok(fd)
}

/// A socket's file is made by binding: the one that is there is its old one, and the new one looks the same. One
/// that was deleted stays so.
fn bind(fd: RawFd, family: i32, address: &[u8]) -> io::Result<()> {
    let Some(path) = path(family, address) else { return socket::bind(fd, address) };
    let old = std::fs::symlink_metadata(&path).ok();
    let old = old.filter(|old| old.file_type().is_socket());
    if old.is_some() {
        std::fs::remove_file(&path)?;
    }
    socket::bind(fd, address)?;
    let Some(old) = old else { return std::fs::remove_file(&path) };
    std::os::unix::fs::lchown(&path, Some(old.uid()), Some(old.gid()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(old.mode() & 0o7777))
}

fn path(family: i32, address: &[u8]) -> Option<String> {
    const NAME: usize = 2;
    if family != libc::AF_UNIX || address.get(NAME).is_none_or(|first| *first == 0) {
        return None;
    }
    let name = address[NAME..].iter().copied().take_while(|byte| *byte != 0).collect();
    String::from_utf8(name).ok()
}

/// Who was accepted has the listener's name.
pub(super) fn name_connection(fd: RawFd, kind: &FileKind) -> io::Result<()> {
    match kind {
        FileKind::Pair { address, .. } if !address.0.is_empty() => {
            match path(libc::AF_UNIX, &address.0) {
                Some(_) => bind(fd, libc::AF_UNIX, &address.0),
                // Names without a file are taken while anybody has them, but by its listener.
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

pub(super) fn listen(fd: RawFd, kind: &FileKind) -> io::Result<()> {
    let FileKind::Listener(listener) = kind else { return Ok(()) };
    if listener.family != libc::AF_UNIX {
        // Whom it has accepted are there already.
        tcp::share_address(fd, true)?;
    }
    bind(fd, listener.family, &listener.address.0)?;
    socket::listen(fd, listener.backlog)
}

pub(super) fn connect(fd: RawFd, kind: &FileKind) -> io::Result<()> {
    match kind {
        FileKind::Datagram(Datagram { peer: Some(peer), .. }) => socket::connect(fd, &peer.0),
        _ => Ok(()),
    }
}

pub(super) fn shut(fd: RawFd, kind: &FileKind) -> io::Result<()> {
    match kind {
        FileKind::Pair { shut: what @ 1.., peer: 1.., .. }
        | FileKind::Connection(Connection { shut: what @ 1.., .. }) => socket::shut(fd, *what),
        _ => Ok(()),
    }
}
