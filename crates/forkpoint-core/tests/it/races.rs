//! Two processes at work on the same things, in every order that a seed can think of.

use std::time::Duration;

use forkpoint_core::{
    ErrorKind,
    driver::SnapshotKind,
    engine::{
        AdoptRequest, ForkRequest, ForkSource, RestoreRequest, SnapshotEdit, SnapshotRequest, Wait,
    },
    retention::RetentionPolicy,
};
use forkpoint_testkit::{
    Seat, Simulation, World,
    faults::{Fault, FaultPlan},
    harness::{
        Harness,
        ops::{adopt, fill, named},
    },
    yield_times,
};
use futures::{FutureExt as _, future};

fn harness() -> Harness<'static> {
    Harness::new(&World::new, 4)
}

fn filled(simulation: Simulation) -> World {
    let world = World::new(simulation);
    fill(&world);
    world
}

#[test]
fn two_operations_meet() {
    harness().two_operations_meet().check();
}

#[test]
fn one_of_two_dies() {
    harness().one_of_two_dies().check();
}

#[test]
fn two_recoveries_meet() {
    harness().two_recoveries_meet().check();
}

#[test]
fn recovery_leaves_alone_what_its_own_process_is_at() {
    harness().recovery_leaves_its_own_process_alone().check();
}

#[test]
fn the_next_call_clears_what_a_dead_process_left() {
    harness().the_next_call_clears_what_is_left().check();
}

#[test]
fn the_second_hears_who_is_first() {
    let mut met = 0;
    for seed in 0..50 {
        let world = filled(Simulation::shuffled(seed));
        let (one, two) = (world.seat(), world.seat());
        let first = async move { one.engine.snapshot(SnapshotRequest::new("web")).await.map(drop) };
        let second = async move { two.engine.destroy("web", Wait::No).await.map(drop) };
        let racers = [(one.process, first.boxed()), (two.process, second.boxed())];
        let results = world.simulation.run_all(racers);
        let Some(Err(err)) = &results[1] else { continue };
        met += 1;
        assert_eq!(err.kind(), ErrorKind::Conflict, "{}", err.chain());
        let text = err.chain().to_string();
        let id = err.busy_with().expect("it names the operation").to_string();
        assert!(text.contains(&id) && text.contains("snapshot"), "{text}");
    }
    assert!(met > 0, "no order made them meet");
}

#[test]
fn who_waits_gets_its_turn() {
    for seed in 0..50 {
        let world = filled(Simulation::shuffled(seed));
        let wait = Wait::UpTo(Duration::from_secs(60));
        let racers = (0..4).map(|_| {
            let Seat { process, engine } = world.seat();
            let request = SnapshotRequest { wait, ..SnapshotRequest::new("web") };
            (process, async move { engine.snapshot(request).await.map(drop) }.boxed())
        });
        let results = world.simulation.run_all(racers);
        for result in results {
            result.unwrap().unwrap_or_else(|err| panic!("seed {seed}: {}", err.chain()));
        }
        assert_eq!(world.visible().snapshots.len(), 10);
        assert_eq!(world.broken_invariants(), Vec::<String>::new());
    }
}

#[test]
fn waiting_ends_when_the_time_is_up() {
    let world = filled(Simulation::in_order());
    let (holder, waiter) = (world.seat(), world.seat());
    // Dies in the middle of a snapshot, but its handle lives on: it looks alive to the others.
    world.faults.arm(FaultPlan::new(holder.process, 5, Fault::CrashBefore));
    let engine = holder.engine.clone();
    let dead = world.simulation.run(holder.process, async move {
        engine.snapshot(SnapshotRequest::new("web")).await.map(drop)
    });
    assert!(dead.is_none());
    world.faults.disarm();
    let wait = Wait::UpTo(Duration::from_secs(2));
    let before = world.simulation.now();
    let result = world
        .simulation
        .run(waiter.process, async move { waiter.engine.destroy("web", wait).await })
        .unwrap();
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Conflict);
    let waited = world.simulation.now().duration_since(before);
    assert!(waited.as_secs() >= 2 && waited.as_secs() < 4, "{waited:?}");
    drop(holder);
    world.run(|engine| async move { engine.recover().await.unwrap() });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn two_tasks_of_one_process_meet() {
    harness().two_tasks_meet().check();
}

