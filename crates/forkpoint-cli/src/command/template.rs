//! `template`: the starting points of sandboxes.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use forkpoint_backends::{
    driver::local::{Removal, TemplateKind, TemplateRecord},
    image::{Digest, Progress},
};
use forkpoint_core::{
    Error, ErrorKind, Timestamp,
    catalog::{SnapshotQuery, SnapshotRecord},
    spec::WorkspaceMode,
};
use futures::future::{Either, select};
use serde::Serialize;
use tokio::time::timeout;

use super::{Exit, Outcome, Several};
use crate::{
    app::App,
    args::{AddArgs, PromoteArgs, TemplateArgs, TemplateVerb},
    fail::{About, Failure, INTERRUPTED},
    output::{
        human::{age, size},
        progress::{Spinner, TICK_MS, far},
        record::FailedJson,
        say,
        table::{Column, Table},
    },
    signal::Signals,
};

/// Snapshots that are asked for at once.
const PAGE: usize = 500;

/// How long an interrupted image has to be cleared away.
const CLEAR_UP: Duration = Duration::from_secs(3);

/// How many users of a template are told.
const TOLD: usize = 5;

pub(super) async fn template(app: &App, args: &TemplateArgs) -> Outcome {
    match &args.verb {
        TemplateVerb::Ls => ls(app).await,
        TemplateVerb::Add(args) => add(app, args).await,
        TemplateVerb::Rm(args) => rm(app, &args.templates).await,
        TemplateVerb::Promote(args) => promote(app, args).await,
    }
}

#[derive(Serialize)]
struct TemplateJson<'a> {
    name: &'a str,
    kind: &'a str,
    source: &'a str,
    digest: Option<&'a str>,
    layers: usize,
    bytes: Option<u64>,
    env: BTreeMap<&'a str, &'a str>,
    entrypoint: &'a [String],
    cmd: &'a [String],
    user: Option<&'a str>,
    workdir: Option<&'a str>,
    ports: &'a [String],
    created: Option<Timestamp>,
    devices_left_out: u64,
}

impl<'a> From<&'a TemplateRecord> for TemplateJson<'a> {
    fn from(record: &'a TemplateRecord) -> Self {
        let config = &record.config;
        // What an image says is public; what somebody set for a sandbox may be a secret.
        let env = match record.kind {
            TemplateKind::Image => {
                config.env.iter().map(|(key, value)| (&**key, &**value)).collect()
            }
            _ => BTreeMap::new(),
        };
        Self {
            name: &record.name,
            kind: record.kind.as_str(),
            source: &record.source,
            digest: record.digest.as_ref().map(Digest::as_str),
            layers: record.layers.len(),
            bytes: (record.kind != TemplateKind::Directory).then_some(record.bytes),
            env,
            entrypoint: &config.entrypoint,
            cmd: &config.cmd,
            user: config.user.as_deref(),
            workdir: config.workdir.as_deref(),
            ports: &config.ports,
            created: Some(record.created),
            devices_left_out: record.devices_left_out,
        }
    }
}

/// What needs no record.
const HOST: TemplateJson<'static> = TemplateJson {
    name: "host",
    kind: "host",
    source: "this machine",
    digest: None,
    layers: 0,
    bytes: None,
    env: BTreeMap::new(),
    entrypoint: &[],
    cmd: &[],
    user: None,
    workdir: None,
    ports: &[],
    created: None,
    devices_left_out: 0,
};

#[derive(Serialize)]
struct Listing<'a> {
    templates: Vec<TemplateJson<'a>>,
    total_bytes: u64,
}

async fn ls(app: &App) -> Outcome {
    let templates = app.templates.clone();
    let (records, total_bytes) =
        blocking(move || Ok((templates.list()?, templates.total_bytes()?))).await?;
    let all: Vec<TemplateJson<'_>> =
        [HOST].into_iter().chain(records.iter().map(TemplateJson::from)).collect();
    if app.out.json {
        app.out.json(&Listing { templates: all, total_bytes })?;
    } else if app.out.quiet {
        for template in &all {
            app.out.text(template.name)?;
        }
    } else {
        app.out.text(&table(app, &all))?;
        app.out.note(format!("{} in all, what several share counted once", size(total_bytes)));
    }
    Ok(Exit::DONE)
}

