//! Sandboxes and snapshots as `--json` shows them. Fields are added, never renamed or removed.

use forkpoint_core::{
    Timestamp,
    catalog::{SandboxRecord, SnapshotRecord},
    driver::{SandboxState, SnapshotKind},
    engine::SandboxView,
    id::{SandboxId, SnapshotId},
    label::Labels,
    naming::Name,
    path::SandboxPath,
    spec::{Network, Template, Workspace},
    trigger::Trigger,
};
use serde::Serialize;

use super::human::size;

/// The environment stays out: it often holds secrets.
#[derive(Debug, Serialize)]
pub(crate) struct SandboxJson<'a> {
    id: SandboxId,
    name: Option<&'a Name>,
    state: &'static str,
    driver: &'a str,
    template: &'a Template,
    head: Option<SnapshotId>,
    labels: &'a Labels,
    created: Timestamp,
    expires: Option<Timestamp>,
    adopted: bool,
    /// What its platform calls it, where that has names of its own.
    native_name: Option<&'a str>,
    workdir: Option<&'a SandboxPath>,
    user: Option<&'a str>,
    network: Network,
    memory_bytes: Option<u64>,
    cpu_millis: Option<u32>,
    pids: Option<u32>,
    workspaces: &'a [Workspace],
}

impl<'a> SandboxJson<'a> {
    pub(crate) fn new(record: &'a SandboxRecord, state: &'static str) -> Self {
        let spec = &record.spec;
        Self {
            id: record.id,
            name: record.name.as_ref(),
            state,
            driver: &record.driver,
            template: &spec.template,
            head: record.head,
            labels: &record.labels,
            created: record.created,
            expires: record.expires,
            adopted: record.adopted.is_some(),
            native_name: native_name(record),
            workdir: spec.workdir.as_ref(),
            user: spec.user.as_deref(),
            network: spec.network,
            memory_bytes: spec.resources.memory_bytes,
            cpu_millis: spec.resources.cpu_millis,
            pids: spec.resources.pids,
            workspaces: &spec.workspaces,
        }
    }

    /// What was made a moment ago, and so runs.
    pub(crate) fn running(record: &'a SandboxRecord) -> Self {
        Self::new(record, state_name(SandboxState::Running))
    }
}

impl<'a> From<&'a SandboxView> for SandboxJson<'a> {
    fn from(view: &'a SandboxView) -> Self {
        Self::new(&view.record, state(view))
    }
}

pub(crate) fn state(view: &SandboxView) -> &'static str {
    match &view.status {
        Ok(Some(status)) => state_name(status.state),
        Ok(None) => "lost",
        Err(_) => "unknown",
    }
}

pub(crate) const fn state_name(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Running => "running",
        SandboxState::Paused => "paused",
        SandboxState::Stopped => "stopped",
    }
}

/// The name if it has one, else the id.
pub(crate) fn shown(record: &SandboxRecord) -> String {
    record.name.as_ref().map_or_else(|| record.id.to_string(), ToString::to_string)
}

/// What its platform calls it, where that has names of its own.
pub(crate) fn native_name(record: &SandboxRecord) -> Option<&str> {
    record.adopted.as_deref().or(record.spec.attachments.native_name.as_deref())
}

#[derive(Debug, Serialize)]
pub(crate) struct SnapshotJson<'a> {
    id: SnapshotId,
    name: &'a Name,
    sandbox: SandboxId,
    sandbox_name: Option<&'a Name>,
    parent: Option<SnapshotId>,
    driver: &'a str,
    template: &'a Template,
    kind: SnapshotKind,
    trigger: Trigger,
    description: Option<&'a str>,
    context: Option<&'a str>,
    run_id: Option<&'a str>,
    step: Option<u64>,
    labels: &'a Labels,
    agent_state_bytes: Option<u64>,
    /// `null` when nobody has counted yet: a large snapshot that was not synced.
    own_bytes: Option<u64>,
    total_bytes: Option<u64>,
    file_count: Option<u64>,
    created: Timestamp,
    expires: Option<Timestamp>,
    pinned: bool,
    last_restored: Option<Timestamp>,
    restore_count: u64,
    durable: bool,
    workspaces: &'a [Workspace],
}

impl<'a> From<&'a SnapshotRecord> for SnapshotJson<'a> {
    fn from(record: &'a SnapshotRecord) -> Self {
        let counted = record.artifact.counted;
        Self {
            id: record.id,
            name: &record.name,
            sandbox: record.sandbox,
            sandbox_name: record.sandbox_name.as_ref(),
            parent: record.parent,
            driver: &record.driver,
            template: &record.spec.template,
            kind: record.kind,
            trigger: record.trigger,
            description: record.description.as_deref(),
            context: record.context.as_deref(),
            run_id: record.run_id.as_deref(),
            step: record.step,
            labels: &record.labels,
            agent_state_bytes: record.agent_state_bytes,
            own_bytes: counted.then_some(record.own_bytes),
            total_bytes: counted.then_some(record.total_bytes),
            file_count: counted.then_some(record.file_count),
            created: record.created,
            expires: record.expires,
            pinned: record.pinned,
            last_restored: record.last_restored,
            restore_count: record.restore_count,
            durable: record.durable,
            workspaces: &record.spec.workspaces,
        }
    }
}

/// A size that may not have been counted yet.
pub(crate) fn counted(record: &SnapshotRecord, bytes: u64) -> String {
    match record.artifact.counted {
        true => size(bytes),
        false => "-".to_owned(),
    }
}

/// One of several that failed while others did not.
#[derive(Debug, Serialize)]
pub(crate) struct FailedJson {
    pub(crate) reference: String,
    pub(crate) error: String,
}
