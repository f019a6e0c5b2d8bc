//! The local driver on this machine's kernel.

use std::{
    env,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use forkpoint_backends::driver::local::{LocalConfig, LocalDriver};
use forkpoint_core::{driver::Driver, spec::SandboxSpec};
use forkpoint_testkit::conformance::driver::DriverFixture;
use futures::future::BoxFuture;
use tempfile::TempDir;

mod chains;
mod expect;
mod faults;
mod files;
mod full;
mod full_disk;
mod full_faults;
mod hostile;
mod images;
mod in_place;
mod limits;
mod looks;
mod owners;
mod postgres;
mod programs;
mod rights;
mod rotations;
mod scene;
mod seals;
mod spare;
mod templates;
mod together;
mod travel;
mod trees;
mod unchanged;
mod waiting;
mod warm;
mod workspace;

mod unprivileged;

/// Where the helper is, for somebody who may not go where it was built.
const HELPER: &str = "FORKPOINT_TEST_HELPER";

struct Machine {
    directory: Directory,
    map_users: bool,
    /// How many sandboxes are kept ready.
    warm: usize,
    share_memory: bool,
    live_rotation: bool,
}

/// Its own, or one that another looks at as well and removes.
enum Directory {
    Own(TempDir),
    Beside(PathBuf),
}

impl Directory {
    fn path(&self) -> &Path {
        match self {
            Self::Own(directory) => directory.path(),
            Self::Beside(path) => path,
        }
    }
}

impl Machine {
    fn new(map_users: bool) -> Self {
        Self {
            directory: Directory::Own(TempDir::new().unwrap()),
            map_users,
            warm: 0,
            share_memory: false,
            live_rotation: true,
        }
    }

    fn beside(directory: &Path) -> Self {
        Self {
            directory: Directory::Beside(directory.to_owned()),
            map_users: true,
            warm: 0,
            share_memory: false,
            live_rotation: true,
        }
    }

    fn local(&self) -> LocalDriver {
        let (helper, root) = (Some(helper()), self.directory.path().join("local"));
        let Self { map_users, warm, share_memory, live_rotation, .. } = *self;
        let config = LocalConfig { root, helper, map_users, warm, share_memory, live_rotation };
        LocalDriver::open(config).unwrap()
    }
}

/// A case that failed leaves nothing behind either.
impl Drop for Machine {
    fn drop(&mut self) {
        self.warm = 0;
        let driver = self.local();
        run(async {
            for id in driver.list().await.unwrap_or_default() {
                let _ = driver.destroy(id).await;
            }
        });
    }
}

fn helper() -> PathBuf {
    let built = env!("CARGO_BIN_EXE_forkpoint-spawner");
    env::var_os(HELPER).map_or_else(|| built.into(), PathBuf::from)
}

impl DriverFixture for Machine {
    fn driver(&self) -> Arc<dyn Driver> {
        let driver = self.local();
        warm::until_ready(&driver, self.warm);
        Arc::new(driver)
    }

    fn spec(&self) -> SandboxSpec {
        SandboxSpec::new("host".parse().unwrap())
    }

    fn unique(&self) -> u128 {
        unique()
    }

    fn foreign(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(async { None })
    }

    fn privileged(&self) -> bool {
        rustix::process::geteuid().is_root()
    }

    fn run(&self, case: BoxFuture<'_, ()>) {
        run(case);
    }
}

fn run<T>(case: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(case)
}

/// Differs between processes too: cgroups are named after sandboxes.
fn unique() -> u128 {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let process = u128::from(std::process::id());
    (now << 48) | (process << 16) | u128::from(COUNTER.fetch_add(1, Ordering::Relaxed))
}

mod mapped {
    forkpoint_testkit::driver_conformance!(super::Machine::new(true));
}

mod plain {
    forkpoint_testkit::driver_conformance!(super::Machine::new(false));
}

mod mapped_and_warm {
    forkpoint_testkit::driver_conformance!(super::warm::machine(true, 3));
}

mod plain_and_warm {
    forkpoint_testkit::driver_conformance!(super::warm::machine(false, 3));
}
