//! The reads behind `ps`, `list`, `show`, `log`, `stats` and `validate`.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use serde::Serialize;

use super::{Engine, Inner};
use crate::{
    catalog::{
        CatalogError, LineageScope, Page, Resource, SandboxQuery, SandboxRecord, SnapshotQuery,
        SnapshotRecord, Usage,
    },
    driver::{Finding, KeptProcess, Sandbox, SandboxStatus, SandboxUsage, SnapshotKind},
    error::{Context as _, Error, Result},
    id::{SandboxId, SnapshotId},
    lineage::{self, LineageNode, LineageRow},
};

/// A sandbox, and what its driver says of it now.
#[derive(Debug)]
pub struct SandboxView {
    pub record: SandboxRecord,
    /// `None` when the platform has lost it; an error when the driver cannot tell.
    pub status: Result<Option<SandboxStatus>>,
}

#[derive(Debug)]
pub struct SnapshotView {
    pub record: SnapshotRecord,
    /// From the nearest ancestor to the root.
    pub ancestors: Vec<LineageNode>,
    pub children: Vec<SnapshotId>,
    /// Of a full one; an error when the driver cannot tell.
    pub processes: Result<Vec<KeptProcess>>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    pub usage: Usage,
    /// Operations that are under way or wait for recovery.
    pub open_operations: usize,
    pub waiting_chores: usize,
}

/// Whether a sandbox can be snapshotted, and what the snapshot would leave out.
#[derive(Clone, Debug, Serialize)]
pub struct Validation {
    pub sandbox: SandboxRecord,
    pub status: Option<SandboxStatus>,
    pub findings: Vec<Finding>,
}

impl Engine {
    pub async fn list(&self, query: &SnapshotQuery) -> Result<Page<SnapshotRecord>> {
        Ok(self.inner.catalog.snapshots(query).await?)
    }

    /// The query for a sandbox that may be gone already.
    pub async fn list_of(
        &self,
        sandbox: &str,
        query: SnapshotQuery,
    ) -> Result<Page<SnapshotRecord>> {
        let sandbox = Some(self.inner.find_sandbox_id(sandbox).await?);
        self.list(&SnapshotQuery { sandbox, ..query }).await
    }

    pub async fn show(&self, snapshot: &str) -> Result<SnapshotView> {
        let record = self.inner.find_snapshot(snapshot).await?;
        let catalog = &self.inner.catalog;
        let mut ancestors = catalog.lineage(&LineageScope::Ancestors(record.id)).await?;
        ancestors.retain(|node| node.id != record.id);
        ancestors.reverse();
        let children = catalog.lineage(&LineageScope::Children(record.id)).await?;
        let children = children.into_iter().map(|node| node.id).collect();
        let processes = match record.kind {
            SnapshotKind::Files => Ok(Vec::new()),
            SnapshotKind::Full => match self.inner.driver(&record.driver) {
                Ok(driver) => driver.processes(&record.artifact).await.map_err(Error::from),
                Err(err) => Err(err),
            },
        };
        Ok(SnapshotView { record, ancestors, children, processes })
    }

    pub async fn agent_state(&self, snapshot: &str) -> Result<Option<Bytes>> {
        let record = self.inner.find_snapshot(snapshot).await?;
        Ok(self.inner.catalog.agent_state(record.id).await?)
    }

    /// The lineage as rows of a tree: of everything, or of what a sandbox stands in.
    pub async fn log(&self, sandbox: Option<&str>) -> Result<Vec<LineageRow>> {
        let scope = match sandbox {
            None => LineageScope::Everything,
            Some(sandbox) => match self.inner.stand(sandbox).await? {
                Some(stand) => LineageScope::Tree(stand),
                None => return Ok(Vec::new()),
            },
        };
        Ok(lineage::rows(self.inner.catalog.lineage(&scope).await?))
    }

