//! A process that takes snapshots until it is told to stop, or killed.

use std::{
    env, fs,
    hash::{BuildHasher as _, RandomState},
    path::{Path, PathBuf},
    thread,
};

use forkpoint_backends::catalog::SqliteCatalog;
use forkpoint_core::{
    catalog::{
        Catalog, CatalogError, Claim, OpenOperation, Operation, OperationKind, OwnerState,
        Reclaimed,
    },
    id::{OperationId, SandboxId},
};
use forkpoint_testkit::conformance::catalog::scene::{
    DRIVER, at, sandbox_id, snapshot, snapshot_id, taken,
};
use futures::executor::block_on;

use crate::{SANDBOXES, SERIAL};

struct Child {
    catalog: SqliteCatalog,
    directory: PathBuf,
    serial: u64,
    counter: u64,
}

pub(crate) fn work(directory: &Path) {
    let serial = env::var(SERIAL).unwrap().parse().unwrap();
    let catalog = SqliteCatalog::open(directory.join("catalog.db")).unwrap();
    report(&format!("owner {}", catalog.owner()));
    let mut child = Child { catalog, directory: directory.to_owned(), serial, counter: 0 };
    block_on(recover(&child.catalog, directory));
    while !directory.join("stop").exists() {
        block_on(child.step());
    }
}

/// When the parent is gone, so is the pipe, and this ends the child.
fn report(line: &str) {
    println!("{line}");
}

fn random(below: u64) -> u64 {
    RandomState::new().hash_one(0) % below
}

impl Child {
    async fn step(&mut self) {
        self.counter += 1;
        let number = self.serial * 1_000_000 + self.counter;
        let of = random(SANDBOXES);
        let record = snapshot(number, of);
        let operation = Operation {
            id: OperationId::from_u128(number.into()),
            driver: DRIVER.to_owned(),
            kind: OperationKind::Snapshot {
                sandbox: record.sandbox,
                snapshot: record.id,
                name: record.name.clone(),
            },
            started: at(0),
        };
        match self.catalog.begin(&operation).await {
            Ok(claim) => self.finish(number, of, &claim).await,
            Err(CatalogError::Busy { by, .. }) if by.owner_state == OwnerState::Gone => {
                close(&self.catalog, &self.directory, &by).await;
            }
            Err(CatalogError::Busy { .. }) => thread::yield_now(),
            Err(err) => panic!("{err:?}"),
        }
    }

    /// Inside the sandbox there is a marker, and nobody else.
    async fn finish(&self, number: u64, of: u64, claim: &Claim) {
        let marker = marker(&self.directory, sandbox_id(of));
        fs::File::create_new(&marker).expect("somebody else is in the sandbox");
        report("inside");
        for _ in 0..random(200) {
            thread::yield_now();
        }
        fs::remove_file(&marker).expect("somebody took us for dead");
        if random(4) == 0 {
            self.catalog.abort(claim).await.unwrap();
        } else {
            let record = snapshot(number, of);
            self.catalog.commit(claim, &taken(&record)).await.unwrap();
            report(&format!("committed {}", snapshot_id(number)));
        }
    }
}

fn marker(directory: &Path, sandbox: SandboxId) -> PathBuf {
    directory.join(format!("inside-{sandbox}"))
}

/// One pass: closes what the dead have left, and says how much that was.
pub(crate) async fn recover(catalog: &dyn Catalog, directory: &Path) -> u64 {
    let mut closed = 0;
    for open in catalog.unfinished().await.unwrap() {
        if open.owner_state == OwnerState::Gone {
            closed += u64::from(close(catalog, directory, &open).await);
        }
    }
    closed
}

/// False when somebody else was faster.
async fn close(catalog: &dyn Catalog, directory: &Path, open: &OpenOperation) -> bool {
    let Reclaimed::Ours(claim) = catalog.reclaim(&open.claim).await.unwrap() else {
        return false;
    };
    let OperationKind::Snapshot { sandbox, .. } = open.operation.kind else {
        panic!("nobody began {open:?}");
    };
    // Nobody can be inside: the operation is ours, and whoever had it is dead.
    let _ = fs::remove_file(marker(directory, sandbox));
    catalog.abort(&claim).await.unwrap();
    true
}
