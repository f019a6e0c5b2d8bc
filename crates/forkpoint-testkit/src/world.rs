//! Processes, a platform and a catalog, and what must hold between them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use forkpoint_core::{
    Engine, EngineConfig, Result,
    catalog::{Catalog, LineageScope, SandboxQuery, SandboxRecord, SnapshotQuery, SnapshotRecord},
    driver::{Driver as _, SandboxState},
    engine::{RestoreRequest, Wait},
    id::{SandboxId, SnapshotId},
    lineage::LineageNode,
};

use crate::{
    FakePlatform, FixedEnvironment, ProcessId, SharedTables, Simulation,
    fake::DRIVER,
    faults::{Faults, FaultyCatalog, FaultyDriver},
};

/// Somewhere that a catalog can be opened again and again.
pub trait CatalogOpener: fmt::Debug + Send + Sync {
    /// One more handle on the same data, as another process would have it. Dropping the last
    /// reference to a handle is the end of that process.
    fn open(&self) -> Arc<dyn Catalog>;
}

impl CatalogOpener for SharedTables {
    fn open(&self) -> Arc<dyn Catalog> {
        Arc::new(Self::open(self))
    }
}

#[derive(Debug)]
pub struct World {
    pub simulation: Simulation,
    pub platform: FakePlatform,
    pub faults: Faults,
    pub config: EngineConfig,
    opener: Arc<dyn CatalogOpener>,
    processes: AtomicU32,
}

/// A process and the engine in it. The engine must live in the process's tasks alone: when they are
/// killed, so is the owner.
#[derive(Debug)]
pub struct Seat {
    pub process: ProcessId,
    pub engine: Engine,
}

impl World {
    #[must_use]
    pub fn new(simulation: Simulation) -> Self {
        Self::with_catalog(simulation, Arc::new(SharedTables::default()))
    }

    #[must_use]
    pub fn with_catalog(simulation: Simulation, opener: Arc<dyn CatalogOpener>) -> Self {
        Self {
            faults: Faults::new(simulation.clone()),
            simulation,
            platform: FakePlatform::default(),
            config: EngineConfig::new(DRIVER),
            opener,
            processes: AtomicU32::new(1),
        }
    }

    /// A new process.
    ///
    /// # Panics
    ///
    /// When the configuration is refused.
    #[must_use]
    pub fn seat(&self) -> Seat {
        let process = ProcessId(self.processes.fetch_add(1, Ordering::Relaxed));
        let driver = Arc::new(self.platform.driver());
        let driver = FaultyDriver::new(driver, self.faults.clone(), process);
        let catalog = FaultyCatalog::new(self.opener.open(), self.faults.clone(), process);
        let environment = FixedEnvironment::new(self.simulation.clone(), process);
        let engine = Engine::new(
            [Arc::new(driver) as _],
            Arc::new(catalog),
            Arc::new(environment),
            self.config.clone(),
        );
        Seat { process, engine: engine.expect("the test's configuration is valid") }
    }

