//! Unpacked layers of images, each once.
//!
//! `layers/<digest>/` holds `tree/`, for overlayfs as a lower directory, and `layer.json`. A layer
//! is made in `staging/` and comes by one `rename`, so nobody ever sees half of one. The maker holds
//! a lock on its stage; what a dead one left is taken away by the next.

use std::{
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, fremovexattr, fsync, open, syncfs},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{
    Limits, Progress, Unpacked,
    blob::{Expected, pour},
    digest::Digest,
    error::{ImageResult, io_error},
    read::{Image, ImageLayer},
    unpack::{Owners, unpack},
};
use crate::layer::{LayerStore, Marks, unique_name};

const FORMAT: u32 = 1;

#[derive(Clone, Debug)]
pub(crate) struct ImageStore {
    root: PathBuf,
    marks: Marks,
    owners: Owners,
    limits: Limits,
    /// On the same file system: where things go to be deleted in the background.
    trash: LayerStore,
}

/// What a layer says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerNote {
    format: u32,
    pub(crate) digest: Digest,
    marks: Marks,
    #[serde(flatten)]
    pub(crate) unpacked: Unpacked,
}

/// Held by whoever adds layers that no template names yet; alone, by whoever sweeps.
#[derive(Debug)]
pub(crate) struct Busy(#[expect(dead_code, reason = "the kernel lets go when it is closed")] File);

impl ImageStore {
    pub(crate) fn open(root: PathBuf, trash: LayerStore) -> ImageResult<Self> {
        for directory in ["layers", "staging"] {
            let path = root.join(directory);
            fs::create_dir_all(&path).map_err(io_error("create", path))?;
        }
        let owners = match rustix::process::geteuid().is_root() {
            true => Owners::Kept,
            false => Owners::Own,
        };
        Ok(Self { root, marks: trash.marks(), owners, limits: Limits::default(), trash })
    }

    pub(crate) fn has_in_it(&self, path: &Path) -> bool {
        path.starts_with(&self.root)
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }

    pub(crate) fn limits(&self) -> ImageResult<Limits> {
        self.limits.on(&self.root).map_err(io_error("inspect", self.root.clone()))
    }

    fn place(&self, digest: &Digest) -> PathBuf {
        self.root.join("layers").join(digest.file_name())
    }

    pub(crate) fn tree(&self, digest: &Digest) -> PathBuf {
        self.place(digest).join("tree")
    }

    /// The trees of an image's layers, the top first. overlayfs takes none twice; and of two that
    /// are the same, the upper one decides all that the lower one could.
    pub(crate) fn stack(&self, layers: &[Digest]) -> Vec<PathBuf> {
        let mut trees = Vec::with_capacity(layers.len());
        for tree in layers.iter().rev().map(|digest| self.tree(digest)) {
            if !trees.contains(&tree) {
                trees.push(tree);
            }
        }
        trees
    }

    /// `None` when there is no such layer. One of another kind of user is none: root and others do
    /// not share a directory.
    pub(crate) fn note(&self, digest: &Digest) -> Option<LayerNote> {
        let bytes = fs::read(self.place(digest).join("layer.json")).ok()?;
        let note: LayerNote = serde_json::from_slice(&bytes).ok()?;
        (note.format <= FORMAT && note.marks == self.marks).then_some(note)
    }

    /// Keeps [`ImageStore::sweep`] away.
    pub(crate) fn busy(&self) -> ImageResult<Busy> {
        let file = self.lock_file()?;
        flock(&file, FlockOperation::LockShared)
            .map_err(|err| io_error("lock", self.root.clone())(err.into()))?;
        Ok(Busy(file))
    }

    /// `None` while somebody is at work.
    pub(crate) fn alone(&self) -> ImageResult<Option<Busy>> {
        let file = self.lock_file()?;
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok(locked.is_ok().then_some(Busy(file)))
    }

    fn lock_file(&self) -> ImageResult<File> {
        let path = self.root.join("lock");
        let options = File::options().write(true).create(true).truncate(false).open(&path);
        options.map_err(io_error("open", path))
    }

    /// Unpacks what is not there yet. Answers with all layers, from the bottom up.
    pub(super) fn add(&self, image: Image, progress: &Progress) -> ImageResult<Vec<LayerNote>> {
        let missing = |layer: &&ImageLayer| {
            layer.diff_id.as_ref().is_none_or(|digest| self.note(digest).is_none())
        };
        let lengths = image.layers.iter().filter(missing).filter_map(|layer| layer.blob.len_bytes);
        progress.expect(lengths.sum());
        let add = |layer: &ImageLayer| self.unpack(&image, layer, progress);
        let layers = image.layers.iter().map(add).collect::<ImageResult<Vec<_>>>()?;
        // It may have been spooled, and nobody needs that on the disk.
        drop(image);
        // Once for all: a layer that is seen must be whole, also after a power cut.
        if layers.iter().any(|layer| matches!(layer, Layer::New(..))) {
            self.sync()?;
        }
        let keep = |layer| match layer {
            Layer::There(note) => Ok(note),
            Layer::New(stage, note) => self.commit(&stage, note),
        };
        let notes = layers.into_iter().map(keep).collect::<ImageResult<Vec<_>>>()?;
        self.sync_names()?;
        Ok(notes)
    }

    fn sync(&self) -> ImageResult<()> {
        let root = File::open(&self.root).map_err(io_error("open", self.root.clone()))?;
        syncfs(&root).map_err(|err| io_error("write to disk", self.root.clone())(err.into()))
    }

    fn sync_names(&self) -> ImageResult<()> {
        let path = self.root.join("layers");
        let sync = || Ok(fsync(open(&path, DIRECTORY, Mode::empty())?)?);
        sync().map_err(io_error("write to disk", path.clone()))
    }

    fn unpack(
        &self,
        image: &Image,
        layer: &ImageLayer,
        progress: &Progress,
    ) -> ImageResult<Layer<'_>> {
        progress.check()?;
        if let Some(digest) = &layer.diff_id
            && let Some(note) = self.note(digest)
        {
            return Ok(Layer::There(note));
        }
        let what = match &layer.diff_id {
            Some(digest) => format!("layer `{}`", digest.short()),
            None => "the archive".to_owned(),
        };
        let stage = Stage::create(self)?;
        let expected = Expected {
            digest: layer.blob.digest.clone(),
            len_bytes: layer.blob.len_bytes,
            diff_id: layer.diff_id.clone(),
        };
        let limits = self.limits()?;
        let tree = stage.tree()?;
        let blob = image.blobs.open(&layer.blob)?;
        let (unpacked, digest) = pour(blob, &what, &expected, limits, progress, |archive| {
            unpack(archive, &what, tree, self.marks, self.owners, limits)
        })?;
        let note = LayerNote { format: FORMAT, digest, marks: self.marks, unpacked };
        stage.describe(&note)?;
        Ok(Layer::New(stage, note))
    }

    /// Another process may have been faster, with the same bytes.
    fn commit(&self, stage: &Stage<'_>, note: LayerNote) -> ImageResult<LayerNote> {
        let write = || -> io::Result<()> {
            let to = self.place(&note.digest);
            match fs::rename(&stage.path, &to) {
                Err(_) if self.note(&note.digest).is_some() => Ok(()),
                // A sandbox may lie on it.
                Err(_) if to.exists() => {
                    Err(io::Error::other("it is there in a form that this release does not read"))
                }
                renamed => renamed,
            }
        };
        write().map_err(io_error("keep", stage.path.clone()))?;
        Ok(note)
    }

    /// Takes away what the dead left, and layers that nobody wants. Whoever sweeps is alone, and was
    /// before asking who wants what.
    pub(crate) fn sweep(
        &self,
        _alone: &Busy,
        is_wanted: impl Fn(&Digest) -> bool,
    ) -> ImageResult<()> {
        for name in names(&self.staging())? {
            let path = self.staging().join(name);
            if lock_stage(&path).is_ok() {
                self.throw_away(&path)?;
            }
        }
        for name in names(&self.root.join("layers"))? {
            if Digest::from_file_name(&name).is_some_and(|digest| !is_wanted(&digest)) {
                self.throw_away(&self.root.join("layers").join(name))?;
            }
        }
        Ok(())
    }

    fn throw_away(&self, path: &Path) -> ImageResult<()> {
        let thrown = self.trash.throw_away(path);
        thrown.map_err(|err| io_error("remove", path)(io::Error::other(err)))
    }
}

