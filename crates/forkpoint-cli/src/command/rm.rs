//! `rm`: the end of sandboxes. Their snapshots stay.

use forkpoint_core::{ErrorKind, id::SandboxId};
use serde::Serialize;

use super::{Exit, Outcome, Several};
use crate::{
    app::App,
    args::RmArgs,
    fail::About,
    output::{confirm, record::FailedJson, record::shown},
};

#[derive(Serialize)]
struct Removed {
    removed: Vec<SandboxId>,
    failed: Vec<FailedJson>,
}

pub(super) async fn rm(app: &App, args: &RmArgs) -> Outcome {
    if !args.force && !confirm(&question(&args.sandboxes))? {
        app.out.note("nothing was removed");
        return Ok(Exit::DONE);
    }
    let mut several = Several::default();
    let mut removed = Vec::new();
    for sandbox in &args.sandboxes {
        if app.is_interrupted() {
            break;
        }
        let destroy = app.engine.destroy(sandbox, args.wait.wait());
        match app.finish("removing a sandbox", destroy).await {
            Ok(record) => {
                let done = if record.adopted.is_some() { "forgot" } else { "removed" };
                app.out.note(format!("{done} sandbox `{}`", shown(&record)));
                removed.push(record.id);
            }
            Err(err) if args.force && err.kind() == ErrorKind::NotFound => {
                app.out.detail(format!("sandbox `{sandbox}` is gone already"));
            }
            Err(err) => several.failed(app, sandbox, err, About::Sandbox(sandbox.clone())).await,
        }
    }
    let exit = several.exit();
    if app.out.json {
        app.out.json(&Removed { removed, failed: several.failed })?;
    }
    Ok(exit)
}

fn question(sandboxes: &[String]) -> String {
    match sandboxes {
        [one] => format!("remove sandbox `{one}` and the files in it?"),
        many => format!("remove {} sandboxes and the files in them?", many.len()),
    }
}
