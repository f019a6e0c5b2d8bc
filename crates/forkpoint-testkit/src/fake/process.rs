//! The few commands that the fake platform can run.

use std::{
    ffi::OsStr,
    io,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use forkpoint_core::{
    driver::{
        ByteSink, Command, DriverError, DriverResult, ExitStatus, Process, ProcessControl, TtySize,
    },
    id::SandboxId,
    part::ByteStream,
};
use futures::{
    FutureExt as _, SinkExt as _, StreamExt as _,
    channel::{mpsc, oneshot},
    future::{BoxFuture, Shared},
    stream,
};

use super::{DRIVER, Files, state::Row};

type Exit = Shared<BoxFuture<'static, ExitStatus>>;

/// The way to a process that runs until it gets a signal.
#[derive(Clone, Debug)]
struct Signals(Arc<Mutex<Option<oneshot::Sender<i32>>>>);

impl Signals {
    fn new(signal: Option<oneshot::Sender<i32>>) -> Self {
        Self(Arc::new(Mutex::new(signal)))
    }

    fn send(&self, signal: i32) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Nobody is there to get it once the process is gone.
        let _ = sender.map(|sender| sender.send(signal));
    }
}

/// What runs in a sandbox until it gets a signal. None outlives its sandbox.
#[derive(Debug, Default)]
pub(super) struct Processes(Vec<Signals>);

impl Processes {
    pub(super) fn kill_all(&mut self) {
        self.0.drain(..).for_each(|process| process.send(9));
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.kill_all();
    }
}

pub(super) fn start(command: &Command, id: SandboxId, row: &mut Row) -> DriverResult<Process> {
    let Row { files, spec, processes, .. } = row;
    let argv: Vec<&str> = command.argv.iter().filter_map(|arg| arg.to_str()).collect();
    let Some((program, args)) = argv.split_first() else {
        return Err(DriverError::Invalid { driver: DRIVER, reason: "no command given".into() });
    };
    let text = |line: &str| Bytes::from(format!("{line}\n"));
    Ok(match (*program, args) {
        ("true", _) => done(Bytes::new(), Bytes::new(), 0),
        ("false", _) => done(Bytes::new(), Bytes::new(), 1),
        ("echo", words) => done(text(&words.join(" ")), Bytes::new(), 0),
        ("hostname", _) => done(text(&id.to_string()), Bytes::new(), 0),
        ("pwd", []) => {
            let place = command.workdir.as_ref().or(spec.workdir.as_ref());
            done(text(&place.map_or_else(|| "/".to_owned(), ToString::to_string)), Bytes::new(), 0)
        }
        ("printenv", [name]) => {
            let given = command.env.get(OsStr::new(name)).and_then(|value| value.to_str());
            match given.or(spec.env.get(*name).map(String::as_str)) {
                Some(value) => done(text(value), Bytes::new(), 0),
                None => done(Bytes::new(), Bytes::new(), 1),
            }
        }
        ("cat", []) => cat(command.stdin),
        ("cat", [path]) => match files.get(std::path::Path::new(path)) {
            Some(bytes) => done(bytes.clone(), Bytes::new(), 0),
            None => done(Bytes::new(), text("cat: no such file"), 1),
        },
        ("rm", [path]) => {
            let gone = files.remove(std::path::Path::new(path)).is_some();
            done(Bytes::new(), Bytes::new(), i32::from(!gone))
        }
        ("sleep", _) | ("sh", ["-c", "sleep"]) => {
            let (process, signals) = sleep(command.timeout.is_some());
            processes.0.push(signals);
            process
        }
        ("sh", ["-c", script]) => shell(script, files),
        (other, _) => return Err(no_program(other, files)),
    })
}

/// No file is a program here.
fn no_program(command: &str, files: &Files) -> DriverError {
    let command = command.to_owned();
    match files.keys().any(|path| path.starts_with(&command)) {
        true => {
            let source = io::ErrorKind::PermissionDenied.into();
            DriverError::CommandRefused { command, source }
        }
        false => DriverError::CommandMissing { command },
    }
}

/// Words, files and an exit code, one after the other: `echo on; touch /file; exit 3`.
fn shell(script: &str, files: &mut Files) -> Process {
    let mut printed = String::new();
    for line in script.split(';').map(str::trim) {
        match line.split_once(' ') {
            Some(("echo", words)) => printed.push_str(&format!("{words}\n")),
            Some(("touch", path)) => drop(files.insert(path.into(), Bytes::new())),
            _ => return done(Bytes::from(printed), Bytes::new(), exit_code(line)),
        }
    }
    done(Bytes::from(printed), Bytes::new(), 0)
}

fn exit_code(script: &str) -> i32 {
    script.strip_prefix("exit ").and_then(|code| code.trim().parse().ok()).unwrap_or(127)
}

fn done(stdout: Bytes, stderr: Bytes, code: i32) -> Process {
    let exit = futures::future::ready(ExitStatus::Code(code)).boxed().shared();
    Process { stdin: None, stdout: one(stdout), stderr: one(stderr), control: control(exit) }
}

/// Gives back what it is given, until the input ends.
fn cat(stdin: bool) -> Process {
    let (sender, receiver) = mpsc::unbounded::<Bytes>();
    let (ended, end) = oneshot::channel::<()>();
    let stdout = receiver.map(io::Result::Ok).chain(
        stream::once(async move {
            drop(ended);
            None
        })
        .filter_map(futures::future::ready),
    );
    let sink: ByteSink = Box::pin(sender.sink_map_err(|_| io::ErrorKind::BrokenPipe.into()));
    let exit = end.map(|_| ExitStatus::Code(0)).boxed().shared();
    let exit = match stdin {
        true => exit,
        false => futures::future::ready(ExitStatus::Code(0)).boxed().shared(),
    };
    let stdin = stdin.then_some(sink);
    Process { stdin, stdout: stdout.boxed(), stderr: one(Bytes::new()), control: control(exit) }
}

/// Sleeps until a signal comes. Nobody waits for real time here: a limit is up at once.
fn sleep(limited: bool) -> (Process, Signals) {
    let (signal, signalled) = oneshot::channel();
    let exit = match limited {
        true => futures::future::ready(ExitStatus::TimedOut).boxed(),
        false => signalled.map(|signal| ExitStatus::Signal(signal.unwrap_or(9))).boxed(),
    };
    let signals = Signals::new(Some(signal));
    let control = Box::new(FakeProcess { exit: exit.shared(), signals: signals.clone() });
    let (stdout, stderr) = (one(Bytes::new()), one(Bytes::new()));
    (Process { stdin: None, stdout, stderr, control }, signals)
}

fn one(bytes: Bytes) -> ByteStream {
    stream::iter((!bytes.is_empty()).then_some(Ok(bytes))).boxed()
}

fn control(exit: Exit) -> Box<dyn ProcessControl> {
    Box::new(FakeProcess { exit, signals: Signals::new(None) })
}

#[derive(Debug)]
struct FakeProcess {
    exit: Exit,
    signals: Signals,
}

#[async_trait]
impl ProcessControl for FakeProcess {
    async fn signal(&self, signal: i32) -> DriverResult<()> {
        self.signals.send(signal);
        Ok(())
    }

    async fn resize(&self, _size: TtySize) -> DriverResult<()> {
        Ok(())
    }

    async fn wait(&self) -> DriverResult<ExitStatus> {
        Ok(self.exit.clone().await)
    }
}
