//! A command in a container.
//!
//! An engine starts it, carries its streams over one connection, and tells how it ended. It cannot send
//! a signal: on this machine we do, to the process that the engine names, once we have seen that it is
//! in this container. Elsewhere a command inside the container does it.

use std::{io, os::unix::ffi::OsStrExt as _, sync::Arc, time::Duration};

use async_trait::async_trait;
use forkpoint_core::{
    driver::{
        Command, DriverError, DriverResult, ExitStatus, Leaves, Process, ProcessControl,
        SandboxState, TtySize,
    },
    id::SandboxId,
};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout_at},
};

use super::{
    DRIVER,
    container::Container,
    engine::{failed, invalid, query},
    host::Host,
    http::{HttpError, Request},
    kill::Target,
};

mod streams;

use streams::{Buffered, Pump, sink};

const SIGKILL: i32 = 9;

/// Chunks of output that wait for a reader.
const WAITING: usize = 64;

/// Between two looks at a command whose streams tell nothing.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LAST_LOOK: Duration = Duration::from_millis(400);

/// How often a process that is out of sight is looked for.
const LOOKS_MAX: u32 = 4;

impl Host {
    pub(super) async fn exec(
        self: &Arc<Self>,
        id: SandboxId,
        command: &Command,
    ) -> DriverResult<Process> {
        if command.argv.is_empty() {
            return invalid("there is no command to run");
        }
        let container = self.container(id).await?;
        match container.state() {
            SandboxState::Running if self.refuses_commands(&container)? => {
                return Err(DriverError::NotRunning { id, state: SandboxState::Paused });
            }
            SandboxState::Running => {}
            state => return Err(DriverError::NotRunning { id, state }),
        }
        let (order, sized) = self.order(&container, command).await?;
        let path = format!("/containers/{}/exec", container.id());
        let made = match self.engine.post(path, order).await {
            Err(err) if err.status() == Some(409) => return Err(self.not_running(id, err).await),
            result => result.map_err(failed("run a command"))?,
        };
        let exec = made["Id"].as_str().unwrap_or_default().to_owned();
        let process = self.attach_exec(id, container, exec.clone(), command).await?;
        // Not twice: of two that come at once, Podman does the first alone.
        if let Some(size) = command.tty.filter(|_| !sized) {
            let _ = self.resize(&exec, size).await;
        }
        Ok(process)
    }

    async fn not_running(&self, id: SandboxId, err: HttpError) -> DriverError {
        match self.find(id).await {
            Ok(Some(container)) if container.state() != SandboxState::Running => {
                DriverError::NotRunning { id, state: container.state() }
            }
            Ok(None) => DriverError::SandboxMissing { driver: DRIVER, id },
            _ => failed("run a command")(err),
        }
    }

    /// And whether its terminal has its size from the beginning.
    async fn order(&self, container: &Container, command: &Command) -> DriverResult<(Value, bool)> {
        let mut argv = Vec::new();
        for word in &command.argv {
            argv.push(text(word.as_bytes(), "word")?);
        }
        let mut env = Vec::new();
        for (key, value) in &command.env {
            let (key, value) = (text(key.as_bytes(), "name")?, text(value.as_bytes(), "value")?);
            env.push(format!("{key}={value}"));
        }
        let mut order = json!({
            "AttachStdin": command.stdin,
            "AttachStdout": true,
            "AttachStderr": true,
            "Tty": command.tty.is_some(),
        });
        let mut sized = false;
        if let Some(size) = command.tty {
            env.push("TERM=xterm-256color".to_owned());
            let words = argv.len();
            match self.engine.facts().await.map_err(failed("run a command"))?.version >= (1, 42) {
                true => order["ConsoleSize"] = json!([size.rows, size.columns]),
                false => argv = self.sized(container, argv, size).await?,
            }
            sized = order["ConsoleSize"].is_array() || argv.len() > words;
        }
        order["Cmd"] = json!(argv);
        order["Env"] = json!(env);
        if let Some(workdir) = &command.workdir {
            order["WorkingDir"] = json!(workdir.to_string());
        }
        if let Some(user) = &command.user {
            order["User"] = json!(user);
        }
        Ok((order, sized))
    }

