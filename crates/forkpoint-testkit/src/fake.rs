//! A platform in memory, and the driver for it.
//!
//! It keeps a snapshot as a piece that holds only what changed over the piece below, so that freeing
//! one too early breaks those above it, as it would with real layers.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use forkpoint_core::{
    driver::{
        Adopted, Artifact, Capabilities, Claimed, Driver, DriverError, DriverResult, EventStream,
        FileDiff, FileState, FileTree, Finding, NativeState, PieceName, Sandbox, SandboxEvent,
        SandboxState, SandboxStatus, SandboxUsage, Severity, SnapshotKind,
    },
    id::{SandboxId, SnapshotId},
    part::{Part, PartFormat},
    path::SandboxPath,
    spec::SandboxSpec,
};
use futures::{StreamExt as _, channel::mpsc};

mod parts;
mod process;
mod sandbox;
mod state;
mod tree;

use sandbox::FakeSandbox;
use state::State;
use tree::FakeTree;

pub(crate) const DRIVER: &str = "fake";

/// The files of a sandbox; directories are implied.
pub type Files = BTreeMap<PathBuf, Bytes>;

/// What several processes share, as they share a kernel or a container engine.
#[derive(Clone, Debug, Default)]
pub struct FakePlatform(Arc<Mutex<State>>);

impl FakePlatform {
    /// A driver as one more process would open it.
    #[must_use]
    pub fn driver(&self) -> FakeDriver {
        FakeDriver { platform: self.clone() }
    }

    /// Puts something there that is not ours.
    pub fn add_foreign(&self, native_name: &str, files: Files) -> SandboxId {
        self.state().add_foreign(native_name, files)
    }

    /// Puts a state there that others kept.
    pub fn add_image(&self, native_name: &str, files: Files) {
        self.state().images.insert(native_name.to_owned(), files);
    }

    /// States that others kept.
    #[must_use]
    pub fn images(&self) -> Vec<String> {
        self.state().images.keys().cloned().collect()
    }

    /// Removes something of that name that is not ours, and puts another there.
    pub fn replace_foreign(&self, native_name: &str, files: Files) -> SandboxId {
        let mut state = self.state();
        state.sandboxes.retain(|_, row| row.foreign.as_deref() != Some(native_name));
        state.add_foreign(native_name, files)
    }

    /// What no driver should ever have been asked to do.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    #[must_use]
    pub fn sandboxes(&self) -> Vec<SandboxId> {
        self.state().sandboxes.keys().copied().collect()
    }

    /// Sandboxes that we paused and did not resume. A user's own pause is no business of ours.
    #[must_use]
    pub fn paused(&self) -> Vec<SandboxId> {
        let paused = |state: &State| {
            let rows = state.sandboxes.iter().filter(|(_, sandbox)| sandbox.paused);
            rows.map(|(id, _)| *id).collect()
        };
        paused(&self.state())
    }

    #[must_use]
    pub fn pieces(&self) -> Vec<PieceName> {
        self.state().pieces.keys().cloned().collect()
    }

    #[must_use]
    pub fn files(&self, id: SandboxId) -> Option<Files> {
        self.state().sandboxes.get(&id).map(|sandbox| sandbox.files.clone())
    }

    /// What the platform would say of a sandbox that nobody is sealing.
    #[must_use]
    pub fn states(&self) -> BTreeMap<SandboxId, SandboxState> {
        self.state().sandboxes.iter().map(|(id, row)| (*id, row.state)).collect()
    }

    /// Whether a snapshot was asked to survive a power cut, with all that it lies over.
    #[must_use]
    pub fn is_synced(&self, snapshot: SnapshotId) -> bool {
        self.state().is_synced(snapshot)
    }

    /// What the sandbox held when the snapshot was sealed, kept apart from the pieces.
    #[must_use]
    pub fn truth(&self, snapshot: SnapshotId) -> Option<Files> {
        self.state().truth.get(&snapshot).cloned()
    }

    /// On what the sandbox stood when the snapshot was sealed; `None` when it was not sealed here.
    #[must_use]
    pub fn grown_from(&self, snapshot: SnapshotId) -> Option<Option<SnapshotId>> {
        let state = self.state();
        let piece = state.pieces.values().find(|piece| piece.snapshot == snapshot)?;
        piece.sealed_from.map(|(_, base)| base)
    }

    /// Makes the next call of a driver have something to tell.
    pub fn say(&self, notice: &str) {
        self.state().notices.push(notice.to_owned());
    }

    /// Has whoever listens hear of it.
    pub fn happen(&self, id: SandboxId, event: SandboxEvent) {
        let listeners = &mut self.state().listeners;
        listeners.retain(|(of, listener)| *of != id || listener.unbounded_send(Ok(event)).is_ok());
    }

    /// Goes away for whoever listens.
    pub fn fall_silent(&self) {
        self.state().listeners.clear();
    }

    /// Makes it a platform that can do less.
    pub fn take_away(&self, what: fn(&mut Capabilities)) {
        self.state().take_away = Some(what);
    }

    /// Makes it a platform of which a power cut leaves nothing.
    pub fn make_volatile(&self) {
        self.state().volatile = true;
    }

    /// Makes the platform forget a sandbox, as a reboot would.
    pub fn lose(&self, id: SandboxId) {
        self.state().sandboxes.remove(&id);
    }

    /// Damages what a snapshot holds.
    pub fn damage(&self, snapshot: SnapshotId) {
        self.state().pieces.retain(|_, piece| piece.snapshot != snapshot);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Debug)]
pub struct FakeDriver {
    platform: FakePlatform,
}

