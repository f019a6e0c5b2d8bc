//! `prune`: retention now.

use forkpoint_core::{
    Error,
    engine::PruneReport,
    id::SnapshotId,
    retention::{Deletion, KeepGroup, KeepLast, RetentionPlan, RetentionPolicy},
};
use serde::Serialize;

use super::{Exit, Outcome};
use crate::{
    app::App,
    args::PruneArgs,
    fail::{About, Failure},
    output::{
        confirm,
        human::{age, many, size},
        record::FailedJson,
        table::{Column, Table},
    },
};

/// How many are begun before anybody looks whether to go on.
const AT_ONCE: usize = 4;

#[derive(Serialize)]
struct Pruned<'a> {
    dry_run: bool,
    plan: &'a [Deletion],
    deleted: Vec<SnapshotId>,
    kept: Vec<SnapshotId>,
    failed: Vec<FailedJson>,
    unmet: Vec<String>,
    freed_bytes: u64,
}

pub(super) async fn prune(app: &App, args: &PruneArgs) -> Outcome {
    let policy = policy(app.config.retention(), args);
    let plan = app.engine.retention_plan(&policy).await?;
    if policy.is_empty() && plan.deletions.is_empty() {
        let none = Error::invalid("no limit was given, and none is configured");
        return Err(Failure::new(none, About::Limits));
    }
    tell_plan(app, &plan)?;
    if args.dry_run || plan.deletions.is_empty() {
        let report = PruneReport { unmet: plan.unmet.clone(), ..PruneReport::default() };
        return end(app, args, &plan, &report);
    }
    if !args.force && !confirm(&question(&plan))? {
        app.out.note("nothing was deleted");
        return Ok(Exit::DONE);
    }
    let report = app.finish("pruning", execute(app, &plan)).await?;
    let left = plan.deletions.len() - tried(&report);
    if left > 0 {
        app.out.warn(format!("interrupted: {} left as they are", many(left, "snapshot")));
    }
    end(app, args, &plan, &report)
}

/// A few at a time: Ctrl-C ends it after those that are on their way.
async fn execute(app: &App, plan: &RetentionPlan) -> Result<PruneReport, Error> {
    let mut report = PruneReport { unmet: plan.unmet.clone(), ..PruneReport::default() };
    for deletions in plan.deletions.chunks(AT_ONCE) {
        if app.is_interrupted() {
            break;
        }
        let part = RetentionPlan { deletions: deletions.to_vec(), ..RetentionPlan::default() };
        let done = app.engine.execute_plan(part).await?;
        report.deleted.extend(done.deleted);
        report.kept.extend(done.kept);
        report.failed.extend(done.failed);
        report.freed_bytes += done.freed_bytes;
    }
    Ok(report)
}

fn tried(report: &PruneReport) -> usize {
    report.deleted.len() + report.kept.len() + report.failed.len()
}

/// What is configured, with what was said now in its place.
fn policy(configured: RetentionPolicy, args: &PruneArgs) -> RetentionPolicy {
    let keep_last = args.keep_last.map(|count| {
        let group = configured.keep_last.as_ref().map(|keep| keep.group.clone());
        KeepLast { count, group: group.unwrap_or(KeepGroup::Sandbox) }
    });
    RetentionPolicy {
        max_age: args.max_age_days.or(configured.max_age),
        max_per_sandbox: args.max_per_sandbox.or(configured.max_per_sandbox),
        max_total: args.max_total.or(configured.max_total),
        max_bytes: args.max_size.or(configured.max_bytes),
        keep_last: keep_last.or(configured.keep_last),
    }
}

fn tell_plan(app: &App, plan: &RetentionPlan) -> Result<(), Failure> {
    if app.out.json || plan.deletions.is_empty() {
        return Ok(());
    }
    if app.out.quiet {
        for deletion in &plan.deletions {
            app.out.text(&deletion.id.to_string())?;
        }
        return Ok(());
    }
    let mut table = Table::new([
        Column::Shrinks("NAME"),
        Column::Number("AGE"),
        Column::Number("SIZE"),
        Column::Shrinks("REASON"),
    ]);
    let now = app.now();
    for Deletion { name, created, own_bytes, reason, .. } in &plan.deletions {
        table.add([name.to_string(), age(*created, now), size(*own_bytes), reason.to_string()]);
    }
    let paint = app.out.paint;
    let tint = |column, text: &str| (column == "NAME").then(|| paint.bold(text));
    app.out.text(&table.render(app.out.width, paint, tint))?;
    Ok(())
}

fn question(plan: &RetentionPlan) -> String {
    let what = many(plan.deletions.len(), "snapshot");
    format!("delete {what} of {} for good?", plan.snapshots_before)
}

fn end(app: &App, args: &PruneArgs, plan: &RetentionPlan, report: &PruneReport) -> Outcome {
    let failed = |(deletion, err): &(Deletion, Error)| FailedJson {
        reference: deletion.name.to_string(),
        error: err.chain().to_string(),
    };
    let exit = if report.failed.is_empty() { Exit::DONE } else { Exit(1) };
    if app.out.json {
        let ids = |deletions: &[Deletion]| deletions.iter().map(|deletion| deletion.id).collect();
        app.out.json(&Pruned {
            dry_run: args.dry_run,
            plan: &plan.deletions,
            deleted: ids(&report.deleted),
            kept: ids(&report.kept),
            failed: report.failed.iter().map(failed).collect(),
            unmet: report.unmet.iter().map(ToString::to_string).collect(),
            freed_bytes: report.freed_bytes,
        })?;
        return Ok(exit);
    }
    app.out.note(sum(args, plan, report));
    for deletion in &report.kept {
        app.out.note(format!("`{}` stays: it was pinned or given more time", deletion.name));
    }
    for (deletion, err) in &report.failed {
        app.out.warn(format!("`{}` stays: {}", deletion.name, err.chain()));
    }
    for limit in &report.unmet {
        app.out.warn(format!("{limit}: they are pinned, or kept by `keep_last`"));
    }
    Ok(exit)
}

fn sum(args: &PruneArgs, plan: &RetentionPlan, report: &PruneReport) -> String {
    let before = plan.snapshots_before;
    if plan.deletions.is_empty() {
        return format!("nothing to prune: all {before} snapshots are within the limits");
    }
    if args.dry_run {
        let (what, most) = (many(plan.deletions.len(), "snapshot"), size(plan.own_bytes));
        return format!("would delete {what} of {before}; at most {most} would come free");
    }
    let (what, freed) = (many(report.deleted.len(), "snapshot"), size(report.freed_bytes));
    format!("deleted {what} of {before}, and {freed} came free")
}
