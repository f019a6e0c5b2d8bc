//! Process 1 of a sandbox.
//!
//! It reaps, and serves a socket that lies outside the sandbox: commands, signals, files. It knows
//! nothing of snapshots: its root is changed from outside, under its feet. One thread, and nothing
//! that can wait for somebody inside; what may wait (opening a file, starting a command) is done by a
//! child.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd},
    time::Duration,
};

use forkpoint_checkpoint::pager::{Guard, Memory};
use forkpoint_core::driver::Leaves;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{SocketFlags, accept_with},
    process::{Pid, WaitOptions, WaitStatus, wait},
};
use serde::{Deserialize, Serialize};

use super::{capture::mapped_by, launch::Ours, sys, wire};

mod exec;
mod file;
mod keep;

use exec::Starting;
pub(super) use exec::{ExecFailure, ExecRequest, ExecStage, User};
pub(super) use file::{Listed, ListedKind, MadeEntry, WriteHow};

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Ping,
    /// Who may not look at a process from outside asks it: for those of users and of mounts, and its root.
    Namespaces,
    /// What lies below its root, for whoever exchanges that.
    Floor,
    /// With three descriptors, or none for a terminal.
    Exec(ExecRequest),
    /// To the command of this connection.
    Signal {
        signal: i32,
        group: bool,
    },
    /// Stops or continues every process but init, where there is no freezer.
    Hold,
    Release,
    /// The sandbox's time is over after so many milliseconds: then everything in it ends.
    EndIn {
        ms: u64,
    },
    /// Files that anybody has mapped to write.
    Mapped,
    /// To hold descriptors, with what they are, for whoever asks next: nobody else of ours lives as long
    /// as the sandbox.
    Keep {
        about: String,
    },
    /// To hand over one of those, and forget it.
    Take,
    Read {
        path: wire::Text,
    },
    Write {
        path: wire::Text,
        mode: WriteHow,
    },
    Make {
        path: wire::Text,
        entry: MadeEntry,
    },
    /// Of a write: it is complete.
    Commit,
    Entries {
        path: wire::Text,
        depth: u32,
    },
}

impl Request {
    /// Whether it starts something in the sandbox that can run or write.
    fn runs(&self) -> bool {
        matches!(
            self,
            Self::Exec(_)
                | Self::Read { .. }
                | Self::Write { .. }
                | Self::Make { .. }
                | Self::Entries { .. }
        )
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// `root_device` tells on which root init stands.
    Pong {
        root_device: u64,
        processes: usize,
    },
    /// With the terminal, if one was asked for.
    Started {
        pid: i32,
    },
    NotStarted(ExecFailure),
    Exited {
        code: Option<i32>,
        signal: Option<i32>,
    },
    Done,
    Paths(Vec<wire::Text>),
    /// With a descriptor.
    Opened,
    /// With what was kept; the last has nothing.
    Kept {
        about: Option<String>,
    },
    Entries(Vec<Listed>),
    Failed(wire::Failure),
}

struct Connection {
    socket: OwnedFd,
    command: Option<Pid>,
    /// The command is below the process that is called it here.
    is_kept: bool,
    /// The command, until it is known whether it runs.
    starting: Option<Starting>,
}

impl Connection {
    fn new(socket: OwnedFd) -> Self {
        Self { socket, command: None, is_kept: false, starting: None }
    }
}

struct Init {
    listener: OwnedFd,
    signals: OwnedFd,
    terminals: OwnedFd,
    floor: OwnedFd,
    connections: HashMap<RawFd, Connection>,
    commands: HashMap<Pid, RawFd>,
    /// Who stood still before we stopped everybody.
    held: Option<Vec<i32>>,
    /// What came meanwhile, and would run or write.
    waiting: Vec<(RawFd, Request, Vec<OwnedFd>)>,
    /// What we hold for others.
    kept: Vec<(String, Vec<OwnedFd>)>,
    /// Memory of our processes that is still on its way.
    guard: Option<Guard>,
    /// When it is over, by the clock that goes on while the machine sleeps.
    end: Option<Duration>,
}

/// What there is to do.
struct Heard {
    accept: bool,
    ended: bool,
    /// Memory came, or will not.
    memory: bool,
    /// Connections whose command runs now, or never will.
    begun: Vec<RawFd>,
    ready: Vec<RawFd>,
}

/// Serves until it is killed.
pub(super) fn serve(ours: Ours, signals: OwnedFd, guard: Option<Guard>) -> ! {
    let Ours { listener, terminals, floor } = ours;
    let connections = HashMap::new();
    let commands = HashMap::new();
    let (held, waiting, kept, end) = (None, Vec::new(), Vec::new(), None);
    let mut init = Init {
        listener,
        signals,
        terminals,
        floor,
        connections,
        commands,
        held,
        waiting,
        kept,
        guard,
        end,
    };
    loop {
        if init.turn().is_err() {
            // Nothing can be done about a failed poll but to try again.
            rustix::thread::sched_yield();
        }
    }
}

fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.try_into().unwrap_or_default()
}

