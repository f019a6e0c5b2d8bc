//! Snapshots that go elsewhere, and come from there.

use forkpoint_core::{
    driver::{Artifact, DriverError, DriverResult, Piece, PieceName, SnapshotKind},
    id::SnapshotId,
    part::{ByteStream, Part, PartContent, PartFormat},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;

use super::{
    checkpoint::KeptProcesses,
    engine::{failed, invalid},
    host::Host,
    http::{LONG, Request},
    image::Marked,
    kept::KeptVolume,
    label,
    seal::{Data, VERSION},
};

/// What the container was: the artifact's own data.
fn container_format() -> PartFormat {
    PartFormat { name: "docker-container".to_owned(), version: 1 }
}

/// An archive as `docker save` writes it.
fn image_format() -> PartFormat {
    PartFormat { name: "docker-image".to_owned(), version: 1 }
}

/// An archive of a volume or of processes, each a part, in the order in which the data tells of them.
fn layer_format() -> PartFormat {
    PartFormat { name: "docker-layer".to_owned(), version: 1 }
}

pub(super) fn formats() -> Vec<PartFormat> {
    vec![container_format(), image_format(), layer_format()]
}

impl Host {
    pub(super) async fn export(&self, artifact: &Artifact) -> DriverResult<Vec<Part>> {
        let data = Data::read(artifact)?;
        self.expect_image(artifact.snapshot, &data).await?;
        let text = serde_json::to_vec(artifact).unwrap_or_default();
        let request = Request::new("GET", format!("/images/{}/get", data.image));
        let answer = self.engine.send(request.patience(Some(LONG))).await;
        let image = answer.map_err(failed("save an image"))?.body.stream();
        let container = stream::once(async move { Ok(text.into()) }).boxed();
        let mut parts = vec![
            Part { format: container_format(), content: PartContent::Bytes(container) },
            Part { format: image_format(), content: PartContent::Bytes(image) },
        ];
        for layer in data.layers() {
            let content = PartContent::Bytes(self.pack_layer(&layer).await?);
            parts.push(Part { format: layer_format(), content });
        }
        Ok(parts)
    }

    pub(super) async fn import(
        &self,
        snapshot: SnapshotId,
        parts: Vec<Part>,
    ) -> DriverResult<Artifact> {
        if let Some(odd) = parts.iter().find(|part| !formats().contains(&part.format)) {
            return invalid(format!("a part in format `{}` is none of its own", odd.format));
        }
        let (mut told, mut loaded, mut layers) = (None, None, Vec::new());
        for Part { format, content } in parts {
            let PartContent::Bytes(bytes) = content else {
                return invalid("a part is a tree where it should be bytes");
            };
            if format == container_format() {
                told = Some(read_artifact(snapshot, bytes).await?);
            } else if format == image_format() {
                loaded = Some(self.load_archive(bytes).await?);
            } else {
                layers.push(bytes);
            }
        }
        let (Some(told), Some(_)) = (told, loaded) else {
            return invalid(
                "a snapshot of it has at least two parts: `docker-container/1` and `docker-image/1`",
            );
        };
        self.take_over(snapshot, told, layers).await
    }

    /// What came of volumes and processes, under names of our own. What did not come is not there.
    async fn take_layers(
        &self,
        snapshot: SnapshotId,
        data: &mut Data,
        layers: Vec<ByteStream>,
    ) -> DriverResult<()> {
        let mut layers = layers.into_iter();
        for volume in data.volumes.iter_mut().chain(&mut data.volatile) {
            let Some(was) = volume.layer.take() else { continue };
            if let Some(archive) = layers.next() {
                let kept = self.unpack_layer(snapshot, &was, archive).await?;
                self.keep_as(volume, kept)?;
            }
        }
        let Some(was) = data.processes.take() else { return Ok(()) };
        if let Some(archive) = layers.next() {
            let kept = self.unpack_layer(snapshot, &was.layer, archive).await?;
            data.processes = Some(KeptProcesses { layer: kept.name, bytes: kept.size.bytes });
        }
        Ok(())
    }

    /// An image of our own with the same layers, so that it can go without the one that came.
    async fn take_over(
        &self,
        snapshot: SnapshotId,
        told: Artifact,
        layers: Vec<ByteStream>,
    ) -> DriverResult<Artifact> {
        let mut data = Data::read(&told)?;
        let came = self.inspect_image(&data.image).await?;
        let came =
            came.ok_or_else(|| damaged(snapshot, "the archive has another image".to_owned()))?;
        let labels = vec![
            (label::DATA, self.data()?.0.clone()),
            (label::SNAPSHOT, snapshot.to_string()),
            (label::ORIGIN, data.origin.to_string()),
            (label::SANDBOX, String::new()),
            (label::SOURCE, String::new()),
        ];
        let image = self.relabel(&came, &Marked { snapshot, sequence: 0, labels }).await?;
        if !has_names(&came) {
            self.remove_image(&data.image).await?;
        }
        data.image = image;
        self.take_layers(snapshot, &mut data, layers).await?;
        let name = PieceName(label::piece(self.data()?, snapshot));
        let bytes = came["Size"].as_u64().unwrap_or(0);
        let mut pieces = vec![Piece { name, over: None, bytes: 0 }];
        pieces.extend(self.count_image(snapshot, None, bytes)?.pieces());
        let mounts = data.volumes.iter().chain(&data.volatile);
        pieces.extend(mounts.flat_map(KeptVolume::pieces));
        pieces.extend(data.processes.as_ref().map(KeptProcesses::piece));
        let own_bytes = pieces.iter().map(|piece| piece.bytes).sum();
        Ok(Artifact {
            snapshot,
            kind: if data.processes.is_some() { SnapshotKind::Full } else { SnapshotKind::Files },
            version: VERSION,
            data: serde_json::to_value(data).map_err(|err| damaged(snapshot, err.to_string()))?,
            pieces,
            own_bytes,
            total_bytes: own_bytes,
            file_count: told.file_count,
            counted: true,
            durable: false,
        })
    }
}

async fn read_artifact(snapshot: SnapshotId, bytes: ByteStream) -> DriverResult<Artifact> {
    let bytes = bytes.try_collect::<bytes::BytesMut>().await;
    let bytes = bytes.map_err(|err| damaged(snapshot, err.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|err| damaged(snapshot, err.to_string()))
}

fn has_names(image: &Value) -> bool {
    let tags = image["RepoTags"].as_array().into_iter().flatten().filter_map(Value::as_str);
    tags.filter(|tag| !tag.contains("<none>")).count() > 0
}

fn damaged(snapshot: SnapshotId, reason: String) -> DriverError {
    DriverError::Damaged { snapshot, reason }
}
