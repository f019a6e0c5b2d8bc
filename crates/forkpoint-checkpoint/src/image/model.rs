//! What an image tells of processes. FORMAT.md says how it is written down.
//!
//! Numbers of processes are those inside the sandbox. Addresses and lengths are bytes. Nothing here is
//! believed before [`check`](super::check) has looked at it.

use serde::{Deserialize, Serialize};

use super::{
    mount::KeptMount,
    open::{OpenFile, RecordLock},
};
pub use crate::arch::Registers;

/// Bytes, in hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub machine: Machine,
    /// Parents before their children.
    pub processes: Vec<Process>,
    /// Open files; descriptors of any process point here.
    pub files: Vec<OpenFile>,
    /// Memory that is a file without a name; mappings and open files point here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memories: Vec<Memory>,
    /// File systems in memory, with what is in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<KeptMount>,
    /// Memory of System V.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<Segment>,
}

/// Where it was captured: kernel memory is not portable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub arch: String,
    pub kernel: String,
    /// Changes with every boot, and with it what monotonic clocks say.
    pub boot: String,
    /// Kinds of extended registers that the processor has.
    pub features: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    /// 1 is init, which is no part of the snapshot.
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    pub name: String,
    pub life: Life,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// Its parent has not asked for it yet.
    Dead {
        status: i32,
    },
    Alive(Box<Alive>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alive {
    /// The first has the number of the process.
    pub threads: Vec<Thread>,
    pub space: Space,
    /// In order of addresses.
    pub mappings: Vec<Mapping>,
    pub descriptors: Vec<Descriptor>,
    pub cwd: String,
    pub umask: u32,
    /// Soft and hard, in the kernel's order.
    pub limits: Vec<(u64, u64)>,
    /// Of signals 1 to 64: handler, flags, restorer, mask.
    pub actions: Vec<[u64; 4]>,
    /// Real, virtual and profiling: interval and value, seconds and microseconds.
    pub timers: Vec<[u64; 4]>,
    pub posix_timers: Vec<PosixTimer>,
    pub pending: Vec<Bytes>,
    /// The number of the pseudo-terminal that controls it.
    pub terminal: Option<u32>,
    /// It stands by job control.
    pub job_stopped: bool,
    pub subreaper: bool,
    pub dumpable: u32,
    pub oom_score_adj: i32,
    /// Locks of parts of files that are the process's (`fcntl`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<RecordLock>,
    /// Where, in its pages of this image, it may keep what it knows databases by. `None`: nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_at: Option<Vec<u64>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    pub tid: i32,
    pub name: String,
    pub registers: Registers,
    pub extended: Bytes,
    pub mask: u64,
    /// Address, flags, size.
    pub signal_stack: [u64; 3],
    pub clear_tid: u64,
    pub robust_list: (u64, u64),
    /// Address, length, signature.
    pub rseq: Option<(u64, u32, u32)>,
    pub pending: Vec<Bytes>,
    pub credentials: Credentials,
    pub death_signal: i32,
    /// Policy, priority, niceness.
    pub scheduling: [i64; 3],
    /// Processors that it may run on, a bit for each.
    pub affinity: Bytes,
    pub timer_slack: u64,
    /// Programs, the oldest first; each instruction is a word.
    pub filters: Vec<Vec<u64>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// Real, effective, saved, of files.
    pub uids: [u32; 4],
    pub gids: [u32; 4],
    pub groups: Vec<u32>,
    pub inheritable: u64,
    pub permitted: u64,
    pub effective: u64,
    pub bounding: u64,
    pub ambient: u64,
    pub securebits: u32,
    pub no_new_privs: bool,
}

/// What the kernel knows of an address space besides its mappings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// In the order of `prctl_mm_map`: code, data, heap, stack, arguments, environment.
    pub fields: [u64; 11],
    pub auxv: Bytes,
    pub exe: String,
    /// Where the kernel's own pages begin.
    pub vdso: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Read 1, write 2, execute 4.
    pub access: u32,
    pub kind: MappingKind,
    /// Ranges of pages that differ from what `kind` alone would show.
    pub pages: Vec<(u64, u64)>,
    /// Which of them are in this image, and where; the others are in the images that it lies over.
    pub stored: Vec<Stored>,
    /// What the kernel was told about it (`madvise`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<i32>,
    /// Ranges that nobody may touch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<(u64, u64)>,
    /// The kernel may take its pages away at any time, so none are kept (`MAP_DROPPABLE`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub droppable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MappingKind {
    Anonymous {
        grows_down: bool,
    },
    /// A private view of a file.
    Private {
        path: String,
        offset: u64,
        len_bytes: u64,
    },
    /// A file that is changed through it.
    Shared {
        path: String,
        offset: u64,
        writable: bool,
    },
    /// A [`Memory`], changed through it or seen privately.
    Memory {
        memory: MemoryId,
        offset: u64,
        private: bool,
    },
    /// A [`Segment`], all of it.
    Segment {
        id: i32,
    },
}

/// Device and inode, when it was captured.
pub type MemoryId = (u64, u64);

/// A file that has no name, mapped: memory that processes share, `memfd`, a deleted file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub id: MemoryId,
    /// As `memfd_create` was given it.
    pub name: String,
    pub len_bytes: u64,
    pub mode: u32,
    /// What must not be done with it any more.
    pub seals: u32,
    /// What is not empty of it; all of that is in this image.
    pub stored: Vec<Stored>,
}

/// Memory of System V (`shmget`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    pub id: i32,
    pub key: i32,
    pub len_bytes: u64,
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    pub maker: (u32, u32),
    /// It goes when nobody has it any more.
    pub doomed: bool,
    /// What is not empty of it; all of that is in this image.
    pub stored: Vec<Stored>,
}

/// A range of pages, and where in the pages of the image it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    pub start: u64,
    pub end: u64,
    pub at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    pub number: i32,
    pub file: usize,
    pub close_on_exec: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PosixTimer {
    pub id: i32,
    pub clock: i32,
    /// `SIGEV_SIGNAL`, `SIGEV_NONE`, `SIGEV_THREAD_ID`.
    pub notify: i32,
    pub signal: i32,
    pub value: u64,
    pub thread: i32,
    /// Interval and value, seconds and nanoseconds.
    pub time: [u64; 4],
}

impl Process {
    #[must_use]
    pub fn alive(&self) -> Option<&Alive> {
        match &self.life {
            Life::Alive(alive) => Some(alive),
            Life::Dead { .. } => None,
        }
    }
}

impl Mapping {
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }
}

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |value: u8| char::from(DIGITS[usize::from(value & 0xf)]);
        let text: String =
            self.0.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect();
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
        match bytes.collect::<Option<Vec<u8>>>() {
            Some(bytes) if rest.is_empty() => Ok(Self(bytes)),
            _ => Err(serde::de::Error::custom("not hexadecimal digits")),
        }
    }
}
