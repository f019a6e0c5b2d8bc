//! TCP connections: those inside the sandbox, whose both ends are here, and others.
//!
//! What is on its way is part of it: what the other end has sent and this one has not received yet is added to what
//! this one has to read.

use std::{collections::HashMap, io};

use super::{Draft, files::Files, socket::carried};
use crate::{
    coverage::{Findings, Reason},
    image::{Bytes, Connection, FileKind, OtherEnd},
    sys::socket::{self, Flow},
};

/// What becomes of connections to somebody outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connections {
    /// What has one is not captured.
    #[default]
    Refuse,
    /// A copy finds them reset; the original keeps them.
    Close,
}

const ESTABLISHED: u8 = 1;
const WE_ARE_SHUT: u8 = 5;
const THEY_ARE_SHUT: u8 = 8;

pub(super) fn connection(
    fd: i32,
    family: i32,
    state: u8,
    connections: Connections,
) -> Result<FileKind, Reason> {
    let told = |err: io::Error| format!("it tells nothing ({err})");
    let address = socket::address(fd).map_err(told)?;
    let peer = socket::peer_address(fd).unwrap_or_default();
    let options = carried(fd, family);
    let inside = is_loopback(&address) && is_loopback(&peer);
    if !inside {
        return match connections {
            Connections::Refuse => Err(OUTSIDE.into()),
            Connections::Close => Ok(lost(family, address, peer, options)),
        };
    }
    let mut shut = match state {
        ESTABLISHED | THEY_ARE_SHUT => 0,
        WE_ARE_SHUT => 2,
        _ => return Err(Reason::passing("it is about to open or to close; try again")),
    };
    let waiting = socket::waiting(fd).map_err(told)?;
    let queued = if waiting == 0 { Vec::new() } else { socket::peek(fd, waiting).map_err(told)? };
    if queued.is_empty() && state != THEY_ARE_SHUT && socket::peek(fd, 1).is_ok() {
        shut |= 1;
    }
    let (address, peer, queued) = (Bytes(address), Bytes(peer), Bytes(queued));
    let other_end = if state == THEY_ARE_SHUT { OtherEnd::Closed } else { OtherEnd::Inside };
    let connection = Connection { family, address, peer, other_end, queued, shut, options };
    Ok(FileKind::Connection(connection))
}

const OUTSIDE: &str =
    "its other end is not captured; close it, or let copies find it reset (`--tcp close`)";

const ELSEWHERE: &str =
    "its other end is not there; let copies find it reset (`--tcp close`), or try again";

fn lost(
    family: i32,
    address: Vec<u8>,
    peer: Vec<u8>,
    options: Vec<crate::image::SocketOption>,
) -> FileKind {
    // Who is not connected yet has no peer.
    let peer = if peer.is_empty() { address.clone() } else { peer };
    FileKind::Connection(Connection {
        family,
        address: Bytes(address),
        peer: Bytes(peer),
        other_end: OtherEnd::Lost,
        queued: Bytes::default(),
        shut: 0,
        options,
    })
}

/// An address and a port, the same for both families.
type Name = ([u8; 16], [u8; 2]);

pub(crate) fn name(address: &[u8]) -> Option<Name> {
    let port = address.get(2..4)?.try_into().ok()?;
    match i32::from(u16::from_ne_bytes(address.get(..2)?.try_into().ok()?)) {
        libc::AF_INET => {
            let mut mapped = [0; 16];
            mapped[10..12].fill(0xff);
            mapped[12..].copy_from_slice(address.get(4..8)?);
            Some((mapped, port))
        }
        libc::AF_INET6 => Some((address.get(8..24)?.try_into().ok()?, port)),
        _ => None,
    }
}

fn is_loopback(address: &[u8]) -> bool {
    let Some((host, _)) = name(address) else { return false };
    let host = std::net::Ipv6Addr::from(host);
    host.is_loopback() || host.to_ipv4_mapped().is_some_and(|host| host.is_loopback())
}

impl Files {
    /// Finds the other end of each connection, and what is on its way.
    pub(super) fn join_connections(
        &mut self,
        drafts: &[Draft],
        findings: &mut Findings,
    ) -> io::Result<()> {
        let mut ends: HashMap<(Name, Name), usize> = HashMap::new();
        let mut all = Vec::new();
        for (index, file) in self.files.iter().enumerate() {
            if let FileKind::Connection(end) = &file.kind
                && end.other_end != OtherEnd::Lost
                && let (Some(here), Some(there)) = (name(&end.address.0), name(&end.peer.0))
            {
                ends.insert((here, there), index);
                all.push((index, (there, here)));
            }
        }
        for (index, reversed) in all {
            match ends.get(&reversed) {
                Some(other) => {
                    let on_its_way = self.on_its_way(*other, index)?;
                    if let FileKind::Connection(end) = &mut self.files[index].kind {
                        end.other_end = OtherEnd::Inside;
                        end.queued.0.extend(on_its_way);
                    }
                }
                None => self.without_other_end(index, drafts, findings),
            }
        }
        Ok(())
    }

    /// One whose other end has ended is closed; another is about to be accepted, or to end.
    fn without_other_end(&mut self, index: usize, drafts: &[Draft], findings: &mut Findings) {
        let connections = self.connections;
        let FileKind::Connection(end) = &mut self.files[index].kind else { return };
        if end.other_end == OtherEnd::Closed {
            return;
        }
        // Where the sandbox has no network of its own, anybody of the machine may be there.
        if connections == Connections::Close {
            end.other_end = OtherEnd::Lost;
            end.queued.0.clear();
            return;
        }
        for draft in drafts {
            for descriptor in draft.alive.descriptors.iter().filter(|d| d.file == index) {
                let thing = format!("a connection (descriptor {})", descriptor.number);
                findings.refuse(&draft.whose, thing, Reason::passing(ELSEWHERE));
            }
        }
    }

    /// What `from` has sent and `to` has not received.
    fn on_its_way(&self, from: usize, to: usize) -> io::Result<Vec<u8>> {
        let (from, to) = (self.pull(from)?, self.pull(to)?);
        let (from, to) =
            (std::os::fd::AsRawFd::as_raw_fd(&from), std::os::fd::AsRawFd::as_raw_fd(&to));
        let unconfirmed = socket::unconfirmed(from)?;
        if unconfirmed == 0 {
            return Ok(Vec::new());
        }
        let Flow { sent, unconfirmed, .. } = socket::repaired(from, unconfirmed)?;
        let Flow { received, .. } = socket::repaired(to, 0)?;
        let missing = sent.wrapping_sub(received) as usize;
        let start = unconfirmed.len().checked_sub(missing);
        let start = start.ok_or_else(|| io::Error::other("a connection is out of step"))?;
        Ok(unconfirmed[start..].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_have_the_same_names() {
        let four = [&[2, 0, 0x1f, 0x90, 127, 0, 0, 1][..], &[0; 8]].concat();
        let mut six = vec![0; 28];
        six[0] = 10;
        six[2..4].copy_from_slice(&[0x1f, 0x90]);
        six[18..20].fill(0xff);
        six[20..24].copy_from_slice(&[127, 0, 0, 1]);
        assert_eq!(name(&four), name(&six));
        assert!(is_loopback(&four) && is_loopback(&six));
        six[18..24].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
        assert!(!is_loopback(&six) && !is_loopback(&[1, 0]));
    }
}
