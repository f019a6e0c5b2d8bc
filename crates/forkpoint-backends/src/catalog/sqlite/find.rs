//! One thing, by its id, its name or the beginning of its id.

use bytes::Bytes;
use forkpoint_core::{
    catalog::{CatalogError, SandboxRecord, SnapshotRecord},
    id::{SandboxId, SnapshotId},
};
use rusqlite::{OptionalExtension as _, Params, Transaction};

use super::{place::Answer, row, value::Shown};

pub(super) fn sandbox(tx: &Transaction<'_>, id: SandboxId) -> Answer<SandboxRecord> {
    let mut statement = tx.prepare_cached(sql!("sandbox"))?;
    let found = statement.query_row([Shown(id)], row::sandbox).optional()?;
    Ok(found.ok_or_else(|| CatalogError::SandboxMissing { reference: id.to_string() })?)
}

pub(super) fn snapshot(tx: &Transaction<'_>, id: SnapshotId) -> Answer<SnapshotRecord> {
    let mut statement = tx.prepare_cached(sql!("snapshot"))?;
    let found = statement.query_row([Shown(id)], row::snapshot).optional()?;
    Ok(found.ok_or_else(|| CatalogError::SnapshotMissing { reference: id.to_string() })?)
}

pub(super) fn find_sandbox(
    tx: &Transaction<'_>,
    driver: &str,
    reference: &str,
) -> Answer<SandboxRecord> {
    let id = match one(tx, sql!("sandbox_named"), (driver, reference))? {
        Some(named) => Some(named),
        None => only(tx, sql!("sandboxes_like"), reference)?,
    };
    let missing = || CatalogError::SandboxMissing { reference: reference.to_owned() };
    sandbox(tx, id.ok_or_else(missing)?)
}

pub(super) fn find_snapshot(tx: &Transaction<'_>, reference: &str) -> Answer<SnapshotRecord> {
    let id = match one(tx, sql!("snapshot_named"), [reference])? {
        Some(named) => Some(named),
        None => only(tx, sql!("snapshots_like"), reference)?,
    };
    let missing = || CatalogError::SnapshotMissing { reference: reference.to_owned() };
    snapshot(tx, id.ok_or_else(missing)?)
}

pub(super) fn find_former_sandbox(
    tx: &Transaction<'_>,
    driver: &str,
    reference: &str,
) -> Answer<Option<SandboxId>> {
    match one(tx, sql!("former_sandbox_named"), (driver, reference))? {
        Some(named) => Ok(Some(named)),
        None => only(tx, sql!("former_sandboxes_like"), reference),
    }
}

pub(super) fn agent_state(tx: &Transaction<'_>, id: SnapshotId) -> Answer<Option<Bytes>> {
    let mut statement = tx.prepare_cached(sql!("agent_state"))?;
    let found: Option<Option<Vec<u8>>> =
        statement.query_row([Shown(id)], |row| row.get(0)).optional()?;
    let missing = || CatalogError::SnapshotMissing { reference: id.to_string() };
    Ok(found.ok_or_else(missing)?.map(Bytes::from))
}

fn one<T: Id>(tx: &Transaction<'_>, sql: &str, named: impl Params) -> Answer<Option<T>> {
    let mut statement = tx.prepare_cached(sql)?;
    let found = statement.query_row(named, |row| row.get(0)).optional()?;
    Ok(found.map(|Shown(id)| id))
}

/// The one id that begins with `reference`, which may be the whole of it: no name is an id, and no
/// id begins another.
fn only<T: Id>(tx: &Transaction<'_>, sql: &str, reference: &str) -> Answer<Option<T>> {
    let of_an_id = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if reference.is_empty() || !reference.bytes().all(of_an_id) {
        return Ok(None);
    }
    // `~` comes after all that an id is made of.
    let mut statement = tx.prepare_cached(sql)?;
    let matches = statement.query_map((reference, format!("{reference}~")), |row| row.get(0))?;
    let mut matches: Vec<Shown<T>> = matches.collect::<rusqlite::Result<_>>()?;
    match matches.len() {
        0 | 1 => Ok(matches.pop().map(|Shown(id)| id)),
        _ => {
            let matches = matches.iter().map(|Shown(id)| id.to_string()).collect();
            Err(CatalogError::Ambiguous { reference: reference.to_owned(), matches }.into())
        }
    }
}

trait Id: ToString + std::str::FromStr<Err = forkpoint_core::id::IdError> {}

impl Id for SandboxId {}
impl Id for SnapshotId {}
