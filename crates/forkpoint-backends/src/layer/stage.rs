//! A layer in the making, which nobody sees until it is complete.
//!
//! The maker holds a lock on the stage's directory. When it dies the kernel releases the lock, and
//! the next sweep takes the stage away.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    sync::Arc,
};

use rustix::{
    fs::{
        AtFlags, FlockOperation, Mode, flock, fremovexattr, fsync, mkdirat, renameat, statat,
        syncfs, unlinkat,
    },
    io::Errno,
};

use super::{
    Layer, LayerError, LayerName, LayerRecord, LayerResult, LayerSize, Marks,
    bundle::{PACKED, Packing},
    cursor::{DirCursor, KEEP, id_of, names, open_directory},
    error::{At as _, During as _, Fault},
    record,
    store::{Shared, unique},
    trash::When,
};

pub(super) const TREE: &CStr = c"tree";
const LINKS: &CStr = c"links";

/// Dropping it takes away all that was made.
#[derive(Debug)]
pub struct Stage {
    shared: Arc<Shared>,
    id: CString,
    /// Locked.
    directory: OwnedFd,
    name: LayerName,
    over: Option<LayerName>,
    size: LayerSize,
    left: bool,
    /// Small files are still in bundles.
    pub(super) packed: bool,
    /// When what is left of it goes.
    pub(super) when: When,
}

impl Stage {
    pub(super) fn create(
        shared: &Arc<Shared>,
        name: LayerName,
        over: Option<LayerName>,
    ) -> LayerResult<Self> {
        let path = || shared.directories.staging_path();
        let (id, directory) = shared.make_stage().at(path)?;
        let stage = Self {
            shared: Arc::clone(shared),
            id,
            directory,
            name,
            over,
            size: LayerSize::default(),
            left: false,
            packed: false,
            when: When::Now,
        };
        stage.furnish().at(path)?;
        Ok(stage)
    }

    fn furnish(&self) -> Result<(), Fault> {
        mkdirat(&self.directory, TREE, Mode::RWXU).during("create a stage in")?;
        let tree = open_directory(&self.directory, TREE).during("open")?;
        // What lies above the store must not put access lists on what we write.
        match fremovexattr(&tree, c"system.posix_acl_default") {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            Err(err) => Err(err).during("clear attributes of"),
        }
    }

    #[must_use]
    pub fn name(&self) -> &LayerName {
        &self.name
    }

    pub(super) fn path(&self) -> PathBuf {
        self.shared.directories.staging_path().join(self.id.to_string_lossy().as_ref())
    }

    /// Where the tree of the layer is made, for those who fill it themselves, in the form of an
    /// upper directory with the store's [`Marks`].
    #[must_use]
    pub fn tree_path(&self) -> PathBuf {
        self.path().join("tree")
    }

    pub(super) fn marks(&self) -> Marks {
        self.shared.directories.marks
    }

    pub(super) fn add(&mut self, size: LayerSize) {
        self.size.bytes += size.bytes;
        self.size.files += size.files;
    }

    /// Says what the tree holds, for those who filled it themselves.
    pub fn set_size(&mut self, size: LayerSize) {
        self.size = size;
    }

    /// The tree, and a directory beside it that goes when the stage is committed.
    pub(super) fn openings(&self) -> LayerResult<(DirCursor, OwnedFd)> {
        let open = || {
            match mkdirat(&self.directory, LINKS, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(err) => return Err(err.into()),
            }
            let links = open_directory(&self.directory, LINKS)?;
            Ok::<_, std::io::Error>((open_directory(&self.directory, TREE)?, links))
        };
        let (tree, links) = open().during("open").at(|| self.path())?;
        Ok((DirCursor::new(self.tree_path(), tree, KEEP), links))
    }

    /// For small files of what lies below `source`.
    pub(super) fn packing(&self, source: &std::path::Path) -> LayerResult<Packing> {
        let directory = self.directory.try_clone().during("open").at(|| self.path())?;
        Ok(Packing { directory, source: source.to_owned() })
    }

