//! Messages between the driver, its spawner and the inits: JSON in packets, with descriptors.
//!
//! A packet is `0` and the JSON, or for what is too long for a packet just `1`, and the JSON is in
//! a file in memory that comes as the last descriptor.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read as _, Seek as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
};

use forkpoint_checkpoint::soon::Soon;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, memfd_create},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
        SocketType, bind, connect, listen, recv, recvmsg, sendmsg, socket_with, socketpair,
    },
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};

const PACKET_MAX: usize = 32 << 10;
/// A list of about a million files.
const BODY_MAX: u64 = 256 << 20;
pub(super) const FDS_MAX: usize = 16;

/// A connected pair.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Listens at `directory/name`; `directory` is open, since socket names have 108 bytes at most.
pub(super) fn listen_in(directory: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let socket = new_socket(SocketFlags::CLOEXEC)?;
    bind(&socket, &address(directory, name)?)?;
    // Those who come while the sandbox stands still wait here. The kernel may hold it lower.
    listen(&socket, 4096)?;
    Ok(socket)
}

/// The connection does not block.
pub(super) fn connect_in(directory: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let socket = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    connect(&socket, &address(directory, name)?)?;
    Ok(socket)
}

fn new_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn address(directory: &OwnedFd, name: &str) -> io::Result<SocketAddrUnix> {
    use std::os::fd::AsRawFd as _;
    let path = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
    Ok(SocketAddrUnix::new(Path::new(&path))?)
}

pub(super) fn send<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_with(socket, message, fds, SendFlags::NOSIGNAL)
}

/// An error where there is no room for it.
pub(super) fn send_at_once<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_with(socket, message, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send_with<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut packet = vec![0];
    serde_json::to_writer(&mut packet, message)?;
    if packet.len() <= PACKET_MAX {
        return send_packet(socket, &packet, fds, flags);
    }
    let mut file = File::from(memfd_create("message", MemfdFlags::CLOEXEC)?);
    file.write_all(&packet[1..])?;
    let mut all = fds.to_vec();
    all.push(file.as_fd());
    send_packet(socket, &[1], &all, flags)
}

fn send_packet(
    socket: impl AsFd,
    packet: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(packet)], &mut control, flags) {
            Err(Errno::INTR) => {}
            result => return Ok(result.map(drop)?),
        }
    }
}

/// The next message; `None` when the other side is gone.
pub(super) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; next_len(&socket)?.min(PACKET_MAX)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let mut slices = [IoSliceMut::new(&mut buffer)];
        match recvmsg(&socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            result => break result?,
        }
    };
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    if message.flags.contains(ReturnFlags::TRUNC) || message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other("a message was cut short"));
    }
    match buffer[..message.bytes].split_first() {
        None => Ok(None),
        Some((0, body)) => Ok(Some((serde_json::from_slice(body)?, fds))),
        Some(_) => {
            let body = fds.pop().ok_or_else(|| io::Error::other("a message without its body"))?;
            Ok(Some((read_body(body)?, fds)))
        }
    }
}

/// Of the next message, when there is one. A copy of a process pays for each page that it writes to, so none is written to that
/// a message does not need.
fn next_len(socket: impl AsFd) -> io::Result<usize> {
    loop {
        match recv(&socket, &mut [0; 0], RecvFlags::PEEK | RecvFlags::TRUNC) {
            Err(Errno::INTR) => {}
            result => return Ok(result?.1),
        }
    }
}

/// The same, of one who is about to send.
pub(super) fn receive_soon<T: DeserializeOwned>(
    socket: impl AsFd,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    comes_soon(&socket);
    receive(socket)
}

/// Whether there is a message, or an end, before long. While this waits, the processor is not asleep, and whoever sends it
/// does not take the message for one that is to be read where they run.
pub(super) fn comes_soon(socket: impl AsFd) -> bool {
    Soon::default().comes(|| {
        let mut fds = [PollFd::new(&socket, PollFlags::IN)];
        // If it cannot be told, to receive tells why.
        poll(&mut fds, Some(&Timespec::default())) != Ok(0)
    })
}

fn read_body<T: DeserializeOwned>(body: OwnedFd) -> io::Result<T> {
    let mut file = File::from(body);
    if file.metadata()?.len() > BODY_MAX {
        return Err(io::Error::other("a message is longer than 256 MiB"));
    }
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(BODY_MAX).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// Bytes as the kernel takes them: text where it is text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Text {
    Utf8(String),
    Bytes(Vec<u8>),
}

impl From<&OsStr> for Text {
    fn from(text: &OsStr) -> Self {
        match text.to_str() {
            Some(text) => Self::Utf8(text.to_owned()),
            None => Self::Bytes(text.as_bytes().to_vec()),
        }
    }
}

impl From<Text> for OsString {
    fn from(text: Text) -> Self {
        match text {
            Text::Utf8(text) => text.into(),
            Text::Bytes(bytes) => Self::from_vec(bytes),
        }
    }
}

/// For a path in a message, which may hold any bytes.
pub(super) mod path {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(
        path: &Path,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        Text::from(path.as_os_str()).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<PathBuf, D::Error> {
        Ok(OsString::from(Text::deserialize(deserializer)?).into())
    }
}

/// The same for several.
pub(super) mod paths {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(
        paths: &[PathBuf],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| Text::from(path.as_os_str())))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<PathBuf>, D::Error> {
        let texts = Vec::<Text>::deserialize(deserializer)?;
        Ok(texts.into_iter().map(|text| OsString::from(text).into()).collect())
    }
}

/// An error on its way to another process.
#[derive(Clone, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{doing}: {}", cause(*errno, text))]
pub(super) struct Failure {
    pub(super) doing: String,
    pub(super) errno: Option<i32>,
    pub(super) text: String,
}

fn cause(errno: Option<i32>, text: &str) -> String {
    errno.map_or_else(|| text.to_owned(), |errno| io::Error::from_raw_os_error(errno).to_string())
}

impl Failure {
    pub(super) fn new(doing: impl Into<String>, err: &io::Error) -> Self {
        Self { doing: doing.into(), errno: err.raw_os_error(), text: err.to_string() }
    }

    /// With the number of the first cause that has one.
    pub(super) fn of(doing: impl Into<String>, err: &(dyn std::error::Error + 'static)) -> Self {
        let causes = || std::iter::successors(Some(err), |err| err.source());
        let text = causes().map(ToString::to_string).collect::<Vec<_>>().join(": ");
        let errno = causes().find_map(|err| err.downcast_ref::<io::Error>()?.raw_os_error());
        Self { doing: format!("{}: {text}", doing.into()), errno, text }
    }

    pub(super) fn to_io(&self) -> io::Error {
        match self.errno {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::other(self.text.clone()),
        }
    }
}

/// Says what was being done when a system call failed.
pub(super) trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl Into<String>) -> Result<T, Failure> {
        self.map_err(|err| Failure::new(what, &err.into()))
    }
}
