//! Finishing or undoing what was left open: by a process that died, or by an undo that failed.

use super::{Engine, Inner};
use crate::{
    catalog::{
        CatalogError, Change, Claim, NewSandbox, OpenOperation, Operation, OperationKind,
        OwnerState, Reclaimed,
    },
    driver::{Driver, SandboxStatus},
    error::{Error, Result},
    id::{OperationId, SandboxId, SnapshotId},
};

/// How an open operation was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    /// It took effect.
    Finished,
    /// As if it had never begun.
    Undone,
}

/// Whether anybody still wants what is being closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    Waits,
    /// Nobody waits, and somebody may have gone on working since.
    Gone,
}

#[derive(Debug, Default)]
pub struct RecoveryReport {
    pub finished: Vec<OperationId>,
    pub undone: Vec<OperationId>,
    pub chores_done: usize,
    /// Clean-up that could not be done yet.
    pub chores_waiting: usize,
    /// What has to wait for the next time, and why.
    pub failed: Vec<(OperationId, Error)>,
}

impl Engine {
    /// Closes whatever nobody works on any more. Runs at every start, and then from time to time.
    /// One operation that cannot be closed does not keep the others open.
    pub async fn recover(&self) -> Result<RecoveryReport> {
        self.operate(super::Wait::No, |inner| async move { inner.recover().await }).await
    }
}

impl Inner {
    async fn recover(&self) -> Result<RecoveryReport> {
        let mut report = RecoveryReport::default();
        for open in self.catalog.unfinished().await? {
            let id = open.operation.id;
            match self.close_abandoned(&open).await {
                Ok(Some(Closed::Finished)) => report.finished.push(id),
                Ok(Some(Closed::Undone)) => report.undone.push(id),
                Ok(None) => {}
                Err(err) => report.failed.push((id, err)),
            }
        }
        let chores = self.do_chores(self.catalog.chores().await?).await;
        report.chores_done = chores.done;
        report.chores_waiting = chores.waiting;
        Ok(report)
    }

    /// Whether the way past `open` is free now. It is not while somebody works on it.
    pub(super) async fn clear(&self, open: &OpenOperation) -> bool {
        match self.close_abandoned(open).await {
            Ok(closed) => closed.is_some(),
            Err(err) => {
                let id = open.operation.id;
                tracing::warn!(operation = %id, error = %err.chain(), "left to recovery");
                false
            }
        }
    }

    /// `None` when somebody works on it, or was faster.
    async fn close_abandoned(&self, open: &OpenOperation) -> Result<Option<Closed>> {
        if open.owner_state == OwnerState::Alive {
            return Ok(None);
        }
        // Ours, but perhaps at work in another task; held until it is closed.
        let Some(_running) = self.running.try_enter(open.operation.id) else {
            return Ok(None);
        };
        match self.catalog.reclaim(&open.claim).await? {
            Reclaimed::Ours(claim) => {
                self.close(&open.operation, &claim, Asker::Gone).await.map(Some)
            }
            Reclaimed::Committed => Ok(Some(Closed::Finished)),
            Reclaimed::Lost => Ok(None),
        }
    }

    /// Finishes or undoes an operation, from what `begin` wrote and by calls that may be repeated.
    pub(super) async fn close(
        &self,
        operation: &Operation,
        claim: &Claim,
        asker: Asker,
    ) -> Result<Closed> {
        let driver = self.driver(&operation.driver)?.as_ref();
        match &operation.kind {
            OperationKind::Create { sandbox: NewSandbox { id, .. } } => driver.destroy(*id).await?,
            OperationKind::Fork { children, .. } => {
                for child in children {
                    driver.destroy(child.id).await?;
                }
            }
            OperationKind::Snapshot { sandbox, snapshot, .. } => {
                driver.settle(*sandbox).await?;
                driver.unseal(*snapshot).await?;
            }
            OperationKind::Import { snapshot, .. } => driver.unseal(*snapshot).await?,
            // Nobody asks how far it came: what runs is what the driver says runs.
            OperationKind::Switch { sandbox, .. } => driver.settle(*sandbox).await?,
            OperationKind::Rollback { sandbox, to } => {
                return self.close_rollback(driver, claim, (*sandbox, *to), asker).await;
            }
            OperationKind::Destroy { sandbox, adopted } => {
                if !adopted {
                    driver.destroy(*sandbox).await?;
                }
                return self.finish(claim, &Change::SandboxRemoved { sandbox: *sandbox }).await;
            }
            // Nothing but the commit has an effect.
            OperationKind::Adopt { .. }
            | OperationKind::Delete { .. }
            | OperationKind::Edit { .. } => {}
        }
        self.catalog.abort(claim).await?;
        Ok(Closed::Undone)
    }

    /// The driver says how far it came. A rollback that was not done is never done later, behind
    /// the back of whoever works in the sandbox meanwhile; only one that the platform lost on the way
    /// is made again.
    async fn close_rollback(
        &self,
        driver: &dyn Driver,
        claim: &Claim,
        (sandbox, to): (SandboxId, SnapshotId),
        asker: Asker,
    ) -> Result<Closed> {
        let record = self.catalog.sandbox(sandbox).await?;
        let moves = record.head != Some(to);
        let done = |status: &Option<SandboxStatus>| {
            moves && status.is_some_and(|status| status.base == Some(to))
        };
        let mut status = driver.status(sandbox).await?;
        // Back to where it stands already: whether that was done, only the caller can still care.
        let again = !moves && asker == Asker::Waits;
        if !done(&status) && (status.is_none() || again) {
            let target = self.catalog.snapshot(to).await?;
            if driver.rollback(sandbox, &record.spec, &target.artifact).await.is_ok() {
                return self.finish(claim, &self.rolled_back(sandbox, to)).await;
            }
            status = driver.status(sandbox).await?;
        }
        if done(&status) {
            return self.finish(claim, &self.rolled_back(sandbox, to)).await;
        }
        driver.settle(sandbox).await?;
        self.catalog.abort(claim).await?;
        Ok(Closed::Undone)
    }

    fn rolled_back(&self, sandbox: SandboxId, to: SnapshotId) -> Change {
        Change::RolledBack { sandbox, to, at: self.environment.now() }
    }

    async fn finish(&self, claim: &Claim, change: &Change) -> Result<Closed> {
        match self.catalog.commit(claim, change).await {
            Ok(chores) => {
                self.do_chores(chores).await;
                Ok(Closed::Finished)
            }
            Err(err) => self.ask(claim, err).await,
        }
    }

    /// A commit whose reply was lost may have happened. If it did not, the next recovery tries again.
    async fn ask(&self, claim: &Claim, err: CatalogError) -> Result<Closed> {
        match self.catalog.reclaim(claim).await {
            Ok(Reclaimed::Committed) => Ok(Closed::Finished),
            _ => Err(err.into()),
        }
    }
}
