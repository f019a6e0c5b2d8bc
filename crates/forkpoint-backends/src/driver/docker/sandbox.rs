//! A container, for whoever works in it.

use std::sync::Arc;

use async_trait::async_trait;
use forkpoint_core::{
    driver::{
        Artifact, Command, DriverResult, Entry, NewEntry, PausedSandbox, Process, Sandbox,
        SnapshotKind, WriteMode,
    },
    id::{SandboxId, SnapshotId},
    part::ByteStream,
    path::SandboxPath,
};

use super::{container::Container, freeze::Turn, host::Host, seal::Wanted};

#[derive(Debug)]
pub(super) struct DockerSandbox {
    pub(super) host: Arc<Host>,
    pub(super) id: SandboxId,
    /// The container that it was a moment ago, which saves looking for it.
    pub(super) seen: Option<String>,
}

#[async_trait]
impl Sandbox for DockerSandbox {
    fn id(&self) -> SandboxId {
        self.id
    }

    async fn exec(&self, command: &Command) -> DriverResult<Process> {
        self.host.exec(self.id, command).await
    }

    async fn read(&self, path: &SandboxPath) -> DriverResult<ByteStream> {
        self.host.read(self.id, path).await
    }

    async fn write(
        &self,
        path: &SandboxPath,
        bytes: ByteStream,
        mode: WriteMode,
    ) -> DriverResult<()> {
        self.host.write(self.id, path, bytes, mode).await
    }

    async fn make(&self, path: &SandboxPath, entry: &NewEntry) -> DriverResult<()> {
        self.host.make(self.id, path, entry).await
    }

    async fn entries(&self, path: &SandboxPath, depth: u32) -> DriverResult<Vec<Entry>> {
        self.host.entries(self.id, path, depth).await
    }

    async fn pause(&self, kind: SnapshotKind) -> DriverResult<Box<dyn PausedSandbox>> {
        let (container, turn) = self.host.hold_still(self.id, self.seen.as_deref(), kind).await?;
        let host = Arc::clone(&self.host);
        let (id, volatile) = (self.id, false);
        Ok(Box::new(PausedContainer { host, id, kind, container, volatile, _turn: turn }))
    }
}

#[derive(Debug)]
struct PausedContainer {
    host: Arc<Host>,
    id: SandboxId,
    kind: SnapshotKind,
    container: Container,
    /// Whether a seal keeps what is in memory too.
    volatile: bool,
    /// Until it is let go.
    _turn: Option<Turn>,
}

#[async_trait]
impl PausedSandbox for PausedContainer {
    async fn seal(&mut self, snapshot: SnapshotId, kind: SnapshotKind) -> DriverResult<Artifact> {
        let wanted = Wanted { snapshot, kind, volatile: self.volatile };
        self.host.seal(self.id, &self.container, wanted).await
    }

    async fn include_volatile(&mut self) -> DriverResult<()> {
        self.host.expect_volatile(&self.container)?;
        self.volatile = true;
        Ok(())
    }

    async fn is_unchanged(&mut self, since: &Artifact) -> DriverResult<bool> {
        match self.kind {
            SnapshotKind::Files => self.host.is_unchanged(self.id, since.snapshot).await,
            // Nobody compares what CRIU has written.
            SnapshotKind::Full => Ok(false),
        }
    }

    async fn resume(self: Box<Self>) -> DriverResult<()> {
        self.host.let_go(&self.container).await
    }
}
