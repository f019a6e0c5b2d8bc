//! Stopping a tree of processes, so that nothing in it changes while it is looked at.
//!
//! Every task is seized and interrupted; what forks meanwhile is found by looking again, until nothing
//! new is found: then nobody is left who could fork. Whatever happens, dropping [`Frozen`] lets all of
//! them go on where they were; so does our death.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    io,
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::{
    arch::Registers,
    error::{Doing as _, Error, Result},
    hand::Hand,
    sys::{self, Deadline, Patience, Proc, ptrace},
};

/// How long one attempt waits for one task. A parent in `vfork` waits for its child, and the child for
/// us: only letting go helps.
const ATTEMPT: Duration = Duration::from_millis(20);
const TASKS_MAX: usize = 1 << 15;

/// A tree of processes: everything below process 1 of a pid namespace, without that one and without
/// copies of it that run no other program.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(crate) init: i32,
    pub(crate) clients: bool,
    copies: bool,
    complete: Option<Complete>,
}

/// A tree of which it is known how many processes it has, with process 1: all of them are there and wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Complete {
    pub(crate) processes: usize,
    /// Whether each of them lives, and has one thread.
    pub(crate) plain: bool,
}

impl Tree {
    /// `init` is the number of the namespace's process 1, as seen from here.
    #[must_use]
    pub fn below(init: i32) -> Self {
        Self { init, clients: false, copies: false, complete: None }
    }

    /// Pipes to somebody outside are a client's, who comes and goes: brought back, such a pipe has nobody
    /// at its other end. What is read from it ends, and what is written to it goes nowhere. Programs of such a tree
    /// cannot make a userfaultfd: one that a process has is ours, left by who died at a capture, and is closed.
    #[must_use]
    pub fn with_clients(self) -> Self {
        Self { clients: true, ..self }
    }

    /// Also those that still are copies of process 1: they are about to be something else.
    pub(crate) fn with_copies(self) -> Self {
        Self { copies: true, ..self }
    }

    /// Nobody is born any more.
    pub(crate) fn complete_with(self, complete: Complete) -> Self {
        Self { complete: Some(complete), ..self }
    }

    /// Process 1 and everybody below it, parents before their children. May be out of date unless all of
    /// them stand.
    pub(crate) fn processes(&self) -> Vec<i32> {
        self.members(&listed, |_| false).iter().map(|member| member.pid).collect()
    }

    /// As many as there should be, where they are plain: to be counted, and else to be listed.
    fn members_at_first(&self) -> Vec<Member> {
        match self.complete {
            Some(Complete { processes, plain: true }) => {
                self.members(&|pid| (vec![pid], children(pid)), |count| count == processes)
            }
            _ => self.members(&listed, |_| false),
        }
    }

    fn members(
        &self,
        listed: &dyn Fn(i32) -> (Vec<i32>, Vec<i32>),
        are_all: impl Fn(usize) -> bool,
    ) -> Vec<Member> {
        let mut all = vec![Member { pid: self.init, parent: 0, tasks: Vec::new() }];
        let mut next = 0;
        while next < all.len() && all.len() < TASKS_MAX {
            let pid = all[next].pid;
            let (tasks, children) =
                if are_all(all.len()) { (vec![pid], Vec::new()) } else { listed(pid) };
            all[next].tasks = tasks;
            let member = |child| Member { pid: child, parent: pid, tasks: Vec::new() };
            all.extend(children.into_iter().map(member));
            next += 1;
        }
        all
    }

    /// Whether a process that stands is no part of it.
    fn is_bystander(&self, pid: i32, program_of_init: Option<Program>) -> bool {
        let is_copy = || program_of_init.is_some() && program(pid) == program_of_init;
        pid == self.init || (!self.copies && is_copy())
    }
}

/// Device and inode.
type Program = (u64, u64);

