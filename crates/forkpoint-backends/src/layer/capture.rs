//! Writes into a layer what changed in a tree that stays in use.
//!
//! Nothing may write to the tree meanwhile. The cost is one look at everything in it, and copying
//! what changed.

use std::{
    ffi::CString,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Component, Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{Mode, mkdirat, stat},
    time::{ClockId, clock_gettime},
};

use super::{
    LayerResult, Manifest, Marks,
    copy::{Copier, Done},
    crew::{Crew, sum, with_crew},
    cursor::{DirCursor, KEEP},
    error::{At as _, During as _, Fault},
    fill::{Hand, Pair, Task},
    marks::put_whiteout,
    plan::Plan,
    stage::Stage,
    store::open_path,
    tree::{Print, Tree},
};

/// What to capture.
#[derive(Clone, Copy, Debug)]
pub struct CaptureSpec<'a> {
    /// The upper directory of an overlay. Nothing may write to it until the capture is over.
    pub upper: &'a Path,
    /// What the last capture of the same directory answered; the layer lies over that one's.
    pub since: Option<&'a Manifest>,
    /// Files, from the root of the sandbox, that a process has mapped to write. Writing to a page
    /// that is dirty already leaves no trace in the inode, so these count as changed next time.
    pub mapped: &'a [PathBuf],
}

impl<'a> CaptureSpec<'a> {
    #[must_use]
    pub fn new(upper: &'a Path) -> Self {
        Self { upper, since: None, mapped: &[] }
    }
}

impl Stage {
    /// After a failure the stage is of no use, and should be dropped.
    pub fn capture(&mut self, spec: &CaptureSpec) -> LayerResult<Manifest> {
        let (to, links) = self.openings()?;
        self.capture_into(spec, to, links)
    }

    /// `links` is an empty directory beside the tree that `to` is in.
    pub(super) fn capture_into(
        &mut self,
        spec: &CaptureSpec,
        to: DirCursor,
        links: OwnedFd,
    ) -> LayerResult<Manifest> {
        let source = Source::open(spec.upper)?;
        let mut tree = source.scan(self.marks())?;
        let plan = Plan::new(spec.since.map(Manifest::tree), &tree);
        let way = Way { marks: self.marks(), links, to, base: None, sealed: false };
        let done = bring(source, &tree, &plan, way)?;
        self.add(done.copied);
        tree.mark_racy(clock_gettime(ClockId::RealtimeCoarse));
        mark_mapped(&mut tree, spec.mapped);
        Ok(Manifest::from(tree))
    }
}

/// What an upper directory looks like, for a later capture of it, and how much there is to capture.
#[derive(Clone, Debug)]
pub struct UpperState {
    pub manifest: Manifest,
    /// Of files, and of those that changed since the manifest that it was compared with.
    pub len_bytes: u64,
    pub changed_bytes: u64,
    /// Whether anything in it did, but for the root itself: [`root_print`] tells of that.
    pub changed: bool,
}

/// Copies nothing. Nothing may write to the directory meanwhile.
pub fn describe_upper(spec: &CaptureSpec, marks: Marks) -> LayerResult<UpperState> {
    let mut tree = Source::open(spec.upper)?.scan(marks)?;
    let plan = Plan::new(spec.since.map(Manifest::tree), &tree);
    let (mut len_bytes, mut changed_bytes) = (0, 0);
    for (directory, plan) in tree.directories.iter().zip(&plan.directories) {
        for (entry, taken) in directory.entries.iter().zip(&plan.taken) {
            let len = if entry.child.is_none() { entry.print.len_bytes } else { 0 };
            len_bytes += len;
            changed_bytes += if *taken { len } else { 0 };
        }
    }
    tree.mark_racy(clock_gettime(ClockId::RealtimeCoarse));
    mark_mapped(&mut tree, spec.mapped);
    let changed = !plan.is_empty();
    Ok(UpperState { manifest: Manifest::from(tree), len_bytes, changed_bytes, changed })
}

/// What the root of a tree is, which a manifest does not tell: whatever is done to it makes it another.
/// `None` while that cannot be relied on.
pub fn root_print(path: &Path) -> LayerResult<Option<String>> {
    let look = || -> Result<Option<String>, Fault> {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        let stat = stat(path).during("inspect")?;
        let changed = (stat.st_ctime as i64, stat.st_ctime_nsec as i64);
        let print = Print::of(&stat);
        let told = format!("{} {print:?}", stat.st_dev);
        Ok((changed < (now.tv_sec, now.tv_nsec)).then_some(told))
    };
    look().at(|| path.to_owned())
}

/// A tree that is to be copied.
pub(super) struct Source<'a> {
    path: &'a Path,
    root: OwnedFd,
}

impl<'a> Source<'a> {
    pub(super) fn open(path: &'a Path) -> LayerResult<Self> {
        Ok(Self { path, root: open_path(path)? })
    }

    pub(super) fn scan(&self, marks: Marks) -> LayerResult<Tree> {
        let root = self.root.try_clone().during("open").at(|| self.path.to_owned())?;
        Tree::scan(&mut DirCursor::new(self.path.to_owned(), root, KEEP), marks)
    }
}

/// Where a tree goes, and how.
pub(super) struct Way {
    pub(super) marks: Marks,
    /// An empty directory beside the tree that `to` is in.
    pub(super) links: OwnedFd,
    pub(super) to: DirCursor,
    /// An earlier layer of the same tree, as the plan knows it.
    pub(super) base: Option<DirCursor>,
    /// The source is a layer.
    pub(super) sealed: bool,
}

