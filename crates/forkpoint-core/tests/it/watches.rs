//! A sandbox that is watched.

use std::time::Duration;

use forkpoint_core::{
    Engine, ErrorKind,
    catalog::{SnapshotQuery, SnapshotRecord},
    driver::SandboxEvent,
    engine::{SkipReason, SnapshotOutcome, SnapshotRequest, Turn, Watch, WatchRequest},
    retention::RetentionPolicy,
    trigger::Trigger,
};
use forkpoint_testkit::{
    Files, Simulation, World,
    harness::ops::{fill_small, named, taken, write},
};

fn every(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

async fn watch(engine: &Engine, sandbox: &str, every: Option<Duration>) -> Watch {
    let snapshot = SnapshotRequest { skip_unchanged: true, ..SnapshotRequest::new(sandbox) };
    engine.watch(WatchRequest { every, snapshot }).await.unwrap()
}

async fn take(watch: &mut Watch) -> SnapshotRecord {
    let turn = watch.next().await;
    let Turn::Take(trigger, context) = turn else { panic!("{turn:?}") };
    taken(watch.take(trigger, context).await.unwrap())
}

#[test]
fn one_is_taken_every_so_often_if_something_changed() {
    let mut world = World::new(Simulation::in_order());
    world.config.retention =
        RetentionPolicy { max_per_sandbox: Some(2), ..RetentionPolicy::default() };
    world.run(|engine| async move {
        engine.create(named("web")).await.unwrap();
        let mut watch = watch(&engine, "web", every(300)).await;
        for number in 0..4 {
            write(&engine, "web", "/n", &number.to_string()).await;
            assert_eq!(take(&mut watch).await.trigger, Trigger::Periodic);
        }
        let Turn::Take(trigger, context) = watch.next().await else { panic!("it is due") };
        let outcome = watch.take(trigger, context).await.unwrap();
        let SnapshotOutcome::Skipped(SkipReason::Unchanged(_)) = outcome else {
            panic!("{outcome:?}")
        };
        let kept = engine.list_of("web", SnapshotQuery::default()).await.unwrap().items;
        assert_eq!(kept.len(), 2, "retention is at work");
        assert!(kept[0].created.duration_since(kept[1].created).as_secs() >= 300);
    });
}

#[test]
fn how_it_ended_is_why() {
    let world = World::new(Simulation::in_order());
    let id = world.platform.add_foreign("webapp", Files::new());
    let platform = world.platform.clone();
    world.run(|engine| async move {
        let mut watch = watch(&engine, "fake:webapp", None).await;
        assert!(watch.listens());
        for (code, asked, trigger, context) in [
            (0, false, Trigger::RunEnd, "it ended by itself"),
            (143, true, Trigger::RunEnd, "it was stopped"),
            (3, false, Trigger::OnError, "it ended with code 3"),
        ] {
            platform.happen(id, SandboxEvent::Ended { code, asked });
            let record = take(&mut watch).await;
            assert_eq!((record.trigger, record.context.as_deref()), (trigger, Some(context)));
            assert_eq!(record.sandbox, id);
            platform.happen(id, SandboxEvent::Started);
            assert!(matches!(watch.next().await, Turn::Started));
        }
        platform.happen(id, SandboxEvent::Removed);
        assert!(matches!(watch.next().await, Turn::Gone));
        assert!(matches!(watch.next().await, Turn::Gone), "it stays so");
    });
}

#[test]
fn a_platform_that_is_away_is_told_once_and_tried_again() {
    let world = World::new(Simulation::in_order());
    let id = world.platform.add_foreign("webapp", Files::new());
    let platform = world.platform.clone();
    world.run(|engine| async move {
        let mut watch = watch(&engine, "fake:webapp", None).await;
        platform.fall_silent();
        assert!(matches!(watch.next().await, Turn::Away(_)));
        assert!(matches!(watch.next().await, Turn::Back));
        platform.happen(id, SandboxEvent::Ended { code: 1, asked: false });
        assert_eq!(take(&mut watch).await.trigger, Trigger::OnError);
        platform.fall_silent();
        assert!(matches!(watch.next().await, Turn::Away(_)));
        platform.lose(id);
        assert!(matches!(watch.next().await, Turn::Gone));
    });
}

#[test]
fn what_is_made_anew_is_not_watched_and_what_is_gone_ends_it() {
    let world = World::new(Simulation::in_order());
    world.platform.add_foreign("webapp", Files::new());
    let platform = world.platform.clone();
    world.run(|engine| async move {
        let mut watch = watch(&engine, "fake:webapp", every(60)).await;
        take(&mut watch).await;
        platform.replace_foreign("webapp", Files::new());
        let Turn::Take(trigger, context) = watch.next().await else { panic!("it is due") };
        let err = watch.take(trigger, context).await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::NotFound);
        assert!(matches!(watch.next().await, Turn::Gone));
    });
}

#[test]
fn waiting_can_be_given_up_and_begun_again() {
    let world = World::new(Simulation::in_order());
    fill_small(&world);
    world.run(|engine| async move {
        let mut watch = watch(&engine, "web", every(60)).await;
        for _ in 0..3 {
            let next = std::pin::pin!(watch.next());
            assert!(futures::poll!(next).is_pending());
        }
        take(&mut watch).await;
        let missing = SnapshotRequest::new("fake:nobody");
        let request = WatchRequest { every: every(1), snapshot: missing };
        assert_eq!(engine.watch(request).await.unwrap_err().kind(), ErrorKind::NotFound);
    });
}
