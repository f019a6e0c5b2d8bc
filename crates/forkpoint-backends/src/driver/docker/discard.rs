//! Taking images away: only what carries our label, and our data directory's.

use forkpoint_core::{
    driver::{DriverError, DriverResult, PieceName},
    id::SnapshotId,
};
use serde_json::Value;

use super::{
    counts::COUNTS,
    engine::{failed, query},
    host::{Host, blocking, layer_error},
    http::{LONG, Request},
    image::TURNS,
    label,
    unchanged::LOOKS,
};
use crate::layer::LayerError;

/// Not what somebody committed of a container that came from an image of ours.
fn is_ours(labels: &Value, data: &label::DataId) -> bool {
    label::of(labels, label::DATA) == Some(data.0.as_str())
        && label::of(labels, label::SNAPSHOT).is_some()
        && label::of(labels, label::SANDBOX).is_none()
}

impl Host {
    pub(super) async fn discard(&self, piece: &PieceName) -> DriverResult<()> {
        if self.is_count(piece)? {
            return Ok(());
        }
        match label::parse_piece(self.data()?, &piece.0) {
            Some(snapshot) => self.remove_images(snapshot).await,
            None => self.discard_volume(piece).await,
        }
    }

    async fn discard_volume(&self, piece: &PieceName) -> DriverResult<()> {
        let (store, name) = (self.volumes()?, piece.0.clone());
        blocking(move || match store.discard(&name) {
            Err(LayerError::Foreign { name }) => Err(DriverError::Foreign { what: name }),
            result => result.map_err(layer_error("discard a volume's layer")),
        })
        .await?;
        self.drop_note(COUNTS, &piece.0)
    }

    pub(super) async fn unseal(&self, snapshot: SnapshotId) -> DriverResult<()> {
        self.remove_images(snapshot).await?;
        let store = self.volumes()?;
        let gone = blocking(move || {
            store.unseal(snapshot).map_err(layer_error("discard a volume's layer"))
        });
        gone.await?.iter().try_for_each(|layer| self.drop_note(COUNTS, layer.as_str()))
    }

    /// Every image of a snapshot of ours: usually one.
    async fn remove_images(&self, snapshot: SnapshotId) -> DriverResult<()> {
        let (data, own) = (self.data()?, label::tag(snapshot));
        let filter = label::filter(&[(label::SNAPSHOT, &snapshot.to_string())]);
        for image in self.list_images(&filter).await? {
            let is_it =
                label::of(&image["Labels"], label::SNAPSHOT) == Some(&*snapshot.to_string());
            if is_it && is_ours(&image["Labels"], data) {
                self.remove_one(&image, &own).await?;
            }
        }
        // One that was made as an earlier snapshot, and that this one has too.
        if let Some(image) = self.inspect_image(&own).await?
            && is_ours(&image["Config"]["Labels"], data)
        {
            self.remove_one(&image, &own).await?;
        }
        for kind in ["manifests", TURNS, LOOKS, COUNTS] {
            self.drop_note(kind, &snapshot.to_string())?;
        }
        Ok(())
    }

    /// Whatever somebody else named it stays theirs: then only our name goes.
    async fn remove_one(&self, image: &Value, own: &str) -> DriverResult<()> {
        let tags = image["RepoTags"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let tags = tags.filter(|tag| !tag.contains("<none>")).map(label::plain);
        let tags: Vec<&str> = tags.collect();
        let theirs = tags.iter().any(|tag| *tag != own);
        match tags.contains(&own) {
            true => self.remove_image(own).await,
            false if theirs => Ok(()),
            false => self.remove_image(image["Id"].as_str().unwrap_or_default()).await,
        }
    }

    /// By a name: then an image with another one stays. Never by force.
    pub(super) async fn remove_image(&self, name: &str) -> DriverResult<()> {
        let path = format!("/images/{name}{}", query(&[("force", "0"), ("noprune", "0")]));
        let request = Request::new("DELETE", path).patience(Some(LONG));
        match self.engine.ask(request).await {
            Err(err) if err.status() == Some(404) => Ok(()),
            Err(err) if err.status() == Some(409) => {
                // Images that were made from it need its layers: it goes with the last of them.
                if err.to_string().contains("dependent child images") {
                    return Ok(());
                }
                Err(DriverError::InUse {
                    what: format!("image `{name}` is kept by the engine: {err}"),
                })
            }
            result => result.map(drop).map_err(failed("remove an image")),
        }
    }
}
