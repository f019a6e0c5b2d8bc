//! Intentions, and who holds what because of them.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    id::{OperationId, OwnerId, SandboxId, SnapshotId},
    naming::Name,
};

/// An intention, with all that is needed to finish or undo it after a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    pub id: OperationId,
    pub driver: String,
    pub kind: OperationKind,
    pub started: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    Create { sandbox: NewSandbox },
    Adopt { sandbox: NewSandbox },
    Snapshot { sandbox: SandboxId, snapshot: SnapshotId, name: Name },
    Fork { snapshot: SnapshotId, children: Vec<NewSandbox> },
    Rollback { sandbox: SandboxId, to: SnapshotId },
    Switch { sandbox: SandboxId, to: Power },
    Destroy { sandbox: SandboxId, adopted: bool },
    Delete { snapshot: SnapshotId },
    Edit { snapshot: SnapshotId, new_name: Option<Name> },
    Import { snapshot: SnapshotId, name: Name },
}

/// What somebody wants of a sandbox's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Power {
    Stop,
    Start,
    Pause,
    Resume,
}

impl Power {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Start => "start",
            Self::Pause => "pause",
            Self::Resume => "resume",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSandbox {
    pub id: SandboxId,
    pub name: Option<Name>,
}

impl Operation {
    /// What it claims from `begin` until it is closed.
    #[must_use]
    pub fn claims(&self) -> Vec<Claimed> {
        match &self.kind {
            OperationKind::Create { sandbox } | OperationKind::Adopt { sandbox } => {
                self.new_sandbox(sandbox)
            }
            OperationKind::Snapshot { sandbox, snapshot, name } => vec![
                Claimed::existing(Resource::Sandbox(*sandbox)),
                Claimed::new(Resource::Snapshot(*snapshot)),
                Claimed::new(Resource::SnapshotName(name.clone())),
            ],
            OperationKind::Fork { snapshot, children } => {
                let mut claims = vec![Claimed::shared(Resource::Snapshot(*snapshot))];
                claims.extend(children.iter().flat_map(|child| self.new_sandbox(child)));
                claims
            }
            OperationKind::Rollback { sandbox, to } => vec![
                Claimed::existing(Resource::Sandbox(*sandbox)),
                Claimed::shared(Resource::Snapshot(*to)),
            ],
            OperationKind::Switch { sandbox, .. } | OperationKind::Destroy { sandbox, .. } => {
                vec![Claimed::existing(Resource::Sandbox(*sandbox))]
            }
            OperationKind::Delete { snapshot } => {
                vec![Claimed::existing(Resource::Snapshot(*snapshot))]
            }
            OperationKind::Import { snapshot, name } => vec![
                Claimed::new(Resource::Snapshot(*snapshot)),
                Claimed::new(Resource::SnapshotName(name.clone())),
            ],
            OperationKind::Edit { snapshot, new_name } => {
                let mut claims = vec![Claimed::existing(Resource::Snapshot(*snapshot))];
                let name = new_name.clone().map(Resource::SnapshotName).map(Claimed::new);
                claims.extend(name);
                claims
            }
        }
    }

    fn new_sandbox(&self, sandbox: &NewSandbox) -> Vec<Claimed> {
        let name = sandbox
            .name
            .clone()
            .map(|name| Claimed::new(Resource::SandboxName { driver: self.driver.clone(), name }));
        [Claimed::new(Resource::Sandbox(sandbox.id))].into_iter().chain(name).collect()
    }
}

impl OperationKind {
    /// What recovery makes of it when it was left open.
    #[must_use]
    pub const fn when_left_open(&self) -> &'static str {
        match self {
            Self::Destroy { .. } => "finished",
            // The driver is asked whether the sandbox went back.
            Self::Rollback { .. } => "finished or undone",
            // Done or not: whether the sandbox runs is for its driver to say.
            Self::Switch { .. } => "closed",
            _ => "undone",
        }
    }

    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Adopt { .. } => "adopt",
            Self::Snapshot { .. } => "snapshot",
            Self::Fork { .. } => "fork",
            Self::Rollback { .. } => "rollback",
            Self::Switch { to, .. } => to.as_str(),
            Self::Destroy { .. } => "destroy",
            Self::Delete { .. } => "delete",
            Self::Edit { .. } => "edit",
            Self::Import { .. } => "import",
        }
    }
}

/// One thing that an operation claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    pub resource: Resource,
    pub mode: ClaimMode,
    pub existence: Existence,
}

impl Claimed {
    fn existing(resource: Resource) -> Self {
        Self { resource, mode: ClaimMode::Exclusive, existence: Existence::Required }
    }

    fn shared(resource: Resource) -> Self {
        Self { resource, mode: ClaimMode::Shared, existence: Existence::Required }
    }

    fn new(resource: Resource) -> Self {
        Self { resource, mode: ClaimMode::Exclusive, existence: Existence::Forbidden }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimMode {
    /// Any number of operations read it at once.
    Shared,
    Exclusive,
}

/// Whether the claimed thing must be in the catalog when the operation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existence {
    Required,
    Forbidden,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    Sandbox(SandboxId),
    SandboxName { driver: String, name: Name },
    Snapshot(SnapshotId),
    SnapshotName(Name),
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sandbox(id) => write!(f, "sandbox `{id}`"),
            Self::SandboxName { driver, name } => write!(f, "sandbox name `{driver}:{name}`"),
            Self::Snapshot(id) => write!(f, "snapshot `{id}`"),
            Self::SnapshotName(name) => write!(f, "snapshot name `{name}`"),
        }
    }
}

/// The right to close an operation. `attempt` grows with each reclaim, and an older one is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub operation: OperationId,
    pub attempt: u32,
}

impl Claim {
    /// What `begin` gives.
    #[must_use]
    pub const fn first(operation: OperationId) -> Self {
        Self { operation, attempt: 1 }
    }
}

/// An operation that is neither committed nor aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOperation {
    pub operation: Operation,
    pub claim: Claim,
    pub owner: OwnerId,
    pub owner_state: OwnerState,
}

impl fmt::Display for OpenOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { id, kind, started, .. } = &self.operation;
        write!(f, "{} `{id}` holds it since {started:.0}", kind.as_str())?;
        match self.owner_state {
            OwnerState::Us | OwnerState::Alive => Ok(()),
            OwnerState::Gone => write!(f, ", left by a process that is gone"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// This handle began or reclaimed it.
    Us,
    Alive,
    /// It will never close the operation.
    Gone,
}

/// What became of an operation that somebody wants to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimed {
    /// It is ours to finish or undo, with this claim.
    Ours(Claim),
    /// Its result is visible already.
    Committed,
    /// Somebody else has closed it or is about to, or it never began.
    Lost,
}
