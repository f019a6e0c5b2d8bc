//! What can go wrong with layers.

use std::{io, path::PathBuf};

pub type LayerResult<T> = Result<T, LayerError>;

#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    #[error("`{name}` is not the name of a layer of ours")]
    Foreign { name: String },

    #[error("there is no layer `{name}`")]
    Missing { name: String },

    #[error("layer `{name}` exists already")]
    Exists { name: String },

    #[error("layer `{name}` is damaged: {reason}")]
    Damaged { name: String, reason: String },

    #[error("layer `{name}` has format {format}, and this release reads up to {newest}")]
    TooNew { name: String, format: u32, newest: u32 },

    #[error("layer `{name}` has `{found}` marks among layers with `{expected}` marks")]
    MixedMarks { name: String, found: &'static str, expected: &'static str },

    #[error("`{path}` is on another file system than the layers")]
    OtherFileSystem { path: PathBuf },

    #[error("`{path}` cannot be kept in a layer: {reason}")]
    Unsupported { path: PathBuf, reason: &'static str },

    #[error("`{path}` changed while it was captured")]
    Changed { path: PathBuf },

    #[error("`{path}` is not empty")]
    NotEmpty { path: PathBuf },

    #[error("an exchange of what `{path}` holds was neither finished nor undone")]
    Unsettled { path: PathBuf },

    #[error("what an engine sent of `{what}` cannot be kept: {reason}")]
    Archive { what: String, reason: String },

    /// From the root of a tree that came from elsewhere.
    #[error("`{path}` of what came cannot be kept: {reason}")]
    Refused { path: PathBuf, reason: String },

    /// From the root of what was looked at, wherever it really lies.
    #[error("`{path}` may not be read")]
    Unreadable { path: PathBuf },

    #[error("a manifest is damaged: {reason}")]
    Manifest { reason: &'static str },

    #[error("failed to {operation} `{path}`")]
    Io {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl LayerError {
    /// Whether whoever runs this has no right to look there.
    pub(crate) fn is_denied(&self) -> bool {
        match self {
            Self::Io { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            Self::Unreadable { .. } => true,
            _ => false,
        }
    }
}

/// A failure that does not know its path yet: the walk that met it does.
#[derive(Debug)]
pub(crate) enum Fault {
    Io { operation: &'static str, source: io::Error },
    Unsupported { reason: &'static str },
    Changed,
}

impl Fault {
    pub(super) fn into_io(self) -> io::Error {
        match self {
            Self::Io { source, .. } => source,
            Self::Unsupported { reason } => io::Error::other(reason),
            Self::Changed => io::Error::other("it changed"),
        }
    }

    pub(super) fn at(self, path: PathBuf) -> LayerError {
        match self {
            Self::Io { operation, source } => LayerError::Io { operation, path, source },
            Self::Unsupported { reason } => LayerError::Unsupported { path, reason },
            Self::Changed => LayerError::Changed { path },
        }
    }
}

pub(super) trait During<T> {
    fn during(self, operation: &'static str) -> Result<T, Fault>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, operation: &'static str) -> Result<T, Fault> {
        self.map_err(|err| Fault::Io { operation, source: err.into() })
    }
}

pub(super) trait At<T> {
    /// `path` is asked for only when there is something to tell.
    fn at(self, path: impl FnOnce() -> PathBuf) -> LayerResult<T>;
}

impl<T> At<T> for Result<T, Fault> {
    fn at(self, path: impl FnOnce() -> PathBuf) -> LayerResult<T> {
        self.map_err(|fault| fault.at(path()))
    }
}
