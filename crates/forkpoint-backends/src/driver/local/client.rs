//! The driver's side of the spawner.

use std::{
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity},
};
use serde::Serialize;

use super::{
    launch::blank::Birth,
    spawner::{NAME, Order, Outcome, Readiness, SHARE_MEMORY, Turn, Work},
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

/// Where so many orders wait that there is no room for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Yes,
    No,
}

#[derive(Debug)]
struct Spawner {
    socket: OwnedFd,
    bell: OwnedFd,
    /// Those that it may run on, where they can be told.
    processors: Option<CpuSet>,
    /// The one that it was kept off last.
    kept_off: AtomicUsize,
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

    /// The same, if it takes no time to say so: there may be nobody to be told, or too much to be done already.
    pub(super) fn stand_by_at_once(&self, ready: Readiness) -> Option<Worker> {
        let spawner = self.running.try_lock().ok()?.as_ref().map(Arc::clone)?;
        let (ours, theirs) = wire::pair().ok()?;
        spawner.tell(&Order::StandBy(ready), &[theirs.as_fd()], Wait::No).ok()?;
        Some(Worker(ours))
    }

    /// Who was told something before may be about to do it, or a copy of it, where we have come to run since.
    pub(super) fn step_aside(&self) {
        if let Ok(running) = self.running.try_lock()
            && let Some(spawner) = &*running
        {
            spawner.make_way();
        }
    }

    /// Nobody waits.
    pub(super) fn tell(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(order, fds)
    }

    fn send(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let spawner = self.spawner()?;
        match spawner.tell(order, fds, Wait::Yes) {
            Err(err) if is_gone(&err) => {
                self.forget(&spawner);
                self.spawner()?.tell(order, fds, Wait::Yes)
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
        // Of the thread that starts it: what it is given is what its copies and their sandboxes would have.
        let processors = sched_getaffinity(None).ok();
        let is_in = |number: &usize| processors.is_some_and(|set| set.is_set(*number));
        let numbers = (0..CpuSet::MAX_CPU).filter(is_in).collect();
        wire::send(&ours, &Order::Bell { processors: numbers }, &[bell.as_fd()])?;
        let (kept_off, child) = (AtomicUsize::new(usize::MAX), Mutex::new(child));
        Ok(Spawner { socket: ours, bell, processors, kept_off, child })
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
    fn tell(&self, order: &Order, fds: &[BorrowedFd<'_>], wait: Wait) -> io::Result<()> {
        match wait {
            Wait::Yes => wire::send(&self.socket, order, fds)?,
            Wait::No => wire::send_at_once(&self.socket, order, fds)?,
        }
        self.keep_off_our_processor();
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes())?;
        Ok(())
    }

    /// Where processors share no cache, as those of many virtual machines, the kernel wakes it where it ran last. If
    /// that is where we run, it would wait until we do, and another processor would be idle meanwhile. Its copies
    /// may run anywhere again. Best effort: it is only about time.
    fn keep_off_our_processor(&self) {
        let Some(all) = &self.processors else { return };
        let (mut others, here) = (*all, sched_getcpu());
        others.unset(here);
        self.kept_off.store(here, Ordering::Relaxed);
        let pid = self.child.lock().unwrap_or_else(PoisonError::into_inner).id();
        if others.count() > 0 {
            let pid = Pid::from_raw(pid.cast_signed());
            let _ = pid.map(|pid| sched_setaffinity(Some(pid), &others));
        }
    }

    /// Where there are but two processors and we run on that of the spawner, its copy waits until we sleep while the other has
    /// nothing to do. So we go there.
    fn make_way(&self) {
        let (Some(all), Ok(ours)) = (&self.processors, sched_getaffinity(None)) else { return };
        let (there, here) = (self.kept_off.load(Ordering::Relaxed), sched_getcpu());
        if all.count() == 2 && there != here && there < CpuSet::MAX_CPU && ours.is_set(there) {
            let mut only = CpuSet::new();
            only.set(there);
            if sched_setaffinity(None, &only).is_ok() {
                let _ = sched_setaffinity(None, &ours);
            }
        } else {
            self.keep_off_our_processor();
        }
    }
}

/// A copy of the spawner that stands by.
#[derive(Debug)]
pub(super) struct Worker(OwnedFd);

impl Worker {
    /// Whether it is still there: it says nothing until it has work.
    pub(super) fn waits(&self) -> bool {
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&Timespec::default())) == Ok(0)
    }

    /// Has the first process of a sandbox be born, in this cgroup if there is one.
    pub(super) fn bear(&self, birth: Birth, cgroup: Option<&OwnedFd>) -> Result<(), Failure> {
        let cgroup: Vec<_> = cgroup.map(|fd| fd.as_fd()).into_iter().collect();
        wire::send(&self.0, &Work::Birth(birth), &cgroup).map_err(failed)
    }

    /// Tells what is to be done; what comes of it is [heard](Self::hear) later.
    pub(super) fn begin(&self, work: &Work, fds: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        wire::send(&self.0, work, fds).map_err(failed)
    }

    pub(super) fn tell(&self, turn: &Turn) -> Result<(), Failure> {
        wire::send(&self.0, turn, &[]).map_err(failed)
    }

    /// Also that it failed; an error is one who says nothing.
    pub(super) fn hear(&self) -> io::Result<(Outcome, Vec<OwnedFd>)> {
        hear_all(&self.0)
    }

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
    match hear_all(socket).map_err(failed)? {
        (Outcome::Failed(failure), _) => Err(failure),
        (outcome, _) => Ok(outcome),
    }
}

fn hear_all(socket: &OwnedFd) -> io::Result<(Outcome, Vec<OwnedFd>)> {
    wire::receive(socket)?.ok_or_else(|| io::Error::other("it ended without an answer"))
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` has it")]
fn failed(err: io::Error) -> Failure {
    Failure::new("ask the launcher", &err)
}

fn is_gone(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
