//! Capturing a tree of processes: it stands still, is read, and goes on.
//!
//! ```text
//!   freeze ─► look from outside ─► ask by scripts ─► open files ─► refuse? ─► pages ─► moment ─► thaw
//! ```
//!
//! What cannot be captured is refused before pages are copied. The caller's own moment, in which nothing
//! of the tree runs, is where files are sealed. The image is written when the tree runs again.

use std::{collections::HashMap, fs::File, io, path::Path, time::Duration};

use crate::{
    coverage::{Findings, Whose},
    error::{Doing as _, Error, Refusals, Result},
    freeze::{Frozen, Held, Tree, freeze},
    hand::Reins,
    image::{self, ImageId, KeptMount, Life, OpenFile, Process, Segment, Snapshot},
    mounts::{self, Names},
    pager::until_whole,
    segments,
    sys::{
        self, Deadline,
        ipc::{Opening, Tables},
        ptrace,
    },
    track::{LiesOver, Tracker},
};

mod advice;
mod anonymous;
mod early;
mod files;
mod locks;
mod machine;
pub(crate) mod maps;
pub(crate) mod memory;
mod pipe;
mod polls;
pub(crate) mod proc;
mod questions;
pub(crate) mod shared;
mod socket;
mod task;
mod tcp;
mod terminal;
mod thread;
mod watch;

pub use self::tcp::Connections;
use self::{
    advice::Advice,
    files::Files,
    memory::Pages,
    proc::{Stat, Status},
    questions::Questions,
    task::{Common, Depth},
};
pub(crate) use self::{machine::this_machine, task::Draft, tcp::name};

/// How a capture is made.
#[derive(Clone, Copy, Debug)]
pub struct CaptureSpec {
    /// How long the tree may take to stand still.
    pub patience: Duration,
    /// What becomes of connections to somebody outside.
    pub connections: Connections,
    /// Where the sandbox has file systems in memory of its own, whose files are kept.
    pub mounts: &'static [&'static str],
}

impl Default for CaptureSpec {
    fn default() -> Self {
        let connections = Connections::default();
        Self { patience: Duration::from_secs(3), connections, mounts: &["/dev/shm"] }
    }
}

/// A capture that is not written yet.
#[derive(Debug)]
pub struct Captured {
    pub snapshot: Snapshot,
    /// How long the tree stood still.
    pub pause: Duration,
    pub(crate) pages: Pages,
    parent: Option<ImageId>,
}

impl Captured {
    /// Writes it as the directory `path`, which must not exist; with `sync` it survives a power cut.
    pub fn write(&self, path: &Path, sync: bool) -> Result<ImageId> {
        Ok(image::write(path, self.parent, &self.snapshot, &self.pages.blocks, sync)?)
    }

    /// What it must be kept with.
    #[must_use]
    pub fn parent(&self) -> Option<ImageId> {
        self.parent
    }

    #[must_use]
    pub fn pages_len_bytes(&self) -> u64 {
        self.pages.len()
    }
}

/// What a capture would refuse. The tree stands still for a moment.
pub fn examine(tree: &Tree, spec: &CaptureSpec) -> Result<Refusals> {
    let deadline = Deadline::after(spec.patience);
    let tables = tables(tree)?;
    let mut frozen = freeze(tree, ptrace::SUSPEND_SECCOMP, deadline)?;
    let looked = look_at_all(tree, spec, &mut frozen).and_then(|looked| {
        let mut findings = Findings::default();
        look_at_segments(tree, &tables, &looked.drafts, &mut findings)?;
        look_at_mounts(tree, spec, &mut findings)?;
        findings.verdict()
    });
    frozen.thaw();
    match looked {
        Ok(()) => Ok(Refusals(Vec::new())),
        Err(Error::Refused(refusals)) => Ok(refusals),
        Err(err) => Err(err),
    }
}

/// Captures everything. `moment` is called while all of it stands.
pub fn capture(
    tree: &Tree,
    spec: &CaptureSpec,
    moment: impl FnOnce() -> io::Result<()>,
) -> Result<Captured> {
    run(tree, spec, None, moment)
}

impl Tracker {
    /// Captures what was written since the last image that was [noted](Self::note), or everything.
    pub fn capture(
        &mut self,
        tree: &Tree,
        spec: &CaptureSpec,
        moment: impl FnOnce() -> io::Result<()>,
    ) -> Result<Captured> {
        let result = run(tree, spec, Some(self), moment);
        if result.is_err() {
            // What was asked is not told a second time.
            self.forget();
        }
        result
    }
}

