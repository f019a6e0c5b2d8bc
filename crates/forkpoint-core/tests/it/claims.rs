//! Snapshots that others kept.

use forkpoint_core::{
    Error, ErrorKind,
    catalog::SnapshotQuery,
    engine::{ClaimOutcome, ClaimRequest, RestoreRequest, Wait},
};
use forkpoint_testkit::{
    Simulation, World,
    harness::ops::{claim, fill_small, snapshot},
};

fn fixed() -> World {
    let world = World::new(Simulation::in_order());
    fill_small(&world);
    world
}

fn kind_of<T>(result: Result<T, Error>) -> ErrorKind {
    result.map(drop).expect_err("it should have been refused").kind()
}

#[test]
fn what_others_kept_is_restored_and_stays_theirs() {
    let world = fixed();
    let copy = world.run(|engine| async move {
        let outcome = engine.claim(claim("legacy")).await.unwrap();
        let ClaimOutcome::Claimed(record) = outcome else { panic!("{outcome:?}") };
        assert_eq!((record.restore_count, record.parent), (2, None));
        let shown = engine.show("kept").await.unwrap().record;
        assert_eq!(shown, *record);
        let listed = engine.list_of("webapp", SnapshotQuery::default()).await.unwrap();
        assert_eq!(listed.items, [shown], "under the name of a sandbox that is gone");
        engine.restore(RestoreRequest::new("webapp@latest")).await.unwrap().id
    });
    let files = world.platform.files(copy).unwrap();
    assert_eq!(files[std::path::Path::new("/srv")], "kept");
    world.run(|engine| async move {
        engine.destroy(&copy.to_string(), Wait::No).await.unwrap();
        engine.delete_snapshot("kept", Wait::No).await.unwrap();
    });
    assert_eq!(world.platform.images(), ["legacy"]);
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn claiming_twice_is_claiming_once() {
    let world = fixed();
    world.run(|engine| async move {
        engine.claim(claim("legacy")).await.unwrap();
        let again = engine.claim(claim("legacy")).await.unwrap();
        assert!(matches!(again, ClaimOutcome::Known(_)), "{again:?}");
        let copy = engine.restore(RestoreRequest::new("kept")).await.unwrap();
        engine.delete_snapshot("kept", Wait::No).await.unwrap();
        let gone = engine.claim(claim("legacy")).await.unwrap();
        assert_eq!(gone, ClaimOutcome::Deleted, "a sandbox still comes from it");
        engine.destroy(&copy.id.to_string(), Wait::No).await.unwrap();
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn a_name_that_is_taken_is_made_free_and_what_is_missing_is_told() {
    let world = fixed();
    world.run(|engine| async move {
        snapshot(&engine, "web", "kept").await;
        let outcome = engine.claim(claim("legacy")).await.unwrap();
        let ClaimOutcome::Claimed(record) = outcome else { panic!("{outcome:?}") };
        assert_ne!(record.name.as_str(), "kept");
        let id = forkpoint_core::id::SnapshotId::from_u128(9);
        let missing = ClaimRequest { id, ..claim("nothing") };
        assert_eq!(kind_of(engine.claim(missing).await), ErrorKind::NotFound);
        assert_eq!(engine.stats().await.unwrap().open_operations, 0);
    });
}
