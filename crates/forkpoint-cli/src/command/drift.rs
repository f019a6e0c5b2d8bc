//! Telling that a workspace is no longer what it was when a snapshot was taken.

use forkpoint_core::{
    catalog::SnapshotRecord,
    driver::Drift,
    id::SnapshotId,
    path::{HostPath, SandboxPath},
    spec::WorkspaceMode,
};
use serde::Serialize;

use crate::app::App;

#[derive(Debug, Serialize)]
pub(super) struct DriftJson {
    source: HostPath,
    at: SandboxPath,
    changed: u64,
    examples: Vec<String>,
    complete: bool,
}

impl From<&Drift> for DriftJson {
    fn from(drift: &Drift) -> Self {
        Self {
            source: drift.source.clone(),
            at: drift.at.clone(),
            changed: drift.changed,
            examples: drift.examples.iter().map(|path| path.display().to_string()).collect(),
            complete: drift.complete,
        }
    }
}

/// What `tell` tells, of a snapshot that is known by its id alone.
pub(super) async fn tell_of(app: &App, snapshot: SnapshotId) -> Vec<DriftJson> {
    match app.engine.show(&snapshot.to_string()).await {
        Ok(view) => tell(app, &view.record).await,
        // It was deleted a moment ago.
        Err(_) => Vec::new(),
    }
}

/// Warns on stderr, and answers with what `--json` shows. That nobody could look is no failure of what
/// was done.
pub(super) async fn tell(app: &App, snapshot: &SnapshotRecord) -> Vec<DriftJson> {
    if snapshot.spec.workspaces.iter().all(|each| each.mode == WorkspaceMode::Copy) {
        return Vec::new();
    }
    match app.engine.drift(snapshot).await {
        Ok(drifts) => {
            for drift in drifts.iter().filter(|_| !app.out.json) {
                app.out.warn(format!(
                    "{drift}; files that the sandbox had not changed are seen as they are now"
                ));
            }
            drifts.iter().map(DriftJson::from).collect()
        }
        Err(err) => {
            app.out.warn(err.chain());
            Vec::new()
        }
    }
}
