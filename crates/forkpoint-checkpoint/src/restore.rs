//! Bringing a captured tree back, in a new sandbox.
//!
//! ```text
//!   launcher (one thread)              process 1 of the new sandbox        each process
//!   Steps::new: checks, scripts
//!   Plan::new: a shared page ────fork──►  Plan::build: opens files ──fork──►  takes its place
//!   Plan::finish: waits ◄──────────────────────────────────────────────────  ready, stands
//!     checks every step, lets go ─────────────────────────────────────────►  the program goes on
//! ```
//!
//! Everything is decided before anything is made: the launcher assembles all scripts, with the numbers of
//! descriptors and the addresses that they will find. Nothing of the program runs before every step of
//! every process was checked; until then, killing process 1 undoes all of it.

use std::{cell::RefCell, io, time::Duration};

use crate::{
    arch,
    dump::{proc::Status, this_machine},
    error::{Doing as _, Error, Result},
    freeze::{Complete, Frozen, Held, Tree, freeze},
    hand::{Reins, quiet_signal},
    image::{Alive, Chain, Machine, Process, Snapshot},
    pager::{self, Guard, Keeper, Pager},
    ranges::Range,
    script::{Call, KernelPages, Outcome},
    segments,
    sys::{Deadline, Patience, ptrace, read_text, task::threads_here},
};

mod assemble;
mod board;
mod files;
mod identity;
mod keeper;
mod lazy;
mod numbers;
mod opener;
mod rights;
pub(crate) mod shared;
mod sockets;
mod spread;
mod tcp;
mod tree;
mod watches;

use self::{
    assemble::{Assembled, Whole},
    board::Board,
    identity::Spots,
    lazy::Laziness,
    numbers::Numbers,
};
pub(crate) use self::{
    assemble::{advise, anonymous_flags, around, hole, record_locks},
    files::look_up,
    opener::open_again,
    watches::watch_again,
};

/// How often it is looked whether process 1 lives, while nothing is heard.
const LOOK_AROUND: Duration = Duration::from_millis(5);

/// How long processes may take to attach memory that only they keep.
const TOGETHER: Duration = Duration::from_secs(20);

/// What every copy of an image does to come back, for as many as there will be. Only for copies of the process that
/// assembled it.
#[derive(Debug)]
pub struct Steps {
    numbers: Numbers,
    /// One for each living process, in the order of the image.
    scripts: Vec<Option<Assembled>>,
    /// `None`: all memory is there before anything runs.
    laziness: Option<Laziness>,
    /// One for each process of the image.
    spots: Vec<Spots>,
}

impl Steps {
    /// Checks that the image fits this machine, and assembles what is to be done. The caller has one thread,
    /// and will copy itself.
    pub fn new(chain: &Chain) -> Result<Self> {
        Self::assemble(chain, |_| None)
    }

    /// `laziness` is told what must be there before anything runs.
    fn assemble(
        chain: &Chain,
        laziness: impl FnOnce(&[Spots]) -> Option<Laziness>,
    ) -> Result<Self> {
        let snapshot = &chain.top().snapshot;
        check_machine(&snapshot.machine)?;
        let spots = find_spots(chain)?;
        let laziness = laziness(&spots);
        // Known to all copies from here on.
        KernelPages::own().system("read our own mappings")?;
        let faults = laziness.as_ref().map(|laziness| laziness.maker.number());
        let numbers = Numbers::new(snapshot, chain, faults);
        let taken = own_ranges().system("read our own mappings")?;
        let scripts = snapshot.processes.iter().enumerate().map(|(index, process)| {
            let (pid, numbers) = (process.pid, &numbers);
            let Some(alive) = process.alive() else { return Ok(None) };
            let lazy = laziness.as_ref().and_then(|laziness| laziness.processes[index].as_ref());
            let whole = Whole { pid, alive, chain, numbers, lazy };
            assemble::assemble(whole, &taken).map(Some).doing("assemble the steps", pid)
        });
        let scripts = scripts.collect::<Result<_>>()?;
        Ok(Self { numbers, scripts, laziness, spots })
    }
}

