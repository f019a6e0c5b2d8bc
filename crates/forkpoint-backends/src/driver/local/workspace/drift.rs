//! What the host changed in a workspace behind a sandbox's back.

use std::time::Duration;

use forkpoint_core::{
    Timestamp,
    driver::{Drift, DriverResult, Finding, Severity},
    error::Chain,
    spec::SandboxSpec,
};
use rustix::time::{ClockId, clock_gettime};

use super::live;
use crate::{
    driver::local::host::{Host, layer_error},
    layer::{Moment, changed_since},
};

/// How long anybody waits for the answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// How far the clock that files are dated with may lag behind the one that snapshots are.
const TICK: Duration = Duration::from_millis(10);

const EXAMPLES: usize = 5;

impl Host {
    /// Only workspaces of which something changed.
    pub(in super::super) fn drift(
        &self,
        spec: &SandboxSpec,
        since: Timestamp,
    ) -> DriverResult<Vec<Drift>> {
        let since = Moment::from(since.checked_sub(TICK).unwrap_or(since));
        let start = clock_gettime(ClockId::Monotonic);
        let in_time = || {
            let now = clock_gettime(ClockId::Monotonic);
            let passed = now - start;
            Duration::try_from(passed).is_ok_and(|passed| passed < PATIENCE)
        };
        let mut drifts = Vec::new();
        for workspace in live(&spec.workspaces) {
            let (source, at) = (workspace.source.clone(), workspace.at.clone());
            let mut drift = Drift { source, at, changed: 0, examples: Vec::new(), complete: false };
            let found = |path: &dyn Fn() -> std::path::PathBuf| {
                drift.changed += 1;
                if drift.examples.len() < EXAMPLES {
                    drift.examples.push(path());
                }
            };
            drift.complete = changed_since(workspace.source.as_path(), since, in_time, found)
                .map_err(layer_error("look at a workspace"))?;
            drifts.extend(Some(drift).filter(|drift| drift.changed > 0));
        }
        Ok(drifts)
    }
}

/// A sandbox's own view, for whoever is about to take a snapshot of it.
impl Host {
    pub(in super::super) fn workspace_findings(&self, spec: &SandboxSpec) -> Vec<Finding> {
        let mut findings = Vec::new();
        for workspace in live(&spec.workspaces) {
            let kept = format!(
                "of workspace `{}`, what the host has and the sandbox did not change: it is seen as it \
                 is at that moment",
                workspace.source
            );
            findings.push(Finding { severity: Severity::LeftOut, message: kept });
            let spec = SandboxSpec { workspaces: vec![workspace.clone()], ..spec.clone() };
            let told = match self.drift(&spec, workspace.since) {
                Ok(drifts) => drifts.iter().map(ToString::to_string).collect(),
                Err(err) => vec![format!("workspace `{}`: {}", workspace.source, Chain(&err))],
            };
            let note = |message| Finding { severity: Severity::Note, message };
            findings.extend(told.into_iter().map(note));
        }
        findings
    }
}
