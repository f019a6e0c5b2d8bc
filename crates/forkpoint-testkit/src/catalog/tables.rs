//! The rules of a catalog, written for reading: plain maps and full scans.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use forkpoint_core::{
    catalog::{
        CatalogError, CatalogResult, Change, Chore, ChoreId, ChoreTask, Claim, ClaimMode, Claimed,
        Existence, OpenOperation, Operation, OwnerState, Reclaimed, Resource, SandboxRecord,
        SnapshotRecord,
    },
    driver::{Artifact, Piece, PieceName},
    id::{OperationId, OwnerId, SandboxId, SnapshotId},
    lineage::LineageNode,
};

mod read;

/// Rows in the order in which they were committed.
type Rows<T> = BTreeMap<u64, T>;

#[derive(Debug, Default)]
pub(super) struct Tables {
    next: u64,
    sandboxes: Rows<SandboxRecord>,
    snapshots: Rows<SnapshotRecord>,
    /// Deleted snapshots that something still hangs on, at their old places.
    ghosts: Rows<LineageNode>,
    agent_states: BTreeMap<SnapshotId, Bytes>,
    open: Rows<Open>,
    closed: BTreeMap<OperationId, bool>,
    chores: Rows<Chore>,
    pieces: BTreeMap<(String, PieceName), PieceRow>,
    owners: BTreeSet<OwnerId>,
}

#[derive(Debug)]
struct Open {
    operation: Operation,
    owner: OwnerId,
    attempt: u32,
}

#[derive(Debug, Default)]
struct PieceRow {
    over: Option<PieceName>,
    bytes: u64,
    holders: BTreeSet<Holder>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Sandbox(SandboxId),
    Snapshot(SnapshotId),
}

impl Tables {
    pub(super) fn add_owner(&mut self) -> OwnerId {
        let owner = OwnerId::from_u128(u128::from(self.take_number()));
        self.owners.insert(owner);
        owner
    }

    pub(super) fn remove_owner(&mut self, owner: OwnerId) {
        self.owners.remove(&owner);
    }

    pub(super) fn begin(&mut self, us: OwnerId, operation: &Operation) -> CatalogResult<Claim> {
        for claimed in operation.claims() {
            self.check_free(us, &claimed)?;
            self.check_existence(&claimed)?;
        }
        let number = self.take_number();
        let open = Open { operation: operation.clone(), owner: us, attempt: 1 };
        self.open.insert(number, open);
        Ok(Claim::first(operation.id))
    }

    fn check_free(&self, us: OwnerId, wanted: &Claimed) -> CatalogResult<()> {
        let in_the_way = |open: &&Open| {
            open.operation.claims().iter().any(|held| {
                let both_read = held.mode == ClaimMode::Shared && wanted.mode == ClaimMode::Shared;
                held.resource == wanted.resource && !both_read
            })
        };
        match self.open.values().find(in_the_way) {
            None => Ok(()),
            Some(open) => Err(CatalogError::Busy {
                resource: wanted.resource.clone(),
                by: Box::new(self.describe(us, open)),
            }),
        }
    }

    fn check_existence(&self, claimed: &Claimed) -> CatalogResult<()> {
        let required = claimed.existence == Existence::Required;
        match &claimed.resource {
            Resource::Sandbox(id) => match self.sandbox(*id) {
                Ok(_) if !required => Err(CatalogError::AlreadyKnown { id: id.to_string() }),
                Err(missing) if required => Err(missing),
                _ => Ok(()),
            },
            Resource::Snapshot(id) => match self.snapshot(*id) {
                Ok(_) if !required => Err(CatalogError::AlreadyKnown { id: id.to_string() }),
                Err(missing) if required => Err(missing),
                _ => Ok(()),
            },
            Resource::SandboxName { driver, name } => {
                let same =
                    |row: &&SandboxRecord| row.driver == *driver && row.name.as_ref() == Some(name);
                taken(name, self.sandboxes.values().find(same).map(|row| row.id.to_string()))
            }
            Resource::SnapshotName(name) => {
                let same = |row: &&SnapshotRecord| row.name == *name;
                taken(name, self.snapshots.values().find(same).map(|row| row.id.to_string()))
            }
        }
    }

