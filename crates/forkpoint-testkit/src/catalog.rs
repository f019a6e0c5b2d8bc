//! A catalog in memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use forkpoint_core::{
    catalog::{
        CandidateQuery, Catalog, CatalogResult, Change, Chore, ChoreId, Claim, LineageScope,
        OpenOperation, Operation, Page, Reclaimed, SandboxQuery, SandboxRecord, SnapshotQuery,
        SnapshotRecord, Usage,
    },
    driver::PieceName,
    id::{OwnerId, SandboxId, SnapshotId},
    lineage::LineageNode,
    retention::Candidate,
};

mod tables;

use tables::Tables;

/// What the handles of several processes share, as a file would be.
#[derive(Clone, Debug, Default)]
pub struct SharedTables(Arc<Mutex<Tables>>);

impl SharedTables {
    /// A handle for one more process. Dropping it is the end of that process.
    #[must_use]
    pub fn open(&self) -> MemoryCatalog {
        let owner = self.tables().add_owner();
        MemoryCatalog { shared: self.clone(), owner }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub struct MemoryCatalog {
    shared: SharedTables,
    owner: OwnerId,
}

impl MemoryCatalog {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.shared.tables()
    }
}

impl Drop for MemoryCatalog {
    fn drop(&mut self) {
        self.tables().remove_owner(self.owner);
    }
}

#[async_trait]
impl Catalog for MemoryCatalog {
    fn owner(&self) -> OwnerId {
        self.owner
    }

    async fn begin(&self, operation: &Operation) -> CatalogResult<Claim> {
        self.tables().begin(self.owner, operation)
    }

    async fn commit(&self, claim: &Claim, change: &Change) -> CatalogResult<Vec<Chore>> {
        self.tables().commit(self.owner, claim, change)
    }

    async fn abort(&self, claim: &Claim) -> CatalogResult<()> {
        self.tables().close(self.owner, claim, false).map(drop)
    }

    async fn unfinished(&self) -> CatalogResult<Vec<OpenOperation>> {
        Ok(self.tables().unfinished(self.owner))
    }

    async fn reclaim(&self, claim: &Claim) -> CatalogResult<Reclaimed> {
        Ok(self.tables().reclaim(self.owner, claim))
    }

    async fn chores(&self) -> CatalogResult<Vec<Chore>> {
        Ok(self.tables().chores())
    }

    async fn chore_done(&self, id: ChoreId) -> CatalogResult<()> {
        self.tables().chore_done(id);
        Ok(())
    }

    async fn sandbox(&self, id: SandboxId) -> CatalogResult<SandboxRecord> {
        self.tables().sandbox(id)
    }

    async fn find_sandbox(&self, driver: &str, reference: &str) -> CatalogResult<SandboxRecord> {
        self.tables().find_sandbox(driver, reference)
    }

    async fn find_former_sandbox(
        &self,
        driver: &str,
        reference: &str,
    ) -> CatalogResult<Option<SandboxId>> {
        self.tables().find_former_sandbox(driver, reference)
    }

    async fn sandboxes(&self, query: &SandboxQuery) -> CatalogResult<Page<SandboxRecord>> {
        Ok(self.tables().sandboxes(query))
    }

    async fn snapshot(&self, id: SnapshotId) -> CatalogResult<SnapshotRecord> {
        self.tables().snapshot(id)
    }

    async fn find_snapshot(&self, reference: &str) -> CatalogResult<SnapshotRecord> {
        self.tables().find_snapshot(reference)
    }

    async fn snapshots(&self, query: &SnapshotQuery) -> CatalogResult<Page<SnapshotRecord>> {
        Ok(self.tables().snapshots(query))
    }

    async fn agent_state(&self, id: SnapshotId) -> CatalogResult<Option<Bytes>> {
        self.tables().agent_state(id)
    }

    async fn lineage(&self, scope: &LineageScope) -> CatalogResult<Vec<LineageNode>> {
        Ok(self.tables().lineage(scope))
    }

    async fn usage(&self) -> CatalogResult<Usage> {
        Ok(self.tables().usage())
    }

    async fn candidates(&self, query: &CandidateQuery) -> CatalogResult<Vec<Candidate>> {
        Ok(self.tables().candidates(query))
    }

    async fn pieces(&self, driver: &str) -> CatalogResult<Vec<PieceName>> {
        Ok(self.tables().pieces(driver))
    }
}
