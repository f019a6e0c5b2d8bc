//! Containers: their volumes, and the engine that runs them.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use forkpoint_backends::driver::docker::{DockerConfig, DockerDriver, Endpoint};
use forkpoint_core::{driver::Driver, spec::SandboxSpec};
use forkpoint_testkit::{
    conformance::driver::DriverFixture,
    docker::{DockerEngine, IMAGE},
};
use futures::{FutureExt as _, future::BoxFuture};
use tempfile::TempDir;

mod archives;
mod exchange;
mod faults;
mod full;
mod guard;
mod kills;
mod plugin;
mod podman;
mod returns;
mod scene;
mod space;
mod still;
mod tls;
mod unchanged;
mod volatile;
mod volumes;
mod whole;

/// An engine, and a data directory that belongs to one test.
struct Machine {
    engine: DockerEngine,
    directory: TempDir,
}

impl Machine {
    fn new() -> Self {
        let engine = DockerEngine::shared(Path::new(env!("CARGO_TARGET_TMPDIR")));
        Self { engine, directory: TempDir::new().unwrap() }
    }

    /// With an engine of its own, which can be killed.
    fn own(directory: TempDir) -> Self {
        let at = directory.path().join("engine");
        std::fs::create_dir(&at).unwrap();
        Self { engine: DockerEngine::own(&at), directory }
    }

    fn docker(&self) -> DockerDriver {
        self.docker_with(|_| ())
    }

    fn docker_with(&self, change: impl FnOnce(&mut DockerConfig)) -> DockerDriver {
        let endpoint = Endpoint::Unix(self.engine.socket());
        let mut config = DockerConfig::new(endpoint, self.directory.path().join("docker"));
        change(&mut config);
        DockerDriver::open(config).unwrap()
    }

    /// A driver that speaks to the same engine through another socket.
    fn docker_through(&self, socket: &Path) -> DockerDriver {
        self.docker_with(|config| config.endpoint = Endpoint::Unix(socket.to_owned()))
    }

    /// Whatever a test that failed left there.
    fn clear(&self) {
        let Ok(id) = std::fs::read_to_string(self.directory.path().join("docker/id")) else {
            return;
        };
        let filter = format!("label=forkpoint.data={id}");
        let list = |args: &[&str]| {
            let output = self.engine.command().args(args).args(["--filter", &filter]).output();
            let listed = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            listed.unwrap_or_default().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        for (listed, remove) in [
            (list(&["ps", "-aq"]), &["rm", "-fv"][..]),
            (list(&["images", "-q"]), &["rmi", "-f"]),
            (list(&["volume", "ls", "-q"]), &["volume", "rm", "-f"]),
        ] {
            for id in listed {
                let _ = self.engine.command().args(remove).arg(id).output();
            }
        }
    }
}

/// A number that no other test comes up with.
fn unique() -> u128 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let here =
        u128::from(std::process::id()) << 32 | u128::from(NEXT.fetch_add(1, Ordering::Relaxed));
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let now = now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned();
    u128::from(now) << 64 | here
}

fn spec() -> SandboxSpec {
    SandboxSpec::new(IMAGE.parse().unwrap())
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A container that somebody else started.
struct Foreign(Machine, String);

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.0.engine.command().args(["rm", "-fv", &self.1]).output();
    }
}

impl Foreign {
    fn new() -> Self {
        Self(Machine::new(), format!("foreign-{:x}", unique()))
    }
}

impl DriverFixture for Foreign {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::new(self.0.docker())
    }

    fn spec(&self) -> SandboxSpec {
        spec()
    }

    fn unique(&self) -> u128 {
        unique()
    }

    fn foreign(&self) -> BoxFuture<'_, Option<String>> {
        async {
            let wait = "trap 'exit 0' TERM; while :; do sleep 100 & wait $!; done";
            self.0.engine.docker(["run", "-d", "--name", &self.1, IMAGE, "sh", "-c", wait]);
            Some(self.1.clone())
        }
        .boxed()
    }

    fn run(&self, case: BoxFuture<'_, ()>) {
        runtime().block_on(case);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

mod conformance {
    use super::Foreign;

    forkpoint_testkit::driver_conformance!(Foreign::new());
}
