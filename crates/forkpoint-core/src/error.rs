//! The one error type that leaves this crate.

use std::{error::Error as StdError, fmt};

use crate::{
    catalog::CatalogError,
    driver::DriverError,
    id::{IdError, OperationId},
    store::StoreError,
};

pub type BoxError = Box<dyn StdError + Send + Sync>;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an error. The exit code of the command line and the status of an
/// HTTP answer are each one `match` on this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request names something that does not exist. Correct the name.
    NotFound,
    /// The thing changed meanwhile, is busy, or is taken. Look again and retry.
    Conflict,
    /// The request can never succeed as written. Correct it.
    Invalid,
    /// A rule forbids it. Ask whoever owns the rule.
    Denied,
    /// The chosen driver cannot do this. Choose another.
    Unsupported,
    /// Something that we depend on is down, slow or full. Retry later.
    Unavailable,
    /// Stored bytes are not what was written. Stop, and look.
    Corrupt,
    /// A bug.
    Internal,
}

#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<BoxError>,
    busy_with: Option<OperationId>,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None, busy_with: None }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same failure, seen from one step further out.
    #[must_use]
    pub fn context(self, message: impl Into<String>) -> Self {
        let (kind, busy_with) = (self.kind, self.busy_with);
        Self { kind, message: message.into(), source: Some(self.into()), busy_with }
    }

    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The operation that stands in the way, where waiting for it would help.
    #[must_use]
    pub fn busy_with(&self) -> Option<OperationId> {
        self.busy_with
    }

    /// The error and its causes in one line.
    #[must_use]
    pub fn chain(&self) -> Chain<'_> {
        Chain(self)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Prints an error and its causes, outermost first, joined by colons.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(cause) = next {
            write!(f, ": {cause}")?;
            next = cause.source();
        }
        Ok(())
    }
}

/// Adds what was being done to a failure.
pub trait Context<T> {
    fn context(self, message: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for Result<T, E> {
    fn context(self, message: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|err| err.into().context(message()))
    }
}

impl From<DriverError> for Error {
    fn from(err: DriverError) -> Self {
        let err = match err {
            DriverError::Template(err) => return *err,
            err => err,
        };
        let kind = match &err {
            DriverError::SandboxMissing { .. }
            | DriverError::NativeMissing { .. }
            | DriverError::PathMissing { .. }
            | DriverError::FileMissing { .. }
            | DriverError::CommandMissing { .. } => ErrorKind::NotFound,
            DriverError::SandboxExists { .. }
            | DriverError::NotRunning { .. }
            | DriverError::InUse { .. }
            | DriverError::TemplateTaken { .. } => ErrorKind::Conflict,
            DriverError::Template(err) => err.kind(),
            DriverError::Invalid { .. } | DriverError::CommandRefused { .. } => ErrorKind::Invalid,
            DriverError::Foreign { .. } | DriverError::Unreadable { .. } => ErrorKind::Denied,
            DriverError::Unsupported { .. }
            | DriverError::KindUnavailable { .. }
            | DriverError::LimitUnavailable { .. } => ErrorKind::Unsupported,
            DriverError::Unreachable { .. }
            | DriverError::Failed { .. }
            | DriverError::Io { .. } => ErrorKind::Unavailable,
            DriverError::Damaged { .. } => ErrorKind::Corrupt,
        };
        let message = err.to_string();
        Self { kind, message, source: err.into_source(), busy_with: None }
    }
}

impl From<CatalogError> for Error {
    fn from(err: CatalogError) -> Self {
        let kind = match &err {
            CatalogError::SandboxMissing { .. } | CatalogError::SnapshotMissing { .. } => {
                ErrorKind::NotFound
            }
            CatalogError::Ambiguous { .. } => ErrorKind::Invalid,
            CatalogError::Busy { .. }
            | CatalogError::NameTaken { .. }
            | CatalogError::AlreadyKnown { .. }
            | CatalogError::ClaimLost { .. } => ErrorKind::Conflict,
            CatalogError::PieceUnknown { .. } => ErrorKind::Internal,
            CatalogError::TooNew { .. } => ErrorKind::Unsupported,
            CatalogError::Foreign { .. } => ErrorKind::Denied,
            CatalogError::Damaged { .. } => ErrorKind::Corrupt,
            CatalogError::Database { .. } => ErrorKind::Unavailable,
        };
        let busy_with = match &err {
            CatalogError::Busy { by, .. } => Some(by.operation.id),
            _ => None,
        };
        let message = err.to_string();
        Self { kind, message, source: err.into_source(), busy_with }
    }
}

impl From<StoreError> for Error {
    fn from(err: StoreError) -> Self {
        let kind = match &err {
            StoreError::Missing { .. } => ErrorKind::NotFound,
            StoreError::Mismatch { .. } => ErrorKind::Corrupt,
            StoreError::Unavailable { .. } => ErrorKind::Unavailable,
        };
        let message = err.to_string();
        Self { kind, message, source: err.into_source(), busy_with: None }
    }
}

impl From<IdError> for Error {
    fn from(err: IdError) -> Self {
        Self::invalid(err.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_names_every_cause_once() {
        let cause = std::io::Error::other("disk on fire");
        let driver = DriverError::Io { operation: "mount", path: "/x".into(), source: cause };
        let err = Error::from(driver).context("failed to create sandbox `web`");
        assert_eq!(
            err.chain().to_string(),
            "failed to create sandbox `web`: failed to mount `/x`: disk on fire"
        );
        assert_eq!(err.kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn a_driver_says_what_can_be_done_about_it() {
        let state = crate::driver::SandboxState::Paused;
        let id = crate::id::SandboxId::from_u128(1);
        let (command, source) = ("/etc".to_owned(), std::io::ErrorKind::PermissionDenied.into());
        for (err, kind, text) in [
            (
                DriverError::NotRunning { id, state },
                ErrorKind::Conflict,
                "sandbox `sbx00000000000000000000000001` is paused",
            ),
            (
                DriverError::CommandMissing { command: "nosuch".to_owned() },
                ErrorKind::NotFound,
                "there is no command `nosuch` in the sandbox",
            ),
            (
                DriverError::CommandRefused { command, source },
                ErrorKind::Invalid,
                "`/etc` cannot be executed: permission denied",
            ),
            (
                DriverError::LimitUnavailable { what: "memory", reason: "no cgroup".to_owned() },
                ErrorKind::Unsupported,
                "this machine cannot limit memory: no cgroup",
            ),
        ] {
            let err = Error::from(err);
            assert_eq!((err.kind(), err.chain().to_string().as_str()), (kind, text));
        }
    }
}