fn find_spots(chain: &Chain) -> Result<Vec<Spots>> {
    let snapshot = &chain.top().snapshot;
    let find = |process: &Process| {
        let Some(alive) = process.alive() else { return Ok(Spots::default()) };
        let found = Spots::find(process.pid, alive, snapshot, chain);
        found.doing("look for what it knows databases by", process.pid)
    };
    snapshot.processes.iter().map(find).collect()
}

/// All that is needed to bring a tree back, once.
#[derive(Debug)]
pub struct Plan<'a> {
    chain: &'a Chain,
    steps: &'a Steps,
    board: Board,
    /// Where memory comes later: each copy of the launcher keeps one of them.
    sides: RefCell<Option<(Keeper, Guard)>>,
}

impl<'a> Plan<'a> {
    /// The caller has one thread and is about to copy itself. `steps` are those of `chain`.
    pub fn new(chain: &'a Chain, steps: &'a Steps) -> Result<Self> {
        let board = Board::new().system("make a shared page")?;
        let sides = steps.laziness.is_some().then(pager::pair).transpose();
        let sides = RefCell::new(sides.system("make a guard of memory")?);
        Ok(Self { chain, steps, board, sides })
    }

    fn snapshot(&self) -> &'a Snapshot {
        &self.chain.top().snapshot
    }

    fn threads(&self) -> u32 {
        let alive = self.snapshot().processes.iter().filter_map(Process::alive);
        alive.map(|alive| alive.threads.len() as u32).sum()
    }

    /// Makes the tree, below the calling process: process 1 of a new pid namespace, root in it, in the sandbox's
    /// root with `/proc` and `/dev`. Closes every descriptor that it makes.
    pub fn build(&self) -> Result<()> {
        // Nobody keeps it, so nothing may be missing when it runs.
        drop(self.guard());
        self.build_all()
    }

    fn build_all(&self) -> Result<()> {
        if threads_here() != 1 {
            let source = io::Error::other("a process with several threads must not be copied");
            return Err(Error::System { doing: "bring processes back", source });
        }
        let result = self.build_tree();
        match &result {
            Ok(()) => self.board.arrive(),
            Err(err) => self.board.fail(1, err),
        }
        files::close_all(&self.steps.numbers);
        result
    }

    fn build_tree(&self) -> Result<()> {
        let segments = segments::make_all(&self.snapshot().segments, self.chain);
        let doomed = segments.system("make memory of System V")?;
        files::open_all(self)?;
        tree::spawn(self)?;
        keeper::spawn(self)?;
        if files::fills_later(self) {
            files::fill_mounts(self)?;
        }
        if doomed.is_empty() {
            return Ok(());
        }
        // Until everybody has attached them, they are there because of this process.
        let deadline = Deadline::after(TOGETHER);
        let mut patience = Patience::default();
        while self.board.ready() < self.threads() && self.board.failure().is_none() {
            if deadline.passed() {
                let (ready, wanted) = (self.board.ready(), self.threads());
                return Err(Error::Late { ready, wanted });
            }
            patience.wait();
        }
        Ok(())
    }

    /// Waits until the tree below `init` is complete, checks every step, and lets it run.
    pub fn finish(&self, init: i32, patience: Duration) -> Result<()> {
        self.bring(init, patience, false).map(drop)
    }

    fn bring(&self, init: i32, patience: Duration, lazily: bool) -> Result<Option<Pager>> {
        let deadline = Deadline::after(patience);
        let pager = self.pager()?;
        self.wait(init, deadline)?;
        let keeper = keeper::number(self.snapshot());
        let all = 1 + self.steps.scripts.iter().flatten().count() + usize::from(keeper.is_some());
        let is_plain =
            |process: &Process| process.alive().is_some_and(|alive| alive.threads.len() == 1);
        let plain = self.snapshot().processes.iter().all(is_plain);
        let complete = Complete { processes: all, plain };
        let mut frozen = freeze(
            &Tree::below(init).with_copies().complete_with(complete),
            ptrace::EXIT_KILL | ptrace::SUSPEND_SECCOMP,
            deadline,
        )?;
        if let Some(number) = keeper {
            frozen.set_aside(|pid| inside(pid) == Some(number));
        }
        let result = self.check_and_prepare(&mut frozen, pager, lazily);
        if result.is_err() {
            // They must not run: what is half made ends with process 1, which the caller kills.
            std::mem::forget(frozen);
            return result;
        }
        frozen.thaw();
        result
    }

    fn wait(&self, init: i32, deadline: Deadline) -> Result<()> {
        let wanted = self.threads();
        let mut heard = true;
        loop {
            if let Some((pid, step)) = self.board.failure() {
                let source = io::Error::other("nothing of it runs");
                return Err(Error::Step { pid, step, source });
            }
            let ready = self.board.ready();
            // And process 1.
            if ready > wanted {
                return Ok(());
            }
            if deadline.passed() || !heard && !is_alive(init) {
                return Err(self.blame(init).unwrap_or(Error::Late { ready, wanted }));
            }
            heard = self.board.wait(ready, LOOK_AROUND);
        }
    }

    /// The first step that failed, of those that can be read.
    fn blame(&self, init: i32) -> Option<Error> {
        let mut frozen = freeze(
            &Tree::below(init).with_copies(),
            ptrace::EXIT_KILL,
            Deadline::after(Duration::from_millis(300)),
        )
        .ok()?;
        let found = frozen.processes.iter().find_map(|held| {
            let Found { process, script, .. } = self.find(held).ok()?;
            script.first_failure(held.pid, process.pid).err()
        });
        frozen.processes.iter_mut().for_each(|held| held.tasks.clear());
        found
    }

    fn find(&self, held: &Held) -> Result<Found<'_>> {
        let status = Status::of(held.pid).doing("read the state", held.pid)?;
        let pid = status.last("NSpid").doing("read the number", held.pid)?;
        let at = self.snapshot().processes.iter().position(|process| process.pid == pid);
        at.and_then(|at| {
            let process = &self.snapshot().processes[at];
            let (alive, script) = (process.alive()?, self.steps.scripts[at].as_ref()?);
            let spots = &self.steps.spots[at];
            Some(Found { process, alive, script, spots, status })
        })
        .ok_or(Error::Ended { pid })
    }

    fn check_and_prepare(
        &self,
        frozen: &mut Frozen,
        mut pager: Option<Pager>,
        lazily: bool,
    ) -> Result<Option<Pager>> {
        let living = self.steps.scripts.iter().flatten().count();
        if frozen.processes.len() != living {
            let (ready, wanted) = (frozen.processes.len() as u32, living as u32);
            return Err(Error::Late { ready, wanted });
        }
        let mut all = Vec::with_capacity(living);
        for held in &frozen.processes {
            let found = self.find(held)?;
            found.script.first_failure(held.pid, found.process.pid)?;
            all.push(found);
        }
        if let Some(pager) = &mut pager {
            self.ask_for_pages(frozen, pager)?;
        }
        for (held, found) in frozen.processes.iter().zip(&all) {
            let renewed = found.spots.renew(held.pid);
            renewed.doing("renew what it knows databases by", found.process.pid)?;
        }
        for (held, found) in frozen.processes.iter_mut().zip(&all) {
            take_place(held, found).doing("take the place", found.process.pid)?;
        }
        for (held, Found { process, alive, .. }) in frozen.processes.iter_mut().zip(&all) {
            settle(held, alive).doing("take the place", process.pid)?;
        }
        match pager {
            Some(pager) if !lazily || !pager.is_guarded() => {
                pager.fill().system("bring the memory back").map(|()| None)
            }
            pager => Ok(pager),
        }
    }
}

