//! TCP connections inside the sandbox, made anew: with the same addresses, and what was on its way.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsRawFd as _, OwnedFd, RawFd},
};

use rustix::fs::{OFlags, fcntl_setfl};

use super::sockets;
use crate::{
    dump::name,
    image::{Connection, FileKind, OtherEnd},
    sys::socket,
};

type Name = ([u8; 16], [u8; 2]);

/// Ends of connections whose other end was asked for.
#[derive(Debug, Default)]
pub(super) struct Connector(HashMap<(Name, Name), OwnedFd>);

impl Connector {
    /// What it has to read is sent by the other end. Whoever comes first makes both.
    pub(super) fn open(
        &mut self,
        end: &Connection,
        other: Option<&Connection>,
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        let fd = match end.other_end {
            OtherEnd::Lost => reset(end.family)?,
            OtherEnd::Closed => {
                let (ours, theirs) = connect(end, (&end.peer.0, &end.address.0, end.family))?;
                fill(&theirs, end)?;
                ours
            }
            OtherEnd::Inside => {
                let other = other.ok_or_else(|| io::Error::other("its other end is missing"))?;
                self.inside(end, other)?
            }
        };
        fcntl_setfl(&fd, flags & OFlags::NONBLOCK)?;
        Ok(fd)
    }

    fn inside(&mut self, end: &Connection, other: &Connection) -> io::Result<OwnedFd> {
        let names = name(&end.address.0).zip(name(&end.peer.0));
        let (here, there) = names.ok_or(io::ErrorKind::InvalidData)?;
        if let Some(made) = self.0.remove(&(here, there)) {
            return Ok(made);
        }
        let (ours, theirs) = connect(end, (&other.address.0, &other.peer.0, other.family))?;
        self.0.insert((there, here), theirs);
        Ok(ours)
    }
}

/// Both ends, with the addresses that they had: who has a listener's is in its way until that has begun.
fn connect(
    end: &Connection,
    (address, peer, family): (&[u8], &[u8], i32),
) -> io::Result<(OwnedFd, OwnedFd)> {
    let (listener, theirs) = (bound(&end.address.0, end.family)?, bound(address, family)?);
    make_room(&listener).and_then(|()| make_room(&theirs))?;
    socket::listen(listener.as_raw_fd(), 1)?;
    socket::connect(theirs.as_raw_fd(), peer)?;
    let ours = rustix::net::accept_with(&listener, rustix::net::SocketFlags::CLOEXEC)?;
    leave_room_to_kernel(&ours).and_then(|()| leave_room_to_kernel(&theirs))?;
    Ok((ours, theirs))
}

fn bound(address: &[u8], family: i32) -> io::Result<OwnedFd> {
    let fd = sockets::new(family, libc::SOCK_STREAM, 0)?;
    share_address(fd.as_raw_fd(), true)?;
    socket::bind(fd.as_raw_fd(), address)?;
    Ok(fd)
}

pub(super) fn share_address(fd: RawFd, shared: bool) -> io::Result<()> {
    let value = i32::from(shared).to_ne_bytes();
    socket::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &value)
}

/// One whose other end hung up on it.
fn reset(family: i32) -> io::Result<OwnedFd> {
    let mut any = vec![0; if family == libc::AF_INET6 { 28 } else { 16 }];
    any[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    match family {
        libc::AF_INET6 => any[23] = 1,
        _ => any[4..8].copy_from_slice(&[127, 0, 0, 1]),
    }
    let listener = bound(&any, family)?;
    socket::listen(listener.as_raw_fd(), 1)?;
    let ours = sockets::new(family, libc::SOCK_STREAM, 0)?;
    socket::connect(ours.as_raw_fd(), &socket::address(listener.as_raw_fd())?)?;
    let theirs = rustix::net::accept_with(&listener, rustix::net::SocketFlags::CLOEXEC)?;
    let at_once: Vec<u8> = [1i32, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    socket::set_option(theirs.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &at_once)?;
    drop(theirs);
    Ok(ours)
}

/// What one end has to read, the other one sends, when both are there.
pub(super) fn fill(fd: &OwnedFd, other: &Connection) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut rest = other.queued.0.as_slice();
    while !rest.is_empty() {
        match rustix::net::send(fd, rest, rustix::net::SendFlags::DONTWAIT) {
            Ok(len) => rest = &rest[len..],
            Err(rustix::io::Errno::AGAIN) => {
                let soon = Timespec { tv_sec: 1, tv_nsec: 0 };
                if poll(&mut [PollFd::new(fd, PollFlags::OUT)], Some(&soon))? == 0 {
                    return Err(io::Error::other(
                        "more was on its way than a new connection holds",
                    ));
                }
            }
            Err(err) => return Err(err.into()),
        }
    }
    Ok(())
}

const BUFFER_LOCK: i32 = 72;

/// A new connection begins small, and must hold what an old one did.
fn make_room(fd: &OwnedFd) -> io::Result<()> {
    let much = (64i32 << 20).to_ne_bytes();
    socket::set_option(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &much)
}

/// The kernel chooses the size of buffers again, unless the program did.
fn leave_room_to_kernel(fd: &OwnedFd) -> io::Result<()> {
    let nothing = 0i32.to_ne_bytes();
    socket::set_option(fd.as_raw_fd(), libc::SOL_SOCKET, BUFFER_LOCK, &nothing)
}

/// Whether two are the ends of one connection.
pub(super) fn belong(one: &Connection, other: &Connection) -> bool {
    let names = |end: &Connection| (name(&end.address.0), name(&end.peer.0));
    let (here, there) = names(one);
    other.other_end == OtherEnd::Inside && names(other) == (there, here)
}

/// Addresses are shared as they were when all of them are taken, and buffers are as small when all is sent.
pub(super) fn settle(fd: RawFd, kind: &FileKind) -> io::Result<()> {
    let options = match kind {
        FileKind::Connection(end) => &end.options,
        FileKind::Listener(listener) if listener.family != libc::AF_UNIX => &listener.options,
        _ => return Ok(()),
    };
    share_address(fd, false)?;
    sockets::set_options(fd, options)
}
