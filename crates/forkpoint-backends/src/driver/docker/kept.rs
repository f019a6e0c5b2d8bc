//! Volumes of a container: kept with a snapshot, given to a copy, brought back in place.

use std::{
    io::{BufReader, Seek as _},
    path::{Path, PathBuf},
};

use forkpoint_core::{
    driver::{DriverResult, Piece},
    id::{SandboxId, SnapshotId},
    part::ByteStream,
    spec::VolumeChoice,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    container::Container,
    counts::Counts,
    engine::{escape, failed},
    host::{Host, blocking, layer_error},
    label,
    shape::Shape,
    volume::{VolumeArchive, VolumeCapture, VolumeLayer, VolumeStore, piece_name},
};
use crate::{
    driver::local::{sandbox::read_file, spool::Spool},
    layer::LayerName,
};

mod back;

/// A volume as it was when it was sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptVolume {
    /// What the engine calls it.
    pub(super) name: String,
    /// Everywhere that it is mounted in the container.
    pub(super) places: Vec<String>,
    pub(super) driver: String,
    /// What was in it; `None` where that is out of reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) layer: Option<LayerName>,
    #[serde(default)]
    pub(super) bytes: u64,
    #[serde(default)]
    pub(super) own_bytes: u64,
    #[serde(default)]
    files: u64,
    #[serde(skip)]
    counts: Counts,
    /// Where it is on this disk.
    #[serde(skip)]
    pub(super) path: Option<PathBuf>,
}

impl KeptVolume {
    /// One that the engine has no name for.
    pub(super) fn at(place: String) -> Self {
        Self {
            name: String::new(),
            places: vec![place],
            driver: String::new(),
            layer: None,
            bytes: 0,
            own_bytes: 0,
            files: 0,
            counts: Counts::default(),
            path: None,
        }
    }

    /// The layer, and the bytes in it, which others may have too.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> {
        let layer = self.layer.as_ref().map(piece_name);
        let layer = layer.map(|name| Piece { name, over: None, bytes: 0 });
        layer.into_iter().chain(self.counts.pieces())
    }
}

/// What a snapshot keeps of what is mounted in a container.
#[derive(Debug, Default)]
pub(super) struct KeptMounts {
    pub(super) volumes: Vec<KeptVolume>,
    pub(super) volatile: Vec<KeptVolume>,
}

/// What is done about volumes when a container goes back: contents that are exchanged, by the volume's
/// name, and contents that are sent, by the place.
#[derive(Debug, Default)]
pub(super) struct Planned {
    pub(super) swaps: Vec<(String, LayerName)>,
    pub(super) sends: Vec<(String, LayerName)>,
}

/// Who a volume is, for the store.
pub(super) fn identity(name: &str, path: &Path) -> String {
    format!("{name} at {}", path.display())
}

impl Host {
    pub(super) fn volumes(&self) -> DriverResult<VolumeStore> {
        let path = self.place("volumes")?;
        VolumeStore::open(&path).map_err(layer_error("open the volumes' layers"))
    }

    /// Where a volume is on this disk. One with options may be a mount, which only the engine sees.
    pub(super) async fn volume_path(&self, name: &str) -> DriverResult<Option<PathBuf>> {
        let Some(told) = self.inspect_volume(name).await? else { return Ok(None) };
        let has_options = told["Options"].as_object().is_some_and(|options| !options.is_empty());
        let near = self.engine.endpoint().is_near() && rustix::process::geteuid().is_root();
        if told["Driver"] != "local" || has_options || !near {
            return Ok(None);
        }
        let path = told["Mountpoint"].as_str().map(PathBuf::from);
        Ok(path.filter(|path| path.is_dir()))
    }

    pub(super) async fn inspect_volume(&self, name: &str) -> DriverResult<Option<Value>> {
        let path = format!("/volumes/{}", escape(name));
        self.engine.find(path).await.map_err(failed("look at a volume"))
    }

    pub(super) fn keep_as(&self, volume: &mut KeptVolume, layer: VolumeLayer) -> DriverResult<()> {
        volume.counts = self.count_volume(&layer)?;
        (volume.bytes, volume.own_bytes, volume.files) =
            (layer.size.bytes, layer.own.bytes, layer.size.files);
        volume.layer = Some(layer.name);
        Ok(())
    }

