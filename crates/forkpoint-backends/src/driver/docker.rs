//! Containers of a Docker engine, or of one that speaks as Docker does.
//!
//! Any container is a sandbox: one that we made carries our label, and any other is adopted. A snapshot
//! is an image of ours, all that `inspect` told, and layers of the container's volumes; a copy is made of
//! these. Names and labels on the engine say what is ours and where a rollback stands (`label.rs`,
//! `container.rs`), so that every process of ours finds the same.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use forkpoint_core::{
    Timestamp,
    driver::{
        Adopted, Artifact, Capabilities, Claimed, Driver, DriverResult, EventStream, FileDiff,
        FileState, FileTree, Finding, NativeState, PieceName, Sandbox, SandboxStatus, SandboxUsage,
        SnapshotKind,
    },
    id::{SandboxId, SnapshotId},
    part::Part,
    path::SandboxPath,
    spec::SandboxSpec,
};

mod archive;
mod checkpoint;
mod claim;
mod container;
mod counts;
mod criu;
mod discard;
mod endpoint;
mod engine;
mod etc;
mod events;
mod exact;
mod examine;
mod exec;
mod files;
mod findings;
mod freeze;
mod host;
mod http;
mod image;
mod kept;
mod kill;
mod label;
mod layered;
mod life;
mod look;
mod make;
mod rollback;
mod sandbox;
mod seal;
mod shape;
mod still;
mod tarball;
mod travel;
mod unchanged;
mod volatile;
pub mod volume;

pub use endpoint::{Endpoint, EndpointError, TlsFiles};
use host::Host;
use sandbox::DockerSandbox;

const DRIVER: &str = "docker";

const LAYERS_MAX: usize = 100;

/// Where the engine is, and where we keep what it cannot.
#[derive(Clone, Debug)]
pub struct DockerConfig {
    pub endpoint: Endpoint,
    /// Made at the first use.
    pub dir: PathBuf,
    /// How many layers an image may have before ours become one. An engine mounts about 125.
    pub layers_max: usize,
}

impl DockerConfig {
    pub fn new(endpoint: Endpoint, dir: impl Into<PathBuf>) -> Self {
        Self { endpoint, dir: dir.into(), layers_max: LAYERS_MAX }
    }
}

/// What the engine can do for the driver, one thing each.
pub async fn examine(config: &DockerConfig) -> Vec<super::local::Check> {
    examine::examine(config).await
}

/// What the engine's containers are called; nothing where it does not answer.
pub async fn container_names(config: &DockerConfig) -> Vec<String> {
    let listed = Host::new(config.clone()).list_containers(None).await.unwrap_or_default();
    let names = listed.iter().map(container::name_of).filter(|name| container::is_a_name(name));
    names.map(str::to_owned).collect()
}

#[derive(Clone, Debug)]
pub struct DockerDriver {
    host: Arc<Host>,
}

impl DockerDriver {
    /// Does not talk to the engine: the first call does. Its methods must be called on a tokio runtime.
    pub fn open(config: DockerConfig) -> DriverResult<Self> {
        Ok(Self { host: Arc::new(Host::new(config)) })
    }

    fn handle(&self, id: SandboxId) -> Arc<dyn Sandbox> {
        Arc::new(DockerSandbox { host: Arc::clone(&self.host), id, seen: None })
    }
}

