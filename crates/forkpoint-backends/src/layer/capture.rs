//! Writes into a layer what changed in a tree that stays in use.
//!
//! Nothing may write to the tree meanwhile. The cost is one look at everything in it, and copying
//! what changed.

use std::{
    borrow::Cow,
    ffi::CString,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Component, Path, PathBuf},
    sync::{Arc, Weak, atomic::Ordering},
};

use rustix::{
    fs::{Mode, mkdirat, stat},
    time::{ClockId, clock_gettime},
};

use super::{
    LayerResult, Manifest, Marks,
    bundle::Packing,
    copy::Done,
    crew::{Crew, sum, with_crew},
    cursor::{DirCursor, KEEP},
    error::{At as _, During as _, Fault},
    fill::{Ends, Folder, Known, Marking, Task},
    first::bring_all,
    marks::put_whiteout,
    plan::Plan,
    site::Site,
    stage::Stage,
    store::open_path,
    tree::{Entry, Print, Tree},
};

/// From here on a file takes much longer than others.
const LARGE: u64 = 1 << 20;

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
    /// Small files may be made later, by root.
    pub pack: bool,
}

impl<'a> CaptureSpec<'a> {
    #[must_use]
    pub fn new(upper: &'a Path) -> Self {
        Self { upper, since: None, mapped: &[], pack: false }
    }
}

impl Stage {
    /// After a failure the stage is of no use, and should be dropped.
    pub fn capture(&mut self, spec: &CaptureSpec) -> LayerResult<Manifest> {
        let (to, links) = self.openings()?;
        let source = Source::open(spec.upper)?;
        let packing = spec.pack.then(|| self.packing(spec.upper)).transpose()?;
        let way = Way { marks: self.marks(), links, to, base: None, sealed: false, packing };
        let (mut tree, done) = match spec.since {
            None => bring_all(source, way)?,
            Some(since) => bring_changes(source, Some(since.tree()), way)?,
        };
        self.add(done.copied);
        self.packed = done.packed > 0;
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

    pub(super) fn into_cursor(self) -> DirCursor {
        DirCursor::new(self.path.to_owned(), self.root, KEEP)
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
    /// Whether small files may be made later.
    pub(super) packing: Option<Packing>,
}

/// Looks at everything before anything is copied, so that what changes meanwhile is noticed.
pub(super) fn bring_changes(
    source: Source,
    since: Option<&Tree>,
    way: Way,
) -> LayerResult<(Tree, Done)> {
    let tree = source.scan(way.marks)?;
    let plan = Plan::new(since, &tree);
    let done = bring(source, &tree, &plan, way)?;
    Ok((tree, done))
}

/// Copies what the plan says.
pub(super) fn bring(source: Source, tree: &Tree, plan: &Plan, way: Way) -> LayerResult<Done> {
    let Way { marks, links, to, base, sealed, packing } = way;
    let site = Site::new(marks, links, packing).at(|| source.path.to_owned())?;
    let mut walker = Walker { tree, plan, from: source.into_cursor(), to, base };
    with_crew(&site, sealed, |crew| walker.walk(crew)).map(|hands| sum(&hands))
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

/// Makes the directories, and leaves the files to a crew if there are many.
struct Walker<'a> {
    tree: &'a Tree,
    plan: &'a Plan,
    from: DirCursor,
    to: DirCursor,
    /// Stands in the same directory wherever the plan says that there is one.
    base: Option<DirCursor>,
}

/// A directory in which the walk is, or to which it comes back.
struct Stay<'a> {
    /// The entry at which to look for the next directory.
    next: usize,
    marking: Arc<Marking>,
    /// Whatever the crew still copies there.
    folder: Weak<Folder<'a>>,
}

impl<'a> Walker<'a> {
    fn walk(&mut self, crew: &mut Crew<'_, '_, 'a>) -> LayerResult<()> {
        let mut way = vec![self.fill(0, crew)?];
        while let Some(stay) = way.last_mut()
            && !crew.has_failed()
        {
            if let Some((position, child)) = self.next_child(stay) {
                stay.next = position + 1;
                let entry = &self.tree.directories[stay.marking.index].entries[position];
                self.enter(&entry.name, child).at(|| self.from.path_of(&entry.name))?;
                way.push(self.fill(child, crew)?);
            } else if let Some(stay) = way.pop() {
                self.leave(&stay, crew)?;
            }
        }
        Ok(())
    }

