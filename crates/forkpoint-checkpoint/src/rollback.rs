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
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, ScopedJoinHandle},
    time::Duration,
};

use rustix::thread::sched_getcpu;

use crate::{
    dump::{self, CaptureSpec, Connections, Draft, Looked, shared::Door},
    error::{Doing as _, Error, Result, with_causes},
    freeze::{Frozen, Held, Tree, freeze},
    image::{Alive, Chain, KeptMount, MemoryId, Process, Snapshot},
    mounts::{self, Names},
    restore, segments,
    sys::{self, Deadline, Patience, ipc::Tables, ptrace, task::keep_off},
    track::Tracker,
};

mod files;
mod fill;
mod going;
mod memory;
mod state;

use self::going::{Going, Steps};

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
pub trait Files: Send {
    /// Nothing runs, and nothing may be touched: whether processes can go back is looked at meanwhile. Answers why files
    /// cannot go back in place, if that is so.
    fn look(&mut self, snapshot: &Snapshot) -> io::Result<Option<String>>;

    /// Everything can go back, and is about to: the last moment to note that for whoever comes later, should this one die.
    fn begin(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Nothing runs but what we have the processes do, which opens no file. What fails here ends the processes.
    fn put_back(&mut self) -> io::Result<()>;
}

impl<F: FnMut() -> io::Result<()> + Send> Files for F {
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
    tracker: Option<&mut Tracker>,
    tree: &Tree,
    chain: &Chain,
    spec: &CaptureSpec,
    files: impl Files,
) -> Result<RolledBack> {
    let files = &Mutex::new(files);
    thread::scope(|scope| {
        let (say, orders) = mpsc::channel();
        let (tell_tables, tables) = mpsc::channel();
        let (tell_looked, looked) = mpsc::channel();
        let here = sched_getcpu();
        // Begun before the tree stands, so that it is there when there is something to do.
        let files_side = move || {
            let _ = tell_tables.send(Tables::of(tree.init));
            // The kernel often leaves it where it was begun, with nothing to do for another processor.
            keep_off(here);
            // Whoever gives no more orders has failed.
            let Ok(()) = orders.recv() else { return Ok(()) };
            let _ = tell_looked.send(lock(files).look(&chain.top().snapshot));
            let Ok(()) = orders.recv() else { return Ok(()) };
            fill_mounts(tree.init, &chain.top().snapshot.mounts, chain)?;
            lock(files).put_back().system("put the files back")
        };
        let other = thread::Builder::new().spawn_scoped(scope, files_side);
        let other = other.system("begin a thread")?;
        let note = || lock(files).begin();
        let mut beside = Beside { say, tables, looked, note: &note, other: Some(other) };
        let done = lead(tracker, tree, chain, spec, &mut beside);
        // If it was given up, that is what is told, whatever happened to the other.
        drop(beside.say);
        if let Some(other) = beside.other {
            let _ = other.join();
        }
        done
    })
}

fn lock<T>(files: &Mutex<T>) -> MutexGuard<'_, T> {
    files.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who does what is to be done with files, while the processes are led.
struct Beside<'scope, 'a> {
    /// First to look at the files, then to put them back.
    say: Sender<()>,
    tables: Receiver<io::Result<Tables>>,
    looked: Receiver<io::Result<Option<String>>>,
    note: &'a dyn Fn() -> io::Result<()>,
    other: Option<ScopedJoinHandle<'scope, Result<()>>>,
}

fn lead(
    tracker: Option<&mut Tracker>,
    tree: &Tree,
    chain: &Chain,
    spec: &CaptureSpec,
    beside: &mut Beside<'_, '_>,
) -> Result<RolledBack> {
    let unfinished = || io::Error::other("it was not finished");
    let start = sys::now();
    let deadline = Deadline::after(spec.patience);
    let mut frozen = freeze(tree, ptrace::SUSPEND_SECCOMP, deadline)?;
    // If nobody hears it, nobody answers either.
    let _ = beside.say.send(());
    let tables = beside.tables.recv().unwrap_or_else(|_| Err(unfinished()));
    let tables = tables.system("look at memory of System V")?;
    let plan = Plan::new(tracker.as_deref(), tree, spec, chain, tables, &mut frozen)?;
    let looked = beside.looked.recv().unwrap_or_else(|_| Err(unfinished()));
    if let Some(why) = looked.system("look at the files")? {
        return Err(not_in_place(why));
    }
    (beside.note)().system("note that the files go back")?;
    // Who dies with half of it done must not leave it running.
    frozen.bind()?;
    // Each has enough to do that the other need not be waited for.
    let _ = beside.say.send(());
    let done = plan.run(tracker.as_deref(), chain, &mut frozen, deadline);
    let files = beside.other.take().and_then(|other| other.join().ok());
    let files = files.unwrap_or_else(|| Err(unfinished()).system("put the files back"));
    let result = files.and(done);
    if let Err(err) = result {
        if let Some(tracker) = tracker {
            tracker.forget();
        }
        end_all(&mut frozen.processes);
        let why = with_causes(&err);
        return Err(not_in_place(format!("a step failed and the processes were ended: {why}")));
    }
    frozen.thaw();
    result.map(|done| RolledBack { pause: sys::now().saturating_sub(start), ..done })
}

fn fill_mounts(init: i32, mounts: &[KeptMount], chain: &Chain) -> Result<()> {
    if mounts.is_empty() {
        return Ok(());
    }
    let filled = mounts::fill_from_outside(init, mounts, chain);
    filled.map_err(|(path, source)| Error::File { doing: "fill", path, source })
}

/// Who is traced and dead stays until its tracer has asked for it, and process 1 waits for that.
pub(crate) fn end_all(processes: &mut [Held]) {
    let deadline = Deadline::after(Duration::from_secs(5));
    for held in processes {
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
                return Err(Error::restless(held.pid, "it does not end"));
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
    going: Vec<Option<Going<'a>>>,
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
        let was: HashMap<i32, &Process> =
            snapshot.processes.iter().map(|process| (process.pid, process)).collect();
        // What is new is closed, so it does not matter whom it is to.
        let spec = CaptureSpec { connections: Connections::Close, ..*spec };
        let Looked { drafts, files, names } = dump::look_at_all(tree, &spec, frozen)?;
        let now: HashMap<i32, &Draft> =
            drafts.iter().map(|draft| (draft.whose.pid, draft)).collect();
        let mut same = files::Same::default();
        for process in &snapshot.processes {
            match (process.alive(), now.get(&process.pid)) {
                (Some(alive), Some(draft)) => {
                    still_fits(process, alive, draft)?;
                    let now = (&draft.alive, &*files);
                    files::still_fit(process, alive, snapshot, now, &mut same)?;
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
        let mut new = Vec::new();
        let inside: HashMap<i32, i32> = frozen
            .processes
            .iter()
            .zip(&drafts)
            .map(|(held, draft)| (held.pid, draft.whose.pid))
            .collect();
        for draft in &drafts {
            if !was.contains_key(&draft.whose.pid) {
                new.push((
                    draft.whose.pid,
                    inside.get(&draft.parent_outside).copied().unwrap_or(1),
                ));
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
        let mut going = Vec::with_capacity(drafts.len());
        for (held, draft) in frozen.processes.iter().zip(drafts) {
            let alive = was.get(&draft.whose.pid).and_then(|process| process.alive());
            going.push(match alive {
                Some(alive) => Some(Going::new(held, draft, alive, &new, tracker)?),
                None => None,
            });
        }
        Ok(Self { init: tree.init, snapshot, going, new, doors, names, tables })
    }

    fn run(
        mut self,
        tracker: Option<&Tracker>,
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
        self.end_new(frozen, deadline)?;
        let segments = segments::put_back(self.init, &self.tables, &self.snapshot.segments, chain);
        segments.system("write memory of System V")?;
        done.memory_bytes += self.lead_back(tracker, chain, frozen)?;
        Ok(done)
    }

    /// All processes at once: while one makes its steps, the next is told its own.
    fn lead_back(
        &mut self,
        tracker: Option<&Tracker>,
        chain: &Chain,
        frozen: &mut Frozen,
    ) -> Result<u64> {
        let both = frozen.processes.iter_mut().zip(&mut self.going);
        let mut both: Vec<(&mut Held, &mut Going<'_>)> =
            both.filter_map(|(held, going)| Some((held, going.as_mut()?))).collect();
        for (held, going) in &mut both {
            going.begin_to_open(held)?;
        }
        for (held, going) in &mut both {
            held.end_to_open().doing("lead the steps", going.pid())?;
        }
        let mut steps: Vec<Steps> = Vec::with_capacity(both.len());
        for (held, going) in &mut both {
            steps.push(going.start(held, &self.names, tracker.is_some())?);
        }
        let mut touched = 0;
        for ((held, going), steps) in both.iter_mut().zip(&steps) {
            touched += going.finish(held, steps, &self.names, chain, tracker)?;
        }
        Ok(touched)
    }

    /// Ends what was not there, and waits until it is gone.
    fn end_new(&self, frozen: &mut Frozen, deadline: Deadline) -> Result<()> {
        for (held, going) in frozen.processes.iter_mut().zip(&self.going) {
            if going.is_some() {
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
