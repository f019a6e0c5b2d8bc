//! Open files, as an image tells them.

use serde::{Deserialize, Serialize};

use super::model::{Bytes, MemoryId};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// As `open` takes them, and `O_NONBLOCK` and the like.
    pub flags: i32,
    pub kind: FileKind,
    /// Locks that belong to it, besides that of a [`FileKind::Path`] as a whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<FileLock>,
    /// Of a database: programs that have it open remember it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
}

/// What is at the beginning of a database that has one.
pub(crate) const DATABASE_MARK: &[u8; 16] = b"SQLite format 3\0";

/// By what a program knows a file again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A file, a directory or a device that everybody has.
    Path {
        path: String,
        position: u64,
        directory: bool,
        lock: Option<Lock>,
    },
    /// It has no name any more.
    Deleted {
        content: Bytes,
        position: u64,
        mode: u32,
        inode: u64,
    },
    /// A [`Memory`](super::Memory).
    Memory {
        memory: MemoryId,
        position: u64,
    },
    /// One end; both have the same number.
    Pipe {
        pipe: u64,
        capacity: u32,
        content: Bytes,
    },
    /// One end of a pipe, whose other end somebody outside has or had.
    Client {
        pipe: u64,
        capacity: u32,
        content: Bytes,
    },
    /// A pipe with a name.
    Fifo {
        path: String,
        pipe: u64,
        capacity: u32,
        content: Bytes,
    },
    Event {
        count: u64,
        semaphore: bool,
    },
    /// Interval and value, seconds and nanoseconds.
    Timer {
        clock: i32,
        value: [u64; 4],
        ticks: u64,
    },
    Signal {
        mask: u64,
    },
    /// Descriptor, events, data; it may be another's by now.
    Poll {
        owner: i32,
        watched: Vec<(i32, u32, u64)>,
        /// Open files that are watched, one for each.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        targets: Vec<usize>,
    },
    /// One end of a pair or a connection; each knows the other's number. 0 is one that is closed.
    Pair {
        socket: u64,
        peer: u64,
        kind: i32,
        queued: Vec<Bytes>,
        /// Its name, if it was accepted by a listener with one.
        #[serde(default, skip_serializing_if = "is_empty")]
        address: Bytes,
        /// Receiving 1, sending 2.
        #[serde(default, skip_serializing_if = "is_zero")]
        shut: u8,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        options: Vec<SocketOption>,
    },
    /// One end of a TCP connection.
    Connection(Connection),
    Listener(Listener),
    /// Bound or not; if it is connected, only it knows.
    Datagram(Datagram),
    Master {
        terminal: u32,
        settings: Bytes,
        size: [u16; 4],
        foreground: i32,
        locked: bool,
    },
    Terminal {
        terminal: u32,
    },
    /// A process of the sandbox (`pidfd`).
    Process {
        pid: i32,
    },
    /// Paths that are watched and for what; `wd` is kept.
    Watch {
        watches: Vec<(i32, String, u32)>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    pub family: i32,
    pub kind: i32,
    pub address: Bytes,
    pub backlog: i32,
    pub options: Vec<SocketOption>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datagram {
    pub family: i32,
    pub kind: i32,
    pub protocol: i32,
    pub address: Option<Bytes>,
    pub options: Vec<SocketOption>,
    /// Whom it is connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Bytes>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    pub family: i32,
    pub address: Bytes,
    pub peer: Bytes,
    pub other_end: OtherEnd,
    /// What it has to read yet.
    pub queued: Bytes,
    /// Receiving 1, sending 2.
    pub shut: u8,
    pub options: Vec<SocketOption>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OtherEnd {
    /// It is the open file whose addresses are these, exchanged.
    Inside,
    Closed,
    /// It was not captured: the connection comes back as one that was reset.
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOption {
    pub level: i32,
    pub name: i32,
    pub value: Bytes,
}

/// A lock of the whole open file (`flock`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lock {
    Shared,
    Exclusive,
}

/// A lock of an open file that any kind can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileLock {
    Whole(Lock),
    Part(RangeLock),
}

/// `end` is the first byte behind it, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeLock {
    pub lock: Lock,
    pub start: u64,
    pub end: Option<u64>,
}

/// A lock that a process took through one of its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordLock {
    pub descriptor: i32,
    pub range: RangeLock,
}

fn is_empty(bytes: &Bytes) -> bool {
    bytes.0.is_empty()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
fn is_zero(value: &u8) -> bool {
    *value == 0
}
