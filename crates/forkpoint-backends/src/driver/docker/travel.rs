//! Snapshots that go elsewhere, and come from there.

use forkpoint_core::{
    driver::{Artifact, DriverError, DriverResult, Piece, PieceName},
    id::SnapshotId,
    part::{Part, PartContent, PartFormat},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;

use super::{
    engine::{failed, invalid},
    host::Host,
    http::{LONG, Request},
    image::Marked,
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

pub(super) fn formats() -> Vec<PartFormat> {
    vec![container_format(), image_format()]
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
        Ok(vec![
            Part { format: container_format(), content: PartContent::Bytes(container) },
            Part { format: image_format(), content: PartContent::Bytes(image) },
        ])
    }

    pub(super) async fn import(
        &self,
        snapshot: SnapshotId,
        parts: Vec<Part>,
    ) -> DriverResult<Artifact> {
        if let Some(odd) = parts.iter().find(|part| !formats().contains(&part.format)) {
            return invalid(format!("a part in format `{}` is none of its own", odd.format));
        }
        let (mut told, mut loaded) = (None, None);
        for part in parts {
            let PartContent::Bytes(bytes) = part.content else {
                return invalid("a part is a tree where it should be bytes");
            };
            match part.format == container_format() {
                true => {
                    let bytes: bytes::BytesMut = bytes
                        .try_collect()
                        .await
                        .map_err(|err| damaged(snapshot, err.to_string()))?;
                    let artifact: Artifact = serde_json::from_slice(&bytes)
                        .map_err(|err| damaged(snapshot, err.to_string()))?;
                    told = Some(artifact);
                }
                false => loaded = Some(self.load_archive(bytes).await?),
            }
        }
        let (Some(told), Some(_)) = (told, loaded) else {
            return invalid(
                "a snapshot of it is two parts: `docker-container/1` and `docker-image/1`",
            );
        };
        self.take_over(snapshot, told).await
    }

    /// An image of our own with the same layers, so that it can go without the one that came.
    async fn take_over(&self, snapshot: SnapshotId, told: Artifact) -> DriverResult<Artifact> {
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
        let image = self.relabel(&came, &Marked { snapshot, labels }).await?;
        if !has_names(&came) {
            self.remove_image(&data.image).await?;
        }
        let own_bytes = came["Size"].as_u64().unwrap_or(0);
        data.image = image;
        let piece = PieceName(label::piece(self.data()?, snapshot));
        data.volumes.iter_mut().for_each(|volume| volume.layer = None);
        Ok(Artifact {
            snapshot,
            kind: told.kind,
            version: VERSION,
            data: serde_json::to_value(data).map_err(|err| damaged(snapshot, err.to_string()))?,
            pieces: vec![Piece { name: piece, over: None, bytes: own_bytes }],
            own_bytes,
            total_bytes: own_bytes,
            file_count: told.file_count,
            counted: true,
            durable: false,
        })
    }
}

fn has_names(image: &Value) -> bool {
    let tags = image["RepoTags"].as_array().into_iter().flatten().filter_map(Value::as_str);
    tags.filter(|tag| !tag.contains("<none>")).count() > 0
}

fn damaged(snapshot: SnapshotId, reason: String) -> DriverError {
    DriverError::Damaged { snapshot, reason }
}