#[async_trait]
impl Driver for DockerDriver {
    fn name(&self) -> &'static str {
        DRIVER
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // Whether processes can be kept depends on the engine, which is asked by `can_seal`.
            kinds: vec![SnapshotKind::Files, SnapshotKind::Full],
            rollback: true,
            adopt: true,
            stop: true,
            pause: true,
            attachments: true,
            exports: travel::formats(),
            imports: travel::formats(),
        }
    }

    fn keeps_volatile(&self) -> bool {
        true
    }

    async fn can_seal(&self, id: SandboxId, kind: SnapshotKind) -> DriverResult<()> {
        self.host.can_seal(id, kind).await
    }

    fn notices(&self, about: SandboxId) -> Vec<String> {
        self.host.take_notices(about)
    }

    async fn complete(&self, spec: &SandboxSpec, _now: Timestamp) -> DriverResult<SandboxSpec> {
        self.host.complete(spec).await
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> DriverResult<Arc<dyn Sandbox>> {
        self.host.create(id, spec).await?;
        Ok(self.handle(id))
    }

    async fn restore(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        from: &Artifact,
    ) -> DriverResult<Arc<dyn Sandbox>> {
        self.host.restore(id, spec, from).await?;
        Ok(self.handle(id))
    }

    async fn rollback(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        to: &Artifact,
    ) -> DriverResult<Arc<dyn Sandbox>> {
        self.host.rollback(id, spec, to).await?;
        Ok(self.handle(id))
    }

    async fn adopt(&self, native_name: &str) -> DriverResult<Adopted> {
        self.host.adopt(native_name).await
    }

    async fn attach(&self, id: SandboxId) -> DriverResult<Arc<dyn Sandbox>> {
        let seen = Some(self.host.container(id).await?.id().to_owned());
        Ok(Arc::new(DockerSandbox { host: Arc::clone(&self.host), id, seen }))
    }

    async fn status(&self, id: SandboxId) -> DriverResult<Option<SandboxStatus>> {
        self.host.status(id).await
    }

    async fn list(&self) -> DriverResult<Vec<SandboxId>> {
        self.host.list().await
    }

    async fn usage(&self, id: SandboxId) -> DriverResult<SandboxUsage> {
        self.host.usage(id).await
    }

    async fn validate(&self, id: SandboxId, kind: SnapshotKind) -> DriverResult<Vec<Finding>> {
        self.host.findings(id, kind).await
    }

    async fn destroy(&self, id: SandboxId) -> DriverResult<()> {
        self.host.destroy(id).await
    }

    async fn end_in(&self, id: SandboxId, time: Duration) -> DriverResult<()> {
        self.host.end_in(id, time).await
    }

    async fn stop(&self, id: SandboxId) -> DriverResult<()> {
        self.host.stop(id).await
    }

    async fn start(&self, id: SandboxId, _spec: &SandboxSpec) -> DriverResult<()> {
        self.host.start(id).await
    }

    async fn pause(&self, id: SandboxId) -> DriverResult<()> {
        self.host.pause(id).await
    }

    async fn resume(&self, id: SandboxId) -> DriverResult<()> {
        self.host.resume(id).await
    }

    async fn settle(&self, id: SandboxId) -> DriverResult<()> {
        self.host.settle(id).await
    }

    async fn unseal(&self, snapshot: SnapshotId) -> DriverResult<()> {
        self.host.unseal(snapshot).await
    }

    async fn discard(&self, piece: &PieceName) -> DriverResult<()> {
        self.host.discard(piece).await
    }

    async fn sync(&self, artifact: &Artifact) -> DriverResult<Artifact> {
        self.host.sync(artifact).await
    }

    async fn tree(&self, of: &FileState) -> DriverResult<Arc<dyn FileTree>> {
        Ok(Arc::new(self.host.tree(of).await?))
    }

    async fn diff(
        &self,
        from: &FileState,
        to: &FileState,
        under: &[SandboxPath],
    ) -> DriverResult<FileDiff> {
        self.host.diff(from, to, under).await
    }

    async fn events(&self, id: SandboxId) -> DriverResult<EventStream> {
        self.host.events(id).await
    }

    async fn claim(&self, snapshot: SnapshotId, what: &NativeState) -> DriverResult<Claimed> {
        self.host.claim(snapshot, what).await
    }

    async fn export(&self, artifact: &Artifact) -> DriverResult<Vec<Part>> {
        self.host.export(artifact).await
    }

    async fn import(&self, snapshot: SnapshotId, parts: Vec<Part>) -> DriverResult<Artifact> {
        self.host.import(snapshot, parts).await
    }
}