    pub async fn sandboxes(&self, query: &SandboxQuery) -> Result<Page<SandboxView>> {
        let page = self.inner.catalog.sandboxes(query).await?;
        let mut items = Vec::with_capacity(page.items.len());
        for record in page.items {
            let status = self.inner.status(&record).await;
            items.push(SandboxView { record, status });
        }
        Ok(Page { items, next: page.next })
    }

    pub async fn sandbox(&self, reference: &str) -> Result<SandboxView> {
        let record = self.inner.find_sandbox(reference).await?;
        let status = self.inner.status(&record).await;
        Ok(SandboxView { record, status })
    }

    /// What a sandbox uses now.
    pub async fn usage(&self, reference: &str) -> Result<SandboxUsage> {
        let record = self.inner.find_sandbox(reference).await?;
        let driver = self.inner.driver(&record.driver)?;
        driver.usage(record.id).await.context(|| format!("failed to look at sandbox `{reference}`"))
    }

    /// A handle for commands and files. No operation: several may hold one at once.
    pub async fn attach(&self, reference: &str) -> Result<Arc<dyn Sandbox>> {
        let record = self.inner.find_sandbox(reference).await?;
        let driver = self.inner.driver(&record.driver)?;
        driver.attach(record.id).await.context(|| format!("failed to reach sandbox `{reference}`"))
    }

    pub async fn stats(&self) -> Result<Stats> {
        let catalog = &self.inner.catalog;
        Ok(Stats {
            usage: catalog.usage().await?,
            open_operations: catalog.unfinished().await?.len(),
            waiting_chores: catalog.chores().await?.len(),
        })
    }

    /// Sandboxes of ours that a platform has, and that nobody here knows or is at work on: what a
    /// power cut or a lost catalog leaves. Told, never destroyed: another catalog may know them.
    pub async fn strays(&self) -> Result<Vec<(&'static str, SandboxId)>> {
        let mut strays = Vec::new();
        for (name, driver) in &self.inner.drivers {
            let there = driver.list().await.context(|| format!("failed to ask driver `{name}`"))?;
            strays.extend(there.into_iter().map(|id| (*name, id)));
        }
        // Asked after the platforms: what is made meanwhile is not in their answer.
        let open = self.inner.catalog.unfinished().await?;
        let claimed: BTreeSet<Resource> = open
            .iter()
            .flat_map(|open| open.operation.claims())
            .map(|claimed| claimed.resource)
            .collect();
        let mut unknown = Vec::new();
        for (name, id) in strays {
            let known = match self.inner.catalog.sandbox(id).await {
                Err(CatalogError::SandboxMissing { .. }) => false,
                found => found.map(|_| true)?,
            };
            if !known && !claimed.contains(&Resource::Sandbox(id)) {
                unknown.push((name, id));
            }
        }
        Ok(unknown)
    }

    pub async fn validate(&self, sandbox: &str, kind: SnapshotKind) -> Result<Validation> {
        let record = self.inner.find_sandbox(sandbox).await?;
        let driver = self.inner.driver(&record.driver)?;
        let doing = || format!("failed to look at sandbox `{sandbox}`");
        let status = driver.status(record.id).await.context(doing)?;
        let findings = driver.validate(record.id, kind).await.context(doing)?;
        Ok(Validation { sandbox: record, status, findings })
    }
}

impl Inner {
    async fn status(&self, record: &SandboxRecord) -> Result<Option<SandboxStatus>> {
        Ok(self.driver(&record.driver)?.status(record.id).await?)
    }

    /// Where a sandbox stands, or for one that is gone, its last snapshot.
    async fn stand(&self, reference: &str) -> Result<Option<SnapshotId>> {
        let id = self.find_sandbox_id(reference).await?;
        if let Ok(record) = self.catalog.sandbox(id).await {
            return Ok(record.head);
        }
        let query = SnapshotQuery { sandbox: Some(id), limit: Some(1), ..SnapshotQuery::default() };
        Ok(self.catalog.snapshots(&query).await?.items.first().map(|newest| newest.id))
    }
}
