//! Directories of the host that sandboxes see.

use super::{Engine, Subject};
use crate::{
    catalog::SnapshotRecord,
    driver::{ApplyReport, ApplyRequest, Drift},
    error::{Context as _, Result},
};

impl Engine {
    /// What changed on the host, since a snapshot was taken, in what a copy of it sees as it is now.
    pub async fn drift(&self, snapshot: &SnapshotRecord) -> Result<Vec<Drift>> {
        let driver = self.inner.driver(&snapshot.driver)?;
        let drifts = driver.drift(&snapshot.spec, snapshot.created).await;
        drifts.context(|| format!("failed to look at the workspace of `{}`", snapshot.name))
    }

    /// Brings home what a sandbox changed in its workspace, or had changed when a snapshot was taken.
    pub async fn apply(&self, of: &Subject, request: &ApplyRequest) -> Result<ApplyReport> {
        let driver = self.inner.driver(of.driver())?;
        let report = driver.apply(&of.state(), request).await;
        report.context(|| format!("failed to apply {}", of.title()))
    }
}
