//! What retention may have to look at.
//!
//! Ranks are counted only as far as the policy asks, and each rule finds what is due by an index or
//! a counter, so that the work grows with what is due and not with what there is.

use forkpoint_core::{
    catalog::{CandidateQuery, CandidateScope, Cursor},
    retention::{Candidate, KeepGroup},
};
use rusqlite::{Row, Transaction, params_from_iter, types::Value};

use super::{
    place::Answer,
    row::{self, moment, moment_if_any, shown, unsigned},
    value::clamped,
};

const DUE: &str = concat!(sql!("due"), sql!("candidates"));
const OLDEST: &str = concat!(sql!("oldest"), sql!("candidates"));

/// How many of its parameters the statement for the oldest uses.
const FOR_OLDEST: usize = 6;

pub(super) fn candidates(tx: &Transaction<'_>, query: &CandidateQuery) -> Answer<Vec<Candidate>> {
    let (sql, values) = candidates_sql(query);
    let group = query.policy.keep_last.as_ref().map(|keep| &keep.group);
    let mut statement = tx.prepare_cached(sql)?;
    let rows = statement.query_map(params_from_iter(values), |row| candidate(row, group))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn candidates_sql(query: &CandidateQuery) -> (&'static str, Vec<Value>) {
    let CandidateQuery { policy, now, scope, after, limit } = query;
    let keep = policy.keep_last.as_ref();
    let (kept_in_sandbox, label, kept_in_group) = match keep.map(|keep| (&keep.group, keep.count)) {
        None => (None, None, None),
        Some((KeepGroup::Sandbox, count)) => (Some(count), None, None),
        Some((KeepGroup::Label(key), count)) => (None, Some(key.clone()), Some(count)),
    };
    let sandbox_cap = policy.max_per_sandbox.max(kept_in_sandbox).unwrap_or(1).max(1);
    let only_last = policy.keeps_only_last();
    let most_in_sandbox = policy.max_per_sandbox.or(kept_in_sandbox.filter(|_| only_last));
    let text = |at| Value::from(format!("{at:.9}"));
    let count = |count: Option<u64>| Value::from(count.map(clamped));
    let mut values = vec![
        clamped(after.map_or(0, |after| after.0)).into(),
        clamped(*limit as u64).into(),
        text(*now),
        clamped(sandbox_cap).into(),
        label.clone().into(),
        clamped(kept_in_group.unwrap_or(0)).into(),
        policy.cutoff(*now).map_or(Value::Null, text),
        count(most_in_sandbox),
        label.filter(|_| only_last).into(),
        count(kept_in_group),
    ];
    match scope {
        CandidateScope::Due => (DUE, values),
        CandidateScope::Oldest => {
            values.truncate(FOR_OLDEST);
            (OLDEST, values)
        }
    }
}

fn candidate(row: &Row<'_>, group: Option<&KeepGroup>) -> rusqlite::Result<Candidate> {
    let newer_in_sandbox = unsigned(row, "newer_in_sandbox")?;
    let newer_in_group = match group {
        None => None,
        Some(KeepGroup::Sandbox) => Some(newer_in_sandbox),
        Some(KeepGroup::Label(_)) if row.get("in_group")? => Some(unsigned(row, "newer_in_group")?),
        Some(KeepGroup::Label(_)) => None,
    };
    Ok(Candidate {
        cursor: Cursor(row::seq(row)?),
        id: shown(row, "id")?,
        name: shown(row, "name")?,
        sandbox: shown(row, "sandbox")?,
        created: moment(row, "created")?,
        expires: moment_if_any(row, "expires")?,
        own_bytes: unsigned(row, "own_bytes")?,
        pinned: row.get("pinned")?,
        newer_in_sandbox,
        newer_in_group,
    })
}
