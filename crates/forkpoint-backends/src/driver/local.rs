//! The embedded runtime: sandboxes from the kernel's own parts, no daemon, nothing to install.
//!
//! ```text
//!   driver ──order──► spawner ──copy──► launcher ──clone──► init (process 1 of the sandbox)
//!     └───────────── socket in the sandbox's directory ─────────┘
//! ```
//!
//! `host.rs` makes and ends sandboxes, `seal.rs` fixes what they changed, `sandbox.rs` works in them;
//! `spawner.rs`, `launch.rs` and `init.rs` run in processes of their own. What is known of a sandbox
//! is in its directory (`record.rs`), so that every process of ours finds it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use forkpoint_core::{
    Timestamp,
    driver::{
        Adopted, ApplyReport, ApplyRequest, Artifact, Capabilities, Drift, Driver, DriverError,
        DriverResult, FileDiff, FileState, FileTree, Finding, KeptProcess, PieceName, Sandbox,
        SandboxStatus, SandboxUsage, SnapshotKind,
    },
    id::{SandboxId, SnapshotId},
    part::Part,
    path::SandboxPath,
    spec::SandboxSpec,
};
use serde::Serialize;

mod caps;
pub(in crate::driver) mod capture;
pub(in crate::driver) mod cgroup;
mod client;
mod connection;
mod end;
mod examine;
mod expect;
mod findings;
mod host;
mod init;
mod launch;
mod look;
mod memory;
mod mount;
mod pause;
mod prepare;
mod process;
mod record;
mod root;
mod rotate;
pub(in crate::driver) mod sandbox;
mod seal;
mod seccomp;
mod spawner;
pub(in crate::driver) mod spool;
mod sys;
mod template;
mod templates;
mod travel;
mod warm;
mod wire;
mod workspace;

use host::{Host, failed, layer_error};
use memory::back::RolledBack;
use sandbox::LocalSandbox;
pub use templates::{Removal, TemplateKind, TemplateRecord, Templates, template_names};
pub use warm::{WARM_MAX, Warmth};

use crate::layer::LayerError;

const DRIVER: &str = "local";

/// Where the sandboxes are kept, and which program becomes their init.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// Made if need be.
    pub root: PathBuf,
    /// A program whose `main` begins with [`run_if_asked`]. This process's own program if there is
    /// none.
    pub helper: Option<PathBuf>,
    /// As root, whether the users of a sandbox are nobody outside. Turn it off only where the kernel
    /// or the file system cannot do it.
    pub map_users: bool,
    /// How many sandboxes are kept ready for whoever wants one next, up to [`WARM_MAX`]. For a process that
    /// stays: they are made in the background, and end with it. Without root there are none.
    pub warm: usize,
    /// Whether copies of a full snapshot share the memory that they do not write to, with what that means for programs
    /// that give memory back: see [`forkpoint_checkpoint::Chain::share_memory`].
    pub share_memory: bool,
    /// Whether a full snapshot of a sandbox that has written much may exchange the root under its programs instead of copying
    /// what they wrote. They go on, with the same files under another device number.
    pub live_rotation: bool,
}

impl LocalConfig {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            helper: None,
            map_users: true,
            warm: 0,
            share_memory: false,
            live_rotation: true,
        }
    }
}

/// What this machine can do for the driver, one thing each.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub verdict: Verdict,
    pub detail: String,
    /// What to do about a `No` or `Limited`.
    pub way_out: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Yes,
    /// Works, with less.
    Limited,
    No,
}

/// The first line of `main` in a program that uses the driver: the driver starts the program again
/// under another name, to launch sandboxes from. Returns at once if that is not what it was started
/// for.
pub fn run_if_asked() {
    if spawner::is_asked() {
        spawner::serve();
    }
}

/// Looks at the machine. The driver works when no check says `No`.
///
/// Blocks for some milliseconds.
#[must_use]
pub fn examine(config: &LocalConfig) -> Vec<Check> {
    examine::examine(config)
}

#[derive(Clone, Debug)]
pub struct LocalDriver {
    host: Arc<Host>,
}

