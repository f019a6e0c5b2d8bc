//! `fork`: copies of one state, each with its own fate.

use forkpoint_core::{
    Error, ErrorKind,
    catalog::SandboxRecord,
    driver::SnapshotKind,
    engine::{ForkRequest, ForkSource, Forked},
    id::{SandboxId, SnapshotId},
    label::Labels,
    naming::Name,
};
use serde::Serialize;

use super::{Exit, Outcome};
use crate::{
    app::App,
    args::ForkArgs,
    fail::{About, Failure},
    output::record::shown,
};

#[derive(Serialize)]
struct ForkedJson<'a> {
    snapshot: SnapshotId,
    sandboxes: Vec<CopyJson<'a>>,
    failed: Vec<CopyJson<'a>>,
}

#[derive(Serialize)]
struct CopyJson<'a> {
    id: SandboxId,
    name: Option<&'a Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(super) async fn fork(app: &App, args: &ForkArgs) -> Outcome {
    let about = |err: &Error| match err.kind() {
        ErrorKind::NotFound => About::Source(args.source.clone()),
        ErrorKind::Conflict if args.name.is_some() => {
            About::New { name: args.name.clone(), template: None }
        }
        _ => About::Sandbox(args.source.clone()),
    };
    let request = request(app, args).await.map_err(|err| {
        let about = about(&err);
        Failure::new(err, about)
    })?;
    let forked = app.finish("forking", app.engine.fork(request)).await.map_err(|err| {
        let about = about(&err);
        Failure::new(err, about)
    })?;
    tell(app, args, &forked)
}

async fn request(app: &App, args: &ForkArgs) -> Result<ForkRequest, Error> {
    let name = args.name.as_deref().map(str::parse).transpose()?;
    let labels = Labels::new(args.copy.labels.clone())?;
    let source = source(app, &args.source).await?;
    Ok(ForkRequest {
        name,
        labels,
        env: args.copy.env(),
        wait: args.copy.wait.wait(),
        ..ForkRequest::new(source, args.count)
    })
}

/// What is called so, or has that id; else the only thing whose id begins so.
async fn source(app: &App, reference: &str) -> Result<ForkSource, Error> {
    let sandbox = || ForkSource::Sandbox(reference.to_owned(), SnapshotKind::Files);
    let snapshot = || ForkSource::Snapshot(reference.to_owned());
    if reference.contains('@') {
        return Ok(snapshot());
    }
    let named = |name: &str, id: &str| name == reference || id == reference;
    let found = app.engine.sandbox(reference).await.map(|view| view.record);
    let is_sandbox = |record: &SandboxRecord| named(&shown(record), &record.id.to_string());
    if found.as_ref().is_ok_and(is_sandbox) {
        return Ok(sandbox());
    }
    let taken = app.engine.show(reference).await.map(|view| view.record);
    match (found, taken) {
        (_, Ok(record)) if named(record.name.as_str(), &record.id.to_string()) => Ok(snapshot()),
        (Ok(found), Ok(taken)) => Err(Error::invalid(format!(
            "`{reference}` could be `{}` or `{}`: give more of it",
            found.id, taken.id
        ))),
        (Ok(_), Err(_)) => Ok(sandbox()),
        (Err(err), Ok(_)) if err.kind() == ErrorKind::NotFound => Ok(snapshot()),
        (Err(err), _) if err.kind() != ErrorKind::NotFound => Err(err),
        (_, Err(err)) if err.kind() != ErrorKind::NotFound => Err(err),
        _ => Err(Error::not_found(format!("no sandbox and no snapshot matches `{reference}`"))),
    }
}

fn tell(app: &App, args: &ForkArgs, forked: &Forked) -> Outcome {
    let (mut sandboxes, mut failed) = (Vec::new(), Vec::new());
    for child in &forked.children {
        let error = child.result.as_ref().err().map(|err| err.chain().to_string());
        let to = if error.is_some() { &mut failed } else { &mut sandboxes };
        to.push(CopyJson { id: child.id, name: child.name.as_ref(), error });
    }
    let exit = Exit(u8::from(!failed.is_empty()));
    if app.out.json {
        app.out.json(&ForkedJson { snapshot: forked.snapshot, sandboxes, failed })?;
        return Ok(exit);
    }
    for copy in &sandboxes {
        app.out.text(&copy.id.to_string())?;
    }
    for copy in &failed {
        app.out.warn(copy.error.as_deref().unwrap_or_default());
    }
    let (made, of) = (sandboxes.len(), forked.children.len());
    app.out.note(format!("made {made} of {of} copies of `{}`", args.source));
    Ok(exit)
}
