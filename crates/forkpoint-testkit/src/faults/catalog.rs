//! A catalog whose calls go wrong.

use std::{future::Future, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use forkpoint_core::{
    catalog::{
        CandidateQuery, Catalog, CatalogError, CatalogResult, Change, Chore, ChoreId, Claim,
        LineageScope, OpenOperation, Operation, Page, Reclaimed, SandboxQuery, SandboxRecord,
        SnapshotQuery, SnapshotRecord, Usage,
    },
    driver::PieceName,
    error::BoxError,
    id::{OwnerId, SandboxId, SnapshotId},
    lineage::LineageNode,
    retention::Candidate,
};
use futures::FutureExt as _;

use super::Faults;
use crate::simulation::ProcessId;

#[derive(Debug)]
pub struct FaultyCatalog {
    inner: Arc<dyn Catalog>,
    faults: Faults,
    process: ProcessId,
}

impl FaultyCatalog {
    #[must_use]
    pub fn new(inner: Arc<dyn Catalog>, faults: Faults, process: ProcessId) -> Self {
        Self { inner, faults, process }
    }

    async fn call<T>(
        &self,
        call: &'static str,
        effect: impl Future<Output = CatalogResult<T>>,
    ) -> CatalogResult<T> {
        let place = (self.process, call);
        self.faults.around(place, effect, None, |source| failed(call, source)).await
    }
}

fn failed(operation: &'static str, source: BoxError) -> CatalogError {
    CatalogError::Database { operation, source }
}

#[async_trait]
impl Catalog for FaultyCatalog {
    fn owner(&self) -> OwnerId {
        self.inner.owner()
    }

    async fn begin(&self, operation: &Operation) -> CatalogResult<Claim> {
        self.call("begin", self.inner.begin(operation)).await
    }

    async fn commit(&self, claim: &Claim, change: &Change) -> CatalogResult<Vec<Chore>> {
        let (inner, late_claim, late_change) = (Arc::clone(&self.inner), *claim, change.clone());
        let later = async move { drop(inner.commit(&late_claim, &late_change).await) }.boxed();
        let effect = self.inner.commit(claim, change);
        let place = (self.process, "commit");
        self.faults.around(place, effect, Some(later), |source| failed("commit", source)).await
    }

    async fn abort(&self, claim: &Claim) -> CatalogResult<()> {
        self.call("abort", self.inner.abort(claim)).await
    }

    async fn unfinished(&self) -> CatalogResult<Vec<OpenOperation>> {
        self.call("unfinished", self.inner.unfinished()).await
    }

    async fn reclaim(&self, claim: &Claim) -> CatalogResult<Reclaimed> {
        self.call("reclaim", self.inner.reclaim(claim)).await
    }

    async fn chores(&self) -> CatalogResult<Vec<Chore>> {
        self.call("chores", self.inner.chores()).await
    }

    async fn chore_done(&self, id: ChoreId) -> CatalogResult<()> {
        self.call("chore_done", self.inner.chore_done(id)).await
    }

    async fn sandbox(&self, id: SandboxId) -> CatalogResult<SandboxRecord> {
        self.call("sandbox", self.inner.sandbox(id)).await
    }

    async fn find_sandbox(&self, driver: &str, reference: &str) -> CatalogResult<SandboxRecord> {
        self.call("find_sandbox", self.inner.find_sandbox(driver, reference)).await
    }

    async fn find_former_sandbox(
        &self,
        driver: &str,
        reference: &str,
    ) -> CatalogResult<Option<SandboxId>> {
        self.call("find_former_sandbox", self.inner.find_former_sandbox(driver, reference)).await
    }

    async fn sandboxes(&self, query: &SandboxQuery) -> CatalogResult<Page<SandboxRecord>> {
        self.call("sandboxes", self.inner.sandboxes(query)).await
    }

    async fn snapshot(&self, id: SnapshotId) -> CatalogResult<SnapshotRecord> {
        self.call("snapshot", self.inner.snapshot(id)).await
    }

    async fn find_snapshot(&self, reference: &str) -> CatalogResult<SnapshotRecord> {
        self.call("find_snapshot", self.inner.find_snapshot(reference)).await
    }

    async fn snapshots(&self, query: &SnapshotQuery) -> CatalogResult<Page<SnapshotRecord>> {
        self.call("snapshots", self.inner.snapshots(query)).await
    }

    async fn agent_state(&self, id: SnapshotId) -> CatalogResult<Option<Bytes>> {
        self.call("agent_state", self.inner.agent_state(id)).await
    }

    async fn lineage(&self, scope: &LineageScope) -> CatalogResult<Vec<LineageNode>> {
        self.call("lineage", self.inner.lineage(scope)).await
    }

    async fn usage(&self) -> CatalogResult<Usage> {
        self.call("usage", self.inner.usage()).await
    }

    async fn candidates(&self, query: &CandidateQuery) -> CatalogResult<Vec<Candidate>> {
        self.call("candidates", self.inner.candidates(query)).await
    }

    async fn pieces(&self, driver: &str) -> CatalogResult<Vec<PieceName>> {
        self.call("pieces", self.inner.pieces(driver)).await
    }
}
