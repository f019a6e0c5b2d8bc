//! A snapshot of a container that stands still.

use std::fs;

use forkpoint_core::{
    driver::{Artifact, DriverError, DriverResult, Piece, PieceName, SnapshotKind},
    id::{SandboxId, SnapshotId},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    DRIVER,
    checkpoint::KeptProcesses,
    container::{Container, Graph},
    host::{Host, blocking, layer_error},
    image::{Marked, Sealed},
    kept::{KeptMounts, KeptVolume},
    label,
    layered::Made,
};
use crate::layer::{LayerName, Manifest};

pub(super) const VERSION: u32 = 1;

/// What an artifact says to us.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Data {
    /// Of the engine.
    pub(super) image: String,
    /// How many of its layers were there before anything was written.
    pub(super) origin: usize,
    /// All that the engine told of the container.
    pub(super) inspect: Value,
    /// Files that the engine makes for each container, where they were edited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) hosts: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) resolv: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) hostname: Option<String>,
    #[serde(default)]
    pub(super) volumes: Vec<KeptVolume>,
    /// What was in memory alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) volatile: Vec<KeptVolume>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) processes: Option<KeptProcesses>,
}

impl Data {
    pub(super) fn read(artifact: &Artifact) -> DriverResult<Self> {
        let damaged = |reason: String| DriverError::Damaged { snapshot: artifact.snapshot, reason };
        if artifact.version > VERSION {
            return Err(damaged(format!(
                "it has version {}, and this release reads up to {VERSION}",
                artifact.version
            )));
        }
        serde_json::from_value(artifact.data.clone()).map_err(|err| damaged(err.to_string()))
    }

    /// Of an image that came without anything else.
    pub(super) fn of_image(image: String, origin: usize, inspect: Container) -> Self {
        Self {
            image,
            origin,
            inspect: inspect.0,
            hosts: None,
            resolv: None,
            hostname: None,
            volumes: Vec::new(),
            volatile: Vec::new(),
            processes: None,
        }
    }

    pub(super) fn layers(&self) -> Vec<LayerName> {
        let mounts = self.volumes.iter().chain(&self.volatile);
        let volumes = mounts.filter_map(|volume| volume.layer.clone());
        volumes.chain(self.processes()).collect()
    }

    /// What a copy goes on with.
    pub(super) fn processes(&self) -> Option<LayerName> {
        self.processes.as_ref().map(|processes| processes.layer.clone())
    }

    pub(super) fn container(&self) -> Container {
        Container(self.inspect.clone())
    }
}

/// What is to be sealed, as what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) snapshot: SnapshotId,
    pub(super) kind: SnapshotKind,
    /// With what is in memory alone.
    pub(super) volatile: bool,
}

impl Host {
    pub(super) async fn seal(
        &self,
        sandbox: SandboxId,
        container: &Container,
        wanted: Wanted,
    ) -> DriverResult<Artifact> {
        let Wanted { snapshot, kind, volatile } = wanted;
        let processes = match kind {
            SnapshotKind::Files => None,
            SnapshotKind::Full => {
                self.can_seal(sandbox, kind).await?;
                Some(self.keep_processes(container, snapshot).await?)
            }
        };
        let volatile = volatile && kind == SnapshotKind::Files;
        let (kept, made) = futures::join!(
            self.keep_mounts(sandbox, container, snapshot, volatile),
            self.keep_image(sandbox, container, snapshot)
        );
        let (kept, (made, origin)) = match (kept, made) {
            (Ok(kept), Ok(made)) => (kept, made),
            (Err(err), _) | (_, Err(err)) => {
                self.unseal(snapshot).await?;
                // Somebody may have removed it since it was looked at.
                return Err(match self.inspect(container.id()).await? {
                    Some(_) => err,
                    None => DriverError::SandboxMissing { driver: DRIVER, id: sandbox },
                });
            }
        };
        if let Some(state) = &made.state {
            self.keep_manifest(snapshot, &state.manifest)?;
            self.keep_look(snapshot, container, &kept.volumes)?;
        }
        let artifact = self.artifact(snapshot, container.clone(), made, origin, kept)?;
        Ok(match processes {
            Some(processes) => processes.added_to(artifact),
            None => artifact,
        })
    }