/// Copies what the plan says.
pub(super) fn bring(source: Source, tree: &Tree, plan: &Plan, way: Way) -> LayerResult<Done> {
    let Way { marks, links, to, base, sealed } = way;
    let hire = || {
        let copier = Copier::new(marks, links.as_fd()).at(|| source.path.to_owned())?;
        Ok(Hand { tree, plan, sealed, copier })
    };
    let files = if base.is_some() { tree.file_count() } else { plan.taken_count() };
    let from = DirCursor::new(source.path.to_owned(), source.root, KEEP);
    let mut walker = Walker { hand: hire()?, from, to, base };
    let by_crew = with_crew(files, hire, |crew| walker.walk(crew))?;
    Ok(sum(by_crew, walker.hand.copier.done))
}

fn mark_mapped(tree: &mut Tree, mapped: &[PathBuf]) {
    for path in mapped {
        let names: Vec<CString> = path.components().filter_map(name_of).collect();
        if let Some(entry) = tree.find_mut(names.iter().map(CString::as_c_str)) {
            entry.racy = true;
        }
    }
}

fn name_of(component: Component) -> Option<CString> {
    match component {
        Component::Normal(name) => CString::new(name.as_bytes()).ok(),
        _ => None,
    }
}

/// Makes the directories, and leaves the files to a crew if there is one.
struct Walker<'a> {
    hand: Hand<'a>,
    from: DirCursor,
    to: DirCursor,
    /// Stands in the same directory wherever the plan says that there is one.
    base: Option<DirCursor>,
}

/// A directory in which the walk is, or to which it comes back.
struct Stay {
    index: usize,
    /// The entry at which to look for the next directory.
    next: usize,
    /// Whatever the crew still copies there.
    pair: Weak<Pair>,
}

impl<'a> Walker<'a> {
    fn walk(&mut self, crew: Crew<'a, '_>) -> LayerResult<()> {
        let mut way = vec![self.fill(0, &crew)?];
        while let Some(stay) = way.last_mut()
            && !crew.has_failed()
        {
            if let Some((position, child)) = self.next_child(stay) {
                stay.next = position + 1;
                let entry = &self.hand.tree.directories[stay.index].entries[position];
                self.enter(&entry.name, child).at(|| self.from.path_of(&entry.name))?;
                way.push(self.fill(child, &crew)?);
            } else if let Some(stay) = way.pop() {
                self.leave(&stay)?;
            }
        }
        Ok(())
    }

    fn next_child(&self, stay: &Stay) -> Option<(usize, usize)> {
        let (directory, _) = self.hand.at(stay.index);
        let entries = directory.entries.iter().enumerate().skip(stay.next);
        entries
            .filter_map(|(position, entry)| Some((position, entry.child? as usize)))
            .find(|(_, child)| self.hand.plan.directories[*child].needed)
    }

    fn enter(&mut self, name: &CString, child: usize) -> Result<(), Fault> {
        self.from.enter(name)?;
        if self.hand.plan.directories[child].before.is_some()
            && let Some(base) = &mut self.base
            && base.enter(name).is_err()
        {
            // Somebody is deleting it. Everything can be copied.
            self.base = None;
        }
        mkdirat(self.to.fd(), name, Mode::RWXU).during("create a copy of")?;
        self.to.enter(name)
    }

    fn leave(&mut self, stay: &Stay) -> LayerResult<()> {
        let pair = stay.pair.upgrade();
        if let Some(pair) = pair {
            pair.left.store(true, Ordering::Relaxed);
            self.go_up(stay.index).at(|| self.from.path())?;
            self.hand.release(pair)
        } else {
            let finished = self.hand.finish(stay.index, self.from.fd(), self.to.fd());
            finished.at(|| self.from.path())?;
            self.go_up(stay.index).at(|| self.from.path())
        }
    }

    fn go_up(&mut self, index: usize) -> Result<(), Fault> {
        self.from.leave()?;
        if self.hand.plan.directories[index].before.is_some()
            && let Some(base) = &mut self.base
            && base.leave().is_err()
        {
            self.base = None;
        }
        self.to.leave().map(drop)
    }

    /// Everything in a directory but the directories in it.
    fn fill(&mut self, index: usize, crew: &Crew<'a, '_>) -> LayerResult<Stay> {
        let (directory, plan) = self.hand.at(index);
        for name in &plan.gone {
            put_whiteout(self.to.fd(), name).at(|| self.to.path_of(name))?;
        }
        let whole = self.hand.plan.is_whole();
        let tasks = directory.entries.iter().zip(&plan.taken);
        let tasks = tasks.filter(|(entry, taken)| **taken || whole && entry.child.is_none());
        let tasks = tasks.map(|(entry, taken)| Task { entry, same: !*taken });
        let (given, own) = tasks.partition(|task| crew.takes(task.entry));
        let pair = self.give(index, given, crew).at(|| self.from.path())?;
        for task in own {
            let base = plan.before.and(self.base.as_ref()).map(DirCursor::fd);
            let brought = self.hand.bring(self.from.fd(), base, self.to.fd(), task);
            brought.at(|| self.from.path_of(&task.entry.name))?;
        }
        Ok(Stay { index, next: 0, pair })
    }

    fn give(
        &self,
        index: usize,
        tasks: Vec<Task<'a>>,
        crew: &Crew<'a, '_>,
    ) -> Result<Weak<Pair>, Fault> {
        if tasks.is_empty() {
            return Ok(Weak::new());
        }
        let base = self.hand.plan.directories[index].before.and(self.base.as_ref());
        let pair = Arc::new(Pair {
            index,
            from: self.from.fd().try_clone_to_owned().during("open")?,
            to: self.to.fd().try_clone_to_owned().during("open")?,
            base: base.map(|base| base.fd().try_clone_to_owned()).transpose().during("open")?,
            path: self.from.path(),
            left: AtomicBool::new(false),
        });
        crew.give(&pair, tasks);
        Ok(Arc::downgrade(&pair))
    }
}
