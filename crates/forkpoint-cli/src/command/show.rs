//! `show`: everything about one snapshot.

use forkpoint_core::{Timestamp, catalog::SnapshotRecord, engine::SnapshotView, id::SnapshotId};
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
}

pub(super) async fn show(app: &App, args: &ShowArgs) -> Outcome {
    let about = || About::Snapshot(args.snapshot.clone());
    let view = app.engine.show(&args.snapshot).await;
    let view = view.map_err(|err| Failure::new(err, about()))?;
    if app.out.json {
        let ancestors = view.ancestors.iter().map(|node| node.id).collect();
        let snapshot = SnapshotJson::from(&view.record);
        app.out.json(&Shown { snapshot, ancestors, children: &view.children })?;
        return Ok(Exit::DONE);
    }
    let mut rows = facts(&view.record, app.now());
    rows.extend(lineage(&view));
    let wide = rows.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
    let lines: Vec<String> = rows
        .iter()
        .map(|(key, value)| {
            let key = format!("{key:wide$}");
            format!("{}  {}", app.out.paint.dim(&key), clean(value))
        })
        .collect();
    app.out.text(&lines.join("\n"))?;
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
