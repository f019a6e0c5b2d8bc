//! Back to the last image without making anything anew: the processes stay, and what changed goes back.
//!
//! It is tried where the tree is still the one that was captured: the same processes and threads, which
//! differ in memory, registers, signals and places in files. What is new ends. Where the tree no longer fits, nothing
//! was touched, and the caller restores instead; where a step fails after the first was made, the processes end, and
//! the caller restores as well: what they held was to be thrown away.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    io,
    time::Duration,
};

use crate::{
    coverage::{Findings, Whose},
    dump::{self, CaptureSpec, Connections, Draft, Looked, maps::Maps, shared::Door},
    error::{Doing as _, Error, Result, with_causes},
    freeze::{Frozen, Held, Tree, freeze},
    image::{Alive, Chain, MemoryId, Process, Snapshot},
    mounts::{self, Names},
    restore, segments,
    sys::{self, Deadline, Patience, ipc::Tables, ptrace},
    track::Tracker,
};

mod files;
mod memory;
mod state;

use self::{
    memory::MemoryPlan,
    state::{forks, registers, room, state, thread_state, wanted},
};

/// What a rollback did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolledBack {
    /// How much memory was written back or thrown away.
    pub memory_bytes: u64,
    /// How many processes were ended.
    pub ended: usize,
    /// How long the tree stood still.
    pub pause: Duration,
}

fn not_in_place(why: impl Into<String>) -> Error {
    Error::NotInPlace { why: why.into() }
}

/// What belongs to a tree and is not in the image: the files of its sandbox. A closure that needs no look is one too.
pub trait Files {
    /// Nothing runs, and nothing was touched. Answers why they cannot go back in place, if that is so.
    fn look(&mut self, snapshot: &Snapshot) -> io::Result<Option<String>>;

    /// Nothing runs. What fails here ends the processes.
    fn put_back(&mut self) -> io::Result<()>;
}

impl<F: FnMut() -> io::Result<()>> Files for F {
    fn look(&mut self, _: &Snapshot) -> io::Result<Option<String>> {
        Ok(None)
    }

    fn put_back(&mut self) -> io::Result<()> {
        self()
    }
}

impl Tracker {
    /// Brings `tree` back to the newest image of `chain`, which must be the one that was noted last. The
    /// cost follows what was written since.
    pub fn rollback(
        &mut self,
        tree: &Tree,
        chain: &Chain,
        spec: &CaptureSpec,
        files: impl Files,
    ) -> Result<RolledBack> {
        if self.base() != Some(chain.top().id) {
            return Err(not_in_place("what changed since this image is not known"));
        }
        go_back(Some(self), tree, chain, spec, files)
    }
}

/// Brings `tree` back to the newest image of `chain`. What was written since is not known, so all of its memory is
/// written: for small trees.
pub fn rollback(
    tree: &Tree,
    chain: &Chain,
    spec: &CaptureSpec,
    files: impl Files,
) -> Result<RolledBack> {
    go_back(None, tree, chain, spec, files)
}

fn go_back(
    mut tracker: Option<&mut Tracker>,
    tree: &Tree,
    chain: &Chain,
    spec: &CaptureSpec,
    mut files: impl Files,
) -> Result<RolledBack> {
    let tables = dump::tables(tree)?;
    let start = sys::now();
    let deadline = Deadline::after(spec.patience);
    let mut frozen = freeze(tree, ptrace::SUSPEND_SECCOMP, deadline)?;
    let plan = Plan::new(tracker.as_deref(), tree, spec, chain, tables, &mut frozen)?;
    if let Some(why) = files.look(&chain.top().snapshot).system("look at the files")? {
        return Err(not_in_place(why));
    }
    // Who dies with half of it done must not leave it running.
    frozen.bind()?;
    let result = plan.run(tracker.as_deref_mut(), chain, &mut frozen, deadline);
    let result = result.and_then(|done| {
        files.put_back().system("put the files back")?;
        Ok(done)
    });
    if let Err(err) = result {
        if let Some(tracker) = tracker {
            tracker.forget();
        }
        end_all(&mut frozen);
        let why = with_causes(&err);
        return Err(not_in_place(format!("a step failed and the processes were ended: {why}")));
    }
    frozen.thaw();
    result.map(|done| RolledBack { pause: sys::now().saturating_sub(start), ..done })
}

