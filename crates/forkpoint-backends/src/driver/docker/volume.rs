//! What the volumes of containers held, in layers of our own: a commit of a container leaves them out.
//!
//! A [`VolumeStore`] knows directories and nothing of engines. Each capture of a volume is a layer that
//! has the whole tree as it is and needs no other one, so it can go at any time; what did not change
//! since an earlier capture of the same volume is linked to that one's files. No volume ever
//! gets such a link: what is filled from a layer are copies, or clones where the file system can.
//!
//! What a volume looked like when it was the same as a layer is noted (`notes.rs`), after a capture and
//! also after it was filled, so that the first capture of a copy costs what the copy changed.
//!
//! Everything here blocks; call it from a thread that may.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use forkpoint_core::{
    driver::{Piece, PieceName},
    id::SnapshotId,
};

use crate::layer::{
    Layer, LayerError, LayerName, LayerResult, LayerSize, LayerStore, WholeSpec, describe_tree,
    is_as_described,
};

mod exchange;
mod inside;
mod mapped;
mod memory;
mod notes;
mod receive;
mod send;
mod swap;

pub use exchange::Exchange;
pub use inside::Inside;
pub use memory::CHECKPOINT;
use notes::{Note, Notes};
pub use receive::VolumeArchive;
pub use send::Sent;

/// How often a volume is captured again that somebody else writes to meanwhile.
const TRIES: usize = 3;

/// Layers of volumes below one directory. Several processes may use one at the same time, and may be
/// killed at any moment.
#[derive(Clone, Debug)]
pub struct VolumeStore {
    directory: PathBuf,
    layers: LayerStore,
    notes: Notes,
}

/// Which directory to keep, and under which name.
#[derive(Clone, Copy, Debug)]
pub struct VolumeCapture<'a> {
    pub snapshot: SnapshotId,
    /// Among the volumes of the snapshot, counted from 0.
    pub number: usize,
    /// Who the volume is, in words that no other volume has: of which engine, under which name.
    pub volume: &'a str,
    /// Where it is on this disk. Nothing may write to it until the capture is over.
    pub path: &'a Path,
}

/// A volume that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeLayer {
    pub name: LayerName,
    /// Of everything in it.
    pub size: LayerSize,
    /// Of what it does not share with an earlier layer.
    pub own: LayerSize,
    /// The layer that it shares the rest with.
    pub base: Option<LayerName>,
}

impl VolumeLayer {
    /// It lies over nothing: what it shares stays as long as one has it.
    #[must_use]
    pub fn piece(&self) -> Piece {
        Piece { name: piece_name(&self.name), over: None, bytes: self.own.bytes }
    }
}

#[must_use]
pub fn piece_name(layer: &LayerName) -> PieceName {
    PieceName(layer.to_string())
}

impl VolumeStore {
    /// Opens the store below `directory`, which is made if need be, and sweeps it.
    pub fn open(directory: &Path) -> LayerResult<Self> {
        let layers = LayerStore::open_plain(directory)?;
        let directory = directory.to_owned();
        Ok(Self { notes: Notes::open(&directory.join("notes"))?, directory, layers })
    }

    /// The layer for the `number`th volume of a snapshot.
    pub fn layer_name(snapshot: SnapshotId, number: usize) -> LayerResult<LayerName> {
        LayerName::tagged(snapshot, &format!("v{number}"))
    }

    pub fn layer(&self, name: &LayerName) -> LayerResult<Layer> {
        self.layers.layer(name)
    }

    /// Keeps what a volume holds. Somebody who does not stand still and writes to it meanwhile makes
    /// this fail after some tries, with [`LayerError::Changed`].
    pub fn capture(&self, spec: &VolumeCapture) -> LayerResult<VolumeLayer> {
        self.expect_settled(spec.volume)?;
        let mut tries = 1;
        loop {
            match self.capture_once(spec) {
                Err(LayerError::Changed { .. }) if tries < TRIES => tries += 1,
                result => return result,
            }
        }
    }