fn names(directory: &Path) -> ImageResult<Vec<String>> {
    let entries = fs::read_dir(directory).map_err(io_error("list", directory))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

fn lock_stage(path: &Path) -> rustix::io::Result<OwnedFd> {
    let directory = open(path, DIRECTORY, Mode::empty())?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    Ok(directory)
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

enum Layer<'a> {
    There(LayerNote),
    New(Stage<'a>, LayerNote),
}

/// A layer in the making. Dropping it takes it away, unless it has become one.
struct Stage<'a> {
    store: &'a ImageStore,
    path: PathBuf,
    _lock: OwnedFd,
}

impl<'a> Stage<'a> {
    /// Whoever makes one is busy, so that no sweep comes between its making and its lock.
    fn create(store: &'a ImageStore) -> ImageResult<Self> {
        let path = store.staging().join(unique_name("layer"));
        let make = || -> io::Result<OwnedFd> {
            fs::create_dir_all(path.join("tree"))?;
            Ok(lock_stage(&path)?)
        };
        let _lock = make().map_err(io_error("create", path.clone()))?;
        Ok(Self { store, path, _lock })
    }

    /// Open to all: it is what a sandbox sees as `/` when the archive does not tell.
    fn tree(&self) -> ImageResult<OwnedFd> {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.path.join("tree");
        let make = || -> io::Result<OwnedFd> {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
            let tree = open(&path, DIRECTORY, Mode::empty())?;
            // What lies above us must not put access lists on what we write.
            match fremovexattr(&tree, c"system.posix_acl_default") {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(tree),
                Err(err) => Err(err.into()),
            }
        };
        make().map_err(io_error("open", path.clone()))
    }

    fn describe(&self, note: &LayerNote) -> ImageResult<()> {
        let path = self.path.join("layer.json");
        let write = || -> io::Result<()> { Ok(serde_json::to_writer(File::create(&path)?, note)?) };
        write().map_err(io_error("write", path.clone()))
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // Gone when it was committed; what cannot be removed is swept later.
        let _ = self.store.trash.throw_away(&self.path);
    }
}
