//! File systems in memory, which are in no layer: an image keeps what is in them.

use serde::{Deserialize, Serialize};

use super::model::{Bytes, Stored};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptMount {
    /// Where the sandbox has it.
    pub path: String,
    /// Directories before what is in them; the first is the root.
    pub entries: Vec<KeptEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptEntry {
    /// From the root of the mount, which itself has none.
    pub path: String,
    pub kind: EntryKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Of the last access and the last change: seconds and nanoseconds.
    pub times: [(i64, u32); 2],
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<(String, Bytes)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    Directory,
    /// What is not empty of it is in this image.
    File {
        len_bytes: u64,
        stored: Vec<Stored>,
    },
    Link {
        target: String,
    },
    Socket,
    Fifo,
    /// Another name of an earlier one.
    Same {
        path: String,
    },
}