    /// An engine of before 1.42 gives a terminal its size when the command runs already, so a shell
    /// does it first, where there is one.
    async fn sized(
        &self,
        container: &Container,
        argv: Vec<String>,
        size: TtySize,
    ) -> DriverResult<Vec<String>> {
        if self.stat(container.id(), b"/bin/sh").await?.is_none() {
            return Ok(argv);
        }
        let script =
            format!("stty rows {} cols {} 2>/dev/null; exec \"$@\"", size.rows, size.columns);
        Ok(["/bin/sh", "-c", &script, "sh"].map(str::to_owned).into_iter().chain(argv).collect())
    }

    async fn attach_exec(
        self: &Arc<Self>,
        id: SandboxId,
        container: Container,
        exec: String,
        command: &Command,
    ) -> DriverResult<Process> {
        let tty = command.tty.is_some();
        let body = json!({ "Detach": false, "Tty": tty });
        let request = Request::new("POST", format!("/exec/{exec}/start")).json(body);
        let request = Request { upgrade: true, ..request }.patience(Some(super::http::LONG));
        let answer = match self.engine.send(request).await {
            Ok(answer) => answer,
            Err(HttpError::Refused { status, message }) => {
                return Err(self.start_refused(id, command, status, message).await);
            }
            Err(err) => return Err(failed("run a command")(err)),
        };
        let (wire, early) = answer.body.into_wire();
        let (reader, writer) = tokio::io::split(wire);
        let (stdout, from_stdout) = mpsc::channel(WAITING);
        let (stderr, from_stderr) = mpsc::channel(WAITING);
        let (ended, streams_ended) = watch::channel(false);
        let pump = Pump { reader, buffer: early, stdout, stderr, tty };
        tokio::spawn(async move {
            // A connection that breaks is the end of the streams; how the command ended is asked.
            let _ = pump.run().await;
            ended.send_replace(true);
        });
        let mut from_stdout = Buffered::new(from_stdout);
        let mut from_stderr = Buffered::new(from_stderr);
        match self.await_running(&exec, &container, streams_ended.clone()).await? {
            Running::Yes => {}
            // Docker says why in place of the output, Podman in place of errors.
            Running::Refused => {
                let said = from_stdout.drain().await + &from_stderr.drain().await;
                return Err(refused(command, &said));
            }
            // The runtime says so in the command's place.
            Running::Ended => {
                if let Some(said) =
                    from_stderr.peek().await.filter(|said| is_of_runtime(command, said))
                {
                    return Err(refused(command, &said));
                }
            }
        }
        let (tell, told) = watch::channel(None);
        let watcher =
            Watcher { host: Arc::clone(self), exec: exec.clone(), container: container.clone() };
        let control = Control { watcher: watcher.clone(), told, sent: Arc::default(), tty };
        let (sent, limits) = (Arc::clone(&control.sent), (command.timeout, command.leaves));
        tokio::spawn(async move {
            let status = watcher.watch(streams_ended, limits, sent).await;
            tell.send_replace(Some(status.map_err(|err| err.to_string())));
        });
        let stdin = command.stdin.then(|| sink(writer));
        let (stdout, stderr) = (from_stdout.stream(), from_stderr.stream());
        Ok(Process { stdin, stdout, stderr, control: Box::new(control) })
    }

    async fn start_refused(
        &self,
        id: SandboxId,
        command: &Command,
        status: u16,
        message: String,
    ) -> DriverError {
        if status == 409 {
            return self.not_running(id, HttpError::Refused { status, message }).await;
        }
        refused(command, &message)
    }

