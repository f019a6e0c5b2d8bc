//! What can go wrong with a driver.

use std::{io, path::PathBuf};

use super::{SandboxState, SnapshotKind};
use crate::{
    error::{BoxError, Error},
    id::{SandboxId, SnapshotId},
    path::SandboxPath,
};

pub type DriverResult<T> = Result<T, DriverError>;

#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error("driver `{driver}` knows no sandbox `{id}`")]
    SandboxMissing { driver: &'static str, id: SandboxId },

    #[error("driver `{driver}` finds no `{name}`")]
    NativeMissing { driver: &'static str, name: String },

    #[error("driver `{driver}` already has a sandbox `{id}`")]
    SandboxExists { driver: &'static str, id: SandboxId },

    #[error("there is no `{path}` in sandbox `{id}`")]
    PathMissing { id: SandboxId, path: SandboxPath },

    /// Files that were asked for, in neither of two places.
    #[error("{what}")]
    FileMissing { what: String },

    #[error("sandbox `{id}` is {state}")]
    NotRunning { id: SandboxId, state: SandboxState },

    #[error("there is no command `{command}` in the sandbox")]
    CommandMissing { command: String },

    /// It is there, and the kernel will not have it: no right to, no program, a directory.
    #[error("`{command}` cannot be executed")]
    CommandRefused {
        command: String,
        #[source]
        source: io::Error,
    },

    #[error("driver `{driver}` cannot take this: {reason}")]
    Invalid { driver: &'static str, reason: String },

    #[error("`{what}` was not made by us, and stays")]
    Foreign { what: String },

    /// Whoever tries again may succeed.
    #[error("{what}")]
    InUse { what: String },

    #[error("driver `{driver}` cannot {operation}")]
    Unsupported { driver: &'static str, operation: &'static str },

    /// The kind is one that the driver knows; here, or of this sandbox, it cannot be had.
    #[error("driver `{driver}` cannot take a snapshot {} here: {reason}", match kind {
        SnapshotKind::Files => "of files",
        SnapshotKind::Full => "with processes and memory",
    })]
    KindUnavailable { driver: &'static str, kind: SnapshotKind, reason: String },

    #[error("template `{name}` is there already, and is something else")]
    TemplateTaken { name: String },

    /// What a sandbox was to start from cannot be had, for a reason with a kind of its own.
    #[error(transparent)]
    Template(Box<Error>),

    #[error("this machine cannot limit {what}: {reason}")]
    LimitUnavailable { what: &'static str, reason: String },

    #[error("driver `{driver}` is unreachable")]
    Unreachable {
        driver: &'static str,
        #[source]
        source: BoxError,
    },

    #[error("driver `{driver}` failed to {operation}")]
    Failed {
        driver: &'static str,
        operation: &'static str,
        #[source]
        source: BoxError,
    },

    #[error("failed to {operation} `{path}`")]
    Io {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// Files of a sandbox or of a workspace that are somebody else's, or that nobody may read.
    #[error(
        "`{path}` cannot be read by the user that runs this: `chmod` it, in the sandbox and on the host"
    )]
    Unreadable { path: PathBuf },

    #[error("the artifact of snapshot `{snapshot}` is damaged: {reason}")]
    Damaged { snapshot: SnapshotId, reason: String },
}

impl DriverError {
    pub(crate) fn into_source(self) -> Option<BoxError> {
        match self {
            Self::Unreachable { source, .. } | Self::Failed { source, .. } => Some(source),
            Self::Io { source, .. } | Self::CommandRefused { source, .. } => Some(source.into()),
            _ => None,
        }
    }
}
