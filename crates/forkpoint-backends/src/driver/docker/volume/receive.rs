//! Volumes that are not on this disk: what an engine sends of them, and what it takes.
//!
//! An archive tells less than a directory: no sockets, and of times and attributes what the engine puts
//! in. Nor does it tell what changed. So everything is sent and read, and what is the same as in the
//! layer before is kept once.

use std::io::BufRead;

use forkpoint_core::id::SnapshotId;

use super::{VolumeLayer, VolumeStore, kept, notes::Note};
use crate::{
    image::unpack_tree,
    layer::{LayerError, LayerName, LayerResult, describe_tree, open_path},
};

/// Whose archive it is, and under which name to keep it.
#[derive(Clone, Copy, Debug)]
pub struct VolumeArchive<'a> {
    pub snapshot: SnapshotId,
    /// Among the volumes of the snapshot, counted from 0.
    pub number: usize,
    /// Who the volume is, in words that no other volume has.
    pub volume: &'a str,
}

impl VolumeStore {
    /// Keeps what an engine answers to `GET /containers/{id}/archive` for a directory: each name in it
    /// begins with that of the directory.
    pub fn receive(&self, spec: &VolumeArchive, archive: impl BufRead) -> LayerResult<VolumeLayer> {
        let name = Self::layer_name(spec.snapshot, spec.number)?;
        self.receive_layer(name, spec.volume, archive)
    }

    /// Keeps an archive under a name of its own. What was received of the same `volume` before is kept
    /// once.
    pub fn receive_layer(
        &self,
        name: LayerName,
        volume: &str,
        archive: impl BufRead,
    ) -> LayerResult<VolumeLayer> {
        let mut stage = self.layers.stage(name, None)?;
        let root = open_path(&stage.tree_path())?;
        unpack_tree(archive, volume, root)
            .map_err(|err| LayerError::Archive { what: volume.to_owned(), reason: told(&err) })?;
        let volume = format!("archive of {volume}");
        let base = self.newest_of(&volume)?;
        let own = stage.share_with(base.as_ref())?;
        let layer = stage.commit(false)?;
        // Which layer was the last; what it looks like is of no use here.
        let note = Note::new(&layer.tree_path(), describe_tree(&layer.tree_path())?)?;
        self.notes.write(&volume, layer.name(), &note)?;
        Ok(kept(&layer, own, base.map(|base| base.name().clone())))
    }
}

fn told(err: &dyn std::error::Error) -> String {
    match err.source() {
        Some(source) => format!("{err}: {source}"),
        None => err.to_string(),
    }
}
