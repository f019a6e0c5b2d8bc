//! The results of operations, as they become visible.

use bytes::Bytes;
use forkpoint_core::{
    Timestamp,
    catalog::{Change, Chore, ChoreId, ChoreTask, Claim, SandboxRecord, SnapshotRecord},
    id::{OwnerId, SandboxId, SnapshotId},
};
use rusqlite::{OptionalExtension as _, Transaction};

use super::{
    operation, piece,
    place::Answer,
    row::{self, json, shown_if_any, unsigned},
    value::{Json, Moment, Shown, clamped},
};

/// One commit, and the clean-up that it leaves.
struct Commit<'a> {
    tx: &'a Transaction<'a>,
    chores: Vec<Chore>,
}

pub(super) fn commit(
    tx: &Transaction<'_>,
    us: OwnerId,
    claim: &Claim,
    change: &Change,
) -> Answer<Vec<Chore>> {
    let operation = operation::close(tx, us, claim)?;
    operation::remember_committed(tx, operation.id)?;
    let mut commit = Commit { tx, chores: Vec::new() };
    match change {
        Change::SandboxesAdded { sandboxes, from, leftovers, at } => {
            commit.add_sandboxes(sandboxes, *from, *at)?;
            for left in leftovers {
                commit.leave(&operation.driver, ChoreTask::Destroy(*left))?;
            }
        }
        Change::SnapshotTaken { snapshot, agent_state } => {
            commit.add_snapshot(snapshot, agent_state.as_ref())?;
        }
        Change::SnapshotImported { snapshot } => {
            row::add_snapshot(tx, snapshot)?;
            piece::add(tx, &snapshot.driver, &snapshot.artifact)?;
        }
        Change::SnapshotEdited { snapshot } => commit.edit(snapshot)?,
        Change::SnapshotDeleted { snapshot } => commit.delete(*snapshot)?,
        Change::RolledBack { sandbox, to, at } => {
            commit.stand_on(*sandbox, *to)?;
            commit.count_restores(*to, 1, *at)?;
        }
        Change::Switched => {}
        Change::SandboxRemoved { sandbox } => commit.remove(*sandbox)?,
    }
    Ok(commit.chores)
}