fn run(
    tree: &Tree,
    spec: &CaptureSpec,
    mut tracker: Option<&mut Tracker>,
    moment: impl FnOnce() -> io::Result<()>,
) -> Result<Captured> {
    let deadline = Deadline::after(spec.patience);
    until_whole(tree.init, deadline)?;
    let mut moment = Some(moment);
    let mut advice = Advice::look(tree);
    let tables = tables(tree)?;
    loop {
        let start = sys::now();
        let mut frozen = freeze(tree, ptrace::SUSPEND_SECCOMP, deadline)?;
        let result = read(tree, &mut frozen, spec, (&mut advice, &tables), tracker.as_deref_mut())
            .and_then(|captured| {
                let done = moment.take().map_or(Ok(()), |moment| moment());
                done.system("do what was to be done meanwhile")?;
                Ok(captured)
            });
        frozen.thaw();
        let pause = sys::now().saturating_sub(start);
        match result {
            Err(Error::Restless { .. } | Error::Ended { .. }) if !deadline.passed() => {
                sys::pause(Duration::from_millis(1));
            }
            result => return result.map(|captured| Captured { pause, ..captured }),
        }
    }
}

/// What is seen from outside.
#[derive(Debug)]
pub(crate) struct Looked {
    pub(crate) drafts: Vec<Draft>,
    pub(crate) files: Vec<OpenFile>,
    pub(crate) names: Names,
}

/// All that can be seen from outside, of every process.
pub(crate) fn look_at_all(tree: &Tree, spec: &CaptureSpec, frozen: &mut Frozen) -> Result<Looked> {
    let mut findings = Findings::default();
    let (drafts, names) = drafts(tree, spec, frozen, Depth::Outline, &mut findings)?;
    let inside = inside(frozen, &drafts);
    let (drafts, files) = open_files(tree, spec, frozen, drafts, inside, &names, &mut findings)?;
    findings.verdict()?;
    Ok(Looked { drafts, files, names })
}

fn drafts(
    tree: &Tree,
    spec: &CaptureSpec,
    frozen: &mut Frozen,
    depth: Depth,
    findings: &mut Findings,
) -> Result<(Vec<Draft>, Names)> {
    let common = Common::of(tree.init, spec.mounts, depth);
    let common = common.doing("read the namespaces", tree.init)?;
    let mut drafts = Vec::with_capacity(frozen.processes.len());
    for held in &mut frozen.processes {
        match task::look(held, &common, findings) {
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => {
                let why = "somebody who looked at it died, and it is on its way back";
                return Err(Error::Restless { pid: held.pid, why });
            }
            draft => drafts.push(draft.doing("read the state", held.pid)?),
        }
    }
    Ok((drafts, common.names))
}

/// Numbers inside, by those from here.
fn inside(frozen: &Frozen, drafts: &[Draft]) -> HashMap<i32, i32> {
    let numbers = frozen.processes.iter().zip(drafts);
    numbers.map(|(held, draft)| (held.pid, draft.whose.pid)).collect()
}

fn open_files(
    tree: &Tree,
    spec: &CaptureSpec,
    frozen: &Frozen,
    mut drafts: Vec<Draft>,
    inside: HashMap<i32, i32>,
    names: &Names,
    findings: &mut Findings,
) -> Result<(Vec<Draft>, Vec<OpenFile>)> {
    let mapped = shared::mapped(&drafts);
    let files = Files::new(tree, inside, mapped, names.clone(), spec.connections);
    let mut files = files.doing("open the root", tree.init)?;
    for (held, draft) in frozen.processes.iter().zip(&mut drafts) {
        files.add(held, draft, findings).doing("read open files", held.pid)?;
    }
    files.check_pipes(findings).system("look at pipes")?;
    files.add_masters(&drafts).system("look at terminals")?;
    files.check_terminals(&drafts, findings);
    files.check_pairs(&drafts, findings);
    files.join_connections(&drafts, findings).system("look at connections")?;
    files.find_polled(frozen, &drafts, findings).system("look at polls")?;
    files.check_processes(&drafts, &dead(frozen, &files.inside)?, findings);
    Ok((drafts, files.files))
}

