//! Which call goes wrong, and how.
//!
//! [`Faults`] sits in front of every call that an engine makes to its driver and its catalog, as the
//! decorators [`FaultyDriver`] and [`FaultyCatalog`]. Around each call it lets the other tasks go
//! on, so that processes meet in every order.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use forkpoint_core::{error::BoxError, id::SandboxId};
use futures::future::BoxFuture;

use crate::simulation::{ProcessId, Simulation, yield_now};

mod catalog;
mod driver;

pub use catalog::FaultyCatalog;
pub use driver::FaultyDriver;

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and nothing has happened.
    Before,
    /// It happens, and the answer is lost: for a commit, the lost reply.
    After,
    /// Before, and the next call as well.
    TwiceBefore,
    /// After, and the next call as well.
    TwiceAfter,
    /// It fails, and happens only afterwards: a commit that is still on its way. Other calls fail
    /// before their effect.
    Late,
    /// From here on every call fails.
    Outage,
    /// The process dies just before; no undo runs.
    CrashBefore,
    /// The process dies just after; no undo runs.
    CrashAfter,
}

impl Fault {
    pub const ALL: [Self; 8] = [
        Self::Before,
        Self::After,
        Self::TwiceBefore,
        Self::TwiceAfter,
        Self::Late,
        Self::Outage,
        Self::CrashBefore,
        Self::CrashAfter,
    ];
}

/// The call of `process` with number `at`, counted from 1 when armed, meets `fault`.
#[derive(Clone, Copy, Debug)]
pub struct FaultPlan {
    pub process: ProcessId,
    pub at: usize,
    pub fault: Fault,
    /// A later call that meets a fault too.
    pub then: Option<(usize, Fault)>,
}

impl FaultPlan {
    #[must_use]
    pub fn new(process: ProcessId, at: usize, fault: Fault) -> Self {
        Self { process, at, fault, then: None }
    }
}

#[derive(Clone, Debug)]
pub struct Faults {
    simulation: Simulation,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    plan: Option<FaultPlan>,
    calls: BTreeMap<ProcessId, usize>,
    struck: Option<&'static str>,
    /// Who is inside which sandbox.
    inside: BTreeMap<SandboxId, (ProcessId, &'static str)>,
    violations: Vec<String>,
}

/// What a call is to meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Pass,
    Fail { after: bool },
    Late,
    Crash { after: bool },
}

impl Faults {
    #[must_use]
    pub fn new(simulation: Simulation) -> Self {
        Self { simulation, state: Arc::default() }
    }

    pub fn arm(&self, plan: FaultPlan) {
        let mut state = self.state();
        state.calls.clear();
        state.struck = None;
        state.plan = Some(plan);
    }

    pub fn disarm(&self) {
        self.state().plan = None;
    }

    /// The call that met the (last) fault; `None` when the operation never made that many.
    #[must_use]
    pub fn struck(&self) -> Option<&'static str> {
        self.state().struck
    }

    /// How many calls a process has made since [`Faults::arm`].
    #[must_use]
    pub fn calls(&self, process: ProcessId) -> usize {
        self.state().calls.get(&process).copied().unwrap_or(0)
    }

    /// Two inside one sandbox at once.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    /// `later` is the effect again, for a call that may be late.
    pub(crate) async fn around<T, E>(
        &self,
        (process, call): (ProcessId, &'static str),
        effect: impl Future<Output = Result<T, E>>,
        later: Option<BoxFuture<'static, ()>>,
        fail: impl FnOnce(BoxError) -> E,
    ) -> Result<T, E> {
        yield_now().await;
        let verdict = self.state().judge(process, call);
        match verdict {
            Verdict::Fail { after: false } => return Err(fail(injected("before", call))),
            Verdict::Late => {
                // It belongs to nobody's process: on the other side it goes on whoever dies here.
                later.into_iter().for_each(|later| self.simulation.spawn(ProcessId(0), later));
                return Err(fail(injected("too early for", call)));
            }
            Verdict::Crash { after: false } => self.crash(process).await,
            _ => {}
        }
        let result = effect.await;
        yield_now().await;
        match verdict {
            Verdict::Fail { after: true } => {
                result.and_then(|_| Err(fail(injected("after", call))))
            }
            Verdict::Crash { after: true } => {
                // What the call answered dies with the process.
                drop(result);
                self.crash(process).await;
                unreachable!("a dead process goes on")
            }
            _ => result,
        }
    }

    /// Notes it when somebody is inside the same sandbox, be it another task of the same process.
    pub(crate) fn enter(
        &self,
        process: ProcessId,
        sandbox: SandboxId,
        call: &'static str,
    ) -> Inside {
        let mut state = self.state();
        match state.inside.get(&sandbox) {
            Some((other, doing)) => {
                let message =
                    format!("{call} of {process:?} and {doing} of {other:?} met in `{sandbox}`");
                state.violations.push(message);
            }
            None => {
                state.inside.insert(sandbox, (process, call));
            }
        }
        Inside { faults: self.clone(), process, sandbox }
    }

    async fn crash(&self, process: ProcessId) {
        self.simulation.kill(process);
        futures::future::pending::<()>().await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn judge(&mut self, process: ProcessId, call: &'static str) -> Verdict {
        let count = self.calls.entry(process).or_default();
        *count += 1;
        let Some(plan) = self.plan.filter(|plan| plan.process == process) else {
            return Verdict::Pass;
        };
        let last = plan.then.map_or(plan.at, |(at, _)| at);
        if *count == last {
            self.struck = Some(call);
        }
        let first = plan.fault.verdict(*count, plan.at);
        let then = plan.then.map_or(Verdict::Pass, |(at, fault)| fault.verdict(*count, at));
        if first == Verdict::Pass { then } else { first }
    }
}

impl Fault {
    /// What call number `count` meets when this fault sits at call number `at`.
    fn verdict(self, count: usize, at: usize) -> Verdict {
        let (here, next, later) = (count == at, count == at + 1, count > at);
        match self {
            Self::Before if here => Verdict::Fail { after: false },
            Self::After if here => Verdict::Fail { after: true },
            Self::TwiceBefore if here || next => Verdict::Fail { after: false },
            Self::TwiceAfter if here || next => Verdict::Fail { after: true },
            Self::Late if here => Verdict::Late,
            Self::Outage if here || later => Verdict::Fail { after: false },
            Self::CrashBefore if here => Verdict::Crash { after: false },
            Self::CrashAfter if here => Verdict::Crash { after: true },
            _ => Verdict::Pass,
        }
    }
}

fn injected(when: &str, call: &str) -> BoxError {
    format!("injected {when} {call}").into()
}

/// A process inside a sandbox; leaves when dropped, also when it is killed.
pub(crate) struct Inside {
    faults: Faults,
    process: ProcessId,
    sandbox: SandboxId,
}

impl fmt::Debug for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} inside `{}`", self.process, self.sandbox)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut state = self.faults.state();
        if state.inside.get(&self.sandbox).is_some_and(|(process, _)| *process == self.process) {
            state.inside.remove(&self.sandbox);
        }
    }
}
