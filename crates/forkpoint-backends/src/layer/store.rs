//! The directories of a store, and what is done to them.

use std::{
    ffi::{CStr, CString},
    hash::{BuildHasher as _, RandomState},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    process,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, flock, mkdirat, openat, renameat,
        syncfs, unlinkat,
    },
    io::Errno,
};

use super::{
    Layer, LayerError, LayerName, LayerRecord, LayerResult, LayerSize, Leftover, Marks, ReapStats,
    cursor::{DirCursor, KEEP, names, open_directory},
    error::{At as _, During as _, Fault},
    lookup::form_of,
    measure, record,
    seen::SeenLayers,
    stage::{PromisedLayer, Stage, to_c},
    trash::{self, Reaper, When, lock_if_dead},
};

/// Layers below one directory. Several processes may use one at the same time, and may be killed at
/// any moment.
#[derive(Clone, Debug)]
pub struct LayerStore(Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) directories: Arc<Directories>,
    reaper: Reaper,
}

#[derive(Debug)]
pub(super) struct Directories {
    root: PathBuf,
    pub(super) layers: OwnedFd,
    pub(super) staging: OwnedFd,
    trash: OwnedFd,
    pub(super) marks: Marks,
    pub(super) seen: SeenLayers,
}

/// What the dead had left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepStats {
    pub stages: u64,
    /// Entries that are being deleted now.
    pub trash: u64,
}

impl LayerStore {
    /// Opens the store below `root`, which is made if need be, and sweeps it.
    pub fn open(root: &Path) -> LayerResult<Self> {
        Self::with_marks(root, None)
    }

    /// Opens a store of whole trees, which are kept as they are and lie on nothing.
    pub fn open_plain(root: &Path) -> LayerResult<Self> {
        Self::with_marks(root, Some(Marks::Plain))
    }

    /// For one who works for another, and must not make anew what was removed meanwhile.
    pub(crate) fn open_made(root: &Path) -> LayerResult<Self> {
        Self::swept(Directories::open(root, None)?)
    }

    fn with_marks(root: &Path, marks: Option<Marks>) -> LayerResult<Self> {
        std::fs::create_dir_all(root).during("create").at(|| root.to_owned())?;
        Self::swept(Directories::open(root, marks)?)
    }

    fn swept(directories: Directories) -> LayerResult<Self> {
        let directories = Arc::new(directories);
        let store = Self(Arc::new(Shared { directories, reaper: Reaper::default() }));
        store.sweep()?;
        Ok(store)
    }

    pub(super) fn directories(&self) -> &Directories {
        &self.0.directories
    }

    /// How layers that are made here say what they hide.
    #[must_use]
    pub fn marks(&self) -> Marks {
        self.0.directories.marks
    }

    /// Begins a layer that is to lie on `over`.
    pub fn stage(&self, name: LayerName, over: Option<LayerName>) -> LayerResult<Stage> {
        if self.directory_of(&name).is_ok() {
            return Err(LayerError::Exists { name: name.to_string() });
        }
        Stage::create(&self.0, name, over)
    }

    /// Makes a layer of an upper directory that nobody writes to any more, by moving it: so it costs
    /// the same whatever is in it, and its size is not known. `upper` must be on the store's file
    /// system. It stays where it is unless this succeeds.
    pub fn commit_upper(
        &self,
        name: LayerName,
        over: Option<LayerName>,
        upper: &Path,
        sync: bool,
    ) -> LayerResult<Layer> {
        // Follows no link, and tells what is wrong with `upper` before anything is made.
        drop(open_path(upper)?);
        self.stage(name, over)?.commit_upper(upper, sync)
    }