impl FakeDriver {
    fn state(&self) -> MutexGuard<'_, State> {
        self.platform.state()
    }

    fn handle(&self, id: SandboxId) -> Arc<dyn Sandbox> {
        Arc::new(FakeSandbox::new(self.platform.clone(), id))
    }
}

#[async_trait]
impl Driver for FakeDriver {
    fn name(&self) -> &'static str {
        DRIVER
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities {
            kinds: vec![SnapshotKind::Files],
            rollback: true,
            adopt: true,
            stop: true,
            pause: true,
            attachments: true,
            exports: vec![PartFormat::tree()],
            imports: vec![PartFormat::tree()],
        };
        if let Some(take_away) = self.state().take_away {
            take_away(&mut capabilities);
        }
        capabilities
    }

    fn notices(&self, _about: SandboxId) -> Vec<String> {
        std::mem::take(&mut self.state().notices)
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> DriverResult<Arc<dyn Sandbox>> {
        self.state().create(id, spec, None)?;
        Ok(self.handle(id))
    }

    async fn restore(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        from: &Artifact,
    ) -> DriverResult<Arc<dyn Sandbox>> {
        self.state().create(id, spec, Some(from))?;
        Ok(self.handle(id))
    }

    async fn rollback(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        to: &Artifact,
    ) -> DriverResult<Arc<dyn Sandbox>> {
        self.state().rollback(id, spec, to)?;
        Ok(self.handle(id))
    }

    async fn adopt(&self, native_name: &str) -> DriverResult<Adopted> {
        self.state().adopt(native_name)
    }

    async fn attach(&self, id: SandboxId) -> DriverResult<Arc<dyn Sandbox>> {
        self.state().sandbox(id)?;
        Ok(self.handle(id))
    }

    async fn status(&self, id: SandboxId) -> DriverResult<Option<SandboxStatus>> {
        Ok(self.state().status(id))
    }

    async fn list(&self) -> DriverResult<Vec<SandboxId>> {
        Ok(self.state().ours())
    }

    async fn usage(&self, id: SandboxId) -> DriverResult<SandboxUsage> {
        let mut state = self.state();
        let files = state.sandbox(id)?.files.values();
        let disk_bytes = Some(files.map(|bytes| bytes.len() as u64).sum());
        Ok(SandboxUsage { disk_bytes, ..SandboxUsage::default() })
    }

    async fn validate(&self, id: SandboxId, kind: SnapshotKind) -> DriverResult<Vec<Finding>> {
        self.state().sandbox(id)?;
        let message = "driver `fake` keeps no processes and no memory".to_owned();
        let severity = match kind {
            SnapshotKind::Files => Severity::LeftOut,
            SnapshotKind::Full => Severity::Blocks,
        };
        Ok(vec![Finding { severity, message }])
    }

    async fn destroy(&self, id: SandboxId) -> DriverResult<()> {
        self.state().destroy(id)
    }

    async fn stop(&self, id: SandboxId) -> DriverResult<()> {
        self.state().stop(id)
    }

    async fn start(&self, id: SandboxId, _spec: &SandboxSpec) -> DriverResult<()> {
        self.state().switch(id, SandboxState::Stopped, SandboxState::Running)
    }

    async fn pause(&self, id: SandboxId) -> DriverResult<()> {
        self.state().switch(id, SandboxState::Running, SandboxState::Paused)
    }

    async fn resume(&self, id: SandboxId) -> DriverResult<()> {
        self.state().switch(id, SandboxState::Paused, SandboxState::Running)
    }

    async fn settle(&self, id: SandboxId) -> DriverResult<()> {
        if let Ok(sandbox) = self.state().sandbox(id) {
            sandbox.paused = false;
        }
        Ok(())
    }

    async fn unseal(&self, snapshot: SnapshotId) -> DriverResult<()> {
        self.state().unseal(snapshot);
        Ok(())
    }

    async fn discard(&self, piece: &PieceName) -> DriverResult<()> {
        self.state().discard(piece)
    }

    async fn sync(&self, artifact: &Artifact) -> DriverResult<Artifact> {
        let durable = self.state().sync(artifact)?;
        Ok(Artifact { durable, ..artifact.clone() })
    }

    async fn tree(&self, of: &FileState) -> DriverResult<Arc<dyn FileTree>> {
        Ok(Arc::new(FakeTree(self.state().files_in(of)?)))
    }

    async fn diff(
        &self,
        from: &FileState,
        to: &FileState,
        under: &[SandboxPath],
    ) -> DriverResult<FileDiff> {
        let mut state = self.state();
        let (from, to) = (state.files_in(from)?, state.files_in(to)?);
        Ok(tree::diff(from, to, under))
    }

    async fn events(&self, id: SandboxId) -> DriverResult<EventStream> {
        let mut state = self.state();
        state.sandbox(id)?;
        let (listener, events) = mpsc::unbounded();
        state.listeners.push((id, listener));
        Ok(events.boxed())
    }

    async fn claim(&self, snapshot: SnapshotId, what: &NativeState) -> DriverResult<Claimed> {
        self.state().claim(snapshot, what)
    }

    async fn export(&self, artifact: &Artifact) -> DriverResult<Vec<Part>> {
        let files = self.state().files_of(artifact)?;
        Ok(vec![parts::export(files)])
    }

    async fn import(&self, snapshot: SnapshotId, parts: Vec<Part>) -> DriverResult<Artifact> {
        let known = |part: &Part| part.format == PartFormat::tree();
        if let Some(odd) = parts.iter().find(|part| !known(part)) {
            let reason = format!("it imports no parts in format `{}`", odd.format);
            return Err(DriverError::Invalid { driver: DRIVER, reason });
        }
        let files = parts::import(parts).await?;
        Ok(self.state().import(snapshot, files))
    }
}
