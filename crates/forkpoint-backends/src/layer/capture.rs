//! Writes into a layer what changed in a tree that stays in use.
//!
//! Nothing may write to the tree meanwhile. The cost is one look at everything in it, and copying
//! what changed.

use std::{
    ffi::CString,
    os::{fd::AsFd as _, unix::ffi::OsStrExt as _},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{Mode, fstat, mkdirat},
    time::{ClockId, clock_gettime},
};

use super::{
    LayerResult, Manifest,
    attributes::{Place, set_times},
    copy::Copier,
    cursor::{DirCursor, KEEP},
    error::{At as _, During as _, Fault},
    marks::put_whiteout,
    plan::{DirectoryPlan, Plan},
    stage::Stage,
    store::open_path,
    tree::{Directory, Print, Tree},
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
        let source = open_path(spec.upper)?;
        let root = source.try_clone().during("open").at(|| spec.upper.to_owned())?;
        let mut from = DirCursor::new(spec.upper.to_owned(), root, KEEP);
        let mut tree = Tree::scan(&mut from, self.marks())?;
        let plan = Plan::new(spec.since.map(Manifest::tree), &tree);
        let (to, links) = self.openings()?;
        let copier = Copier::new(self.marks(), links.as_fd()).at(|| self.path())?;
        let from = DirCursor::new(spec.upper.to_owned(), source, KEEP);
        let mut writer = Writer { tree: &tree, plan: &plan, from, to, copier };
        writer.write()?;
        let size = writer.copier.size;
        self.add(size);
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

struct Writer<'a> {
    tree: &'a Tree,
    plan: &'a Plan,
    from: DirCursor,
    to: DirCursor,
    copier: Copier<'a>,
}

impl<'a> Writer<'a> {
    fn write(&mut self) -> LayerResult<()> {
        self.fill(0)?;
        let mut way = vec![(0, 0)];
        while let Some((directory, next)) = way.last_mut() {
            let index = *directory;
            let Some((position, child)) = self.next_child(index, *next) else {
                self.finish(index).at(|| self.from.path())?;
                self.leave().at(|| self.from.path())?;
                way.pop();
                continue;
            };
            *next = position + 1;
            let entry = &self.tree.directories[index].entries[position];
            self.enter(&entry.name).at(|| self.from.path_of(&entry.name))?;
            self.fill(child)?;
            way.push((child, 0));
        }
        Ok(())
    }

    fn at(&self, index: usize) -> (&'a Directory, &'a DirectoryPlan) {
        (&self.tree.directories[index], &self.plan.directories[index])
    }

    fn next_child(&self, index: usize, from: usize) -> Option<(usize, usize)> {
        let entries = self.tree.directories[index].entries.iter().enumerate().skip(from);
        entries
            .filter_map(|(position, entry)| Some((position, entry.child? as usize)))
            .find(|(_, child)| self.plan.directories[*child].needed)
    }

    fn enter(&mut self, name: &CString) -> Result<(), Fault> {
        self.from.enter(name)?;
        mkdirat(self.to.fd(), name, Mode::RWXU).during("create a copy of")?;
        self.to.enter(name)
    }

    fn leave(&mut self) -> Result<(), Fault> {
        self.from.leave()?;
        self.to.leave().map(drop)
    }

    /// Everything in a directory but the directories in it.
    fn fill(&mut self, index: usize) -> LayerResult<()> {
        let (directory, plan) = self.at(index);
        for name in &plan.gone {
            put_whiteout(self.to.fd(), name).at(|| self.to.path_of(name))?;
        }
        let taken = directory.entries.iter().zip(&plan.taken).filter(|(_, taken)| **taken);
        for (entry, _) in taken {
            let same = |stat: &_| Print::of(stat) == entry.print || entry.print.is_whiteout();
            self.copier
                .copy(self.from.fd(), self.to.fd(), &entry.name, same)
                .at(|| self.from.path_of(&entry.name))?;
        }
        Ok(())
    }

    /// Last, since what is written into a directory changes its times, and its mode may forbid it.
    fn finish(&mut self, index: usize) -> Result<(), Fault> {
        let (directory, plan) = self.at(index);
        let stat = fstat(self.from.fd()).during("inspect")?;
        let to = Place::Open(self.to.fd());
        let attributes = &mut self.copier.attributes;
        attributes.copy(Place::Open(self.from.fd()), &stat, to)?;
        if plan.opaque {
            attributes.marks.set_opaque(self.to.fd())?;
        }
        let entries = directory.entries.iter().zip(&plan.taken);
        let whiteouts = entries.filter(|(entry, taken)| **taken && entry.print.is_whiteout());
        if !plan.gone.is_empty() || whiteouts.count() > 0 {
            attributes.marks.set_whiteouts(self.to.fd())?;
        }
        set_times(to, &stat)
    }
}