fn program(pid: i32) -> Option<Program> {
    let stat = rustix::fs::stat(format!("/proc/{pid}/exe")).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// A process as it is listed. One that is gone has no tasks.
#[derive(Debug)]
struct Member {
    pid: i32,
    parent: i32,
    tasks: Vec<i32>,
}

/// Its tasks, the leader first, and the children of all of them. A process that is gone has none.
fn listed(pid: i32) -> (Vec<i32>, Vec<i32>) {
    let Ok(proc) = Proc::of(pid) else { return Default::default() };
    let mut tasks = proc.numbers("task").unwrap_or_default();
    tasks.sort_by_key(|tid| (*tid != pid, *tid));
    let mut children = Vec::new();
    for tid in &tasks {
        let list = proc.text(&format!("task/{tid}/children")).unwrap_or_default();
        children.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    (tasks, children)
}

/// The children of a process with one thread.
fn children(pid: i32) -> Vec<i32> {
    let list = sys::read_text(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// A task that stands.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) tid: i32,
    /// Where the program is.
    pub(crate) regs: Registers,
    pub(crate) mask: u64,
    /// The signal of a job control stop that it was in already.
    pub(crate) job_stop: i32,
    /// It stands somewhere else than the program would.
    pub(crate) moved: bool,
    /// Came meanwhile, and could not be blocked.
    pub(crate) owed: Vec<i32>,
}

/// A process all of whose tasks stand. The first is its leader.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) tasks: Vec<Task>,
    pub(crate) hand: Option<Hand>,
}

#[derive(Debug, Default)]
pub(crate) struct Frozen {
    pub(crate) processes: Vec<Held>,
    /// They stand too, so that nobody is born or served meanwhile, and are no part of the tree.
    pub(crate) bystanders: Vec<Held>,
    /// Dead, and not yet asked for by their parents: number and number of the parent.
    pub(crate) dead: Vec<(i32, i32)>,
}

enum Attempt {
    Stands(Frozen),
    /// Everybody was let go; this one did not come to a stop.
    Again(i32),
}

/// Stops all of `tree`.
pub(crate) fn freeze(tree: &Tree, options: u64, deadline: Deadline) -> Result<Frozen> {
    let mut attached = HashSet::new();
    for round in 0.. {
        let attempted = attempt(tree, options, &mut attached, deadline).inspect_err(|_| {
            // Whoever was interrupted already and was not waited for would stay ours, also when dead.
            let limit = Deadline::after(Duration::from_millis(100));
            attached.retain(|tid| !let_go(*tid, limit));
        })?;
        match attempted {
            Attempt::Stands(frozen) => return Ok(frozen),
            Attempt::Again(pid) if deadline.passed() => {
                let why = "it waits in the kernel, or forks without end";
                return Err(Error::restless(pid, why));
            }
            Attempt::Again(_) => sys::pause(Duration::from_micros(200 + 100 * u64::min(round, 20))),
        }
    }
    unreachable!("the loop ends by returning")
}

/// `attached` are tasks of ours that did not stand when they were let go, and so were not.
fn attempt(
    tree: &Tree,
    options: u64,
    attached: &mut HashSet<i32>,
    deadline: Deadline,
) -> Result<Attempt> {
    let mut frozen = Frozen::default();
    let mut known: HashMap<i32, usize> = HashMap::new();
    let mut members = tree.members_at_first();
    loop {
        let waits = tree.complete.is_some();
        let new = match seize_new(&members, options, waits, &mut frozen, &mut known, attached)? {
            Seized::New(new) => new,
            Seized::Waits(tid) => {
                drop(frozen);
                return Ok(give_up(tid, attached));
            }
        };
        if new.is_empty() {
            break;
        }
        for (pid, tid) in new {
            let limit = Deadline::after(ATTEMPT).earlier(deadline);
            match stop_of(tid, limit).doing("stop a task", pid)? {
                Stop::Stands(job_stop) => {
                    attached.remove(&tid);
                    let task = Task::look(tid, job_stop).doing("read registers", pid)?;
                    let index = known[&pid];
                    frozen.processes[index].tasks.push(task);
                }
                Stop::Ended => {
                    attached.remove(&tid);
                }
                Stop::Late => {
                    drop(frozen);
                    return Ok(give_up(tid, attached));
                }
            }
        }
        if tree.complete.is_some_and(|all| all.processes == frozen.processes.len()) {
            break;
        }
        if deadline.passed() {
            let pid = frozen.processes.last().map_or(tree.init, |process| process.pid);
            drop(frozen);
            return Ok(Attempt::Again(pid));
        }
        members = tree.members(&listed, |_| false);
    }
    frozen.processes.retain(|process| !process.tasks.is_empty());
    let all = std::mem::take(&mut frozen.processes);
    let own = program(tree.init);
    (frozen.bystanders, frozen.processes) =
        all.into_iter().partition(|process| tree.is_bystander(process.pid, own));
    frozen.dead = dead(&frozen, &members);
    Ok(Attempt::Stands(frozen))
}

/// Everybody else was let go already.
fn give_up(tid: i32, attached: &mut HashSet<i32>) -> Attempt {
    let limit = Deadline::after(Duration::from_millis(100));
    attached.retain(|tid| !let_go(*tid, limit));
    Attempt::Again(tid)
}

enum Seized {
    New(Vec<(i32, i32)>),
    /// This one waits in the kernel: seized, it could neither be stopped nor let go, and would die as
    /// ours, asked for by nobody.
    Waits(i32),
}

/// Tasks that were not seized before, now are. `waits`: none of them is in the middle of anything.
fn seize_new(
    members: &[Member],
    options: u64,
    waits: bool,
    frozen: &mut Frozen,
    known: &mut HashMap<i32, usize>,
    attached: &mut HashSet<i32>,
) -> Result<Seized> {
    let mut new = Vec::new();
    for Member { pid, tasks, .. } in members {
        for (pid, tid) in tasks.iter().map(|tid| (*pid, *tid)) {
            let stands =
                |index: &usize| frozen.processes[*index].tasks.iter().any(|t| t.tid == tid);
            if known.get(&pid).is_some_and(stands) {
                continue;
            }
            if !waits && !attached.contains(&tid) && state(tid) == Some('D') {
                return Ok(Seized::Waits(tid));
            }
            if !seize(pid, tid, options, attached)? {
                continue;
            }
            attached.insert(tid);
            ptrace::interrupt(tid).or_else(gone_is_fine).doing("interrupt a task", pid)?;
            if let Entry::Vacant(place) = known.entry(pid) {
                let pidfd = match open_pidfd(pid) {
                    Ok(pidfd) => pidfd,
                    Err(err) if err.raw_os_error() == Some(libc::ESRCH) => continue,
                    // Leaving it out would leave it out of the snapshot.
                    Err(err) => return Err(err).doing("open a handle", pid),
                };
                place.insert(frozen.processes.len());
                frozen.processes.push(Held { pid, pidfd, tasks: Vec::new(), hand: None });
            }
            new.push((pid, tid));
        }
    }
    Ok(Seized::New(new))
}

fn open_pidfd(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn gone_is_fine(err: io::Error) -> io::Result<()> {
    if err.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(err) }
}

/// `false` is a task that is no more. Leaving out any other would leave it out of the snapshot.
fn seize(pid: i32, tid: i32, options: u64, attached: &HashSet<i32>) -> Result<bool> {
    if attached.contains(&tid) {
        return Ok(true);
    }
    match with_or_without_filters(options, |options| ptrace::seize(tid, options)) {
        Ok(()) => Ok(true),
        Err(_) if is_dead(tid) => Ok(false),
        Err(source) if source.raw_os_error() == Some(libc::EPERM) && is_traced(tid) => {
            let why = "somebody else traces it: end the debugger in the sandbox";
            Err(Error::restless(pid, why))
        }
        Err(source) => Err(Error::Process { doing: "trace a task", pid, source }),
    }
}

fn with_or_without_filters(options: u64, set: impl Fn(u64) -> io::Result<()>) -> io::Result<()> {
    // A kernel that cannot suspend filters says the first; one who is under a filter himself hears the second.
    let unsuspended =
        |err: &io::Error| matches!(err.raw_os_error(), Some(libc::EINVAL | libc::EPERM));
    match set(options) {
        Err(err) if options & ptrace::SUSPEND_SECCOMP != 0 && unsuspended(&err) => {
            set(options & !ptrace::SUSPEND_SECCOMP)
        }
        result => result,
    }
}

fn is_traced(tid: i32) -> bool {
    let status = sys::read_marked(format!("/proc/{tid}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|pid| pid.trim() != "0")
}

/// A leader that ended while its threads live is dead as a task, but its process is not.
fn is_dead(tid: i32) -> bool {
    matches!(state(tid), None | Some('Z' | 'X'))
}

fn state(tid: i32) -> Option<char> {
    let stat = sys::read_marked(format!("/proc/{tid}/stat")).unwrap_or_default();
    stat.rfind(") ").and_then(|at| stat[at + 2..].chars().next())
}

enum Stop {
    Stands(i32),
    Ended,
    Late,
}

/// Waits until an interrupted task stands. Signals that it was about to take it takes.
fn stop_of(tid: i32, limit: Deadline) -> io::Result<Stop> {
    let mut patience = Patience::default();
    loop {
        match ptrace::look(tid)? {
            Some(ptrace::Event::Interrupted(job_stop)) => return Ok(Stop::Stands(job_stop)),
            Some(ptrace::Event::Signal(signal)) => {
                ptrace::go_on_with(tid, signal).or_else(gone_is_fine)?;
            }
            Some(ptrace::Event::Ended) => return Ok(Stop::Ended),
            None if limit.passed() => return Ok(Stop::Late),
            None => patience.wait(),
        }
    }
}

/// Waits for a task that was interrupted and did not stand, and lets it go. `false`: it still does not.
fn let_go(tid: i32, limit: Deadline) -> bool {
    match stop_of(tid, limit) {
        Ok(Stop::Stands(_)) => ptrace::detach(tid).is_ok(),
        Ok(Stop::Ended) => true,
        Ok(Stop::Late) | Err(_) => false,
    }
}

/// `members` were listed when all of them stood.
fn dead(frozen: &Frozen, members: &[Member]) -> Vec<(i32, i32)> {
    let alive: HashSet<i32> = frozen.processes.iter().map(|process| process.pid).collect();
    let is_dead = |member: &&Member| alive.contains(&member.parent) && !alive.contains(&member.pid);
    members.iter().filter(is_dead).map(|member| (member.pid, member.parent)).collect()
}

impl Task {
    fn look(tid: i32, job_stop: i32) -> io::Result<Self> {
        let (regs, mask) = (Registers::of(tid)?, ptrace::mask(tid)?);
        Ok(Self { tid, regs, mask, job_stop, moved: false, owed: Vec::new() })
    }

    /// The mask first: while registers are elsewhere, the way back sets it anyway.
    pub(crate) fn put_back(&mut self) -> io::Result<()> {
        if self.moved {
            ptrace::set_mask(self.tid, self.mask)?;
            self.regs.set(self.tid)?;
            self.moved = false;
        }
        Ok(())
    }
}

impl Held {
    fn set_options(&self, options: u64) -> Result<()> {
        for task in &self.tasks {
            let set = |options| ptrace::set_options(task.tid, options);
            with_or_without_filters(options, set).doing("bind a task to us", self.pid)?;
        }
        Ok(())
    }

    /// Puts all tasks back where the program is, and lets them go. `closing` is what came of the beginning of that.
    fn release(&mut self, closing: io::Result<()>) {
        let closed = closing.and_then(|()| self.end_to_close());
        for mut task in self.tasks.drain(..) {
            // What cannot be put back goes back by itself.
            let _ = task.put_back();
            let _ = ptrace::detach(task.tid);
            for signal in task.owed {
                let _ = sys::task::kill(self.pid, signal);
            }
        }
        // Nothing more can be done for it than to let it go.
        drop(closed);
    }
}

impl Frozen {
    /// Who is no part of the tree after all. It stands like the others.
    pub(crate) fn set_aside(&mut self, is_bystander: impl Fn(i32) -> bool) {
        let all = std::mem::take(&mut self.processes);
        let (aside, rest) = all.into_iter().partition(|held: &Held| is_bystander(held.pid));
        let aside: Vec<Held> = aside;
        self.bystanders.extend(aside);
        self.processes = rest;
    }

    /// From now on, our death is the death of all of them, and of process 1.
    pub(crate) fn bind(&self) -> Result<()> {
        // Process 1 first: with it all of them end, and never some.
        let mut all = self.bystanders.iter().chain(&self.processes);
        all.try_for_each(|held| held.set_options(ptrace::SUSPEND_SECCOMP | ptrace::EXIT_KILL))
    }

    /// From now on, they outlive us again.
    pub(crate) fn unbind(&self) -> Result<()> {
        let mut all = self.processes.iter().chain(self.bystanders.iter().rev());
        all.try_for_each(|held| held.set_options(ptrace::SUSPEND_SECCOMP))
    }

    pub(crate) fn thaw(mut self) {
        self.release();
    }

    fn release(&mut self) {
        let mut all: Vec<&mut Held> =
            self.processes.iter_mut().chain(&mut self.bystanders).collect();
        // They are at it all at once.
        let closing: Vec<_> = all.iter_mut().map(|held| held.begin_to_close()).collect();
        for (held, closing) in all.into_iter().zip(closing) {
            held.release(closing);
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.release();
    }
}
