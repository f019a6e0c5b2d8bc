//! Retention asks page by page, and gets the plan that a look at everything would give.

use forkpoint_core::{
    Timestamp,
    catalog::{CandidateQuery, CandidateScope, SnapshotRecord},
    retention::{KeepGroup, KeepLast, RetentionPlan, RetentionPlanner, RetentionPolicy},
};

use super::scene::*;
use crate::CatalogOpener;
use crate::SharedTables;

const ROUNDS: u64 = 3;
const SNAPSHOTS: u64 = 60;
const POLICIES: usize = 60;

/// Small numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    /// Below `sides`.
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    fn time(&mut self) -> Timestamp {
        at(self.roll(100).cast_signed())
    }

    fn snapshot(&mut self, number: u64) -> SnapshotRecord {
        let key = ["task", "other"][self.roll(2) as usize];
        let value = ["a", "b", "c"][self.roll(3) as usize];
        SnapshotRecord {
            labels: if self.one_in(3) { labels(&[]) } else { labels(&[(key, value)]) },
            expires: self.one_in(3).then(|| self.time()),
            created: self.time(),
            pinned: self.one_in(6),
            own_bytes: self.roll(10),
            ..snapshot(number, self.roll(5) + 1)
        }
    }

    fn policy(&mut self) -> RetentionPolicy {
        let group = match self.roll(4) {
            0 | 1 => KeepGroup::Sandbox,
            2 => KeepGroup::Label("task".to_owned()),
            _ => KeepGroup::Label("nobody".to_owned()),
        };
        let keep_last = self.one_in(2).then(|| KeepLast { count: self.roll(6) + 1, group });
        if keep_last.is_some() && self.one_in(3) {
            return RetentionPolicy { keep_last, ..RetentionPolicy::default() };
        }
        RetentionPolicy {
            max_age: self.one_in(3).then(|| self.time().duration_since(at(0))),
            max_per_sandbox: self.one_in(3).then(|| self.roll(12) + 1),
            max_total: self.one_in(3).then(|| self.roll(SNAPSHOTS) + 1),
            max_bytes: self.one_in(4).then(|| self.roll(300) + 1),
            keep_last,
        }
    }
}

/// As the engine does it, by pages of `limit`.
async fn plan(
    hand: &Hand,
    policy: &RetentionPolicy,
    now: Timestamp,
    limit: usize,
) -> RetentionPlan {
    let usage = hand.0.usage().await.unwrap();
    let mut planner = RetentionPlanner::new(policy.clone(), now, &usage);
    for scope in [CandidateScope::Due, CandidateScope::Oldest] {
        let mut after = None;
        while scope == CandidateScope::Due || planner.over_limit() {
            let query = CandidateQuery { policy: policy.clone(), now, scope, after, limit };
            let page = hand.0.candidates(&query).await.unwrap();
            assert!(page.is_sorted_by_key(|candidate| candidate.cursor));
            assert!(page.iter().all(|candidate| Some(candidate.cursor) > after));
            page.iter().for_each(|candidate| planner.consider(scope, candidate));
            match page.last() {
                Some(last) if page.len() == limit => after = Some(last.cursor),
                _ => break,
            }
        }
    }
    planner.finish()
}

pub async fn plans_equal_those_of_a_full_scan(fixture: &dyn CatalogOpener) {
    let (tested, reference) = (Hand::open(fixture), Hand::open(&SharedTables::default()));
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for number in 1..=5 {
        tested.add(&sandbox(number)).await;
        reference.add(&sandbox(number)).await;
    }
    let mut deletions = 0;
    for round in 0..ROUNDS {
        for number in round * SNAPSHOTS + 1..=(round + 1) * SNAPSHOTS {
            let record = dice.snapshot(number);
            tested.take(&record).await;
            reference.take(&record).await;
        }
        for _ in 0..POLICIES {
            let (policy, now) = (dice.policy(), dice.time());
            let expected = plan(&reference, &policy, now, 500).await;
            let limit = dice.roll(9) as usize + 1;
            assert_eq!(plan(&tested, &policy, now, limit).await, expected, "{policy:?} at {now}");
            deletions += expected.deletions.len();
        }
        // Some go, and the counters with them.
        for number in (round * SNAPSHOTS + 1..(round + 1) * SNAPSHOTS).step_by(2) {
            tested.delete(number).await;
            reference.delete(number).await;
        }
    }
    assert!(deletions > 1000, "policies that choose nothing prove nothing: {deletions}");
}
