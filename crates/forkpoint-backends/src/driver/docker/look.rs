//! Looking into snapshots and containers from outside, through the engine's own layers.
//!
//! Nothing is mounted and nothing runs. The engine's files must be in reach: on this machine, to root.

use std::path::{Path, PathBuf};

use forkpoint_core::{
    driver::{ChangeKind, DriverError, DriverResult, FileChange, FileDiff, FileState},
    path::SandboxPath,
};
use serde_json::Value;

use super::{
    DRIVER,
    container::{Container, Graph},
    engine::failed,
    host::{Host, blocking, layer_error},
    label,
    seal::Data,
};
use crate::{
    driver::view::{ViewTree, change},
    layer::{DiffSpec, LayerResult, LayerView, Marks, ViewMount, diff},
};

/// The directories of a state, the top first, and what is mounted over them.
struct Source {
    trees: Vec<PathBuf>,
    mounts: Vec<(PathBuf, PathBuf)>,
    /// How many of the lowest were there before anything was written.
    origin: usize,
}

impl Source {
    fn open(&self) -> LayerResult<LayerView> {
        let mut mounts = vec![ViewMount::new(Path::new(""), &[], &self.trees)];
        let volumes = self.mounts.iter();
        mounts.extend(volumes.map(|(at, path)| {
            let at = at.strip_prefix("/").unwrap_or(at);
            ViewMount::new(at, &[], std::slice::from_ref(path))
        }));
        LayerView::open(&mounts, Marks::Trusted)
    }
}

/// Podman makes these in the container's own layer, empty, to mount something over them.
const PLACES: [&str; 5] =
    ["/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/etc/mtab", "/run/.containerenv"];

fn is_place(change: &FileChange) -> bool {
    let is_empty = change.after.as_ref().is_some_and(|facts| facts.len_bytes == 0);
    let is_link = change.path.ends_with("mtab");
    change.kind == ChangeKind::Added
        && (is_empty || is_link)
        && PLACES.iter().any(|place| change.path == Path::new(place))
}

impl Host {
    pub(super) async fn tree(&self, of: &FileState) -> DriverResult<ViewTree> {
        let source = self.source(of).await?;
        let view = blocking(move || source.open().map_err(layer_error("look at files"))).await?;
        Ok(ViewTree::new(DRIVER, view))
    }

    pub(super) async fn diff(
        &self,
        from: &FileState,
        to: &FileState,
        under: &[SandboxPath],
    ) -> DriverResult<FileDiff> {
        let is_podman = self.engine.is_podman().await.map_err(failed("compare files"))?;
        let (from, to) = (self.source(from).await?, self.source(to).await?);
        let under: Vec<PathBuf> = under.iter().map(|path| path.as_path().to_owned()).collect();
        blocking(move || {
            let compare = || {
                let (from, to) = (from.open()?, to.open()?);
                diff(&DiffSpec { from: &from, to: &to, under: &under })
            };
            let found = compare().map_err(layer_error("compare files"))?;
            let changes = found.changes.into_iter().map(change);
            let changes = changes.filter(|change| !is_podman || !is_place(change)).collect();
            Ok(FileDiff { changes, too_deep: found.too_deep })
        })
        .await
    }

    async fn source(&self, of: &FileState) -> DriverResult<Source> {
        match of {
            FileState::Snapshot(artifact) => {
                let data = Data::read(artifact)?;
                self.expect_image(artifact.snapshot, &data).await?;
                let image = self.inspect_image(&data.image).await?.unwrap_or_default();
                let mut source = self.image_source(&image, data.origin)?;
                source.mounts = self.kept_mounts(&data)?;
                Ok(source)
            }
            FileState::Sandbox(id) => self.container_source(&self.container(*id).await?).await,
            FileState::Beginning { of, .. } => {
                let mut source = Box::pin(self.source(of)).await?;
                let above = source.trees.len().saturating_sub(source.origin);
                source.trees.drain(..above);
                source.mounts.clear();
                Ok(source)
            }
        }
    }

    fn image_source(&self, image: &Value, origin: usize) -> DriverResult<Source> {
        let graph = self.in_reach(&Graph::of(&image["GraphDriver"]))?;
        let trees = graph.upper.into_iter().chain(graph.lowers).collect();
        Ok(Source { trees, mounts: Vec::new(), origin })
    }

    async fn container_source(&self, container: &Container) -> DriverResult<Source> {
        let graph = self.in_reach(&container.graph())?;
        let known = container.label(label::ORIGIN).and_then(|text| text.parse().ok());
        let origin = known.unwrap_or(graph.lowers.len());
        let trees = graph.upper.into_iter().chain(graph.lowers).collect();
        let volumes = container.mounts().iter().filter(|mount| mount["Type"] == "volume");
        let mounts = volumes.filter_map(|mount| {
            let path = |key: &str| mount[key].as_str().map(PathBuf::from);
            Some((path("Destination")?, path("Source").filter(|path| path.is_dir())?))
        });
        Ok(Source { trees, mounts: mounts.collect(), origin })
    }

    fn kept_mounts(&self, data: &Data) -> DriverResult<Vec<(PathBuf, PathBuf)>> {
        let mut mounts = Vec::new();
        for volume in &data.volumes {
            let Some(layer) = &volume.layer else { continue };
            let layer = self.volumes()?.layer(layer).map_err(layer_error("look at a volume"))?;
            mounts.extend(volume.places.iter().map(|place| (place.into(), layer.tree_path())));
        }
        Ok(mounts)
    }

    fn in_reach(&self, graph: &Graph) -> DriverResult<Graph> {
        self.reachable(graph).ok_or(DriverError::Unsupported {
            driver: DRIVER,
            operation: "look at files of an engine whose directory is out of reach: run this as root where the engine is",
        })
    }
}
