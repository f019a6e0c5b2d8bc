//! What can go wrong with images.

use std::{io, path::PathBuf};

use forkpoint_core::{Error, ErrorKind};

use crate::tar::TarError;

pub type ImageResult<T> = Result<T, ImageError>;

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("`{source_text}` cannot be read as an image: {reason}")]
    Source { source_text: String, reason: String },

    #[error("there is no {what}")]
    Missing { what: String },

    #[error("{what} is not what its digest says: {found} instead of {expected}")]
    Mismatch { what: String, found: String, expected: String },

    #[error("{what} is damaged: {reason}")]
    Damaged { what: String, reason: String },

    #[error("{what} is refused: {reason}")]
    Refused { what: String, reason: String },

    #[error("the image is for {found}, and this machine is {machine}")]
    OtherPlatform { found: String, machine: String },

    #[error("{what} is larger than the limit of {limit}")]
    TooLarge { what: String, limit: String },

    #[error("{what} needs more than the {room} bytes that may be used of this disk")]
    NoRoom { what: String, room: u64 },

    #[error("{what} was denied: {reason}")]
    Denied { what: String, reason: String },

    #[error("{what} does not answer")]
    Unreachable {
        what: String,
        #[source]
        source: io::Error,
    },

    #[error("interrupted")]
    Interrupted,

    #[error("failed to {operation} `{path}`")]
    Io {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    pub(super) fn damaged(what: impl Into<String>, reason: impl ToString) -> Self {
        Self::Damaged { what: what.into(), reason: reason.to_string() }
    }

    /// What the caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Source { .. } | Self::Refused { .. } | Self::TooLarge { .. } => {
                ErrorKind::Invalid
            }
            Self::Missing { .. } => ErrorKind::NotFound,
            Self::Mismatch { .. } | Self::Damaged { .. } => ErrorKind::Corrupt,
            Self::OtherPlatform { .. } => ErrorKind::Unsupported,
            Self::Denied { .. } => ErrorKind::Denied,
            Self::NoRoom { .. }
            | Self::Unreachable { .. }
            | Self::Interrupted
            | Self::Io { .. } => ErrorKind::Unavailable,
        }
    }
}

impl From<ImageError> for Error {
    fn from(err: ImageError) -> Self {
        let (kind, message) = (err.kind(), err.to_string());
        match err {
            ImageError::Unreachable { source, .. } | ImageError::Io { source, .. } => {
                Self::new(kind, message).with_source(source)
            }
            _ => Self::new(kind, message),
        }
    }
}

/// Of an archive that is called `what`.
pub(super) fn tar_error(what: &str) -> impl Fn(TarError) -> ImageError + '_ {
    move |err| match err {
        TarError::Refused { entry, reason } => {
            ImageError::Refused { what: format!("{entry:?} in {what}"), reason: reason.to_owned() }
        }
        // A failure of ours that came through the stream, as it was.
        TarError::Io(err) => carried(err).unwrap_or_else(|err| ImageError::damaged(what, err)),
        err => ImageError::damaged(what, err),
    }
}

/// Streams can only carry errors of one type; ours go inside.
pub(super) fn carry(err: ImageError) -> io::Error {
    io::Error::other(err)
}

pub(super) fn carried(err: io::Error) -> Result<ImageError, io::Error> {
    err.downcast::<ImageError>()
}

pub(super) fn io_error(
    operation: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> ImageError {
    let path = path.into();
    move |source| ImageError::Io { operation, path, source }
}
