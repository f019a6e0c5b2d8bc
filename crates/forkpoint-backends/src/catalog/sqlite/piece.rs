//! Pieces of artifacts, and who needs them.

use std::fmt::Display;

use forkpoint_core::{
    catalog::ChoreTask,
    driver::{Artifact, PieceName},
    id::{SandboxId, SnapshotId},
};
use rusqlite::{OptionalExtension as _, Transaction};

use super::{place::Answer, value::Shown};

pub(super) fn add(tx: &Transaction<'_>, driver: &str, artifact: &Artifact) -> Answer<()> {
    let mut insert = tx.prepare_cached(sql!("add_piece"))?;
    let mut hold = tx.prepare_cached(sql!("hold"))?;
    for piece in &artifact.pieces {
        let over = piece.over.as_ref().map(|over| &over.0);
        let seq: i64 = insert.query_row((driver, &piece.name.0, over), |row| row.get(0))?;
        hold.execute((seq, Shown(artifact.snapshot)))?;
    }
    Ok(())
}

/// The sandbox needs what the snapshot needs.
pub(super) fn hold_as(
    tx: &Transaction<'_>,
    driver: &str,
    from: SnapshotId,
    holder: SandboxId,
) -> Answer<()> {
    tx.prepare_cached(sql!("hold_as"))?.execute((driver, Shown(from), Shown(holder)))?;
    Ok(())
}

/// Answers with what it held, in order of name.
pub(super) fn release(
    tx: &Transaction<'_>,
    driver: &str,
    holder: impl Display,
) -> Answer<Vec<String>> {
    let holder = Shown(holder);
    let mut held = tx.prepare_cached(sql!("held"))?;
    let held = held.query_map((driver, &holder), |row| row.get(0))?;
    let held = held.collect::<rusqlite::Result<_>>()?;
    tx.prepare_cached(sql!("release"))?.execute([&holder])?;
    Ok(held)
}

/// `None` when somebody needs it; otherwise it is gone, and here is what lay below it.
pub(super) fn free(
    tx: &Transaction<'_>,
    driver: &str,
    name: &str,
) -> Answer<Option<Option<String>>> {
    let mut free = tx.prepare_cached(sql!("free_piece"))?;
    Ok(free.query_row((driver, name), |row| row.get("over")).optional()?)
}

pub(super) fn discard(name: String) -> ChoreTask {
    ChoreTask::Discard(PieceName(name))
}

pub(super) fn all(tx: &Transaction<'_>, driver: &str) -> Answer<Vec<PieceName>> {
    let mut pieces = tx.prepare_cached(sql!("pieces"))?;
    let pieces = pieces.query_map([driver], |row| row.get(0).map(PieceName))?;
    Ok(pieces.collect::<rusqlite::Result<_>>()?)
}