/// Who is traced and dead stays until its tracer has asked for it, and process 1 waits for that.
fn end_all(frozen: &mut Frozen) {
    let deadline = Deadline::after(Duration::from_secs(5));
    for held in &mut frozen.processes {
        let _ = sys::task::kill(held.pid, libc::SIGKILL);
        // It cannot be brought back either way.
        let _ = end(held, deadline);
    }
}

/// Waits for one that was killed.
fn end(held: &mut Held, deadline: Deadline) -> Result<()> {
    for task in held.tasks.drain(..).rev() {
        let mut patience = Patience::default();
        while !matches!(ptrace::look(task.tid), Ok(Some(ptrace::Event::Ended)) | Err(_)) {
            if deadline.passed() {
                return Err(Error::Restless { pid: held.pid, why: "it does not end" });
            }
            patience.wait();
        }
    }
    Ok(())
}

/// What is to be done, decided before anything is.
struct Plan<'a> {
    init: i32,
    snapshot: &'a Snapshot,
    /// One for each process that stays, in the order of `frozen.processes`.
    drafts: Vec<Option<Draft>>,
    /// Numbers of those that end, and of their parents.
    new: Vec<(i32, i32)>,
    /// Ways to memory that is shared.
    doors: BTreeMap<MemoryId, Door>,
    /// Of files in memory.
    names: Names,
    tables: Tables,
}

impl<'a> Plan<'a> {
    fn new(
        tracker: Option<&Tracker>,
        tree: &Tree,
        spec: &CaptureSpec,
        chain: &'a Chain,
        tables: Tables,
        frozen: &mut Frozen,
    ) -> Result<Self> {
        let snapshot = &chain.top().snapshot;
        // What is new is closed, so it does not matter whom it is to.
        let spec = CaptureSpec { connections: Connections::Close, ..*spec };
        let Looked { drafts, files, names } = dump::look_at_all(tree, &spec, frozen)?;
        let now: HashMap<i32, &Draft> =
            drafts.iter().map(|draft| (draft.whose.pid, draft)).collect();
        for process in &snapshot.processes {
            match (process.alive(), now.get(&process.pid)) {
                (Some(alive), Some(draft)) => {
                    still_fits(process, alive, draft)?;
                    files::still_fit(process, alive, snapshot, &draft.alive, &files)?;
                }
                (Some(_), None) => {
                    let Process { pid, name, .. } = process;
                    return Err(not_in_place(format!("process {pid} (`{name}`) is gone")));
                }
                (None, _) => return Err(not_in_place("a child waited to be asked for")),
            }
        }
        if let Some((pid, _)) = frozen.dead.first() {
            return Err(not_in_place(format!("process {pid} died and was not asked for")));
        }
        let known: HashSet<i32> = snapshot.processes.iter().map(|process| process.pid).collect();
        let mut new = Vec::new();
        let inside: HashMap<i32, i32> = frozen
            .processes
            .iter()
            .zip(&drafts)
            .map(|(held, draft)| (held.pid, draft.whose.pid))
            .collect();
        for (held, draft) in frozen.processes.iter().zip(&drafts) {
            if !known.contains(&draft.whose.pid) {
                new.push((
                    draft.whose.pid,
                    inside.get(&draft.parent_outside).copied().unwrap_or(1),
                ));
            } else if tracker.is_some_and(|tracker| tracker.tracked(held.pid).is_none()) {
                return Err(not_in_place("its memory is not tracked any more"));
            }
        }
        let doors = dump::shared::doors(frozen, &drafts, &files);
        if let Some(gone) = snapshot.memories.iter().find(|memory| !doors.contains_key(&memory.id))
        {
            return Err(not_in_place(format!("shared memory `{}` is gone", gone.name)));
        }
        let segments = segments::still_fit(&tables, &snapshot.segments);
        if let Err(id) = segments.system("look at memory of System V")? {
            return Err(not_in_place(format!("segment {id} of System V is gone")));
        }
        let drafts =
            drafts.into_iter().map(|draft| known.contains(&draft.whose.pid).then_some(draft));
        Ok(Self { init: tree.init, snapshot, drafts: drafts.collect(), new, doors, names, tables })
    }