    /// Makes the layer visible. With `sync` it survives a power cut when this returns: the whole
    /// file system is written to disk, which may be much more than the layer.
    pub fn commit(mut self, sync: bool) -> LayerResult<Layer> {
        let path = self.path();
        self.remove_links().at(|| path.clone())?;
        if self.packed {
            let renamed = renameat(&self.directory, TREE, &self.directory, PACKED);
            renamed.during("name").at(|| path.clone())?;
        }
        let record = self.record(Some(self.size), sync);
        record.write(self.directory.as_fd(), false).during("describe").at(|| path.clone())?;
        if sync {
            syncfs(&self.directory).during("write to disk").at(|| path.clone())?;
        }
        let directories = &self.shared.directories;
        let to = record.name.as_str();
        match renameat(&directories.staging, &self.id, &directories.layers, to) {
            Ok(()) => self.left = true,
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                return Err(LayerError::Exists { name: to.to_owned() });
            }
            Err(err) => return Err(err).during("commit").at(|| path),
        }
        if sync {
            fsync(&directories.layers).during("write to disk").at(|| path)?;
        }
        Ok(Layer::new(directories, record, self.packed))
    }

    /// Makes a layer of a directory that is there already, by moving it. The move is the one moment
    /// at which it becomes visible: before it, the directory is where it was.
    pub(super) fn commit_upper(self, upper: &std::path::Path, sync: bool) -> LayerResult<Layer> {
        if sync {
            syncfs(&self.directory).during("write to disk").at(|| upper.to_owned())?;
        }
        self.promised(None, sync)?.keep(upper)
    }

    pub(super) fn promised(
        self,
        size: Option<LayerSize>,
        synced: bool,
    ) -> LayerResult<PromisedLayer> {
        let record = self.record(size, synced);
        let directory = self.promise(&record)?;
        Ok(PromisedLayer { stage: self, record, directory, kept: false })
    }

    /// A layer with everything but its tree, which nobody sees as a layer. The stage remembers it,
    /// so that a sweep finds it if we die.
    fn promise(&self, record: &LayerRecord) -> LayerResult<OwnedFd> {
        let name = record.name.as_str();
        let layers = &self.shared.directories.layers;
        let path = || self.shared.directories.layers_path().join(name);
        record.write(self.directory.as_fd(), record.synced).during("describe").at(path)?;
        match mkdirat(layers, name, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(LayerError::Exists { name: name.to_owned() }),
            Err(err) => return Err(err).during("create").at(path),
        }
        let layer = open_directory(layers, &to_c(&record.name)).during("open").at(path)?;
        record.write(layer.as_fd(), record.synced).during("describe").at(path)?;
        Ok(layer)
    }

    fn record(&self, size: Option<LayerSize>, synced: bool) -> LayerRecord {
        LayerRecord {
            format: record::FORMAT,
            name: self.name.clone(),
            over: self.over.clone(),
            marks: self.marks(),
            size,
            synced,
        }
    }

    fn remove_links(&self) -> Result<(), Fault> {
        let links = match open_directory(&self.directory, LINKS) {
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            result => result.during("open")?,
        };
        for (name, _) in names(links.as_fd())? {
            unlinkat(&links, &name, AtFlags::empty()).during("clear")?;
        }
        unlinkat(&self.directory, LINKS, AtFlags::REMOVEDIR).during("clear")
    }
}

/// A layer that lacks nothing but its tree. Dropping it takes it away.
#[derive(Debug)]
pub struct PromisedLayer {
    stage: Stage,
    record: LayerRecord,
    directory: OwnedFd,
    kept: bool,
}

impl PromisedLayer {
    /// Moves an upper directory into the layer: one system call, which needs no room on the disk.
    /// `upper` stays where it is unless this succeeds.
    pub fn keep(mut self, upper: &std::path::Path) -> LayerResult<Layer> {
        let path = || upper.to_owned();
        match renameat(rustix::fs::CWD, upper, &self.directory, TREE) {
            Ok(()) => self.kept = true,
            Err(Errno::XDEV) => return Err(LayerError::OtherFileSystem { path: path() }),
            Err(err) => return Err(err).during("commit").at(path),
        }
        let directories = &self.stage.shared.directories;
        if self.record.synced {
            let synced = fsync(&self.directory).and_then(|()| fsync(&directories.layers));
            synced.during("write to disk").at(path)?;
        }
        Ok(Layer::new(directories, self.record.clone(), false))
    }
}

impl Drop for PromisedLayer {
    fn drop(&mut self) {
        if !self.kept {
            let shared = &self.stage.shared;
            shared.throw_away(&shared.directories.layers, &to_c(&self.record.name), When::Now);
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.left {
            // Whoever deletes it must be able to lock it.
            let _ = flock(&self.directory, FlockOperation::Unlock);
            self.shared.throw_away(&self.shared.directories.staging, &self.id, self.when);
        }
    }
}

impl Shared {
    fn make_stage(&self) -> Result<(CString, OwnedFd), Fault> {
        let staging = &self.directories.staging;
        loop {
            let id = unique("stage");
            mkdirat(staging, &id, Mode::RWXU).during("create a stage in")?;
            // A sweep in another process may have taken it for one that somebody left.
            let Ok(directory) = open_directory(staging, &id) else { continue };
            if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok()
                && let Ok(there) = statat(staging, &id, AtFlags::SYMLINK_NOFOLLOW)
                && id_of(&directory).is_ok_and(|ours| ours == (there.st_dev, there.st_ino))
            {
                return Ok((id, directory));
            }
        }
    }
}

pub(super) fn to_c(name: &LayerName) -> CString {
    CString::new(name.as_str()).unwrap_or_default()
}
