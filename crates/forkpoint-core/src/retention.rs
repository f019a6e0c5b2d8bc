//! Which snapshots may go.
//!
//! A plan is computed by a pure function from facts that the catalog gives, can be shown, and is
//! then carried out. The rules, in order:
//!
//! 1. A pinned snapshot stays.
//! 2. An expired one goes.
//! 3. One of the newest of its group under `keep_last` stays. Where `keep_last` is the only rule,
//!    the others of the group go.
//! 4. One that has `max_per_sandbox` newer ones in its sandbox goes.
//! 5. One older than `max_age` goes, unless it is its sandbox's newest.
//! 6. While a total is exceeded, the oldest goes.

use std::{collections::BTreeSet, fmt};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    catalog::{CandidateScope, Cursor, Usage},
    error::Error,
    id::{SandboxId, SnapshotId},
    naming::Name,
};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionPolicy {
    pub max_age: Option<SignedDuration>,
    pub max_per_sandbox: Option<u64>,
    pub max_total: Option<u64>,
    /// Of the sum of what each snapshot added to what it grew from. What is stored can be more: a
    /// piece of a deleted snapshot stays while a newer one needs it.
    pub max_bytes: Option<u64>,
    pub keep_last: Option<KeepLast>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepLast {
    pub count: u64,
    pub group: KeepGroup,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeepGroup {
    Sandbox,
    /// Snapshots with the same value of this label; those without it are in no group.
    Label(String),
}

impl RetentionPolicy {
    /// Whether it asks for anything beyond expiry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Refuses limits that would leave nothing.
    pub fn check(&self) -> Result<(), Error> {
        let Self { max_age, max_per_sandbox, max_total, max_bytes, keep_last } = self;
        let keep_last = keep_last.as_ref().map(|keep| keep.count);
        for (what, limit) in [
            ("max_per_sandbox", *max_per_sandbox),
            ("max_total", *max_total),
            ("max_bytes", *max_bytes),
            ("keep_last", keep_last),
        ] {
            if limit == Some(0) {
                return Err(Error::invalid(format!(
                    "retention with `{what}` = 0 would keep nothing"
                )));
            }
        }
        if max_age.is_some_and(|age| age.is_negative()) {
            return Err(Error::invalid("retention with a negative `max_age` makes no sense"));
        }
        Ok(())
    }

    /// Snapshots made before this are too old.
    #[must_use]
    pub fn cutoff(&self, now: Timestamp) -> Option<Timestamp> {
        self.max_age.map(|age| now.checked_sub(age).unwrap_or(Timestamp::MIN))
    }

    /// `keep_last` alone means "and delete the rest"; beside a limit it only protects from it.
    #[must_use]
    pub fn keeps_only_last(&self) -> bool {
        let others = Self { keep_last: None, ..self.clone() };
        self.keep_last.is_some() && others.is_empty()
    }
}

/// What retention needs to know of a snapshot. Ranks count the newer ones that are not expired,
/// and need not count beyond what the policy asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub cursor: Cursor,
    pub id: SnapshotId,
    pub name: Name,
    pub sandbox: SandboxId,
    pub created: Timestamp,
    pub expires: Option<Timestamp>,
    pub own_bytes: u64,
    pub pinned: bool,
    pub newer_in_sandbox: u64,
    /// `None` when it is in no group of `keep_last`.
    pub newer_in_group: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RetentionPlan {
    /// Oldest first within each rule.
    pub deletions: Vec<Deletion>,
    /// Limits that stay exceeded because what is left is pinned or kept.
    pub unmet: Vec<UnmetLimit>,
    /// What the chosen ones added to what they grew from. What others need of it stays, so it is
    /// the most that can come free.
    pub own_bytes: u64,
    pub snapshots_before: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Deletion {
    pub id: SnapshotId,
    pub name: Name,
    pub sandbox: SandboxId,
    pub created: Timestamp,
    pub own_bytes: u64,
    pub reason: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    Expired,
    BeyondKeepLast,
    TooManyInSandbox,
    TooOld,
    TooManyInTotal,
    TooManyBytes,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Expired => "expired",
            Self::BeyondKeepLast => "not among the last to keep",
            Self::TooManyInSandbox => "too many in its sandbox",
            Self::TooOld => "too old",
            Self::TooManyInTotal => "too many in total",
            Self::TooManyBytes => "too many bytes in total",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnmetLimit {
    Total { snapshots: u64, limit: u64 },
    Bytes { bytes: u64, limit: u64 },
}

impl fmt::Display for UnmetLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Total { snapshots, limit } => {
                write!(f, "{snapshots} snapshots stay although the limit is {limit}")
            }
            Self::Bytes { bytes, limit } => {
                write!(f, "{bytes} bytes stay although the limit is {limit}")
            }
        }
    }
}

impl RetentionPlan {
    /// The plan for snapshots that are all at hand, oldest first. The engine feeds a
    /// [`RetentionPlanner`] page by page instead and gets the same.
    #[must_use]
    pub fn compute(
        policy: &RetentionPolicy,
        now: Timestamp,
        usage: &Usage,
        candidates: &[Candidate],
    ) -> Self {
        let mut planner = RetentionPlanner::new(policy.clone(), now, usage);
        for scope in [CandidateScope::Due, CandidateScope::Oldest] {
            for candidate in candidates {
                planner.consider(scope, candidate);
            }
        }
        planner.finish()
    }
}

/// Computes a plan from candidates that come one at a time: first all that are due, then the oldest
/// while [`RetentionPlanner::over_limit`].
#[derive(Debug)]
pub struct RetentionPlanner {
    policy: RetentionPolicy,
    now: Timestamp,
    spared: Option<SnapshotId>,
    chosen: BTreeSet<SnapshotId>,
    snapshots: u64,
    bytes: u64,
    plan: RetentionPlan,
}

impl RetentionPlanner {
    #[must_use]
    pub fn new(policy: RetentionPolicy, now: Timestamp, usage: &Usage) -> Self {
        Self {
            policy,
            now,
            spared: None,
            chosen: BTreeSet::new(),
            snapshots: usage.snapshots,
            bytes: usage.own_bytes,
            plan: RetentionPlan { snapshots_before: usage.snapshots, ..RetentionPlan::default() },
        }
    }

    /// Never chooses `snapshot`: it was taken a moment ago, and its taker counts on it.
    #[must_use]
    pub fn sparing(mut self, snapshot: Option<SnapshotId>) -> Self {
        self.spared = snapshot;
        self
    }

    pub fn consider(&mut self, scope: CandidateScope, candidate: &Candidate) {
        if candidate.pinned
            || self.spared == Some(candidate.id)
            || self.chosen.contains(&candidate.id)
        {
            return;
        }
        let reason = match scope {
            CandidateScope::Due => self.due(candidate),
            CandidateScope::Oldest if self.is_kept(candidate) => None,
            CandidateScope::Oldest => self.exceeded(),
        };
        if let Some(reason) = reason {
            self.choose(candidate, reason);
        }
    }

    /// Whether a total is still exceeded by what would stay.
    #[must_use]
    pub fn over_limit(&self) -> bool {
        self.exceeded().is_some()
    }

    #[must_use]
    pub fn finish(mut self) -> RetentionPlan {
        let Self { snapshots, bytes, .. } = self;
        let over = |value: u64, limit: Option<u64>| limit.filter(|limit| value > *limit);
        let total = over(snapshots, self.policy.max_total)
            .map(|limit| UnmetLimit::Total { snapshots, limit });
        let size =
            over(bytes, self.policy.max_bytes).map(|limit| UnmetLimit::Bytes { bytes, limit });
        self.plan.unmet.extend(total.into_iter().chain(size));
        self.plan
    }

    fn due(&self, candidate: &Candidate) -> Option<Reason> {
        let policy = &self.policy;
        if candidate.expires.is_some_and(|expires| expires <= self.now) {
            return Some(Reason::Expired);
        }
        if self.is_kept(candidate) {
            return None;
        }
        if policy.keeps_only_last() && candidate.newer_in_group.is_some() {
            return Some(Reason::BeyondKeepLast);
        }
        if policy.max_per_sandbox.is_some_and(|max| candidate.newer_in_sandbox >= max) {
            return Some(Reason::TooManyInSandbox);
        }
        let too_old = policy.cutoff(self.now).is_some_and(|cutoff| candidate.created < cutoff);
        (too_old && candidate.newer_in_sandbox > 0).then_some(Reason::TooOld)
    }

    fn is_kept(&self, candidate: &Candidate) -> bool {
        let keep = self.policy.keep_last.as_ref().map(|keep| keep.count);
        keep.zip(candidate.newer_in_group).is_some_and(|(keep, newer)| newer < keep)
    }

    fn exceeded(&self) -> Option<Reason> {
        if self.policy.max_total.is_some_and(|max| self.snapshots > max) {
            return Some(Reason::TooManyInTotal);
        }
        self.policy.max_bytes.is_some_and(|max| self.bytes > max).then_some(Reason::TooManyBytes)
    }

    fn choose(&mut self, candidate: &Candidate, reason: Reason) {
        let Candidate { id, sandbox, created, own_bytes, .. } = *candidate;
        self.chosen.insert(id);
        self.snapshots = self.snapshots.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(own_bytes);
        self.plan.own_bytes = self.plan.own_bytes.saturating_add(own_bytes);
        let name = candidate.name.clone();
        self.plan.deletions.push(Deletion { id, name, sandbox, created, own_bytes, reason });
    }
}

#[cfg(test)]
mod tests;
