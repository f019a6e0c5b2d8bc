//! What is stored of a sandbox and of a snapshot.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    driver::{Artifact, SnapshotKind},
    id::{SandboxId, SnapshotId},
    label::Labels,
    naming::Name,
    spec::SandboxSpec,
    trigger::Trigger,
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRecord {
    pub id: SandboxId,
    pub name: Option<Name>,
    pub driver: String,
    pub spec: SandboxSpec,
    pub labels: Labels,
    /// The platform's name of a sandbox that we did not make, and so never destroy.
    pub adopted: Option<String>,
    /// Where it stands in the lineage: the parent of its next snapshot.
    pub head: Option<SnapshotId>,
    pub created: Timestamp,
    /// When its time is over; then [`Engine::expire`](crate::Engine::expire) destroys it.
    #[serde(default)]
    pub expires: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    pub id: SnapshotId,
    pub name: Name,
    pub sandbox: SandboxId,
    /// The sandbox's name when it was taken; the sandbox may be gone.
    pub sandbox_name: Option<Name>,
    pub parent: Option<SnapshotId>,
    pub driver: String,
    pub kind: SnapshotKind,
    pub trigger: Trigger,
    pub description: Option<String>,
    pub context: Option<String>,
    pub run_id: Option<String>,
    pub step: Option<u64>,
    pub labels: Labels,
    pub agent_state_bytes: Option<u64>,
    /// What the sandbox was asked to be, with its template: a copy is made from this.
    pub spec: SandboxSpec,
    /// What only this snapshot occupies.
    pub own_bytes: u64,
    pub total_bytes: u64,
    pub file_count: u64,
    pub created: Timestamp,
    pub expires: Option<Timestamp>,
    pub pinned: bool,
    pub last_restored: Option<Timestamp>,
    pub restore_count: u64,
    /// Survives a power cut, not just the end of our processes.
    pub durable: bool,
    pub artifact: Artifact,
}
