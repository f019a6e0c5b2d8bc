//! Whether a container is still what a snapshot holds. A doubt is a no.
//!
//! Manifests tell what is in a directory, and not of the directory itself; a look tells the rest.

use std::path::Path;

use forkpoint_core::{
    driver::DriverResult,
    id::{SandboxId, SnapshotId},
};
use serde::{Deserialize, Serialize};

use super::{
    container::Container,
    host::{Host, blocking, layer_error},
    kept::{KeptVolume, identity, volumes_of},
    layered::describe,
    volume::VolumeStore,
};
use crate::layer::root_print;

pub(super) const LOOKS: &str = "looks";

/// What a container was when it was sealed, beside what manifests tell.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Look {
    container: String,
    /// Of the directory that it writes to, and of its volumes' directories; `None` where that cannot
    /// be relied on.
    root: Option<String>,
    volumes: Vec<VolumeLook>,
    /// Files that the engine makes for each container, where they were edited.
    edits: (Option<String>, Option<String>, Option<String>),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct VolumeLook {
    name: String,
    places: Vec<String>,
    root: Option<String>,
}

impl Look {
    fn is_sure(&self) -> bool {
        self.root.is_some() && self.volumes.iter().all(|volume| volume.root.is_some())
    }
}

impl Host {
    fn look(&self, container: &Container, volumes: &[KeptVolume]) -> DriverResult<Look> {
        let print = |path: Option<&Path>| match path.map(root_print) {
            Some(print) => print.map_err(layer_error("look at what changed")),
            None => Ok(None),
        };
        let upper = self.reachable(&container.graph()).and_then(|graph| graph.upper);
        let of_volume = |volume: &KeptVolume| -> DriverResult<VolumeLook> {
            let (name, places) = (volume.name.clone(), volume.places.clone());
            Ok(VolumeLook { name, places, root: print(volume.path.as_deref())? })
        };
        Ok(Look {
            container: container.id().to_owned(),
            root: print(upper.as_deref())?,
            volumes: volumes.iter().map(of_volume).collect::<DriverResult<_>>()?,
            edits: self.edited(container),
        })
    }

    /// For whoever asks later. Nothing in the container runs.
    pub(super) fn keep_look(
        &self,
        snapshot: SnapshotId,
        container: &Container,
        volumes: &[KeptVolume],
    ) -> DriverResult<()> {
        let look = self.look(container, volumes)?;
        let text = serde_json::to_vec(&look).unwrap_or_default();
        self.write_note(LOOKS, &snapshot.to_string(), &text)
    }

    fn kept_look(&self, snapshot: SnapshotId) -> DriverResult<Option<Look>> {
        let text = self.read_note(LOOKS, &snapshot.to_string())?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// Whether the directory that a container writes to is what it was, apart from what is in it.
    pub(super) fn has_root_of(&self, snapshot: SnapshotId, upper: &Path) -> DriverResult<bool> {
        let then = self.kept_look(snapshot)?.and_then(|look| look.root);
        let now = root_print(upper).map_err(layer_error("look at what changed"))?;
        Ok(then.is_some() && then == now)
    }

    /// Nothing in it runs.
    pub(super) async fn is_unchanged(
        &self,
        id: SandboxId,
        since: SnapshotId,
    ) -> DriverResult<bool> {
        let container = self.container(id).await?;
        let last = self.sealed_of(container.id()).await?;
        if last.first().is_none_or(|last| last.snapshot != since) {
            return Ok(false);
        }
        let (Some(then), Some(manifest)) = (self.kept_look(since)?, self.manifest(since)?) else {
            return Ok(false);
        };
        let mut volumes = volumes_of(&container);
        for volume in &mut volumes {
            volume.path = self.volume_path(&volume.name).await?;
        }
        let now = self.look(&container, &volumes)?;
        let Some(near) = self.near(&container).filter(|_| now.is_sure() && now == then) else {
            return Ok(false);
        };
        if describe(&near, Some(&manifest)).await?.changed {
            return Ok(false);
        }
        self.are_as_kept(since, &volumes).await
    }

    async fn are_as_kept(&self, since: SnapshotId, volumes: &[KeptVolume]) -> DriverResult<bool> {
        let place = |(number, volume): (usize, &KeptVolume)| {
            let path = volume.path.clone()?;
            Some((number, identity(&volume.name, &path), path))
        };
        let places: Option<Vec<_>> = volumes.iter().enumerate().map(place).collect();
        let Some(places) = places else { return Ok(false) };
        let store = self.volumes()?;
        blocking(move || {
            for (number, volume, path) in &places {
                let layer = VolumeStore::layer_name(since, *number)
                    .map_err(layer_error("look at what changed"))?;
                let same = store.is_as_kept(&layer, volume, path);
                if !same.map_err(layer_error("look at what changed"))? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await
    }
}