    pub(super) fn commit(
        &mut self,
        us: OwnerId,
        claim: &Claim,
        change: &Change,
    ) -> CatalogResult<Vec<Chore>> {
        if let Change::SnapshotTaken { snapshot, .. } | Change::SnapshotImported { snapshot } =
            change
        {
            self.check_pieces(&snapshot.driver, &snapshot.artifact)?;
        }
        let operation = self.close(us, claim, true)?;
        let before = self.next;
        match change {
            Change::SandboxesAdded { sandboxes, from, leftovers, at } => {
                for sandbox in sandboxes {
                    let number = self.take_number();
                    self.sandboxes.insert(number, sandbox.clone());
                    self.hold(&sandbox.driver, Holder::Sandbox(sandbox.id), *from);
                }
                for left in leftovers {
                    self.add_chore(&operation.driver, ChoreTask::Destroy(*left));
                }
                self.count_restores(*from, sandboxes.len() as u64, *at);
            }
            Change::SnapshotTaken { snapshot, agent_state } => {
                let number = self.take_number();
                self.snapshots.insert(number, (**snapshot).clone());
                if let Some(state) = agent_state {
                    self.agent_states.insert(snapshot.id, state.clone());
                }
                self.add_pieces(&snapshot.driver, &snapshot.artifact);
                self.stand_on(snapshot.sandbox, snapshot.id);
            }
            Change::SnapshotImported { snapshot } => {
                let number = self.take_number();
                self.snapshots.insert(number, (**snapshot).clone());
                self.add_pieces(&snapshot.driver, &snapshot.artifact);
            }
            Change::SnapshotEdited { snapshot } => self.edit(snapshot),
            Change::SnapshotDeleted { snapshot } => self.delete(*snapshot),
            Change::RolledBack { sandbox, to, at } => {
                self.stand_on(*sandbox, *to);
                self.count_restores(Some(*to), 1, *at);
            }
            Change::Switched => {}
            Change::SandboxRemoved { sandbox } => self.remove(*sandbox),
        }
        Ok(self.chores.range(before + 1..).map(|(_, chore)| chore.clone()).collect())
    }

    pub(super) fn close(
        &mut self,
        us: OwnerId,
        claim: &Claim,
        committed: bool,
    ) -> CatalogResult<Operation> {
        let id = claim.operation;
        let held = |open: &Open| {
            open.operation.id == id && open.attempt == claim.attempt && open.owner == us
        };
        let number = self.open.iter().find(|(_, open)| held(open)).map(|(number, _)| *number);
        let open = number.and_then(|number| self.open.remove(&number));
        let open = open.ok_or(CatalogError::ClaimLost { id })?;
        self.closed.insert(id, committed);
        Ok(open.operation)
    }

    pub(super) fn unfinished(&self, us: OwnerId) -> Vec<OpenOperation> {
        self.open.values().map(|open| self.describe(us, open)).collect()
    }

    pub(super) fn reclaim(&mut self, us: OwnerId, claim: &Claim) -> Reclaimed {
        let id = claim.operation;
        match self.open.values_mut().find(|open| open.operation.id == id) {
            Some(open) if open.attempt == claim.attempt => {
                open.owner = us;
                open.attempt += 1;
                Reclaimed::Ours(Claim { operation: id, attempt: open.attempt })
            }
            Some(_) => Reclaimed::Lost,
            None if self.closed.get(&id) == Some(&true) => Reclaimed::Committed,
            None => Reclaimed::Lost,
        }
    }

    pub(super) fn chores(&self) -> Vec<Chore> {
        self.chores.values().cloned().collect()
    }

    pub(super) fn chore_done(&mut self, id: ChoreId) {
        self.chores.remove(&id.0);
    }

    fn describe(&self, us: OwnerId, open: &Open) -> OpenOperation {
        let owner_state = match open.owner {
            owner if owner == us => OwnerState::Us,
            owner if self.owners.contains(&owner) => OwnerState::Alive,
            _ => OwnerState::Gone,
        };
        let operation = open.operation.clone();
        let claim = Claim { operation: operation.id, attempt: open.attempt };
        OpenOperation { operation, claim, owner: open.owner, owner_state }
    }

    fn edit(&mut self, edited: &SnapshotRecord) {
        if let Some(row) = self.snapshots.values_mut().find(|row| row.id == edited.id) {
            row.name = edited.name.clone();
            row.description = edited.description.clone();
            row.labels = edited.labels.clone();
            row.expires = edited.expires;
            row.pinned = edited.pinned;
        }
    }

    fn delete(&mut self, id: SnapshotId) {
        let number = self.snapshots.iter().find(|(_, row)| row.id == id).map(|(n, _)| *n);
        let Some((number, record)) =
            number.and_then(|number| Some((number, self.snapshots.remove(&number)?)))
        else {
            return;
        };
        self.agent_states.remove(&id);
        self.ghosts.insert(number, LineageNode { deleted: true, ..read::node(&record) });
        self.forget_ghosts(Some(id));
        self.release(&record.driver, Holder::Snapshot(id));
    }

    fn remove(&mut self, id: SandboxId) {
        let number = self.sandboxes.iter().find(|(_, row)| row.id == id).map(|(n, _)| *n);
        if let Some(record) = number.and_then(|number| self.sandboxes.remove(&number)) {
            self.release(&record.driver, Holder::Sandbox(id));
            self.forget_ghosts(record.head);
        }
    }

