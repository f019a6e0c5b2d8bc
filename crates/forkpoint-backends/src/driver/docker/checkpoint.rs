//! Processes and memory of a container, by the engine's own means (CRIU).
//!
//! A container is written down while it stands still, and goes on when everything else of the snapshot
//! is there too: what its memory says of its files is true. It never ends. A copy is created as always,
//! what was written down is laid where the engine looks for it, and it starts from there.

use std::path::PathBuf;

use forkpoint_core::{
    driver::{Artifact, DriverError, DriverResult, Piece, SandboxState, SnapshotKind},
    id::{SandboxId, SnapshotId},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    DRIVER,
    container::Container,
    criu,
    endpoint::Endpoint,
    engine::{failed, query},
    host::{Host, blocking, io_error, layer_error},
    http::{HttpError, HttpResult, LONG, Request},
    volume::{CHECKPOINT, piece_name},
};
use crate::layer::LayerName;

/// What a full snapshot keeps of processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptProcesses {
    pub(super) layer: LayerName,
    pub(super) bytes: u64,
}

impl KeptProcesses {
    pub(super) fn piece(&self) -> Piece {
        Piece { name: piece_name(&self.layer), over: None, bytes: self.bytes }
    }

    /// Makes an artifact of files a full one.
    pub(super) fn added_to(&self, mut artifact: Artifact) -> Artifact {
        artifact.kind = SnapshotKind::Full;
        artifact.data["processes"] = json!(self);
        artifact.pieces.push(self.piece());
        artifact.own_bytes += self.bytes;
        artifact.total_bytes += self.bytes;
        artifact
    }
}

impl Host {
    /// Whether a snapshot of this kind can be taken, before anything happens.
    pub(super) async fn can_seal(&self, id: SandboxId, kind: SnapshotKind) -> DriverResult<()> {
        if kind == SnapshotKind::Files {
            return Ok(());
        }
        let container = self.container(id).await?;
        match self.full_refusal(&container).await? {
            Some(reason) => Err(DriverError::KindUnavailable { driver: DRIVER, kind, reason }),
            None => Ok(()),
        }
    }

    /// Why the processes of a container cannot be kept; `None` if they can, as far as can be told.
    pub(super) async fn full_refusal(&self, container: &Container) -> DriverResult<Option<String>> {
        if let Some(reason) = refusal_of(container) {
            return Ok(Some(reason));
        }
        self.engine_refusal().await
    }

    /// The same, of any container.
    pub(super) async fn engine_refusal(&self) -> DriverResult<Option<String>> {
        let info = self.info().await?;
        let facts = self.engine.facts().await.map_err(failed("ask what the engine can"))?;
        let is_podman = facts.is_podman;
        let socket = match self.engine.endpoint() {
            Endpoint::Unix(path) => Some(path.clone()),
            _ => None,
        };
        blocking(move || Ok(criu::refusal(&info, is_podman, socket.as_deref()))).await
    }

    async fn info(&self) -> DriverResult<Value> {
        self.engine.get("/info").await.map_err(failed("ask what the engine can"))
    }

    /// Writes down what runs in a container that stands still. It goes on standing still.
    pub(super) async fn keep_processes(
        &self,
        container: &Container,
        snapshot: SnapshotId,
    ) -> DriverResult<KeptProcesses> {
        let store = self.volumes()?;
        let place = store.incoming(snapshot).map_err(layer_error("keep processes"))?;
        let body = json!({ "CheckpointID": CHECKPOINT, "CheckpointDir": place, "Exit": false });
        let path = format!("/containers/{}/checkpoints", container.id());
        let ask = || {
            let request = Request::new("POST", path.clone()).json(body.clone());
            self.engine.ask(request.patience(Some(LONG)))
        };
        // CRIU gives up after ten seconds, also where nothing is wrong: it cannot have a parent stand that was frozen while its
        // child had not let go of it. It leaves everything as it was.
        let asked = match ask().await {
            Err(HttpError::Refused { status: 500.., .. }) => {
                self.move_on(container).await?;
                ask().await
            }
            asked => asked,
        };
        asked.map_err(refused)?;
        blocking(move || {
            let kept = store.keep_checkpoint(snapshot).map_err(layer_error("keep processes"))?;
            Ok(KeptProcesses { layer: kept.name, bytes: kept.size.bytes })
        })
        .await
    }

    /// Puts what was written down where the engine looks for it.
    pub(super) async fn lay_processes(&self, id: &str, layer: &LayerName) -> DriverResult<()> {
        let (store, layer, place) = (self.volumes()?, layer.clone(), self.checkpoints(id).await?);
        blocking(move || {
            let laid = store.lay_checkpoint(&layer, &place);
            laid.map(drop).map_err(layer_error("bring processes back"))
        })
        .await
    }

    /// Bollard and the like have no word for it: so it is said as it is.
    pub(super) async fn start_processes(&self, id: &str) -> HttpResult<()> {
        let path = format!("/containers/{id}/start{}", query(&[("checkpoint", CHECKPOINT)]));
        let request = Request::new("POST", path).patience(Some(LONG));
        self.engine.send(request).await.map(drop)
    }

    /// Once they run nobody needs it any more, and it is as large as their memory.
    pub(super) async fn clear_processes(&self, id: &str) -> DriverResult<()> {
        let path = self.checkpoints(id).await?.join(CHECKPOINT);
        blocking(move || match std::fs::remove_dir_all(&path) {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
                Err(io_error("remove", &path)(err))
            }
            _ => Ok(()),
        })
        .await
    }

    async fn checkpoints(&self, id: &str) -> DriverResult<PathBuf> {
        let info = self.info().await?;
        let root = PathBuf::from(info["DockerRootDir"].as_str().unwrap_or_default());
        Ok(root.join("containers").join(id).join("checkpoints"))
    }
}

fn refusal_of(container: &Container) -> Option<String> {
    if container.state() == SandboxState::Stopped {
        return Some("nothing runs in it: a snapshot of files is all that there is".to_owned());
    }
    let devices = &container.host_config()["DeviceRequests"];
    let has_devices = devices.as_array().is_some_and(|devices| !devices.is_empty());
    has_devices
        .then(|| "it uses devices of the host (`--gpus`), whose state nobody can keep".to_owned())
}

/// CRIU refuses what it cannot bring back, such as connections to others.
fn refused(err: HttpError) -> DriverError {
    match err {
        HttpError::Refused { status: 500.., message } => DriverError::KindUnavailable {
            driver: DRIVER,
            kind: SnapshotKind::Full,
            reason: format!("CRIU refuses what runs there: {message}"),
        },
        err => failed("write processes down")(err),
    }
}
