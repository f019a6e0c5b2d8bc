//! Snapshots that go elsewhere, and come from there.
//!
//! A snapshot is a description, the tree of its changes, and for each image of its processes a header and its pages.
//! Whatever comes is bytes of a stranger: all of it is checked in a stage that nobody sees, and it becomes a
//! snapshot by renames, the last of which is that of its layer.

use std::{io, path::PathBuf, sync::Arc};

use forkpoint_core::{
    driver::{Artifact, DriverError, DriverResult, SnapshotKind},
    id::SnapshotId,
    part::{
        ByteStream, EntryStream, Part, PartContent, PartFormat, TreeStream, end_tree, read_tree,
    },
    spec::Workspace,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::{
    DRIVER, blocking,
    host::{ARTIFACT_VERSION, ArtifactData, Host, failed, layer_error},
    memory::{KeptMemory, added},
    seal::{counted, piece},
};
use crate::{
    layer::{Departure, Layer, LayerError, LayerName, Stage},
    workspace::Line,
};

mod base;
mod images;

use base::ToldBase;
use images::{Images, ToldImage};

/// What a snapshot is besides its files.
fn description_format() -> PartFormat {
    PartFormat { name: "local-snapshot".to_owned(), version: 1 }
}

/// Formats of parts that go and come.
pub(super) fn formats() -> Vec<PartFormat> {
    let [header, pages] = images::formats();
    vec![description_format(), PartFormat::tree(), header, pages]
}

/// More than any description has.
const DESCRIPTION_MAX: usize = 4 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Description {
    kind: SnapshotKind,
    base: ToldBase,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    workspaces: Vec<Workspace>,
    #[serde(default, skip_serializing_if = "Line::is_empty")]
    line: Line,
    /// There are two trees, and the first is what was copied from the host when it all began.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pinned: bool,
    /// The lowest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    images: Vec<ToldImage>,
}

impl Description {
    /// Of a tree that comes alone: of what it lies over, whoever restores it must know.
    fn of_files() -> Self {
        Self {
            kind: SnapshotKind::Files,
            base: ToldBase::default(),
            workspaces: Vec::new(),
            line: Line::default(),
            pinned: false,
            images: Vec::new(),
        }
    }
}

impl Host {
    pub(super) fn export(&self, artifact: &Artifact) -> DriverResult<Vec<Part>> {
        let data = self.read_artifact(artifact)?;
        let mut chain = self.chain(Some(&data.layer))?;
        let pin = match chain.last() {
            Some(last) if chain.len() > 1 && last.name().is_pin() => chain.pop(),
            _ => None,
        };
        let images = self.memory_images(&data);
        let description = Description {
            kind: artifact.kind,
            base: self.told_base(&data),
            workspaces: data.workspaces,
            line: data.line,
            pinned: pin.is_some(),
            images: images::told(&images, artifact.snapshot)?,
        };
        let text = serde_json::to_vec(&description).map_err(failed("describe a snapshot"))?;
        let text = stream::iter([Ok(text.into())]).boxed();
        let mut parts = vec![bytes(description_format(), text)];
        if let Some(pin) = &pin {
            parts.push(tree(std::slice::from_ref(pin))?);
        }
        parts.push(tree(&chain)?);
        parts.extend(images.into_iter().flat_map(images::parts));
        Ok(parts)
    }

    /// On a tokio runtime: what comes may have to be waited for.
    pub(super) async fn import(
        self: Arc<Self>,
        snapshot: SnapshotId,
        parts: Vec<Part>,
    ) -> DriverResult<Artifact> {
        check_formats(&parts)?;
        let came = Came::sort(parts)?;
        if !came.images.is_empty() && !self.kinds().contains(&SnapshotKind::Full) {
            return Err(DriverError::KindUnavailable {
                driver: DRIVER,
                kind: SnapshotKind::Full,
                reason: "only root can bring processes back".to_owned(),
            });
        }
        let handle = Handle::current();
        blocking(move || self.take_in(snapshot, came, &handle)).await
    }

    fn take_in(&self, snapshot: SnapshotId, came: Came, handle: &Handle) -> DriverResult<Artifact> {
        let Came { description, trees, images } = came;
        let told = match description {
            Some(bytes) => read_description(snapshot, bytes, handle)?,
            None => Description::of_files(),
        };
        check_counts(&told, trees.len(), images.len())?;
        let over = told.pinned.then(|| LayerName::pin(snapshot));
        let names = over.iter().cloned().chain([LayerName::of(snapshot)]);
        let mut stages = Vec::new();
        for (name, entries) in names.zip(trees) {
            let below = over.clone().filter(|below| *below != name);
            let mut stage = self.store.stage(name, below).map_err(refusal)?;
            fill(&mut stage, snapshot, read_tree(entries), handle)?;
            stages.push(stage);
        }
        let Some(top) = stages.pop() else { return invalid("a snapshot has a part `tree/1`") };
        let staged = top.tree_path().with_file_name("memory");
        let images = Images::receive(&staged, snapshot, &told.images, images, handle)?;
        let mut undo = Undo { host: self, images: Vec::new(), layer: None, done: false };
        let memory = self.keep_images(&images, snapshot, &mut undo.images)?;
        let mut layers = Vec::new();
        for stage in stages {
            undo.layer = Some(stage.name().clone());
            layers.push(stage.commit(false).map_err(refusal)?);
        }
        layers.push(top.commit(false).map_err(refusal)?);
        undo.done = true;
        layers.reverse();
        self.artifact_of(snapshot, told, memory, &layers)
    }

    fn artifact_of(
        &self,
        snapshot: SnapshotId,
        told: Description,
        memory: Vec<KeptMemory>,
        layers: &[Layer],
    ) -> DriverResult<Artifact> {
        let data = ArtifactData {
            layer: LayerName::of(snapshot),
            base: self.find_base(&told.base).unwrap_or_default(),
            lies_on: told.base.digests(),
            workspaces: told.workspaces,
            line: told.line,
            memory: memory.clone(),
        };
        let artifact = Artifact {
            snapshot,
            kind: SnapshotKind::Files,
            version: ARTIFACT_VERSION,
            data: serde_json::to_value(data).map_err(failed("describe a snapshot"))?,
            pieces: layers.iter().map(piece).collect(),
            own_bytes: 0,
            total_bytes: 0,
            file_count: 0,
            counted: false,
            durable: false,
        };
        let sizes: Vec<_> =
            layers.iter().map(|layer| layer.record().size.unwrap_or_default()).collect();
        Ok(added(counted(artifact, layers, &sizes), &memory))
    }
}

/// Takes away what was kept already of a snapshot that did not come as a whole.
struct Undo<'a> {
    host: &'a Host,
    images: Vec<PathBuf>,
    layer: Option<LayerName>,
    done: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        for image in &self.images {
            // What cannot go now goes when the snapshot is taken back.
            let _ = self.host.store.throw_away(image);
        }
        self.host.discard_layers(&self.layer);
    }
}

