//! A driver whose calls go wrong.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use forkpoint_core::{
    Timestamp,
    driver::{
        Adopted, ApplyReport, ApplyRequest, Artifact, Capabilities, Claimed, Command, Drift,
        Driver, DriverError, DriverResult, Entry, EventStream, FileDiff, FileState, FileTree,
        Finding, NativeState, NewEntry, PausedSandbox, PieceName, Process, Sandbox, SandboxStatus,
        SandboxUsage, SnapshotKind, WriteMode,
    },
    error::BoxError,
    id::{SandboxId, SnapshotId},
    part::{ByteStream, Part},
    path::SandboxPath,
    spec::SandboxSpec,
};
use futures::future::Future;

use super::{Faults, Inside};
use crate::simulation::ProcessId;

#[derive(Debug)]
pub struct FaultyDriver {
    inner: Arc<dyn Driver>,
    place: Place,
}

/// Where calls are counted, and whose they are.
#[derive(Clone, Debug)]
struct Place {
    faults: Faults,
    process: ProcessId,
    driver: &'static str,
}

impl Place {
    async fn call<T>(
        &self,
        call: &'static str,
        effect: impl Future<Output = DriverResult<T>>,
    ) -> DriverResult<T> {
        let driver = self.driver;
        let fail = |source: BoxError| DriverError::Failed { driver, operation: call, source };
        self.faults.around((self.process, call), effect, None, fail).await
    }

    async fn inside<T>(
        &self,
        sandbox: SandboxId,
        call: &'static str,
        effect: impl Future<Output = DriverResult<T>>,
    ) -> DriverResult<T> {
        let _inside = self.faults.enter(self.process, sandbox, call);
        self.call(call, effect).await
    }

    fn sandbox(&self, inner: Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
        Arc::new(FaultySandbox { inner, place: self.clone() })
    }
}

impl FaultyDriver {
    #[must_use]
    pub fn new(inner: Arc<dyn Driver>, faults: Faults, process: ProcessId) -> Self {
        let driver = inner.name();
        Self { inner, place: Place { faults, process, driver } }
    }
}

#[async_trait]
impl Driver for FaultyDriver {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn keeps_volatile(&self) -> bool {
        self.inner.keeps_volatile()
    }

    fn closes_connections(&self) -> bool {
        self.inner.closes_connections()
    }

    async fn can_seal(&self, id: SandboxId, kind: SnapshotKind) -> DriverResult<()> {
        self.place.call("can_seal", self.inner.can_seal(id, kind)).await
    }

    fn notices(&self, about: SandboxId) -> Vec<String> {
        self.inner.notices(about)
    }

    async fn events(&self, id: SandboxId) -> DriverResult<EventStream> {
        self.place.call("events", self.inner.events(id)).await
    }

    async fn claim(&self, snapshot: SnapshotId, what: &NativeState) -> DriverResult<Claimed> {
        self.place.call("claim", self.inner.claim(snapshot, what)).await
    }

