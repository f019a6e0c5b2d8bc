//! What exists, what it was made from, and what was being done when we crashed.
//!
//! The catalog holds facts and intentions. Whether a sandbox is running is neither: the driver
//! knows that, and is asked.
//!
//! An open [`Operation`] is the only lock. It names its owner, and the catalog can tell whether an
//! owner is gone, because it is what all owners share.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    driver::PieceName,
    error::BoxError,
    id::{OperationId, OwnerId, SandboxId, SnapshotId},
    lineage::LineageNode,
    naming::Name,
    retention::Candidate,
};

mod change;
mod operation;
mod query;
mod record;

pub use change::{Change, Chore, ChoreId, ChoreTask};
pub use operation::{
    Claim, ClaimMode, Claimed, Existence, NewSandbox, OpenOperation, Operation, OperationKind,
    OwnerState, Power, Reclaimed, Resource,
};
pub use query::{
    CandidateQuery, CandidateScope, Cursor, DriverUsage, LineageScope, Page, SandboxQuery,
    SnapshotQuery, Usage,
};
pub use record::{SandboxRecord, SnapshotRecord};

/// Every method is one transaction. A handle is one owner: two engines need two handles.
#[async_trait]
pub trait Catalog: Debug + Send + Sync {
    /// Who we are to the others.
    fn owner(&self) -> OwnerId;

    /// Writes down what is about to be done and claims what it touches.
    ///
    /// [`CatalogError::Busy`] while another operation claims one of these; `SandboxMissing`,
    /// `SnapshotMissing`, `NameTaken` or `AlreadyKnown` where the operation has no object.
    async fn begin(&self, operation: &Operation) -> CatalogResult<Claim>;

    /// Makes the result visible, closes the operation, and answers with the clean-up that the
    /// change leaves. Nothing else makes anything visible.
    ///
    /// [`CatalogError::ClaimLost`] when somebody reclaimed the operation meanwhile;
    /// [`CatalogError::PieceUnknown`] for an artifact that lies over what may be gone.
    async fn commit(&self, claim: &Claim, change: &Change) -> CatalogResult<Vec<Chore>>;

    /// Closes the operation as if it had never begun.
    async fn abort(&self, claim: &Claim) -> CatalogResult<()>;

    /// Operations neither committed nor aborted, oldest first.
    async fn unfinished(&self) -> CatalogResult<Vec<OpenOperation>>;

    /// Takes over an open operation, so that no other holder of it, and no commit of it that is
    /// still on its way, can have an effect.
    async fn reclaim(&self, claim: &Claim) -> CatalogResult<Reclaimed>;

    /// Clean-up that a commit left to be done, oldest first.
    async fn chores(&self) -> CatalogResult<Vec<Chore>>;

    /// Strikes a chore off. Succeeds if it is gone.
    async fn chore_done(&self, id: ChoreId) -> CatalogResult<()>;

    async fn sandbox(&self, id: SandboxId) -> CatalogResult<SandboxRecord>;

    /// Resolves an id, a name given under `driver`, or an unambiguous prefix of an id.
    async fn find_sandbox(&self, driver: &str, reference: &str) -> CatalogResult<SandboxRecord>;

    /// Resolves a sandbox that may be gone, by what its snapshots say of it; the latest wins.
    async fn find_former_sandbox(
        &self,
        driver: &str,
        reference: &str,
    ) -> CatalogResult<Option<SandboxId>>;

    /// In order of creation.
    async fn sandboxes(&self, query: &SandboxQuery) -> CatalogResult<Page<SandboxRecord>>;

    async fn snapshot(&self, id: SnapshotId) -> CatalogResult<SnapshotRecord>;

    /// Resolves an id, a name, or an unambiguous prefix of an id.
    async fn find_snapshot(&self, reference: &str) -> CatalogResult<SnapshotRecord>;

    /// Newest first.
    async fn snapshots(&self, query: &SnapshotQuery) -> CatalogResult<Page<SnapshotRecord>>;

    /// The opaque state that an agent left with a snapshot.
    async fn agent_state(&self, id: SnapshotId) -> CatalogResult<Option<Bytes>>;

    /// Lineage, oldest first, with the deleted snapshots that something still hangs on.
    async fn lineage(&self, scope: &LineageScope) -> CatalogResult<Vec<LineageNode>>;

    async fn usage(&self) -> CatalogResult<Usage>;

    /// What retention may have to look at, oldest first, at most `limit` after `after`.
    async fn candidates(&self, query: &CandidateQuery) -> CatalogResult<Vec<Candidate>>;

    /// Every piece that an artifact or a sandbox of `driver` needs.
    async fn pieces(&self, driver: &str) -> CatalogResult<Vec<PieceName>>;
}

pub type CatalogResult<T> = Result<T, CatalogError>;

#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    #[error("no sandbox matches `{reference}`")]
    SandboxMissing { reference: String },

    #[error("no snapshot matches `{reference}`")]
    SnapshotMissing { reference: String },

    #[error("`{reference}` could be {}: give more of it", list(matches))]
    Ambiguous { reference: String, matches: Vec<String> },

    #[error("{resource} is busy: {by}")]
    Busy { resource: Resource, by: Box<OpenOperation> },

    #[error("the name `{name}` is taken by `{by}`")]
    NameTaken { name: Name, by: String },

    #[error("`{id}` is in the catalog already")]
    AlreadyKnown { id: String },

    #[error("piece `{piece}` lies over something that the catalog does not know")]
    PieceUnknown { piece: PieceName },

    #[error("operation `{id}` was taken over or closed by another process")]
    ClaimLost { id: OperationId },

    #[error(
        "the catalog `{place}` was written by a newer version (format {found}, this one reads up to {known})"
    )]
    TooNew { place: String, found: u64, known: u64 },

    #[error("`{place}` is not a catalog of ours")]
    Foreign { place: String },

    #[error("the catalog `{place}` is damaged: {reason}")]
    Damaged { place: String, reason: String },

    #[error("the catalog failed to {operation}")]
    Database {
        operation: &'static str,
        #[source]
        source: BoxError,
    },
}

impl CatalogError {
    /// Whether the catalog said no. Otherwise what was asked for may have happened all the same.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        !matches!(self, Self::Database { .. } | Self::Damaged { .. })
    }

    /// Whether another name would do.
    #[must_use]
    pub fn is_about_a_name(&self) -> bool {
        match self {
            Self::NameTaken { .. } => true,
            Self::Busy { resource, .. } => {
                matches!(resource, Resource::SandboxName { .. } | Resource::SnapshotName(_))
            }
            _ => false,
        }
    }

    pub(crate) fn into_source(self) -> Option<BoxError> {
        match self {
            Self::Database { source, .. } => Some(source),
            _ => None,
        }
    }
}

fn list(matches: &[String]) -> String {
    matches.iter().map(|each| format!("`{each}`")).collect::<Vec<_>>().join(" or ")
}