    /// Runs `work` in a new process to its end.
    ///
    /// # Panics
    ///
    /// When the process is killed meanwhile.
    pub fn run<T, W>(&self, work: impl FnOnce(Engine) -> W) -> T
    where
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        self.try_run(work).expect("nobody kills this process")
    }

    /// Runs `work` in a new process; `None` when it was killed.
    pub fn try_run<T, W>(&self, work: impl FnOnce(Engine) -> W) -> Option<T>
    where
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        let Seat { process, engine } = self.seat();
        self.simulation.run(process, work(engine))
    }

    /// The process that the next [`World::seat`] will be.
    #[must_use]
    pub fn next_process(&self) -> ProcessId {
        ProcessId(self.processes.load(Ordering::Relaxed))
    }

    /// What everybody can see, for comparing before and after.
    ///
    /// # Panics
    ///
    /// When the catalog cannot be read.
    #[must_use]
    pub fn visible(&self) -> Visible {
        let catalog = self.opener.open();
        let states = self.platform.states();
        let read = async move {
            let sandboxes = catalog.sandboxes(&SandboxQuery::default()).await?.items;
            let snapshots = catalog.snapshots(&SnapshotQuery::default()).await?.items;
            let known = |id: &SandboxId| sandboxes.iter().any(|record| record.id == *id);
            let states = states.into_iter().filter(|(id, _)| known(id)).collect();
            Ok::<_, forkpoint_core::catalog::CatalogError>(Visible { sandboxes, snapshots, states })
        };
        self.outside(read).expect("a catalog without faults answers")
    }

    /// What does not hold although nothing is under way. Restores every snapshot, so it comes last.
    #[must_use]
    pub fn broken_invariants(&self) -> Vec<String> {
        self.faults.disarm();
        let mut broken = self.platform.violations();
        broken.extend(self.faults.violations());
        broken.extend(self.platform.paused().iter().map(|id| format!("`{id}` stays paused")));
        broken.extend(self.open_operations());
        broken.extend(self.waiting_chores());
        broken.extend(self.disagreements());
        broken.extend(self.broken_lineage());
        let snapshots = self.visible().snapshots;
        broken.extend(snapshots.iter().filter_map(|each| self.broken_promise(each)));
        broken.extend(snapshots.iter().filter_map(|each| self.unrestorable(each)));
        broken
    }

    /// Operations that nobody has closed.
    #[must_use]
    pub fn open_operations(&self) -> Vec<String> {
        let catalog = self.opener.open();
        let open = self.outside(async move { catalog.unfinished().await });
        open.unwrap_or_default().iter().map(|open| format!("still open: {open}")).collect()
    }

    fn waiting_chores(&self) -> Vec<String> {
        let catalog = self.opener.open();
        let chores = self.outside(async move { catalog.chores().await }).unwrap_or_default();
        chores.iter().map(|chore| format!("still to do: {:?}", chore.task)).collect()
    }

    /// Catalog and platform must know the same sandboxes at the same places, and the same pieces.
    fn disagreements(&self) -> Vec<String> {
        let catalog = self.opener.open();
        let (driver, records) = (self.platform.driver(), self.visible().sandboxes);
        let read = async move {
            let mut broken = Vec::new();
            let ours = records.iter().filter(|row| row.adopted.is_none()).map(|row| row.id);
            let known: BTreeSet<SandboxId> = ours.collect();
            let there: BTreeSet<SandboxId> =
                driver.list().await.unwrap_or_default().into_iter().collect();
            if known != there {
                broken.push(format!("the catalog has {known:?}, the platform {there:?}"));
            }
            for record in records {
                let base = driver.status(record.id).await.ok().flatten().and_then(|s| s.base);
                // One that was forgotten and adopted again may stand on what is long deleted.
                let again = record.adopted.is_some() && record.head.is_none();
                if base != record.head && !again {
                    let (id, head) = (record.id, record.head);
                    broken.push(format!("`{id}` stands on {base:?}, the catalog says {head:?}"));
                }
            }
            (broken, catalog.pieces(DRIVER).await.unwrap_or_default())
        };
        let (mut broken, mut known) = self.outside(read);
        known.sort();
        let there = self.platform.pieces();
        if known != there {
            broken.push(format!("pieces leaked or lost: catalog {known:?}, platform {there:?}"));
        }
        broken
    }

    fn broken_lineage(&self) -> Vec<String> {
        let catalog = self.opener.open();
        let read = async move { catalog.lineage(&LineageScope::Everything).await };
        let nodes = self.outside(read).unwrap_or_default();
        let ids: BTreeSet<SnapshotId> = nodes.iter().map(|node| node.id).collect();
        let mut broken = Vec::new();
        for LineageNode { id, parent, .. } in nodes {
            if parent.is_some_and(|parent| !ids.contains(&parent)) {
                broken.push(format!("`{id}` hangs on nothing"));
            }
            let grown = self.platform.grown_from(id).flatten().filter(|grown| ids.contains(grown));
            if self.platform.grown_from(id).is_some() && grown != parent {
                broken.push(format!("`{id}` did not grow from {parent:?}"));
            }
        }
        broken
    }

    fn broken_promise(&self, snapshot: &SnapshotRecord) -> Option<String> {
        let lost = snapshot.durable && !self.platform.is_synced(snapshot.id);
        lost.then(|| format!("`{}` is said to survive a power cut, and does not", snapshot.id))
    }

    fn unrestorable(&self, snapshot: &SnapshotRecord) -> Option<String> {
        let id = snapshot.id;
        let restored = self.run(move |engine| async move {
            engine.restore(RestoreRequest::new(id.to_string())).await
        });
        let record = match restored {
            Ok(record) => record,
            Err(err) => return Some(format!("visible `{id}` does not restore: {}", err.chain())),
        };
        let same = self.platform.files(record.id) == self.platform.truth(id);
        let gone: Result<SandboxRecord> = self.run(move |engine| async move {
            engine.destroy(&record.id.to_string(), Wait::No).await
        });
        match (same, gone) {
            (true, Ok(_)) => None,
            (false, _) => Some(format!("`{id}` restores to something else")),
            (_, Err(err)) => Some(format!("a copy of `{id}` cannot go: {}", err.chain())),
        }
    }

    /// Runs what is no engine's work, past all faults.
    fn outside<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.simulation.run(ProcessId(0), work).expect("process 0 is never killed")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visible {
    pub sandboxes: Vec<SandboxRecord>,
    pub snapshots: Vec<SnapshotRecord>,
    /// Whether they run, as their users left them.
    pub states: BTreeMap<SandboxId, SandboxState>,
}
