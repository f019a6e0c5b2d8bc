//! A snapshot of a container that stands still.

use std::{
    fs,
    path::{Path, PathBuf},
};

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
    exact,
    host::{Host, blocking, layer_error},
    image::{Marked, Sealed},
    kept::{KeptMounts, KeptVolume},
    label,
};
use crate::{
    driver::local::capture::mapped_by,
    layer::{Below, CaptureSpec, LayerName, Manifest, Marks, UpperState, describe_upper},
};

pub(super) const VERSION: u32 = 1;

/// Up to this, what changed goes through our own hands however much there is beside it.
const SMALL: u64 = 16 << 20;

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

/// An image that was made, and what is known of it.
struct Made {
    image: String,
    /// Of all its layers.
    size: u64,
    own_bytes: u64,
    files: u64,
    state: Option<UpperState>,
    /// It is an earlier snapshot's, and is yet to be named after this one.
    shared: bool,
}

/// What the files of a container are on this disk.
pub(super) struct Near {
    pub(super) upper: PathBuf,
    graph: Graph,
    mapped: Vec<PathBuf>,
}

impl Host {
    /// The files of a container, if they are in reach and in a form that we know.
    pub(super) fn near(&self, container: &Container) -> Option<Near> {
        let graph = self.reachable(&container.graph())?;
        let upper = graph.upper.clone()?;
        let mapped = mapped_files(container.id());
        Some(Near { upper, graph, mapped })
    }

    /// Only where owners mean the same to us as to the engine: to root, without a mapping.
    pub(super) fn reachable(&self, graph: &Graph) -> Option<Graph> {
        if !self.engine.endpoint().is_near() || !rustix::process::geteuid().is_root() {
            return None;
        }
        let all = graph.upper.iter().chain(&graph.lowers);
        let there = graph.upper.is_some() && all.into_iter().all(|path| path.is_dir());
        // An engine that maps users keeps its files below a directory that is named after the mapping.
        let mapped =
            |path: &PathBuf| path.components().any(|part| is_mapping(part.as_os_str().to_str()));
        (there && !graph.upper.iter().any(mapped)).then(|| graph.clone())
    }

    pub(super) async fn seal(
        &self,
        sandbox: SandboxId,
        container: &Container,
        wanted: Wanted,
    ) -> DriverResult<Artifact> {
        let Wanted { snapshot, kind, volatile } = wanted;
        let earlier = self.sealed_of(container.id()).await?;
        let origin = self.origin_of(container, &earlier).await?;
        let marked = self.marks(sandbox, snapshot, container, &earlier, origin)?;
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
            self.make_image(sandbox, container, &earlier, origin, &marked)
        );
        let (kept, made) = match (kept, made) {
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
        if made.shared {
            // All that can change is kept: the container goes on while the engine writes a name. If that
            // fails now, whoever resumes tries again.
            let (shared, _) =
                futures::join!(self.share(&made.image, &marked), self.let_go(container));
            if let Err(err) = shared {
                self.unseal(snapshot).await?;
                return Err(err);
            }
        }
        let artifact = self.artifact(snapshot, container.clone(), made, origin, kept)?;
        Ok(match processes {
            Some(processes) => processes.added_to(artifact),
            None => artifact,
        })
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

    async fn origin_of(&self, container: &Container, earlier: &[Sealed]) -> DriverResult<usize> {
        let known = container.label(label::ORIGIN).and_then(|text| text.parse().ok());
        if let Some(known) = known.or_else(|| earlier.iter().find_map(|sealed| sealed.origin)) {
            return Ok(known);
        }
        let image = self.inspect_image(container.image()).await?;
        Ok(image.map_or(0, |image| layers_of(&image)))
    }

    async fn make_image(
        &self,
        sandbox: SandboxId,
        container: &Container,
        earlier: &[Sealed],
        origin: usize,
        marked: &Marked,
    ) -> DriverResult<Made> {
        let Some(near) = self.near(container) else {
            let image = self.commit(container, marked).await?;
            let told = self.inspect_image(&image).await?.unwrap_or_default();
            return self.measured(container, image, &told, None).await;
        };
        if near.graph.lowers.len() >= self.layers_max.max(origin + 2) {
            return self.flattened(sandbox, container, &near, origin, marked).await;
        }
        if let Some((last, manifest)) = self.last_sealed(earlier)? {
            let state = describe(&near, Some(&manifest)).await?;
            if !state.changed && self.has_root_of(last.snapshot, &near.upper)? {
                let (image, size) = (last.image.clone(), last.size);
                let (own_bytes, files, state) = (0, 0, Some(state));
                return Ok(Made { image, size, own_bytes, files, state, shared: true });
            }
            let below = self.inspect_image(&last.image).await?.unwrap_or_default();
            let worth = state.changed_bytes <= SMALL || state.changed_bytes * 3 < state.len_bytes;
            if worth && layers_of(&below) < self.layers_max {
                return self.incremental(container, &near, &below, manifest, marked, state).await;
            }
        }
        self.whole(container, &near, marked).await
    }

    /// The image that was sealed last of a container, with what its files were then.
    fn last_sealed<'a>(
        &self,
        earlier: &'a [Sealed],
    ) -> DriverResult<Option<(&'a Sealed, Manifest)>> {
        for sealed in earlier {
            if let Some(manifest) = self.manifest(sealed.snapshot)? {
                return Ok(Some((sealed, manifest)));
            }
        }
        Ok(None)
    }

