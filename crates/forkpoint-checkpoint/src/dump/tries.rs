//! Trying again where what is in the way passes by itself.

use std::time::Duration;

use super::{CaptureSpec, advice::Advice};
use crate::{
    error::{Doing as _, Error, Result},
    freeze::{Frozen, Tree, freeze},
    pager::until_whole,
    sys::{
        self, Deadline,
        ipc::{Tables, in_namespace_of},
        ptrace,
    },
};

/// So long it is hoped that what is refused goes away. What has not by then is told.
const PASSING: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1);
/// Who never stands for long gets as far as it would without us.
const PAUSE_MAX: Duration = Duration::from_millis(32);

/// Has the tree stand and `attempt` look at it. Returns how long it stood the last time, too.
pub(super) fn until_done<T>(
    tree: &Tree,
    spec: &CaptureSpec,
    mut attempt: impl FnMut(&mut Frozen, &mut Advice, &Tables) -> Result<T>,
) -> Result<(T, Duration)> {
    let deadline = Deadline::after(spec.patience);
    until_whole(tree.init, deadline)?;
    // Opened while everything runs.
    let tables = in_namespace_of(tree.init, Tables::here);
    let tables = tables.system("look at memory of System V")?;
    let mut tries = Tries { deadline, passing: None, pause: PAUSE };
    loop {
        let mut advice = Advice::look(tree);
        let start = sys::now();
        let mut frozen = freeze(tree, ptrace::SUSPEND_SECCOMP, deadline)?;
        let result = attempt(&mut frozen, &mut advice, &tables);
        frozen.thaw();
        let pause = sys::now().saturating_sub(start);
        match result {
            Err(err) if tries.wait_after(&err) => {}
            result => return result.map(|done| (done, pause)),
        }
    }
}

#[derive(Debug)]
struct Tries {
    deadline: Deadline,
    /// Since something was refused that passes.
    passing: Option<Deadline>,
    pause: Duration,
}

impl Tries {
    /// Waits a little if it is worth another try.
    fn wait_after(&mut self, err: &Error) -> bool {
        let limit = match err {
            Error::Restless { .. } | Error::Ended { .. } => self.deadline,
            Error::Refused(refusals) if refusals.pass() => {
                let limit = Deadline::after(PASSING).earlier(self.deadline);
                *self.passing.get_or_insert(limit)
            }
            _ => return false,
        };
        if limit.passed() {
            return false;
        }
        sys::pause(self.pause);
        if self.passing.is_some() {
            self.pause = (2 * self.pause).min(PAUSE_MAX);
        }
        true
    }
}