    fn run(
        mut self,
        mut tracker: Option<&mut Tracker>,
        chain: &Chain,
        frozen: &mut Frozen,
        deadline: Deadline,
    ) -> Result<RolledBack> {
        let mut done = RolledBack { ended: self.new.len(), ..RolledBack::default() };
        for memory in &self.snapshot.memories {
            let door = self.doors.get(&memory.id).ok_or_else(|| not_in_place("memory is gone"))?;
            let file = File::options().read(true).write(true).open(&door.path);
            let filled = file.and_then(|file| restore::shared::fill(&file, memory, chain));
            filled.system("write shared memory")?;
            done.memory_bytes += memory.stored.iter().map(|s| s.end - s.start).sum::<u64>();
        }
        self.fill_mounts(chain)?;
        self.end_new(frozen, deadline)?;
        let segments = segments::put_back(self.init, &self.tables, &self.snapshot.segments, chain);
        segments.system("write memory of System V")?;
        for (held, draft) in frozen.processes.iter_mut().zip(&mut self.drafts) {
            let Some(draft) = draft else { continue };
            let pid = draft.whose.pid;
            let process = self.snapshot.processes.iter().find(|process| process.pid == pid);
            let alive = process.and_then(Process::alive).ok_or(Error::Ended { pid })?;
            let ended =
                self.new.iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| *child);
            let ended: Vec<i32> = ended.collect();
            begin(held, draft, &ended, alive).doing("forget the children", pid)?;
            done.memory_bytes +=
                back(tracker.as_deref_mut(), chain, held, draft, alive, &self.names)?;
        }
        Ok(done)
    }

    fn fill_mounts(&self, chain: &Chain) -> Result<()> {
        if self.snapshot.mounts.is_empty() {
            return Ok(());
        }
        let filled = mounts::fill_from_outside(self.init, &self.snapshot.mounts, chain);
        filled.map_err(|(path, source)| Error::File { doing: "fill", path, source })
    }

    /// Ends what was not there, and waits until it is gone.
    fn end_new(&self, frozen: &mut Frozen, deadline: Deadline) -> Result<()> {
        for (held, draft) in frozen.processes.iter_mut().zip(&self.drafts) {
            if draft.is_some() {
                continue;
            }
            sys::task::kill(held.pid, libc::SIGKILL).doing("end a new process", held.pid)?;
            end(held, deadline)?;
        }
        Ok(())
    }
}

/// Whether the process is the one that was captured, as far as it cannot be brought back in place.
fn still_fits(process: &Process, alive: &Alive, draft: &Draft) -> Result<()> {
    let pid = process.pid;
    let told = |what: &str| not_in_place(format!("process {pid} (`{}`) has {what}", process.name));
    let numbers =
        |alive: &Alive| alive.threads.iter().map(|thread| thread.tid).collect::<HashSet<_>>();
    if numbers(alive) != numbers(&draft.alive) {
        return Err(told("other threads"));
    }
    if alive.space.exe != draft.alive.space.exe || alive.space.vdso != draft.alive.space.vdso {
        return Err(told("become another program"));
    }
    if (process.group, process.session) != (draft.group, draft.session) {
        return Err(told("another session or group"));
    }
    for (was, is) in alive.threads.iter().zip(&draft.alive.threads) {
        let securebits = was.credentials.securebits;
        let same = crate::image::Credentials { securebits, ..is.credentials.clone() };
        if was.credentials != same || was.filters != is.filters || was.rseq != is.rseq {
            return Err(told("other rights"));
        }
    }
    let timers =
        |alive: &Alive| alive.posix_timers.iter().map(|timer| timer.id).collect::<Vec<_>>();
    if timers(alive) != timers(&draft.alive) {
        return Err(told("other timers"));
    }
    if alive.locks != draft.alive.locks {
        return Err(told("other locks"));
    }
    if !alive.pending.is_empty() || alive.threads.iter().any(|thread| !thread.pending.is_empty()) {
        return Err(told("signals that waited"));
    }
    if alive.job_stopped || draft.alive.job_stopped {
        return Err(told("been stopped"));
    }
    Ok(())
}