    /// A commit, and what a commit loses put back.
    async fn whole(
        &self,
        container: &Container,
        near: &Near,
        marked: &Marked,
    ) -> DriverResult<Made> {
        let before = exact::moment();
        let image = self.commit(container, marked).await?;
        let told = self.inspect_image(&image).await?.unwrap_or_default();
        let layer = self.reachable(&Graph::of(&told["GraphDriver"])).and_then(|graph| graph.upper);
        let state = describe(near, None).await?;
        let Some(layer) = layer.filter(|_| state.manifest.entry_count() > 0) else {
            return self.measured(container, image, &told, Some(state)).await;
        };
        if !exact::is_newer(&layer, before) {
            // Another image has the same layer: what is put into it would show there too.
            self.remove_image(&label::tag(marked.snapshot)).await?;
            return self.stacked(container, near, marked, state).await;
        }
        let upper = near.upper.clone();
        blocking(move || {
            exact::complete(&upper, &layer)
                .map_err(|err| super::files::io_at("complete", &layer, err))
        })
        .await?;
        self.measured(container, image, &told, Some(state)).await
    }

    /// All that was written, as a layer of ours on the container's own image.
    async fn stacked(
        &self,
        container: &Container,
        near: &Near,
        marked: &Marked,
        state: UpperState,
    ) -> DriverResult<Made> {
        let below = self.inspect_image(container.image()).await?.unwrap_or_default();
        self.add_layer(container, near, &below, None, marked, state).await
    }

    async fn incremental(
        &self,
        container: &Container,
        near: &Near,
        below: &Value,
        since: Manifest,
        marked: &Marked,
        state: UpperState,
    ) -> DriverResult<Made> {
        self.add_layer(container, near, below, Some(since), marked, state).await
    }

    async fn add_layer(
        &self,
        container: &Container,
        near: &Near,
        below: &Value,
        since: Option<Manifest>,
        marked: &Marked,
        mut state: UpperState,
    ) -> DriverResult<Made> {
        let store = self.store()?.clone();
        let (upper, mapped, name) =
            (near.upper.clone(), near.mapped.clone(), LayerName::of(marked.snapshot));
        let (stage, manifest) = blocking(move || {
            let mut stage = store.stage(name, None).map_err(layer_error("copy what changed"))?;
            let spec = CaptureSpec { upper: &upper, since: since.as_ref(), mapped: &mapped };
            let manifest = stage.capture(&spec).map_err(layer_error("copy what changed"))?;
            Ok((stage, manifest))
        })
        .await?;
        state.manifest = manifest;
        let keep = layers_of(below);
        self.give(container, below, keep, stage, marked, Some(state)).await
    }

