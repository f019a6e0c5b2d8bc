//! A place in a view that goes down and up by one name, held open in every level that has a part
//! in it.

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, OsStr},
    fs::File,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::ffi::OsStrExt as _,
    },
    path::PathBuf,
};

use forkpoint_core::driver::FileKind;
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat},
    io::Errno,
};

use super::{LayerView, Level, ViewFacts, facts, leads_nowhere, refused, starts_with};
use crate::layer::{
    LayerResult,
    cursor::{DirCursor, FileId, id_of, open_directory},
    error::{At as _, During as _, Fault},
    marks::is_whiteout,
    merged::{Found, Kind, look, see},
};

#[derive(Debug)]
pub(in crate::layer) struct Walker<'a> {
    view: &'a LayerView,
    /// Of each mount that was entered, one for each level.
    cursors: Vec<Vec<DirCursor>>,
    way: Vec<Place>,
    keep: usize,
}

#[derive(Debug)]
struct Place {
    mount: usize,
    parts: Vec<Part>,
    /// The root of its mount, where the cursors begin.
    is_root: bool,
    /// Mounts that lie somewhere below.
    below: Vec<usize>,
}

/// A directory of a level.
#[derive(Clone, Copy, Debug)]
struct Part {
    level: usize,
    id: FileId,
}

/// What a name stands for.
#[derive(Clone, Debug)]
pub(in crate::layer) struct Seen {
    pub(in crate::layer) facts: ViewFacts,
    /// Levels that have a part in it.
    parts: Vec<usize>,
    /// It is the root of a mount.
    is_root: bool,
}

impl Seen {
    pub(in crate::layer) fn is_dir(&self) -> bool {
        self.facts.facts.kind == FileKind::Directory
    }
}

impl<'a> Walker<'a> {
    /// At the root. `keep` ancestors stay open in all levels together.
    pub(in crate::layer) fn new(view: &'a LayerView, keep: usize) -> LayerResult<Self> {
        let cursors = view.mounts.iter().map(|_| Vec::new()).collect();
        let mut walker = Self { view, cursors, way: Vec::new(), keep };
        let root = view.mounts.iter().position(|mount| mount.at.is_empty()).unwrap_or_default();
        let below = (0..view.mounts.len()).filter(|&mount| mount != root).collect();
        walker.enter_mount(root, below)?;
        Ok(walker)
    }

    fn here(&self) -> &Place {
        const NOWHERE: &Place =
            &Place { mount: 0, parts: Vec::new(), is_root: true, below: Vec::new() };
        self.way.last().unwrap_or(NOWHERE)
    }

    fn depth(&self) -> usize {
        self.way.len().saturating_sub(1)
    }

    fn enter_mount(&mut self, mount: usize, below: Vec<usize>) -> LayerResult<()> {
        let levels = self.view.mounts.get(mount).map_or(&[][..], |mount| &mount.levels);
        let keep = self.keep / levels.len().max(1);
        let mut parts = Vec::new();
        let mut cursors = Vec::new();
        for (number, level) in levels.iter().enumerate() {
            cursors.push(DirCursor::new(level.path.clone(), level.reopen()?, keep));
            parts.push(Part { level: number, id: level.id });
        }
        if let Some(place) = self.cursors.get_mut(mount) {
            *place = cursors;
        }
        self.way.push(Place { mount, parts, is_root: true, below });
        Ok(())
    }

    pub(in crate::layer) fn root_facts(&self) -> LayerResult<ViewFacts> {
        self.mount_facts(self.here().mount)
    }

    fn mount_facts(&self, mount: usize) -> LayerResult<ViewFacts> {
        let top = self.view.mounts.get(mount).and_then(|mount| mount.levels.first());
        let Some(top) = top else { return Err(Fault::Changed.at("/".into())) };
        let stat = fstat(&top.fd).during("inspect").at(|| top.path.clone())?;
        Ok(facts(&stat, mount, 0))
    }

