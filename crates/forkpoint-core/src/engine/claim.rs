//! Snapshots that others kept on a platform, taken over as they are.

use jiff::Timestamp;

use super::{Active, Engine, Inner, Wait};
use crate::{
    catalog::{CatalogError, Change, LineageScope, OperationKind, SnapshotRecord},
    driver::{Claimed, Driver, NativeState},
    error::{Context as _, Error, Result},
    id::SnapshotId,
    label::Labels,
    naming::Name,
    trigger::Trigger,
};

#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub driver: String,
    pub what: NativeState,
    /// Follows from what the others call it: claiming twice is claiming once.
    pub id: SnapshotId,
    /// Made free if another has it.
    pub name: Name,
    /// The name of the sandbox that it was taken of.
    pub sandbox_name: Option<Name>,
    pub parent: Option<SnapshotId>,
    pub trigger: Trigger,
    pub description: Option<String>,
    pub context: Option<String>,
    pub run_id: Option<String>,
    pub labels: Labels,
    pub created: Timestamp,
    pub restore_count: u64,
    pub wait: Wait,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    Claimed(Box<SnapshotRecord>),
    /// It is in the catalog.
    Known(Box<SnapshotRecord>),
    /// It was, and something still hangs on it.
    Deleted,
}

impl Engine {
    /// Makes a snapshot of a state that the platform has and others made. It stays theirs: deleting
    /// the snapshot leaves what they have.
    pub async fn claim(&self, request: ClaimRequest) -> Result<ClaimOutcome> {
        let wait = request.wait;
        self.operate(wait, move |inner| {
            let request = request.clone();
            async move { inner.claim(&request).await }
        })
        .await
    }
}

impl Inner {
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimOutcome> {
        let driver = self.driver(&request.driver)?;
        let doing = || format!("failed to take over `{}`", request.what.name);
        if let Some(known) = self.known_claim(request.id).await.context(doing)? {
            return Ok(known);
        }
        let parent = match request.parent {
            Some(parent) => self.catalog.snapshot(parent).await.ok().map(|parent| parent.id),
            None => None,
        };
        let (active, name) = match self.begin_claim(driver.as_ref(), request).await {
            // Another process took it over a moment ago.
            Err(CatalogError::AlreadyKnown { .. }) => {
                let record = self.catalog.snapshot(request.id).await?;
                return Ok(ClaimOutcome::Known(Box::new(record)));
            }
            begun => begun.context(doing)?,
        };
        let claimed = driver.claim(request.id, &request.what).await;
        let work = claimed.map_err(Error::from).map(|claimed| {
            let snapshot = Box::new(record(request, driver.name(), name, parent, claimed));
            (Change::SnapshotImported { snapshot: snapshot.clone() }, snapshot)
        });
        match self.conclude(active, work).await.context(doing)? {
            Some(record) => {
                for notice in driver.notices(record.sandbox) {
                    self.config.notices.tell(&format!("snapshot `{}`: {notice}", record.name));
                }
                Ok(ClaimOutcome::Claimed(record))
            }
            None => Ok(ClaimOutcome::Known(Box::new(self.catalog.snapshot(request.id).await?))),
        }
    }

    async fn known_claim(&self, id: SnapshotId) -> Result<Option<ClaimOutcome>> {
        match self.catalog.snapshot(id).await {
            Err(CatalogError::SnapshotMissing { .. }) => {}
            known => return Ok(Some(ClaimOutcome::Known(Box::new(known?)))),
        }
        let line = self.catalog.lineage(&LineageScope::Ancestors(id)).await?;
        let deleted = line.iter().any(|node| node.id == id && node.deleted);
        Ok(deleted.then_some(ClaimOutcome::Deleted))
    }

    async fn begin_claim(
        &self,
        driver: &dyn Driver,
        request: &ClaimRequest,
    ) -> Result<(Active, Name), CatalogError> {
        let begin = async |name: Name| {
            let kind = OperationKind::Import { snapshot: request.id, name: name.clone() };
            self.begin(driver.name(), kind).await.map(|active| (active, name))
        };
        match begin(request.name.clone()).await {
            Err(err) if err.is_about_a_name() => begin(request.name.made_unique(request.id)).await,
            begun => begun,
        }
    }
}

fn record(
    request: &ClaimRequest,
    driver: &str,
    name: Name,
    parent: Option<SnapshotId>,
    claimed: Claimed,
) -> SnapshotRecord {
    let Claimed { artifact, sandbox, spec } = claimed;
    SnapshotRecord {
        id: artifact.snapshot,
        name,
        sandbox,
        sandbox_name: request.sandbox_name.clone(),
        parent,
        driver: driver.to_owned(),
        kind: artifact.kind,
        trigger: request.trigger,
        description: request.description.clone(),
        context: request.context.clone(),
        run_id: request.run_id.clone(),
        step: None,
        labels: request.labels.clone(),
        agent_state_bytes: None,
        spec,
        own_bytes: artifact.own_bytes,
        total_bytes: artifact.total_bytes,
        file_count: artifact.file_count,
        created: request.created,
        expires: None,
        pinned: false,
        last_restored: None,
        restore_count: request.restore_count,
        durable: artifact.durable,
        artifact,
    }
}