fn table(app: &App, templates: &[TemplateJson<'_>]) -> String {
    let mut table = Table::new([
        Column::Shrinks("NAME"),
        Column::Whole("KIND"),
        Column::Number("LAYERS"),
        Column::Number("SIZE"),
        Column::Number("AGE"),
        Column::Shrinks("SOURCE"),
    ]);
    let now = app.now();
    for template in templates {
        table.add([
            template.name.to_owned(),
            template.kind.to_owned(),
            template.layers.to_string(),
            template.bytes.map_or_else(|| "-".to_owned(), size),
            template.created.map_or_else(|| "-".to_owned(), |created| age(created, now)),
            template.source.to_owned(),
        ]);
    }
    table.render(app.out.width, app.out.paint, |_, _| None)
}

async fn add(app: &App, args: &AddArgs) -> Outcome {
    let record = fetch(app, Some(&args.name), &args.image).await?;
    told(app, &record, "added")
}

fn told(app: &App, record: &TemplateRecord, done: &str) -> Outcome {
    if app.out.json {
        app.out.json(&TemplateJson::from(record))?;
        return Ok(Exit::DONE);
    }
    app.out.text(&record.name)?;
    app.out.note(format!("{done} template `{}`, {}", record.name, size(record.bytes)));
    if record.devices_left_out > 0 {
        let devices = record.devices_left_out;
        app.out.note(format!("{devices} devices were left out: a sandbox has its own /dev"));
    }
    Ok(Exit::DONE)
}

/// Makes a template, with a sign of how far it has come. Ctrl-C leaves nothing of it.
pub(super) async fn fetch(
    app: &App,
    name: Option<&str>,
    source: &str,
) -> Result<TemplateRecord, Failure> {
    let (progress, now) = (Progress::default(), app.now());
    let work = {
        let (templates, progress) = (app.templates.clone(), progress.clone());
        let (name, source) = (name.map(str::to_owned), source.to_owned());
        move || templates.add(name.as_deref(), &source, now, &progress)
    };
    let failed = |err: Error| match app.is_interrupted() {
        true => Failure::new(err, About::Nothing).with_code(INTERRUPTED),
        false => Failure::new(err, About::Image),
    };
    let mut signals = Signals::that_end().map_err(|err| {
        let err =
            Error::new(ErrorKind::Unavailable, "failed to listen for signals").with_source(err);
        Failure::from(err)
    })?;
    let mut spinner = Spinner::new(&app.out, "unpacking");
    let mut work = pin!(blocking(work));
    loop {
        let tick = pin!(tokio::time::sleep(Duration::from_millis(TICK_MS)));
        let signal = pin!(signals.next());
        match select(&mut work, select(signal, tick)).await {
            Either::Left((result, _)) => return result.map_err(failed),
            Either::Right((Either::Right(_), _)) => spinner.tick_at(&far(&progress)),
            Either::Right((Either::Left(_), _)) => {
                spinner.clear();
                app.interrupt();
                progress.stop();
                say("clearing up…");
                // Whoever waits for bytes that do not come hears nothing of it. What is left is
                // swept by the next who adds or removes a template.
                return match timeout(CLEAR_UP, work).await {
                    Ok(result) => result.map_err(failed),
                    Err(_) => Err(failed(Error::new(ErrorKind::Unavailable, "interrupted"))),
                };
            }
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let ended = |err| Error::new(ErrorKind::Internal, "the work stopped").with_source(err);
    tokio::task::spawn_blocking(work).await.map_err(ended)?
}

async fn promote(app: &App, args: &PromoteArgs) -> Outcome {
    let about = || About::Snapshot(args.snapshot.clone());
    let found = app.engine.show(&args.snapshot).await;
    let snapshot = found.map_err(|err| Failure::new(err, about()))?.record;
    let live = snapshot.spec.workspaces.iter().find(|each| each.mode == WorkspaceMode::Live);
    let about = About::Promote(live.map(|live| live.source.clone()));
    let (templates, now, name) = (app.templates.clone(), app.now(), args.name.clone());
    let work = blocking(move || templates.promote(&snapshot.artifact, &snapshot.spec, &name, now));
    let record = app.finish("making a template", work).await;
    told(app, &record.map_err(|err| Failure::new(err, about))?, "made")
}

#[derive(Serialize)]
struct Removed<'a> {
    removed: Vec<&'a str>,
    failed: Vec<FailedJson>,
}

async fn rm(app: &App, names: &[String]) -> Outcome {
    let mut several = Several::default();
    let mut removed = Vec::new();
    for name in names {
        if app.is_interrupted() {
            break;
        }
        match app.finish("removing a template", remove(app, name)).await {
            Ok(()) => {
                app.out.note(format!("removed template `{name}`"));
                removed.push(name.as_str());
            }
            Err(err) => several.failed(app, name, err, About::Template).await,
        }
    }
    let exit = several.exit();
    if app.out.json {
        app.out.json(&Removed { removed, failed: several.failed })?;
    }
    Ok(exit)
}

/// Sandboxes first: once none uses it and none can begin to, no snapshot of one can come any more.
async fn remove(app: &App, name: &str) -> Result<(), Error> {
    let (templates, wanted) = (app.templates.clone(), name.to_owned());
    let removal = blocking(move || templates.remove(&wanted)).await?;
    let users = snapshots_on(app, &removal).await?;
    if !users.is_empty() {
        let more = users.len().saturating_sub(TOLD);
        let mut message = format!(
            "template `{name}` is in use by snapshot `{}`",
            users[..users.len() - more].join("`, `")
        );
        if more > 0 {
            message.push_str(&format!(" and {more} more"));
        }
        return Err(Error::new(ErrorKind::Conflict, message));
    }
    blocking(move || removal.finish()).await
}

async fn snapshots_on(app: &App, removal: &Removal) -> Result<Vec<String>, Error> {
    let is_on = |snapshot: &&SnapshotRecord| {
        snapshot.spec.template.as_str() == removal.record().name
            || removal.is_under(&snapshot.artifact)
    };
    let mut query = SnapshotQuery { limit: Some(PAGE), ..SnapshotQuery::default() };
    let mut users = Vec::new();
    loop {
        let page = app.engine.list(&query).await?;
        users.extend(page.items.iter().filter(is_on).map(|snapshot| snapshot.name.to_string()));
        query.after = page.next;
        if query.after.is_none() {
            return Ok(users);
        }
    }
}