    pub(super) async fn keep_mounts(
        &self,
        sandbox: SandboxId,
        container: &Container,
        snapshot: SnapshotId,
        volatile: bool,
    ) -> DriverResult<KeptMounts> {
        let volumes = self.keep_volumes(container, snapshot).await?;
        let volatile = match volatile {
            true => self.keep_volatile(sandbox, container, snapshot, volumes.len()).await?,
            false => Vec::new(),
        };
        Ok(KeptMounts { volumes, volatile })
    }

    async fn keep_volumes(
        &self,
        container: &Container,
        snapshot: SnapshotId,
    ) -> DriverResult<Vec<KeptVolume>> {
        let mut kept = volumes_of(container);
        for (number, volume) in kept.iter_mut().enumerate() {
            let Some(path) = self.volume_path(&volume.name).await? else {
                self.receive_volume(container, volume, snapshot, number).await?;
                continue;
            };
            volume.path = Some(path.clone());
            let (store, name) = (self.volumes()?, volume.name.clone());
            let layer = blocking(move || {
                let identity = identity(&name, &path);
                let spec = VolumeCapture { snapshot, number, volume: &identity, path: &path };
                store.capture(&spec).map_err(layer_error("keep a volume"))
            })
            .await?;
            self.keep_as(volume, layer)?;
        }
        Ok(kept)
    }

    pub(super) async fn sync_layers(&self, layers: Vec<LayerName>) -> DriverResult<()> {
        if layers.is_empty() {
            return Ok(());
        }
        let store = self.volumes()?;
        blocking(move || {
            layers
                .iter()
                .try_for_each(|layer| store.sync(layer))
                .map_err(layer_error("sync a volume"))
        })
        .await
    }

    /// One that is not on this disk, or that only the engine sees: as the engine sends it.
    async fn receive_volume(
        &self,
        container: &Container,
        volume: &mut KeptVolume,
        snapshot: SnapshotId,
        number: usize,
    ) -> DriverResult<()> {
        let Some(place) = volume.places.first().cloned() else { return Ok(()) };
        let Some(stream) = self.archive_of(container.id(), Path::new(&place)).await? else {
            return Ok(());
        };
        let spool = Spool::take(&self.place("spool")?, stream).await;
        let spool = spool.map_err(|err| super::files::io_at("read", Path::new(&place), err))?;
        let (store, name) = (self.volumes()?, format!("{} of {}", volume.name, volume.driver));
        let layer = blocking(move || {
            let reader = spool.into_reader();
            let reader =
                reader.map_err(|err| super::files::io_at("read", Path::new(&place), err))?;
            let spec = VolumeArchive { snapshot, number, volume: &name };
            store.receive(&spec, BufReader::new(reader)).map_err(layer_error("keep a volume"))
        })
        .await?;
        self.keep_as(volume, layer)?;
        Ok(())
    }

    /// Into a container that was made and does not run yet, for a volume that is out of reach.
    pub(super) async fn send_volume(
        &self,
        container: &str,
        place: &str,
        layer: &LayerName,
    ) -> DriverResult<()> {
        let archive = self.pack_layer(layer).await?;
        self.put_archive(container, Path::new(place), archive).await
    }

    /// A layer as an archive, from beginning to end before any of it goes.
    pub(super) async fn pack_layer(&self, layer: &LayerName) -> DriverResult<ByteStream> {
        let (store, layer, spool) = (self.volumes()?, layer.clone(), self.place("spool")?);
        let file = blocking(move || {
            let io = |err| super::files::io_at("write", &spool, err);
            let mut file = super::image::nameless(&spool).map_err(io)?;
            store.send(&layer, &mut file).map_err(layer_error("send a volume"))?;
            file.rewind().map_err(io)?;
            Ok(file)
        })
        .await?;
        Ok(read_file(file))
    }

    /// Keeps a layer that came as an archive from elsewhere, for a snapshot of our own.
    pub(super) async fn unpack_layer(
        &self,
        snapshot: SnapshotId,
        was: &LayerName,
        archive: ByteStream,
    ) -> DriverResult<VolumeLayer> {
        let tag = was.as_str().rsplit_once('-').map_or("v0", |(_, tag)| tag);
        let name = LayerName::tagged(snapshot, tag).map_err(layer_error("keep a volume"))?;
        let spool = self.place("spool")?;
        let taken = Spool::take(&spool, archive).await;
        let taken = taken.map_err(|err| super::files::io_at("read", &spool, err))?;
        let store = self.volumes()?;
        blocking(move || {
            let reader = taken.into_reader();
            let reader = reader.map_err(|err| super::files::io_at("read", &spool, err))?;
            let kept = store.receive_layer(name, &snapshot.to_string(), BufReader::new(reader));
            kept.map_err(layer_error("keep a volume"))
        })
        .await
    }