impl Init {
    fn turn(&mut self) -> io::Result<()> {
        if self.end.is_some_and(|end| end <= since_boot()) {
            // With process 1, all of them end.
            std::process::exit(0);
        }
        let Heard { accept, ended, begun, ready, memory } = self.wait()?;
        if memory {
            self.look_at_memory();
        }
        if ended {
            self.reap();
        }
        for number in begun {
            self.tell_begun(number);
        }
        if accept && let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC) {
            self.connections.insert(socket.as_raw_fd(), Connection::new(socket));
        }
        for number in ready {
            self.serve_one(number);
        }
        Ok(())
    }

    fn wait(&self) -> io::Result<Heard> {
        let mut fds: Vec<PollFd<'_>> = vec![
            PollFd::new(&self.listener, PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
        ];
        let sockets = self.connections.values();
        fds.extend(sockets.map(|connection| PollFd::new(&connection.socket, PollFlags::IN)));
        let starting = self.connections.iter().filter_map(|(number, connection)| {
            connection.starting.as_ref().map(|starting| (*number, &starting.outcome))
        });
        let (starting, outcomes): (Vec<RawFd>, Vec<&OwnedFd>) = starting.unzip();
        fds.extend(outcomes.into_iter().map(|outcome| PollFd::new(outcome, PollFlags::IN)));
        let guarded = self.guard.as_ref().map(|guard| fds.push(PollFd::new(guard, PollFlags::IN)));
        let left = self.end.map(|end| end.saturating_sub(since_boot()));
        // In parts: the clock of a poll stands still while the machine sleeps.
        let left = left.map(|left| left.min(Duration::from_secs(60)));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        poll(&mut fds, left.as_ref())?;
        let heard = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let memory = guarded.and_then(|()| fds.pop()).is_some_and(|fd| heard(&fd));
        let (sockets, outcomes) = fds[2..].split_at(self.connections.len());
        let begun = outcomes.iter().zip(starting).filter(|(fd, _)| heard(fd));
        let ready = sockets.iter().filter(|fd| heard(fd)).map(|fd| fd.as_fd().as_raw_fd());
        Ok(Heard {
            accept: heard(&fds[0]),
            ended: heard(&fds[1]),
            memory,
            begun: begun.map(|(_, number)| number).collect(),
            ready: ready.collect(),
        })
    }

    fn look_at_memory(&mut self) {
        match self.guard.as_ref().map(Guard::look) {
            Some(Memory::Whole) => self.guard = None,
            // Whoever goes on would see empty pages for its own.
            Some(Memory::Lost) => self.guard.take().map_or((), |guard| guard.end_all()),
            Some(Memory::Coming) | None => {}
        }
    }

    fn reap(&mut self) {
        let mut drained = [0; 128];
        while rustix::io::read(&self.signals, &mut drained).is_ok_and(|len| len > 0) {}
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let Some(number) = self.commands.get(&pid).copied() else { continue };
            self.tell_begun(number);
            if self.commands.remove(&pid).is_some()
                && let Some(connection) = self.connections.get_mut(&number)
            {
                connection.command = None;
                // Whoever asked may be gone; the command is over all the same.
                let _ = wire::send(&connection.socket, &exited(status), &[]);
            }
        }
    }

    fn serve_one(&mut self, number: RawFd) {
        let Some(connection) = self.connections.get(&number) else { return };
        match wire::receive::<Request>(&connection.socket) {
            Ok(Some((request, fds))) => self.answer(number, request, fds),
            Ok(None) | Err(_) => self.hang_up(number),
        }
    }

    /// The command goes on without anybody who waits for it.
    fn hang_up(&mut self, number: RawFd) {
        if let Some(connection) = self.connections.remove(&number)
            && let Some(pid) = connection.command
        {
            self.commands.remove(&pid);
        }
        // Its number may be the next one's.
        self.waiting.retain(|(waiting, ..)| *waiting != number);
    }

    fn answer(&mut self, number: RawFd, request: Request, fds: Vec<OwnedFd>) {
        if self.held.is_some() && request.runs() {
            return self.waiting.push((number, request, fds));
        }
        let reply = match request {
            Request::Ping => pong(),
            Request::Namespaces => return self.show_namespaces(number),
            Request::Floor => return self.show_floor(number),
            Request::Exec(request) => return self.exec(number, request, fds),
            Request::Signal { signal, group } => self.signal(number, signal, group),
            Request::Hold => self.hold(),
            Request::Release => return self.release(number),
            Request::EndIn { ms } => {
                self.end = since_boot().checked_add(Duration::from_millis(ms));
                Reply::Done
            }
            Request::Mapped => Reply::Paths(mapped()),
            Request::Keep { about } => {
                self.kept.push((about, fds));
                Reply::Done
            }
            Request::Take => return self.hand_over(number),
            Request::Read { .. }
            | Request::Write { .. }
            | Request::Make { .. }
            | Request::Entries { .. } => {
                return self.start_file_work(number, request);
            }
            Request::Commit => unexpected(),
        };
        self.reply(number, &reply);
    }

    fn hand_over(&mut self, number: RawFd) {
        let (about, fds) = self.kept.pop().unzip();
        let fds: Vec<_> = fds.iter().flatten().map(|fd| fd.as_fd()).collect();
        let Some(connection) = self.connections.get(&number) else { return };
        // Whoever asked and is gone had no use for it.
        let _ = wire::send(&connection.socket, &Reply::Kept { about }, &fds);
    }

    fn reply(&mut self, number: RawFd, reply: &Reply) {
        let Some(connection) = self.connections.get(&number) else { return };
        if wire::send(&connection.socket, reply, &[]).is_err() {
            self.hang_up(number);
        }
    }

    /// Of users, and of mounts.
    fn show_namespaces(&mut self, number: RawFd) {
        let open = || {
            let open = |kind| std::fs::File::open(format!("/proc/self/ns/{kind}"));
            Ok::<_, io::Error>([open("user")?, open("mnt")?, std::fs::File::open("/")?])
        };
        match open() {
            Ok(files) => {
                let Some(connection) = self.connections.get(&number) else { return };
                let fds = files.each_ref().map(|file| file.as_fd());
                let _ = wire::send(&connection.socket, &Reply::Opened, &fds);
            }
            Err(err) => {
                let failure = wire::Failure::new("open the sandbox's namespaces", &err);
                self.reply(number, &Reply::Failed(failure));
            }
        }
    }

    fn show_floor(&mut self, number: RawFd) {
        if let Some(connection) = self.connections.get(&number) {
            let _ = wire::send(&connection.socket, &Reply::Opened, &[self.floor.as_fd()]);
        }
    }

    fn exec(&mut self, number: RawFd, request: ExecRequest, fds: Vec<OwnedFd>) {
        let started = exec::start(&request, fds, &self.terminals);
        let Some(connection) = self.connections.get_mut(&number) else { return };
        match started {
            Ok(starting) => {
                connection.command = Some(starting.pid);
                connection.is_kept = request.leaves != Leaves::Anything;
                self.commands.insert(starting.pid, number);
                connection.starting = Some(starting);
            }
            Err(failure) => self.reply(number, &Reply::NotStarted(failure)),
        }
    }

    /// It is known whether the command of this connection runs.
    fn tell_begun(&mut self, number: RawFd) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let Some(starting) = connection.starting.take() else { return };
        match starting.hear() {
            Ok(()) => {
                let terminal: Vec<_> = starting.terminal.iter().map(|fd| fd.as_fd()).collect();
                let reply = Reply::Started { pid: starting.pid.as_raw_nonzero().get() };
                // If nobody listens any more, the hang-up is seen at the next turn.
                let _ = wire::send(&connection.socket, &reply, &terminal);
            }
            Err(failure) => {
                connection.command = None;
                self.commands.remove(&starting.pid);
                self.reply(number, &Reply::NotStarted(failure));
            }
        }
    }

    fn signal(&self, number: RawFd, signal: i32, group: bool) -> Reply {
        let Some(connection) = self.connections.get(&number) else { return Reply::Done };
        // Not reaped yet, so the number is still its own.
        match connection.command.map(|pid| (pid, pid.as_raw_nonzero().get())) {
            Some((keeper, _)) if connection.is_kept => {
                keep::signal_below(keeper, signal);
                Reply::Done
            }
            Some((_, pid)) => done("signal", sys::kill(if group { -pid } else { pid }, signal)),
            None => Reply::Done,
        }
    }

    /// Nobody can be born meanwhile: a process with a pending signal does not fork.
    fn hold(&mut self) -> Reply {
        if self.held.is_none() {
            self.held = Some(stopped_processes());
        }
        match sys::kill(-1, libc::SIGSTOP) {
            Err(err) if err.raw_os_error() == Some(libc::ESRCH) => Reply::Done,
            Err(err) => done("stop all processes", Err(err)),
            Ok(()) => done("stop all processes", wait_for_rest()),
        }
    }

    fn release(&mut self, number: RawFd) {
        let before = self.held.take().unwrap_or_else(processes);
        for pid in processes().into_iter().filter(|pid| !before.contains(pid)) {
            // It may have been killed meanwhile.
            let _ = sys::kill(pid, libc::SIGCONT);
        }
        self.reply(number, &Reply::Done);
        for (number, request, fds) in std::mem::take(&mut self.waiting) {
            self.answer(number, request, fds);
        }
    }

    /// A child has the connection to itself from now on.
    fn start_file_work(&mut self, number: RawFd, request: Request) {
        let Some(connection) = self.connections.remove(&number) else { return };
        match sys::fork() {
            Ok(None) => {
                sys::restore_signals();
                // More than the sandbox's root has is not needed to read its files.
                if super::caps::limit_to_bounding().is_ok() {
                    file::work(&connection.socket, request);
                }
                std::process::exit(0);
            }
            Ok(Some(_)) => {}
            Err(err) => {
                let failure = wire::Failure::new("start a helper in the sandbox", &err);
                let _ = wire::send(&connection.socket, &Reply::Failed(failure), &[]);
            }
        }
    }
}

