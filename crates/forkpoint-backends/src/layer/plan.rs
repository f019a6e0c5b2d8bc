//! What must go into a layer, so that it tells one tree from an earlier one.

use std::{cmp::Ordering, collections::HashSet, ffi::CString};

use super::tree::{Directory, Entry, Tree};

/// For each directory of the new tree, in the same order.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) directories: Vec<DirectoryPlan>,
    /// Nothing in the trees stands for an absence.
    plain: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DirectoryPlan {
    /// Has a place in the layer: it changed, or something below it did.
    pub(super) needed: bool,
    /// Hides what is below it.
    pub(super) opaque: bool,
    /// The same directory in the old tree.
    pub(super) before: Option<usize>,
    parent: usize,
    /// Which of the entries that are not directories are copied.
    pub(super) taken: Vec<bool>,
    /// Names that were there and are not any more.
    pub(super) gone: Vec<CString>,
}

impl Plan {
    pub(super) fn new(before: Option<&Tree>, now: &Tree) -> Self {
        Self::compared(before, now, false)
    }

    /// For a layer that has everything: what is not taken is what it was before.
    pub(super) fn whole(before: Option<&Tree>, now: &Tree) -> Self {
        let mut plan = Self::compared(before, now, true);
        for plan in &mut plan.directories {
            plan.needed = true;
            plan.opaque = false;
            plan.gone.clear();
        }
        plan
    }

    /// `plain` where nothing in the trees stands for an absence.
    pub(super) fn compared(before: Option<&Tree>, now: &Tree, plain: bool) -> Self {
        let directories = vec![DirectoryPlan::default(); now.directories.len()];
        let mut plan = Self { directories, plain };
        plan.directories[0].before = before.map(|_| 0);
        // The root of a layer is never opaque to overlayfs, whatever its attribute says.
        for index in 0..now.directories.len() {
            plan.compare(index, before, now);
        }
        plan.take_whole_groups(now);
        plan.spread();
        plan
    }

    pub(super) fn is_whole(&self) -> bool {
        self.plain
    }

    /// Whether the trees are the same, but for their roots.
    pub(super) fn is_empty(&self) -> bool {
        let same = |plan: &DirectoryPlan| !plan.taken.contains(&true) && plan.gone.is_empty();
        let below = self.directories.get(1..).unwrap_or_default();
        self.directories.iter().all(same) && !below.iter().any(|plan| plan.needed)
    }

    fn compare(&mut self, index: usize, before: Option<&Tree>, now: &Tree) {
        let directory = &now.directories[index];
        let old = self.directories[index].before.zip(before);
        let old = old.map_or(&[][..], |(at, tree)| &tree.directories[at].entries);
        let (mut taken, mut gone) = (vec![false; directory.entries.len()], Vec::new());
        join(old, &directory.entries, |pair| match pair {
            Pair::Old(entry) if entry.print.is_whiteout() => {}
            Pair::Old(entry) => gone.push(entry.name.clone()),
            Pair::New(position, entry, was) => match entry.child {
                Some(child) => {
                    let step = Step::new(directory_of(now, child), entry, was, before);
                    self.place(child as usize, index, step);
                }
                // The kernel shares one inode between whiteouts, so its times tell nothing.
                None if entry.print.is_whiteout() && !self.plain => {
                    taken[position] = !was.is_some_and(|was| was.print.is_whiteout());
                }
                None => taken[position] = was.is_none_or(|was| has_changed(was, entry)),
            },
        });
        let plan = &mut self.directories[index];
        plan.needed |= !gone.is_empty() || taken.contains(&true);
        (plan.taken, plan.gone) = (taken, gone);
    }

    fn place(&mut self, child: usize, parent: usize, step: Step) {
        let plan = &mut self.directories[child];
        plan.parent = parent;
        plan.before = step.before;
        plan.opaque = step.opaque;
        plan.needed = step.changed;
    }

    /// Names of one inode are copied together or not at all: a link cannot reach into another layer.
    fn take_whole_groups(&mut self, now: &Tree) {
        let groups: HashSet<u64> = now
            .directories
            .iter()
            .zip(&self.directories)
            .flat_map(|(directory, plan)| directory.entries.iter().zip(&plan.taken))
            .filter(|(entry, taken)| entry.linked && **taken)
            .map(|(entry, _)| entry.print.ino)
            .collect();
        if groups.is_empty() {
            return;
        }
        for (directory, plan) in now.directories.iter().zip(&mut self.directories) {
            for (entry, taken) in directory.entries.iter().zip(&mut plan.taken) {
                *taken |= entry.linked && groups.contains(&entry.print.ino);
                plan.needed |= *taken;
            }
        }
    }

    fn spread(&mut self) {
        for index in (1..self.directories.len()).rev() {
            if self.directories[index].needed {
                let parent = self.directories[index].parent;
                self.directories[parent].needed = true;
            }
        }
        self.directories[0].needed = true;
    }
}

fn directory_of(tree: &Tree, index: u32) -> &Directory {
    &tree.directories[index as usize]
}

fn has_changed(was: &Entry, now: &Entry) -> bool {
    was.print != now.print || was.racy
}

/// How a directory is to be made.
struct Step {
    before: Option<usize>,
    opaque: bool,
    changed: bool,
}

impl Step {
    fn new(directory: &Directory, now: &Entry, was: Option<&Entry>, before: Option<&Tree>) -> Self {
        let Some(was) = was else {
            return Self { before: None, opaque: directory.opaque, changed: true };
        };
        let same = was.child.zip(before).filter(|(child, tree)| {
            let covers = directory.opaque && !directory_of(tree, *child).opaque;
            was.print.ino == now.print.ino && !covers
        });
        match same {
            Some((child, _)) => {
                Self { before: Some(child as usize), opaque: false, changed: has_changed(was, now) }
            }
            // Another directory, or none, was here: nothing of it may show.
            None => Self { before: None, opaque: true, changed: true },
        }
    }
}

enum Pair<'a> {
    Old(&'a Entry),
    New(usize, &'a Entry, Option<&'a Entry>),
}

fn join<'a>(old: &'a [Entry], new: &'a [Entry], mut each: impl FnMut(Pair<'a>)) {
    let mut old = old.iter().peekable();
    for (position, entry) in new.iter().enumerate() {
        while let Some(was) = old.next_if(|was| was.name < entry.name) {
            each(Pair::Old(was));
        }
        let was = old.next_if(|was| was.name.cmp(&entry.name) == Ordering::Equal);
        each(Pair::New(position, entry, was));
    }
    old.for_each(|was| each(Pair::Old(was)));
}