    /// The mount that lies at a name here.
    fn mount_at(&self, name: &CStr) -> Option<usize> {
        let depth = self.depth();
        let is_at = |mount: &&usize| {
            let at = &self.view.mounts[**mount].at;
            at.len() == depth + 1 && starts_with(at, name, depth)
        };
        self.here().below.iter().find(is_at).copied()
    }

    /// Names here that lead to mounts.
    pub(in crate::layer) fn names_to_mounts(&self) -> Vec<CString> {
        let depth = self.depth();
        let mounts = self.here().below.iter();
        mounts.filter_map(|&mount| self.view.mounts[mount].at.get(depth).cloned()).collect()
    }

    pub(in crate::layer) fn find(&self, name: &CStr) -> LayerResult<Option<Seen>> {
        self.find_below(name, None, 0)
    }

    /// What a name stands for, of which the parts before `from` were seen already.
    pub(in crate::layer) fn find_below(
        &self,
        name: &CStr,
        mut found: Option<Found>,
        from: usize,
    ) -> LayerResult<Option<Seen>> {
        if let Some(mount) = self.mount_at(name) {
            return Ok(Some(self.seen_mount(mount)?));
        }
        for part in self.here().parts.iter().skip(from) {
            if found.as_ref().is_some_and(Found::is_decided) {
                break;
            }
            if let Some(stat) = self.stat(part.level, name)? {
                see(&mut found, part.level, kind_of(&stat));
            }
        }
        found.map_or(Ok(None), |found| self.seen(name, found))
    }

    fn seen_mount(&self, mount: usize) -> LayerResult<Seen> {
        Ok(Seen { facts: self.mount_facts(mount)?, parts: Vec::new(), is_root: true })
    }

    /// `None` for what is hidden, or went away meanwhile.
    fn seen(&self, name: &CStr, found: Found) -> LayerResult<Option<Seen>> {
        let Some(&top) = found.parts.first() else { return Ok(None) };
        if found.kind == Kind::Whiteout {
            return Ok(None);
        }
        let Some(stat) = self.stat(top, name)? else { return Ok(None) };
        if kind_of(&stat) != found.kind {
            return Ok(None);
        }
        let facts = facts(&stat, self.here().mount, top);
        Ok(Some(Seen { facts, parts: found.parts, is_root: false }))
    }

    fn stat(&self, level: usize, name: &CStr) -> LayerResult<Option<Stat>> {
        let cursor = self.cursor(level);
        match statat(cursor.fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(err) => Err(err).during("inspect").at(|| cursor.path_of(name)),
        }
    }

    fn cursor(&self, level: usize) -> &DirCursor {
        &self.cursors[self.here().mount][level]
    }