    /// Until the engine says that there is a process, or that there was one.
    async fn await_running(
        self: &Arc<Self>,
        exec: &str,
        container: &Container,
        mut ended: watch::Receiver<bool>,
    ) -> DriverResult<Running> {
        let (mut pause, mut looks) = (FIRST_LOOK, 0);
        loop {
            let told = self.inspect_exec(exec).await?;
            let has_pid = told["Pid"].as_i64().is_some_and(|pid| pid > 0);
            match told["ExitCode"].as_i64().filter(|_| told["Running"] != true) {
                Some(126 | 127) if !has_pid => return Ok(Running::Refused),
                Some(1) => return Ok(Running::Ended),
                Some(_) => return Ok(Running::Yes),
                None if has_pid => {
                    let target = Target::new(Arc::clone(self), container, &told);
                    looks += 1;
                    // Its number may mean nothing here, as to one who is in a container too.
                    if target.became_itself() || looks > LOOKS_MAX {
                        return Ok(Running::Yes);
                    }
                }
                None => {}
            }
            if *ended.borrow() {
                // The engine forgets what never ran.
                sleep(pause).await;
            } else {
                let _ = tokio::time::timeout(pause, ended.wait_for(|ended| *ended)).await;
            }
            pause = (pause * 2).min(LAST_LOOK);
        }
    }

    async fn inspect_exec(&self, exec: &str) -> DriverResult<Value> {
        let path = format!("/exec/{exec}/json");
        self.engine.get(path).await.map_err(failed("look at a command"))
    }

    async fn resize(&self, exec: &str, size: TtySize) -> DriverResult<()> {
        let (rows, columns) = (size.rows.to_string(), size.columns.to_string());
        let path = format!("/exec/{exec}/resize{}", query(&[("h", &rows), ("w", &columns)]));
        let request = Request::new("POST", path);
        self.engine.ask(request).await.map(drop).map_err(failed("resize a terminal"))
    }
}

enum Running {
    Yes,
    Refused,
    /// At once, in a way in which a runtime ends too.
    Ended,
}

fn text(bytes: &[u8], what: &str) -> DriverResult<String> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => {
            invalid(format!("a {what} of the command is not UTF-8, which its API cannot say"))
        }
    }
}

/// As in `exec /data/garbage: exec format error`.
fn is_of_runtime(command: &Command, said: &str) -> bool {
    let program = command.argv.first().map(|word| word.to_string_lossy().into_owned());
    said.lines().count() == 1
        && said.strip_prefix("exec ").is_some_and(|rest| {
            program.is_some_and(|program| rest.contains(&program))
                && rest.contains(": exec format error")
        })
}

/// What the runtime says of a command that it could not start.
fn refused(command: &Command, said: &str) -> DriverError {
    let program = command.argv.first().map(|word| word.to_string_lossy().into_owned());
    let program = program.unwrap_or_default();
    let missing = ["executable file not found", "no such file or directory", "command not found"];
    if missing.iter().any(|text| said.contains(text)) && !said.contains("chdir") {
        return DriverError::CommandMissing { command: program };
    }
    let kind = match said {
        _ if said.contains("permission denied") => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    DriverError::CommandRefused {
        command: program,
        source: io::Error::new(kind, said.trim().to_owned()),
    }
}

#[derive(Clone, Debug)]
struct Watcher {
    host: Arc<Host>,
    exec: String,
    container: Container,
}

impl Watcher {
    /// Until it has ended, and what it left with it if nothing may stay.
    async fn watch(
        &self,
        mut streams_ended: watch::Receiver<bool>,
        (limit, leaves): (Option<Duration>, Leaves),
        sent: Arc<std::sync::atomic::AtomicI32>,
    ) -> DriverResult<ExitStatus> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut timed_out = false;
        let mut pause = FIRST_LOOK;
        let code = loop {
            let told = match self.host.inspect_exec(&self.exec).await {
                Ok(told) => told,
                // Gone with its container.
                Err(DriverError::Failed { .. }) => break 128 + SIGKILL,
                Err(err) => return Err(err),
            };
            if told["Running"] != true {
                break i32::try_from(told["ExitCode"].as_i64().unwrap_or(-1)).unwrap_or(-1);
            }
            if !timed_out && until.is_some_and(|until| Instant::now() >= until) {
                timed_out = true;
                self.kill_group().await?;
            }
            let next = Instant::now() + pause;
            let next = until.filter(|_| !timed_out).map_or(next, |until| until.min(next));
            if *streams_ended.borrow() {
                tokio::time::sleep_until(next).await;
            } else {
                let _ = timeout_at(next, streams_ended.wait_for(|ended| *ended)).await;
            }
            pause = (pause * 2).min(LAST_LOOK);
        };
        let status = status_of(code, sent.load(std::sync::atomic::Ordering::Relaxed));
        let stays = match leaves {
            Leaves::Anything => true,
            Leaves::AnythingWhenDone => status == ExitStatus::Code(0) && !timed_out,
            Leaves::Nothing => false,
        };
        if !stays {
            self.target().await?.end_session().await;
        }
        Ok(if timed_out { ExitStatus::TimedOut } else { status })
    }

    async fn target(&self) -> DriverResult<Target> {
        let told = self.host.inspect_exec(&self.exec).await?;
        Ok(Target::new(Arc::clone(&self.host), &self.container, &told))
    }

    async fn kill_group(&self) -> DriverResult<()> {
        self.target().await?.signal(SIGKILL, true).await
    }
}

