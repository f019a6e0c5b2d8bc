//! Taking nothing where nothing changed.

use bytes::Bytes;
use forkpoint_core::{
    engine::{RestoreRequest, SkipReason, SnapshotOutcome, SnapshotRequest, Wait},
    id::SnapshotId,
};
use forkpoint_testkit::{
    Simulation, World,
    harness::ops::{fill_small, if_changed, write},
};

fn skipped(outcome: SnapshotOutcome) -> Option<SnapshotId> {
    match outcome {
        SnapshotOutcome::Skipped(SkipReason::Unchanged(id)) => Some(id),
        _ => None,
    }
}

#[test]
fn what_did_not_change_is_not_taken_again() {
    let world = World::new(Simulation::in_order());
    fill_small(&world);
    world.run(|engine| async move {
        let ask = |request| engine.snapshot(request);
        assert!(skipped(ask(if_changed("bare")).await.unwrap()).is_none(), "there is none yet");
        let first = engine.show("bare@latest").await.unwrap().record.id;
        assert_eq!(skipped(ask(if_changed("bare")).await.unwrap()), Some(first));
        let agent_state = Some(Bytes::from_static(b"it knows more now"));
        let more = SnapshotRequest { agent_state, ..if_changed("bare") };
        assert!(skipped(ask(more.clone()).await.unwrap()).is_none(), "the agent has changed");
        assert!(skipped(ask(more).await.unwrap()).is_some(), "and now it has not");
        write(&engine, "bare", "/step", "new").await;
        assert!(skipped(ask(if_changed("bare")).await.unwrap()).is_none());
        engine.delete_snapshot("bare@latest", Wait::No).await.unwrap();
        assert!(skipped(ask(if_changed("bare")).await.unwrap()).is_none(), "nothing holds it");
        let name = Some("kid".parse().unwrap());
        engine.restore(RestoreRequest { name, ..RestoreRequest::new("one") }).await.unwrap();
        let one = engine.show("one").await.unwrap().record.id;
        assert_eq!(skipped(ask(if_changed("kid")).await.unwrap()), Some(one));
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn whoever_asks_for_more_than_the_last_one_has_gets_it() {
    let world = World::new(Simulation::in_order());
    fill_small(&world);
    world.run(|engine| async move {
        let ask = async |request| skipped(engine.snapshot(request).await.unwrap());
        let until = |year: u16| {
            let expires = Some(format!("{year}-01-01T00:00:00Z").parse().unwrap());
            SnapshotRequest { expires, ..if_changed("bare") }
        };
        assert_eq!(ask(until(2101)).await, None, "there is none yet");
        assert_ne!(ask(until(2101)).await, None);
        assert_eq!(ask(until(2102)).await, None, "it has to last longer");
        assert_ne!(ask(until(2101)).await, None, "this one lasts longer than that");
        assert_eq!(ask(if_changed("bare")).await, None, "it has to last for good");
        assert_ne!(ask(until(2102)).await, None);

        let synced = SnapshotRequest { sync: true, ..if_changed("bare") };
        assert_eq!(ask(synced.clone()).await, None, "it has to survive a power cut");
        assert_ne!(ask(synced.clone()).await, None);
        let pinned = SnapshotRequest { pinned: true, ..synced };
        assert_eq!(ask(pinned.clone()).await, None, "it has to be pinned");
        assert_ne!(ask(pinned.clone()).await, None);
        let name = Some("mine".parse().unwrap());
        assert_eq!(ask(SnapshotRequest { name, ..pinned }).await, None, "it has to have this name");
        assert_eq!(engine.show("mine").await.unwrap().record.name.as_str(), "mine");
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}