    async fn complete(&self, spec: &SandboxSpec, now: Timestamp) -> DriverResult<SandboxSpec> {
        self.inner.complete(spec, now).await
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> DriverResult<Arc<dyn Sandbox>> {
        let made = self.place.inside(id, "create", self.inner.create(id, spec)).await?;
        Ok(self.place.sandbox(made))
    }

    async fn restore(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        from: &Artifact,
    ) -> DriverResult<Arc<dyn Sandbox>> {
        let made = self.place.inside(id, "restore", self.inner.restore(id, spec, from)).await?;
        Ok(self.place.sandbox(made))
    }

    async fn rollback(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        to: &Artifact,
    ) -> DriverResult<Arc<dyn Sandbox>> {
        let made = self.place.inside(id, "rollback", self.inner.rollback(id, spec, to)).await?;
        Ok(self.place.sandbox(made))
    }

    async fn adopt(&self, native_name: &str) -> DriverResult<Adopted> {
        self.place.call("adopt", self.inner.adopt(native_name)).await
    }

    async fn attach(&self, id: SandboxId) -> DriverResult<Arc<dyn Sandbox>> {
        let found = self.place.call("attach", self.inner.attach(id)).await?;
        Ok(self.place.sandbox(found))
    }

    async fn status(&self, id: SandboxId) -> DriverResult<Option<SandboxStatus>> {
        self.place.call("status", self.inner.status(id)).await
    }

    async fn list(&self) -> DriverResult<Vec<SandboxId>> {
        self.place.call("list", self.inner.list()).await
    }

    async fn usage(&self, id: SandboxId) -> DriverResult<SandboxUsage> {
        self.place.call("usage", self.inner.usage(id)).await
    }

    async fn validate(&self, id: SandboxId, kind: SnapshotKind) -> DriverResult<Vec<Finding>> {
        self.place.call("validate", self.inner.validate(id, kind)).await
    }

    async fn destroy(&self, id: SandboxId) -> DriverResult<()> {
        self.place.inside(id, "destroy", self.inner.destroy(id)).await
    }

    async fn end_in(&self, id: SandboxId, time: Duration) -> DriverResult<()> {
        self.place.inside(id, "set the end", self.inner.end_in(id, time)).await
    }

    async fn stop(&self, id: SandboxId) -> DriverResult<()> {
        self.place.inside(id, "stop", self.inner.stop(id)).await
    }

    async fn start(&self, id: SandboxId, spec: &SandboxSpec) -> DriverResult<()> {
        self.place.inside(id, "start", self.inner.start(id, spec)).await
    }

    async fn pause(&self, id: SandboxId) -> DriverResult<()> {
        self.place.inside(id, "pause for the user", self.inner.pause(id)).await
    }

    async fn resume(&self, id: SandboxId) -> DriverResult<()> {
        self.place.inside(id, "resume for the user", self.inner.resume(id)).await
    }

    async fn settle(&self, id: SandboxId) -> DriverResult<()> {
        self.place.inside(id, "settle", self.inner.settle(id)).await
    }

    async fn unseal(&self, snapshot: SnapshotId) -> DriverResult<()> {
        self.place.call("unseal", self.inner.unseal(snapshot)).await
    }

    async fn discard(&self, piece: &PieceName) -> DriverResult<()> {
        self.place.call("discard", self.inner.discard(piece)).await
    }

    async fn sync(&self, artifact: &Artifact) -> DriverResult<Artifact> {
        self.place.call("sync", self.inner.sync(artifact)).await
    }

    async fn drift(&self, spec: &SandboxSpec, since: Timestamp) -> DriverResult<Vec<Drift>> {
        self.place.call("drift", self.inner.drift(spec, since)).await
    }

    async fn apply(&self, of: &FileState, request: &ApplyRequest) -> DriverResult<ApplyReport> {
        self.place.call("apply", self.inner.apply(of, request)).await
    }

    async fn tree(&self, of: &FileState) -> DriverResult<Arc<dyn FileTree>> {
        self.place.call("tree", self.inner.tree(of)).await
    }

    async fn diff(
        &self,
        from: &FileState,
        to: &FileState,
        under: &[SandboxPath],
    ) -> DriverResult<FileDiff> {
        self.place.call("diff", self.inner.diff(from, to, under)).await
    }

    async fn export(&self, artifact: &Artifact) -> DriverResult<Vec<Part>> {
        self.place.call("export", self.inner.export(artifact)).await
    }

    async fn import(&self, snapshot: SnapshotId, parts: Vec<Part>) -> DriverResult<Artifact> {
        self.place.call("import", self.inner.import(snapshot, parts)).await
    }
}

#[derive(Debug)]
struct FaultySandbox {
    inner: Arc<dyn Sandbox>,
    place: Place,
}

#[async_trait]
impl Sandbox for FaultySandbox {
    fn id(&self) -> SandboxId {
        self.inner.id()
    }

    fn made_anew(&self) -> Option<String> {
        self.inner.made_anew()
    }

    async fn exec(&self, command: &Command) -> DriverResult<Process> {
        self.place.call("exec", self.inner.exec(command)).await
    }

    async fn read(&self, path: &SandboxPath) -> DriverResult<ByteStream> {
        self.place.call("read", self.inner.read(path)).await
    }

    async fn write(
        &self,
        path: &SandboxPath,
        bytes: ByteStream,
        mode: WriteMode,
    ) -> DriverResult<()> {
        self.place.call("write", self.inner.write(path, bytes, mode)).await
    }

    async fn make(&self, path: &SandboxPath, entry: &NewEntry) -> DriverResult<()> {
        self.place.call("make", self.inner.make(path, entry)).await
    }

    async fn entries(&self, path: &SandboxPath, depth: u32) -> DriverResult<Vec<Entry>> {
        self.place.call("entries", self.inner.entries(path, depth)).await
    }

    async fn pause(&self, kind: SnapshotKind) -> DriverResult<Box<dyn PausedSandbox>> {
        // From here to the resume the sandbox is this process's own.
        let inside = self.place.faults.enter(self.place.process, self.id(), "pause");
        let inner = self.place.call("pause", self.inner.pause(kind)).await?;
        Ok(Box::new(FaultyPaused { inner, place: self.place.clone(), _inside: inside }))
    }
}

#[derive(Debug)]
struct FaultyPaused {
    inner: Box<dyn PausedSandbox>,
    place: Place,
    _inside: Inside,
}

#[async_trait]
impl PausedSandbox for FaultyPaused {
    async fn seal(&mut self, snapshot: SnapshotId, kind: SnapshotKind) -> DriverResult<Artifact> {
        self.place.call("seal", self.inner.seal(snapshot, kind)).await
    }

    async fn include_volatile(&mut self) -> DriverResult<()> {
        self.inner.include_volatile().await
    }

    async fn close_connections(&mut self) -> DriverResult<()> {
        self.inner.close_connections().await
    }

    async fn is_unchanged(&mut self, since: &Artifact) -> DriverResult<bool> {
        self.place.call("compare", self.inner.is_unchanged(since)).await
    }

    async fn resume(self: Box<Self>) -> DriverResult<()> {
        self.place.call("resume", self.inner.resume()).await
    }
}
