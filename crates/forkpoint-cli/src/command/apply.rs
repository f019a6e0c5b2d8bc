//! `apply`: what changed in a workspace, back to where it came from.

use std::path::{Component, Path, PathBuf};

use forkpoint_core::{
    Error, ErrorKind,
    driver::{AppliedStep, ApplyReport, ApplyRequest, ApplyStep},
    engine::Subject,
    path::{HostPath, SandboxPath},
    spec::Workspace,
};
use serde::Serialize;

use super::{Exit, Outcome, diff};
use crate::{
    app::App,
    args::ApplyArgs,
    fail::{About, Failure, INTERRUPTED},
    output::{file::PathJson, human::size, quote::quote, say},
};

/// Conflicts that are named.
const NAMED: usize = 20;

#[derive(Serialize)]
struct ReportJson<'a> {
    source: &'a HostPath,
    at: &'a SandboxPath,
    done: bool,
    steps: Vec<StepJson<'a>>,
    skipped: Vec<ReasonJson<'a>>,
    conflicts: Vec<ReasonJson<'a>>,
    cut_short: bool,
}

#[derive(Serialize)]
struct StepJson<'a> {
    path: PathJson<'a>,
    step: ApplyStep,
    len_bytes: u64,
}

#[derive(Serialize)]
struct ReasonJson<'a> {
    path: PathJson<'a>,
    reason: &'static str,
}

pub(super) async fn apply(app: &App, args: &ApplyArgs) -> Outcome {
    let about = |err: Error| Failure::new(err, About::Source(args.source.clone()));
    let subject = app.engine.subject(&args.source).await.map_err(about)?;
    let paths = paths(args, &subject.spec().workspaces)?;
    if subject.spec().workspaces.is_empty() {
        let none = Error::invalid(format!("{} has no workspace to bring home", subject.title()));
        return Err(Failure::new(none, About::Apply(args.source.clone())));
    }
    if args.patch {
        return patch(app, &subject, &paths).await;
    }
    let request = ApplyRequest { paths, force: args.force, dry_run: args.dry_run };
    let report = app.finish("applying", app.engine.apply(&subject, &request)).await;
    let report = report.map_err(|err| match err.kind() {
        // The sandbox is there: a path is not.
        ErrorKind::NotFound => err.into(),
        _ => about(err),
    });
    tell(app, args, &report?)
}

/// The same changes, told from the workspace's root. What is git's own is not for `git apply`.
async fn patch(app: &App, of: &Subject, paths: &[PathBuf]) -> Outcome {
    let [workspace] = of.spec().workspaces.as_slice() else {
        return Err(Error::invalid(format!("{} has several workspaces", of.title())).into());
    };
    let root = workspace.at.as_path();
    let under = match paths {
        [] => vec![root.to_owned()],
        paths => paths.iter().map(|path| root.join(path)).collect(),
    };
    let found = app.engine.compare_with_beginning(of, &under);
    let Some(found) = app.until_interrupted(Some("comparing"), found).await? else {
        return Ok(Exit(INTERRUPTED));
    };
    let mut found = found?;
    let changes = found.diff.changes.len();
    found.diff.changes.retain(|change| change.path.iter().all(|name| name != ".git"));
    let left = changes - found.diff.changes.len();
    if left > 0 {
        let changes = if left == 1 { "change" } else { "changes" };
        app.out.note(format!("left out {left} {changes} in `.git`"));
    }
    diff::tell_patch(app, &found, root).await
}

/// From the workspace's root: also those that are given as the sandbox sees them.
fn paths(args: &ApplyArgs, workspaces: &[Workspace]) -> Result<Vec<PathBuf>, Error> {
    let one = |path: &Path| {
        let inside = workspaces.iter().find_map(|each| path.strip_prefix(each.at.as_path()).ok());
        let path = match inside {
            Some(inside) => inside,
            None if path.is_absolute() => {
                let message = format!("`{}` is not in the workspace", path.display());
                return Err(Error::invalid(message));
            }
            None => path,
        };
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(Error::invalid(format!("`{}` goes up with `..`", path.display())));
        }
        // Collecting drops `.` and a slash at the end.
        Ok(path.components().filter(|part| *part != Component::CurDir).collect())
    };
    args.paths.iter().map(|path| one(Path::new(path))).collect()
}

