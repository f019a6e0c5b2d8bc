//! Layers that hold a whole tree as it is: a volume, which no overlay will show.
//!
//! What did not change since an earlier layer is a link to what that one has, so a layer needs no other
//! and costs what changed. And nothing of a layer is ever linked to from outside: whoever writes to a
//! tree that was filled from a layer writes to files of his own.

use std::{
    collections::HashSet,
    ffi::CString,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, Mode, fchmod, fremovexattr, fstat, mkdirat, unlinkat},
    io::Errno,
    thread::nanosleep,
    time::{ClockId, Timespec, clock_gettime},
};

use super::{
    Layer, LayerError, LayerResult, LayerSize, Manifest, Marks,
    attributes::{Place, set_times},
    capture::{Source, Way, bring},
    cursor::{DirCursor, KEEP, names, open_directory},
    error::{At as _, During as _, Fault},
    pin::explained,
    plan::Plan,
    stage::Stage,
    store::{open_path, unique},
};

/// Which tree to keep.
#[derive(Clone, Copy, Debug)]
pub struct WholeSpec<'a> {
    /// Nothing may write to it until the capture is over.
    pub source: &'a Path,
    /// An earlier layer of the same tree, with what the tree looked like when it was the same.
    pub base: Option<(&'a Layer, &'a Manifest)>,
    /// Inodes that a process has mapped to write: a write to a page that is dirty already leaves no
    /// trace, so these count as changed next time.
    pub mapped: &'a HashSet<u64>,
}

/// A tree that was kept.
#[derive(Debug)]
pub struct Whole {
    pub manifest: Manifest,
    /// What was copied. The rest is shared with the earlier layer.
    pub copied: LayerSize,
}

impl Stage {
    /// After a failure the stage is of no use, and should be dropped.
    pub fn capture_whole(&mut self, spec: &WholeSpec) -> LayerResult<Whole> {
        let (to, links) = self.openings()?;
        let source = Source::open(spec.source)?;
        let mut tree = source.scan(Marks::Plain).map_err(explained)?;
        let plan = Plan::whole(spec.base.map(|(_, manifest)| manifest.tree()), &tree);
        let base = spec.base.map(|(layer, _)| layer.tree_path());
        // An earlier layer may go at any time; then everything is copied.
        let base =
            base.and_then(|path| Some(DirCursor::new(path.clone(), open_path(&path).ok()?, KEEP)));
        let way = Way { marks: Marks::Plain, links, to, base, sealed: false, packing: None };
        let done = bring(source, &tree, &plan, way).map_err(explained)?;
        self.add(done.copied);
        self.add(done.linked);
        tree.mark_racy(clock_gettime(ClockId::RealtimeCoarse));
        tree.mark_inodes(spec.mapped);
        Ok(Whole { manifest: Manifest::from(tree), copied: done.copied })
    }
}

impl Layer {
    /// Writes the tree of a plain layer to an empty directory, as copies or, where the file system can,
    /// as clones. The directory becomes what the root of the tree is. After a failure, what was
    /// written until then is left there.
    pub fn fill(&self, target: &Path) -> LayerResult<LayerSize> {
        self.expect_plain()?;
        let path = || target.to_owned();
        let root = open_path(target)?;
        if !names(root.as_fd()).at(path)?.is_empty() {
            return Err(LayerError::NotEmpty { path: path() });
        }
        clear(&root).at(path)?;
        let spare = Spare::make(&root).at(path)?;
        let size = self.fill_with(target, &root, &spare)?;
        spare.remove(&root).at(path)?;
        // What went last changed the times once more.
        let tree = open_path(&self.tree_path())?;
        like(&tree, &root).at(path)?;
        Ok(size)
    }

    fn fill_with(&self, target: &Path, root: &OwnedFd, spare: &Spare) -> LayerResult<LayerSize> {
        let path = || target.to_owned();
        let tree_path = self.tree_path();
        let source = Source::open(&tree_path)?;
        let mut tree = source.scan(Marks::Plain)?;
        tree.recount_links();
        let plan = Plan::whole(None, &tree);
        let links = spare.directory.try_clone().during("open").at(path)?;
        let root = root.try_clone().during("open").at(path)?;
        let to = DirCursor::new(path(), root, KEEP);
        let way = Way { marks: Marks::Plain, links, to, base: None, sealed: true, packing: None };
        Ok(bring(source, &tree, &plan, way)?.copied)
    }

    fn expect_plain(&self) -> LayerResult<()> {
        let (found, expected) = (self.record().marks, Marks::Plain);
        if found == expected {
            return Ok(());
        }
        let (name, found, expected) = (self.name().to_string(), found.as_str(), expected.as_str());
        Err(LayerError::MixedMarks { name, found, expected })
    }
}

/// What a tree looks like now, for a capture that compares with it. Nothing may write to it. Waits for
/// the clock of files, a few milliseconds, so that nothing counts as changed just because it is new.
pub fn describe_tree(path: &Path) -> LayerResult<Manifest> {
    let read = |clock| {
        let now = clock_gettime(clock);
        (now.tv_sec, now.tv_nsec)
    };
    let start = read(ClockId::Realtime);
    while read(ClockId::RealtimeCoarse) <= start {
        // A tick is a few of these; whoever waits sleeps through most of it.
        let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
    }
    let mut tree = Source::open(path)?.scan(Marks::Plain).map_err(explained)?;
    tree.mark_racy(clock_gettime(ClockId::RealtimeCoarse));
    Ok(Manifest::from(tree))
}

/// Whether what is in a tree is still what it was, but for its root. Nothing may write to it.
pub fn is_as_described(path: &Path, manifest: &Manifest) -> LayerResult<bool> {
    let tree = Source::open(path)?.scan(Marks::Plain).map_err(explained)?;
    Ok(Plan::compared(Some(manifest.tree()), &tree, true).is_empty())
}

/// A directory in the target, for names of files that have several.
struct Spare {
    name: CString,
    directory: OwnedFd,
}

impl Spare {
    fn make(root: &OwnedFd) -> Result<Self, Fault> {
        let name = unique(".forkpoint");
        mkdirat(root, &name, Mode::RWXU).during("create a directory in")?;
        let directory = open_directory(root, &name).during("open")?;
        Ok(Self { name, directory })
    }

    fn remove(&self, root: &OwnedFd) -> Result<(), Fault> {
        for (name, _) in names(self.directory.as_fd())? {
            unlinkat(&self.directory, &name, AtFlags::empty()).during("clear")?;
        }
        // Its mode is set already, and may forbid this.
        fchmod(root, Mode::RWXU).during("set the mode of")?;
        unlinkat(root, &self.name, AtFlags::REMOVEDIR).during("clear")
    }
}

/// Access lists that are there for new files would show on what we write.
fn clear(directory: &OwnedFd) -> Result<(), Fault> {
    match fremovexattr(directory, c"system.posix_acl_default") {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(err) => Err(err).during("clear attributes of"),
    }
}

fn like(from: &OwnedFd, to: &OwnedFd) -> Result<(), Fault> {
    let stat = fstat(from).during("inspect")?;
    fchmod(to, Mode::from_raw_mode(stat.st_mode)).during("set the mode of")?;
    set_times(Place::Open(to.as_fd()), &stat)
}
