//! Time, randomness and tasks that repeat.

use std::time::Duration;

use forkpoint_core::{Environment, Timestamp};
use futures::future::{BoxFuture, FutureExt as _};

use crate::simulation::{ProcessId, Simulation};

/// The environment of one process of a simulation.
#[derive(Clone, Debug)]
pub struct FixedEnvironment {
    simulation: Simulation,
    process: ProcessId,
}

impl FixedEnvironment {
    #[must_use]
    pub fn new(simulation: Simulation, process: ProcessId) -> Self {
        Self { simulation, process }
    }
}

impl Environment for FixedEnvironment {
    fn now(&self) -> Timestamp {
        self.simulation.now()
    }

    fn random(&self) -> u128 {
        self.simulation.unique()
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.simulation.sleep(time).boxed()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.simulation.spawn(self.process, task);
    }
}
