//! `snapshot`: keep this moment.

use std::{fs, path::Path};

use bytes::Bytes;
use forkpoint_core::{
    Error, ErrorKind,
    driver::SnapshotKind,
    engine::{SnapshotOutcome, SnapshotRequest, TakenSnapshot},
    label::Labels,
};
use serde::Serialize;

use super::{Exit, Outcome};
use crate::{
    app::App,
    args::SnapshotArgs,
    fail::{About, Failure},
    output::record::{SnapshotJson, counted},
};

#[derive(Serialize)]
struct Skipped {
    skipped: String,
}

pub(super) async fn snapshot(app: &App, args: &SnapshotArgs) -> Outcome {
    let request = request(args)?;
    let work = app.engine.snapshot(request);
    let outcome = app.finish("taking a snapshot", work).await;
    let outcome = outcome.map_err(|err| {
        let about = about(args, &err);
        Failure::new(err, about)
    })?;
    match outcome {
        SnapshotOutcome::Taken(taken) => tell(app, &taken)?,
        SnapshotOutcome::Skipped(reason) if app.out.json => {
            app.out.json(&Skipped { skipped: reason.to_string() })?;
        }
        SnapshotOutcome::Skipped(reason) => app.out.note(format!("nothing was taken: {reason}")),
    }
    Ok(Exit::DONE)
}

fn request(args: &SnapshotArgs) -> Result<SnapshotRequest, Error> {
    Ok(SnapshotRequest {
        kind: if args.full { SnapshotKind::Full } else { SnapshotKind::Files },
        trigger: args.trigger,
        name: args.name.as_deref().map(str::parse).transpose()?,
        description: args.description.clone(),
        context: args.context.clone(),
        run_id: args.run_id.clone(),
        step: args.step,
        labels: Labels::new(args.labels.clone())?,
        agent_state: args.agent_state.as_deref().map(read).transpose()?,
        sync: !args.no_sync,
        wait: args.wait.wait(),
        ..SnapshotRequest::new(&args.sandbox)
    })
}

fn read(path: &Path) -> Result<Bytes, Error> {
    fs::read(path).map(Bytes::from).map_err(|err| {
        let kind = match err.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Invalid,
        };
        let message = format!("failed to read the agent's state from `{}`", path.display());
        Error::new(kind, message).with_source(err)
    })
}

/// A conflict is about the name that was asked for, or about the state of the sandbox.
fn about(args: &SnapshotArgs, err: &Error) -> About {
    match &args.name {
        Some(_) if err.kind() == ErrorKind::Conflict => {
            About::New { name: args.name.clone(), template: None }
        }
        _ if args.full => About::Full(args.sandbox.clone()),
        _ => About::Sandbox(args.sandbox.clone()),
    }
}

fn tell(app: &App, taken: &TakenSnapshot) -> Result<(), Failure> {
    let snapshot = &taken.snapshot;
    if app.out.json {
        app.out.json(&SnapshotJson::from(snapshot))?;
    } else {
        app.out.text(&snapshot.id.to_string())?;
        let (name, own) = (&snapshot.name, counted(snapshot, snapshot.own_bytes));
        app.out.note(format!("took snapshot `{name}`, {own} of its own"));
    }
    if let Some(Err(err)) = &taken.pruned {
        app.out.warn(format!("retention has to wait: {}", err.chain()));
    }
    Ok(())
}
