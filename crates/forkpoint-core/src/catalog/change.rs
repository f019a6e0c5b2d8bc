//! The results of operations, and the clean-up that they leave.

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::record::{SandboxRecord, SnapshotRecord};
use crate::{
    driver::Piece,
    id::{SandboxId, SnapshotId},
};

/// The result of an operation, as it becomes visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Created, adopted, restored or forked.
    SandboxesAdded {
        sandboxes: Vec<SandboxRecord>,
        /// The snapshot that they come from counts this as one more restore.
        from: Option<SnapshotId>,
        /// What could not be undone yet: becomes chores.
        leftovers: Vec<SandboxId>,
        at: Timestamp,
    },
    /// The sandbox now stands on it, and holds its pieces.
    SnapshotTaken { snapshot: Box<SnapshotRecord>, agent_state: Option<Bytes> },
    /// It came from elsewhere: no sandbox stands on it.
    SnapshotImported { snapshot: Box<SnapshotRecord> },
    /// Name, description, labels, expiry and pin are as in this record; nothing else changes.
    SnapshotEdited { snapshot: Box<SnapshotRecord> },
    /// Pieces that nobody needs now become chores. The lineage remembers it while something hangs
    /// on it.
    SnapshotDeleted { snapshot: SnapshotId },
    /// The sandbox stands on `to`, and holds its pieces.
    RolledBack { sandbox: SandboxId, to: SnapshotId, at: Timestamp },
    /// Stopped, started, paused or resumed: nothing that the catalog keeps.
    Switched,
    /// Pieces that nobody needs now become chores.
    SandboxRemoved { sandbox: SandboxId },
}

impl Change {
    /// Whether it promises to survive a power cut from the moment it is committed. A commit that
    /// leaves chores must as well: what they name is destroyed for good right after.
    #[must_use]
    pub fn must_be_durable(&self) -> bool {
        match self {
            Self::SnapshotTaken { snapshot, .. } | Self::SnapshotImported { snapshot } => {
                snapshot.durable
            }
            _ => false,
        }
    }
}

/// Clean-up that is due once a change is visible. Doing one twice does no harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chore {
    pub id: ChoreId,
    pub driver: String,
    pub task: ChoreTask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChoreId(pub u64);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChoreTask {
    Destroy(SandboxId),
    Discard(Piece),
}
