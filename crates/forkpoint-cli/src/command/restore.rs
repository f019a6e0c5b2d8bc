//! `restore`: a new sandbox from a snapshot.

use forkpoint_core::{ErrorKind, engine::RestoreRequest, label::Labels};
use serde::Serialize;

use super::{
    Exit, Outcome,
    drift::{self, DriftJson},
};
use crate::{
    app::App,
    args::RestoreArgs,
    fail::{About, Failure},
    output::record::{SandboxJson, shown},
};

#[derive(Serialize)]
struct Restored<'a> {
    #[serde(flatten)]
    sandbox: SandboxJson<'a>,
    drift: Vec<DriftJson>,
}

pub(super) async fn restore(app: &App, args: &RestoreArgs) -> Outcome {
    let request = RestoreRequest {
        name: args.name.as_deref().map(str::parse).transpose()?,
        labels: Labels::new(args.copy.labels.clone())?,
        env: args.copy.env(),
        attachments: args.copy.container.attachments(),
        expires: args.copy.expires(&app.config.settings.defaults)?,
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
    let drift = match record.head {
        Some(head) => drift::tell_of(app, head).await,
        None => Vec::new(),
    };
    if app.out.json {
        app.out.json(&Restored { sandbox: SandboxJson::running(&record), drift })?;
    } else {
        app.out.text(&record.id.to_string())?;
        app.out.note(format!("restored `{}` as sandbox `{}`", args.snapshot, shown(&record)));
    }
    Ok(Exit::DONE)
}
