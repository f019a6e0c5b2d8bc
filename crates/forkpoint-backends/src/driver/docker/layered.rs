//! The image of a snapshot: a commit of the container, or an earlier image and what changed since.

use std::{
    fs,
    path::{Path, PathBuf},
};

use forkpoint_core::{
    driver::DriverResult,
    id::{SandboxId, SnapshotId},
};
use serde_json::Value;

use super::{
    container::{Container, Graph},
    engine::failed,
    exact,
    host::{Host, blocking, layer_error},
    image::{Marked, Sealed},
    label,
};
use crate::{
    driver::local::capture::mapped_by,
    layer::{Below, CaptureSpec, LayerName, Manifest, Marks, UpperState, describe_upper},
};

/// Up to this, what changed goes through our own hands however much there is beside it.
const SMALL: u64 = 16 << 20;

/// An image that was made, and what is known of it.
pub(super) struct Made {
    pub(super) image: String,
    /// Of all its layers.
    pub(super) size: u64,
    pub(super) own_bytes: u64,
    pub(super) files: u64,
    pub(super) state: Option<UpperState>,
    /// It is an earlier snapshot's, and is to be named after this one too.
    pub(super) shared: bool,
    /// It has all layers of this one's image.
    pub(super) over: Option<SnapshotId>,
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

    pub(super) async fn origin_of(
        &self,
        container: &Container,
        earlier: &[Sealed],
    ) -> DriverResult<usize> {
        let known = container.label(label::ORIGIN).and_then(|text| text.parse().ok());
        if let Some(known) = known.or_else(|| earlier.iter().find_map(|sealed| sealed.origin)) {
            return Ok(known);
        }
        let image = self.inspect_image(container.image()).await?;
        Ok(image.map_or(0, |image| layers_of(&image)))
    }

    pub(super) async fn make_image(
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
        let is_podman = self.engine.is_podman().await.map_err(failed("commit a container"))?;
        if !is_podman && near.graph.lowers.len() >= self.layers_max.max(origin + 2) {
            return self.flattened(sandbox, container, &near, origin, marked).await;
        }
        if let Some((last, manifest)) = self.last_sealed(earlier)? {
            let state = describe(&near, Some(&manifest)).await?;
            if !state.changed && self.has_root_of(last.snapshot, &near.upper)? {
                let (image, size) = (last.image.clone(), last.size);
                let (own_bytes, files, state) = (0, 0, Some(state));
                let over = Some(last.snapshot);
                return Ok(Made { image, size, own_bytes, files, state, shared: true, over });
            }
            if is_podman {
                // It takes no archive without all layers.
                return self.whole(container, &near, marked).await;
            }
            let below = self.inspect_image(&last.image).await?.unwrap_or_default();
            let worth = state.changed_bytes <= SMALL || state.changed_bytes * 3 < state.len_bytes;
            if worth && layers_of(&below) < self.layers_max {
                let made =
                    self.incremental(container, &near, &below, manifest, marked, state).await?;
                return Ok(Made { over: Some(last.snapshot), ..made });
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
        let shared = !exact::is_newer(&layer, before);
        if shared && self.engine.is_podman().await.map_err(failed("commit a container"))? {
            return self.measured(container, image, &told, Some(state)).await;
        }
        if shared {
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
        let made = self.add_layer(container, near, &below, None, marked, state).await?;
        Ok(Made { over: self.own_base(container)?, ..made })
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
            let spec =
                CaptureSpec { since: since.as_ref(), mapped: &mapped, ..CaptureSpec::new(&upper) };
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
            over: None,
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
        let over = self.own_base(container)?;
        Ok(Made { image, size, own_bytes, files, state, shared: false, over })
    }

    /// The snapshot of ours that a container was started from.
    fn own_base(&self, container: &Container) -> DriverResult<Option<SnapshotId>> {
        let is_ours = container.label(label::DATA) == Some(self.data()?.0.as_str());
        Ok(container.base().filter(|_| is_ours))
    }
}

pub(super) async fn describe(near: &Near, since: Option<&Manifest>) -> DriverResult<UpperState> {
    let (upper, mapped, since) = (near.upper.clone(), near.mapped.clone(), since.cloned());
    blocking(move || {
        let spec =
            CaptureSpec { since: since.as_ref(), mapped: &mapped, ..CaptureSpec::new(&upper) };
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