/// Parts by what they are, each kind in the order in which they came.
struct Came {
    description: Option<ByteStream>,
    trees: Vec<TreeStream>,
    /// Headers and pages.
    images: Vec<(ByteStream, ByteStream)>,
}

impl Came {
    fn sort(parts: Vec<Part>) -> DriverResult<Self> {
        let (mut descriptions, mut trees) = (Vec::new(), Vec::new());
        let (mut headers, mut pages) = (Vec::new(), Vec::new());
        let [header, _] = images::formats();
        for Part { format, content } in parts {
            match content {
                PartContent::Tree(entries) if format == PartFormat::tree() => trees.push(entries),
                PartContent::Bytes(_) if format == PartFormat::tree() => {
                    return invalid("a part `tree/1` holds bytes");
                }
                PartContent::Tree(_) => {
                    return invalid(&format!("a part `{format}` holds a tree"));
                }
                PartContent::Bytes(bytes) if format == description_format() => {
                    descriptions.push(bytes);
                }
                PartContent::Bytes(bytes) if format == header => headers.push(bytes),
                PartContent::Bytes(bytes) => pages.push(bytes),
            }
        }
        if descriptions.len() > 1 || headers.len() != pages.len() {
            return invalid("its parts are not those of one snapshot");
        }
        let images = headers.into_iter().zip(pages).collect();
        Ok(Self { description: descriptions.pop(), trees, images })
    }
}