impl LocalDriver {
    /// Opens the sandboxes below the configured root. Several processes may do so at once.
    ///
    /// Its methods must be called on a tokio runtime.
    pub fn open(config: LocalConfig) -> DriverResult<Self> {
        Ok(Self { host: Host::open(config)? })
    }

    /// Starts what sandboxes are launched from, in the background. For a program that is about to
    /// launch one and has something else to do before.
    pub fn warm_up(&self) {
        let host = Arc::clone(&self.host);
        // A thread that starts a program stands still until the kernel has loaded it. If there can
        // be no thread, whoever launches the first sandbox does it.
        let _ = std::thread::Builder::new().spawn(move || host.warm_up());
    }

    /// Of the sandboxes that are kept ready ([`LocalConfig::warm`]).
    #[must_use]
    pub fn warmth(&self) -> Warmth {
        self.host.pool.warmth()
    }

    /// The starting points that have a name here.
    #[must_use]
    pub fn templates(&self) -> Templates {
        Templates::new(Arc::clone(&self.host))
    }

    fn handle(&self, id: SandboxId) -> Arc<dyn Sandbox> {
        Arc::new(LocalSandbox::new(Arc::clone(&self.host), id))
    }

    /// Runs what blocks on a thread that may.
    async fn on_host<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Host) -> DriverResult<T> + Send + 'static,
    ) -> DriverResult<T> {
        let host = Arc::clone(&self.host);
        blocking(move || work(&host)).await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> DriverResult<T> + Send + 'static,
) -> DriverResult<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(err) => Err(failed("finish its work")(err)),
    }
}

fn unsupported<T>(operation: &'static str) -> DriverResult<T> {
    Err(DriverError::Unsupported { driver: DRIVER, operation })
}