    /// Where something that was found here lies.
    pub(in crate::layer) fn directory_of(&self, seen: &Seen) -> BorrowedFd<'_> {
        if seen.is_root {
            return self.view.mounts[seen.facts.mount].levels[seen.facts.level].fd.as_fd();
        }
        self.cursors[seen.facts.mount][seen.facts.level].fd()
    }

    /// The directory in which this place is shown first.
    pub(in crate::layer) fn top(&self) -> LayerResult<BorrowedFd<'_>> {
        match self.here().parts.first() {
            Some(part) => Ok(self.cursor(part.level).fd()),
            None => Err(Fault::Changed.at("/".into())),
        }
    }

    /// A regular file here, to be read. Nobody waits for what was put in its place.
    pub(in crate::layer) fn open_file(&self, name: &CStr, seen: &Seen) -> LayerResult<File> {
        let path = || self.path_of(name);
        if seen.facts.facts.kind != FileKind::File {
            return Err(refused("read", &path(), "it is not a regular file"));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY;
        let fd = openat(self.directory_of(seen), name, flags | OFlags::CLOEXEC, Mode::empty());
        let fd = fd.during("open").at(path)?;
        let stat = fstat(&fd).during("inspect").at(path)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(File::from(fd)),
            _ => Err(Fault::Changed.at(path())),
        }
    }

    pub(in crate::layer) fn read_link(&self, name: &CStr, seen: &Seen) -> LayerResult<PathBuf> {
        let path = || self.path_of(name);
        if seen.facts.facts.kind != FileKind::Symlink {
            return Err(refused("read the link", &path(), "it is not a symbolic link"));
        }
        let target = readlinkat(self.directory_of(seen), name, Vec::new());
        let target = target.during("read the link").at(path)?;
        Ok(OsStr::from_bytes(target.as_bytes()).into())
    }

    /// For messages.
    fn path_of(&self, name: &CStr) -> PathBuf {
        match self.here().parts.first() {
            Some(part) => self.cursor(part.level).path_of(name),
            None => OsStr::from_bytes(name.to_bytes()).into(),
        }
    }

    /// Everything that is shown here.
    pub(in crate::layer) fn list(&self) -> LayerResult<BTreeMap<CString, Seen>> {
        let mut entries = BTreeMap::new();
        for (name, found) in self.look(self.here().parts.len())? {
            if let Some(seen) = self.seen(&name, found)? {
                entries.insert(name, seen);
            }
        }
        for name in self.names_to_mounts() {
            if let Some(mount) = self.mount_at(&name) {
                entries.insert(name, self.seen_mount(mount)?);
            }
        }
        Ok(entries)
    }

    /// What the first `parts` have here. To be asked once for each place that is entered.
    pub(in crate::layer) fn look(&self, parts: usize) -> LayerResult<BTreeMap<CString, Found>> {
        let here = self.here();
        let Some(cursors) = self.cursors.get(here.mount) else { return Ok(BTreeMap::new()) };
        look(cursors, here.parts.iter().take(parts).map(|part| part.level))
    }

    /// The directories that this place is made of, the top first.
    pub(in crate::layer) fn ids(&self) -> Vec<FileId> {
        self.here().parts.iter().map(|part| part.id).collect()
    }

    /// The same, held open.
    pub(super) fn levels(&self) -> LayerResult<Vec<Level>> {
        let level = |part: &Part| {
            let cursor = self.cursor(part.level);
            let fd = open_directory(cursor.fd(), c".").during("open").at(|| cursor.path())?;
            Ok(Level { path: cursor.path(), fd, id: part.id })
        };
        self.here().parts.iter().map(level).collect()
    }

    /// Goes into a directory, in each level down to the first in which it is opaque.
    pub(in crate::layer) fn enter(&mut self, name: &CStr, seen: &Seen) -> LayerResult<()> {
        let (depth, here) = (self.depth(), self.here());
        let is_below = |mount: &usize| {
            let at = &self.view.mounts[*mount].at;
            at.len() > depth + 1 && starts_with(at, name, depth)
        };
        // A mount that lies there hides others only with the directories in it.
        let below = here.below.iter().copied().filter(is_below).collect();
        if seen.is_root {
            return self.enter_mount(seen.facts.mount, below);
        }
        let mount = here.mount;
        let mut parts = Vec::new();
        for &level in &seen.parts {
            let cursor = &mut self.cursors[mount][level];
            match cursor.enter(name) {
                Ok(()) => {}
                Err(Fault::Io { source, .. }) if leads_nowhere(&source) => continue,
                Err(fault) => return Err(fault.at(cursor.path_of(name))),
            }
            let id = id_of(cursor.fd()).during("inspect").at(|| cursor.path())?;
            parts.push(Part { level, id });
            if self.view.marks.is_opaque(cursor.fd()).at(|| cursor.path())? {
                break;
            }
        }
        self.way.push(Place { mount, parts, is_root: false, below });
        Ok(())
    }

    pub(in crate::layer) fn leave(&mut self) -> LayerResult<()> {
        let Some(place) = self.way.pop() else { return Ok(()) };
        if place.is_root {
            return Ok(());
        }
        for part in place.parts {
            let cursor = &mut self.cursors[place.mount][part.level];
            cursor.leave().at(|| cursor.path())?;
        }
        Ok(())
    }
}

fn kind_of(stat: &Stat) -> Kind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Directory,
        _ if is_whiteout(stat) => Kind::Whiteout,
        _ => Kind::Other,
    }
}
