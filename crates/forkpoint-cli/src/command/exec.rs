//! `exec` and `run`: a command in a sandbox, old or new.

use std::ffi::OsString;

use forkpoint_backends::image::ImageConfig;
use forkpoint_core::{
    Error, ErrorKind,
    catalog::SandboxRecord,
    driver::{Command, DriverError, ExitStatus},
    engine::Wait,
};

use super::{Exit, Outcome, create};
use crate::{
    app::App,
    args::{ExecArgs, RunArgs, StreamArgs},
    attached,
    fail::{About, Failure, OURS},
    output::record::shown,
    signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH, Signals},
    terminal::{self, RawMode},
    wire::DEFAULT_DRIVER,
};

const TIMED_OUT: u8 = 124;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// How long the removal of a `run --rm` waits for others who work on the sandbox.
const REMOVAL: std::time::Duration = std::time::Duration::from_secs(10);

pub(super) async fn exec(app: &App, args: &ExecArgs) -> Outcome {
    let command = exec_command(args).map_err(|err| Failure::from(err).with_code(OURS))?;
    let mut signals = listen()?;
    attend(app, &args.sandbox, command, args.streams, &mut signals).await
}

fn exec_command(args: &ExecArgs) -> Result<Command, Error> {
    Ok(Command {
        env: args.env(),
        workdir: args.workdir()?,
        user: args.user.clone(),
        ..Command::new(args.command.clone())
    })
}

pub(super) async fn run(app: &App, args: &RunArgs) -> Outcome {
    // First of all: a signal that comes while the sandbox is made goes to the command.
    let mut signals = listen()?;
    let record = create::make(app, &args.sandbox).await.map_err(|err| err.with_code(OURS))?;
    let sandbox = record.id.to_string();
    let (argv, streams) = what_to_run(args, &preset(app, &record));
    let ttl = args.sandbox.ttl(&app.config.settings.defaults);
    let timeout = streams.timeout.into_iter().chain(ttl).min();
    let streams = StreamArgs { timeout, ..streams };
    let outcome = attend(app, &sandbox, Command::new(argv), streams, &mut signals).await;
    match args.rm {
        true => remove(app, &record).await,
        false if app.out.progress => {
            let name = shown(&record);
            app.out.note(format!("sandbox `{name}` stays: `forkpoint rm {name}` removes it"));
        }
        false => {}
    }
    outcome
}

/// What the template's image says about commands, if it is one.
fn preset(app: &App, record: &SandboxRecord) -> ImageConfig {
    if record.driver != DEFAULT_DRIVER {
        // A container runs its image's own command; this is one more.
        return ImageConfig::default();
    }
    let template = app.templates.find(record.spec.template.as_str());
    template.ok().flatten().map(|template| template.config).unwrap_or_default()
}

/// As Docker does: a command takes the place of the image's command and not of its entrypoint, and
/// another entrypoint takes the place of both. A shell if there is nothing; with a terminal, one to
/// type into.
fn what_to_run(args: &RunArgs, preset: &ImageConfig) -> (Vec<OsString>, StreamArgs) {
    let words = |words: &[String]| words.iter().map(OsString::from).collect::<Vec<_>>();
    let mut argv = match &args.entrypoint {
        Some(program) if program.is_empty() => Vec::new(),
        Some(program) => vec![program.clone()],
        None => words(&preset.entrypoint),
    };
    if !args.command.is_empty() {
        argv.extend(args.command.iter().cloned());
        return (argv, args.streams);
    }
    if args.entrypoint.is_none() {
        argv.extend(words(&preset.cmd));
    }
    if argv.is_empty() {
        argv.push("/bin/sh".into());
    }
    let typed = terminal::is_on_stdin();
    let streams = StreamArgs {
        interactive: typed || args.streams.interactive,
        tty: typed || args.streams.tty,
        ..args.streams
    };
    (argv, streams)
}

async fn remove(app: &App, record: &SandboxRecord) {
    let (sandbox, wait) = (record.id.to_string(), Wait::UpTo(REMOVAL));
    let removed = app.finish("removing the sandbox", app.engine.destroy(&sandbox, wait)).await;
    if let Err(err) = removed {
        app.out.warn(format!("sandbox `{}` stays: {}", shown(record), err.chain()));
    }
}

fn listen() -> Result<Signals, Failure> {
    Signals::listen(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH])
        .map_err(|err| Failure::from(failed("listen for signals", err)).with_code(OURS))
}

fn failed(what: &str, err: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("failed to {what}")).with_source(err)
}

async fn attend(
    app: &App,
    sandbox: &str,
    command: Command,
    streams: StreamArgs,
    signals: &mut Signals,
) -> Outcome {
    let ours = |err: Error| Failure::new(err, About::Sandbox(sandbox.to_owned())).with_code(OURS);
    let raw = streams.interactive && streams.tty;
    if raw && !terminal::is_on_stdin() {
        return Err(ours(Error::invalid(
            "`-it` needs a terminal on standard input: leave out `-t`",
        )));
    }
    let live = app.engine.attach(sandbox).await.map_err(ours)?;
    let command = Command {
        stdin: streams.interactive,
        tty: streams.tty.then(terminal::size),
        timeout: streams.timeout,
        ..command
    };
    let status = {
        // Before the command runs, so that no key of its user is lost or seen twice.
        let _raw = match raw {
            true => Some(RawMode::enter().map_err(|err| ours(failed("use the terminal", err)))?),
            false => None,
        };
        let process = live.exec(&command).await.map_err(|err| not_started(sandbox, err))?;
        attached::attend(process, signals).await.map_err(|err| ours(err.into()))?
    };
    if status == ExitStatus::TimedOut {
        app.out.note("the command took too long, and was killed");
    }
    Ok(exit(status))
}

fn not_started(sandbox: &str, err: DriverError) -> Failure {
    let (code, about) = match &err {
        DriverError::CommandMissing { .. } => (NOT_FOUND, About::Command),
        DriverError::CommandRefused { .. } => (NOT_EXECUTABLE, About::Command),
        _ => (OURS, About::Sandbox(sandbox.to_owned())),
    };
    Failure::new(err, about).with_code(code)
}

fn exit(status: ExitStatus) -> Exit {
    // Codes have eight bits, as everywhere on Unix.
    let byte = |number: i32| number.to_le_bytes()[0];
    match status {
        ExitStatus::Code(code) => Exit(byte(code)),
        ExitStatus::Signal(signal) => Exit(byte(128 + signal)),
        ExitStatus::TimedOut => Exit(TIMED_OUT),
    }
}
