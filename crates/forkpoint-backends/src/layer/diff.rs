//! What two views differ in.
//!
//! Both are walked side by side. A directory that both are made of at the bottom is never listed:
//! only names that one of the others mentions can differ. So the cost follows what changed, however
//! much lies below. Times and extended attributes are not compared.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{CStr, CString, OsStr},
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Component, PathBuf},
};

use forkpoint_core::driver::{ChangeKind, FileKind};

use super::{
    LayerError, LayerResult,
    merged::Found,
    view::{LayerView, Seen, ViewFacts, Walker},
};

mod content;
mod rename;

pub(crate) use content::same_bytes;

/// Descriptors of ancestors that one side keeps open in all levels together.
const KEEP: usize = 256;

/// The kernel takes no longer path in one call, and a list of longer ones would have no bound.
const PATH_MAX: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub struct DiffSpec<'a> {
    pub from: &'a LayerView,
    pub to: &'a LayerView,
    /// Paths from the root, to which the comparison is confined; none for everything.
    pub under: &'a [PathBuf],
}

#[derive(Clone, Debug, Default)]
pub struct ViewDiff {
    /// In order of path.
    pub changes: Vec<ViewChange>,
    /// Directories whose path is longer than 4096 bytes: what is in them was not compared.
    pub too_deep: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewChange {
    pub kind: ChangeKind,
    /// From the root, without a slash in front. So is that of a rename's `from`.
    pub path: PathBuf,
    pub before: Option<ViewFacts>,
    pub after: Option<ViewFacts>,
}

/// Compares two views. A directory that was added or deleted is told with all that is in it.
pub fn diff(spec: &DiffSpec) -> LayerResult<ViewDiff> {
    let mut comparer = Comparer {
        from: Walker::new(spec.from, KEEP)?,
        to: Walker::new(spec.to, KEEP)?,
        under: spec
            .under
            .iter()
            .map(|path| path.components().skip_while(is_root).collect())
            .collect(),
        path: PathBuf::new(),
        found: ViewDiff::default(),
    };
    comparer.walk()?;
    let mut found = comparer.found;
    rename::join(&mut found.changes, spec);
    found.changes.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Where a directory that may not be read really lies helps nobody.
fn told(err: LayerError, path: PathBuf) -> LayerError {
    match err.is_denied() {
        true => LayerError::Unreadable { path },
        false => err,
    }
}

fn is_root(part: &Component) -> bool {
    *part == Component::RootDir
}

struct Comparer<'a> {
    from: Walker<'a>,
    to: Walker<'a>,
    under: Vec<PathBuf>,
    path: PathBuf,
    found: ViewDiff,
}

/// A directory that is being compared.
struct Comparing {
    inside: Inside,
    /// Directories in it that are still to be compared.
    pending: Vec<(CString, Option<Seen>, Option<Seen>)>,
}

/// On which sides there is a directory.
#[derive(Clone, Copy)]
struct Inside {
    from: bool,
    to: bool,
}

impl Comparer<'_> {
    fn walk(&mut self) -> LayerResult<()> {
        self.compare_roots()?;
        let mut way = vec![self.compare_here(Inside { from: true, to: true })?];
        while let Some(directory) = way.last_mut() {
            if let Some((name, before, after)) = directory.pending.pop() {
                let path = self.path.join(OsStr::from_bytes(name.to_bytes()));
                way.push(self.enter(&name, before, after).map_err(|err| told(err, path))?);
            } else if let Some(done) = way.pop() {
                self.leave(done.inside)?;
            }
        }
        Ok(())
    }

    fn compare_roots(&mut self) -> LayerResult<()> {
        let (before, after) = (self.from.root_facts()?, self.to.root_facts()?);
        if self.under.is_empty() && !before.facts.same_attributes(&after.facts) {
            self.tell(ChangeKind::Attributes, Some(before), Some(after));
        }
        Ok(())
    }

    fn enter(
        &mut self,
        name: &CStr,
        before: Option<Seen>,
        after: Option<Seen>,
    ) -> LayerResult<Comparing> {
        let (before, after) = (before.filter(Seen::is_dir), after.filter(Seen::is_dir));
        if let Some(seen) = &before {
            self.from.enter(name, seen)?;
        }
        if let Some(seen) = &after {
            self.to.enter(name, seen)?;
        }
        self.path.push(OsStr::from_bytes(name.to_bytes()));
        self.compare_here(Inside { from: before.is_some(), to: after.is_some() })
    }

    fn leave(&mut self, inside: Inside) -> LayerResult<()> {
        self.path.pop();
        if inside.from {
            self.from.leave()?;
        }
        if inside.to {
            self.to.leave()?;
        }
        Ok(())
    }

