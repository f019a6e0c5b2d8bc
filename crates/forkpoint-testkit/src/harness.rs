//! The fault harness: every call of every operation goes wrong in every way, alone and in races;
//! then `recover`; then the invariants of [`World::broken_invariants`].
//!
//! It takes any catalog, so that the real ones meet the same faults as the one in memory.

#![expect(clippy::unwrap_used, reason = "in a harness, what cannot be unwrapped is a failure")]

use std::fmt;

use forkpoint_core::Result;

use crate::{
    Simulation, World,
    faults::{Fault, FaultPlan},
};

mod every_call;
pub mod ops;
mod races;

use ops::{OPS, Op};

/// More calls than any operation makes.
const MANY: usize = 300;

pub struct Harness<'a> {
    make: &'a dyn Fn(Simulation) -> World,
    /// Orders in which each pair of operations is tried.
    orders: u64,
    faults: &'a [Fault],
    /// Which part of the operations, of how many.
    part: (usize, usize),
}

impl fmt::Debug for Harness<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness").field("orders", &self.orders).finish_non_exhaustive()
    }
}

impl<'a> Harness<'a> {
    /// `make` gives an empty world.
    #[must_use]
    pub fn new(make: &'a dyn Fn(Simulation) -> World, orders: u64) -> Self {
        Self { make, orders, faults: &Fault::ALL, part: (0, 1) }
    }

    /// Single faults of every `of`-th operation only, from number `first` on: so that several tests share
    /// what takes one too long.
    #[must_use]
    pub fn part(self, first: usize, of: usize) -> Self {
        Self { part: (first, of), ..self }
    }

    fn ops(&self) -> impl Iterator<Item = &'static Op> {
        let (first, of) = self.part;
        OPS.iter().skip(first).step_by(of)
    }

    /// Single faults of these kinds only, where a run costs more than memory does.
    #[must_use]
    pub fn only(self, faults: &'a [Fault]) -> Self {
        Self { faults, ..self }
    }

    fn world(&self, simulation: Simulation) -> World {
        let world = (self.make)(simulation);
        ops::fill(&world);
        world
    }
}

/// What was tried, and what was found.
#[derive(Debug)]
pub struct Tally {
    what: &'static str,
    pub runs: usize,
    pub found: Vec<String>,
}

impl Tally {
    fn new(what: &'static str) -> Self {
        Self { what, runs: 0, found: Vec::new() }
    }

    fn add(&mut self, case: &str, broken: Vec<String>) {
        self.runs += 1;
        self.found.extend(broken.into_iter().map(|each| format!("{case}: {each}")));
    }

    /// Prints the count.
    ///
    /// # Panics
    ///
    /// When something was found, or nothing was run.
    pub fn check(self) {
        let Self { what, runs, found } = self;
        println!("{what}: {runs} runs, {} violations", found.len());
        assert!(runs > 0, "nothing was run");
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}

/// Recovers in a process of its own; what it could not.
fn recover(world: &World) -> Vec<String> {
    match world.run(|engine| async move { engine.recover().await }) {
        Ok(report) => {
            let failed = report.failed.iter();
            failed.map(|(id, err)| format!("recovery left {id}: {}", err.chain())).collect()
        }
        Err(err) => vec![format!("recovery itself failed: {}", err.chain())],
    }
}

/// How an operation with a fault ended.
struct Ending {
    /// `None` when the process died.
    result: Option<Result<()>>,
    case: String,
    /// Whether anything visible changed before recovery.
    changed: bool,
    /// One call failed and the process lived: it must have found out and cleaned up by itself.
    single: bool,
}

/// Runs `op` with a fault in its call number `at`. `None` when it makes fewer calls than that.
fn run_with_fault(world: &World, op: &Op, at: usize, fault: Fault) -> Option<Ending> {
    let before = world.visible();
    let process = world.next_process();
    world.faults.arm(FaultPlan::new(process, at, fault));
    let result = world.try_run(op.run);
    let call = world.faults.struck();
    world.faults.disarm();
    let case = format!("{}, call {at} ({}), {fault:?}", op.name, call.unwrap_or("none"));
    let changed = world.visible() != before;
    let single = matches!(fault, Fault::Before | Fault::After | Fault::Late);
    call.map(|_| Ending { result, case, changed, single })
}

/// Every pair of operations, in both orders.
fn pairs() -> impl Iterator<Item = [&'static Op; 2]> {
    OPS.iter().flat_map(|one| OPS.iter().map(move |other| [one, other]))
}
