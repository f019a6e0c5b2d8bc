//! What travels between machines: a file tree or a byte stream, with a format and a version.
//!
//! A driver makes parts of an artifact (`export`) and an artifact of parts (`import`). Nothing else
//! looks inside an artifact; everything may look inside a part.

use std::{collections::BTreeMap, ffi::OsString, fmt, io, path::PathBuf};

use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::path::SandboxPath;

pub type ByteStream = BoxStream<'static, io::Result<Bytes>>;

pub struct Part {
    pub format: PartFormat,
    pub content: PartContent,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("format", &self.format).finish_non_exhaustive()
    }
}

/// Says how to read a part. A reader refuses a version above the one it knows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartFormat {
    pub name: String,
    pub version: u32,
}

impl PartFormat {
    /// A whole file tree, or the changes to one.
    #[must_use]
    pub fn tree() -> Self {
        Self { name: "tree".to_owned(), version: 1 }
    }
}

impl fmt::Display for PartFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.version)
    }
}

pub enum PartContent {
    /// Parents come before what is in them.
    Tree(BoxStream<'static, io::Result<TreeEntry>>),
    Bytes(ByteStream),
}

impl fmt::Debug for PartContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tree(_) => "Tree",
            Self::Bytes(_) => "Bytes",
        })
    }
}

#[derive(Debug)]
pub struct TreeEntry {
    pub path: SandboxPath,
    pub meta: EntryMeta,
    pub node: TreeNode,
}

pub enum TreeNode {
    /// Opaque: what lower layers have under this directory is gone.
    Directory {
        opaque: bool,
    },
    /// Data in ascending order; what lies between is a hole.
    File {
        len_bytes: u64,
        data: BoxStream<'static, io::Result<Extent>>,
    },
    /// Another name of a file that came before.
    HardLink {
        to: SandboxPath,
    },
    Symlink {
        target: PathBuf,
    },
    Fifo,
    Socket,
    Device {
        block: bool,
        major: u32,
        minor: u32,
    },
    /// What lower layers have at this path is gone.
    Whiteout,
}

impl fmt::Debug for TreeNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory { opaque } => write!(f, "Directory {{ opaque: {opaque} }}"),
            Self::File { len_bytes, .. } => write!(f, "File {{ len_bytes: {len_bytes} }}"),
            Self::HardLink { to } => write!(f, "HardLink {{ to: {to} }}"),
            Self::Symlink { target } => write!(f, "Symlink {{ target: {target:?} }}"),
            Self::Fifo => f.write_str("Fifo"),
            Self::Socket => f.write_str("Socket"),
            Self::Device { block, major, minor } => {
                write!(f, "Device {{ block: {block}, {major}:{minor} }}")
            }
            Self::Whiteout => f.write_str("Whiteout"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    pub offset: u64,
    pub bytes: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryMeta {
    /// Permission bits, with set-user-id, set-group-id and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub modified: Timestamp,
    pub xattrs: BTreeMap<OsString, Bytes>,
}
