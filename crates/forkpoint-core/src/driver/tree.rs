//! Looking into a state of files, and comparing two, without running anything.
//!
//! Paths here need not be text, and may be longer than a [`SandboxPath`] allows.

use std::{ffi::OsString, fmt, path::PathBuf};

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Artifact, DriverResult};
use crate::{id::SandboxId, part::ByteStream, path::SandboxPath, spec::SandboxSpec};

/// A state of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileState {
    Snapshot(Artifact),
    /// As it is now, whether or not it runs. What it does meanwhile may be seen or not.
    Sandbox(SandboxId),
    /// What the other state began as, before anything was written: its template and workspaces.
    Beginning {
        of: Box<FileState>,
        spec: Box<SandboxSpec>,
    },
}

/// The files of a state. Nothing in them leads outside: symbolic links are told and not followed,
/// and what is in the way of a path and is no directory means that the path leads nowhere.
#[async_trait]
pub trait FileTree: fmt::Debug + Send + Sync {
    /// `None` where there is nothing.
    async fn entry(&self, path: &SandboxPath) -> DriverResult<Option<FileFacts>>;

    /// A directory's own entries in order of name; [`DriverError::Io`] where there is no directory.
    ///
    /// [`DriverError::Io`]: super::DriverError::Io
    async fn entries(&self, path: &SandboxPath) -> DriverResult<Vec<(OsString, FileFacts)>>;

    /// The content of a regular file; anything else is an error, and nobody waits for a FIFO.
    async fn read(&self, path: &SandboxPath) -> DriverResult<ByteStream>;

    async fn read_link(&self, path: &SandboxPath) -> DriverResult<PathBuf>;
}

/// Something other than a file that is put into a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewEntry {
    /// With the directories above it. One that is there stays as it is.
    Directory { mode: u32 },
    /// In the place of a file or a link, not of a directory.
    Symlink { target: PathBuf },
    /// No new one: the mode of a file or directory that is there.
    Mode(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// What is known of a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FileFacts {
    pub kind: FileKind,
    /// The bits that `chmod` sets.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Of a file its length, of a symbolic link that of its target, else zero.
    pub len_bytes: u64,
    pub modified: Timestamp,
    /// The number of a device; else zero.
    pub device: u64,
}

/// What two states of files differ in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileDiff {
    /// In order of path.
    pub changes: Vec<FileChange>,
    /// Directories that lie so deep that they were not compared.
    pub too_deep: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    pub kind: ChangeKind,
    /// From the root, absolute.
    pub path: PathBuf,
    pub before: Option<FileFacts>,
    pub after: Option<FileFacts>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Deleted,
    /// Other content: of a file its bytes, of a symbolic link its target, of a device its number.
    Changed,
    /// Something else altogether, as a directory where there was a file.
    Retyped,
    /// The same content with another mode or owner.
    Attributes,
    /// A file with the same content was deleted at `from`.
    Renamed {
        from: PathBuf,
    },
}

impl FileFacts {
    /// Whether both say the same of who may do what.
    #[must_use]
    pub fn same_attributes(&self, other: &Self) -> bool {
        (self.mode, self.uid, self.gid) == (other.mode, other.uid, other.gid)
    }
}
