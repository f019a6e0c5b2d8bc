//! `list`: the snapshots, newest first.

use forkpoint_core::{
    Error,
    catalog::{SnapshotQuery, SnapshotRecord},
    label::Labels,
};
use serde::Serialize;

use super::{Exit, Outcome};
use crate::{
    app::App,
    args::ListArgs,
    fail::{About, Failure},
    output::{
        human::age,
        record::{SnapshotJson, counted},
        table::{Column, Table},
    },
};

/// What a person looks at.
const SHOWN: usize = 100;

/// What is asked for at once.
const PAGE: usize = 500;

#[derive(Serialize)]
struct Listing<'a> {
    snapshots: Vec<SnapshotJson<'a>>,
    more: bool,
}

pub(super) async fn list(app: &App, args: &ListArgs) -> Outcome {
    let (snapshots, more) = find(app, args).await.map_err(|err| {
        let about = args.sandbox.clone().map_or(About::Nothing, About::Sandbox);
        Failure::new(err, about)
    })?;
    if app.out.json {
        let snapshots = snapshots.iter().map(SnapshotJson::from).collect();
        app.out.json(&Listing { snapshots, more })?;
    } else if app.out.quiet {
        for snapshot in &snapshots {
            app.out.text(&snapshot.id.to_string())?;
        }
    } else if snapshots.is_empty() {
        app.out.note("no snapshots: `forkpoint snapshot SANDBOX` takes one");
    } else {
        app.out.text(&table(app, &snapshots))?;
        if more {
            app.out.note("there are more: `--limit N` shows them");
        }
    }
    Ok(Exit::DONE)
}

/// As many as are wanted, and whether there are more.
async fn find(app: &App, args: &ListArgs) -> Result<(Vec<SnapshotRecord>, bool), Error> {
    let all = app.out.json || app.out.quiet;
    let wanted = match args.limit {
        Some(limit) => usize::try_from(limit).unwrap_or(usize::MAX),
        None if all => usize::MAX,
        None => SHOWN,
    };
    let mut query = SnapshotQuery {
        trigger: args.trigger,
        labels: Labels::new(args.labels.clone())?,
        ..SnapshotQuery::default()
    };
    let mut found: Vec<SnapshotRecord> = Vec::new();
    loop {
        query.limit = Some(PAGE.min(wanted - found.len()));
        let page = match &args.sandbox {
            Some(sandbox) => app.engine.list_of(sandbox, query.clone()).await?,
            None => app.engine.list(&query).await?,
        };
        found.extend(page.items);
        query.after = page.next;
        if query.after.is_none() || found.len() >= wanted {
            return Ok((found, query.after.is_some()));
        }
    }
}

fn table(app: &App, snapshots: &[SnapshotRecord]) -> String {
    let mut table = Table::new([
        Column::Shrinks("NAME"),
        Column::Shrinks("SANDBOX"),
        Column::Whole("KIND"),
        Column::Whole("TRIGGER"),
        Column::Number("SIZE"),
        Column::Number("AGE"),
        Column::Shrinks("DESCRIPTION"),
    ]);
    let now = app.now();
    for snapshot in snapshots {
        let sandbox = snapshot.sandbox_name.as_ref();
        table.add([
            snapshot.name.to_string(),
            sandbox.map_or_else(|| snapshot.sandbox.to_string(), ToString::to_string),
            snapshot.kind.to_string(),
            snapshot.trigger.to_string(),
            counted(snapshot, snapshot.own_bytes),
            age(snapshot.created, now),
            snapshot.description.clone().unwrap_or_default(),
        ]);
    }
    let paint = app.out.paint;
    table.render(app.out.width, paint, |column, text| (column == "NAME").then(|| paint.bold(text)))
}
