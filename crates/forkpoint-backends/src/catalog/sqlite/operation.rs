//! Open operations: the only locks there are.

use std::collections::BTreeSet;

use forkpoint_core::{
    catalog::{CatalogError, Claim, ClaimMode, Claimed, Existence, Operation, Reclaimed, Resource},
    id::{OperationId, OwnerId},
    naming::Name,
};
use rusqlite::{Connection, OptionalExtension as _, Row, ToSql, Transaction};

use super::{
    place::Answer,
    row::{json, shown},
    value::{Json, Shown},
};

/// Operations whose effect is remembered for those who lost the reply.
const REMEMBERED: i64 = 4096;

/// An open operation as it is stored. Whether its owner lives is not for a database to say.
pub(super) struct OpenRow {
    pub(super) operation: Operation,
    pub(super) claim: Claim,
    pub(super) owner: OwnerId,
}

/// What stands in the way of `begin`.
pub(super) struct Blocked {
    pub(super) resource: Resource,
    pub(super) by: OpenRow,
}

pub(super) fn begin(
    tx: &Transaction<'_>,
    us: OwnerId,
    operation: &Operation,
) -> Answer<Result<Claim, Blocked>> {
    let claims = operation.claims();
    for claimed in &claims {
        if let Some(by) = blocker(tx, claimed)? {
            return Ok(Err(Blocked { resource: claimed.resource.clone(), by }));
        }
        check_existence(tx, claimed)?;
    }
    let claim = Claim::first(operation.id);
    let body = (Shown(operation.id), Shown(us), claim.attempt, Json(operation));
    let seq = tx.prepare_cached(sql!("begin"))?.insert(body)?;
    let mut insert = tx.prepare_cached(sql!("claim"))?;
    for Claimed { resource, mode, .. } in &claims {
        insert.execute((key(resource), seq, *mode == ClaimMode::Exclusive))?;
    }
    Ok(Ok(claim))
}

fn blocker(tx: &Transaction<'_>, wanted: &Claimed) -> Answer<Option<OpenRow>> {
    let exclusive = wanted.mode == ClaimMode::Exclusive;
    let mut statement = tx.prepare_cached(sql!("blocker"))?;
    Ok(statement.query_row((key(&wanted.resource), exclusive), open_row).optional()?)
}

/// A resource as the text that claims are compared by. No name holds a colon.
fn key(resource: &Resource) -> String {
    match resource {
        Resource::Sandbox(id) => id.to_string(),
        Resource::Snapshot(id) => id.to_string(),
        Resource::SandboxName { driver, name } => format!("sandbox:{driver}:{name}"),
        Resource::SnapshotName(name) => format!("snapshot:{name}"),
    }
}

fn check_existence(tx: &Transaction<'_>, claimed: &Claimed) -> Answer<()> {
    let required = claimed.existence == Existence::Required;
    match &claimed.resource {
        Resource::Sandbox(id) => match (exists(tx, sql!("sandbox_exists"), Shown(id))?, required) {
            (true, false) => Err(known_already(id))?,
            (false, true) => Err(CatalogError::SandboxMissing { reference: id.to_string() })?,
            _ => Ok(()),
        },
        Resource::Snapshot(id) => match (exists(tx, sql!("snapshot_exists"), Shown(id))?, required)
        {
            (true, false) => Err(known_already(id))?,
            (false, true) => Err(CatalogError::SnapshotMissing { reference: id.to_string() })?,
            _ => Ok(()),
        },
        Resource::SandboxName { driver, name } => {
            let mut named = tx.prepare_cached(sql!("sandbox_named"))?;
            let by = named.query_row((driver, name.as_str()), |row| row.get(0)).optional()?;
            check_free(name, by)
        }
        Resource::SnapshotName(name) => {
            let mut named = tx.prepare_cached(sql!("snapshot_named"))?;
            let by = named.query_row([name.as_str()], |row| row.get(0)).optional()?;
            check_free(name, by)
        }
    }
}

fn exists(tx: &Transaction<'_>, sql: &str, id: impl ToSql) -> Answer<bool> {
    Ok(tx.prepare_cached(sql)?.query_row([id], |row| row.get(0))?)
}

fn known_already(id: impl ToString) -> CatalogError {
    CatalogError::AlreadyKnown { id: id.to_string() }
}

fn check_free(name: &Name, by: Option<String>) -> Answer<()> {
    by.map_or(Ok(()), |by| Err(CatalogError::NameTaken { name: name.clone(), by }.into()))
}

/// Ends the operation and its claims, if it is ours to end.
pub(super) fn close(tx: &Transaction<'_>, us: OwnerId, claim: &Claim) -> Answer<Operation> {
    let id = claim.operation;
    let mut close = tx.prepare_cached(sql!("close"))?;
    let closed = close
        .query_row((Shown(id), claim.attempt, Shown(us)), |row| json(row, "body"))
        .optional()?;
    Ok(closed.ok_or(CatalogError::ClaimLost { id })?)
}

pub(super) fn remember_committed(tx: &Transaction<'_>, id: OperationId) -> Answer<()> {
    let mut insert = tx.prepare_cached(sql!("committed"))?;
    let latest: i64 = insert.query_row([Shown(id)], |row| row.get(0))?;
    tx.prepare_cached(sql!("forget_committed"))?.execute([latest.saturating_sub(REMEMBERED)])?;
    Ok(())
}

pub(super) fn reclaim(tx: &Transaction<'_>, us: OwnerId, claim: &Claim) -> Answer<Reclaimed> {
    let operation = claim.operation;
    let mut reclaim = tx.prepare_cached(sql!("reclaim"))?;
    let ours = reclaim
        .query_row((Shown(operation), claim.attempt, Shown(us)), |row| row.get(0))
        .optional()?;
    if let Some(attempt) = ours {
        return Ok(Reclaimed::Ours(Claim { operation, attempt }));
    }
    let committed = exists(tx, sql!("was_committed"), Shown(operation))?;
    Ok(if committed { Reclaimed::Committed } else { Reclaimed::Lost })
}

pub(super) fn unfinished(tx: &Transaction<'_>) -> Answer<Vec<OpenRow>> {
    let mut statement = tx.prepare_cached(sql!("open_operations"))?;
    Ok(statement.query_map([], open_row)?.collect::<rusqlite::Result<_>>()?)
}

/// Everybody whom an open operation names.
pub(super) fn owners(connection: &Connection) -> Answer<BTreeSet<OwnerId>> {
    let mut statement = connection.prepare(sql!("owners"))?;
    let owners = statement.query_map([], |row| shown(row, "owner"))?;
    Ok(owners.collect::<rusqlite::Result<_>>()?)
}

fn open_row(row: &Row<'_>) -> rusqlite::Result<OpenRow> {
    let operation: Operation = json(row, "body")?;
    let claim = Claim { operation: operation.id, attempt: row.get("attempt")? };
    Ok(OpenRow { operation, claim, owner: shown(row, "owner")? })
}
