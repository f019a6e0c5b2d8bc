use super::*;

const DAY: i64 = 24 * 3600;

/// Snapshots of 10 bytes, one a day, oldest first; day 0 is today.
#[derive(Clone)]
struct Shot {
    id: u128,
    sandbox: u128,
    days_old: i64,
    pinned: bool,
    expired: bool,
    task: Option<&'static str>,
}

fn shot(id: u128, sandbox: u128, days_old: i64) -> Shot {
    Shot { id, sandbox, days_old, pinned: false, expired: false, task: None }
}

fn now() -> Timestamp {
    "2026-06-01T00:00:00Z".parse().unwrap()
}

fn candidates(shots: &[Shot], policy: &RetentionPolicy) -> Vec<Candidate> {
    let newer = |at: usize, same: &dyn Fn(&Shot) -> bool| {
        shots[at + 1..].iter().filter(|other| !other.expired && same(other)).count() as u64
    };
    let group = policy.keep_last.as_ref().map(|keep| &keep.group);
    shots
        .iter()
        .enumerate()
        .map(|(at, shot)| Candidate {
            cursor: Cursor(at as u64),
            id: SnapshotId::from_u128(shot.id),
            name: format!("n{}", shot.id).parse().unwrap(),
            sandbox: SandboxId::from_u128(shot.sandbox),
            created: now() - SignedDuration::from_secs(shot.days_old * DAY),
            expires: shot.expired.then(now),
            own_bytes: 10,
            pinned: shot.pinned,
            newer_in_sandbox: newer(at, &|other| other.sandbox == shot.sandbox),
            newer_in_group: match group {
                Some(KeepGroup::Sandbox) => Some(newer(at, &|o| o.sandbox == shot.sandbox)),
                Some(KeepGroup::Label(_)) => shot.task.map(|_| newer(at, &|o| o.task == shot.task)),
                None => None,
            },
        })
        .collect()
}

fn plan(shots: &[Shot], policy: &RetentionPolicy) -> RetentionPlan {
    policy.check().unwrap();
    let snapshots = shots.len() as u64;
    let usage = Usage { snapshots, own_bytes: 10 * snapshots, ..Usage::default() };
    RetentionPlan::compute(policy, now(), &usage, &candidates(shots, policy))
}

fn gone(shots: &[Shot], policy: &RetentionPolicy) -> Vec<(u128, Reason)> {
    let name = |id: &SnapshotId| {
        shots.iter().find(|shot| SnapshotId::from_u128(shot.id) == *id).unwrap().id
    };
    plan(shots, policy).deletions.iter().map(|each| (name(&each.id), each.reason)).collect()
}

fn days(count: i64) -> Option<SignedDuration> {
    Some(SignedDuration::from_secs(count * DAY))
}

fn keep(count: u64, group: KeepGroup) -> Option<KeepLast> {
    Some(KeepLast { count, group })
}

#[test]
fn without_a_rule_only_the_expired_go() {
    let mut shots = vec![shot(1, 1, 90), shot(2, 1, 80), shot(3, 1, 0)];
    assert_eq!(gone(&shots, &RetentionPolicy::default()), []);
    shots[2].expired = true;
    assert_eq!(gone(&shots, &RetentionPolicy::default()), [(3, Reason::Expired)]);
}

#[test]
fn age_spares_the_newest_of_each_sandbox() {
    let shots = [shot(1, 1, 90), shot(2, 1, 80), shot(3, 2, 70), shot(4, 3, 8), shot(5, 3, 1)];
    let policy = RetentionPolicy { max_age: days(7), ..RetentionPolicy::default() };
    assert_eq!(gone(&shots, &policy), [(1, Reason::TooOld), (4, Reason::TooOld)]);
}

#[test]
fn an_age_of_nothing_still_spares_the_newest() {
    let shots = [shot(1, 1, 2), shot(2, 1, 1), shot(3, 1, 0)];
    let policy = RetentionPolicy { max_age: days(0), ..RetentionPolicy::default() };
    assert_eq!(gone(&shots, &policy), [(1, Reason::TooOld), (2, Reason::TooOld)]);
}

#[test]
fn when_the_newest_expires_age_spares_the_next() {
    let mut shots = [shot(1, 1, 90), shot(2, 1, 80), shot(3, 1, 70)];
    shots[2].expired = true;
    let policy = RetentionPolicy { max_age: days(7), ..RetentionPolicy::default() };
    assert_eq!(gone(&shots, &policy), [(1, Reason::TooOld), (3, Reason::Expired)]);
}

#[test]
fn a_count_per_sandbox_drops_the_oldest() {
    let shots = [shot(1, 1, 9), shot(2, 2, 8), shot(3, 1, 7), shot(4, 1, 6)];
    let policy = RetentionPolicy { max_per_sandbox: Some(2), ..RetentionPolicy::default() };
    assert_eq!(gone(&shots, &policy), [(1, Reason::TooManyInSandbox)]);
}

