//! Starts processes, kills them, and looks at what they leave.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{self, Command, Stdio},
    sync::mpsc,
    thread,
};

use forkpoint_backends::catalog::SqliteCatalog;
use forkpoint_core::{
    catalog::{Catalog, Operation, OperationKind, SandboxRecord, SnapshotQuery},
    id::OperationId,
};
use forkpoint_testkit::conformance::catalog::scene::{DRIVER, at, created, new, sandbox};
use futures::executor::block_on;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::{DIRECTORY, SANDBOXES, SERIAL, child};

const CHILDREN: usize = 4;
const KILLS: u64 = 250;

/// Reports after which somebody is killed, at most.
const PATIENCE: u64 = 40;

struct Parent {
    directory: TempDir,
    children: BTreeMap<u64, process::Child>,
    /// By the number of the child.
    owners: BTreeMap<u64, String>,
    committed: BTreeSet<String>,
    reports: mpsc::Receiver<(u64, String)>,
    reporter: mpsc::Sender<(u64, String)>,
    started: u64,
}

pub(crate) fn kill_again_and_again() {
    let directory = TempDir::new().unwrap();
    let catalog = SqliteCatalog::open(directory.path().join("catalog.db")).unwrap();
    block_on(furnish(&catalog));
    let mut parent = Parent::new(directory);
    let (mut dice, mut taken_over) = (1u64, 0);
    for _ in 0..CHILDREN {
        parent.start();
    }
    for _ in 0..KILLS {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        parent.listen(1 + (dice >> 33) % PATIENCE);
        let dead = parent.kill((dice >> 40) as usize % CHILDREN);
        taken_over += block_on(clear(&catalog, parent.directory.path(), dead.as_deref()));
        parent.start();
    }
    parent.stop();
    block_on(parent.assert_whole(&catalog));
    assert!(taken_over > KILLS / 10, "only {taken_over} of {KILLS} died at work");
}

async fn furnish(catalog: &dyn Catalog) {
    let sandboxes: Vec<SandboxRecord> = (0..SANDBOXES).map(sandbox).collect();
    for (number, record) in sandboxes.iter().enumerate() {
        let operation = Operation {
            id: OperationId::from_u128(u128::MAX - number as u128),
            driver: DRIVER.to_owned(),
            kind: OperationKind::Create { sandbox: new(record) },
            started: at(0),
        };
        let claim = catalog.begin(&operation).await.unwrap();
        catalog.commit(&claim, &created(record)).await.unwrap();
    }
}

/// After one pass by one who lives, nothing is left open in the name of the dead.
async fn clear(catalog: &dyn Catalog, directory: &Path, dead: Option<&str>) -> u64 {
    let closed = child::recover(catalog, directory).await;
    let open = catalog.unfinished().await.unwrap();
    assert!(open.iter().all(|open| Some(open.owner.to_string().as_str()) != dead), "{open:?}");
    closed
}

impl Parent {
    fn new(directory: TempDir) -> Self {
        let (reporter, reports) = mpsc::channel();
        Self {
            directory,
            children: BTreeMap::new(),
            owners: BTreeMap::new(),
            committed: BTreeSet::new(),
            reports,
            reporter,
            started: 0,
        }
    }

    fn start(&mut self) {
        self.started += 1;
        let serial = self.started;
        let mut child = Command::new(env::current_exe().unwrap())
            .env(DIRECTORY, self.directory.path())
            .env(SERIAL, serial.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let reporter = self.reporter.clone();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = reporter.send((serial, line));
            }
        });
        self.children.insert(serial, child);
    }

    /// Waits for this many reports.
    fn listen(&mut self, count: u64) {
        for _ in 0..count {
            let report = self.reports.recv().unwrap();
            self.note(report);
        }
        self.assert_no_child_failed();
    }

    fn note(&mut self, (serial, line): (u64, String)) {
        match line.split_once(' ') {
            Some(("owner", id)) => drop(self.owners.insert(serial, id.to_owned())),
            // The end of a line may be missing when its writer was killed.
            Some(("committed", id)) if id.len() == 29 => drop(self.committed.insert(id.to_owned())),
            _ => {}
        }
    }

    fn assert_no_child_failed(&mut self) {
        for child in self.children.values_mut() {
            assert_eq!(child.try_wait().unwrap(), None, "a child ended by itself");
        }
    }

    /// Answers with the owner that the killed one was, if it came to say so.
    fn kill(&mut self, which: usize) -> Option<String> {
        let serial = *self.children.keys().nth(which)?;
        let mut child = self.children.remove(&serial)?;
        child.kill().unwrap();
        child.wait().unwrap();
        self.owners.remove(&serial)
    }

    fn stop(&mut self) {
        fs::write(self.directory.path().join("stop"), "").unwrap();
        for (_, mut child) in std::mem::take(&mut self.children) {
            assert!(child.wait().unwrap().success());
        }
        // All that write reports are gone but ourselves.
        drop(std::mem::replace(&mut self.reporter, mpsc::channel().0));
        while let Ok(report) = self.reports.recv() {
            self.note(report);
        }
    }

    async fn assert_whole(&self, catalog: &dyn Catalog) {
        child::recover(catalog, self.directory.path()).await;
        assert_eq!(catalog.unfinished().await.unwrap(), []);
        let snapshots = catalog.snapshots(&SnapshotQuery::default()).await.unwrap().items;
        let kept: BTreeSet<String> = snapshots.iter().map(|record| record.id.to_string()).collect();
        assert!(self.committed.is_subset(&kept), "a commit that was reported is lost");
        assert_eq!(catalog.usage().await.unwrap().snapshots, kept.len() as u64);
        let left = fs::read_dir(self.directory.path()).unwrap().flatten();
        let inside = |name: &str| name.starts_with("inside-");
        assert!(!left.into_iter().any(|entry| entry.file_name().to_str().is_some_and(inside)));

        let database = Connection::open(self.directory.path().join("catalog.db")).unwrap();
        let one = |sql| database.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(one("PRAGMA integrity_check"), "ok");
        assert_eq!(one("SELECT count(*) || '' FROM pragma_foreign_key_check"), "0");
        assert_eq!(one("SELECT count(*) || '' FROM claim"), "0");
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        for child in self.children.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