    /// Does everything of [`LayerStore::commit_upper`] that can fail for want of room. An `upper`
    /// with up to `counted_max` entries is counted. As with [`LayerStore::throw_away_later`], what is left of it goes
    /// later.
    pub fn promise_upper(
        &self,
        name: LayerName,
        over: Option<LayerName>,
        upper: &Path,
        counted_max: usize,
    ) -> LayerResult<PromisedLayer> {
        let size = measure::measure_small(open_path(upper)?, counted_max);
        let mut stage = self.stage(name, over)?;
        stage.when = When::Later;
        stage.promised(size, false)
    }

    /// Throws away a directory of somebody else's on the store's file system: it is gone at once,
    /// and its space is freed in the background. Succeeds when there is none.
    pub fn throw_away(&self, directory: &Path) -> LayerResult<()> {
        self.throw(directory, When::Now)
    }

    /// The same for one who is not done yet, and in whose way it would be if the space were freed at once. If this
    /// process ends soon, somebody else has to empty the trash.
    pub fn throw_away_later(&self, directory: &Path) -> LayerResult<()> {
        self.throw(directory, When::Later)
    }

    fn throw(&self, directory: &Path, when: When) -> LayerResult<()> {
        let directories = &self.0.directories;
        match renameat(CWD, directory, &directories.trash, unique("gone")) {
            Ok(()) => self.0.reaper.ring(directories, when),
            Err(Errno::NOENT) => {}
            Err(err) => return Err(err).during("remove").at(|| directory.to_owned()),
        }
        Ok(())
    }

    /// Counts what a layer holds and writes it down; a layer that knows is not counted again.
    pub fn measure(&self, name: &LayerName) -> LayerResult<LayerSize> {
        if let Some(size) = self.known(name)?.record().size {
            return Ok(size);
        }
        let layer = self.layer(name)?;
        let tree = open_path(&layer.tree_path())?;
        let size = measure::measure(DirCursor::new(layer.tree_path(), tree, KEEP))?;
        self.describe(name, |record| record.size = Some(size))?;
        Ok(size)
    }

    /// Makes a layer survive a power cut. Costs what the whole file system has to write.
    pub fn sync(&self, name: &LayerName) -> LayerResult<()> {
        let layers = &self.0.directories.layers;
        // Also of what it lies on: who makes files later has no reason to write them to disk.
        self.chain(name)?;
        if self.known(name)?.record().synced {
            return Ok(());
        }
        syncfs(layers).during("write to disk").at(|| self.0.directories.layers_path())?;
        self.describe(name, |record| record.synced = true)
    }

    /// Changes what a layer says of itself; two who do it at once do not undo each other's.
    fn describe(&self, name: &LayerName, change: impl FnOnce(&mut LayerRecord)) -> LayerResult<()> {
        let path = || self.path_of(name);
        let (directory, _) = self.directory_of(name)?;
        flock(&directory, FlockOperation::LockExclusive).during("lock").at(path)?;
        let mut record = LayerRecord::read(&directory, name)?;
        change(&mut record);
        record.write(directory.as_fd(), record.synced).during("describe").at(path)
    }

    /// Takes a layer away at once, and frees its space in the background. Succeeds when there is
    /// none; refuses a name that does not carry our mark.
    pub fn discard(&self, name: &str) -> LayerResult<()> {
        let name: LayerName = name.parse()?;
        let directories = &self.0.directories;
        let path = || directories.layers_path().join(name.as_str());
        match directories.move_to_trash(&directories.layers, &to_c(&name)) {
            Ok(()) => self.0.reaper.ring(directories, When::Now),
            Err(Errno::NOENT) => {}
            Err(err) => return Err(err).during("discard").at(path),
        }
        Ok(())
    }