/// Before anything is read.
fn check_formats(parts: &[Part]) -> DriverResult<()> {
    for Part { format, .. } in parts {
        match formats().iter().find(|known| known.name == format.name) {
            Some(known) if format.version > known.version => {
                return invalid(&format!(
                    "a part has format `{format}`, and this release reads up to `{known}`"
                ));
            }
            Some(known) if format == known => {}
            _ => return invalid(&format!("a part has format `{format}`, which it does not know")),
        }
    }
    Ok(())
}

fn check_counts(told: &Description, trees: usize, images: usize) -> DriverResult<()> {
    let is_full = told.kind == SnapshotKind::Full;
    if trees != 1 + usize::from(told.pinned) || images != told.images.len() {
        return invalid(&format!(
            "there are {trees} trees and {images} images of processes, and its description tells of {} and {}",
            1 + usize::from(told.pinned),
            told.images.len()
        ));
    }
    match is_full == told.images.is_empty() {
        true => invalid("what its description says of processes is not true"),
        false => Ok(()),
    }
}

fn read_description(
    snapshot: SnapshotId,
    mut bytes: ByteStream,
    handle: &Handle,
) -> DriverResult<Description> {
    let mut text = Vec::new();
    while let Some(chunk) = handle.block_on(bytes.try_next()).map_err(failed("receive a part"))? {
        if text.len() + chunk.len() > DESCRIPTION_MAX {
            return invalid("its description is longer than 4 MiB");
        }
        text.extend_from_slice(&chunk);
    }
    serde_json::from_slice(&text).map_err(|err| DriverError::Damaged {
        snapshot,
        reason: format!("its description cannot be read: {err}"),
    })
}

fn fill(
    stage: &mut Stage,
    snapshot: SnapshotId,
    mut entries: EntryStream,
    handle: &Handle,
) -> DriverResult<()> {
    let unread = |err: io::Error| match err.kind() {
        io::ErrorKind::InvalidData => DriverError::Damaged { snapshot, reason: err.to_string() },
        _ => failed("receive a tree")(err),
    };
    let mut arrival = stage.arrive().map_err(layer_error("make a layer"))?;
    while let Some(entry) = handle.block_on(entries.try_next()).map_err(unread)? {
        arrival.add(entry, &mut |data| handle.block_on(data.try_next())).map_err(refusal)?;
    }
    stage.set_size(arrival.finish().map_err(refusal)?);
    Ok(())
}

fn tree(layers: &[Layer]) -> DriverResult<Part> {
    let departure = Departure::new(layers).map_err(layer_error("read the layers"))?;
    Ok(Part {
        format: PartFormat::tree(),
        content: PartContent::Tree(end_tree(departure.stream())),
    })
}

fn bytes(format: PartFormat, bytes: ByteStream) -> Part {
    Part { format, content: PartContent::Bytes(bytes) }
}

fn refusal(err: LayerError) -> DriverError {
    match err {
        LayerError::Refused { .. } | LayerError::Exists { .. } => {
            DriverError::Invalid { driver: DRIVER, reason: err.to_string() }
        }
        err => failed("import a snapshot")(err),
    }
}

fn invalid<T>(reason: &str) -> DriverResult<T> {
    Err(DriverError::Invalid { driver: DRIVER, reason: reason.to_owned() })
}
