//! `SqliteCatalog`.

use std::{path::PathBuf, sync::Arc};

use forkpoint_backends::catalog::SqliteCatalog;
use forkpoint_core::catalog::Catalog;
use forkpoint_testkit::CatalogOpener;
use rusqlite::Connection;
use tempfile::TempDir;

mod damage;
mod harness;
mod old;
mod open;
mod threads;

mod conformance {
    forkpoint_testkit::catalog_conformance!(super::Directory::new());
}

/// The same without threads of its own.
mod here {
    forkpoint_testkit::catalog_conformance!(super::Here(super::Directory::new()));
}

/// A catalog in a directory that goes with it.
#[derive(Debug)]
struct Directory(TempDir);

impl Directory {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("catalog.db")
    }

    fn owners(&self) -> PathBuf {
        self.0.path().join("catalog.db.owners")
    }

    /// Past the catalog, as somebody with a tool would.
    fn tamper(&self, sql: &str) {
        Connection::open(self.file()).unwrap().execute_batch(sql).unwrap();
    }
}

impl CatalogOpener for Directory {
    fn open(&self) -> Arc<dyn Catalog> {
        Arc::new(SqliteCatalog::open(self.file()).unwrap())
    }
}

#[derive(Debug)]
struct Here(Directory);

impl CatalogOpener for Here {
    fn open(&self) -> Arc<dyn Catalog> {
        Arc::new(SqliteCatalog::open_here(self.0.file()).unwrap())
    }
}