/// Who a process that stands is to become.
struct Found<'a> {
    process: &'a Process,
    alive: &'a Alive,
    script: &'a Assembled,
    spots: &'a Spots,
    /// As it stands.
    status: Status,
}

/// Gives every task the registers of the image, and begins to take away what the scripts were in.
fn take_place(held: &mut Held, found: &Found<'_>) -> io::Result<()> {
    let Found { alive, script, status, .. } = found;
    let pid = held.pid;
    let mut numbers = Vec::with_capacity(held.tasks.len());
    for task in &mut held.tasks {
        let number = match task.tid == pid {
            true => status.last("NSpid")?,
            false => Status::of(task.tid)?.last("NSpid")?,
        };
        let thread = alive.threads.iter().find(|thread| thread.tid == number);
        let thread = thread.ok_or_else(|| io::Error::other("a thread that nobody knows"))?;
        arch::set_extended(task.tid, &thread.extended.0)?;
        task.regs = thread.registers.harmless();
        task.mask = thread.mask;
        task.moved = true;
        numbers.push(number);
    }
    if numbers.len() != alive.threads.len() {
        return Err(io::Error::other("a thread is missing"));
    }
    let first = alive.space.vdso.ok_or_else(|| io::Error::other("it has no vDSO"))?;
    let vdso = KernelPages::own()?.vdso_from(first);
    let waiting = status.hex("SigPnd")? | status.hex("ShdPnd")?;
    let bell = quiet_signal(status.hex("SigCgt")?, status.hex("SigIgn")?, waiting);
    let bell = bell.ok_or_else(|| io::Error::other("no signal is left"))?;
    let forget = lazy::forget(held, script)?;
    held.lead(Reins { vdso, numbers, bell }, script.area)?;
    if let Some(call) = forget {
        held.errand(&call)?;
    }
    held.begin_to_close()
}

