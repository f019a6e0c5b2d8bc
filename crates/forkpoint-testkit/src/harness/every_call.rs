//! One process, and every way in which its calls can go wrong.

use std::path::Path;

use forkpoint_core::id::SandboxId;

use futures::{
    FutureExt as _,
    future::{self, Either},
};

use super::{Ending, Harness, MANY, OPS, Op, Tally, ops::write, recover, run_with_fault};
use crate::{
    Simulation, World,
    faults::{Fault, FaultPlan},
    yield_times,
};

impl Harness<'_> {
    /// The harness itself: without a fault every operation works, and changes something.
    pub fn without_a_fault(&self) -> Tally {
        let mut tally = Tally::new("no fault");
        for op in &OPS {
            let world = self.world(Simulation::in_order());
            let before = world.visible();
            let failed = world.run(op.run).err().map(|err| err.chain().to_string());
            let mut broken: Vec<String> = failed.into_iter().collect();
            if op.is_untrue(world.visible() != before) {
                broken.push("did not change what it should".to_owned());
            }
            broken.extend(world.broken_invariants());
            tally.add(op.name, broken);
        }
        tally
    }

    pub fn any_call_may_fail(&self) -> Tally {
        let mut tally = Tally::new("one fault, then recovery");
        for op in self.ops() {
            for &fault in self.faults {
                for at in 1..MANY {
                    let world = self.world(Simulation::in_order());
                    let Some(ending) = run_with_fault(&world, op, at, fault) else { break };
                    let mut broken: Vec<String> = lie(op, &ending).into_iter().collect();
                    if ending.single {
                        broken.extend(world.open_operations());
                    }
                    broken.extend(recover(&world));
                    broken.extend(world.broken_invariants());
                    tally.add(&ending.case, broken);
                }
            }
        }
        tally
    }

    /// Somebody goes on working in a sandbox after an operation on it failed or died. Whatever is
    /// closed afterwards, that work stays, unless the caller was told that the sandbox is to go.
    pub fn work_after_a_fault_stays(&self) -> Tally {
        let mut tally = Tally::new("a fault, work, then recovery");
        for op in OPS.iter().filter(|op| !op.name.starts_with("destroy")) {
            for &fault in self.faults {
                for at in 1..MANY {
                    let world = self.world(Simulation::in_order());
                    let Some(ending) = run_with_fault(&world, op, at, fault) else { break };
                    let worked = work(&world);
                    let mut broken = recover(&world);
                    let lost = worked.into_iter().filter(|id| !has_work(&world, *id));
                    broken.extend(lost.map(|id| format!("the work in `{id}` is lost")));
                    tally.add(&ending.case, broken);
                }
            }
        }
        tally
    }

    /// A commit that is still on its way when its operation is being undone.
    pub fn a_commit_may_be_late(&self) -> Tally {
        let mut tally = Tally::new("a late commit");
        for op in &OPS {
            for seed in 0..2 * self.orders {
                for at in 1..MANY {
                    let world = self.world(Simulation::shuffled(seed));
                    let Some(ending) = run_with_fault(&world, op, at, Fault::Late) else { break };
                    let mut broken: Vec<String> = lie(op, &ending).into_iter().collect();
                    broken.extend(world.open_operations());
                    broken.extend(recover(&world));
                    broken.extend(world.broken_invariants());
                    tally.add(&format!("{}, seed {seed}", ending.case), broken);
                }
            }
        }
        tally
    }

    pub fn any_two_calls_may_fail(&self) -> Tally {
        let mut tally = Tally::new("two faults, then recovery");
        for op in &OPS {
            for first in [Fault::Before, Fault::After] {
                for second in [Fault::Before, Fault::After, Fault::CrashAfter] {
                    for at in 1..=self.calls(op) {
                        self.fail_later(op, (at, first), second, &mut tally);
                    }
                }
            }
        }
        tally
    }

    fn fail_later(&self, op: &Op, first: (usize, Fault), second: Fault, tally: &mut Tally) {
        let (at, fault) = first;
        for later in at + 1..MANY {
            let world = self.world(Simulation::in_order());
            let then = Some((later, second));
            let plan = FaultPlan::new(world.next_process(), at, fault);
            let before = world.visible();
            world.faults.arm(FaultPlan { then, ..plan });
            let result = world.try_run(op.run);
            let Some(call) = world.faults.struck() else { break };
            world.faults.disarm();
            let changed = world.visible() != before;
            let untrue = matches!(result, Some(Ok(()))) && op.is_untrue(changed);
            let mut broken: Vec<String> = untrue
                .then(|| "says it is done, and that is not true".to_owned())
                .into_iter()
                .collect();
            broken.extend(recover(&world));
            broken.extend(world.broken_invariants());
            let case = format!("{}, {fault:?} at {at}, {second:?} at {later} ({call})", op.name);
            tally.add(&case, broken);
        }
    }

    /// How many calls an operation makes when all goes well.
    fn calls(&self, op: &Op) -> usize {
        let world = self.world(Simulation::in_order());
        let process = world.next_process();
        world.faults.arm(FaultPlan::new(process, MANY, Fault::Before));
        world.run(op.run).unwrap();
        world.faults.calls(process)
    }

    pub fn recovery_may_fail_too(&self) -> Tally {
        let mut tally = Tally::new("a fault, a fault in its recovery, then recovery");
        for op in &OPS {
            for fault in [Fault::CrashBefore, Fault::CrashAfter, Fault::Outage] {
                for at in 1..MANY {
                    if !self.fail_recovery(op, at, fault, &mut tally) {
                        break;
                    }
                }
            }
        }
        tally
    }

    /// `false` when the operation makes fewer calls than `at`.
    fn fail_recovery(&self, op: &Op, at: usize, fault: Fault, tally: &mut Tally) -> bool {
        for second in [Fault::Before, Fault::After, Fault::CrashBefore, Fault::CrashAfter] {
            for second_at in 1..MANY {
                let world = self.world(Simulation::in_order());
                let Some(ending) = run_with_fault(&world, op, at, fault) else { return false };
                let process = world.next_process();
                world.faults.arm(FaultPlan::new(process, second_at, second));
                world.try_run(|engine| async move { engine.recover().await.map(drop) });
                let struck = world.faults.struck();
                world.faults.disarm();
                let mut broken = recover(&world);
                broken.extend(world.broken_invariants());
                let call = struck.unwrap_or("none");
                let case = format!("{}, {second:?} at {second_at} ({call})", ending.case);
                tally.add(&case, broken);
                if struck.is_none() {
                    break;
                }
            }
        }
        true
    }

    /// The process lives on, and its own recovery closes what it could not.
    pub fn the_same_process_recovers(&self) -> Tally {
        let mut tally = Tally::new("undo failed, then recovery in the same process");
        for op in &OPS {
            for fault in [Fault::TwiceBefore, Fault::TwiceAfter, Fault::Outage] {
                for at in 1..MANY {
                    let world = self.world(Simulation::in_order());
                    world.faults.arm(FaultPlan::new(world.next_process(), at, fault));
                    let (faults, run) = (world.faults.clone(), op.run);
                    let recovered = world.run(|engine| async move {
                        let _ = run(engine.clone()).await;
                        faults.disarm();
                        engine.recover().await
                    });
                    let Some(call) = world.faults.struck() else { break };
                    let failed = recovered.err().map(|err| err.chain().to_string());
                    let mut broken: Vec<String> = failed.into_iter().collect();
                    broken.extend(world.broken_invariants());
                    tally.add(&format!("{}, call {at} ({call}), {fault:?}", op.name), broken);
                }
            }
        }
        tally
    }

    pub fn a_caller_may_go_away(&self) -> Tally {
        let mut tally = Tally::new("the caller went away");
        let mut answers = 0;
        for op in &OPS {
            for patience in 0..10 * self.orders {
                let world = self.world(Simulation::shuffled(patience));
                let before = world.visible();
                let answered = walk_away(&world, op, patience);
                world.simulation.settle();
                let silent = answered && op.is_untrue(world.visible() != before);
                let mut broken = world.broken_invariants();
                broken.extend(silent.then(|| "answered, and that is not true".to_owned()));
                tally.add(&format!("{}, gone after {patience} steps", op.name), broken);
                answers += usize::from(answered);
            }
        }
        assert!(answers > 0 && answers < tally.runs, "{answers} callers of {}", tally.runs);
        tally
    }
}

