//! Sandboxes whose time is over, and what is written on snapshots.

use forkpoint_core::{
    Timestamp,
    catalog::SandboxQuery,
    engine::{CreateRequest, ForkRequest, ForkSource, RestoreRequest, SnapshotEdit, Wait},
    label::Labels,
};
use forkpoint_testkit::{
    Simulation, World,
    faults::{Fault, FaultPlan},
    harness::ops::{fill_small, named},
};

fn at(text: &str) -> Option<Timestamp> {
    Some(text.parse().unwrap())
}

const PAST: &str = "2001-01-01T00:00:00Z";
const FUTURE: &str = "2201-01-01T00:00:00Z";

#[test]
fn only_those_whose_time_is_over_are_destroyed() {
    let world = World::new(Simulation::in_order());
    fill_small(&world);
    world.run(|engine| async move {
        let before = engine.sandboxes(&SandboxQuery::default()).await.unwrap().items.len();
        assert!(engine.expire().await.unwrap().destroyed.is_empty(), "most have no end");
        engine.create(CreateRequest { expires: at(PAST), ..named("old") }).await.unwrap();
        engine.create(CreateRequest { expires: at(FUTURE), ..named("young") }).await.unwrap();
        let name = Some("copy-2".parse().unwrap());
        let copy = RestoreRequest { expires: at(PAST), name, ..RestoreRequest::new("one") };
        engine.restore(copy).await.unwrap();
        let source = ForkSource::Snapshot("one".to_owned());
        let fork = ForkRequest { expires: at(PAST), ..ForkRequest::new(source, 2) };
        engine.fork(fork).await.unwrap();
        let report = engine.expire().await.unwrap();
        assert_eq!((report.destroyed.len(), report.failed.len()), (4, 0));
        let after = engine.sandboxes(&SandboxQuery::default()).await.unwrap().items;
        assert_eq!(after.len(), before + 1);
        assert!(after.iter().any(|view| view.record.expires == at(FUTURE)));
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn an_expiry_that_dies_half_way_is_done_by_the_next() {
    for at_call in 1..30 {
        let world = World::new(Simulation::in_order());
        world.run(|engine| async move {
            for name in ["one", "two"] {
                engine.create(CreateRequest { expires: at(PAST), ..named(name) }).await.unwrap();
            }
        });
        world.faults.arm(FaultPlan::new(world.next_process(), at_call, Fault::CrashAfter));
        world.try_run(|engine| async move { engine.expire().await });
        let struck = world.faults.struck().is_some();
        world.faults.disarm();
        world.run(|engine| async move {
            engine.recover().await.unwrap();
            engine.expire().await.unwrap();
            let left = engine.sandboxes(&SandboxQuery::default()).await.unwrap().items;
            assert!(left.is_empty(), "call {at_call}");
        });
        assert_eq!(world.broken_invariants(), Vec::<String>::new());
        if !struck {
            assert!(at_call > 4, "it makes calls");
            return;
        }
    }
    panic!("it makes fewer calls than that");
}

#[test]
fn labels_are_added_changed_and_taken_away() {
    let world = World::new(Simulation::in_order());
    fill_small(&world);
    world.run(|engine| async move {
        let edit = |add: &[(&str, &str)], remove: &[&str]| SnapshotEdit {
            add_labels: Labels::new(add.iter().copied()).unwrap(),
            remove_labels: remove.iter().map(|key| (*key).to_owned()).collect(),
            ..SnapshotEdit::default()
        };
        engine.edit_snapshot("one", edit(&[("a", "1"), ("b", "2")], &[]), Wait::No).await.unwrap();
        let edited = engine.edit_snapshot("one", edit(&[("b", "3"), ("c", "4")], &["a"]), Wait::No);
        let labels = edited.await.unwrap().labels;
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("b", "3"), ("c", "4")]);
        let many = (0..70).map(|number| (format!("k{number}"), "v"));
        let too_many = many.map(|(key, value)| (key, value.to_owned())).collect::<Vec<_>>();
        for chunk in too_many.chunks(35) {
            let add_labels = Labels::new(chunk.iter().cloned()).unwrap();
            let edit = SnapshotEdit { add_labels, ..SnapshotEdit::default() };
            let _ = engine.edit_snapshot("one", edit, Wait::No).await;
        }
        assert!(engine.show("one").await.unwrap().record.labels.iter().count() <= 64);
        assert_eq!(engine.stats().await.unwrap().open_operations, 0, "what was refused is closed");
    });
}