    /// Everything in a directory but what is in the directories in it.
    fn compare_here(&mut self, inside: Inside) -> LayerResult<Comparing> {
        let mut pending = Vec::new();
        if self.path.as_os_str().len() > PATH_MAX {
            self.found.too_deep += 1;
            return Ok(Comparing { inside, pending });
        }
        let mut from = Side::new(&self.from, inside.from);
        let mut to = Side::new(&self.to, inside.to);
        let ids = from.ids.iter().rev().zip(to.ids.iter().rev());
        let shared = ids.take_while(|(a, b)| a == b).count();
        let mut names = from.look(shared)?;
        names.extend(to.look(shared)?);
        let mut pairs = Vec::new();
        for name in names {
            pairs.push((from.find(&name)?, to.find(&name)?, name));
        }
        for (before, after, name) in pairs {
            if !self.is_wanted(&name) {
                continue;
            }
            self.compare(&name, before.as_ref(), after.as_ref())?;
            if before.iter().chain(&after).any(Seen::is_dir) {
                pending.push((name, before, after));
            }
        }
        Ok(Comparing { inside, pending })
    }

    /// Whether something that lies there, or below, was asked for.
    fn is_wanted(&self, name: &CStr) -> bool {
        if self.under.is_empty() {
            return true;
        }
        let path = self.path.join(OsStr::from_bytes(name.to_bytes()));
        self.under.iter().any(|under| path.starts_with(under) || under.starts_with(&path))
    }

    fn compare(
        &mut self,
        name: &CStr,
        before: Option<&Seen>,
        after: Option<&Seen>,
    ) -> LayerResult<()> {
        let kind = match (before, after) {
            (None, None) => return Ok(()),
            (Some(_), None) => ChangeKind::Deleted,
            (None, Some(_)) => ChangeKind::Added,
            (Some(a), Some(b)) if a.facts.inode == b.facts.inode => return Ok(()),
            (Some(a), Some(b)) if a.facts.facts.kind != b.facts.facts.kind => ChangeKind::Retyped,
            (Some(a), Some(b)) if !self.same_content(name, a, b)? => ChangeKind::Changed,
            (Some(a), Some(b)) if a.facts.facts.same_attributes(&b.facts.facts) => return Ok(()),
            (Some(_), Some(_)) => ChangeKind::Attributes,
        };
        self.path.push(OsStr::from_bytes(name.to_bytes()));
        self.tell(kind, before.map(|seen| seen.facts), after.map(|seen| seen.facts));
        self.path.pop();
        Ok(())
    }

    fn tell(&mut self, kind: ChangeKind, before: Option<ViewFacts>, after: Option<ViewFacts>) {
        if self.under.is_empty() || self.under.iter().any(|under| self.path.starts_with(under)) {
            self.found.changes.push(ViewChange { kind, path: self.path.clone(), before, after });
        }
    }

    fn same_content(&self, name: &CStr, before: &Seen, after: &Seen) -> LayerResult<bool> {
        let (a, b) = (&before.facts.facts, &after.facts.facts);
        let same = match a.kind {
            _ if a.len_bytes != b.len_bytes => return Ok(false),
            FileKind::File => self
                .from
                .open_file(name, before)
                .and_then(|from| content::same(from, self.to.open_file(name, after)?)),
            FileKind::Symlink => self
                .from
                .read_link(name, before)
                .and_then(|from| Ok(from == self.to.read_link(name, after)?)),
            FileKind::CharDevice | FileKind::BlockDevice => return Ok(a.device == b.device),
            FileKind::Directory | FileKind::Fifo | FileKind::Socket => return Ok(true),
        };
        match same {
            // Whoever may not read it cannot tell, and it is not the same file.
            Err(err) if is_passing(&err) => Ok(false),
            result => result,
        }
    }
}

/// A file that changes while we look at it, or that is not ours to read.
fn is_passing(err: &LayerError) -> bool {
    match err {
        LayerError::Changed { .. } => true,
        LayerError::Io { source, .. } => {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
        }
        _ => false,
    }
}

/// One of the two directories that are compared, or none.
struct Side<'a, 'v> {
    walker: Option<&'a Walker<'v>>,
    ids: Vec<(u64, u64)>,
    /// How many directories are not shared.
    own: usize,
    /// What the directories have that are not shared.
    looked: BTreeMap<CString, Found>,
}

impl<'a, 'v> Side<'a, 'v> {
    fn new(walker: &'a Walker<'v>, inside: bool) -> Self {
        let walker = inside.then_some(walker);
        let ids = walker.map(Walker::ids).unwrap_or_default();
        Self { walker, ids, own: 0, looked: BTreeMap::new() }
    }

    /// The names that may differ from those of a side with the same last `shared` directories.
    fn look(&mut self, shared: usize) -> LayerResult<BTreeSet<CString>> {
        let Some(walker) = self.walker else { return Ok(BTreeSet::new()) };
        self.own = self.ids.len() - shared;
        self.looked = walker.look(self.own)?;
        let mut names: BTreeSet<CString> = self.looked.keys().cloned().collect();
        names.extend(walker.names_to_mounts());
        Ok(names)
    }

    fn find(&mut self, name: &CStr) -> LayerResult<Option<Seen>> {
        let Some(walker) = self.walker else { return Ok(None) };
        walker.find_below(name, self.looked.remove(name), self.own)
    }
}
