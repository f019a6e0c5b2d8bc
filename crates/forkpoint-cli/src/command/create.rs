//! `create`: a new sandbox from a template.

use forkpoint_core::catalog::SandboxRecord;

use super::{Exit, Outcome};
use crate::{
    app::App,
    args::{CreateArgs, SandboxArgs},
    fail::{About, Failure},
    output::record::{SandboxJson, shown},
};

pub(super) async fn create(app: &App, args: &CreateArgs) -> Outcome {
    let record = make(app, &args.sandbox).await?;
    if app.out.json {
        app.out.json(&SandboxJson::running(&record))?;
    } else {
        app.out.text(&record.id.to_string())?;
        app.out.note(format!("created sandbox `{}`", shown(&record)));
    }
    Ok(Exit::DONE)
}

pub(super) async fn make(app: &App, args: &SandboxArgs) -> Result<SandboxRecord, Failure> {
    let about = || About::New { name: args.name.clone(), template: Some(args.template.clone()) };
    let request = args.request().map_err(|err| Failure::new(err, about()))?;
    let made = app.finish("creating a sandbox", app.engine.create(request)).await;
    made.map_err(|err| Failure::new(err, about()))
}
