//! Rows, as records.

use std::str::FromStr;

use forkpoint_core::{
    Timestamp,
    catalog::{SandboxRecord, SnapshotRecord},
    error::BoxError,
    lineage::LineageNode,
};
use rusqlite::{Result, Row, Transaction, named_params};
use serde::de::DeserializeOwned;

use super::value::{Json, Kind, Moment, Shown, Unsigned};

pub(super) fn shown<T>(row: &Row<'_>, column: &str) -> Result<T>
where
    T: FromStr,
    T::Err: Into<BoxError>,
{
    row.get(column).map(|Shown(value)| value)
}

pub(super) fn shown_if_any<T>(row: &Row<'_>, column: &str) -> Result<Option<T>>
where
    T: FromStr,
    T::Err: Into<BoxError>,
{
    row.get::<_, Option<Shown<T>>>(column).map(|value| value.map(|Shown(value)| value))
}

pub(super) fn json<T: DeserializeOwned>(row: &Row<'_>, column: &str) -> Result<T> {
    row.get(column).map(|Json(value)| value)
}

pub(super) fn unsigned(row: &Row<'_>, column: &str) -> Result<u64> {
    row.get(column).map(|Unsigned(value)| value)
}

fn unsigned_if_any(row: &Row<'_>, column: &str) -> Result<Option<u64>> {
    row.get::<_, Option<Unsigned>>(column).map(|value| value.map(|Unsigned(value)| value))
}

pub(super) fn moment(row: &Row<'_>, column: &str) -> Result<Timestamp> {
    row.get(column).map(|Moment(value)| value)
}

pub(super) fn moment_if_any(row: &Row<'_>, column: &str) -> Result<Option<Timestamp>> {
    row.get::<_, Option<Moment>>(column).map(|value| value.map(|Moment(value)| value))
}

pub(super) fn seq(row: &Row<'_>) -> Result<u64> {
    unsigned(row, "seq")
}

pub(super) fn sandbox(row: &Row<'_>) -> Result<SandboxRecord> {
    Ok(SandboxRecord {
        id: shown(row, "id")?,
        name: shown_if_any(row, "name")?,
        driver: row.get("driver")?,
        spec: json(row, "spec")?,
        labels: json(row, "labels")?,
        adopted: row.get("adopted")?,
        head: shown_if_any(row, "head")?,
        created: moment(row, "created")?,
        expires: moment_if_any(row, "expires")?,
    })
}

pub(super) fn add_sandbox(tx: &Transaction<'_>, record: &SandboxRecord) -> Result<()> {
    tx.prepare_cached(sql!("add_sandbox"))?.execute(named_params! {
        ":id": Shown(record.id),
        ":driver": record.driver,
        ":name": record.name.as_ref().map(Shown),
        ":adopted": record.adopted,
        ":head": record.head.map(Shown),
        ":created": Moment(record.created),
        ":expires": record.expires.map(Moment),
        ":labels": Json(&record.labels),
        ":spec": Json(&record.spec),
    })?;
    Ok(())
}

pub(super) fn snapshot(row: &Row<'_>) -> Result<SnapshotRecord> {
    Ok(SnapshotRecord {
        id: shown(row, "id")?,
        name: shown(row, "name")?,
        sandbox: shown(row, "sandbox")?,
        sandbox_name: shown_if_any(row, "sandbox_name")?,
        parent: shown_if_any(row, "parent")?,
        driver: row.get("driver")?,
        kind: row.get("kind").map(|Kind(kind)| kind)?,
        trigger: shown(row, "trigger")?,
        description: row.get("description")?,
        context: row.get("context")?,
        run_id: row.get("run_id")?,
        step: unsigned_if_any(row, "step")?,
        labels: json(row, "labels")?,
        agent_state_bytes: unsigned_if_any(row, "agent_state_bytes")?,
        spec: json(row, "spec")?,
        own_bytes: unsigned(row, "own_bytes")?,
        total_bytes: unsigned(row, "total_bytes")?,
        file_count: unsigned(row, "file_count")?,
        created: moment(row, "created")?,
        expires: moment_if_any(row, "expires")?,
        pinned: row.get("pinned")?,
        last_restored: moment_if_any(row, "last_restored")?,
        restore_count: unsigned(row, "restore_count")?,
        durable: row.get("durable")?,
        artifact: json(row, "artifact")?,
    })
}

/// Answers with its place.
pub(super) fn add_snapshot(tx: &Transaction<'_>, record: &SnapshotRecord) -> Result<i64> {
    tx.prepare_cached(sql!("add_snapshot"))?.insert(named_params! {
        ":id": Shown(record.id),
        ":name": Shown(&record.name),
        ":sandbox": Shown(record.sandbox),
        ":sandbox_name": record.sandbox_name.as_ref().map(Shown),
        ":parent": record.parent.map(Shown),
        ":driver": record.driver,
        ":kind": record.kind.as_str(),
        ":trigger": record.trigger.as_str(),
        ":description": record.description,
        ":context": record.context,
        ":run_id": record.run_id,
        ":step": record.step.map(Unsigned),
        ":labels": Json(&record.labels),
        ":agent_state_bytes": record.agent_state_bytes.map(Unsigned),
        ":spec": Json(&record.spec),
        ":own_bytes": Unsigned(record.own_bytes),
        ":total_bytes": Unsigned(record.total_bytes),
        ":file_count": Unsigned(record.file_count),
        ":created": Moment(record.created),
        ":expires": record.expires.map(Moment),
        ":pinned": record.pinned,
        ":last_restored": record.last_restored.map(Moment),
        ":restore_count": Unsigned(record.restore_count),
        ":durable": record.durable,
        ":artifact": Json(&record.artifact),
    })
}

pub(super) fn lineage_node(row: &Row<'_>) -> Result<LineageNode> {
    Ok(LineageNode {
        id: shown(row, "id")?,
        parent: shown_if_any(row, "parent")?,
        name: shown(row, "name")?,
        sandbox: shown(row, "sandbox")?,
        sandbox_name: shown_if_any(row, "sandbox_name")?,
        kind: row.get("kind").map(|Kind(kind)| kind)?,
        trigger: shown(row, "trigger")?,
        description: row.get("description")?,
        own_bytes: unsigned(row, "own_bytes")?,
        created: moment(row, "created")?,
        deleted: row.get("deleted")?,
    })
}
