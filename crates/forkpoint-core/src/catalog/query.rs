//! What can be asked of a catalog, and what it answers.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    driver::SnapshotKind,
    error::Error,
    id::{SandboxId, SnapshotId},
    label::Labels,
    retention::RetentionPolicy,
    trigger::Trigger,
};

/// A place in a list: the order in which things were committed. Opaque to callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cursor(pub u64);

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.parse().map(Self).map_err(|_| {
            Error::invalid(format!("`{text}` is not a cursor: take one that a list gave"))
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Where the next page begins; `None` on the last.
    pub next: Option<Cursor>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxQuery {
    pub driver: Option<String>,
    pub labels: Labels,
    /// Only those whose time is over at this moment.
    pub expired: Option<Timestamp>,
    pub limit: Option<usize>,
    pub after: Option<Cursor>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotQuery {
    pub sandbox: Option<SandboxId>,
    pub driver: Option<String>,
    pub trigger: Option<Trigger>,
    pub kind: Option<SnapshotKind>,
    pub run_id: Option<String>,
    pub labels: Labels,
    pub limit: Option<usize>,
    pub after: Option<Cursor>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineageScope {
    Everything,
    /// The snapshot and what it came from.
    Ancestors(SnapshotId),
    /// The snapshot's whole tree.
    Tree(SnapshotId),
    /// The snapshots that came from it directly.
    Children(SnapshotId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateQuery {
    pub policy: RetentionPolicy,
    pub now: Timestamp,
    pub scope: CandidateScope,
    pub after: Option<Cursor>,
    pub limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateScope {
    /// At least all that expiry, age, the count in a sandbox or keep-last could choose.
    Due,
    /// All that are not pinned: a total is exceeded, and the oldest go first.
    Oldest,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub sandboxes: u64,
    pub snapshots: u64,
    pub pinned: u64,
    /// Sum of what each snapshot added to what it grew from.
    pub own_bytes: u64,
    /// What all pieces occupy, also those of deleted snapshots that something still needs.
    pub stored_bytes: u64,
    /// Sum of what each would occupy if it shared nothing.
    pub total_bytes: u64,
    pub oldest: Option<Timestamp>,
    pub newest: Option<Timestamp>,
    /// In order of name.
    pub drivers: Vec<DriverUsage>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DriverUsage {
    pub driver: String,
    pub snapshots: u64,
    pub own_bytes: u64,
}
