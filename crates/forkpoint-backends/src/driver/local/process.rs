//! A command in a sandbox, seen from outside.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use forkpoint_core::{
    driver::{
        ByteSink, Command, DriverError, DriverResult, ExitStatus, Process, ProcessControl, TtySize,
    },
    id::SandboxId,
    part::ByteStream,
    path::SandboxPath,
    spec::SandboxSpec,
};
use futures::{StreamExt as _, stream};
use rustix::{
    io::{Errno, fcntl_getfd, ioctl_fionbio},
    pipe::{PipeFlags, pipe_with},
    termios::{Winsize, tcsetwinsize},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
    time::Instant,
};

use super::{
    DRIVER,
    connection::Connection,
    host::failed,
    init::{ExecFailure, ExecRequest, ExecStage, Reply, Request, User},
    sandbox::{first, odd_reply, unreachable},
    sys,
    wire::Text,
};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const SIGKILL: i32 = 9;
const KILL: Request = Request::Signal { signal: SIGKILL, group: true };
const CHUNK: usize = 64 << 10;

/// A user as `NAME`, `NUMBER`, or either with `:GROUP`; and their home.
pub(super) fn find_user(
    text: &str,
    passwd: &str,
    groups: &str,
) -> Result<(User, Option<String>), String> {
    let (who, group) = text.split_once(':').map_or((text, None), |(who, group)| (who, Some(group)));
    let number = who.parse::<u32>().ok();
    let entry = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| {
        fields.len() >= 6
            && (fields[0] == who || number.is_some_and(|n| fields[2].parse() == Ok(n)))
    });
    let uid = match (&entry, number) {
        (Some(fields), _) => {
            fields[2].parse().map_err(|_| format!("user `{who}` has no number"))?
        }
        (None, Some(number)) => number,
        (None, None) => return Err(format!("there is no user `{who}` in the sandbox")),
    };
    let own_group = entry.as_ref().and_then(|fields| fields[3].parse().ok()).unwrap_or(0);
    let gid = match group {
        Some(group) => find_group(group, groups)?,
        None => own_group,
    };
    let name = entry.as_ref().map(|fields| fields[0]);
    let member_of = |line: &str| {
        let fields: Vec<_> = line.split(':').collect();
        let members = fields.get(3)?.split(',');
        name.filter(|name| members.into_iter().any(|member| member == *name))?;
        fields.get(2)?.parse().ok()
    };
    let groups = match group {
        Some(_) => Vec::new(),
        None => groups.lines().filter_map(member_of).collect(),
    };
    Ok((User { uid, gid, groups }, entry.map(|fields| fields[5].to_owned())))
}

fn find_group(group: &str, groups: &str) -> Result<u32, String> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let fields = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut found = fields.filter(|fields| fields.len() >= 3 && fields[0] == group);
    found
        .next()
        .and_then(|fields| fields[2].parse().ok())
        .ok_or_else(|| format!("there is no group `{group}` in the sandbox"))
}

pub(super) fn request(
    command: &Command,
    spec: &SandboxSpec,
    user: User,
    home: Option<String>,
) -> ExecRequest {
    let text = |text: &str| Text::Utf8(text.to_owned());
    let home = home.unwrap_or_else(|| "/".to_owned());
    let mut env = vec![(text("PATH"), text(PATH)), (text("HOME"), text(&home))];
    if command.tty.is_some() {
        env.push((text("TERM"), text("xterm-256color")));
    }
    env.extend(spec.env.iter().map(|(key, value)| (text(key), text(value))));
    env.extend(
        command.env.iter().map(|(key, value)| (key.as_os_str().into(), value.as_os_str().into())),
    );
    let workdir = command.workdir.as_ref().or(spec.workdir.as_ref());
    ExecRequest {
        argv: command.argv.iter().map(|word| word.as_os_str().into()).collect(),
        env,
        workdir: workdir.map_or(Path::new("/"), SandboxPath::as_path).as_os_str().into(),
        make_workdir: command.workdir.is_none(),
        user,
        terminal: command.tty.map(|size| (size.rows, size.columns)),
        leaves: command.leaves,
    }
}

/// Our ends of a command's streams.
enum Streams {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Terminal(Arc<AsyncFd<OwnedFd>>),
}

