//! `stats`: how much there is, and what it occupies.

use std::{collections::BTreeMap, path::Path};

use forkpoint_core::{
    Timestamp,
    catalog::{DriverUsage, Usage},
    engine::Stats,
    label::Labels,
};
use serde::Serialize;

use super::{Exit, Outcome, ps};
use crate::{
    app::App,
    output::{
        facts,
        human::{moment, size},
        record::state,
    },
};

const STATES: [&str; 5] = ["running", "paused", "stopped", "lost", "unknown"];

#[derive(Serialize)]
struct StatsJson<'a> {
    data_dir: &'a Path,
    sandboxes: BTreeMap<&'static str, u64>,
    snapshots: u64,
    pinned: u64,
    own_bytes: u64,
    stored_bytes: u64,
    total_bytes: u64,
    oldest: Option<Timestamp>,
    newest: Option<Timestamp>,
    drivers: &'a [DriverUsage],
    open_operations: usize,
    waiting_chores: usize,
    disk_free_bytes: Option<u64>,
}

pub(super) async fn stats(app: &App) -> Outcome {
    let stats = app.engine.stats().await?;
    let mut sandboxes: BTreeMap<_, u64> = STATES.into_iter().map(|state| (state, 0)).collect();
    for view in ps::all(app, Labels::default()).await? {
        *sandboxes.entry(state(&view)).or_default() += 1;
    }
    let free = free_bytes(&app.data);
    if app.out.json {
        app.out.json(&as_json(app, &stats, sandboxes, free))?;
    } else {
        app.out.text(&facts(&app.out, &rows(app, &stats, &sandboxes, free)))?;
    }
    Ok(Exit::DONE)
}

/// What somebody who is not root can still write there.
fn free_bytes(data: &Path) -> Option<u64> {
    let room = rustix::fs::statvfs(data).ok()?;
    room.f_bavail.checked_mul(room.f_frsize)
}

fn as_json<'a>(
    app: &'a App,
    stats: &'a Stats,
    sandboxes: BTreeMap<&'static str, u64>,
    disk_free_bytes: Option<u64>,
) -> StatsJson<'a> {
    let usage = &stats.usage;
    StatsJson {
        data_dir: &app.data,
        sandboxes,
        snapshots: usage.snapshots,
        pinned: usage.pinned,
        own_bytes: usage.own_bytes,
        stored_bytes: usage.stored_bytes,
        total_bytes: usage.total_bytes,
        oldest: usage.oldest,
        newest: usage.newest,
        drivers: &usage.drivers,
        open_operations: stats.open_operations,
        waiting_chores: stats.waiting_chores,
        disk_free_bytes,
    }
}

fn rows(
    app: &App,
    stats: &Stats,
    sandboxes: &BTreeMap<&'static str, u64>,
    free: Option<u64>,
) -> Vec<(&'static str, String)> {
    let (usage, now) = (&stats.usage, app.now());
    let states: Vec<String> = STATES
        .iter()
        .filter_map(|state| {
            let count = sandboxes.get(state).filter(|count| **count > 0)?;
            Some(format!("{count} {state}"))
        })
        .collect();
    let pinned =
        if usage.pinned > 0 { format!(", {} pinned", usage.pinned) } else { String::new() };
    let mut rows = vec![
        ("sandboxes", if states.is_empty() { "none".to_owned() } else { states.join(", ") }),
        ("snapshots", format!("{}{pinned}", usage.snapshots)),
        ("stored", stored(usage)),
    ];
    let mut add = |key, value: Option<String>| rows.extend(value.map(|value| (key, value)));
    add("oldest", usage.oldest.map(|at| moment(at, now)));
    add("newest", usage.newest.map(|at| moment(at, now)));
    for DriverUsage { driver, snapshots, own_bytes } in &usage.drivers {
        let own = size(*own_bytes);
        add("driver", Some(format!("{driver}: {snapshots} snapshots, {own} of their own")));
    }
    let (open, waiting) = (stats.open_operations, stats.waiting_chores);
    add("under way", (open > 0).then(|| format!("{open} operations")));
    add("waiting", (waiting > 0).then(|| format!("{waiting} pieces of clean-up")));
    add("disk free", free.map(size));
    add("data in", Some(app.data.display().to_string()));
    rows
}

fn stored(usage: &Usage) -> String {
    let stored = size(usage.stored_bytes);
    match usage.total_bytes.saturating_sub(usage.stored_bytes) {
        0 => stored,
        saved => format!(
            "{stored}; {} if nothing were shared, so {} saved",
            size(usage.total_bytes),
            size(saved)
        ),
    }
}
