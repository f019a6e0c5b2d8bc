//! `import-legacy`: snapshots of the older manager, taken over one by one.

use forkpoint_core::{ErrorKind, engine::ClaimOutcome, id::SnapshotId, naming::Name};
use serde::Serialize;

use super::{Exit, Outcome};
use crate::{
    app::App,
    args::ImportLegacyArgs,
    fail::{About, Failure},
    legacy::{self, Legacy, Refusal},
    output::human::many,
    wire::{self, DOCKER},
};

#[derive(Serialize)]
struct Imported {
    dry_run: bool,
    snapshots: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    legacy_id: String,
    outcome: Fate,
    id: Option<SnapshotId>,
    name: Option<Name>,
    reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Fate {
    Imported,
    /// It was there already.
    Known,
    /// It is none, or was deleted here.
    Skipped,
    Failed,
}

pub(super) async fn import(app: &App, args: &ImportLegacyArgs) -> Outcome {
    let storage = legacy::read(&args.directory)?;
    if !args.dry_run {
        // There is no driver where nobody can tell the engine's place; this says why.
        wire::docker(&app.data)?;
    }
    let ids = storage.ids();
    let mut rows: Vec<Row> = storage.refused.iter().map(refused).collect();
    for legacy in &storage.snapshots {
        if app.is_interrupted() {
            break;
        }
        let row = match args.dry_run {
            true => planned(app, legacy).await,
            false => {
                let request = legacy.request(DOCKER, &ids);
                match app.finish("taking over a snapshot", app.engine.claim(request)).await {
                    Ok(outcome) => taken(legacy, outcome),
                    // The engine is away: the others would fare no better.
                    Err(err) if err.kind() == ErrorKind::Unavailable => {
                        tell(app, args, &rows)?;
                        return Err(Failure::new(err, About::Nothing));
                    }
                    Err(err) => failed(legacy, err.chain().to_string()),
                }
            }
        };
        rows.push(row);
    }
    tell(app, args, &rows)?;
    let bad = rows.iter().any(|row| row.outcome == Fate::Failed);
    if app.out.json {
        app.out.json(&Imported { dry_run: args.dry_run, snapshots: rows })?;
    }
    Ok(Exit(u8::from(bad)))
}

fn refused((legacy_id, refusal): &(String, Refusal)) -> Row {
    let outcome = match refusal {
        Refusal::Unfinished(_) => Fate::Skipped,
        Refusal::Damaged(_) => Fate::Failed,
    };
    let reason = Some(refusal.reason().to_owned());
    Row { legacy_id: legacy_id.clone(), outcome, id: None, name: None, reason }
}

async fn planned(app: &App, legacy: &Legacy) -> Row {
    let known = app.engine.show(&legacy.id().to_string()).await.ok();
    let outcome = if known.is_some() { Fate::Known } else { Fate::Imported };
    let name = known.map_or_else(|| legacy.name(), |known| known.record.name);
    row(legacy, outcome, Some(name), None)
}

fn taken(legacy: &Legacy, outcome: ClaimOutcome) -> Row {
    match outcome {
        ClaimOutcome::Claimed(record) => row(legacy, Fate::Imported, Some(record.name), None),
        ClaimOutcome::Known(record) => row(legacy, Fate::Known, Some(record.name), None),
        ClaimOutcome::Deleted => {
            let reason = "it was taken over before, and deleted here".to_owned();
            row(legacy, Fate::Skipped, None, Some(reason))
        }
    }
}

fn failed(legacy: &Legacy, reason: String) -> Row {
    row(legacy, Fate::Failed, None, Some(reason))
}

fn row(legacy: &Legacy, outcome: Fate, name: Option<Name>, reason: Option<String>) -> Row {
    let id = name.is_some().then(|| legacy.id());
    Row { legacy_id: legacy.legacy_id(), outcome, id, name, reason }
}

/// One line for each that is there now, and for each that is not.
fn tell(app: &App, args: &ImportLegacyArgs, rows: &[Row]) -> Result<(), Failure> {
    if app.out.json {
        return Ok(());
    }
    for row in rows {
        let (id, reason) = (&row.legacy_id, row.reason.as_deref().unwrap_or_default());
        match (row.outcome, row.id) {
            (Fate::Imported, Some(id)) => app.out.text(&id.to_string())?,
            (Fate::Failed, _) => app.out.warn(format!("`{id}`: {reason}")),
            (Fate::Skipped, _) => app.out.note(format!("`{id}` was left out: {reason}")),
            _ => {}
        }
    }
    let count = |fate| rows.iter().filter(|row| row.outcome == fate).count();
    let done = if args.dry_run { "would take over" } else { "took over" };
    let imported = many(count(Fate::Imported), "snapshot");
    let (known, left) = (count(Fate::Known), count(Fate::Skipped) + count(Fate::Failed));
    app.out.note(format!("{done} {imported}; {known} known already, {left} left out"));
    Ok(())
}
