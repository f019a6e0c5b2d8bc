//! Which operations this process is working on right now.
//!
//! The catalog knows which operations are open and whether their owner lives. Only the owner itself
//! knows whether somebody still works on one, or whether its undo failed and it waits for recovery.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::id::OperationId;

#[derive(Clone, Debug, Default)]
pub(super) struct Running(Arc<Mutex<BTreeMap<OperationId, usize>>>);

/// Leaves when dropped.
#[derive(Debug)]
pub(super) struct RunningGuard {
    running: Running,
    id: OperationId,
}

impl Running {
    pub(super) fn enter(&self, id: OperationId) -> RunningGuard {
        self.with(|running| *running.entry(id).or_default() += 1);
        RunningGuard { running: self.clone(), id }
    }

    /// Enters unless somebody is at it.
    pub(super) fn try_enter(&self, id: OperationId) -> Option<RunningGuard> {
        let free = self.with(|running| {
            let free = !running.contains_key(&id);
            if free {
                running.insert(id, 1);
            }
            free
        });
        free.then(|| RunningGuard { running: self.clone(), id })
    }

    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<OperationId, usize>) -> T) -> T {
        // Nothing in here can panic half-way.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.running.with(|running| {
            if let Some(count) = running.get_mut(&self.id) {
                *count -= 1;
                if *count == 0 {
                    running.remove(&self.id);
                }
            }
        });
    }
}