fn read(
    tree: &Tree,
    frozen: &mut Frozen,
    spec: &CaptureSpec,
    (advice, tables): (&mut Advice, &Tables),
    mut tracker: Option<&mut Tracker>,
) -> Result<Captured> {
    let mut findings = Findings::default();
    let (mut drafts, names) = drafts(tree, spec, frozen, Depth::Whole, &mut findings)?;
    let inside = inside(frozen, &drafts);
    check_sharing(tree, frozen, &drafts, &mut findings)?;
    for (held, draft) in frozen.processes.iter().zip(&mut drafts) {
        advice.note(held.pid, draft, &mut findings).doing("read the mappings", held.pid)?;
    }
    let (mut drafts, files) =
        open_files(tree, spec, frozen, drafts, inside.clone(), &names, &mut findings)?;
    let dead = dead(frozen, &inside)?;
    let doors = shared::doors(frozen, &drafts, &files);
    let memories = shared::look(&doors, &mut findings).system("look at shared memory")?;
    let mut mounts = look_at_mounts(tree, spec, &mut findings)?;
    let segments = look_at_segments(tree, tables, &drafts, &mut findings)?;
    findings.verdict()?;

    let mut findings = Findings::default();
    ask(frozen, &mut drafts, tracker.as_deref_mut(), &mut findings)?;
    findings.verdict()?;
    let parent = tracker.as_deref_mut().and_then(Tracker::take_base);
    let early = tracker.as_deref_mut().and_then(Tracker::take_early);
    let lies_over = match (parent, &early) {
        (Some(_), _) => LiesOver::Image,
        (None, Some(_)) => LiesOver::Early,
        (None, None) => LiesOver::Nothing,
    };
    let mut pages = early.filter(|_| lies_over == LiesOver::Early).unwrap_or_default();
    for (held, draft) in frozen.processes.iter_mut().zip(&mut drafts) {
        let copied = copy(held, draft, tracker.as_deref_mut(), lies_over, &mut pages);
        copied.doing("copy the memory", held.pid)?;
    }
    let memories = memories.into_iter().map(|(mut memory, file)| {
        let copied = shared::copy_file(&file, memory.len_bytes, &mut pages);
        memory.stored = copied.system("copy shared memory")?;
        Ok(memory)
    });
    let memories = memories.collect::<Result<_>>()?;
    mounts::copy(tree.init, &mut mounts, &mut pages).system("copy files in memory")?;
    let segments = segments::copy(segments, &mut pages).system("copy memory of System V")?;
    let machine = machine::of(&drafts).system("look at this machine")?;
    let mut processes = processes(drafts, &inside);
    processes.extend(dead);
    let snapshot = Snapshot { machine, processes, files, memories, mounts, segments };
    Ok(Captured { snapshot, pause: Duration::ZERO, pages, parent })
}

fn look_at_mounts(
    tree: &Tree,
    spec: &CaptureSpec,
    findings: &mut Findings,
) -> Result<Vec<KeptMount>> {
    mounts::look(tree.init, spec.mounts, findings).system("look at files in memory")
}

/// Opened while everything runs.
fn tables(tree: &Tree) -> Result<Tables> {
    Tables::begin(tree.init).and_then(Opening::wait).system("look at memory of System V")
}

fn look_at_segments(
    tree: &Tree,
    tables: &Tables,
    drafts: &[Draft],
    findings: &mut Findings,
) -> Result<Vec<(Segment, File)>> {
    segments::look(tree.init, tables, drafts, findings).system("look at memory of System V")
}

fn check_sharing(
    tree: &Tree,
    frozen: &Frozen,
    drafts: &[Draft],
    findings: &mut Findings,
) -> Result<()> {
    for (held, draft) in frozen.processes.iter().zip(drafts) {
        if draft.parent_outside == tree.init {
            continue;
        }
        match sys::task::shares(held.pid, draft.parent_outside) {
            Ok(None) => {}
            Ok(Some(what)) => {
                let thing = format!("{what} in common with its parent");
                findings.refuse(&draft.whose, thing, "only threads may share it");
            }
            Err(err) if err.raw_os_error() == Some(libc::ESRCH) => {}
            Err(err) => return Err(err).doing("compare the parts", held.pid),
        }
    }
    Ok(())
}

