//! What is done to one directory of a layer, by whichever thread: copy files into it, and finish it.

use std::{
    borrow::Cow,
    ffi::{CStr, OsStr},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use rustix::fs::{FileType, Stat, fstat};

use super::{
    LayerResult,
    attributes::{Place, set_times},
    copy::Copier,
    error::{At as _, During as _, Fault},
    marks::Marks,
    site::Site,
    tree::{Entry, Print, is_linked},
};

/// Something that is no directory, and how it comes into the copy.
#[derive(Clone, Debug)]
pub(super) struct Task<'a> {
    pub(super) name: Cow<'a, CStr>,
    pub(super) known: Known<'a>,
}

/// What was seen of it before.
#[derive(Clone, Copy, Debug)]
pub(super) enum Known<'a> {
    /// No more than what the directory tells.
    Type(FileType),
    All(&'a Entry),
    /// And the base has it as it is.
    Same(&'a Entry),
}

/// A directory of the source and its copy, for as long as files are copied between them, which may
/// be longer than the walk stays there.
#[derive(Debug)]
pub(super) struct Folder<'a> {
    from: OwnedFd,
    to: OwnedFd,
    /// The same directory of an earlier layer.
    base: Option<OwnedFd>,
    /// Of the source, for messages.
    path: PathBuf,
    marking: Arc<Marking>,
    tasks: Vec<Task<'a>>,
    /// The first task that nobody has.
    next: AtomicUsize,
    /// Somebody works through it.
    pub(super) taken: AtomicBool,
    /// The walk will not come back, so that the last one here finishes the directory.
    pub(super) left: AtomicBool,
}

impl<'a> Folder<'a> {
    pub(super) fn open(
        ends: Ends,
        marking: &Arc<Marking>,
        path: PathBuf,
        tasks: Vec<Task<'a>>,
    ) -> Result<Self, Fault> {
        let open = |fd: BorrowedFd| fd.try_clone_to_owned().during("open");
        Ok(Self {
            from: open(ends.from)?,
            to: open(ends.to)?,
            base: ends.base.map(open).transpose()?,
            path,
            marking: Arc::clone(marking),
            tasks,
            next: AtomicUsize::new(0),
            taken: AtomicBool::new(false),
            left: AtomicBool::new(false),
        })
    }

    /// A task that nobody else gets.
    pub(super) fn take(&self) -> Option<&Task<'a>> {
        // It may go beyond the end, once for each thread that looks.
        self.tasks.get(self.next.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn remaining(&self) -> usize {
        self.tasks.len().saturating_sub(self.next.load(Ordering::Relaxed))
    }

    fn ends(&self) -> Ends<'_> {
        let (from, to) = (self.from.as_fd(), self.to.as_fd());
        Ends { from, base: self.base.as_ref().map(OwnedFd::as_fd), to, marking: &self.marking }
    }
}

/// What a directory of a layer says to overlayfs.
#[derive(Debug)]
pub(super) struct Marking {
    /// In the tree.
    pub(super) index: usize,
    pub(super) opaque: bool,
    /// Has whiteouts in it.
    pub(super) whiteouts: AtomicBool,
}

impl Marking {
    pub(super) fn new(index: usize, opaque: bool, whiteouts: bool) -> Self {
        Self { index, opaque, whiteouts: AtomicBool::new(whiteouts) }
    }
}

/// A directory, its copy, and what an earlier layer has of it.
#[derive(Clone, Copy)]
pub(super) struct Ends<'a> {
    pub(super) from: BorrowedFd<'a>,
    pub(super) base: Option<BorrowedFd<'a>>,
    pub(super) to: BorrowedFd<'a>,
    pub(super) marking: &'a Marking,
}

/// Has what a thread needs to copy.
#[derive(Debug)]
pub(super) struct Hand<'a> {
    /// The source is a layer: a file gets more names meanwhile, which shows in its print.
    sealed: bool,
    pub(super) copier: Copier<'a>,
    /// What was not known before, with the index of its directory.
    pub(super) found: Vec<(usize, Entry)>,
}

