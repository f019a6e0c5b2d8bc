//! Commands that run inside a sandbox before a snapshot and after a restore.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use forkpoint_core::{
    Error,
    engine::{
        ForkRequest, ForkSource, Hooks, Notices, OnFailure, RestoreRequest, RollbackRequest,
        SkipReason, SnapshotOutcome, SnapshotRequest, Wait,
    },
};
use forkpoint_testkit::{
    Simulation, World,
    harness::{
        Harness,
        ops::{fill_small, if_changed, taken},
    },
};

fn filled() -> World {
    let world = World::new(Simulation::in_order());
    fill_small(&world);
    world
}

/// What was told, from now on.
fn listen(world: &mut World, hooks: Hooks) -> Arc<Mutex<Vec<String>>> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let ear = Arc::clone(&told);
    world.config.hooks = hooks;
    world.config.notices = Notices::to(move |text| ear.lock().unwrap().push(text.to_owned()));
    told
}

fn before(script: &str) -> Hooks {
    Hooks { before_snapshot: Some(script.to_owned()), ..Hooks::default() }
}

fn after(script: &str) -> Hooks {
    Hooks { after_restore: Some(script.to_owned()), ..Hooks::default() }
}

fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.expect_err("a hook failed").chain().to_string()
}

#[test]
fn what_a_hook_wrote_is_in_the_snapshot() {
    let mut world = filled();
    let told = listen(&mut world, before("touch /saved"));
    let id = world.run(|engine| async move {
        taken(engine.snapshot(SnapshotRequest::new("web")).await.unwrap());
        let restored = RestoreRequest::new("web@latest");
        engine.restore(restored).await.unwrap().id
    });
    assert!(world.platform.files(id).unwrap().contains_key(Path::new("/saved")));
    assert!(told.lock().unwrap().is_empty(), "nothing to tell");
}

#[test]
fn a_hook_that_fails_stops_the_snapshot_and_says_why() {
    let mut world = filled();
    listen(&mut world, before("echo no room; exit 3"));
    let (err, count) = world.run(|engine| async move {
        let err = message(engine.snapshot(SnapshotRequest::new("web")).await);
        (err, engine.stats().await.unwrap())
    });
    assert_eq!(
        err,
        "failed to take a snapshot of sandbox `web`: hook `before_snapshot` failed: it ended with code 3, and said: no room"
    );
    assert_eq!((count.usage.snapshots, count.open_operations), (4, 0));
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn a_hook_that_hangs_is_killed() {
    let mut world = filled();
    listen(&mut world, Hooks { timeout: Duration::from_secs(2), ..before("sleep") });
    let err = world
        .run(|engine| async move { message(engine.snapshot(SnapshotRequest::new("web")).await) });
    assert!(err.ends_with("it took longer than 2s, and was killed"), "{err}");
}

#[test]
fn a_failure_that_is_only_to_be_told_is_told() {
    let mut world = filled();
    let hooks = Hooks { on_failure: OnFailure::Warn, ..before("exit 1") };
    let told = listen(&mut world, hooks);
    world.run(|engine| async move {
        taken(engine.snapshot(SnapshotRequest::new("web")).await.unwrap());
    });
    let told = told.lock().unwrap();
    assert!(told[0].contains("hook `before_snapshot` failed: it ended with code 1"), "{told:?}");
}

#[test]
fn where_nothing_can_run_a_hook_is_skipped_and_that_is_told() {
    let mut world = filled();
    let told = listen(&mut world, before("exit 1"));
    world.run(|engine| async move {
        engine.stop("web", Wait::No).await.unwrap();
        engine.pause("copy", Wait::No).await.unwrap();
        for sandbox in ["web", "copy"] {
            taken(engine.snapshot(SnapshotRequest::new(sandbox)).await.unwrap());
        }
    });
    let told = told.lock().unwrap();
    assert!(told[0].contains("was skipped") && told[0].ends_with("is stopped"), "{told:?}");
    assert!(told[1].ends_with("is paused"), "{told:?}");
}

#[test]
fn a_copy_whose_hook_fails_is_destroyed_and_a_rollback_stays() {
    let mut world = filled();
    let told = listen(&mut world, after("exit 5"));
    let before = world.visible().sandboxes.len();
    world.run(|engine| async move {
        let err = message(engine.restore(RestoreRequest::new("one")).await);
        assert!(err.contains("hook `after_restore` failed: it ended with code 5"), "{err}");
        let source = ForkSource::Snapshot("one".to_owned());
        let forked = engine.fork(ForkRequest::new(source, 2)).await.unwrap();
        assert!(forked.children.iter().all(|child| child.result.is_err()));
        let back = engine.rollback(RollbackRequest::new("web")).await.unwrap().to;
        assert_eq!(back.name.as_str(), "two");
    });
    assert_eq!(world.visible().sandboxes.len(), before);
    assert_eq!(told.lock().unwrap().len(), 1, "of the rollback, which cannot be taken back");
    world.config.hooks = Hooks::default();
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn a_hook_runs_before_anybody_asks_what_changed() {
    let mut world = filled();
    listen(&mut world, before("touch /saved"));
    world.run(|engine| async move {
        taken(engine.snapshot(if_changed("copy")).await.unwrap());
        let again = engine.snapshot(if_changed("copy")).await.unwrap();
        assert!(matches!(again, SnapshotOutcome::Skipped(SkipReason::Unchanged(_))));
    });
}

/// A world in which every hook runs and works.
fn hooked(simulation: Simulation) -> World {
    let mut world = World::new(simulation);
    let script = || Some("exit 0".to_owned());
    world.config.hooks =
        Hooks { before_snapshot: script(), after_restore: script(), ..Hooks::default() };
    world
}

#[test]
fn any_call_may_fail_with_hooks() {
    Harness::new(&hooked, 2).any_call_may_fail().check();
}
