//! The whole product in this process: engine, catalog on disk, embedded runtime.

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use forkpoint_backends::{
    catalog::SqliteCatalog,
    driver::local::{LocalConfig, LocalDriver, Warmth},
    environment::SystemEnvironment,
};
use forkpoint_core::{
    driver::{Command, Driver, ExitStatus, Sandbox, SnapshotKind},
    engine::{
        CreateRequest, Engine, EngineConfig, ForkRequest, ForkSource, RollbackRequest,
        SnapshotOutcome, SnapshotRequest, Wait,
    },
    spec::{Resources, SandboxSpec},
};
use futures::StreamExt as _;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// How long the background may take to delete what a case left.
const REST: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub struct Product<'a> {
    runtime: &'a Runtime,
    engine: Engine,
    driver: Arc<LocalDriver>,
    /// Of the driver.
    root: PathBuf,
    warm: usize,
    _directory: TempDir,
}

/// What is chosen of the embedded runtime.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub warm: usize,
    pub share_memory: bool,
    pub live_rotation: bool,
}

/// What a sandbox may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limits {
    None,
    /// Memory, processors and processes.
    All,
}

impl Limits {
    fn resources(self) -> Resources {
        match self {
            Self::None => Resources::default(),
            Self::All => {
                Resources { memory_bytes: Some(512 << 20), cpu_millis: Some(2000), pids: Some(256) }
            }
        }
    }
}

impl<'a> Product<'a> {
    /// With one sandbox made and destroyed, so that nothing is done for the first time.
    #[must_use]
    pub fn open(runtime: &'a Runtime, directory: TempDir, settings: Settings) -> Self {
        let root = directory.path().join("local");
        let Settings { warm, share_memory, live_rotation } = settings;
        let config = LocalConfig { warm, share_memory, live_rotation, ..LocalConfig::new(&root) };
        let driver = Arc::new(LocalDriver::open(config).unwrap());
        let catalog = Arc::new(SqliteCatalog::open(directory.path().join("catalog.db")).unwrap());
        let environment = Arc::new(SystemEnvironment::new(runtime.handle().clone()));
        let drivers = [Arc::clone(&driver) as Arc<dyn Driver>];
        let engine =
            Engine::new(drivers, catalog, environment, EngineConfig::new("local")).unwrap();
        let product = Self { runtime, engine, driver, root, warm, _directory: directory };
        let id = product.create(Limits::None).1;
        product.exec(&id);
        product.destroy(&id);
        product
    }

    fn timed<T>(&self, work: impl Future<Output = T>) -> (Duration, T) {
        self.runtime.block_on(async {
            let start = Instant::now();
            let answer = work.await;
            (start.elapsed(), answer)
        })
    }

    fn request(limits: Limits) -> CreateRequest {
        let spec = SandboxSpec::new("host".parse().unwrap());
        CreateRequest::new(SandboxSpec { resources: limits.resources(), ..spec })
    }

    pub fn create(&self, limits: Limits) -> (Duration, String) {
        let (time, record) = self.timed(self.engine.create(Self::request(limits)));
        (time, record.unwrap().id.to_string())
    }

    /// Until its first command is over.
    pub fn create_and_exec(&self, limits: Limits) -> (Duration, String) {
        self.timed(async {
            let id = self.engine.create(Self::request(limits)).await.unwrap().id.to_string();
            self.call(&id, &Command::new(["true"])).await;
            id
        })
    }

    /// Finds the sandbox and runs `true` in it.
    pub fn exec(&self, id: &str) -> Duration {
        self.timed(self.call(id, &Command::new(["true"]))).0
    }

    /// Runs a shell script to its end.
    pub fn script(&self, id: &str, script: &str) -> Duration {
        self.timed(self.call(id, &Command::new(["sh", "-ec", script]))).0
    }

    async fn call(&self, id: &str, command: &Command) {
        let sandbox: Arc<dyn Sandbox> = self.engine.attach(id).await.unwrap();
        let mut process = sandbox.exec(command).await.unwrap();
        let stdout = async { while process.stdout.next().await.is_some() {} };
        let stderr = async {
            let mut text = Vec::new();
            while let Some(Ok(bytes)) = process.stderr.next().await {
                text.extend(bytes);
            }
            text
        };
        let ((), text, status) = futures::join!(stdout, stderr, process.control.wait());
        let text = String::from_utf8_lossy(&text);
        assert_eq!(status.unwrap(), ExitStatus::Code(0), "{command:?} said {text}");
    }