impl Commit<'_> {
    fn add_sandboxes(
        &self,
        sandboxes: &[SandboxRecord],
        from: Option<SnapshotId>,
        at: Timestamp,
    ) -> Answer<()> {
        for sandbox in sandboxes {
            row::add_sandbox(self.tx, sandbox)?;
            if let Some(from) = from {
                piece::hold_as(self.tx, &sandbox.driver, from, sandbox.id)?;
            }
        }
        from.map_or(Ok(()), |from| self.count_restores(from, sandboxes.len(), at))
    }

    fn add_snapshot(&mut self, snapshot: &SnapshotRecord, state: Option<&Bytes>) -> Answer<()> {
        let seq = row::add_snapshot(self.tx, snapshot)?;
        if let Some(state) = state {
            self.tx.prepare_cached(sql!("add_agent_state"))?.execute((seq, &state[..]))?;
        }
        piece::add(self.tx, &snapshot.driver, &snapshot.artifact)?;
        self.stand_on(snapshot.sandbox, snapshot.id)
    }

    fn edit(&self, edited: &SnapshotRecord) -> Answer<()> {
        self.tx.prepare_cached(sql!("edit_snapshot"))?.execute((
            Shown(edited.id),
            Shown(&edited.name),
            &edited.description,
            Json(&edited.labels),
            edited.expires.map(Moment),
            edited.pinned,
        ))?;
        Ok(())
    }

    fn delete(&mut self, id: SnapshotId) -> Answer<()> {
        self.tx.prepare_cached(sql!("add_ghost"))?.execute([Shown(id)])?;
        let mut delete = self.tx.prepare_cached(sql!("delete_snapshot"))?;
        let driver: Option<String> = delete.query_row([Shown(id)], |row| row.get(0)).optional()?;
        match driver {
            None => Ok(()),
            Some(driver) => {
                self.forget_ghosts(Some(id))?;
                let held = piece::release(self.tx, &driver, id)?;
                self.free_unneeded(&driver, held)
            }
        }
    }

    fn remove(&mut self, id: SandboxId) -> Answer<()> {
        let mut remove = self.tx.prepare_cached(sql!("remove_sandbox"))?;
        let removed = remove
            .query_row([Shown(id)], |row| Ok((row.get("driver")?, shown_if_any(row, "head")?)))
            .optional()?;
        let Some((driver, head)): Option<(String, _)> = removed else { return Ok(()) };
        let held = piece::release(self.tx, &driver, id)?;
        self.free_unneeded(&driver, held)?;
        self.forget_ghosts(head)
    }

    /// The sandbox's next snapshot grows from `snapshot`, and it needs what that occupies.
    fn stand_on(&mut self, sandbox: SandboxId, snapshot: SnapshotId) -> Answer<()> {
        let mut before = self.tx.prepare_cached(sql!("stands_on"))?;
        let before = before
            .query_row([Shown(sandbox)], |row| Ok((row.get("driver")?, shown_if_any(row, "head")?)))
            .optional()?;
        let Some((driver, head)): Option<(String, _)> = before else { return Ok(()) };
        if head == Some(snapshot) {
            // It has all that it needs.
            return Ok(());
        }
        self.tx.prepare_cached(sql!("stand_on"))?.execute((Shown(sandbox), Shown(snapshot)))?;
        let held = piece::release(self.tx, &driver, sandbox)?;
        piece::hold_as(self.tx, &driver, snapshot, sandbox)?;
        self.free_unneeded(&driver, held)?;
        self.forget_ghosts(head)
    }

    fn count_restores(&self, of: SnapshotId, count: usize, at: Timestamp) -> Answer<()> {
        let mut update = self.tx.prepare_cached(sql!("count_restores"))?;
        update.execute((Shown(of), clamped(count as u64), Moment(at)))?;
        Ok(())
    }

    /// A deleted snapshot is remembered while a snapshot, a sandbox or another ghost hangs on it.
    fn forget_ghosts(&self, from: Option<SnapshotId>) -> Answer<()> {
        let mut forget = self.tx.prepare_cached(sql!("forget_ghost"))?;
        let mut next = from;
        while let Some(id) = next {
            let forgotten =
                forget.query_row([Shown(id)], |row| shown_if_any(row, "parent")).optional()?;
            next = forgotten.flatten();
        }
        Ok(())
    }

    /// Pieces that nobody holds and nothing lies over become chores, from the top down.
    fn free_unneeded(&mut self, driver: &str, mut suspects: Vec<String>) -> Answer<()> {
        while let Some(name) = suspects.pop() {
            if let Some(piece) = piece::free(self.tx, driver, &name)? {
                suspects.extend(piece.over.clone().map(|over| over.0));
                self.leave(driver, ChoreTask::Discard(piece))?;
            }
        }
        Ok(())
    }

    fn leave(&mut self, driver: &str, task: ChoreTask) -> Answer<()> {
        let id = self.tx.prepare_cached(sql!("add_chore"))?.insert((driver, Json(&task)))?;
        let id = ChoreId(id.cast_unsigned());
        self.chores.push(Chore { id, driver: driver.to_owned(), task });
        Ok(())
    }
}

/// Writes something, so that a synced commit takes all that came before to the disk.
pub(super) fn touch(tx: &Transaction<'_>) -> Answer<()> {
    tx.prepare_cached(sql!("touch"))?.execute([])?;
    Ok(())
}

pub(super) fn chores(tx: &Transaction<'_>) -> Answer<Vec<Chore>> {
    let mut statement = tx.prepare_cached(sql!("chores"))?;
    let chores = statement.query_map([], |row| {
        let id = ChoreId(unsigned(row, "id")?);
        Ok(Chore { id, driver: row.get("driver")?, task: json(row, "task")? })
    })?;
    Ok(chores.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn chore_done(tx: &Transaction<'_>, id: ChoreId) -> Answer<()> {
    tx.prepare_cached(sql!("chore_done"))?.execute([id.0.cast_signed()])?;
    Ok(())
}