    fn capture_once(&self, spec: &VolumeCapture) -> LayerResult<VolumeLayer> {
        let name = Self::layer_name(spec.snapshot, spec.number)?;
        let mapped = mapped::shared_inodes();
        let base = self.base_of(spec.volume, spec.path)?;
        let mut stage = self.layers.stage(name, None)?;
        let of = base.as_ref().map(|(layer, _)| layer.name().clone());
        let base = base.as_ref().map(|(layer, note)| (layer, &note.manifest));
        let whole = stage.capture_whole(&WholeSpec { source: spec.path, base, mapped: &mapped })?;
        let layer = stage.commit(false)?;
        self.notes.write(spec.volume, layer.name(), &Note::new(spec.path, whole.manifest)?)?;
        Ok(kept(&layer, whole.copied, of))
    }

    /// The layer that the volume was last the same as, if it can be relied on.
    fn base_of(&self, volume: &str, path: &Path) -> LayerResult<Option<(Layer, Note)>> {
        for name in self.notes.newest_first(volume)? {
            let Ok(layer) = self.layers.layer(&name) else {
                self.notes.remove(volume, &name)?;
                continue;
            };
            if let Some(note) = self.notes.read(volume, &name)?
                && note.fits(path, layer.record().synced)
            {
                return Ok(Some((layer, note)));
            }
        }
        Ok(None)
    }

    /// Whether a volume is still what was kept as a layer, but for its root. Nothing may write to it.
    pub fn is_as_kept(&self, layer: &LayerName, volume: &str, path: &Path) -> LayerResult<bool> {
        self.expect_settled(volume)?;
        let Ok(kept) = self.layers.layer(layer) else { return Ok(false) };
        match self.notes.read(volume, layer)? {
            Some(note) if note.fits(path, kept.record().synced) => {
                is_as_described(path, &note.manifest)
            }
            _ => Ok(false),
        }
    }

    fn newest_of(&self, volume: &str) -> LayerResult<Option<Layer>> {
        let names = self.notes.newest_first(volume)?;
        Ok(names.iter().find_map(|name| self.layers.layer(name).ok()))
    }

    /// Makes an empty directory what a volume was. After a failure what was written so far is left
    /// there, for whoever made the directory to take away.
    pub fn fill(&self, layer: &LayerName, volume: &str, path: &Path) -> LayerResult<LayerSize> {
        let layer = self.layers.layer(layer)?;
        let size = layer.fill(path)?;
        self.note_same(&layer, volume, path)?;
        Ok(size)
    }

    fn note_same(&self, layer: &Layer, volume: &str, path: &Path) -> LayerResult<()> {
        self.notes.write(volume, layer.name(), &Note::new(path, describe_tree(path)?)?)
    }

    /// Makes a layer survive a power cut.
    pub fn sync(&self, name: &LayerName) -> LayerResult<()> {
        self.layers.sync(name)
    }

    /// Every layer that is complete.
    pub fn list(&self) -> LayerResult<Vec<LayerName>> {
        self.layers.list()
    }

    /// Takes a layer away. Succeeds when there is none; refuses a name that does not carry our mark.
    pub fn discard(&self, name: &str) -> LayerResult<()> {
        self.layers.discard(name)?;
        self.notes.remove_everywhere(&name.parse()?)
    }

    /// Takes away every layer of a snapshot. Which they were.
    pub fn unseal(&self, snapshot: SnapshotId) -> LayerResult<Vec<LayerName>> {
        self.drop_incoming(snapshot)?;
        let whole = LayerName::of(snapshot);
        let tagged = format!("{whole}-");
        let mut all = self.layers.list()?;
        all.retain(|name| *name == whole || name.as_str().starts_with(&tagged));
        all.iter().try_for_each(|name| self.discard(name.as_str()))?;
        Ok(all)
    }

    /// Forgets what a volume looked like, once it is gone.
    pub fn forget(&self, volume: &str) -> LayerResult<()> {
        self.notes.forget(volume)
    }

    /// Empties the trash now; else it is emptied in the background.
    pub fn reap(&self) -> LayerResult<()> {
        self.layers.reap().map(drop)
    }
}

fn kept(layer: &Layer, own: LayerSize, base: Option<LayerName>) -> VolumeLayer {
    let size = layer.record().size.unwrap_or_default();
    VolumeLayer { name: layer.name().clone(), size, own, base }
}

/// Inodes, on whatever device.
type Inodes = HashSet<u64>;
