//! Where facts and intentions are kept.

#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteCatalog, SqliteReader};