fn unexpected() -> Reply {
    Reply::Failed(wire::Failure::new("serve", &io::Error::other("an unexpected request")))
}

fn done(doing: &str, result: io::Result<()>) -> Reply {
    match result {
        Err(err) if err.raw_os_error() != Some(libc::ESRCH) => {
            Reply::Failed(wire::Failure::new(doing, &err))
        }
        _ => Reply::Done,
    }
}

fn exited(status: WaitStatus) -> Reply {
    Reply::Exited { code: status.exit_status(), signal: status.terminating_signal() }
}

fn pong() -> Reply {
    let root_device = rustix::fs::stat("/").map_or(0, |stat| stat.st_dev);
    Reply::Pong { root_device, processes: processes().len() }
}

/// All but init.
fn processes() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    names.filter(|pid| *pid != 1).collect()
}

fn stopped_processes() -> Vec<i32> {
    processes().into_iter().filter(|pid| threads(*pid).iter().all(|state| *state == b'T')).collect()
}

/// The states of a process's threads.
fn threads(pid: i32) -> Vec<u8> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats.filter_map(|stat| stat.rsplit_once(") ")?.1.bytes().next()).collect()
}

/// A stop is asked for, and takes place when a thread leaves the kernel: a long write goes on until
/// its end.
fn wait_for_rest() -> io::Result<()> {
    const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000 };
    const STEPS: usize = 50_000;
    let at_rest =
        |pid: &i32| threads(*pid).iter().all(|state| matches!(state, b'T' | b't' | b'Z' | b'X'));
    for _ in 0..STEPS {
        if processes().iter().all(at_rest) {
            return Ok(());
        }
        let _ = rustix::thread::nanosleep(&STEP);
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "a process does not come to rest"))
}

fn mapped() -> Vec<wire::Text> {
    let paths = processes().into_iter().flat_map(|pid| mapped_by(&format!("/proc/{pid}/maps")));
    paths.map(|path| path.as_os_str().into()).collect()
}