/// One process goes back. Returns how much memory was touched.
fn back(
    tracker: Option<&mut Tracker>,
    chain: &Chain,
    held: &mut Held,
    draft: &mut Draft,
    alive: &Alive,
    names: &Names,
) -> Result<u64> {
    let (pid, snapshot) = (draft.whose.pid, &chain.top().snapshot);
    let area = held.area();
    let whose = Whose { pid, name: String::new() };
    let maps = Maps::of(held.pid, names, &whose, &mut Findings::default());
    let mut maps = maps.doing("read the mappings", pid)?;
    maps.mappings.retain(|mapping| mapping.end <= area.0 || area.1 <= mapping.start);
    let mut plan = MemoryPlan::new(held, alive, &maps.mappings, tracker.is_some())
        .doing("look at the memory", pid)?;
    if let Some(why) = plan.unfit.take() {
        return Err(not_in_place(why));
    }
    let mut script = held.script(0, room(alive));
    plan.steps(&mut script);
    forks(&mut script, alive);
    state(&mut script, alive).doing("assemble the steps", pid)?;
    files::steps(&mut script, &draft.alive, alive).doing("assemble the steps", pid)?;
    let leader = wanted(draft, alive, 0).doing("assemble the steps", pid)?;
    thread_state(&mut script, leader).doing("assemble the steps", pid)?;
    let outcome = held.run(0, &script).doing("lead the steps", pid)?;
    if let Some((call, source)) = outcome.failure().filter(|(call, _)| *call < plan.must_succeed) {
        return Err(Error::Step { pid, step: format!("step {call}"), source });
    }
    let touched = plan.write(held, chain, alive, pid).doing("write the memory", pid)?;
    files::positions(held, alive, snapshot).doing("set places in files", pid)?;
    if let Some(tracker) = tracker {
        plan.track(tracker, held, alive).doing("track the memory", pid)?;
    }
    registers(held, draft, alive).doing("set the registers", pid)?;
    Ok(touched)
}

/// Children that were not there are asked for, signals that came since are taken away, and the heap ends where it did.
fn begin(held: &mut Held, draft: &Draft, ended: &[i32], alive: &Alive) -> io::Result<()> {
    const ANY_KIND: u64 = libc::__WALL as u64;
    let reins = draft.reins.clone().ok_or(io::ErrorKind::NotFound)?;
    let bell = reins.bell;
    held.open(reins)?;
    let mut script = held.script(0, 256);
    for child in ended {
        script.call(libc::SYS_wait4, &[*child as u64, 0, ANY_KIND, 0]);
    }
    let all = script.put_words(&[!(1 << (bell - 1))])?;
    let at_once = script.put_words(&[0, 0])?;
    for _ in 0..=ptrace::pending(held.pid, true)?.len() + ended.len() {
        script.call(libc::SYS_rt_sigtimedwait, &[all, 0, at_once, 8]);
    }
    script.call(libc::SYS_brk, &[alive.space.fields[5]]);
    let outcome = held.run(0, &script)?;
    (0..ended.len()).try_for_each(|call| outcome.result(call).map(drop))
}