    /// Ours and what was written since become one layer on those that were there before.
    async fn flattened(
        &self,
        sandbox: SandboxId,
        container: &Container,
        near: &Near,
        origin: usize,
        marked: &Marked,
    ) -> DriverResult<Made> {
        let state = describe(near, None).await?;
        let ours = near.graph.lowers.len().saturating_sub(origin);
        let mut trees = vec![near.upper.clone()];
        trees.extend(near.graph.lowers.iter().take(ours).cloned());
        let store = self.store()?.clone();
        let name = LayerName::of(marked.snapshot);
        let count = near.graph.lowers.len();
        let stage = blocking(move || {
            let mut stage = store.stage(name, None).map_err(layer_error("flatten layers"))?;
            let below = if origin == 0 { Below::Nothing } else { Below::Something };
            stage.flatten_trees(&trees, below).map_err(layer_error("flatten layers"))?;
            Ok(stage)
        })
        .await?;
        let below = self.inspect_image(container.image()).await?.unwrap_or_default();
        let made = self.give(container, &below, origin, stage, marked, Some(state)).await?;
        self.notice(sandbox, format!("its {count} layers were flattened into {}", origin + 1));
        Ok(made)
    }

    async fn give(
        &self,
        container: &Container,
        below: &Value,
        keep: usize,
        stage: crate::layer::Stage,
        marked: &Marked,
        state: Option<UpperState>,
    ) -> DriverResult<Made> {
        let tree = stage.tree_path();
        let image = self.stack(below, keep, &tree, container.config(), marked).await?;
        let told = self.inspect_image(&image).await?.unwrap_or_default();
        let layer = self.reachable(&Graph::of(&told["GraphDriver"])).and_then(|graph| graph.upper);
        let size = blocking(move || {
            if let Some(layer) = layer {
                exact::complete(&tree, &layer)
                    .map_err(|err| super::files::io_at("complete", &layer, err))?;
            }
            let size = crate::layer::measure_tree(&tree).map_err(layer_error("count files"))?;
            drop(stage);
            Ok(size)
        })
        .await?;
        let whole = told["Size"].as_u64().unwrap_or(0);
        Ok(Made {
            image,
            size: whole,
            own_bytes: size.bytes,
            files: size.files,
            state,
            shared: false,
        })
    }

    async fn measured(
        &self,
        container: &Container,
        image: String,
        told: &Value,
        state: Option<UpperState>,
    ) -> DriverResult<Made> {
        let below = self.inspect_image(container.image()).await?;
        let below = below.and_then(|image| image["Size"].as_u64()).unwrap_or(0);
        let size = told["Size"].as_u64().unwrap_or(0);
        let files = state.as_ref().map_or(0, |state| state.manifest.entry_count() as u64);
        let own_bytes = size.saturating_sub(below);
        Ok(Made { image, size, own_bytes, files, state, shared: false })
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
        let mut pieces = vec![Piece { name, over: None, bytes: made.own_bytes }];
        let mounts = || volumes.iter().chain(&volatile);
        pieces.extend(mounts().filter_map(KeptVolume::piece));
        let in_volumes: u64 = mounts().map(|volume| volume.bytes).sum();
        let own_bytes = pieces.iter().map(|piece| piece.bytes).sum();
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

pub(super) async fn describe(near: &Near, since: Option<&Manifest>) -> DriverResult<UpperState> {
    let (upper, mapped, since) = (near.upper.clone(), near.mapped.clone(), since.cloned());
    blocking(move || {
        let spec = CaptureSpec { upper: &upper, since: since.as_ref(), mapped: &mapped };
        describe_upper(&spec, Marks::Trusted).map_err(layer_error("look at what changed"))
    })
    .await
}

pub(super) fn layers_of(image: &Value) -> usize {
    image["RootFS"]["Layers"].as_array().map_or(0, Vec::len)
}

fn is_mapping(name: Option<&str>) -> bool {
    let Some((uid, gid)) = name.and_then(|name| name.split_once('.')) else { return false };
    !uid.is_empty()
        && !gid.is_empty()
        && [uid, gid].iter().all(|id| id.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Files that processes of the container have mapped to write, from its root.
fn mapped_files(container: &str) -> Vec<PathBuf> {
    let listed = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = listed.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let inside = pids.filter(|pid| {
        fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("cgroup"))
            .is_ok_and(|groups| groups.contains(container))
    });
    inside.flat_map(|pid| mapped_by(&format!("/proc/{pid}/maps"))).collect()
}
