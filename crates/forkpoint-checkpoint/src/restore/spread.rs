//! On which processor a copy begins to become another process.
//!
//! The kernel chooses when a copy is made, by who runs then. Where processors share no cache, as those of many
//! virtual machines, it does not look again for some milliseconds, in which one has nothing to do while two copies
//! wait for the other. So each is sent to the next processor, and from there the kernel may take it anywhere.

use rustix::thread::sched_getcpu;

use crate::{
    image::{Process, Snapshot, Thread},
    sys::task::{self, Policy, affinity, set_affinity},
};

#[derive(Debug)]
pub(super) struct Spread {
    /// What this process may run on, a bit for each.
    all: Vec<u8>,
    /// The same by number, the one that it runs on last. Empty where nobody is sent anywhere.
    processors: Vec<usize>,
    /// What copies are made with another policy than, if they are.
    policy: Option<Policy>,
}

impl Spread {
    pub(super) fn of(snapshot: &Snapshot, policy: Option<Policy>) -> Self {
        let all = affinity(0).unwrap_or_default();
        let mut processors = Vec::new();
        if is_of_use(snapshot, &all) {
            let is_in = |number: &usize| all[number / 8] & 1 << (number % 8) != 0;
            processors.extend((0..all.len() * 8).filter(is_in));
            let here = sched_getcpu();
            let (here, after): (Vec<_>, Vec<_>) =
                processors.into_iter().partition(|number| *number <= here);
            processors = [after, here].concat();
        }
        Self { all, processors, policy }
    }

    /// This process has made all of its copies. Nothing forbids what it was.
    pub(super) fn take_way(&self) {
        if let Some(policy) = self.policy {
            task::take_way(policy);
        }
    }

    /// Sends a copy on its way that was just made: the process `index` of the image. It is only about time, so nothing
    /// is said if it fails.
    pub(super) fn send(&self, index: usize, pid: i32) {
        let Some(turn) = index.checked_rem(self.processors.len()) else { return };
        let number = self.processors[turn];
        let mut only = vec![0; self.all.len()];
        only[number / 8] = 1 << (number % 8);
        if set_affinity(pid, &only).is_ok() {
            let _ = set_affinity(pid, &self.all);
        }
    }
}

/// Not for one process. Nor where a thread of the image may not run on all that this process may: whoever sends a copy may
/// be late, and then has the last word.
fn is_of_use(snapshot: &Snapshot, all: &[u8]) -> bool {
    let alive = || snapshot.processes.iter().filter_map(Process::alive);
    let runs_on_all = |thread: &Thread| thread.affinity.0 == all;
    alive().nth(1).is_some() && alive().flat_map(|alive| &alive.threads).all(runs_on_all)
}