    /// The sandbox's next snapshot grows from `snapshot`, and it needs what that occupies.
    fn stand_on(&mut self, sandbox: SandboxId, snapshot: SnapshotId) {
        let Some(row) = self.sandboxes.values_mut().find(|row| row.id == sandbox) else {
            return;
        };
        let (driver, before) = (row.driver.clone(), row.head.replace(snapshot));
        let old = self.held_by(&driver, Holder::Sandbox(sandbox));
        for piece in &old {
            if let Some(row) = self.pieces.get_mut(&(driver.clone(), piece.clone())) {
                row.holders.remove(&Holder::Sandbox(sandbox));
            }
        }
        self.hold(&driver, Holder::Sandbox(sandbox), Some(snapshot));
        self.free_unneeded(&driver, old);
        self.forget_ghosts(before);
    }

    /// What a piece lies over must be counted, or it could go from under it.
    fn check_pieces(&self, driver: &str, artifact: &Artifact) -> CatalogResult<()> {
        let own = |name: &PieceName| artifact.pieces.iter().any(|piece| piece.name == *name);
        let known = |name: &PieceName| {
            own(name) || self.pieces.contains_key(&(driver.to_owned(), name.clone()))
        };
        match artifact.pieces.iter().find(|piece| !piece.over.iter().all(known)) {
            Some(Piece { name: piece, .. }) => {
                Err(CatalogError::PieceUnknown { piece: piece.clone() })
            }
            None => Ok(()),
        }
    }

    fn add_pieces(&mut self, driver: &str, artifact: &Artifact) {
        for piece in &artifact.pieces {
            let row = self.pieces.entry((driver.to_owned(), piece.name.clone())).or_default();
            row.over = piece.over.clone();
            row.bytes = piece.bytes;
            row.holders.insert(Holder::Snapshot(artifact.snapshot));
        }
    }

    fn hold(&mut self, driver: &str, holder: Holder, from: Option<SnapshotId>) {
        let Some(from) = from else { return };
        for piece in self.held_by(driver, Holder::Snapshot(from)) {
            if let Some(row) = self.pieces.get_mut(&(driver.to_owned(), piece)) {
                row.holders.insert(holder);
            }
        }
    }

    fn release(&mut self, driver: &str, holder: Holder) {
        let held = self.held_by(driver, holder);
        for row in self.pieces.values_mut() {
            row.holders.remove(&holder);
        }
        self.free_unneeded(driver, held);
    }

    fn held_by(&self, driver: &str, holder: Holder) -> Vec<PieceName> {
        self.pieces
            .iter()
            .filter(|((of, _), row)| of == driver && row.holders.contains(&holder))
            .map(|((_, name), _)| name.clone())
            .collect()
    }

    /// Pieces that nobody holds and nothing lies over become chores, from the top down.
    fn free_unneeded(&mut self, driver: &str, mut suspects: Vec<PieceName>) {
        while let Some(name) = suspects.pop() {
            let key = (driver.to_owned(), name.clone());
            let covered = self
                .pieces
                .iter()
                .any(|((of, _), row)| of == driver && row.over.as_ref() == Some(&name));
            let Some(row) = self.pieces.get(&key) else { continue };
            if covered || !row.holders.is_empty() {
                continue;
            }
            let (over, bytes) = (row.over.clone(), row.bytes);
            suspects.extend(over.clone());
            self.pieces.remove(&key);
            self.add_chore(driver, ChoreTask::Discard(Piece { name, over, bytes }));
        }
    }

    fn add_chore(&mut self, driver: &str, task: ChoreTask) {
        let number = self.take_number();
        let chore = Chore { id: ChoreId(number), driver: driver.to_owned(), task };
        self.chores.insert(number, chore);
    }

    fn count_restores(
        &mut self,
        of: Option<SnapshotId>,
        count: u64,
        at: forkpoint_core::Timestamp,
    ) {
        if let Some(row) = self.snapshots.values_mut().find(|row| Some(row.id) == of) {
            row.restore_count += count;
            row.last_restored = Some(at);
        }
    }

    /// A deleted snapshot is remembered while a snapshot, a sandbox or another ghost hangs on it.
    fn forget_ghosts(&mut self, from: Option<SnapshotId>) {
        let mut next = from;
        while let Some(id) = next.take() {
            let needed = self.snapshots.values().any(|row| row.parent == Some(id))
                || self.ghosts.values().any(|ghost| ghost.parent == Some(id))
                || self.sandboxes.values().any(|row| row.head == Some(id));
            let ghost = self.ghosts.iter().find(|(_, ghost)| ghost.id == id).map(|(n, _)| *n);
            if let (false, Some(number)) = (needed, ghost) {
                next = self.ghosts.remove(&number).and_then(|ghost| ghost.parent);
            }
        }
    }

    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

fn taken(name: &forkpoint_core::naming::Name, by: Option<String>) -> CatalogResult<()> {
    by.map_or(Ok(()), |by| Err(CatalogError::NameTaken { name: name.clone(), by }))
}
