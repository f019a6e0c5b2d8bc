//! What is done to one directory of a layer, by whichever thread: copy files into it, and finish it.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::fs::{Stat, fstat};

use super::{
    LayerResult,
    attributes::{Place, set_times},
    copy::Copier,
    crew::Alarm,
    error::{At as _, During as _, Fault},
    plan::{DirectoryPlan, Plan},
    tree::{Directory, Entry, Print, Tree},
};

/// Files of one directory, which one thread copies.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) pair: Arc<Pair>,
    pub(super) tasks: Vec<Task<'a>>,
}

/// A file, and how it comes into the copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task<'a> {
    pub(super) entry: &'a Entry,
    /// The base has it as it is.
    pub(super) same: bool,
}

impl Task<'_> {
    /// To copy.
    pub(super) fn bytes(self) -> u64 {
        if self.same { 0 } else { self.entry.print.len_bytes }
    }
}

/// A directory of the source and its copy, for as long as files are copied between them, which may
/// be longer than the walk stays there.
#[derive(Debug)]
pub(super) struct Pair {
    /// In the tree.
    pub(super) index: usize,
    pub(super) from: OwnedFd,
    pub(super) to: OwnedFd,
    /// The same directory of an earlier layer.
    pub(super) base: Option<OwnedFd>,
    /// Of the source, for messages.
    pub(super) path: PathBuf,
    /// The walk will not come back, so that the last one here finishes the directory.
    pub(super) left: AtomicBool,
}

/// Has what a thread needs to copy.
#[derive(Debug)]
pub(super) struct Hand<'a> {
    pub(super) tree: &'a Tree,
    pub(super) plan: &'a Plan,
    /// The source is a layer: a file gets more names meanwhile, which shows in its print.
    pub(super) sealed: bool,
    pub(super) copier: Copier<'a>,
}

impl<'a> Hand<'a> {
    pub(super) fn at(&self, index: usize) -> (&'a Directory, &'a DirectoryPlan) {
        (&self.tree.directories[index], &self.plan.directories[index])
    }

    /// Stops half-way at an alarm: nobody wants the rest.
    pub(super) fn work(&mut self, job: Job, alarm: &Alarm) -> LayerResult<()> {
        let Job { pair, tasks } = job;
        let base = pair.base.as_ref().map(OwnedFd::as_fd);
        for task in tasks {
            if alarm.is_rung() {
                return Ok(());
            }
            self.bring(pair.from.as_fd(), base, pair.to.as_fd(), task)
                .at(|| pair.path.join(OsStr::from_bytes(task.entry.name.to_bytes())))?;
        }
        self.release(pair)
    }

    pub(super) fn bring(
        &mut self,
        from: BorrowedFd,
        base: Option<BorrowedFd>,
        to: BorrowedFd,
        Task { entry, same }: Task,
    ) -> Result<(), Fault> {
        if let Some(base) = base.filter(|_| same) {
            let alike = |stat: &Stat| Print::of(stat).is_like(&entry.print);
            if self.copier.share(base, to, &entry.name, entry.linked, alike)? {
                return Ok(());
            }
        }
        self.copy(from, to, entry)
    }

    fn copy(&mut self, from: BorrowedFd, to: BorrowedFd, entry: &Entry) -> Result<(), Fault> {
        let sealed = self.sealed;
        // Names of one inode are known as such beforehand: one thread alone copies them all.
        let same = |stat: &Stat| {
            let print = Print::of(stat);
            print == entry.print && (entry.linked || stat.st_nlink <= 1)
                || sealed && print.ino == entry.print.ino && print.is_like(&entry.print)
                || entry.print.is_whiteout()
        };
        match entry.print.is_file() && !entry.linked {
            true => self.copier.copy_plain(from, to, &entry.name, same),
            false => self.copier.copy(from, to, &entry.name, same),
        }
    }

    pub(super) fn release(&mut self, pair: Arc<Pair>) -> LayerResult<()> {
        match Arc::into_inner(pair) {
            Some(pair) if pair.left.load(Ordering::Relaxed) => {
                self.finish(pair.index, pair.from.as_fd(), pair.to.as_fd()).at(|| pair.path)
            }
            _ => Ok(()),
        }
    }

    /// Last, since what is written into a directory changes its times, and its mode may forbid it.
    pub(super) fn finish(
        &mut self,
        index: usize,
        from: BorrowedFd,
        to: BorrowedFd,
    ) -> Result<(), Fault> {
        let (directory, plan) = self.at(index);
        let stat = fstat(from).during("inspect")?;
        let attributes = &mut self.copier.attributes;
        attributes.copy(Place::Open(from), &stat, Place::Open(to), false)?;
        if plan.opaque {
            attributes.marks.set_opaque(to)?;
        }
        let entries = directory.entries.iter().zip(&plan.taken);
        let whiteouts = entries.filter(|(entry, taken)| **taken && entry.print.is_whiteout());
        if !plan.gone.is_empty() || whiteouts.count() > 0 {
            attributes.marks.set_whiteouts(to)?;
        }
        set_times(Place::Open(to), &stat)
    }
}
