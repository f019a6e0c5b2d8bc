//! Where a catalog lies, and what its failures mean.

use std::{
    io,
    path::{Path, PathBuf},
};

use forkpoint_core::{catalog::CatalogError, error::BoxError};
use rusqlite::ErrorCode;

/// The file under its one true name: whoever comes through a symbolic link must find the same
/// owners.
#[derive(Clone, Debug)]
pub(super) struct Place(PathBuf);

impl Place {
    pub(super) fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn owners(&self) -> PathBuf {
        let mut owners = self.0.clone().into_os_string();
        owners.push(".owners");
        owners.into()
    }

    fn shown(&self) -> String {
        self.0.display().to_string()
    }

    pub(super) fn explain(&self, operation: &'static str, fault: Fault) -> CatalogError {
        match fault {
            Fault::Refused(refusal) => refusal,
            Fault::Damaged(reason) => CatalogError::Damaged { place: self.shown(), reason },
            Fault::Foreign => CatalogError::Foreign { place: self.shown() },
            Fault::TooNew { found, known } => {
                CatalogError::TooNew { place: self.shown(), found, known }
            }
            Fault::Sqlite(err) if is_damage(&err) => {
                CatalogError::Damaged { place: self.shown(), reason: err.to_string() }
            }
            Fault::Sqlite(err) => CatalogError::Database { operation, source: err.into() },
            Fault::File(source) => CatalogError::Database { operation, source },
        }
    }
}

pub(super) type Answer<T> = Result<T, Fault>;

/// What goes wrong inside, before it is known what was being done, and where.
#[derive(Debug)]
pub(super) enum Fault {
    Refused(CatalogError),
    Damaged(String),
    Foreign,
    TooNew { found: u64, known: u64 },
    Sqlite(rusqlite::Error),
    File(BoxError),
}

#[derive(Debug, thiserror::Error)]
#[error("failed to use `{path}`")]
struct FileError {
    path: String,
    #[source]
    source: io::Error,
}

impl Fault {
    pub(super) fn file(path: &Path, source: io::Error) -> Self {
        Self::File(FileError { path: path.display().to_string(), source }.into())
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(err: rusqlite::Error) -> Self {
        Self::Sqlite(err)
    }
}

impl From<CatalogError> for Fault {
    fn from(refusal: CatalogError) -> Self {
        Self::Refused(refusal)
    }
}

/// Whether the file is to blame, and not the moment. A statement of ours that SQLite does not
/// understand is one that lacks its table.
fn is_damage(err: &rusqlite::Error) -> bool {
    use rusqlite::Error;
    match err {
        Error::SqliteFailure(failure, _) | Error::SqlInputError { error: failure, .. } => matches!(
            failure.code,
            ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt | ErrorCode::Unknown
        ),
        Error::FromSqlConversionFailure(..)
        | Error::InvalidColumnType(..)
        | Error::InvalidColumnName(_)
        | Error::IntegralValueOutOfRange(..)
        | Error::Utf8Error(..)
        | Error::QueryReturnedNoRows => true,
        _ => false,
    }
}
