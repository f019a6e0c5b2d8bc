//! `fork`: copies of one state, each with its own fate.

use forkpoint_core::{
    Error, ErrorKind,
    driver::SnapshotKind,
    engine::{ForkRequest, ForkSource, Forked, Subject},
    id::{SandboxId, SnapshotId},
    label::Labels,
    naming::Name,
};
use serde::Serialize;

use super::{
    Exit, Outcome,
    drift::{self, DriftJson},
};
use crate::{
    app::App,
    args::ForkArgs,
    fail::{About, Failure},
    hint::no_room,
};

#[derive(Serialize)]
struct ForkedJson<'a> {
    snapshot: SnapshotId,
    sandboxes: Vec<CopyJson<'a>>,
    failed: Vec<CopyJson<'a>>,
    drift: Vec<DriftJson>,
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
    let is_new = matches!(request.source, ForkSource::Sandbox(..));
    let forked = app.finish("forking", app.engine.fork(request)).await.map_err(|err| {
        let about = about(&err);
        Failure::new(err, about)
    })?;
    // A snapshot that was taken a moment ago is of what the host has now.
    let drift = match is_new {
        true => Vec::new(),
        false => drift::tell_of(app, forked.snapshot).await,
    };
    tell(app, args, &forked, drift)
}

async fn request(app: &App, args: &ForkArgs) -> Result<ForkRequest, Error> {
    let name = args.name.as_deref().map(str::parse).transpose()?;
    let labels = Labels::new(args.copy.labels.clone())?;
    let source = source(app, &args.source).await?;
    Ok(ForkRequest {
        name,
        labels,
        env: args.copy.env(),
        attachments: args.copy.container.attachments(),
        expires: args.copy.expires(&app.config.settings.defaults)?,
        wait: args.copy.wait.wait(),
        ..ForkRequest::new(source, args.count)
    })
}

async fn source(app: &App, reference: &str) -> Result<ForkSource, Error> {
    let name = reference.to_owned();
    Ok(match app.engine.subject(reference).await? {
        Subject::Sandbox(_) => ForkSource::Sandbox(name, SnapshotKind::Files),
        Subject::Snapshot(_) => ForkSource::Snapshot(name),
    })
}

fn tell(app: &App, args: &ForkArgs, forked: &Forked, drift: Vec<DriftJson>) -> Outcome {
    let (mut sandboxes, mut failed) = (Vec::new(), Vec::new());
    for child in &forked.children {
        let error = child.result.as_ref().err().map(|err| err.chain().to_string());
        let to = if error.is_some() { &mut failed } else { &mut sandboxes };
        to.push(CopyJson { id: child.id, name: child.name.as_ref(), error });
    }
    let exit = Exit(u8::from(!failed.is_empty()));
    if app.out.json {
        app.out.json(&ForkedJson { snapshot: forked.snapshot, sandboxes, failed, drift })?;
        return Ok(exit);
    }
    for copy in &sandboxes {
        app.out.text(&copy.id.to_string())?;
    }
    for copy in &failed {
        app.out.warn(copy.error.as_deref().unwrap_or_default());
    }
    let mut errors = forked.children.iter().filter_map(|child| child.result.as_ref().err());
    if let Some(hint) = errors.find_map(|err| no_room(err, Some(app))) {
        app.out.hint(&hint);
    }
    let (made, of) = (sandboxes.len(), forked.children.len());
    app.out.note(format!("made {made} of {of} copies of `{}`", args.source));
    Ok(exit)
}