/// Writes to every sandbox that anybody can see and the platform has.
fn work(world: &World) -> Vec<SandboxId> {
    let records = world.visible().sandboxes.into_iter();
    let ids: Vec<SandboxId> =
        records.map(|record| record.id).filter(|id| world.platform.files(*id).is_some()).collect();
    for id in &ids {
        let id = id.to_string();
        world.run(move |engine| async move { write(&engine, &id, WORK, "of a day").await });
    }
    ids
}

fn has_work(world: &World, id: SandboxId) -> bool {
    world.platform.files(id).is_some_and(|files| files.contains_key(Path::new(WORK)))
}

const WORK: &str = "/srv";

/// An answer must be true. With one fault the engine can always find out what happened.
fn lie(op: &Op, ending: &Ending) -> Option<String> {
    match &ending.result {
        Some(Ok(())) if op.is_untrue(ending.changed) => {
            Some("says it is done, and that is not true".to_owned())
        }
        Some(Err(err)) if ending.changed && ending.single && !op.parts => {
            Some(format!("says it failed, and something changed: {}", err.chain()))
        }
        _ => None,
    }
}

/// Starts an operation and stops listening after some steps; whether it answered before.
fn walk_away(world: &World, op: &Op, patience: u64) -> bool {
    let run = op.run;
    world.run(move |engine| async move {
        let tired = yield_times(patience).boxed();
        matches!(future::select(run(engine), tired).await, Either::Left(_))
    })
}
