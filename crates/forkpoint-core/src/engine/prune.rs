//! Retention: the plan, and carrying it out.

use super::{Engine, Inner, Wait};
use crate::{
    catalog::{CandidateQuery, CandidateScope},
    error::{Error, ErrorKind, Result},
    id::SnapshotId,
    retention::{Deletion, RetentionPlan, RetentionPlanner, RetentionPolicy, UnmetLimit},
};

const PAGE: usize = 500;

/// What became of a plan.
#[derive(Debug, Default)]
pub struct PruneReport {
    pub deleted: Vec<Deletion>,
    /// Those that could not be deleted, each with its reason; a snapshot in use is one of them.
    pub failed: Vec<(Deletion, Error)>,
    pub unmet: Vec<UnmetLimit>,
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
            async move { Ok(inner.execute(plan).await) }
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
        Ok(self.execute(plan).await)
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

    async fn execute(&self, plan: RetentionPlan) -> PruneReport {
        let mut report = PruneReport { unmet: plan.unmet, ..PruneReport::default() };
        for deletion in plan.deletions {
            let deleted = match self.catalog.snapshot(deletion.id).await {
                Ok(record) => self.delete(&record.driver, record.id).await,
                Err(err) => Err(err.into()),
            };
            match deleted {
                Err(err) if err.kind() != ErrorKind::NotFound => {
                    report.failed.push((deletion, err));
                }
                _ => {
                    report.freed_bytes = report.freed_bytes.saturating_add(deletion.own_bytes);
                    report.deleted.push(deletion);
                }
            }
        }
        report
    }
}
