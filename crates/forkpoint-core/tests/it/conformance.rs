//! The fakes pass the suites that real implementations must pass.

mod blob_store {
    use forkpoint_testkit::MemoryBlobStore;

    forkpoint_testkit::blob_store_conformance!(MemoryBlobStore::default());
}

mod catalog {
    forkpoint_testkit::catalog_conformance!(forkpoint_testkit::SharedTables::default());
}

mod driver {
    use std::sync::Arc;

    use forkpoint_core::{driver::Driver, spec::SandboxSpec};
    use forkpoint_testkit::{FakePlatform, Files, Simulation, conformance::driver::DriverFixture};
    use futures::future::BoxFuture;

    struct Fake {
        platform: FakePlatform,
        simulation: Simulation,
    }

    impl DriverFixture for Fake {
        fn driver(&self) -> Arc<dyn Driver> {
            Arc::new(self.platform.driver())
        }

        fn spec(&self) -> SandboxSpec {
            SandboxSpec::new("tiny".parse().unwrap())
        }

        fn unique(&self) -> u128 {
            self.simulation.unique()
        }

        fn real(&self) -> bool {
            false
        }

        fn foreign(&self) -> BoxFuture<'_, Option<String>> {
            self.platform.add_foreign("webapp", Files::new());
            Box::pin(async { Some("webapp".to_owned()) })
        }
    }

    forkpoint_testkit::driver_conformance!(Fake {
        platform: FakePlatform::default(),
        simulation: Simulation::in_order(),
    });
}
