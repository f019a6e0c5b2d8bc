//! What can go wrong on the way home.

use std::{io, path::PathBuf};

use crate::layer::LayerError;

pub(crate) type WorkspaceResult<T> = Result<T, WorkspaceError>;

#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkspaceError {
    #[error("another apply is at work on `{path}`")]
    Busy { path: PathBuf },

    #[error("`{path}` changed meanwhile")]
    Changed { path: PathBuf },

    #[error("what was to be applied was rolled back or deleted meanwhile")]
    Gone,

    #[error(
        "files changed again and again while they were looked at: apply a snapshot, or when the sandbox is \
         quiet"
    )]
    Restless,

    #[error("there is no `{path}`, neither in the sandbox's workspace nor on the host")]
    Missing { path: PathBuf },

    #[error("{done} of {of} changes were made, and applying again goes on")]
    Partial {
        done: usize,
        of: usize,
        #[source]
        source: Box<Self>,
    },

    #[error("`{path}` cannot be brought home: {reason}")]
    Refused { path: PathBuf, reason: String },

    #[error("failed to look at files")]
    Layer(#[from] LayerError),

    #[error("failed to {operation} `{path}`")]
    Io {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl WorkspaceError {
    /// Whether it may be that something was just going away that was looked at, and nothing was changed.
    pub(super) fn is_passing(&self) -> bool {
        let is_gone = |source: &io::Error| {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        };
        match self {
            Self::Layer(LayerError::Changed { .. }) => true,
            Self::Layer(LayerError::Io { source, .. }) | Self::Io { source, .. } => is_gone(source),
            _ => false,
        }
    }
}

pub(super) trait Doing<T> {
    fn doing(self, operation: &'static str, path: impl FnOnce() -> PathBuf) -> WorkspaceResult<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, operation: &'static str, path: impl FnOnce() -> PathBuf) -> WorkspaceResult<T> {
        self.map_err(|err| WorkspaceError::Io { operation, path: path(), source: err.into() })
    }
}