fn settle(held: &mut Held, alive: &Alive) -> io::Result<()> {
    held.end_to_close()?;
    if alive.job_stopped {
        // It is about to stand before it runs.
        crate::sys::task::kill(held.pid, libc::SIGSTOP)?;
    }
    Ok(())
}

impl Assembled {
    fn first_failure(&self, outside: i32, pid: i32) -> Result<()> {
        for script in &self.scripts {
            let outcome = Outcome::read(outside, script).doing("read the steps", pid)?;
            let steps = script.calls().len() - self.parking;
            if let Some((call, source)) = outcome.failure().filter(|(call, _)| *call < steps) {
                return Err(Error::Step { pid, step: told(&script.calls()[call]), source });
            }
        }
        Ok(())
    }
}

/// The number of a process in its own namespace.
fn inside(pid: i32) -> Option<i32> {
    Status::of(pid).and_then(|status| status.last("NSpid")).ok()
}

fn told(call: &Call) -> String {
    let [a, b, c, ..] = call.args;
    format!("system call {} ({a:#x}, {b:#x}, {c:#x}, …) failed", call.number)
}

fn is_alive(pid: i32) -> bool {
    let stat = read_text(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rfind(") ").and_then(|at| stat[at + 2..].chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Whether a tree that was captured elsewhere or before could go on here.
pub fn check_machine(theirs: &Machine) -> Result<()> {
    let ours = this_machine().system("look at this machine")?;
    let parts = [
        (&theirs.arch, &ours.arch, "processor"),
        (&theirs.kernel, &ours.kernel, "kernel"),
        (&theirs.boot, &ours.boot, "boot"),
    ];
    for (theirs, ours, what) in parts {
        if theirs != ours {
            let told = |value: &String| format!("{what} `{value}`");
            return Err(Error::OtherMachine { theirs: told(theirs), ours: told(ours) });
        }
    }
    if theirs.features & !ours.features != 0 {
        let told = |features: u64| format!("a processor with registers {features:#x}");
        let (theirs, ours) = (told(theirs.features), told(ours.features));
        return Err(Error::OtherMachine { theirs, ours });
    }
    Ok(())
}

/// What this process has mapped, and so the copy that will make room for another.
fn own_ranges() -> io::Result<Vec<Range>> {
    let maps = read_text("/proc/self/maps")?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let range = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        Some((hex(start)?, hex(end)?))
    };
    Ok(maps.lines().filter_map(range).collect())
}
