//! The one binary, `forkpoint`: opens the data directory, does one thing, and leaves.

#![forbid(unsafe_code)]

use std::{path::PathBuf, process::ExitCode};

use clap::CommandFactory as _;
use forkpoint_core::{Error, ErrorKind};

mod app;
mod args;
mod attached;
mod command;
mod config;
mod fail;
mod hint;
mod legacy;
mod output;
mod signal;
mod terminal;
mod trace;
mod wire;

use app::App;
use args::{Cli, Verb};
use command::{Exit, Outcome};
use config::Config;
use fail::{About, Failure, INTERRUPTED};
use output::{Output, say};

fn main() -> ExitCode {
    forkpoint_backends::driver::local::run_if_asked();
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(err) => return usage(&err),
    };
    let out = Output::new(&cli.global);
    if out.verbose {
        // Fails only when there is one already, and there is none.
        let _ = tracing::subscriber::set_global_default(trace::ToStderr);
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(err) => {
            let error = Error::new(ErrorKind::Unavailable, "failed to start").with_source(err);
            Failure::from(error).print(&out, None);
            return ExitCode::FAILURE;
        }
    };
    let exit = runtime.block_on(run(&cli, out));
    // A thread may still wait for a key that nobody will press.
    runtime.shutdown_background();
    exit.into()
}

/// Help and version as they are; a mistake without whatever it would do to a terminal.
fn usage(err: &clap::Error) -> ExitCode {
    if err.kind() == clap::error::ErrorKind::MissingSubcommand {
        // Nothing was asked for: everything that could be.
        say(Cli::command().render_help().to_string().trim_end());
        return ExitCode::from(2);
    }
    if err.use_stderr() {
        say(output::human::clean_lines(&err.render().to_string()).trim_end());
        if let Some(hint) = hint::about_usage(err, std::env::args_os()) {
            say(&format!("hint: {hint}"));
        }
        return ExitCode::from(2);
    }
    // A reader that is gone needs no help.
    let _ = err.print();
    ExitCode::SUCCESS
}

async fn run(cli: &Cli, out: Output) -> Exit {
    let outcome = match &cli.verb {
        Verb::Demo(args) => command::demo::demo(&out, args).await,
        Verb::Config(args) => command::config::config(&out, args, &cli.global),
        Verb::Completions(args) => command::completions::completions(&out, args),
        Verb::Man(args) => command::completions::man(&out, args),
        Verb::Complete(args) => Ok(command::complete::complete(&out, args, &cli.global).await),
        Verb::Doctor => match settled(cli) {
            Ok((config, data)) => command::doctor::doctor(&out, &config, &data).await,
            Err(failure) => Err(failure),
        },
        _ => return on_data(cli, out).await,
    };
    match outcome {
        Ok(exit) => exit,
        Err(failure) => tell(&failure, &out, None).await,
    }
}

async fn on_data(cli: &Cli, out: Output) -> Exit {
    let app = match open(cli, out).await {
        Ok(app) => app,
        Err(failure) => {
            let failure = match cli.verb {
                Verb::Run(_) | Verb::Exec(_) => failure.with_code(fail::OURS),
                _ => failure,
            };
            return tell(&failure, &out, None).await;
        }
    };
    let outcome: Outcome = command::perform(&app, &cli.verb).await;
    match outcome {
        Ok(Exit::DONE) if app.is_interrupted() => Exit(INTERRUPTED),
        Ok(exit) => exit,
        Err(failure) => tell(&failure, &out, Some(&app)).await,
    }
}

async fn open(cli: &Cli, out: Output) -> Result<App, Failure> {
    let (config, data) = settled(cli)?;
    for ignored in &config.ignored {
        out.detail(format!("{ignored} has no effect here"));
    }
    if config.wants(wire::DOCKER) {
        wire::docker(&data)?;
    }
    let engine = wire::open(&data, command::need(&cli.verb), &config, &out).await;
    let engine = engine.map_err(|err| Failure::new(err, About::DataDir))?;
    Ok(App::new(engine, out, config, data))
}

/// What was decided beforehand, and where the data is.
fn settled(cli: &Cli) -> Result<(Config, PathBuf), Failure> {
    let config = Config::load(&cli.global).map_err(|err| Failure::new(err, About::Config))?;
    let data = wire::data_dir(&cli.global, &config);
    let data = data.map_err(|err| Failure::new(err, About::DataDir))?;
    Ok((config, data))
}

async fn tell(failure: &Failure, out: &Output, app: Option<&App>) -> Exit {
    let hint = hint::hint(failure, app).await;
    failure.print(out, hint.as_deref());
    Exit(failure.exit_code())
}