    /// Volumes for a copy, as was chosen. What comes back is to be sent once the copy is there.
    pub(super) async fn give_volumes(
        &self,
        sandbox: SandboxId,
        kept: &[KeptVolume],
        choice: VolumeChoice,
        shape: &mut Shape,
    ) -> DriverResult<Vec<(String, LayerName)>> {
        let mut sends = Vec::new();
        for (number, volume) in kept.iter().enumerate() {
            match choice {
                VolumeChoice::Share => shape.mount(&volume.places, Some(&volume.name)),
                VolumeChoice::None => shape.mount(&volume.places, None),
                VolumeChoice::Copy => {
                    let name = format!("forkpoint-{sandbox}-{number}");
                    sends.extend(self.make_volume(sandbox, &name, volume).await?);
                    shape.mount(&volume.places, Some(&name));
                    if self.is_empty(volume)? {
                        shape.keep_empty(&volume.places);
                    }
                }
            }
        }
        Ok(sends)
    }

    /// Whether it is known to have held nothing.
    fn is_empty(&self, volume: &KeptVolume) -> DriverResult<bool> {
        let Some(name) = &volume.layer else { return Ok(false) };
        let layer = self.volumes()?.layer(name).map_err(layer_error("look into a volume"))?;
        let mut entries = std::fs::read_dir(layer.tree_path());
        Ok(entries.as_mut().is_ok_and(|entries| entries.next().is_none()))
    }

    async fn make_volume(
        &self,
        sandbox: SandboxId,
        name: &str,
        volume: &KeptVolume,
    ) -> DriverResult<Option<(String, LayerName)>> {
        let labels = json!({
            label::SANDBOX: sandbox.to_string(),
            label::DATA: self.data()?.0,
            label::VOLUME: volume.places.first(),
        });
        let body = json!({ "Name": name, "Driver": "local", "Labels": labels });
        self.engine.post("/volumes/create", body).await.map_err(failed("create a volume"))?;
        let Some(layer) = volume.layer.clone() else {
            let text = format!(
                "volume `{}` (driver `{}`) was out of reach when the snapshot was taken: the copy's is empty",
                volume.name, volume.driver
            );
            self.notice(sandbox, text);
            return Ok(None);
        };
        if self.volume_path(name).await?.is_none() {
            return Ok(volume.places.first().cloned().zip(Some(layer)));
        }
        self.fill_volume(name, layer).await.map(|()| None)
    }

    async fn fill_volume(&self, name: &str, layer: LayerName) -> DriverResult<()> {
        let path = self.near_volume(name).await?;
        let (store, name) = (self.volumes()?, name.to_owned());
        blocking(move || {
            let filled = store.fill(&layer, &identity(&name, &path), &path);
            filled.map(drop).map_err(layer_error("fill a volume"))
        })
        .await
    }

    /// Removes volumes that were made for a sandbox.
    pub(super) async fn remove_volumes(&self, sandbox: SandboxId) -> DriverResult<()> {
        let data = self.data()?;
        let filter =
            label::filter(&[(label::SANDBOX, &sandbox.to_string()), (label::DATA, &data.0)]);
        let path = format!("/volumes{}", super::engine::query(&[("filters", &filter)]));
        let listed = self.engine.get(path).await.map_err(failed("list volumes"))?;
        for volume in listed["Volumes"].as_array().into_iter().flatten() {
            let Some(name) = volume["Name"].as_str() else { continue };
            if label::of(&volume["Labels"], label::SANDBOX) != Some(sandbox.to_string().as_str()) {
                continue;
            }
            // One that another container has mounted stays: whoever shares it keeps it.
            self.remove_unused(&[name.to_owned()]).await?;
        }
        Ok(())
    }
}

/// Each volume once, in order of name.
pub(super) fn volumes_of(container: &Container) -> Vec<KeptVolume> {
    let mut kept: Vec<KeptVolume> = Vec::new();
    for mount in container.mounts().iter().filter(|mount| mount["Type"] == "volume") {
        let text = |key: &str| mount[key].as_str().unwrap_or_default().to_owned();
        match kept.iter_mut().find(|volume| volume.name == text("Name")) {
            Some(volume) => volume.places.push(text("Destination")),
            None => kept.push(KeptVolume {
                name: text("Name"),
                driver: text("Driver"),
                ..KeptVolume::at(text("Destination"))
            }),
        }
    }
    kept.sort_by(|a, b| a.name.cmp(&b.name));
    kept
}
