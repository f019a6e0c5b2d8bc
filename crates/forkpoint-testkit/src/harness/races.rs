//! Two processes at work on the same things, in every order that a seed can think of.

use forkpoint_core::{ErrorKind, Result};
use futures::FutureExt as _;

use super::{Harness, OPS, Op, Tally, pairs, recover};
use crate::{
    Seat, Simulation, World,
    faults::{Fault, FaultPlan},
};

type Results = Vec<Option<Result<()>>>;

impl Harness<'_> {
    pub fn two_operations_meet(&self) -> Tally {
        let mut tally = Tally::new("two operations");
        for ops in pairs() {
            for seed in 0..self.orders {
                let world = self.world(Simulation::shuffled(seed));
                let results = race(&world, ops);
                let mut broken = odd_refusals(&results);
                broken.extend(world.broken_invariants());
                let case = format!("{} with {}, seed {seed}", ops[0].name, ops[1].name);
                tally.add(&case, broken);
            }
        }
        tally
    }

    pub fn one_of_two_dies(&self) -> Tally {
        let mut tally = Tally::new("two operations, one dies");
        for ops in pairs() {
            for seed in 0..self.orders {
                let world = self.world(Simulation::shuffled(seed));
                let at = 1 + (seed as usize * 7) % 20;
                let fault = if seed % 2 == 0 { Fault::CrashBefore } else { Fault::CrashAfter };
                world.faults.arm(FaultPlan::new(world.next_process(), at, fault));
                race(&world, ops);
                world.faults.disarm();
                let mut broken = recover(&world);
                broken.extend(world.broken_invariants());
                let (one, two) = (ops[0].name, ops[1].name);
                tally.add(&format!("{one} with {two}, {fault:?} at {at}, seed {seed}"), broken);
            }
        }
        tally
    }

    /// The same in one process, as a server is.
    pub fn two_tasks_meet(&self) -> Tally {
        let mut tally = Tally::new("two operations in one process");
        for ops in pairs() {
            for seed in 0..self.orders {
                let world = self.world(Simulation::shuffled(seed));
                let Seat { process, engine } = world.seat();
                let both = ops.map(|op| (process, (op.run)(engine.clone())));
                drop(engine);
                let results = world.simulation.run_all(both);
                let mut broken = odd_refusals(&results);
                broken.extend(world.broken_invariants());
                let case = format!("{} with {}, seed {seed}", ops[0].name, ops[1].name);
                tally.add(&case, broken);
            }
        }
        tally
    }

    /// Two recoveries after a death: in two processes, and in one.
    pub fn two_recoveries_meet(&self) -> Tally {
        let mut tally = Tally::new("two recoveries");
        for op in &OPS {
            for (seed, together) in
                (0..3 * self.orders).flat_map(|seed| [(seed, false), (seed, true)])
            {
                let world = self.world(Simulation::shuffled(seed));
                let at = 1 + seed as usize % 20;
                world.faults.arm(FaultPlan::new(world.next_process(), at, Fault::CrashAfter));
                world.try_run(op.run);
                world.faults.disarm();
                let Seat { process, engine } = world.seat();
                let second = match together {
                    true => Seat { process, engine: engine.clone() },
                    false => world.seat(),
                };
                let recoveries =
                    [Seat { process, engine }, second].map(|Seat { process, engine }| {
                        (process, async move { engine.recover().await.map(drop) }.boxed())
                    });
                let results = world.simulation.run_all(recoveries);
                let mut broken = odd_refusals(&results);
                broken.extend(world.broken_invariants());
                let case = format!("{}, killed at {at}, seed {seed}, together {together}", op.name);
                tally.add(&case, broken);
            }
        }
        tally
    }

    pub fn recovery_leaves_its_own_process_alone(&self) -> Tally {
        let mut tally = Tally::new("an operation and a recovery in one process");
        for op in &OPS {
            for seed in 0..3 * self.orders {
                let world = self.world(Simulation::shuffled(seed));
                let Seat { process, engine } = world.seat();
                let (run, again) = (op.run, engine.clone());
                let operation = async move { run(engine).await };
                let recovery = async move { again.recover().await.map(drop) };
                let both = [(process, operation.boxed()), (process, recovery.boxed())];
                let results = world.simulation.run_all(both);
                let failed = results.into_iter().flatten().filter_map(Result::err);
                let mut broken: Vec<String> = failed.map(|err| err.chain().to_string()).collect();
                broken.extend(world.broken_invariants());
                tally.add(&format!("{}, seed {seed}", op.name), broken);
            }
        }
        tally
    }

    /// No recovery: the same thing again, by another process.
    pub fn the_next_call_clears_what_is_left(&self) -> Tally {
        let mut tally = Tally::new("one call after a death");
        for op in self.ops() {
            for at in 1..super::MANY {
                let world = self.world(Simulation::in_order());
                world.faults.arm(FaultPlan::new(world.next_process(), at, Fault::CrashAfter));
                world.try_run(op.run);
                let Some(call) = world.faults.struck() else { break };
                world.faults.disarm();
                let again = world.run(op.run).err().filter(|err| err.busy_with().is_some());
                let broken = again.iter().map(|err| err.chain().to_string()).collect();
                tally.add(&format!("{}, killed at {at} ({call})", op.name), broken);
            }
        }
        tally
    }
}

fn race(world: &World, ops: [&Op; 2]) -> Results {
    let racers = ops.map(|op| {
        let Seat { process, engine } = world.seat();
        (process, (op.run)(engine))
    });
    world.simulation.run_all(racers)
}

/// The loser of a race hears why, in words that fit.
fn odd_refusals(results: &Results) -> Vec<String> {
    let fits = |kind| matches!(kind, ErrorKind::Conflict | ErrorKind::NotFound);
    let errors = results.iter().flatten().filter_map(|result| result.as_ref().err());
    errors.filter(|err| !fits(err.kind())).map(|err| err.chain().to_string()).collect()
}
