//! `delete`: the end of snapshots. What grew from them stays whole.

use forkpoint_core::{Error, ErrorKind, id::SnapshotId};
use serde::Serialize;

use super::{Exit, Outcome, Several};
use crate::{
    app::App,
    args::DeleteArgs,
    fail::About,
    output::{
        confirm,
        record::{FailedJson, counted},
    },
};

#[derive(Serialize)]
struct Deleted {
    deleted: Vec<SnapshotId>,
    failed: Vec<FailedJson>,
}

pub(super) async fn delete(app: &App, args: &DeleteArgs) -> Outcome {
    if !args.force && !confirm(&question(&args.snapshots))? {
        app.out.note("nothing was deleted");
        return Ok(Exit::DONE);
    }
    let mut several = Several::default();
    let mut deleted = Vec::new();
    for snapshot in &args.snapshots {
        if app.is_interrupted() {
            break;
        }
        let delete = app.engine.delete_snapshot(snapshot, args.wait.wait());
        match app.finish("deleting a snapshot", delete).await {
            Ok(record) => {
                let (name, own) = (&record.name, counted(&record, record.own_bytes));
                app.out.note(format!("deleted snapshot `{name}`, {own} of its own"));
                deleted.push(record.id);
            }
            Err(err) if is_gone(&err, snapshot, args.force) => {
                app.out.note(format!("snapshot `{snapshot}` is gone already"));
            }
            Err(err) => several.failed(app, snapshot, err, About::Snapshot(snapshot.clone())).await,
        }
    }
    let exit = several.exit();
    if app.out.json {
        app.out.json(&Deleted { deleted, failed: several.failed })?;
    }
    Ok(exit)
}

/// An id was given out by us, so what it named is gone. A name may be a slip of the finger.
fn is_gone(err: &Error, reference: &str, force: bool) -> bool {
    err.kind() == ErrorKind::NotFound && (force || reference.parse::<SnapshotId>().is_ok())
}

fn question(snapshots: &[String]) -> String {
    match snapshots {
        [one] => format!("delete snapshot `{one}` for good?"),
        many => format!("delete {} snapshots for good?", many.len()),
    }
}