pub(super) async fn start(
    id: SandboxId,
    command: &Command,
    connection: Connection,
    request: ExecRequest,
) -> DriverResult<Process> {
    let workdir = request.workdir.clone();
    let (ours, theirs) = match command.tty {
        Some(_) => (None, Vec::new()),
        None => make_pipes(command.stdin)
            .map(|(ours, theirs)| (Some(ours), theirs))
            .map_err(failed("make pipes"))?,
    };
    let fds: Vec<_> = theirs.iter().map(|fd| fd.as_fd()).collect();
    connection.send(&Request::Exec(request), &fds).await.map_err(unreachable)?;
    drop(theirs);
    let deadline = command.timeout.map(|timeout| Instant::now() + timeout);
    let (reply, fds) = started(&connection, deadline).await.map_err(unreachable)?;
    match reply {
        Reply::Started { .. } => {}
        Reply::NotStarted(failure) => return Err(not_started(id, command, &workdir, &failure)),
        _ => return Err(odd_reply()),
    }
    let streams = match ours {
        Some(ours) => ours,
        None => Streams::Terminal(Arc::new(terminal(first(fds)?.into()).map_err(unreachable)?)),
    };
    process(command, connection, streams, deadline)
}

/// Somebody inside may have stopped it before it starts: the time runs from the beginning.
async fn started(
    connection: &Connection,
    deadline: Option<Instant>,
) -> io::Result<(Reply, Vec<OwnedFd>)> {
    let Some(deadline) = deadline else { return connection.receive().await };
    match tokio::time::timeout_at(deadline, connection.receive()).await {
        Ok(received) => received,
        Err(_) => {
            connection.send(&KILL, &[]).await?;
            next_but_done(connection).await
        }
    }
}

/// What comes after the answer to a signal.
async fn next_but_done(connection: &Connection) -> io::Result<(Reply, Vec<OwnedFd>)> {
    loop {
        match connection.receive().await? {
            (Reply::Done, _) => {}
            other => return Ok(other),
        }
    }
}

fn not_started(
    id: SandboxId,
    command: &Command,
    workdir: &Text,
    failure: &ExecFailure,
) -> DriverError {
    let missing = matches!(failure.errno, Some(libc::ENOENT | libc::ENOTDIR));
    let command = command.argv.first().map(|word| word.to_string_lossy().into_owned());
    let command = command.unwrap_or_default();
    match failure.stage {
        ExecStage::Command if missing => DriverError::CommandMissing { command },
        ExecStage::Command => DriverError::CommandRefused { command, source: failure.to_io() },
        ExecStage::Workdir if missing => {
            match SandboxPath::new(std::ffi::OsString::from(workdir.clone())) {
                Ok(path) => DriverError::PathMissing { id, path },
                Err(err) => failed("enter the work directory")(err),
            }
        }
        ExecStage::Workdir => failed("enter the work directory")(failure.to_io()),
        ExecStage::User if matches!(failure.errno, Some(libc::EPERM | libc::EINVAL)) => {
            let operation = "run a command as another user: without root there is one inside";
            DriverError::Unsupported { driver: DRIVER, operation }
        }
        ExecStage::User => failed("change the user")(failure.to_io()),
        ExecStage::Terminal => failed("open a terminal")(failure.to_io()),
        ExecStage::Start => failed("start a process")(failure.to_io()),
    }
}

fn make_pipes(stdin: bool) -> io::Result<(Streams, Vec<OwnedFd>)> {
    let (their_stdin, our_stdin) = match stdin {
        true => {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
            (Some(read), Some(write))
        }
        // Not the host's `/dev/null`: whoever has it open as root can change its mode.
        false => (None, None),
    };
    let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    let ours = Streams::Pipes { stdin: our_stdin, stdout, stderr };
    Ok((ours, their_stdin.into_iter().chain([their_stdout, their_stderr]).collect()))
}

fn terminal(master: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    fcntl_getfd(&master)?;
    unblocked(master)
}

fn unblocked(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    ioctl_fionbio(&fd, true)?;
    sys::watch(fd)
}

