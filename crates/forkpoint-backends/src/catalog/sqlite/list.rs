//! Many things: lists, lineage and sums.

use forkpoint_core::{
    catalog::{
        Cursor, DriverUsage, LineageScope, Page, SandboxQuery, SandboxRecord, SnapshotQuery,
        SnapshotRecord, Usage,
    },
    lineage::LineageNode,
};
use rusqlite::{Row, Transaction, params_from_iter, types::Value};

use super::{
    place::Answer,
    row::{self, unsigned},
    value::{Moment, Shown, Unsigned, clamped},
};

/// A statement made of constant pieces, with a value for each of its `?`.
#[derive(Default)]
pub(super) struct Composed {
    pub(super) sql: String,
    pub(super) values: Vec<Value>,
}

impl Composed {
    fn with(mut self, sql: &str, values: impl IntoIterator<Item: Into<Value>>) -> Self {
        self.sql.push_str(sql);
        self.values.extend(values.into_iter().map(Into::into));
        self
    }

    fn with_any(self, sql: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(sql, [value]),
            None => self,
        }
    }

    fn with_labels<'a>(
        self,
        sql: &str,
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        labels.into_iter().fold(self, |composed, (key, value)| {
            composed.with(sql, [key.to_owned(), value.to_owned()])
        })
    }
}

pub(super) fn sandboxes(tx: &Transaction<'_>, query: &SandboxQuery) -> Answer<Page<SandboxRecord>> {
    page(tx, sandboxes_sql(query), query.limit, row::sandbox)
}

pub(super) fn sandboxes_sql(query: &SandboxQuery) -> Composed {
    let SandboxQuery { driver, labels, expired, limit, after } = query;
    let after = after.map_or(0, |after| clamped(after.0));
    let start = match expired {
        None => {
            Composed { sql: "SELECT sandbox.* FROM sandbox WHERE".to_owned(), values: Vec::new() }
        }
        Some(at) => Composed::default().with(sql!("expired_sandboxes"), [Moment(*at).text()]),
    };
    start
        .with(" sandbox.seq > ?", [after])
        .with_any(" AND sandbox.driver = ?", driver.clone())
        .with_labels(concat!(" AND ", sql!("sandbox_is_labelled")), labels.iter())
        .with(" ORDER BY sandbox.seq LIMIT ?", [one_more(*limit)])
}

pub(super) fn snapshots(
    tx: &Transaction<'_>,
    query: &SnapshotQuery,
) -> Answer<Page<SnapshotRecord>> {
    page(tx, snapshots_sql(query), query.limit, row::snapshot)
}

/// Where a label is asked for, the snapshots that bear it lead; whatever leads has an index in the
/// order of the list.
pub(super) fn snapshots_sql(query: &SnapshotQuery) -> Composed {
    let SnapshotQuery { sandbox, driver, trigger, kind, run_id, labels, limit, after } = query;
    let before = after.map_or(i64::MAX, |after| clamped(after.0));
    let mut labels = labels.iter();
    let start = match labels.next() {
        None => Composed::default().with(sql!("all_snapshots"), [before]),
        Some((key, value)) => Composed::default().with(
            sql!("labelled_snapshots"),
            [Value::from(key.to_owned()), value.to_owned().into(), before.into()],
        ),
    };
    start
        .with_any(" AND snapshot.sandbox = ?", sandbox.map(|id| id.to_string()))
        .with_any(" AND snapshot.driver = ?", driver.clone())
        .with_any(" AND snapshot.trigger = ?", trigger.map(|trigger| trigger.to_string()))
        .with_any(" AND snapshot.kind = ?", kind.map(|kind| kind.to_string()))
        .with_any(" AND snapshot.run_id = ?", run_id.clone())
        .with_labels(concat!(" AND ", sql!("snapshot_is_labelled")), labels)
        .with(" ORDER BY place DESC LIMIT ?", [one_more(*limit)])
}

/// One more than asked for shows whether there is a next page.
fn one_more(limit: Option<usize>) -> i64 {
    limit.map_or(i64::MAX, |limit| clamped(limit as u64).saturating_add(1))
}

fn page<T>(
    tx: &Transaction<'_>,
    Composed { sql, values }: Composed,
    limit: Option<usize>,
    record: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
) -> Answer<Page<T>> {
    let mut statement = tx.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let (mut items, mut last, mut more) = (Vec::new(), None, false);
    while let Some(row) = rows.next()? {
        // That there is one more is all that is asked of it.
        if limit.is_some_and(|limit| items.len() >= limit) {
            more = true;
            break;
        }
        last = Some(row::seq(row)?);
        items.push(record(row)?);
    }
    Ok(Page { items, next: last.filter(|_| more).map(Cursor) })
}

pub(super) fn lineage(tx: &Transaction<'_>, scope: &LineageScope) -> Answer<Vec<LineageNode>> {
    let (sql, id) = match scope {
        LineageScope::Everything => (sql!("lineage_everything"), None),
        LineageScope::Ancestors(id) => (sql!("lineage_ancestors"), Some(Shown(*id))),
        LineageScope::Tree(id) => (sql!("lineage_tree"), Some(Shown(*id))),
        LineageScope::Children(id) => (sql!("lineage_children"), Some(Shown(*id))),
    };
    let mut statement = tx.prepare_cached(sql)?;
    let nodes = statement.query_map(params_from_iter(id), row::lineage_node)?;
    Ok(nodes.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn usage(tx: &Transaction<'_>) -> Answer<Usage> {
    let totals = |row: &Row<'_>| {
        let moment =
            |at| Ok::<_, rusqlite::Error>(row.get::<_, Option<Moment>>(at)?.map(|it| it.0));
        let (Unsigned(sandboxes), oldest, newest) = (row.get(0)?, moment(1)?, moment(2)?);
        let stored_bytes = sum(row, "stored")?;
        Ok(Usage { sandboxes, oldest, newest, stored_bytes, ..Usage::default() })
    };
    let mut usage = tx.prepare_cached(sql!("usage_totals"))?.query_row([], totals)?;
    let mut statement = tx.prepare_cached(sql!("usage_drivers"))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (snapshots, own_bytes) = (unsigned(row, "snapshots")?, sum(row, "own")?);
        usage.snapshots = usage.snapshots.saturating_add(snapshots);
        usage.pinned = usage.pinned.saturating_add(unsigned(row, "pinned")?);
        usage.own_bytes = usage.own_bytes.saturating_add(own_bytes);
        usage.total_bytes = usage.total_bytes.saturating_add(sum(row, "total")?);
        usage.drivers.push(DriverUsage { driver: row.get("driver")?, snapshots, own_bytes });
    }
    Ok(usage)
}

/// A sum that is kept in two halves.
fn sum(row: &Row<'_>, of: &str) -> rusqlite::Result<u64> {
    let half = |which: &str| unsigned(row, &format!("{of}_{which}")).map(u128::from);
    let sum = (half("high")? << 32).saturating_add(half("low")?);
    Ok(u64::try_from(sum).unwrap_or(u64::MAX))
}
