//! Records with unremarkable content, and whole operations in one call.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use forkpoint_core::{
    Timestamp,
    catalog::{
        Catalog, CatalogError, CatalogResult, Change, Chore, ChoreTask, Claim, NewSandbox,
        Operation, OperationKind, Power, SandboxRecord, SnapshotRecord,
    },
    driver::{Artifact, Piece, PieceName, SnapshotKind},
    id::{OperationId, SandboxId, SnapshotId},
    label::Labels,
    naming::Name,
    spec::SandboxSpec,
    trigger::Trigger,
};

use super::CatalogOpener;

pub const DRIVER: &str = "local";

pub fn sandbox_id(number: u64) -> SandboxId {
    SandboxId::from_u128(number.into())
}

pub fn snapshot_id(number: u64) -> SnapshotId {
    SnapshotId::from_u128(number.into())
}

/// Seconds after some morning.
pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub fn labels(labels: &[(&str, &str)]) -> Labels {
    Labels::new(labels.iter().copied()).unwrap()
}

pub fn sandbox(number: u64) -> SandboxRecord {
    SandboxRecord {
        id: sandbox_id(number),
        name: None,
        driver: DRIVER.to_owned(),
        spec: SandboxSpec::new("host".parse().unwrap()),
        labels: Labels::default(),
        adopted: None,
        head: None,
        created: at(0),
        expires: None,
    }
}

pub fn named_sandbox(number: u64, name: &str) -> SandboxRecord {
    SandboxRecord { name: Some(name.parse().unwrap()), ..sandbox(number) }
}

/// Snapshot `number` of sandbox `of`, without a parent and without pieces.
pub fn snapshot(number: u64, of: u64) -> SnapshotRecord {
    let id = snapshot_id(number);
    SnapshotRecord {
        id,
        name: name(&format!("snap-{number}")),
        sandbox: sandbox_id(of),
        sandbox_name: None,
        parent: None,
        driver: DRIVER.to_owned(),
        kind: SnapshotKind::Files,
        trigger: Trigger::Manual,
        description: None,
        context: None,
        run_id: None,
        step: None,
        labels: Labels::default(),
        agent_state_bytes: None,
        spec: SandboxSpec::new("host".parse().unwrap()),
        own_bytes: 10,
        total_bytes: 100,
        file_count: 1,
        created: at(number.cast_signed()),
        expires: None,
        pinned: false,
        last_restored: None,
        restore_count: 0,
        durable: false,
        artifact: artifact(id, &[]),
    }
}

pub fn child_of(parent: u64, snapshot: SnapshotRecord) -> SnapshotRecord {
    SnapshotRecord { parent: Some(snapshot_id(parent)), ..snapshot }
}

/// `pieces` are names, each with what it lies over.
pub fn with_pieces(snapshot: SnapshotRecord, pieces: &[(&str, Option<&str>)]) -> SnapshotRecord {
    SnapshotRecord { artifact: artifact(snapshot.id, pieces), ..snapshot }
}

fn artifact(snapshot: SnapshotId, pieces: &[(&str, Option<&str>)]) -> Artifact {
    let piece = |&(name, over): &(&str, Option<&str>)| Piece {
        name: PieceName(name.to_owned()),
        over: over.map(|over| PieceName(over.to_owned())),
        bytes: 10,
    };
    Artifact {
        snapshot,
        kind: SnapshotKind::Files,
        version: 1,
        data: serde_json::Value::Null,
        pieces: pieces.iter().map(piece).collect(),
        own_bytes: 10,
        total_bytes: 100,
        file_count: 1,
        counted: true,
        durable: false,
    }
}

/// An operation with an id that no other has.
pub fn operation(driver: &str, kind: OperationKind) -> Operation {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = OperationId::from_u128(NEXT.fetch_add(1, Ordering::Relaxed).into());
    Operation { id, driver: driver.to_owned(), kind, started: at(0) }
}

pub fn new(sandbox: &SandboxRecord) -> NewSandbox {
    NewSandbox { id: sandbox.id, name: sandbox.name.clone() }
}

pub fn creation(sandbox: &SandboxRecord) -> Operation {
    operation(&sandbox.driver, OperationKind::Create { sandbox: new(sandbox) })
}

pub fn snapshotting(snapshot: &SnapshotRecord) -> Operation {
    let SnapshotRecord { id, name, sandbox, driver, .. } = snapshot.clone();
    operation(&driver, OperationKind::Snapshot { sandbox, snapshot: id, name })
}

pub fn forking(from: u64, children: &[SandboxRecord]) -> Operation {
    let children = children.iter().map(new).collect();
    operation(DRIVER, OperationKind::Fork { snapshot: snapshot_id(from), children })
}