    /// Takes away what processes left that died while they made a layer, and goes on with deleting
    /// what they had thrown away.
    pub fn sweep(&self) -> LayerResult<SweepStats> {
        let directories = &self.0.directories;
        let staging = directories.staging().at(|| directories.staging_path())?;
        let mut stats = SweepStats::default();
        for (name, kind) in names(staging.as_fd()).at(|| directories.staging_path())? {
            if kind != FileType::Directory && kind != FileType::Unknown {
                let _ = unlinkat(&staging, &name, AtFlags::empty());
            } else if let Some(dead) = lock_if_dead(&staging, &name) {
                self.0.break_promise(&dead);
                stats.stages += u64::from(directories.move_to_trash(&staging, &name).is_ok());
            }
        }
        let trash = directories.trash().at(|| directories.trash_path())?;
        stats.trash = names(trash.as_fd()).at(|| directories.trash_path())?.len() as u64;
        if stats.trash > 0 {
            self.0.reaper.ring(directories, When::Now);
        }
        Ok(stats)
    }

    /// Empties the trash now, and waits for those who are at it.
    pub fn reap(&self) -> LayerResult<ReapStats> {
        trash::empty(&self.0.directories, FlockOperation::LockExclusive)
    }

    /// What the background could not delete the last time, for somebody to be told.
    #[must_use]
    pub fn take_leftovers(&self) -> Vec<Leftover> {
        self.0.reaper.take_leftovers()
    }
}

impl Shared {
    /// Best effort: what cannot be moved now is swept later.
    pub(super) fn throw_away(&self, from: &OwnedFd, name: &CStr, when: When) {
        if self.directories.move_to_trash(from, name).is_ok() {
            self.reaper.ring(&self.directories, when);
        }
    }

    /// A stage that describes a layer may have begun it in its place; without a tree it is none.
    fn break_promise(&self, stage: &OwnedFd) {
        let layers = &self.directories.layers;
        let Ok(Some(name)) = record::name_in(stage) else { return };
        let name = to_c(&name);
        if let Ok(layer) = open_directory(layers, &name)
            && matches!(form_of(&layer), Ok(None))
        {
            self.throw_away(layers, &name, When::Now);
        }
    }
}

impl Directories {
    fn open(root: &Path, marks: Option<Marks>) -> LayerResult<Self> {
        let base = open_path(root)?;
        let open = |name: &CStr| {
            match mkdirat(&base, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(err) => return Err(err).during("create"),
            }
            open_directory(&base, name).during("open")
        };
        let at = |name: &CStr| open(name).at(|| root.join(name.to_string_lossy().as_ref()));
        let staging = at(c"staging")?;
        let marks = marks.unwrap_or_else(|| Marks::probe(&staging));
        Ok(Self {
            root: root.to_owned(),
            layers: at(c"layers")?,
            staging,
            trash: at(c"trash")?,
            marks,
            seen: SeenLayers::default(),
        })
    }

    pub(super) fn layers_path(&self) -> PathBuf {
        self.root.join("layers")
    }

    pub(super) fn staging_path(&self) -> PathBuf {
        self.root.join("staging")
    }

    pub(super) fn trash_path(&self) -> PathBuf {
        self.root.join("trash")
    }

    /// A descriptor of its own for each reader, since a descriptor remembers how far it was read.
    pub(super) fn layers(&self) -> Result<OwnedFd, Fault> {
        open_directory(&self.layers, c".").during("open")
    }

    fn staging(&self) -> Result<OwnedFd, Fault> {
        open_directory(&self.staging, c".").during("open")
    }

    pub(super) fn trash(&self) -> Result<OwnedFd, Fault> {
        open_directory(&self.trash, c".").during("open")
    }

    fn move_to_trash(&self, from: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
        renameat(from, name, &self.trash, unique("gone"))
    }
}

/// Follows links on the way, but `path` itself must be a directory.
pub(crate) fn open_path(path: &Path) -> LayerResult<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).during("open").at(|| path.to_owned())
}

/// A name that nobody else comes up with, in this process or another.
pub(super) fn unique(what: &str) -> CString {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let random = RandomState::new().hash_one((process::id(), count));
    CString::new(format!("{what}-{}-{count:x}-{random:016x}", process::id())).unwrap_or_default()
}