    /// The image, and how many of its layers were there before anything was written.
    async fn keep_image(
        &self,
        sandbox: SandboxId,
        container: &Container,
        snapshot: SnapshotId,
    ) -> DriverResult<(Made, usize)> {
        let earlier = self.sealed_of(container.id()).await?;
        let origin = self.origin_of(container, &earlier).await?;
        let marked = self.marks(sandbox, snapshot, container, &earlier, origin)?;
        let made = self.make_image(sandbox, container, &earlier, origin, &marked).await?;
        if made.shared {
            self.share(&made.image, &marked).await?;
        }
        Ok((made, origin))
    }

    fn marks(
        &self,
        sandbox: SandboxId,
        snapshot: SnapshotId,
        container: &Container,
        earlier: &[Sealed],
        origin: usize,
    ) -> DriverResult<Marked> {
        let sequence = earlier.first().map_or(0, |last| last.sequence) + 1;
        let labels = vec![
            (label::DATA, self.data()?.0.clone()),
            (label::SNAPSHOT, snapshot.to_string()),
            (label::OF, sandbox.to_string()),
            (label::SOURCE, container.id().to_owned()),
            (label::SEQUENCE, sequence.to_string()),
            (label::ORIGIN, origin.to_string()),
            // Whoever starts a container from this image makes no sandbox.
            (label::SANDBOX, String::new()),
            (label::ADOPTED, String::new()),
            (label::HOSTNAME, String::new()),
        ];
        Ok(Marked { snapshot, sequence, labels })
    }

    fn artifact(
        &self,
        snapshot: SnapshotId,
        container: Container,
        made: Made,
        origin: usize,
        KeptMounts { volumes, volatile }: KeptMounts,
    ) -> DriverResult<Artifact> {
        let name = PieceName(label::piece(self.data()?, snapshot));
        let counts = self.count_image(snapshot, made.over, made.own_bytes)?;
        let mut pieces = vec![Piece { name, over: None, bytes: 0 }];
        let mounts = || volumes.iter().chain(&volatile);
        pieces.extend(counts.pieces().chain(mounts().flat_map(KeptVolume::pieces)));
        let in_volumes: u64 = mounts().map(|volume| volume.bytes).sum();
        let own_bytes = made.own_bytes + mounts().map(|volume| volume.own_bytes).sum::<u64>();
        let (hosts, resolv, hostname) = self.edited(&container);
        let known = Data::of_image(made.image, origin, container);
        let data = Data { hosts, resolv, hostname, volumes, volatile, ..known };
        let data = serde_json::to_value(data)
            .map_err(|err| DriverError::Damaged { snapshot, reason: err.to_string() })?;
        Ok(Artifact {
            snapshot,
            kind: SnapshotKind::Files,
            version: VERSION,
            data,
            pieces,
            own_bytes,
            total_bytes: (made.size + in_volumes).max(own_bytes),
            file_count: made.files,
            counted: true,
            durable: false,
        })
    }

    fn keep_manifest(&self, snapshot: SnapshotId, manifest: &Manifest) -> DriverResult<()> {
        let path = self.place("manifests")?.join(snapshot.to_string());
        manifest.save(&path).map_err(layer_error("keep what files were"))
    }

    pub(super) fn manifest(&self, snapshot: SnapshotId) -> DriverResult<Option<Manifest>> {
        let path = self.place("manifests")?.join(snapshot.to_string());
        // One that is damaged, as after a power cut, costs a longer seal.
        Ok(Manifest::load(&path).unwrap_or_default())
    }

    /// Makes what was sealed survive a power cut, where the engine's files are in reach.
    pub(super) async fn sync(&self, artifact: &Artifact) -> DriverResult<Artifact> {
        let data = Data::read(artifact)?;
        let Some(image) = self.inspect_image(&data.image).await? else {
            let reason = "its image is gone from the engine".to_owned();
            return Err(DriverError::Damaged { snapshot: artifact.snapshot, reason });
        };
        let graph = self.reachable(&Graph::of(&image["GraphDriver"]));
        let Some(layer) = graph.and_then(|graph| graph.upper) else { return Ok(artifact.clone()) };
        self.sync_layers(data.layers()).await?;
        let synced = blocking(move || {
            let file =
                fs::File::open(&layer).map_err(|err| super::files::io_at("sync", &layer, err))?;
            rustix::fs::syncfs(&file).map_err(|err| super::files::io_at("sync", &layer, err.into()))
        });
        synced.await?;
        Ok(Artifact { durable: true, ..artifact.clone() })
    }
}
