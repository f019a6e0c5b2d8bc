//! `diff`: what two states of files differ in.

use std::{
    io::{self, Write as _},
    path::Path,
};

use forkpoint_core::{
    Error,
    driver::{ChangeKind, FileChange, FileFacts, FileKind},
    engine::{CompareRequest, Comparison},
};
use serde::Serialize;

use super::{Exit, Outcome};
use crate::{
    app::App,
    args::DiffArgs,
    fail::{About, Failure, INTERRUPTED},
    output::{
        Output,
        file::{FactsJson, PathJson, kind_name},
        pager::{Pager, enough},
        quote::quote,
    },
};

mod content;
mod patch;
mod stat;

#[derive(Serialize)]
struct DiffJson<'a> {
    from: &'a str,
    to: &'a str,
    changes: Vec<ChangeJson<'a>>,
    too_deep: u64,
}

#[derive(Serialize)]
struct ChangeJson<'a> {
    change: &'static str,
    path: PathJson<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    renamed_from: Option<PathJson<'a>>,
    before: Option<FactsJson>,
    after: Option<FactsJson>,
}

pub(super) async fn diff(app: &App, args: &DiffArgs) -> Outcome {
    let request =
        CompareRequest { from: args.from.clone(), to: args.to.clone(), under: args.paths.clone() };
    let compared = app.until_interrupted(Some("comparing"), app.engine.compare(&request)).await?;
    let found = match compared {
        Some(Ok(found)) => found,
        Some(Err(err)) => return Err(explained(app, args, err).await),
        None => return Ok(Exit(INTERRUPTED)),
    };
    if app.out.json {
        app.out.json(&json(&found))?;
        return Ok(Exit::DONE);
    }
    let exit = page(app, async |to| print(app, args, &found, to).await).await?;
    if found.diff.too_deep > 0 {
        let count = found.diff.too_deep;
        app.out.warn(format!("{count} directories lie too deep, and were not compared"));
    }
    Ok(exit)
}

/// Prints a patch whose paths begin at `root`.
pub(super) async fn tell_patch(app: &App, found: &Comparison, root: &Path) -> Outcome {
    page(app, async |to| patch::print(app, found, root, to).await).await
}

/// Ctrl-C is for the pager while there is one, and else for us.
async fn page(app: &App, print: impl AsyncFnOnce(&mut Pager) -> Result<(), Failed>) -> Outcome {
    let mut to = Pager::open(&app.out);
    let is_paged = to.is_paged();
    let printing = print(&mut to);
    let printed = match is_paged {
        true => Some(printing.await),
        false => app.until_interrupted(None, printing).await?,
    };
    to.close()?;
    match printed {
        None => return Ok(Exit(INTERRUPTED)),
        Some(printed) => end(printed)?,
    }
    Ok(Exit::DONE)
}

fn end(printed: Result<(), Failed>) -> Result<(), Failure> {
    match printed {
        Ok(()) => Ok(()),
        Err(Failed::Reading(err)) => Err(err.into()),
        Err(Failed::Writing(err)) => Ok(enough(Err(err))?),
    }
}

/// Why there is no more output.
#[derive(Debug)]
enum Failed {
    Reading(Error),
    Writing(io::Error),
}

impl From<Error> for Failed {
    fn from(err: Error) -> Self {
        Self::Reading(err)
    }
}

impl From<io::Error> for Failed {
    fn from(err: io::Error) -> Self {
        Self::Writing(err)
    }
}

/// Of two references, the hint is about the one that leads nowhere.
async fn explained(app: &App, args: &DiffArgs, err: Error) -> Failure {
    let known = app.engine.subject(&args.from).await.is_ok();
    let reference = args.to.as_ref().filter(|_| known).unwrap_or(&args.from);
    Failure::new(err, About::Source(reference.clone()))
}

async fn print(
    app: &App,
    args: &DiffArgs,
    found: &Comparison,
    to: &mut Pager,
) -> Result<(), Failed> {
    if args.patch {
        let root = patch::root(found, &args.paths).await?;
        return patch::print(app, found, &root, to).await;
    }
    if args.stat {
        return stat::print(app, found, to).await;
    }
    for change in &found.diff.changes {
        match args.name_only {
            true => writeln!(to, "{}", quote(&change.path))?,
            false => writeln!(to, "{}", line(&app.out, change))?,
        }
    }
    Ok(())
}

pub(super) fn line(out: &Output, change: &FileChange) -> String {
    let paint = out.paint;
    let path = shown(&change.path, change.after.or(change.before).as_ref());
    match &change.kind {
        ChangeKind::Added => format!("{} {path}", paint.green("A")),
        ChangeKind::Deleted => format!("{} {path}", paint.red("D")),
        ChangeKind::Changed => format!("{} {path}{}", paint.yellow("M"), attributes(change)),
        ChangeKind::Retyped => format!("{} {path}{}", paint.yellow("T"), kinds(change)),
        ChangeKind::Attributes => format!("{} {path}{}", paint.cyan("m"), attributes(change)),
        ChangeKind::Renamed { from } => {
            let from = quote(from);
            format!("{} {from} -> {path}{}", paint.cyan("R"), attributes(change))
        }
    }
}

/// A directory is told by its slash.
fn shown(path: &Path, facts: Option<&FileFacts>) -> String {
    let is_directory = facts.is_some_and(|facts| facts.kind == FileKind::Directory);
    match is_directory && path != "/" {
        true => quote(&path.join("")),
        false => quote(path),
    }
}

fn kinds(change: &FileChange) -> String {
    let name = |facts: Option<FileFacts>| facts.map_or("nothing", |facts| kind_name(facts.kind));
    format!(" ({} -> {})", name(change.before), name(change.after))
}

fn attributes(change: &FileChange) -> String {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return String::new() };
    let mut told = Vec::new();
    if before.mode != after.mode {
        told.push(format!("{:04o} -> {:04o}", before.mode, after.mode));
    }
    if (before.uid, before.gid) != (after.uid, after.gid) {
        told.push(format!("{}:{} -> {}:{}", before.uid, before.gid, after.uid, after.gid));
    }
    if told.is_empty() { String::new() } else { format!(" ({})", told.join(", ")) }
}

fn json(found: &Comparison) -> DiffJson<'_> {
    DiffJson {
        from: found.from.title(),
        to: found.to.title(),
        changes: found.diff.changes.iter().map(change_json).collect(),
        too_deep: found.diff.too_deep,
    }
}

fn change_json(change: &FileChange) -> ChangeJson<'_> {
    let FileChange { kind, path, before, after } = change;
    let (name, renamed_from) = match kind {
        ChangeKind::Added => ("added", None),
        ChangeKind::Deleted => ("deleted", None),
        ChangeKind::Changed => ("changed", None),
        ChangeKind::Retyped => ("retyped", None),
        ChangeKind::Attributes => ("attributes", None),
        ChangeKind::Renamed { from } => ("renamed", Some(PathJson(from))),
    };
    ChangeJson {
        change: name,
        path: PathJson(path),
        renamed_from,
        before: before.as_ref().map(FactsJson::from),
        after: after.as_ref().map(FactsJson::from),
    }
}
