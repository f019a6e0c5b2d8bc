//! Pieces of artifacts, and who needs them.

use std::fmt::Display;

use forkpoint_core::{
    catalog::CatalogError,
    driver::{Artifact, Piece, PieceName},
    id::{SandboxId, SnapshotId},
};
use rusqlite::{OptionalExtension as _, Row, Transaction};

use super::{
    place::Answer,
    row::unsigned,
    value::{Shown, Unsigned},
};

pub(super) fn add(tx: &Transaction<'_>, driver: &str, artifact: &Artifact) -> Answer<()> {
    let mut insert = tx.prepare_cached(sql!("add_piece"))?;
    let mut hold = tx.prepare_cached(sql!("hold"))?;
    for piece in &artifact.pieces {
        let over = piece.over.as_ref().map(|over| &over.0);
        let row = (driver, &piece.name.0, over, Unsigned(piece.bytes));
        let seq: i64 = insert.query_row(row, |row| row.get(0))?;
        hold.execute((seq, Shown(artifact.snapshot)))?;
    }
    artifact.pieces.iter().try_for_each(|piece| check_over(tx, driver, piece))
}

/// What a piece lies over must be counted, or it could go from under it.
fn check_over(tx: &Transaction<'_>, driver: &str, piece: &Piece) -> Answer<()> {
    let Some(over) = &piece.over else { return Ok(()) };
    let mut exists = tx.prepare_cached(sql!("piece_exists"))?;
    match exists.query_row((driver, &over.0), |row| row.get(0))? {
        true => Ok(()),
        false => Err(CatalogError::PieceUnknown { piece: piece.name.clone() }.into()),
    }
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

/// `None` when somebody needs it; otherwise it is counted no more, and here is what it was.
pub(super) fn free(tx: &Transaction<'_>, driver: &str, name: &str) -> Answer<Option<Piece>> {
    let mut free = tx.prepare_cached(sql!("free_piece"))?;
    let piece = |row: &Row<'_>| {
        let over: Option<String> = row.get("over")?;
        let name = PieceName(row.get("name")?);
        Ok(Piece { name, over: over.map(PieceName), bytes: unsigned(row, "bytes")? })
    };
    Ok(free.query_row((driver, name), piece).optional()?)
}

pub(super) fn all(tx: &Transaction<'_>, driver: &str) -> Answer<Vec<PieceName>> {
    let mut pieces = tx.prepare_cached(sql!("pieces"))?;
    let pieces = pieces.query_map([driver], |row| row.get(0).map(PieceName))?;
    Ok(pieces.collect::<rusqlite::Result<_>>()?)
}
