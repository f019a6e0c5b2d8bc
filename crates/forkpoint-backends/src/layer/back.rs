//! A tree in use goes back to what it was, without a new overlay under anybody's feet.
//!
//! What changed is found in the upper directory, and written through the overlay that shows it: the kernel
//! does not expect anybody to write to the directory itself. It is for little that changed, and for plain things: where
//! there is more, or something else, a new overlay is quicker and safer.

use std::{
    ffi::{CStr, CString},
    fs::File,
    path::Path,
};

use forkpoint_core::driver::{FileFacts, FileKind};
use rustix::fs::{AtFlags, FileType, Stat, fstat, readlinkat, statat};

use super::{
    LayerError, LayerResult, LayerView, Manifest, Marks,
    attributes::{Place, listed, value_of},
    cursor::{DirCursor, KEEP, names},
    error::{At as _, During as _, Fault},
    marks::Fate,
    store::open_path,
    tree::{Directory, Entry, Print, Tree},
    view::{Seen, Walker, facts_of},
};

mod put;
mod same;

use self::same::is_same_content;

const STEPS_MAX: usize = 256;
const DEPTH_MAX: usize = 64;
/// A look at so many takes a millisecond or two.
const ENTRIES_MAX: usize = 2048;
const BYTES_MAX: u64 = 8 << 20;

const LINKED: &str = "a file with several names changed";

/// What is to be put back.
#[derive(Clone, Copy, Debug)]
pub struct BackSpec<'a> {
    /// What the tree in use writes to. Nothing may write to it meanwhile.
    pub upper: &'a Path,
    /// What it was. `None`: there was nothing in it.
    pub was: Option<&'a Manifest>,
    /// What the tree is to show again.
    pub view: &'a LayerView,
    pub marks: Marks,
}

/// What must be done for it, in this order.
#[derive(Debug)]
pub struct Back {
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    /// From the root; empty for the root itself.
    path: Vec<CString>,
    what: What,
}

#[derive(Debug)]
enum What {
    Remove,
    /// A file that is there, or a new one.
    File {
        from: File,
        facts: FileFacts,
        is_new: bool,
    },
    Link {
        target: CString,
        facts: FileFacts,
    },
    /// Owner, mode and time.
    Dress(FileFacts),
}