fn tell(app: &App, args: &ApplyArgs, report: &ApplyReport) -> Outcome {
    if report.cut_short {
        app.out.warn(format!(
            "an earlier apply to `{}` was cut short: what it left half-written is gone",
            report.source
        ));
    }
    if app.out.json {
        app.out.json(&as_json(report))?;
    } else if report.conflicts.is_empty() || args.dry_run {
        tell_steps(app, args, report)?;
    }
    if report.conflicts.is_empty() {
        return Ok(Exit::DONE);
    }
    if !app.out.json {
        for conflict in report.conflicts.iter().take(NAMED) {
            say(&format!("{}: {}", quote(&conflict.path), conflict.reason));
        }
        let rest = report.conflicts.len().saturating_sub(NAMED);
        if rest > 0 {
            say(&format!("… and {rest} more"));
        }
    }
    let count = report.conflicts.len();
    let files = if count == 1 { "file" } else { "files" };
    let message = format!(
        "{count} {files} in `{}` changed meanwhile, and nothing was applied",
        report.source
    );
    Err(Failure::new(Error::new(ErrorKind::Conflict, message), About::Apply(args.source.clone())))
}

fn tell_steps(app: &App, args: &ApplyArgs, report: &ApplyReport) -> std::io::Result<()> {
    let would = if args.dry_run { "would " } else { "" };
    if !app.out.quiet {
        for step in &report.steps {
            app.out.text(&format!("{would}{}", line(step, args.dry_run)))?;
        }
    }
    for skipped in &report.skipped {
        app.out.note(format!("left out {}: {}", quote(&skipped.path), skipped.reason));
    }
    let (files, bytes) = (report.steps.len(), report.steps.iter().map(|step| step.len_bytes).sum());
    let told = match (files, args.dry_run) {
        (0, _) => format!("nothing to apply to `{}`", report.source),
        (_, true) => format!("would apply {} to `{}`", sum(files, bytes), report.source),
        (_, false) => format!("applied {} to `{}`", sum(files, bytes), report.source),
    };
    app.out.note(told);
    Ok(())
}

fn sum(steps: usize, bytes: u64) -> String {
    let changes = if steps == 1 { "change" } else { "changes" };
    match bytes {
        0 => format!("{steps} {changes}"),
        bytes => format!("{steps} {changes} ({})", size(bytes)),
    }
}

fn line(step: &AppliedStep, would: bool) -> String {
    let (done, to_do) = match step.step {
        ApplyStep::Create => ("created", "create"),
        ApplyStep::Change => ("changed", "change"),
        ApplyStep::Mode => ("changed mode of", "change mode of"),
        ApplyStep::Delete => ("deleted", "delete"),
        ApplyStep::Link => ("linked", "link"),
        ApplyStep::MakeDirectory => ("made", "make"),
        ApplyStep::RemoveDirectory => ("removed", "remove"),
    };
    let slash = match step.step {
        ApplyStep::MakeDirectory | ApplyStep::RemoveDirectory => "/",
        _ => "",
    };
    let path = quote(&step.path);
    let what = if would { to_do } else { done };
    match step.len_bytes {
        0 => format!("{what} {path}{slash}"),
        bytes => format!("{what} {path} ({})", size(bytes)),
    }
}

fn as_json(report: &ApplyReport) -> ReportJson<'_> {
    let steps = report.steps.iter().map(|step| StepJson {
        path: PathJson(&step.path),
        step: step.step,
        len_bytes: step.len_bytes,
    });
    let skipped = report.skipped.iter();
    let conflicts = report.conflicts.iter();
    ReportJson {
        source: &report.source,
        at: &report.at,
        done: report.done,
        steps: steps.collect(),
        skipped: skipped
            .map(|each| ReasonJson { path: PathJson(&each.path), reason: each.reason })
            .collect(),
        conflicts: conflicts
            .map(|each| ReasonJson { path: PathJson(&each.path), reason: each.reason })
            .collect(),
        cut_short: report.cut_short,
    }
}
