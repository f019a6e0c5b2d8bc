//! Stopping, starting, pausing and resuming, and snapshots that survive a power cut.

use std::path::Path;

use forkpoint_core::{
    Engine, Error, ErrorKind,
    driver::{Command, DriverError, ExitStatus, SandboxState},
    engine::{ForkRequest, ForkSource, RollbackRequest, SnapshotRequest, Wait},
};
use forkpoint_testkit::{
    Simulation, World,
    faults::{Fault, FaultPlan},
    harness::ops::{fill_small, snapshot, snapshot_request, taken, write},
};

fn fixed() -> World {
    let world = World::new(Simulation::in_order());
    fill_small(&world);
    world
}

async fn state(engine: &Engine, sandbox: &str) -> SandboxState {
    engine.sandbox(sandbox).await.unwrap().status.unwrap().unwrap().state
}

fn conflict<T>(result: Result<T, Error>, text: &str) {
    let err = result.map(drop).expect_err("it should have been refused");
    assert_eq!(err.kind(), ErrorKind::Conflict);
    assert!(err.chain().to_string().ends_with(text), "{}", err.chain());
}

#[test]
fn a_stopped_sandbox_keeps_its_files_and_comes_back() {
    let world = fixed();
    world.run(|engine| async move {
        let web = engine.attach("web").await.unwrap();
        let sleep = web.exec(&Command::new(["sleep", "1000"])).await.unwrap();
        let record = engine.stop("web", Wait::No).await.unwrap();
        assert_eq!(record, engine.stop("web", Wait::No).await.unwrap(), "twice");
        assert_eq!(sleep.control.wait().await.unwrap(), ExitStatus::Signal(9));
        assert_eq!(state(&engine, "web").await, SandboxState::Stopped);
        let refused = web.exec(&Command::new(["true"])).await.unwrap_err();
        let stopped = SandboxState::Stopped;
        assert!(matches!(refused, DriverError::NotRunning { state, .. } if state == stopped));
        conflict(engine.pause("web", Wait::No).await, "is stopped");
        conflict(engine.resume("web", Wait::No).await, "is stopped");

        for _ in 0..2 {
            engine.start("web", Wait::No).await.unwrap();
            assert_eq!(state(&engine, "web").await, SandboxState::Running);
        }
        web.exec(&Command::new(["true"])).await.unwrap();
    });
    let web = world.visible().sandboxes.remove(0);
    assert_eq!(world.platform.files(web.id).unwrap()[Path::new("/unsaved")], "work");
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn what_its_user_paused_stays_paused() {
    let world = fixed();
    world.run(|engine| async move {
        for _ in 0..2 {
            engine.pause("web", Wait::No).await.unwrap();
            assert_eq!(state(&engine, "web").await, SandboxState::Paused);
        }
        conflict(engine.start("web", Wait::No).await, "is paused");
        write(&engine, "web", "/late", "yes").await;
        snapshot(&engine, "web", "still").await;
        engine.recover().await.unwrap();
        assert_eq!(state(&engine, "web").await, SandboxState::Paused);
        for _ in 0..2 {
            engine.resume("web", Wait::No).await.unwrap();
            assert_eq!(state(&engine, "web").await, SandboxState::Running);
        }
        engine.pause("web", Wait::No).await.unwrap();
        engine.stop("web", Wait::No).await.unwrap();
        assert_eq!(state(&engine, "web").await, SandboxState::Stopped, "a pause is no obstacle");
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn what_is_stopped_can_be_saved_forked_and_rolled_back() {
    let world = fixed();
    world.run(|engine| async move {
        engine.stop("web", Wait::No).await.unwrap();
        let asleep = snapshot(&engine, "web", "asleep").await;
        let source = ForkSource::Sandbox("web".into(), Default::default());
        let forked = engine.fork(ForkRequest::new(source, 1)).await.unwrap();
        let child = forked.children[0].id.to_string();
        assert_eq!(state(&engine, &child).await, SandboxState::Running);
        assert_eq!(state(&engine, "web").await, SandboxState::Stopped);

        let to = Some(asleep.id.to_string());
        engine.rollback(RollbackRequest { to, ..RollbackRequest::new("web") }).await.unwrap();
        assert_eq!(state(&engine, "web").await, SandboxState::Running);
        engine.stop("web", Wait::No).await.unwrap();
        engine.destroy("web", Wait::No).await.unwrap();
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn what_was_adopted_is_switched_too() {
    let world = fixed();
    world.run(|engine| async move {
        engine.stop("theirs", Wait::No).await.unwrap();
        assert_eq!(state(&engine, "theirs").await, SandboxState::Stopped);
        snapshot(&engine, "theirs", "asleep").await;
        engine.start("theirs", Wait::No).await.unwrap();
        assert_eq!(state(&engine, "theirs").await, SandboxState::Running);
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn what_the_driver_cannot_do_is_refused_before_it_begins() {
    let world = fixed();
    world.platform.take_away(|can| (can.stop, can.pause) = (false, false));
    world.faults.arm(FaultPlan::new(world.next_process(), 99, Fault::Before));
    let process = world.next_process();
    world.run(|engine| async move {
        for (refused, text) in [
            (engine.stop("web", Wait::No).await, "driver `fake` cannot stop a sandbox"),
            (engine.start("web", Wait::No).await, "driver `fake` cannot start a sandbox"),
            (engine.pause("web", Wait::No).await, "driver `fake` cannot pause a sandbox"),
            (engine.resume("web", Wait::No).await, "driver `fake` cannot resume a sandbox"),
        ] {
            let err = refused.unwrap_err();
            assert_eq!((err.kind(), err.to_string().as_str()), (ErrorKind::Unsupported, text));
        }
    });
    assert_eq!(world.faults.calls(process), 4, "each asked for its sandbox, and for nothing else");
}

#[test]
fn a_switch_that_is_left_open_is_closed_by_recovery() {
    let world = fixed();
    world.faults.arm(FaultPlan::new(world.next_process(), 4, Fault::Outage));
    let err = world.run(|engine| async move { engine.stop("web", Wait::No).await.unwrap_err() });
    let text = err.chain().to_string();
    assert!(text.contains("is left open, and will be closed by recovery"), "{text}");
    world.faults.disarm();
    world.run(|engine| async move {
        engine.recover().await.unwrap();
        assert_eq!(state(&engine, "web").await, SandboxState::Stopped, "it had been done");
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn a_synced_snapshot_says_whether_it_survives_a_power_cut() {
    let world = fixed();
    let synced = |name| SnapshotRequest { sync: true, ..snapshot_request("web", name) };
    let (two, three) = world.run(move |engine| async move {
        let two = engine.show("two").await.unwrap().record;
        (two, taken(engine.snapshot(synced("three")).await.unwrap()))
    });
    assert!(!two.durable && three.durable && three.artifact.durable);
    assert!(world.platform.is_synced(three.id));
    assert!(world.platform.is_synced(two.id), "what it lies over");

    world.platform.make_volatile();
    world.run(move |engine| async move {
        assert!(!taken(engine.snapshot(synced("four")).await.unwrap()).durable);
        assert!(engine.show("three").await.unwrap().record.durable);
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn a_sync_that_fails_leaves_no_snapshot() {
    let met = (1..40).any(|at| {
        let world = fixed();
        let before = world.visible();
        world.faults.arm(FaultPlan::new(world.next_process(), at, Fault::Before));
        let request = SnapshotRequest { sync: true, ..SnapshotRequest::new("web") };
        let result = world.run(|engine| async move { engine.snapshot(request).await });
        let met = world.faults.struck() == Some("sync");
        if met {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Unavailable);
            assert_eq!(world.visible(), before);
            assert_eq!(world.broken_invariants(), Vec::<String>::new(), "without any recovery");
        }
        met
    });
    assert!(met, "no fault met the sync");
}
