//! A look into a catalog that leaves no trace: no owner, no migration, nothing swept.

use std::{path::Path, sync::Arc};

use forkpoint_core::catalog::{
    CatalogResult, Page, SandboxQuery, SandboxRecord, SnapshotQuery, SnapshotRecord,
};

use super::{
    list,
    place::Place,
    session::{Access, Session},
    worker::Worker,
};

/// What an older release left may not be readable: then it is an error to ask.
pub struct SqliteReader(Worker);

impl SqliteReader {
    /// Opens the file when it is first asked something.
    pub fn new(path: impl AsRef<Path>) -> CatalogResult<Self> {
        let place = Arc::new(Place::new(path.as_ref()));
        Worker::start("catalog-read", Session::for_reading(place)).map(Self)
    }

    pub async fn sandboxes(&self, query: &SandboxQuery) -> CatalogResult<Page<SandboxRecord>> {
        let query = query.clone();
        self.0.run(Access::Read, "list sandboxes", move |tx| list::sandboxes(tx, &query)).await
    }

    pub async fn snapshots(&self, query: &SnapshotQuery) -> CatalogResult<Page<SnapshotRecord>> {
        let query = query.clone();
        self.0.run(Access::Read, "list snapshots", move |tx| list::snapshots(tx, &query)).await
    }
}

impl std::fmt::Debug for SqliteReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteReader").finish_non_exhaustive()
    }
}