#[test]
fn a_pin_that_was_answered_holds_against_a_prune() {
    for seed in 0..200 {
        let world = filled(Simulation::shuffled(seed));
        let (one, two) = (world.seat(), world.seat());
        let prune = async move {
            let policy = RetentionPolicy { max_total: Some(1), ..RetentionPolicy::default() };
            one.engine.prune(&policy).await.map(drop)
        };
        let pin = async move {
            let pin = SnapshotEdit { pinned: Some(true), ..SnapshotEdit::default() };
            two.engine.edit_snapshot("two", pin, Wait::No).await.map(drop)
        };
        let racers = [(one.process, prune.boxed()), (two.process, pin.boxed())];
        let results = world.simulation.run_all(racers);
        let there = world.run(|engine| async move { engine.show("two").await.is_ok() });
        assert!(there || matches!(results[1], Some(Err(_))), "seed {seed}: pinned, and gone");
        assert_eq!(world.broken_invariants(), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn a_delete_clears_all_that_a_dead_server_left() {
    for seed in 0..10 {
        let world = filled(Simulation::shuffled(seed));
        let Seat { process, engine } = world.seat();
        world.faults.arm(FaultPlan::new(process, 96, Fault::CrashBefore));
        let restores: Vec<_> = (0..40)
            .map(|_| {
                let engine = engine.clone();
                let restore = async move { engine.restore(RestoreRequest::new("two")).await };
                (process, restore.map(drop).boxed())
            })
            .collect();
        drop(engine);
        world.simulation.run_all(restores);
        world.faults.disarm();
        let open = world.open_operations().len();
        assert!(open > 10, "{open} were left");
        world.run(|engine| async move { engine.delete_snapshot("two", Wait::No).await.unwrap() });
        assert_eq!(world.broken_invariants(), Vec::<String>::new());
    }
}

#[test]
fn two_who_adopt_at_once_get_the_same() {
    for seed in 0..50 {
        let world = filled(Simulation::shuffled(seed));
        let racers = [world.seat(), world.seat()].map(|Seat { process, engine }| {
            let wait = Wait::UpTo(Duration::from_secs(60));
            let request = AdoptRequest { wait, ..adopt("stranger") };
            (process, async move { engine.adopt(request).await }.boxed())
        });
        let results = world.simulation.run_all(racers);
        let ids: Vec<_> = results.into_iter().flatten().map(|result| result.unwrap().id).collect();
        assert!(ids.len() == 2 && ids[0] == ids[1], "seed {seed}");
    }
}

#[test]
fn a_fork_goes_on_without_its_caller() {
    let (mut half, mut whole) = (0, 0);
    for patience in 1..120 {
        let world = filled(Simulation::shuffled(patience));
        let before = world.visible();
        world.run(move |engine| async move {
            let source = ForkSource::Sandbox("web".into(), SnapshotKind::Files);
            let fork = async move { engine.fork(ForkRequest::new(source, 3)).await.map(drop) };
            future::select(fork.boxed(), yield_times(patience).boxed()).await;
        });
        world.simulation.settle();
        let after = world.visible();
        let taken = after.snapshots.len() > before.snapshots.len();
        let made = after.sandboxes.len() > before.sandboxes.len();
        half += usize::from(taken && !made);
        whole += usize::from(taken && made);
    }
    assert_eq!(half, 0, "a snapshot was taken, and nothing made of it");
    assert!(whole > 0);
}

#[test]
fn a_fork_that_waits_takes_one_snapshot() {
    for seed in 0..300 {
        let world = filled(Simulation::shuffled(seed));
        let before = world.visible().snapshots.len();
        let (one, two) = (world.seat(), world.seat());
        let fork = async move {
            let wait = Wait::UpTo(Duration::from_secs(60));
            let name = Some("kid".parse().unwrap());
            let source = ForkSource::Sandbox("web".into(), SnapshotKind::Files);
            let request = ForkRequest { name, wait, ..ForkRequest::new(source, 2) };
            one.engine.fork(request).await.map(drop)
        };
        // Claims one of the names while the snapshot is being taken, and gives it back.
        world.faults.arm(FaultPlan::new(two.process, 2, Fault::Before));
        let create = async move {
            yield_times(seed % 60).await;
            two.engine.create(named("kid-1")).await.map(drop)
        };
        world.simulation.run_all([(one.process, fork.boxed()), (two.process, create.boxed())]);
        let taken = world.visible().snapshots.len() - before;
        assert!(taken <= 1, "seed {seed}: {taken} snapshots for one fork");
    }
}

#[test]
fn two_edits_both_last() {
    for seed in 0..50 {
        let world = filled(Simulation::shuffled(seed));
        let pin = SnapshotEdit { pinned: Some(true), ..SnapshotEdit::default() };
        let text = Some(Some("a note".to_owned()));
        let describe = SnapshotEdit { description: text, ..SnapshotEdit::default() };
        let racers = [pin, describe].map(|edit| {
            let Seat { process, engine } = world.seat();
            let wait = Wait::UpTo(Duration::from_secs(60));
            (process, async move { engine.edit_snapshot("one", edit, wait).await }.boxed())
        });
        let results = world.simulation.run_all(racers);
        assert!(results.iter().flatten().all(Result::is_ok), "seed {seed}");
        let one = world.run(|engine| async move { engine.show("one").await.unwrap().record });
        assert!(one.pinned && one.description.as_deref() == Some("a note"), "seed {seed}");
    }
}

#[test]
fn one_name_goes_to_one_of_two() {
    for seed in 0..50 {
        let world = World::new(Simulation::shuffled(seed));
        let racers = [world.seat(), world.seat()].map(|Seat { process, engine }| {
            (process, async move { engine.create(named("same")).await }.boxed())
        });
        let results = world.simulation.run_all(racers);
        let made = results.iter().flatten().filter(|result| result.is_ok()).count();
        assert_eq!(made, 1, "seed {seed}");
        assert_eq!(world.broken_invariants(), Vec::<String>::new());
    }
}
