//! `create`: a new sandbox from a template.

use forkpoint_backends::{environment::next_tick, image::ImageSource};
use forkpoint_core::{Error, catalog::SandboxRecord, spec::WorkspaceMode};

use super::{Exit, Outcome, template};
use crate::{
    app::App,
    args::{CreateArgs, SandboxArgs},
    fail::{About, Failure},
    output::record::{SandboxJson, shown},
    wire::{DEFAULT_DRIVER, DOCKER},
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
    let defaults = &app.config.settings.defaults;
    let template = args.template(defaults);
    let about = || About::New { name: args.name.clone(), template: Some(template.to_owned()) };
    let since = match &args.workspace.workspace {
        Some(_) => next_tick().await,
        None => app.now(),
    };
    let mut request =
        args.request(defaults, since).map_err(|err| match args.workspace.workspace {
            Some(_) => Failure::from(err),
            None => Failure::new(err, about()),
        })?;
    let driver = app.config.driver(args.driver.as_deref());
    if driver == DOCKER && args.template.is_none() && defaults.template.is_none() {
        let message =
            format!("driver `{driver}` starts from an image: say which with `--template`");
        return Err(Failure::new(Error::invalid(message), about()));
    }
    let is_image = || ImageSource::parse(template).map_err(|err| Failure::new(err, about()));
    if driver == DEFAULT_DRIVER && is_image()?.is_some() {
        // Here and not by the driver, which would do it without a sign of how far it has come.
        let fetched = template::fetch(app, None, template).await?;
        let name = fetched.name.parse();
        request.spec.template = name.map_err(|err: Error| Failure::new(err, about()))?;
    }
    let doing = match request.spec.workspaces.iter().any(|each| each.mode == WorkspaceMode::Copy) {
        true => "creating a sandbox with a copy of the workspace",
        false => "creating a sandbox",
    };
    let made = app.finish(doing, app.engine.create(request)).await;
    made.map_err(|err| Failure::new(err, about()))
}
