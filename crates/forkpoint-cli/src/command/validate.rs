//! `validate`: whether a sandbox can be snapshotted, and what would be left out.

use forkpoint_core::{
    Error,
    driver::{Finding, Severity, SnapshotKind},
    engine::{SandboxView, Validation},
};
use serde::Serialize;

use super::{Exit, Outcome};
use crate::{
    app::App,
    args::ValidateArgs,
    fail::{About, Failure},
    output::{
        human::clean,
        record::{SandboxJson, shown},
    },
};

#[derive(Serialize)]
struct Validated<'a> {
    sandbox: SandboxJson<'a>,
    can: bool,
    findings: &'a [Finding],
}

pub(super) async fn validate(app: &App, args: &ValidateArgs) -> Outcome {
    let about = || About::Sandbox(args.sandbox.clone());
    let kind = if args.full { SnapshotKind::Full } else { SnapshotKind::Files };
    let looked = app.engine.validate(&args.sandbox, kind).await;
    let Validation { sandbox: record, status, findings } =
        looked.map_err(|err| Failure::new(err, about()))?;
    if status.is_none() {
        let message = format!("the platform has lost sandbox `{}`", shown(&record));
        return Err(Failure::new(Error::not_found(message), about()));
    }
    let can = findings.iter().all(|finding| finding.severity != Severity::Blocks);
    let exit = if can { Exit::DONE } else { Exit(1) };
    let view = SandboxView { record, status: Ok(status) };
    if app.out.json {
        app.out.json(&Validated { sandbox: (&view).into(), can, findings: &findings })?;
        return Ok(exit);
    }
    let kind = match kind {
        SnapshotKind::Files => "snapshot of files",
        SnapshotKind::Full => "full snapshot",
    };
    let what = format!("a {kind} of sandbox `{}`", shown(&view.record));
    let verdict = match can {
        true => format!("{}: {what} can be taken", app.out.paint.green("yes")),
        false => format!("{}: {what} cannot be taken", app.out.paint.red("no")),
    };
    let lines = findings.iter().map(|finding| line(app, finding));
    app.out.text(&[verdict].into_iter().chain(lines).collect::<Vec<_>>().join("\n"))?;
    Ok(exit)
}

fn line(app: &App, finding: &Finding) -> String {
    let paint = app.out.paint;
    let severity = match finding.severity {
        Severity::Note => paint.dim("note"),
        Severity::LeftOut => paint.yellow("left out"),
        Severity::Blocks => paint.red("in the way"),
    };
    format!("  {severity}: {}", clean(&finding.message))
}
