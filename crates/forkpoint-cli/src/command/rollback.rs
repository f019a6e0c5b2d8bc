//! `rollback`: back to a snapshot, in place.

use forkpoint_core::engine::{self, RollbackRequest};
use serde::Serialize;

use super::{
    Exit, Outcome,
    drift::{self, DriftJson},
};
use crate::{
    app::App,
    args::RollbackArgs,
    fail::{About, Failure},
    output::record::{SandboxJson, SnapshotJson},
};

#[derive(Serialize)]
struct RolledBack<'a> {
    sandbox: SandboxJson<'a>,
    to: SnapshotJson<'a>,
    drift: Vec<DriftJson>,
    made_anew: Option<String>,
}

pub(super) async fn rollback(app: &App, args: &RollbackArgs) -> Outcome {
    let about = || About::Rollback(args.sandbox.clone(), args.snapshot.clone());
    let request = RollbackRequest {
        to: args.snapshot.clone(),
        wait: args.wait.wait(),
        ..RollbackRequest::new(&args.sandbox)
    };
    let back = app.finish("rolling back", app.engine.rollback(request)).await;
    let engine::RolledBack { to, made_anew } = back.map_err(|err| Failure::new(err, about()))?;
    let drift = drift::tell(app, &to).await;
    if app.out.json {
        let view = app.engine.sandbox(&args.sandbox).await?;
        let (sandbox, to) = ((&view).into(), (&to).into());
        app.out.json(&RolledBack { sandbox, to, drift, made_anew })?;
    } else {
        if let Some(why) = made_anew {
            app.out.detail(format!("made anew: {why}"));
        }
        app.out.note(format!("sandbox `{}` is back at `{}`", args.sandbox, to.name));
    }
    Ok(Exit::DONE)
}
