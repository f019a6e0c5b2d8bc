//! In which order clean-up is done, and what waits when some of it fails.

use std::collections::BTreeSet;

use crate::{
    catalog::{Chore, ChoreTask},
    driver::PieceName,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChoreCount {
    pub(super) done: usize,
    pub(super) waiting: usize,
}

/// Sandboxes go before the pieces that they may stand on; otherwise as they came, which for pieces is
/// from the top down.
pub(super) fn in_order(mut chores: Vec<Chore>) -> Vec<Chore> {
    chores.sort_by_key(|chore| matches!(chore.task, ChoreTask::Discard(_)));
    chores
}

/// What has to wait because of what could not be done.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Drivers with a sandbox that could not be destroyed: nobody counts on what it stands.
    drivers: BTreeSet<String>,
    /// Pieces under one that is still there.
    pieces: BTreeSet<PieceName>,
}

impl Waiting {
    pub(super) fn holds_back(&self, chore: &Chore) -> bool {
        match &chore.task {
            ChoreTask::Destroy(_) => false,
            ChoreTask::Discard(piece) => {
                self.drivers.contains(&chore.driver) || self.pieces.contains(&piece.name)
            }
        }
    }

    pub(super) fn add(&mut self, left: &Chore) {
        match &left.task {
            ChoreTask::Destroy(_) => drop(self.drivers.insert(left.driver.clone())),
            ChoreTask::Discard(piece) => self.pieces.extend(piece.over.clone()),
        }
    }
}