#[test]
fn a_pinned_one_never_goes() {
    let mut shots = [shot(1, 1, 90), shot(2, 1, 80), shot(3, 1, 70)];
    shots[0].pinned = true;
    shots[0].expired = true;
    let policy = RetentionPolicy {
        max_age: days(7),
        max_per_sandbox: Some(1),
        max_total: Some(1),
        max_bytes: Some(1),
        ..RetentionPolicy::default()
    };
    let ids: Vec<u128> = gone(&shots, &policy).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, [2, 3]);
}

#[test]
fn totals_drop_the_oldest_that_other_rules_left() {
    let shots = [shot(1, 1, 90), shot(2, 2, 80), shot(3, 3, 70), shot(4, 3, 60)];
    let total = RetentionPolicy { max_total: Some(3), ..RetentionPolicy::default() };
    assert_eq!(gone(&shots, &total), [(1, Reason::TooManyInTotal)]);
    let bytes = RetentionPolicy { max_bytes: Some(25), ..RetentionPolicy::default() };
    assert_eq!(gone(&shots, &bytes), [(1, Reason::TooManyBytes), (2, Reason::TooManyBytes)]);
    let both = RetentionPolicy { max_age: days(65), max_total: Some(3), ..total };
    assert_eq!(gone(&shots, &both), [(3, Reason::TooOld)], "age made room already");
}

#[test]
fn keep_last_alone_drops_the_rest_of_its_groups() {
    let mut shots = [shot(1, 1, 5), shot(2, 2, 4), shot(3, 1, 3), shot(4, 1, 2)];
    let by_sandbox =
        RetentionPolicy { keep_last: keep(1, KeepGroup::Sandbox), ..RetentionPolicy::default() };
    assert_eq!(
        gone(&shots, &by_sandbox),
        [(1, Reason::BeyondKeepLast), (3, Reason::BeyondKeepLast)]
    );
    shots[0].task = Some("a");
    shots[1].task = Some("a");
    let by_label = RetentionPolicy {
        keep_last: keep(1, KeepGroup::Label("task".into())),
        ..RetentionPolicy::default()
    };
    assert_eq!(gone(&shots, &by_label), [(1, Reason::BeyondKeepLast)], "no label, no group");
}

#[test]
fn keep_last_beside_a_limit_protects_from_it() {
    let shots = [shot(1, 1, 50), shot(2, 1, 40), shot(3, 1, 30), shot(4, 1, 1)];
    let policy = RetentionPolicy {
        max_age: days(7),
        keep_last: keep(3, KeepGroup::Sandbox),
        ..RetentionPolicy::default()
    };
    assert_eq!(gone(&shots, &policy), [(1, Reason::TooOld)]);
}

#[test]
fn a_limit_that_cannot_be_met_is_told() {
    let shots = [shot(1, 1, 50), shot(2, 1, 40), shot(3, 1, 30)];
    let policy = RetentionPolicy {
        max_total: Some(1),
        max_bytes: Some(15),
        keep_last: keep(2, KeepGroup::Sandbox),
        ..RetentionPolicy::default()
    };
    let plan = plan(&shots, &policy);
    assert_eq!(plan.deletions.len(), 1);
    assert_eq!(
        plan.unmet,
        [UnmetLimit::Total { snapshots: 2, limit: 1 }, UnmetLimit::Bytes { bytes: 20, limit: 15 }]
    );
    assert_eq!(plan.own_bytes, 10);
}

#[test]
fn the_one_just_taken_is_spared() {
    let shots = [shot(1, 1, 1), shot(2, 1, 0)];
    let policy = RetentionPolicy { max_bytes: Some(5), ..RetentionPolicy::default() };
    let usage = Usage { snapshots: 2, own_bytes: 20, ..Usage::default() };
    let mut planner = RetentionPlanner::new(policy.clone(), now(), &usage)
        .sparing(Some(SnapshotId::from_u128(2)));
    for candidate in candidates(&shots, &policy) {
        planner.consider(CandidateScope::Oldest, &candidate);
    }
    let plan = planner.finish();
    assert_eq!(plan.deletions.len(), 1);
    assert_eq!(plan.unmet, [UnmetLimit::Bytes { bytes: 10, limit: 5 }]);
}

#[test]
fn impossible_limits_are_refused() {
    for policy in [
        RetentionPolicy { max_per_sandbox: Some(0), ..RetentionPolicy::default() },
        RetentionPolicy { max_total: Some(0), ..RetentionPolicy::default() },
        RetentionPolicy { max_bytes: Some(0), ..RetentionPolicy::default() },
        RetentionPolicy { keep_last: keep(0, KeepGroup::Sandbox), ..RetentionPolicy::default() },
        RetentionPolicy { max_age: days(-1), ..RetentionPolicy::default() },
    ] {
        assert!(policy.check().is_err(), "{policy:?}");
    }
}