/// Has every task tell what only it knows, all of them at once.
fn ask(
    frozen: &mut Frozen,
    drafts: &mut [Draft],
    mut tracker: Option<&mut Tracker>,
    findings: &mut Findings,
) -> Result<()> {
    let mut asked = Vec::new();
    for (held, draft) in frozen.processes.iter_mut().zip(&*drafts) {
        let reins = draft.reins.clone().ok_or(Error::Ended { pid: held.pid })?;
        let is_known = |tracker: &Tracker| tracker.tracked(held.pid, draft.started).is_some();
        let uffd = tracker.as_deref().is_some_and(|tracker| !is_known(tracker));
        let all = open_and_start(held, draft, reins, uffd);
        asked.push(all.doing("lead the steps", held.pid)?);
    }
    for ((held, draft), questions) in frozen.processes.iter_mut().zip(drafts).zip(&asked) {
        let uffd = hear(held, draft, questions, findings).doing("hear the answers", held.pid)?;
        if let (Some(number), Some(tracker)) = (uffd, tracker.as_deref_mut()) {
            tracker.adopt(held, number).doing("track the memory", held.pid)?;
        }
    }
    Ok(())
}

fn open_and_start(
    held: &mut Held,
    draft: &Draft,
    reins: Reins,
    uffd: bool,
) -> io::Result<Vec<Questions>> {
    held.open(reins)?;
    let mut all = Vec::with_capacity(held.tasks.len());
    for index in 0..held.tasks.len() {
        let questions = Questions::new(held, index, draft, uffd && index == 0)?;
        held.start(index, questions.script())?;
        all.push(questions);
    }
    Ok(all)
}

fn hear(
    held: &mut Held,
    draft: &mut Draft,
    questions: &[Questions],
    findings: &mut Findings,
) -> io::Result<Option<i32>> {
    let mut uffd = None;
    for (index, questions) in questions.iter().enumerate() {
        let outcome = held.finish(index, questions.script())?;
        questions.answer_thread(&outcome, &mut draft.alive.threads[index])?;
        if index == 0 {
            let Draft { whose, alive, .. } = draft;
            uffd = questions.answer_process(&outcome, alive, whose, findings)?;
        }
    }
    Ok(uffd)
}

fn copy(
    held: &mut Held,
    draft: &mut Draft,
    tracker: Option<&mut Tracker>,
    lies_over: LiesOver,
    pages: &mut Pages,
) -> io::Result<()> {
    let pid = held.pid;
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    match tracker {
        Some(tracker) => {
            tracker.copy(held, &mut draft.alive.mappings, lies_over, &pagemap, &memory, pages)
        }
        None => draft.alive.mappings.iter_mut().try_for_each(|mapping| {
            let range = (mapping.start, mapping.end);
            mapping.pages = memory::populated(&pagemap, mapping, range)?;
            let wanted = mapping.pages.clone();
            pages.copy(pid, &memory, mapping, &wanted)
        }),
    }
}

fn dead(frozen: &Frozen, inside: &HashMap<i32, i32>) -> Result<Vec<Process>> {
    const EXIT_STATUS: usize = 52;
    let mut all = Vec::new();
    for (pid, parent) in &frozen.dead {
        let stat = match Stat::of(*pid) {
            Ok(stat) if stat.state() == 'Z' => stat,
            // It ended between two looks; who waits for it is told by its parent's next look.
            _ => return Err(Error::Ended { pid: *pid }),
        };
        let status = Status::of(*pid).doing("read the state", *pid)?;
        let number = |key| status.last(key).doing("read the numbers", *pid);
        all.push(Process {
            pid: number("NSpid")?,
            parent: inside.get(parent).copied().unwrap_or(1),
            group: number("NSpgid")?,
            session: number("NSsid")?,
            name: status.text("Name").to_owned(),
            life: Life::Dead { status: stat.number(EXIT_STATUS) as i32 },
        });
    }
    Ok(all)
}

fn processes(drafts: Vec<Draft>, inside: &HashMap<i32, i32>) -> Vec<Process> {
    let process = |draft: Draft| {
        let Draft { whose: Whose { pid, name }, parent_outside, group, session, alive, .. } = draft;
        let parent = inside.get(&parent_outside).copied().unwrap_or(1);
        Process { pid, parent, group, session, name, life: Life::Alive(Box::new(alive)) }
    };
    drafts.into_iter().map(process).collect()
}
