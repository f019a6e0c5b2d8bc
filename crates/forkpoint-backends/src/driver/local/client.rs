//! The driver's side of the spawner.

use std::{
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::event::{EventfdFlags, eventfd};
use serde::Serialize;

use super::{
    spawner::{NAME, Order, Outcome, Readiness, SHARE_MEMORY, Work},
    wire::{self, Failure},
};

mod program;

use program::Program;

/// Tells the host's root of which sandboxes a launcher is, and an init that it made: all else that they
/// were started with is forgotten. Inside nobody can read it.
const ROOT: &str = "FORKPOINT_ROOT";

/// Starts a spawner when one is needed, and another one if it was killed.
#[derive(Debug)]
pub(super) struct Client {
    helper: PathBuf,
    root: PathBuf,
    share_memory: bool,
    running: Mutex<Option<Arc<Spawner>>>,
}

#[derive(Debug)]
struct Spawner {
    socket: OwnedFd,
    bell: OwnedFd,
    /// Reaped by whoever reaps us: it ends after us, when it has cleaned up.
    child: Mutex<Child>,
}

impl Client {
    pub(super) fn new(helper: Option<PathBuf>, root: &Path, share_memory: bool) -> Self {
        // The link leads to our own program even when its file was replaced meanwhile.
        let helper = helper.unwrap_or_else(|| "/proc/self/exe".into());
        Self { helper, root: root.to_owned(), share_memory, running: Mutex::default() }
    }

    /// Waits for the answer.
    pub(super) fn order(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> Result<Outcome, Failure> {
        let (ours, theirs) = wire::pair().map_err(failed)?;
        let mut all = vec![theirs.as_fd()];
        all.extend_from_slice(fds);
        self.send(order, &all).map_err(failed)?;
        drop(theirs);
        hear(&ours)
    }

    /// Whoever will do the work that comes next, while it is prepared. It ends when this is dropped.
    pub(super) fn stand_by(&self, ready: Readiness) -> Result<Worker, Failure> {
        let (ours, theirs) = wire::pair().map_err(failed)?;
        self.send(&Order::StandBy(ready), &[theirs.as_fd()]).map_err(failed)?;
        Ok(Worker(ours))
    }

    /// Nobody waits.
    pub(super) fn tell(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(order, fds)
    }

    fn send(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let spawner = self.spawner()?;
        match spawner.tell(order, fds) {
            Err(err) if is_gone(&err) => {
                self.forget(&spawner);
                self.spawner()?.tell(order, fds)
            }
            result => result,
        }
    }

    fn spawner(&self) -> io::Result<Arc<Spawner>> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(spawner) = &*running {
            return Ok(Arc::clone(spawner));
        }
        let spawner = Arc::new(self.start()?);
        *running = Some(Arc::clone(&spawner));
        Ok(spawner)
    }

    fn start(&self) -> io::Result<Spawner> {
        let (ours, theirs) = wire::pair()?;
        let program = Program::open(&self.helper)?;
        let child = Command::new(format!("/proc/self/fd/{}", program.file.as_raw_fd()))
            .arg0(NAME)
            .args(self.share_memory.then_some(SHARE_MEMORY))
            .env_clear()
            .env(ROOT, &self.root)
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?;
        wire::send(&ours, &Order::Bell, &[bell.as_fd()])?;
        Ok(Spawner { socket: ours, bell, child: Mutex::new(child) })
    }

    fn forget(&self, dead: &Arc<Spawner>) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.as_ref().is_some_and(|spawner| Arc::ptr_eq(spawner, dead)) {
            *running = None;
        }
        // It is dead already, and only to be taken note of.
        let _ = dead.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
    }
}

impl Spawner {
    fn tell(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        wire::send(&self.socket, order, fds)?;
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes())?;
        Ok(())
    }
}

/// A copy of the spawner that stands by.
#[derive(Debug)]
pub(super) struct Worker(OwnedFd);

impl Worker {
    /// Waits for the answer.
    pub(super) fn ask(self, work: &Work, fds: &[BorrowedFd<'_>]) -> Result<Outcome, Failure> {
        ask(&self.0, work, fds)
    }
}

/// Waits for the answer of one that has nothing else to do.
pub(super) fn ask<T: Serialize>(
    socket: &OwnedFd,
    order: &T,
    fds: &[BorrowedFd<'_>],
) -> Result<Outcome, Failure> {
    wire::send(socket, order, fds).map_err(failed)?;
    hear(socket)
}

fn hear(socket: &OwnedFd) -> Result<Outcome, Failure> {
    match wire::receive(socket).map_err(failed)? {
        Some((Outcome::Failed(failure), _)) => Err(failure),
        Some((outcome, _)) => Ok(outcome),
        None => Err(failed(io::Error::other("it ended without an answer"))),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` has it")]
fn failed(err: io::Error) -> Failure {
    Failure::new("ask the launcher", &err)
}

fn is_gone(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