/// An engine tells a signal as 128 and its number, as a shell does for a command of its own. It was one
/// if we sent it, or if it is one of those that nobody exits with.
fn status_of(code: i32, sent: i32) -> ExitStatus {
    let signal = code - 128;
    let telling = [4, 6, 7, 8, SIGKILL, 11];
    if signal > 0 && (signal == sent || telling.contains(&signal)) {
        return ExitStatus::Signal(signal);
    }
    ExitStatus::Code(code)
}

#[derive(Debug)]
struct Control {
    watcher: Watcher,
    told: watch::Receiver<Option<Result<ExitStatus, String>>>,
    /// The last signal that was sent.
    sent: Arc<std::sync::atomic::AtomicI32>,
    tty: bool,
}

#[async_trait]
impl ProcessControl for Control {
    async fn signal(&self, signal: i32) -> DriverResult<()> {
        if !(1..=64).contains(&signal) {
            return invalid(format!("there is no signal {signal}"));
        }
        if self.told.borrow().is_some() {
            return Ok(());
        }
        self.sent.store(signal, std::sync::atomic::Ordering::Relaxed);
        self.watcher.target().await?.signal(signal, false).await
    }

    async fn resize(&self, size: TtySize) -> DriverResult<()> {
        match self.tty {
            true => self.watcher.host.resize(&self.watcher.exec, size).await,
            false => invalid("the command has no terminal"),
        }
    }

    async fn wait(&self) -> DriverResult<ExitStatus> {
        let mut told = self.told.clone();
        let status = told.wait_for(Option::is_some).await.map(|status| status.clone());
        match status {
            Ok(Some(Ok(status))) => Ok(status),
            Ok(Some(Err(reason))) => {
                Err(DriverError::Unreachable { driver: DRIVER, source: reason.into() })
            }
            Ok(None) | Err(_) => {
                let source = "whoever watched the command is gone".into();
                Err(DriverError::Unreachable { driver: DRIVER, source })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_told_from_a_number() {
        assert_eq!(status_of(0, 0), ExitStatus::Code(0));
        assert_eq!(status_of(129, 0), ExitStatus::Code(129), "git says so");
        assert_eq!(status_of(143, 15), ExitStatus::Signal(15));
        assert_eq!(status_of(143, 0), ExitStatus::Code(143));
        assert_eq!(status_of(137, 0), ExitStatus::Signal(9), "for want of memory, say");
        assert_eq!(status_of(5, 15), ExitStatus::Code(5));
    }

    #[test]
    fn what_a_runtime_says_is_understood() {
        let command = Command::new(["x"]);
        for said in [
            "OCI runtime exec failed: exec failed: unable to start container process: exec: \"x\": executable file not found in $PATH: unknown",
            "exec: \"/x\": stat /x: no such file or directory",
        ] {
            assert!(
                matches!(refused(&command, said), DriverError::CommandMissing { .. }),
                "{said}"
            );
        }
        for said in
            ["exec: \"x\": permission denied", "exec /x: exec format error", "is a directory"]
        {
            assert!(
                matches!(refused(&command, said), DriverError::CommandRefused { .. }),
                "{said}"
            );
        }
    }
}
