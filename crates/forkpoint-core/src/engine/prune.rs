//! Retention: the plan, and carrying it out.

use super::{Engine, Inner, Wait};
use crate::{
    catalog::{CandidateQuery, CandidateScope, SnapshotRecord},
    error::{Error, ErrorKind, Result},
    id::SnapshotId,
    retention::{Deletion, Reason, RetentionPlan, RetentionPlanner, RetentionPolicy, UnmetLimit},
};

const PAGE: usize = 500;

/// What became of a plan.
#[derive(Debug, Default)]
pub struct PruneReport {
    pub deleted: Vec<Deletion>,
    /// Those that somebody pinned or gave more time after the plan was made.
    pub kept: Vec<Deletion>,
    /// Those that could not be deleted, each with its reason; a snapshot in use is one of them.
    pub failed: Vec<(Deletion, Error)>,
    pub unmet: Vec<UnmetLimit>,
    /// How much less is stored now. What others still need of the deleted ones stays.
    pub freed_bytes: u64,
}

impl Engine {
    /// What [`Engine::prune`] would delete, and why. Changes nothing.
    pub async fn retention_plan(&self, policy: &RetentionPolicy) -> Result<RetentionPlan> {
        self.inner.retention_plan(policy, None).await
    }

    pub async fn prune(&self, policy: &RetentionPolicy) -> Result<PruneReport> {
        let policy = policy.clone();
        self.operate(Wait::No, move |inner| {
            let policy = policy.clone();
            async move { inner.prune(&policy, None).await }
        })
        .await
    }

    /// Carries out a plan that somebody has seen. What has gone meanwhile counts as done.
    pub async fn execute_plan(&self, plan: RetentionPlan) -> Result<PruneReport> {
        self.operate(Wait::No, move |inner| {
            let plan = plan.clone();
            async move { inner.execute(plan).await }
        })
        .await
    }
}

impl Inner {
    pub(super) async fn prune(
        &self,
        policy: &RetentionPolicy,
        spared: Option<SnapshotId>,
    ) -> Result<PruneReport> {
        let plan = self.retention_plan(policy, spared).await?;
        self.execute(plan).await
    }

    /// Feeds the planner page by page, and stops when no limit asks for more.
    async fn retention_plan(
        &self,
        policy: &RetentionPolicy,
        spared: Option<SnapshotId>,
    ) -> Result<RetentionPlan> {
        policy.check()?;
        let now = self.environment.now();
        let usage = self.catalog.usage().await?;
        let mut planner = RetentionPlanner::new(policy.clone(), now, &usage).sparing(spared);
        for scope in [CandidateScope::Due, CandidateScope::Oldest] {
            let mut after = None;
            while scope == CandidateScope::Due || planner.over_limit() {
                let query =
                    CandidateQuery { policy: policy.clone(), now, scope, after, limit: PAGE };
                let page = self.catalog.candidates(&query).await?;
                for candidate in &page {
                    planner.consider(scope, candidate);
                }
                match page.last() {
                    Some(last) if page.len() == PAGE => after = Some(last.cursor),
                    _ => break,
                }
            }
        }
        Ok(planner.finish())
    }

    async fn execute(&self, plan: RetentionPlan) -> Result<PruneReport> {
        let mut report = PruneReport { unmet: plan.unmet, ..PruneReport::default() };
        let before = self.catalog.usage().await?.stored_bytes;
        for deletion in plan.deletions {
            match self.execute_one(&deletion).await {
                Ok(true) => report.deleted.push(deletion),
                Ok(false) => report.kept.push(deletion),
                Err(err) if err.kind() == ErrorKind::NotFound => report.deleted.push(deletion),
                Err(err) => report.failed.push((deletion, err)),
            }
        }
        report.freed_bytes = before.saturating_sub(self.catalog.usage().await?.stored_bytes);
        Ok(report)
    }

    /// `false` when the snapshot was pinned or given more time since the plan was made.
    async fn execute_one(&self, deletion: &Deletion) -> Result<bool> {
        let record = self.catalog.snapshot(deletion.id).await?;
        let now = self.environment.now();
        let may_go = |record: &SnapshotRecord| {
            let expired = record.expires.is_some_and(|expires| expires <= now);
            !record.pinned && (deletion.reason != Reason::Expired || expired)
        };
        self.delete(&record.driver, record.id, may_go).await
    }
}
