//! Processes of a container, as CRIU wrote them down: files in a directory, kept as a layer.

use std::{
    fs,
    path::{Path, PathBuf},
};

use forkpoint_core::id::SnapshotId;

use super::{VolumeLayer, VolumeStore, kept, notes};
use crate::layer::{LayerName, LayerResult, LayerSize, unique_name};

/// What the engine is told to call it.
pub const CHECKPOINT: &str = "forkpoint";

const TAG: &str = "mem";

impl VolumeStore {
    /// A directory for the engine to put its [`CHECKPOINT`] into, on the disk of the layers. What
    /// somebody left there for the same snapshot goes.
    pub fn incoming(&self, snapshot: SnapshotId) -> LayerResult<PathBuf> {
        let path = self.incoming_path(snapshot);
        self.layers.throw_away(&path)?;
        fs::create_dir_all(&path).map_err(notes::io("create", &path))?;
        Ok(path)
    }

    fn incoming_path(&self, snapshot: SnapshotId) -> PathBuf {
        self.directory.join("incoming").join(snapshot.to_string())
    }

    /// Keeps what the engine wrote there, by moving it.
    pub fn keep_checkpoint(&self, snapshot: SnapshotId) -> LayerResult<VolumeLayer> {
        let path = self.incoming_path(snapshot);
        let name = LayerName::tagged(snapshot, TAG)?;
        let layer = self.layers.commit_upper(name, None, &path.join(CHECKPOINT), false)?;
        self.layers.throw_away(&path)?;
        let size = self.layers.measure(layer.name())?;
        Ok(VolumeLayer { size, ..kept(&layer, size, None) })
    }

    /// Writes a checkpoint to where the engine looks for those of a container. No two are the same:
    /// the engine takes none whose bytes it still has.
    pub fn lay_checkpoint(&self, layer: &LayerName, checkpoints: &Path) -> LayerResult<LayerSize> {
        let path = checkpoints.join(CHECKPOINT);
        fs::create_dir_all(&path).map_err(notes::io("create", &path))?;
        let size = self.layer(layer)?.fill(&path)?;
        let mark = path.join("forkpoint");
        fs::write(&mark, unique_name("copy")).map_err(notes::io("write", &mark))?;
        Ok(size)
    }

    pub(super) fn drop_incoming(&self, snapshot: SnapshotId) -> LayerResult<()> {
        self.layers.throw_away(&self.incoming_path(snapshot))
    }
}
