//! `restore`: a new sandbox from a snapshot.

use forkpoint_core::{ErrorKind, engine::RestoreRequest, label::Labels};

use super::{Exit, Outcome};
use crate::{
    app::App,
    args::RestoreArgs,
    fail::{About, Failure},
    output::record::{SandboxJson, shown},
};

pub(super) async fn restore(app: &App, args: &RestoreArgs) -> Outcome {
    let request = RestoreRequest {
        name: args.name.as_deref().map(str::parse).transpose()?,
        labels: Labels::new(args.copy.labels.clone())?,
        env: args.copy.env(),
        wait: args.copy.wait.wait(),
        ..RestoreRequest::new(&args.snapshot)
    };
    let restored = app.finish("restoring", app.engine.restore(request)).await;
    let record = restored.map_err(|err| {
        let about = match err.kind() {
            ErrorKind::NotFound => About::Snapshot(args.snapshot.clone()),
            _ => About::New { name: args.name.clone(), template: None },
        };
        Failure::new(err, about)
    })?;
    if app.out.json {
        app.out.json(&SandboxJson::running(&record))?;
    } else {
        app.out.text(&record.id.to_string())?;
        app.out.note(format!("restored `{}` as sandbox `{}`", args.snapshot, shown(&record)));
    }
    Ok(Exit::DONE)
}
