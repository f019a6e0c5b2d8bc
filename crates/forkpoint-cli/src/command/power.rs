//! `stop`, `start`, `pause` and `resume`.

use forkpoint_core::{Error, catalog::SandboxRecord, driver::SandboxState, engine::Wait};
use serde::Serialize;

use super::{Outcome, Several};
use crate::{
    app::App,
    args::PowerArgs,
    fail::About,
    output::record::{FailedJson, SandboxJson, shown, state_name},
};

#[derive(Clone, Copy, Debug)]
pub(super) enum Power {
    Stop,
    Start,
    Pause,
    Resume,
}

impl Power {
    async fn apply(self, app: &App, sandbox: &str, wait: Wait) -> Result<SandboxRecord, Error> {
        let engine = &app.engine;
        match self {
            Self::Stop => app.finish("stopping", engine.stop(sandbox, wait)).await,
            Self::Start => app.finish("starting", engine.start(sandbox, wait)).await,
            Self::Pause => app.finish("pausing", engine.pause(sandbox, wait)).await,
            Self::Resume => app.finish("resuming", engine.resume(sandbox, wait)).await,
        }
    }

    fn state(self) -> &'static str {
        state_name(match self {
            Self::Stop => SandboxState::Stopped,
            Self::Start | Self::Resume => SandboxState::Running,
            Self::Pause => SandboxState::Paused,
        })
    }
}

#[derive(Serialize)]
struct Done<'a> {
    done: Vec<SandboxJson<'a>>,
    failed: Vec<FailedJson>,
}

pub(super) async fn perform(app: &App, power: Power, args: &PowerArgs) -> Outcome {
    let mut several = Several::default();
    let mut done = Vec::new();
    for sandbox in &args.sandboxes {
        if app.is_interrupted() {
            break;
        }
        match power.apply(app, sandbox, args.wait.wait()).await {
            Ok(record) => {
                app.out.note(format!("sandbox `{}` is {}", shown(&record), power.state()));
                done.push(record);
            }
            Err(err) => several.failed(app, sandbox, err, About::Sandbox(sandbox.clone())).await,
        }
    }
    let exit = several.exit();
    if app.out.json {
        let done = done.iter().map(|record| SandboxJson::new(record, power.state())).collect();
        app.out.json(&Done { done, failed: several.failed })?;
    }
    Ok(exit)
}