fn process(
    command: &Command,
    connection: Connection,
    streams: Streams,
    deadline: Option<Instant>,
) -> DriverResult<Process> {
    let connection = Arc::new(connection);
    let (tell, ended) = watch::channel(None);
    tokio::spawn(watch_over(Arc::clone(&connection), deadline, tell));
    let terminal = match &streams {
        Streams::Terminal(master) => Some(Arc::clone(master)),
        Streams::Pipes { .. } => None,
    };
    let control = Box::new(Control { connection, ended, terminal });
    let share = |fd: OwnedFd| unblocked(fd).map(Arc::new).map_err(unreachable);
    Ok(match streams {
        Streams::Terminal(master) => Process {
            stdin: command.stdin.then(|| sink(Arc::clone(&master))),
            stdout: read_all(master),
            stderr: stream::empty().boxed(),
            control,
        },
        Streams::Pipes { stdin, stdout, stderr } => Process {
            stdin: stdin.map(|fd| share(fd).map(sink)).transpose()?,
            stdout: read_all(share(stdout)?),
            stderr: read_all(share(stderr)?),
            control,
        },
    })
}

/// Hears of the end, and brings it about when the time is over. Lives as long as the command.
async fn watch_over(
    connection: Arc<Connection>,
    deadline: Option<Instant>,
    tell: watch::Sender<Option<Result<ExitStatus, String>>>,
) {
    let exited = async {
        loop {
            match connection.receive().await {
                Ok((Reply::Exited { code, signal }, _)) => {
                    return Ok(match (code, signal) {
                        (Some(code), _) => ExitStatus::Code(code),
                        (None, signal) => ExitStatus::Signal(signal.unwrap_or(SIGKILL)),
                    });
                }
                // Answers to signals.
                Ok(_) => {}
                Err(err) => return Err(err.to_string()),
            }
        }
    };
    tokio::pin!(exited);
    let status = match deadline {
        None => exited.await,
        Some(deadline) => match tokio::time::timeout_at(deadline, &mut exited).await {
            Ok(status) => status,
            Err(_) => {
                // If it cannot be told, it is gone, which we hear as well.
                let _ = connection.send(&KILL, &[]).await;
                exited.await.map(|_| ExitStatus::TimedOut)
            }
        },
    };
    tell.send_replace(Some(status));
}

#[derive(Debug)]
struct Control {
    connection: Arc<Connection>,
    ended: watch::Receiver<Option<Result<ExitStatus, String>>>,
    terminal: Option<Arc<AsyncFd<OwnedFd>>>,
}

#[async_trait]
impl ProcessControl for Control {
    async fn signal(&self, signal: i32) -> DriverResult<()> {
        if !(1..=64).contains(&signal) {
            let reason = format!("there is no signal {signal}");
            return Err(DriverError::Invalid { driver: DRIVER, reason });
        }
        if self.ended.borrow().is_some() {
            return Ok(());
        }
        let request = Request::Signal { signal, group: false };
        self.connection.send(&request, &[]).await.map_err(unreachable)
    }

    async fn resize(&self, size: TtySize) -> DriverResult<()> {
        let Some(terminal) = &self.terminal else {
            let reason = "the command has no terminal".to_owned();
            return Err(DriverError::Invalid { driver: DRIVER, reason });
        };
        let TtySize { rows: ws_row, columns: ws_col } = size;
        let size = Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(terminal.get_ref(), size).map_err(|err| unreachable(err.into()))
    }

    async fn wait(&self) -> DriverResult<ExitStatus> {
        let mut ended = self.ended.clone();
        let status = ended.wait_for(Option::is_some).await.map(|status| status.clone());
        match status {
            Ok(Some(Ok(status))) => Ok(status),
            Ok(Some(Err(reason))) => Err(unreachable(io::Error::other(reason))),
            Ok(None) | Err(_) => Err(odd_reply()),
        }
    }
}

fn read_all(fd: Arc<AsyncFd<OwnedFd>>) -> ByteStream {
    stream::try_unfold(fd, |fd| async move {
        let mut buffer = vec![0; CHUNK];
        let read =
            fd.async_io(Interest::READABLE, |fd| match rustix::io::read(fd, &mut buffer[..]) {
                // A terminal that nobody has open any more.
                Err(Errno::IO) => Ok(0),
                result => Ok(result?),
            });
        let len = read.await?;
        buffer.truncate(len);
        Ok(if len == 0 { None } else { Some((Bytes::from(buffer), fd)) })
    })
    .boxed()
}

fn sink(fd: Arc<AsyncFd<OwnedFd>>) -> ByteSink {
    Box::pin(futures::sink::unfold(fd, |fd, bytes: Bytes| async move {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let write = fd.async_io(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, rest)?));
            let len = write.await?;
            rest = &rest[len..];
        }
        Ok::<_, io::Error>(fd)
    }))
}
