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
    fs::{Mode, mkdirat},
    time::{ClockId, clock_gettime},
};

use super::{
    LayerResult, Manifest,
    copy::Copier,
    crew::{Crew, with_crew},
    cursor::{DirCursor, KEEP},
    error::{At as _, During as _, Fault},
    fill::{Hand, Pair},
    marks::put_whiteout,
    plan::Plan,
    stage::Stage,
    store::open_path,
    tree::{Entry, Tree},
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
        let source = open_path(spec.upper)?;
        let root = source.try_clone().during("open").at(|| spec.upper.to_owned())?;
        let mut from = DirCursor::new(spec.upper.to_owned(), root, KEEP);
        let mut tree = Tree::scan(&mut from, self.marks())?;
        let plan = Plan::new(spec.since.map(Manifest::tree), &tree);
        let hire = || {
            let copier = Copier::new(self.marks(), links.as_fd()).at(|| self.path())?;
            Ok(Hand { tree: &tree, plan: &plan, copier })
        };
        let from = DirCursor::new(spec.upper.to_owned(), source, KEEP);
        let mut walker = Walker { hand: hire()?, from, to };
        let by_crew = with_crew(plan.taken_count(), hire, |crew| walker.walk(crew))?;
        let by_walker = walker.hand.copier.size;
        self.add(by_crew);
        self.add(by_walker);
        tree.mark_racy(clock_gettime(ClockId::RealtimeCoarse));
        mark_mapped(&mut tree, spec.mapped);
        Ok(Manifest::from(tree))
    }
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
                self.enter(&entry.name).at(|| self.from.path_of(&entry.name))?;
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

    fn enter(&mut self, name: &CString) -> Result<(), Fault> {
        self.from.enter(name)?;
        mkdirat(self.to.fd(), name, Mode::RWXU).during("create a copy of")?;
        self.to.enter(name)
    }

    fn leave(&mut self, stay: &Stay) -> LayerResult<()> {
        let pair = stay.pair.upgrade();
        if let Some(pair) = pair {
            pair.left.store(true, Ordering::Relaxed);
            self.go_up().at(|| self.from.path())?;
            self.hand.release(pair)
        } else {
            let finished = self.hand.finish(stay.index, self.from.fd(), self.to.fd());
            finished.at(|| self.from.path())?;
            self.go_up().at(|| self.from.path())
        }
    }

    fn go_up(&mut self) -> Result<(), Fault> {
        self.from.leave()?;
        self.to.leave().map(drop)
    }

    /// Everything in a directory but the directories in it.
    fn fill(&mut self, index: usize, crew: &Crew<'a, '_>) -> LayerResult<Stay> {
        let (directory, plan) = self.hand.at(index);
        for name in &plan.gone {
            put_whiteout(self.to.fd(), name).at(|| self.to.path_of(name))?;
        }
        let taken = directory.entries.iter().zip(&plan.taken).filter(|(_, taken)| **taken);
        let (given, own) = taken.map(|(entry, _)| entry).partition(|entry| crew.takes(entry));
        let pair = self.give(index, given, crew).at(|| self.from.path())?;
        for entry in own {
            let copied = self.hand.copy(self.from.fd(), self.to.fd(), entry);
            copied.at(|| self.from.path_of(&entry.name))?;
        }
        Ok(Stay { index, next: 0, pair })
    }

    fn give(
        &self,
        index: usize,
        entries: Vec<&'a Entry>,
        crew: &Crew<'a, '_>,
    ) -> Result<Weak<Pair>, Fault> {
        if entries.is_empty() {
            return Ok(Weak::new());
        }
        let pair = Arc::new(Pair {
            index,
            from: self.from.fd().try_clone_to_owned().during("open")?,
            to: self.to.fd().try_clone_to_owned().during("open")?,
            path: self.from.path(),
            left: AtomicBool::new(false),
        });
        crew.give(&pair, entries);
        Ok(Arc::downgrade(&pair))
    }
}