    /// Starts something that goes on.
    pub fn start(&self, id: &str, script: &str) {
        self.runtime.block_on(async {
            let sandbox = self.engine.attach(id).await.unwrap();
            drop(sandbox.exec(&Command::new(["sh", "-c", script])).await.unwrap());
        });
    }

    pub fn snapshot(&self, id: &str, sync: bool) -> (Duration, String) {
        let request = SnapshotRequest { sync, ..SnapshotRequest::new(id) };
        let (time, outcome) = self.timed(self.engine.snapshot(request));
        match outcome.unwrap() {
            SnapshotOutcome::Taken(taken) => (time, taken.snapshot.id.to_string()),
            SnapshotOutcome::Skipped(reason) => panic!("no snapshot: {reason}"),
        }
    }

    /// With processes and memory: how long all of it took, and how long they stood still.
    pub fn snapshot_full(&self, id: &str) -> (Duration, Duration, String) {
        let kind = SnapshotKind::Full;
        let request = SnapshotRequest { kind, sync: false, ..SnapshotRequest::new(id) };
        let (time, outcome) = self.timed(self.engine.snapshot(request));
        let SnapshotOutcome::Taken(taken) = outcome.unwrap() else { panic!("no snapshot") };
        let pause = taken.snapshot.artifact.data["paused_us"].as_u64().unwrap();
        (time, Duration::from_micros(pause), taken.snapshot.id.to_string())
    }

    pub fn fork(&self, snapshot: &str, count: usize) -> (Duration, Vec<String>) {
        let request = ForkRequest::new(ForkSource::Snapshot(snapshot.to_owned()), count);
        let (time, forked) = self.timed(self.engine.fork(request));
        let children = forked.unwrap().children.into_iter();
        (time, children.map(|child| child.result.unwrap().id.to_string()).collect())
    }

    pub fn rollback(&self, id: &str) -> Duration {
        let (time, record) = self.timed(self.engine.rollback(RollbackRequest::new(id)));
        if let Some(why) = record.unwrap().made_anew {
            eprintln!("its processes were made anew: {why}");
        }
        time
    }

    pub fn destroy(&self, id: &str) -> Duration {
        let (time, record) = self.timed(self.engine.destroy(id, Wait::No));
        record.unwrap();
        time
    }

    /// Makes room: the sandbox and its snapshots are gone when this returns, with what they held.
    pub fn clear(&self, id: &str, snapshots: &[String]) {
        self.destroy(id);
        for snapshot in snapshots {
            self.runtime.block_on(self.engine.delete_snapshot(snapshot, Wait::No)).unwrap();
        }
        self.rest();
    }

    /// Returns when the background has deleted what was thrown away, and made what is kept ready.
    pub fn rest(&self) {
        let (trash, start) = (self.root.join("store/trash"), Instant::now());
        let is_empty = || fs::read_dir(&trash).is_ok_and(|mut entries| entries.next().is_none());
        let is_warm = || self.driver.warmth().ready == self.warm;
        while !(is_empty() && is_warm()) && start.elapsed() < REST {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The sandbox's first process, as its record tells.
    #[must_use]
    pub fn init(&self, id: &str) -> u64 {
        let path = self.root.join("sandboxes").join(id).join("record.json");
        let record: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        record["init"]["pid"].as_u64().unwrap()
    }
}

impl Drop for Product<'_> {
    /// Also of what a case that failed left.
    fn drop(&mut self) {
        if self.warm > 0 {
            let Warmth { used, missed, lost, .. } = self.driver.warmth();
            eprintln!("kept ready: {used} used, {missed} missed, {lost} lost");
        }
        self.runtime.block_on(async {
            for id in self.driver.list().await.unwrap_or_default() {
                if let Err(err) = self.driver.destroy(id).await {
                    eprintln!("`{id}` is left behind: {err}");
                }
            }
        });
        self.rest();
    }
}