impl<'a> Hand<'a> {
    pub(super) fn new(site: &'a Site, sealed: bool) -> Self {
        Self { sealed, copier: Copier::new(site), found: Vec::new() }
    }

    pub(super) fn marks(&self) -> Marks {
        self.copier.attributes.marks
    }

    /// One of a folder's tasks.
    pub(super) fn work(&mut self, folder: &Folder, task: &Task) -> LayerResult<()> {
        let path = || folder.path.join(OsStr::from_bytes(task.name.to_bytes()));
        if let Some(bundle) = &mut self.copier.bundle {
            let entered = bundle.enter(folder.marking.index, &folder.path, folder.from.as_fd());
            entered.at(|| folder.path.clone())?;
        }
        self.bring(folder.ends(), task).at(path)
    }

    pub(super) fn bring(&mut self, ends: Ends, task: &Task) -> Result<(), Fault> {
        match task.known {
            Known::Type(kind) => self.find(ends, &task.name, kind),
            Known::All(entry) => self.copy(ends, entry),
            Known::Same(entry) => {
                let alike = |stat: &Stat| Print::of(stat).is_like(&entry.print);
                let name = &entry.name;
                match ends.base {
                    Some(base)
                        if self.copier.share(base, ends.to, name, entry.linked, alike)? =>
                    {
                        Ok(())
                    }
                    _ => self.copy(ends, entry),
                }
            }
        }
    }

    fn find(&mut self, ends: Ends, name: &CStr, kind: FileType) -> Result<(), Fault> {
        let stat = match kind {
            FileType::RegularFile => self.copier.copy_found(ends.from, ends.to, name)?,
            _ => self.copier.copy(ends.from, ends.to, name, |_| true)?,
        };
        let (print, linked) = (Print::of(&stat), is_linked(&stat, self.marks()));
        self.note_whiteout(ends.marking, &print);
        let entry = Entry { name: name.to_owned(), print, linked, racy: false, child: None };
        self.found.push((ends.marking.index, entry));
        Ok(())
    }

    fn copy(&mut self, ends: Ends, entry: &Entry) -> Result<(), Fault> {
        let sealed = self.sealed;
        let same = |stat: &Stat| {
            let print = Print::of(stat);
            print == entry.print && (entry.linked || stat.st_nlink <= 1)
                || sealed && print.ino == entry.print.ino && print.is_like(&entry.print)
                || entry.print.is_whiteout()
        };
        self.note_whiteout(ends.marking, &entry.print);
        match entry.print.is_file() && !entry.linked {
            true => self.copier.copy_plain(ends.from, ends.to, &entry.name, same),
            false => self.copier.copy(ends.from, ends.to, &entry.name, same).map(drop),
        }
    }

    fn note_whiteout(&self, marking: &Marking, print: &Print) {
        if print.is_whiteout() {
            marking.whiteouts.store(true, Ordering::Relaxed);
        }
    }

    /// To be called with every reference that is not the last one to be dropped for sure.
    pub(super) fn release(&mut self, folder: Arc<Folder>) -> LayerResult<()> {
        match Arc::into_inner(folder) {
            Some(folder) if folder.left.load(Ordering::Relaxed) => {
                self.finish(folder.ends()).at(|| folder.path.clone())
            }
            _ => Ok(()),
        }
    }

    /// Last, since what is written into a directory changes its times, and its mode may forbid it.
    pub(super) fn finish(&mut self, ends: Ends) -> Result<(), Fault> {
        let stat = fstat(ends.from).during("inspect")?;
        let attributes = &mut self.copier.attributes;
        attributes.copy(Place::Open(ends.from), &stat, Place::Open(ends.to), false)?;
        if ends.marking.opaque {
            attributes.marks.set_opaque(ends.to)?;
        }
        if ends.marking.whiteouts.load(Ordering::Relaxed) {
            attributes.marks.set_whiteouts(ends.to)?;
        }
        set_times(Place::Open(ends.to), &stat)
    }
}