#[async_trait]
impl Driver for LocalDriver {
    fn name(&self) -> &'static str {
        DRIVER
    }

    fn closes_connections(&self) -> bool {
        true
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kinds: self.host.kinds(),
            rollback: true,
            adopt: false,
            stop: true,
            pause: true,
            attachments: false,
            exports: travel::formats(),
            imports: travel::formats(),
        }
    }

    async fn can_seal(&self, id: SandboxId, kind: SnapshotKind) -> DriverResult<()> {
        self.host.can_seal(id, kind)
    }

    async fn complete(&self, spec: &SandboxSpec, now: Timestamp) -> DriverResult<SandboxSpec> {
        let spec = spec.clone();
        self.on_host(move |host| host.complete(&spec, now)).await
    }

    fn expect(&self, spec: &SandboxSpec, from: Option<&Artifact>) {
        self.host.expect(spec, from);
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> DriverResult<Arc<dyn Sandbox>> {
        let spec = spec.clone();
        self.on_host(move |host| host.create(id, &spec, None)).await?;
        Ok(self.handle(id))
    }

    async fn restore(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        from: &Artifact,
    ) -> DriverResult<Arc<dyn Sandbox>> {
        let (spec, from) = (spec.clone(), from.clone());
        self.on_host(move |host| host.create(id, &spec, Some(&from))).await?;
        Ok(self.handle(id))
    }

    async fn rollback(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        to: &Artifact,
    ) -> DriverResult<Arc<dyn Sandbox>> {
        let (spec, to) = (spec.clone(), to.clone());
        let rolled_back = self.on_host(move |host| host.rollback(id, &spec, &to)).await?;
        let RolledBack { record, lock, made_anew } = rolled_back;
        if !record.is_finished() {
            let host = Arc::clone(&self.host);
            // Nobody waits for it; if it fails or we die, the next one who looks does it.
            std::thread::spawn(move || {
                let _ = host.finish(record);
                drop(lock);
            });
        }
        Ok(Arc::new(LocalSandbox::new(Arc::clone(&self.host), id).anew(made_anew)))
    }

    async fn adopt(&self, _native_name: &str) -> DriverResult<Adopted> {
        unsupported("adopt what it did not make")
    }

    async fn attach(&self, id: SandboxId) -> DriverResult<Arc<dyn Sandbox>> {
        self.host.record(id)?;
        Ok(self.handle(id))
    }

    async fn status(&self, id: SandboxId) -> DriverResult<Option<SandboxStatus>> {
        self.host.status(id)
    }

    async fn list(&self) -> DriverResult<Vec<SandboxId>> {
        self.host.list()
    }

    async fn usage(&self, id: SandboxId) -> DriverResult<SandboxUsage> {
        self.on_host(move |host| host.usage(id)).await
    }

    async fn validate(&self, id: SandboxId, kind: SnapshotKind) -> DriverResult<Vec<Finding>> {
        self.on_host(move |host| {
            let about = host.workspace_findings(&host.record(id)?.spec);
            Ok(host.findings(id, kind)?.into_iter().chain(about).collect())
        })
        .await
    }

    async fn destroy(&self, id: SandboxId) -> DriverResult<()> {
        self.on_host(move |host| host.destroy(id)).await
    }

    async fn end_in(&self, id: SandboxId, time: Duration) -> DriverResult<()> {
        self.on_host(move |host| host.end_in(id, time)).await
    }

    async fn stop(&self, id: SandboxId) -> DriverResult<()> {
        self.on_host(move |host| host.stop(id)).await
    }

    async fn start(&self, id: SandboxId, spec: &SandboxSpec) -> DriverResult<()> {
        let spec = spec.clone();
        self.on_host(move |host| host.start(id, &spec)).await
    }

    async fn pause(&self, id: SandboxId) -> DriverResult<()> {
        self.on_host(move |host| host.pause(id)).await
    }

    async fn resume(&self, id: SandboxId) -> DriverResult<()> {
        self.on_host(move |host| host.resume(id)).await
    }

    async fn settle(&self, id: SandboxId) -> DriverResult<()> {
        self.on_host(move |host| host.settle(id)).await
    }

    async fn unseal(&self, snapshot: SnapshotId) -> DriverResult<()> {
        self.on_host(move |host| host.unseal(snapshot)).await
    }

    async fn discard(&self, piece: &PieceName) -> DriverResult<()> {
        let name = piece.0.clone();
        let image = memory::image_of(piece);
        self.on_host(move |host| {
            if let Some(kept) = image {
                host.discard_image(&kept)?;
                host.sweep_later(None);
                return Ok(());
            }
            match host.store.discard(&name) {
                Err(LayerError::Foreign { name }) => {
                    return Err(DriverError::Foreign { what: name });
                }
                result => result.map_err(layer_error("discard a layer"))?,
            }
            host.sweep_later(None);
            Ok(())
        })
        .await
    }

    async fn sync(&self, artifact: &Artifact) -> DriverResult<Artifact> {
        let artifact = artifact.clone();
        self.on_host(move |host| host.sync(&artifact)).await
    }

    async fn drift(&self, spec: &SandboxSpec, since: Timestamp) -> DriverResult<Vec<Drift>> {
        let spec = spec.clone();
        self.on_host(move |host| host.drift(&spec, since)).await
    }

    async fn apply(&self, of: &FileState, request: &ApplyRequest) -> DriverResult<ApplyReport> {
        let (of, request) = (of.clone(), request.clone());
        self.on_host(move |host| host.apply(&of, &request)).await
    }

    async fn processes(&self, artifact: &Artifact) -> DriverResult<Vec<KeptProcess>> {
        let artifact = artifact.clone();
        self.on_host(move |host| host.kept_processes(&artifact)).await
    }

    async fn tree(&self, of: &FileState) -> DriverResult<Arc<dyn FileTree>> {
        let of = of.clone();
        let tree = self.on_host(move |host| host.tree(&of)).await?;
        Ok(Arc::new(tree))
    }

    async fn diff(
        &self,
        from: &FileState,
        to: &FileState,
        under: &[SandboxPath],
    ) -> DriverResult<FileDiff> {
        let (from, to, under) = (from.clone(), to.clone(), under.to_vec());
        self.on_host(move |host| host.diff(&from, &to, &under)).await
    }

    async fn export(&self, artifact: &Artifact) -> DriverResult<Vec<Part>> {
        let artifact = artifact.clone();
        self.on_host(move |host| host.export(&artifact)).await
    }

    async fn import(&self, snapshot: SnapshotId, parts: Vec<Part>) -> DriverResult<Artifact> {
        Arc::clone(&self.host).import(snapshot, parts).await
    }
}
