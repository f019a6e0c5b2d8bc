//! What travels between machines: a file tree or a byte stream, with a format and a version.
//!
//! A driver makes parts of an artifact (`export`) and an artifact of parts (`import`). Nothing else
//! looks inside an artifact; everything may look inside a part.

use std::{collections::BTreeMap, ffi::OsString, fmt, io, path::PathBuf};

use bytes::Bytes;
use futures::{
    Stream, StreamExt as _, TryStreamExt as _, future,
    stream::{self, BoxStream},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::path::SandboxPath;

pub type ByteStream = BoxStream<'static, io::Result<Bytes>>;
pub type TreeStream = BoxStream<'static, io::Result<TreeItem>>;
pub type EntryStream = BoxStream<'static, io::Result<TreeEntry>>;

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
    /// Parents come before what is in them, and the end says how many there were.
    Tree(TreeStream),
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
pub enum TreeItem {
    Entry(TreeEntry),
    /// The last of a stream: one without it was cut.
    End {
        entries: u64,
    },
}

/// Entries, and behind them the end.
#[must_use]
pub fn end_tree(entries: impl Stream<Item = io::Result<TreeEntry>> + Send + 'static) -> TreeStream {
    let items = entries.map_ok(Some).chain(stream::iter([Ok(None)]));
    let count = |entries: &mut u64, item: io::Result<Option<TreeEntry>>| {
        let item = item.map(|entry| match entry {
            Some(entry) => {
                *entries += 1;
                TreeItem::Entry(entry)
            }
            None => TreeItem::End { entries: *entries },
        });
        future::ready(Some(item))
    };
    items.scan(0, count).boxed()
}

/// The entries of a stream, which fails where it has no end, another one, or something behind it.
#[must_use]
pub fn read_tree(items: TreeStream) -> EntryStream {
    let begun = (items, Counted { entries: 0, ended: false });
    stream::try_unfold(begun, |(mut items, mut counted)| async {
        loop {
            let item = items.try_next().await?;
            match counted.take(item)? {
                Some(Taken::Entry(entry)) => return Ok(Some((entry, (items, counted)))),
                Some(Taken::End) => {}
                None => return Ok(None),
            }
        }
    })
    .boxed()
}

struct Counted {
    entries: u64,
    ended: bool,
}

enum Taken {
    Entry(TreeEntry),
    End,
}

impl Counted {
    fn take(&mut self, item: Option<TreeItem>) -> io::Result<Option<Taken>> {
        let came = self.entries;
        match item {
            None if self.ended => Ok(None),
            None => Err(cut(format!("the tree is cut after {came} entries"))),
            Some(_) if self.ended => Err(cut("the tree goes on behind its end".to_owned())),
            Some(TreeItem::Entry(entry)) => {
                self.entries += 1;
                Ok(Some(Taken::Entry(entry)))
            }
            Some(TreeItem::End { entries }) if entries == came => {
                self.ended = true;
                Ok(Some(Taken::End))
            }
            Some(TreeItem::End { entries }) => {
                Err(cut(format!("the tree had {entries} entries, and {came} came")))
            }
        }
    }
}

fn cut(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
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
    /// Data in ascending order; what lies between is a hole. The last reaches the end of the file, and is empty if
    /// a hole is there: data without it were cut.
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
