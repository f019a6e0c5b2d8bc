//! The product in this process, on the same Docker daemon that its rival uses.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use forkpoint_backends::{
    catalog::SqliteCatalog,
    driver::docker::{DockerConfig, DockerDriver, Endpoint},
    environment::SystemEnvironment,
};
use forkpoint_core::{
    driver::Driver,
    engine::{
        AdoptRequest, Engine, EngineConfig, RestoreRequest, SnapshotOutcome, SnapshotRequest, Wait,
    },
    label::Labels,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

#[derive(Debug)]
pub struct Containers<'a> {
    runtime: &'a Runtime,
    engine: Engine,
    _directory: TempDir,
}

impl<'a> Containers<'a> {
    #[must_use]
    pub fn open(runtime: &'a Runtime, socket: &Path, directory: TempDir) -> Self {
        let endpoint = Endpoint::Unix(socket.to_owned());
        let config = DockerConfig::new(endpoint, directory.path().join("docker"));
        let driver: Arc<dyn Driver> = Arc::new(DockerDriver::open(config).unwrap());
        let catalog = Arc::new(SqliteCatalog::open(directory.path().join("catalog.db")).unwrap());
        let environment = Arc::new(SystemEnvironment::new(runtime.handle().clone()));
        let config = EngineConfig::new("docker");
        let engine = Engine::new([driver], catalog, environment, config).unwrap();
        Self { runtime, engine, _directory: directory }
    }

    fn timed<T>(&self, work: impl Future<Output = T>) -> (Duration, T) {
        self.runtime.block_on(async {
            let start = Instant::now();
            let answer = work.await;
            (start.elapsed(), answer)
        })
    }

    /// A container that somebody else started.
    pub fn adopt(&self, container: &str) -> String {
        let request = AdoptRequest {
            driver: "docker".to_owned(),
            native_name: container.to_owned(),
            name: None,
            labels: Labels::default(),
            wait: Wait::No,
        };
        self.runtime.block_on(self.engine.adopt(request)).unwrap().id.to_string()
    }

    pub fn snapshot(&self, id: &str) -> (Duration, String) {
        let (time, outcome) = self.timed(self.engine.snapshot(SnapshotRequest::new(id)));
        match outcome.unwrap() {
            SnapshotOutcome::Taken(taken) => (time, taken.snapshot.id.to_string()),
            SnapshotOutcome::Skipped(reason) => panic!("no snapshot: {reason}"),
        }
    }

    pub fn restore(&self, snapshot: &str) -> (Duration, String) {
        let (time, record) = self.timed(self.engine.restore(RestoreRequest::new(snapshot)));
        (time, record.unwrap().id.to_string())
    }

    pub fn destroy(&self, id: &str) {
        self.runtime.block_on(self.engine.destroy(id, Wait::No)).unwrap();
    }

    pub fn delete(&self, snapshot: &str) {
        self.runtime.block_on(self.engine.delete_snapshot(snapshot, Wait::No)).unwrap();
    }
}