enum Stop {
    /// Why it cannot be done in place.
    Unfit(&'static str),
    Failed(LayerError),
}

impl What {
    fn changes_names(&self) -> bool {
        match self {
            Self::Remove | Self::Link { .. } => true,
            Self::File { is_new, .. } => *is_new,
            Self::Dress(_) => false,
        }
    }
}

impl From<LayerError> for Stop {
    fn from(err: LayerError) -> Self {
        Self::Failed(err)
    }
}

type Looked<T> = Result<T, Stop>;

impl Back {
    /// Touches nothing. The inner error is why it cannot be done in place.
    pub fn plan(spec: &BackSpec<'_>) -> LayerResult<Result<Self, &'static str>> {
        let was = spec.was.map(Manifest::tree);
        if spec.was.is_some_and(|was| was.entry_count() > ENTRIES_MAX) {
            return Ok(Err("there is much to look at"));
        }
        let mut look = Look {
            marks: spec.marks,
            was,
            shown: Walker::new(spec.view, KEEP)?,
            upper: DirCursor::new(spec.upper.to_owned(), open_path(spec.upper)?, KEEP),
            path: Vec::new(),
            seen: 0,
            bytes: 0,
            steps: Vec::new(),
        };
        match look.directory(was.map(|_| 0)) {
            Ok(()) => Ok(Ok(Self { steps: look.steps })),
            Err(Stop::Unfit(why)) => Ok(Err(why)),
            Err(Stop::Failed(err)) => Err(err),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

struct Look<'a> {
    marks: Marks,
    was: Option<&'a Tree>,
    /// Stands where `upper` does.
    shown: Walker<'a>,
    upper: DirCursor,
    path: Vec<CString>,
    seen: usize,
    bytes: u64,
    steps: Vec<Step>,
}

/// What the upper directory has of a name.
struct Is {
    stat: Stat,
    print: Print,
    linked: bool,
}

impl<'a> Look<'a> {
    /// Everything in the directory in which both stand, and then the directory itself.
    fn directory(&mut self, was: Option<usize>) -> Looked<()> {
        let before = self.steps.len();
        let was = was.and_then(|index| self.was?.directories.get(index));
        let old: &[Entry] = was.map_or(&[], |was| &was.entries);
        let mut names: Vec<CString> = self.names()?;
        names.sort_unstable();
        let gone = old.iter().filter(|old| names.binary_search(&old.name).is_err());
        let gone: Vec<&Entry> = gone.collect();
        for name in &names {
            let old = old.binary_search_by(|old| old.name.cmp(name)).ok().map(|at| &old[at]);
            let is = self.inspect(name)?;
            self.entry(name, old, Some(is))?;
        }
        for old in gone {
            self.entry(&old.name, Some(old), None)?;
        }
        let (shown, upper) = (self.shown.top()?, self.upper.fd());
        let look = || -> Result<_, Fault> {
            Ok((fstat(shown).during("inspect")?, fstat(upper).during("inspect")?))
        };
        let (wanted, is) = look().at(|| self.upper.path())?;
        // What is made or removed in a directory changes its time.
        let here = self.path.len();
        let new = |step: &Step| step.path.len() == here + 1 && step.what.changes_names();
        let touched = self.steps[before..].iter().any(new);
        if touched || !is_dressed(&facts_of(&wanted), &is) {
            if !self.same_extended(Place::Open(shown), Place::Open(upper))? {
                return Err(Stop::Unfit("attributes of a directory changed"));
            }
            self.step(What::Dress(facts_of(&wanted)))?;
        }
        Ok(())
    }

    fn names(&mut self) -> Looked<Vec<CString>> {
        let names = names(self.upper.fd()).at(|| self.upper.path())?;
        self.seen += names.len();
        match self.seen > ENTRIES_MAX {
            true => Err(Stop::Unfit("there is much to look at")),
            false => Ok(names.into_iter().map(|(name, _)| name).collect()),
        }
    }

    fn inspect(&self, name: &CStr) -> LayerResult<Is> {
        let stat = statat(self.upper.fd(), name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.during("inspect").at(|| self.upper.path_of(name))?;
        let print = Print::of(&stat);
        let linked = stat.st_nlink > 1 && !print.is_dir() && !self.marks.is_whiteout(&stat);
        Ok(Is { stat, print, linked })
    }

    fn entry(&mut self, name: &CString, was: Option<&Entry>, is: Option<Is>) -> Looked<()> {
        let is = is.filter(|is| !is.print.is_whiteout());
        let same = |(was, is): (&Entry, &Is)| was.print == is.print && !was.racy;
        let is_dir = is.as_ref().is_some_and(|is| is.print.is_dir());
        if !is_dir && was.zip(is.as_ref()).is_some_and(same) {
            return Ok(());
        }
        let seen = self.shown.find(name)?;
        if was.is_some_and(|was| was.linked) || is.as_ref().is_some_and(|is| is.linked) {
            return Err(Stop::Unfit(LINKED));
        }
        self.path.push(name.clone());
        match (seen, is) {
            (None, None) if was.is_none_or(|was| !was.print.is_whiteout()) => {}
            (None, is) => self.remove(name, is.as_ref())?,
            (Some(seen), is) => self.wanted(name, &seen, was, is)?,
        }
        self.path.pop();
        Ok(())
    }

    fn step(&mut self, what: What) -> Looked<()> {
        if self.steps.len() >= STEPS_MAX {
            return Err(Stop::Unfit("much changed"));
        }
        self.steps.push(Step { path: self.path.clone(), what });
        Ok(())
    }

    fn remove(&mut self, name: &CStr, is: Option<&Is>) -> Looked<()> {
        if is.is_some_and(|is| is.print.is_dir()) {
            self.count(name, 0)?;
        }
        self.step(What::Remove)
    }

    /// Whether a directory that goes has few enough entries.
    fn count(&mut self, name: &CStr, depth: usize) -> Looked<()> {
        if depth > DEPTH_MAX {
            return Err(Stop::Unfit("a directory is deep"));
        }
        self.upper.enter(name).at(|| self.upper.path_of(name))?;
        let all = names(self.upper.fd()).at(|| self.upper.path())?;
        self.seen += all.len();
        if self.seen > ENTRIES_MAX {
            return Err(Stop::Unfit("there is much to look at"));
        }
        for (name, kind) in &all {
            if *kind == FileType::Directory {
                self.count(name, depth + 1)?;
            }
        }
        self.upper.leave().at(|| self.upper.path())?;
        Ok(())
    }

    /// Something is to be there.
    fn wanted(
        &mut self,
        name: &CStr,
        seen: &Seen,
        was: Option<&Entry>,
        is: Option<Is>,
    ) -> Looked<()> {
        match seen.facts.facts.kind {
            FileKind::Directory => self.enter(name, seen, was, is),
            FileKind::File => self.file(name, seen, is),
            FileKind::Symlink => self.link(name, seen, is),
            _ => self.special(name, seen, is),
        }
    }

    fn enter(
        &mut self,
        name: &CStr,
        seen: &Seen,
        was: Option<&Entry>,
        is: Option<Is>,
    ) -> Looked<()> {
        let Some(is) = is.filter(|is| is.print.is_dir()) else {
            return Err(Stop::Unfit("a directory is gone"));
        };
        if self.path.len() > DEPTH_MAX {
            return Err(Stop::Unfit("a directory is deep"));
        }
        let child = was.and_then(|was| was.child.map(|child| (child as usize, was.print.ino)));
        if was.is_some_and(|was| !was.print.is_dir())
            || child.is_some_and(|(_, ino)| ino != is.print.ino)
        {
            return Err(Stop::Unfit("a directory is another one"));
        }
        self.upper.enter(name).at(|| self.upper.path_of(name))?;
        let child = child.map(|(child, _)| child);
        let opaque = self.marks.is_opaque(self.upper.fd()).at(|| self.upper.path())?;
        let was_opaque = |child| self.was.and_then(|was| was.directories.get(child));
        let was_opaque = child.and_then(was_opaque).is_some_and(|was: &Directory| was.opaque);
        if opaque && !was_opaque {
            return Err(Stop::Unfit("a directory is another one"));
        }
        self.shown.enter(name, seen)?;
        self.directory(child)?;
        self.shown.leave()?;
        self.upper.leave().at(|| self.upper.path())?;
        Ok(())
    }

    fn file(&mut self, name: &CStr, seen: &Seen, is: Option<Is>) -> Looked<()> {
        let facts = seen.facts.facts;
        self.bytes += facts.len_bytes;
        if self.bytes > BYTES_MAX {
            return Err(Stop::Unfit("there is much to write"));
        }
        let from = self.shown.open_file(name, seen)?;
        // With which others of the tree it is one cannot be told from here.
        if fstat(&from).during("inspect").at(|| self.upper.path_of(name))?.st_nlink > 1 {
            return Err(Stop::Unfit(LINKED));
        }
        let Some(is) = is else { return self.file_anew(name, seen, from) };
        if !is.print.is_file() {
            self.remove(name, Some(&is))?;
            return self.file_anew(name, seen, from);
        }
        self.check_extended(name, seen)?;
        let same = || is_same_content(&from, self.upper.fd(), name).during("compare");
        let same =
            is.print.len_bytes == facts.len_bytes && same().at(|| self.upper.path_of(name))?;
        match (same, is_dressed(&facts, &is.stat)) {
            (true, true) => Ok(()),
            (true, false) => self.step(What::Dress(facts)),
            (false, _) => self.step(What::File { from, facts, is_new: false }),
        }
    }

    fn file_anew(&mut self, name: &CStr, seen: &Seen, from: File) -> Looked<()> {
        let there = Place::Named(self.shown.directory_of(seen), name);
        let kept = self.kept(there).during("list attributes of").at(|| self.upper.path_of(name))?;
        match kept.is_empty() {
            true => self.step(What::File { from, facts: seen.facts.facts, is_new: true }),
            false => Err(Stop::Unfit("a file with attributes is gone")),
        }
    }

    fn link(&mut self, name: &CStr, seen: &Seen, is: Option<Is>) -> Looked<()> {
        let facts = seen.facts.facts;
        let read = |at| readlinkat(at, name, Vec::new()).during("read the link");
        let target = read(self.shown.directory_of(seen)).at(|| self.upper.path_of(name))?;
        if let Some(is) = &is {
            let is_link = FileType::from_raw_mode(is.print.mode) == FileType::Symlink;
            let same = is_link
                && read(self.upper.fd()).at(|| self.upper.path_of(name))? == target
                && is_dressed(&facts, &is.stat);
            if same {
                return Ok(());
            }
            self.remove(name, Some(is))?;
        }
        self.step(What::Link { target, facts })
    }

    /// What only has a name, and is used by processes.
    fn special(&mut self, name: &CStr, seen: &Seen, is: Option<Is>) -> Looked<()> {
        let facts = seen.facts.facts;
        let Some(is) = is.filter(|is| facts_of(&is.stat).kind == facts.kind) else {
            return Err(Stop::Unfit("a pipe, socket or device is gone"));
        };
        self.check_extended(name, seen)?;
        match is_dressed(&facts, &is.stat) {
            true => Ok(()),
            false => self.step(What::Dress(facts)),
        }
    }

    fn check_extended(&self, name: &CStr, seen: &Seen) -> Looked<()> {
        let there = Place::Named(self.shown.directory_of(seen), name);
        match self.same_extended(there, Place::Named(self.upper.fd(), name))? {
            true => Ok(()),
            false => Err(Stop::Unfit("attributes of a file changed")),
        }
    }

    fn same_extended(&self, one: Place, other: Place) -> LayerResult<bool> {
        let look = || Ok::<_, rustix::io::Errno>(self.kept(one)? == self.kept(other)?);
        look().during("list attributes of").at(|| self.upper.path())
    }

    /// Extended attributes that a snapshot keeps, in order.
    fn kept(&self, place: Place) -> rustix::io::Result<Vec<(CString, Vec<u8>)>> {
        let mut kept = Vec::new();
        for name in listed(place)? {
            if self.marks.fate(name.to_bytes()) == Fate::Kept {
                kept.push((name.clone(), value_of(place, &name)?));
            }
        }
        kept.sort_unstable();
        Ok(kept)
    }
}

/// Whether owner, mode, time and device are what they should be.
fn is_dressed(wanted: &FileFacts, is: &Stat) -> bool {
    let is = facts_of(is);
    let told = |facts: &FileFacts| (facts.mode, facts.uid, facts.gid, facts.modified, facts.device);
    told(wanted) == told(&is)
}
