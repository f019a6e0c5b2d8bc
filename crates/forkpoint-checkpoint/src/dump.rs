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
    coverage::Whose,
    databases,
    error::{Doing as _, Error, Refusals, Result},
    freeze::{Frozen, Held, Tree},
    image::{self, ImageId, Life, Process, Snapshot},
    mounts,
    relocate::{Moment, Still},
    segments,
    track::{LiesOver, Tracker},
};

mod advice;
mod anonymous;
mod deleted;
mod early;
mod files;
mod locks;
mod look;
mod machine;
pub(crate) mod maps;
pub(crate) mod memory;
mod pipe;
mod polls;
pub(crate) mod proc;
mod questions;
mod same;
pub(crate) mod shared;
mod socket;
mod task;
mod tcp;
mod terminal;
mod thread;
mod tries;
mod watch;

pub use self::tcp::Connections;
pub(crate) use self::{
    look::{Looked, look_at_all},
    machine::this_machine,
    task::{Draft, oom_score_adj},
    tcp::name,
};
use self::{
    look::{Whole, look_at_whole},
    memory::Pages,
};

/// How a capture is made.
#[derive(Clone, Copy, Debug)]
pub struct CaptureSpec {
    /// How long the tree may take to stand still.
    pub patience: Duration,
    /// What becomes of connections to somebody outside.
    pub connections: Connections,
    /// Where the sandbox has file systems in memory of its own, whose files are kept.
    pub mounts: &'static [&'static str],
    /// Whether the tree was given other mounts since it began ([`Still::relocate`]): what is mapped may be of older ones, where
    /// a name may lead to another file than it does now.
    pub relocated: bool,
}

impl Default for CaptureSpec {
    fn default() -> Self {
        let connections = Connections::default();
        let (patience, mounts) = (Duration::from_secs(3), &["/dev/shm"][..]);
        Self { patience, connections, mounts, relocated: false }
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
        let snapshot = databases::note(&self.snapshot, &self.pages);
        Ok(image::write(path, self.parent, &snapshot, &self.pages.blocks, sync)?)
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

/// What a capture would refuse: everything is looked at and asked as a capture does. The tree stands still for a moment.
pub fn examine(tree: &Tree, spec: &CaptureSpec) -> Result<Refusals> {
    let looked = tries::until_done(tree, spec, |frozen, advice, tables| {
        look_at_whole(tree, frozen, spec, (advice, tables), None).map(drop)
    });
    match looked {
        Ok(_) => Ok(Refusals(Vec::new())),
        Err(Error::Refused(refusals)) => Ok(refusals),
        Err(err) => Err(err),
    }
}

/// Captures everything. `moment` comes while all of it stands.
pub fn capture(tree: &Tree, spec: &CaptureSpec, moment: impl Moment) -> Result<Captured> {
    run(tree, spec, None, moment)
}

impl Tracker {
    /// Captures what was written since the last image that was [noted](Self::note), or everything.
    pub fn capture(
        &mut self,
        tree: &Tree,
        spec: &CaptureSpec,
        moment: impl Moment,
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
    moment: impl Moment,
) -> Result<Captured> {
    let mut moment = Some(moment);
    let (captured, pause) = tries::until_done(tree, spec, |frozen, advice, tables| {
        let whole = look_at_whole(tree, frozen, spec, (advice, tables), tracker.as_deref_mut())?;
        let captured = read(tree, frozen, whole, tracker.as_deref_mut())?;
        let mut still = Still { tree, frozen, snapshot: &captured.snapshot };
        let done = moment.take().map_or(Ok(()), |moment| moment.come(&mut still));
        done.system("do what was to be done meanwhile")?;
        Ok(captured)
    })?;
    Ok(Captured { pause, ..captured })
}

fn read(
    tree: &Tree,
    frozen: &mut Frozen,
    whole: Whole,
    mut tracker: Option<&mut Tracker>,
) -> Result<Captured> {
    let Whole { mut drafts, files, inside, dead, memories, mut mounts, segments } = whole;
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
        None => pages.copy_all(pid, &mut draft.alive.mappings, &pagemap, &memory),
    }
}

fn processes(drafts: Vec<Draft>, inside: &HashMap<i32, i32>) -> Vec<Process> {
    let process = |draft: Draft| {
        let Draft { whose: Whose { pid, name }, parent_outside, group, session, alive, .. } = draft;
        let parent = inside.get(&parent_outside).copied().unwrap_or(1);
        Process { pid, parent, group, session, name, life: Life::Alive(Box::new(alive)) }
    };
    drafts.into_iter().map(process).collect()
}
