//! `log`: the lineage as a tree, with where each sandbox stands.

use std::collections::BTreeMap;

use forkpoint_core::{
    Error, Timestamp,
    driver::SnapshotKind,
    id::{SandboxId, SnapshotId},
    label::Labels,
    lineage::LineageRow,
    naming::Name,
    trigger::Trigger,
};
use serde::Serialize;

use super::{Exit, Outcome, ps};
use crate::{
    app::App,
    args::LogArgs,
    fail::{About, Failure},
    output::record::shown,
};

mod draw;

pub(super) use draw::draw;

/// Who stands where: the id and the shown name of each live sandbox.
type Stands = BTreeMap<SnapshotId, Vec<(SandboxId, String)>>;

#[derive(Serialize)]
struct Tree<'a> {
    snapshots: Vec<NodeJson<'a>>,
}

#[derive(Serialize)]
struct NodeJson<'a> {
    id: SnapshotId,
    name: &'a Name,
    parent: Option<SnapshotId>,
    depth: usize,
    sandbox: SandboxId,
    sandbox_name: Option<&'a Name>,
    kind: SnapshotKind,
    trigger: Trigger,
    description: Option<&'a str>,
    own_bytes: u64,
    created: Timestamp,
    deleted: bool,
    here: Vec<SandboxId>,
}

pub(super) async fn log(app: &App, args: &LogArgs) -> Outcome {
    let rows = app.engine.log(args.sandbox.as_deref()).await.map_err(|err| {
        let about = args.sandbox.clone().map_or(About::Nothing, About::Sandbox);
        Failure::new(err, about)
    })?;
    let stands = stands(app).await?;
    if app.out.json {
        let snapshots = rows.iter().map(|row| node(row, &stands)).collect();
        app.out.json(&Tree { snapshots })?;
    } else if rows.is_empty() {
        app.out.note("no snapshots: `forkpoint snapshot SANDBOX` takes one");
    } else {
        app.out.text(&draw(&rows, &stands, &app.out, app.now()).join("\n"))?;
    }
    Ok(Exit::DONE)
}

pub(super) async fn stands(app: &App) -> Result<Stands, Error> {
    let mut stands = Stands::new();
    for view in ps::all(app, Labels::default()).await? {
        if let Some(head) = view.record.head {
            stands.entry(head).or_default().push((view.record.id, shown(&view.record)));
        }
    }
    Ok(stands)
}

fn node<'a>(row: &'a LineageRow, stands: &Stands) -> NodeJson<'a> {
    let node = &row.node;
    let here = stands.get(&node.id).map(|here| here.iter().map(|(id, _)| *id).collect());
    NodeJson {
        id: node.id,
        name: &node.name,
        parent: node.parent,
        depth: row.depth,
        sandbox: node.sandbox,
        sandbox_name: node.sandbox_name.as_ref(),
        kind: node.kind,
        trigger: node.trigger,
        description: node.description.as_deref(),
        own_bytes: node.own_bytes,
        created: node.created,
        deleted: node.deleted,
        here: here.unwrap_or_default(),
    }
}