pub fn rolling_back(sandbox: u64, to: u64) -> Operation {
    let (sandbox, to) = (sandbox_id(sandbox), snapshot_id(to));
    operation(DRIVER, OperationKind::Rollback { sandbox, to })
}

pub fn switching(sandbox: u64, to: Power) -> Operation {
    operation(DRIVER, OperationKind::Switch { sandbox: sandbox_id(sandbox), to })
}

pub fn destruction(sandbox: u64) -> Operation {
    let sandbox = sandbox_id(sandbox);
    operation(DRIVER, OperationKind::Destroy { sandbox, adopted: false })
}

pub fn deletion(snapshot: u64) -> Operation {
    operation(DRIVER, OperationKind::Delete { snapshot: snapshot_id(snapshot) })
}

pub fn renaming(snapshot: u64, new_name: Option<&str>) -> Operation {
    let (snapshot, new_name) = (snapshot_id(snapshot), new_name.map(name));
    operation(DRIVER, OperationKind::Edit { snapshot, new_name })
}

pub fn created(sandbox: &SandboxRecord) -> Change {
    added(std::slice::from_ref(sandbox), None)
}

pub fn added(sandboxes: &[SandboxRecord], from: Option<u64>) -> Change {
    Change::SandboxesAdded {
        sandboxes: sandboxes.to_vec(),
        from: from.map(snapshot_id),
        leftovers: Vec::new(),
        at: at(0),
    }
}

pub fn taken(snapshot: &SnapshotRecord) -> Change {
    Change::SnapshotTaken { snapshot: Box::new(snapshot.clone()), agent_state: None }
}

/// A handle, with whole operations that must succeed.
#[derive(Debug)]
pub struct Hand(pub Arc<dyn Catalog>);

impl Hand {
    pub fn open(fixture: &dyn CatalogOpener) -> Self {
        Self(fixture.open())
    }

    pub async fn begin(&self, operation: &Operation) -> Claim {
        self.0.begin(operation).await.unwrap()
    }

    pub async fn refusal(&self, operation: &Operation) -> CatalogError {
        self.0.begin(operation).await.unwrap_err()
    }

    pub async fn run(&self, operation: &Operation, change: &Change) -> Vec<Chore> {
        let claim = self.begin(operation).await;
        self.0.commit(&claim, change).await.unwrap()
    }

    pub async fn add(&self, sandbox: &SandboxRecord) {
        self.run(&creation(sandbox), &created(sandbox)).await;
    }

    pub async fn take(&self, snapshot: &SnapshotRecord) -> Vec<Chore> {
        self.run(&snapshotting(snapshot), &taken(snapshot)).await
    }

    pub async fn fork(&self, from: u64, children: &[SandboxRecord]) -> Vec<Chore> {
        self.run(&forking(from, children), &added(children, Some(from))).await
    }

    pub async fn roll_back(&self, sandbox: u64, to: u64) -> Vec<Chore> {
        let (id, target) = (sandbox_id(sandbox), snapshot_id(to));
        let change = Change::RolledBack { sandbox: id, to: target, at: at(0) };
        self.run(&rolling_back(sandbox, to), &change).await
    }

    pub async fn destroy(&self, sandbox: u64) -> Vec<Chore> {
        let change = Change::SandboxRemoved { sandbox: sandbox_id(sandbox) };
        self.run(&destruction(sandbox), &change).await
    }

    pub async fn delete(&self, snapshot: u64) -> Vec<Chore> {
        let change = Change::SnapshotDeleted { snapshot: snapshot_id(snapshot) };
        self.run(&deletion(snapshot), &change).await
    }

    /// With a claim to the name only where it changes, as the engine does it.
    pub async fn edit(&self, edited: &SnapshotRecord) {
        let before = self.0.snapshot(edited.id).await.unwrap().name;
        let new_name = (before != edited.name).then(|| edited.name.clone());
        let kind = OperationKind::Edit { snapshot: edited.id, new_name };
        let change = Change::SnapshotEdited { snapshot: Box::new(edited.clone()) };
        self.run(&operation(DRIVER, kind), &change).await;
    }
}

/// The names of the pieces that are to be discarded, where that is all there is to do.
pub fn discarded(chores: &[Chore]) -> Vec<&str> {
    fn name(chore: &Chore) -> &str {
        match &chore.task {
            ChoreTask::Discard(piece) => &piece.name.0,
            ChoreTask::Destroy(id) => panic!("nobody should destroy {id}"),
        }
    }
    chores.iter().map(name).collect()
}

pub fn assert_lost<T: std::fmt::Debug>(result: CatalogResult<T>, of: &Operation) {
    match result {
        Err(CatalogError::ClaimLost { id }) => assert_eq!(id, of.id),
        other => panic!("expected a lost claim, got {other:?}"),
    }
}
