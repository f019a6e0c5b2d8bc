//! The driver on Podman's socket, which speaks as Docker's does.

use std::sync::Arc;

use forkpoint_backends::driver::docker::{DockerConfig, DockerDriver, Endpoint};
use forkpoint_core::{driver::Driver, spec::SandboxSpec};
use forkpoint_testkit::{
    conformance::driver::DriverFixture,
    docker::{IMAGE, Podman},
};
use futures::{FutureExt as _, future::BoxFuture};
use tempfile::TempDir;

use super::{runtime, scene::WAIT, spec, unique};

struct Service {
    podman: Podman,
    directory: TempDir,
    _own: TempDir,
}

impl Service {
    fn start() -> Self {
        let own = TempDir::new().unwrap();
        Self { podman: Podman::start(own.path()), directory: TempDir::new().unwrap(), _own: own }
    }
}

impl DriverFixture for Service {
    fn driver(&self) -> Arc<dyn Driver> {
        let endpoint = Endpoint::Unix(self.podman.socket());
        let config = DockerConfig::new(endpoint, self.directory.path().join("docker"));
        Arc::new(DockerDriver::open(config).unwrap())
    }

    fn spec(&self) -> SandboxSpec {
        spec()
    }

    fn unique(&self) -> u128 {
        unique()
    }

    fn foreign(&self) -> BoxFuture<'_, Option<String>> {
        async {
            let args = ["run", "-d", "--name", "foreign", "--network", "none"];
            let command = [IMAGE, "sh", "-c", WAIT];
            let _ = self.podman.docker(&[&args[..], &command].concat());
            Some("foreign".to_owned())
        }
        .boxed()
    }

    fn run(&self, case: BoxFuture<'_, ()>) {
        runtime().block_on(case);
    }
}

mod conformance {
    use super::Service;

    forkpoint_testkit::driver_conformance!(Service::start());
}
