//! `show`: everything about one snapshot.

use std::{
    fs,
    io::{self, Write as _},
};

use forkpoint_core::{
    Error, Timestamp,
    catalog::SnapshotRecord,
    driver::KeptProcess,
    engine::SnapshotView,
    id::SnapshotId,
    spec::{Workspace, WorkspaceMode},
};
use serde::Serialize;

use super::{Exit, Outcome};
use crate::{
    app::App,
    args::ShowArgs,
    fail::{About, Failure},
    output::{
        human::{clean, moment, size},
        record::SnapshotJson,
    },
};

/// Relatives that are named.
const NEAREST: usize = 5;

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    snapshot: SnapshotJson<'a>,
    ancestors: Vec<SnapshotId>,
    children: &'a [SnapshotId],
    /// Of a full one, where its driver can tell.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    processes: Vec<&'a KeptProcess>,
}

pub(super) async fn show(app: &App, args: &ShowArgs) -> Outcome {
    let about = || About::Snapshot(args.snapshot.clone());
    if args.agent_state {
        return agent_state(app, args).await;
    }
    let view = app.engine.show(&args.snapshot).await;
    let view = view.map_err(|err| Failure::new(err, about()))?;
    if app.out.json {
        let ancestors = view.ancestors.iter().map(|node| node.id).collect();
        let snapshot = SnapshotJson::from(&view.record);
        let processes = view.processes.iter().flatten().collect();
        app.out.json(&Shown { snapshot, ancestors, children: &view.children, processes })?;
        return Ok(Exit::DONE);
    }
    let mut rows = facts(&view.record, app.now());
    rows.extend(processes(&view));
    rows.extend(lineage(&view));
    app.out.text(&crate::output::facts(&app.out, &rows))?;
    Ok(Exit::DONE)
}

/// The bytes as they are: whatever they hold, it is what the agent left.
async fn agent_state(app: &App, args: &ShowArgs) -> Outcome {
    let about = || About::Snapshot(args.snapshot.clone());
    let state = app.engine.agent_state(&args.snapshot).await;
    let state = state.map_err(|err| Failure::new(err, about()))?.ok_or_else(|| {
        let message = format!("no agent left a state with snapshot `{}`", args.snapshot);
        Failure::from(Error::not_found(message))
    })?;
    match &args.output {
        Some(path) => fs::write(path, &state).map_err(|err| {
            let message = format!("failed to write `{}`", path.display());
            Failure::from(Error::invalid(message).with_source(err))
        })?,
        None => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&state).and_then(|()| stdout.flush())?;
        }
    }
    Ok(Exit::DONE)
}

fn facts(record: &SnapshotRecord, now: Timestamp) -> Vec<(&'static str, String)> {
    let sandbox = match &record.sandbox_name {
        Some(name) => format!("{name} ({})", record.sandbox),
        None => record.sandbox.to_string(),
    };
    let mut rows = vec![
        ("id", record.id.to_string()),
        ("name", record.name.to_string()),
        ("sandbox", sandbox),
        ("created", moment(record.created, now)),
        ("trigger", record.trigger.to_string()),
        ("kind", record.kind.to_string()),
        ("driver", record.driver.clone()),
        ("template", record.spec.template.to_string()),
    ];
    rows.extend(record.spec.workspaces.iter().map(|each| ("workspace", workspace(each))));
    let mut add = |key, value: Option<String>| rows.extend(value.map(|value| (key, value)));
    add("description", record.description.clone());
    add("context", record.context.clone());
    add("run", record.run_id.clone());
    add("step", record.step.map(|step| step.to_string()));
    for (key, value) in record.labels.iter() {
        add("label", Some(format!("{key}={value}")));
    }
    add("agent state", record.agent_state_bytes.map(size));
    let (own, total) = (size(record.own_bytes), size(record.total_bytes));
    add(
        "size",
        match record.artifact.counted {
            true => Some(format!("{own} of its own, {total} in all, {} files", record.file_count)),
            false => Some("not counted: it was taken with `--no-sync`, and is large".to_owned()),
        },
    );
    add("durable", Some(if record.durable { "yes" } else { "not against a power cut" }.to_owned()));
    add("expires", record.expires.map(|at| moment(at, now)));
    add("pinned", record.pinned.then(|| "yes".to_owned()));
    let last = record.last_restored.map(|at| format!(", last {}", moment(at, now)));
    let times = |count: u64| format!("{count} times{}", last.unwrap_or_default());
    add("restored", (record.restore_count > 0).then(|| times(record.restore_count)));
    rows
}

fn workspace(workspace: &Workspace) -> String {
    let Workspace { source, at, mode, .. } = workspace;
    match mode {
        WorkspaceMode::Live => format!("{source} at {at}"),
        WorkspaceMode::Copy => format!("a copy of {source} at {at}"),
    }
}

/// The first of them, and how many there are.
fn processes(view: &SnapshotView) -> Vec<(&'static str, String)> {
    let processes = match &view.processes {
        Ok(processes) => processes,
        Err(err) => return vec![("processes", format!("cannot be read: {}", err.chain()))],
    };
    let row = |process: &KeptProcess| {
        let KeptProcess { pid, name, threads, memory_bytes } = process;
        let threads = if *threads > 1 { format!(", {threads} threads") } else { String::new() };
        ("process", format!("{pid} {}{threads}, {}", clean(name), size(*memory_bytes)))
    };
    let named = processes.iter().take(NEAREST).map(row);
    named.chain(more("process", processes.len())).collect()
}

/// The nearest of both directions; `log` draws all of it.
fn lineage(view: &SnapshotView) -> Vec<(&'static str, String)> {
    let from = view.ancestors.iter().take(NEAREST).map(|node| {
        let gone = if node.deleted { ", deleted" } else { "" };
        ("comes from", format!("{} ({}{gone})", node.name, node.id))
    });
    let to = view.children.iter().take(NEAREST).map(|id| ("led to", id.to_string()));
    from.chain(more("comes from", view.ancestors.len()))
        .chain(to)
        .chain(more("led to", view.children.len()))
        .collect()
}

fn more(key: &'static str, count: usize) -> Option<(&'static str, String)> {
    (count > NEAREST).then(|| (key, format!("… and {} more", count - NEAREST)))
}