    fn next_child(&self, stay: &Stay) -> Option<(usize, usize)> {
        let directory = &self.tree.directories[stay.marking.index];
        let entries = directory.entries.iter().enumerate().skip(stay.next);
        entries
            .filter_map(|(position, entry)| Some((position, entry.child? as usize)))
            .find(|(_, child)| self.plan.directories[*child].needed)
    }

    fn enter(&mut self, name: &CString, child: usize) -> Result<(), Fault> {
        self.from.enter(name)?;
        if self.plan.directories[child].before.is_some()
            && let Some(base) = &mut self.base
            && base.enter(name).is_err()
        {
            // Somebody is deleting it. Everything can be copied.
            self.base = None;
        }
        mkdirat(self.to.fd(), name, Mode::RWXU).during("create a copy of")?;
        self.to.enter(name)
    }

    fn leave(&mut self, stay: &Stay<'a>, crew: &mut Crew<'_, '_, 'a>) -> LayerResult<()> {
        let index = stay.marking.index;
        if let Some(folder) = stay.folder.upgrade() {
            folder.left.store(true, Ordering::Relaxed);
            self.go_up(index).at(|| self.from.path())?;
            crew.hand.release(folder)
        } else {
            crew.hand.finish(self.ends(&stay.marking)).at(|| self.from.path())?;
            self.go_up(index).at(|| self.from.path())
        }
    }

    fn go_up(&mut self, index: usize) -> Result<(), Fault> {
        self.from.leave()?;
        if self.plan.directories[index].before.is_some()
            && let Some(base) = &mut self.base
            && base.leave().is_err()
        {
            self.base = None;
        }
        self.to.leave().map(drop)
    }

    fn ends<'b>(&'b self, marking: &'b Marking) -> Ends<'b> {
        let base = self.plan.directories[marking.index].before.and(self.base.as_ref());
        Ends { from: self.from.fd(), base: base.map(DirCursor::fd), to: self.to.fd(), marking }
    }

    /// Everything in a directory but the directories in it.
    fn fill(&mut self, index: usize, crew: &mut Crew<'_, '_, 'a>) -> LayerResult<Stay<'a>> {
        let plan = &self.plan.directories[index];
        for name in &plan.gone {
            put_whiteout(self.to.fd(), name).at(|| self.to.path_of(name))?;
        }
        let marking = Arc::new(Marking::new(index, plan.opaque, !plan.gone.is_empty()));
        let tasks = self.tasks(index);
        let folder = fill_folder(&self.from, self.ends(&marking), &marking, tasks, crew)?;
        Ok(Stay { next: 0, marking, folder })
    }

    /// Large ones first, so that others are copied meanwhile.
    fn tasks(&self, index: usize) -> Vec<Task<'a>> {
        let (directory, plan) = (&self.tree.directories[index], &self.plan.directories[index]);
        let whole = self.plan.is_whole();
        let entries = directory.entries.iter().zip(&plan.taken);
        let entries = entries.filter(|(entry, taken)| **taken || whole && entry.child.is_none());
        let is_large = |entry: &Entry, taken| taken && entry.print.len_bytes >= LARGE;
        let (large, small): (Vec<_>, Vec<_>) =
            entries.partition(|(entry, taken)| is_large(entry, **taken));
        let task = |(entry, taken): (&'a Entry, &bool)| Task {
            name: Cow::Borrowed(entry.name.as_c_str()),
            known: if *taken { Known::All(entry) } else { Known::Same(entry) },
        };
        large.into_iter().chain(small).map(task).collect()
    }
}

/// The first few of a whole walk by ourselves, the others by the crew.
pub(super) fn fill_folder<'a>(
    from: &DirCursor,
    ends: Ends,
    marking: &Arc<Marking>,
    mut tasks: Vec<Task<'a>>,
    crew: &mut Crew<'_, '_, 'a>,
) -> LayerResult<Weak<Folder<'a>>> {
    if let Some(bundle) = &mut crew.hand.copier.bundle {
        bundle.leave();
    }
    let mut own = 0;
    while own < tasks.len() && crew.is_alone(tasks.len() - own) {
        let task = &tasks[own];
        crew.hand.bring(ends, task).at(|| from.path_of(&task.name))?;
        own += 1;
    }
    tasks.drain(..own);
    if tasks.is_empty() {
        return Ok(Weak::new());
    }
    let folder = Folder::open(ends, marking, from.path(), tasks).at(|| from.path())?;
    Ok(crew.give(folder))
}
