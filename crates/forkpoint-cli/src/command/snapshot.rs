//! `snapshot`: keep this moment.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use bytes::Bytes;
use forkpoint_core::{
    Error, ErrorKind,
    driver::SnapshotKind,
    engine::{PruneReport, SkipReason, SnapshotOutcome, SnapshotRequest, TakenSnapshot},
    id::SnapshotId,
    label::Labels,
};
use serde::Serialize;

use super::{Exit, Outcome};
use crate::{
    app::App,
    args::{Full, SnapshotArgs, Tcp, value},
    fail::{About, Failure},
    output::{
        human::{many, size},
        record::{SnapshotJson, counted},
    },
};

#[derive(Serialize)]
struct Skipped {
    skipped: String,
    /// The one that holds this state already.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<SnapshotId>,
}

pub(super) async fn snapshot(app: &App, args: &SnapshotArgs) -> Outcome {
    let request = SnapshotRequest {
        skip_unchanged: args.skip_unchanged || app.config.settings.skip_unchanged,
        ..request(args)?
    };
    let work = app.engine.snapshot(request);
    let outcome = app.finish("taking a snapshot", work).await;
    let outcome = outcome.map_err(|err| {
        let about = about(args, &err);
        Failure::new(err, about)
    })?;
    match outcome {
        SnapshotOutcome::Taken(taken) => tell(app, &taken)?,
        SnapshotOutcome::Skipped(reason) => skipped(app, args, reason)?,
    }
    Ok(Exit::DONE)
}

fn skipped(app: &App, args: &SnapshotArgs, reason: SkipReason) -> Result<(), Failure> {
    let snapshot = match reason {
        SkipReason::Unchanged(snapshot) => Some(snapshot),
        _ => None,
    };
    if app.out.json {
        app.out.json(&Skipped { skipped: reason.to_string(), snapshot })?;
    } else {
        if let Some(snapshot) = snapshot {
            app.out.text(&snapshot.to_string())?;
        }
        app.out.note(format!("nothing was taken: {reason}"));
    }
    let lost = words(args);
    if let (Some(snapshot), false) = (snapshot, lost.is_empty()) {
        let lost = lost.join(", ");
        app.out.warn(format!("not kept: {lost}; `forkpoint edit {snapshot}` changes what it says"));
    }
    Ok(())
}

/// What was to be written on a snapshot, by its options.
fn words(args: &SnapshotArgs) -> Vec<&'static str> {
    let said = [
        ("--description", args.description.is_some()),
        ("--label", !args.labels.is_empty()),
        ("--context", args.context.is_some()),
        ("--run-id", args.run_id.is_some()),
        ("--step", args.step.is_some()),
    ];
    said.into_iter().filter(|(_, said)| *said).map(|(option, _)| option).collect()
}

fn request(args: &SnapshotArgs) -> Result<SnapshotRequest, Error> {
    Ok(SnapshotRequest {
        kind: if args.full.is_some() { SnapshotKind::Full } else { SnapshotKind::Files },
        or_files: args.full == Some(Full::Auto),
        volatile: args.tmpfs,
        close_connections: args.tcp == Tcp::Close,
        trigger: args.trigger,
        name: args.name.as_deref().map(str::parse).transpose()?,
        description: args.description.clone(),
        context: args.context.clone(),
        run_id: args.run_id.clone(),
        step: args.step,
        labels: Labels::new(args.labels.clone())?,
        agent_state: args.agent_state.as_deref().map(read).transpose()?,
        expires: args.expires.map(value::from_now).transpose()?,
        pinned: args.pin,
        sync: !args.no_sync,
        wait: args.wait.wait(),
        ..SnapshotRequest::new(&args.sandbox)
    })
}

/// What is longer is refused without being read to its end, whatever limit is configured.
const MAX_STATE_BYTES: u64 = 256 << 20;

fn read(path: &Path) -> Result<Bytes, Error> {
    let mut bytes = Vec::new();
    let most = MAX_STATE_BYTES + 1;
    let read = match path == Path::new("-") {
        true => io::stdin().lock().take(most).read_to_end(&mut bytes),
        false => File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)),
    };
    let named = format!("the agent's state from `{}`", path.display());
    read.map_err(|err| {
        let kind = match err.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Invalid,
        };
        Error::new(kind, format!("failed to read {named}")).with_source(err)
    })?;
    match bytes.len() as u64 > MAX_STATE_BYTES {
        true => Err(Error::invalid(format!(
            "{named} is longer than 256 MiB: what is so large can be a file in the sandbox"
        ))),
        false => Ok(Bytes::from(bytes)),
    }
}

/// A conflict is about the name that was asked for, or about the state of the sandbox.
fn about(args: &SnapshotArgs, err: &Error) -> About {
    match &args.name {
        Some(_) if err.kind() == ErrorKind::Conflict => {
            About::New { name: args.name.clone(), template: None }
        }
        _ if args.full.is_some() => About::Full(args.sandbox.clone()),
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
    if let Some(why) = &taken.files_alone {
        app.out.warn(format!("processes and memory were not kept: {why}"));
    }
    match &taken.pruned {
        Some(Ok(report)) => retained(app, report),
        Some(Err(err)) => app.out.warn(format!("retention has to wait: {}", err.chain())),
        None => {}
    }
    Ok(())
}

/// What the configured limits did, in a line.
pub(super) fn retained(app: &App, report: &PruneReport) {
    if !report.deleted.is_empty() {
        let (what, freed) = (many(report.deleted.len(), "snapshot"), size(report.freed_bytes));
        app.out.note(format!("retention deleted {what}, and {freed} came free"));
    }
    for (deletion, err) in &report.failed {
        app.out.warn(format!("retention keeps `{}`: {}", deletion.name, err.chain()));
    }
    for limit in &report.unmet {
        app.out.warn(format!("retention: {limit}"));
    }
}
