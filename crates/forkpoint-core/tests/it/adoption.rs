//! What is adopted because somebody uses it, and what is not.

use forkpoint_core::{
    Engine, Error, ErrorKind,
    catalog::{SandboxQuery, SnapshotQuery},
    driver::{SandboxState, SnapshotKind},
    engine::{
        AdoptRequest, CompareRequest, ForkRequest, ForkSource, Notices, RestoreRequest,
        RollbackRequest, SkipReason, SnapshotOutcome, SnapshotRequest, Wait,
    },
    spec::{Attachments, VolumeChoice},
    trigger::{EnabledTriggers, Trigger},
};
use forkpoint_testkit::{
    Files, Simulation, World,
    harness::ops::{adopt, fill_small, named, snapshot, taken, write},
};

fn fixed() -> World {
    let world = World::new(Simulation::in_order());
    fill_small(&world);
    world
}

fn kind_of<T>(result: Result<T, Error>) -> ErrorKind {
    result.map(drop).expect_err("it should have been refused").kind()
}

async fn count(engine: &Engine) -> usize {
    engine.sandboxes(&SandboxQuery::default()).await.unwrap().items.len()
}

#[test]
fn what_is_there_can_be_snapshotted_and_rolled_back_right_away() {
    let world = fixed();
    let id = world.run(|engine| async move {
        let before = count(&engine).await;
        let one = snapshot(&engine, "fake:stranger", "first").await;
        assert_eq!(count(&engine).await, before + 1);
        write(&engine, "fake:stranger", "/etc/image", "broken").await;
        let request = SnapshotRequest::new("fake:stranger");
        let two = taken(engine.snapshot(request).await.unwrap());
        assert_eq!((two.sandbox, two.parent), (one.sandbox, Some(one.id)), "one record for both");
        let latest = engine.show("fake:stranger@latest").await.unwrap();
        assert_eq!(latest.record.id, two.id);
        let to = Some("fake:stranger@2".to_owned());
        engine
            .rollback(RollbackRequest { to, ..RollbackRequest::new("fake:stranger") })
            .await
            .unwrap();
        assert_eq!(count(&engine).await, before + 1, "rolled back, it is the same sandbox");
        let record = engine.sandbox("stranger").await.unwrap().record;
        assert_eq!(record.adopted.as_deref(), Some("stranger"));
        record.id
    });
    assert_eq!(world.platform.files(id).unwrap()[std::path::Path::new("/etc/image")], "stranger");
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn looking_adopts_nothing() {
    let world = fixed();
    world.run(|engine| async move {
        let before = count(&engine).await;
        let view = engine.sandbox("fake:stranger").await.unwrap();
        assert_eq!(view.status.unwrap().unwrap().state, SandboxState::Running);
        engine.validate("fake:stranger", SnapshotKind::Files).await.unwrap();
        engine.usage("fake:stranger").await.unwrap();
        engine.attach("fake:stranger").await.unwrap();
        engine.look("fake:stranger").await.unwrap();
        let compare = CompareRequest { from: "fake:stranger".into(), to: None, under: vec![] };
        engine.compare(&compare).await.unwrap();
        assert!(engine.log(Some("fake:stranger")).await.unwrap().is_empty());
        let listed = engine.list_of("fake:stranger", SnapshotQuery::default()).await.unwrap();
        assert!(listed.items.is_empty());
        let none = engine.show("fake:stranger@latest").await;
        assert_eq!(kind_of(none), ErrorKind::NotFound);
        assert_eq!(kind_of(engine.destroy("fake:stranger", Wait::No).await), ErrorKind::NotFound);
        let full =
            SnapshotRequest { kind: SnapshotKind::Full, ..SnapshotRequest::new("fake:stranger") };
        assert_eq!(kind_of(engine.snapshot(full).await), ErrorKind::Unsupported);
        assert_eq!(kind_of(engine.sandbox("fake:nobody").await), ErrorKind::NotFound);
        assert_eq!(count(&engine).await, before);
    });
}

#[test]
fn a_trigger_that_is_off_adopts_nothing() {
    let mut world = World::new(Simulation::in_order());
    world.config.triggers = EnabledTriggers::only([Trigger::Manual]);
    world.platform.add_foreign("stranger", Files::new());
    world.run(|engine| async move {
        let trigger = Trigger::Periodic;
        let request = SnapshotRequest { trigger, ..SnapshotRequest::new("fake:stranger") };
        let outcome = engine.snapshot(request).await.unwrap();
        let SnapshotOutcome::Skipped(SkipReason::TriggerDisabled(_)) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(count(&engine).await, 0);
    });
}

#[test]
fn what_was_made_anew_under_the_same_name_is_another() {
    let world = fixed();
    let old = world.run(|engine| async move { snapshot(&engine, "fake:stranger", "old").await });
    let anew = world.platform.replace_foreign("stranger", Files::new());
    assert_ne!(anew, old.sandbox);
    world.run(|engine| async move {
        let none = engine.show("fake:stranger@latest").await;
        assert_eq!(kind_of(none), ErrorKind::NotFound, "the new one has none");
        let new = taken(engine.snapshot(SnapshotRequest::new("fake:stranger")).await.unwrap());
        assert_eq!((new.sandbox, new.parent), (anew, None));
        let record = engine.sandbox("fake:stranger").await.unwrap().record;
        assert_eq!((record.id, record.name), (anew, None), "the old record has the name");
        assert_eq!(record.adopted.as_deref(), Some("stranger"));
        let listed = engine.list_of("fake:stranger", SnapshotQuery::default()).await.unwrap();
        assert_eq!(listed.items.len(), 1);
        engine.show("old").await.unwrap();
        engine.restore(RestoreRequest::new("old")).await.unwrap();
    });
}

#[test]
fn what_is_gone_keeps_its_snapshots() {
    let world = fixed();
    let old = world.run(|engine| async move { snapshot(&engine, "fake:stranger", "old").await });
    world.platform.lose(old.sandbox);
    world.run(|engine| async move {
        let latest = engine.show("fake:stranger@latest").await.unwrap();
        assert_eq!(latest.record.id, old.id);
        engine.destroy("fake:stranger", Wait::No).await.unwrap();
        let latest = engine.show("fake:stranger@latest").await.unwrap();
        assert_eq!(latest.record.id, old.id, "forgotten, it still has them");
    });
}

#[test]
fn forks_and_switches_take_what_is_there() {
    let world = fixed();
    world.run(|engine| async move {
        engine.pause("fake:stranger", Wait::No).await.unwrap();
        engine.resume("fake:stranger", Wait::No).await.unwrap();
        let source = ForkSource::Sandbox("fake:stranger".into(), SnapshotKind::Files);
        let forked = engine.fork(ForkRequest::new(source, 3)).await.unwrap();
        assert!(forked.children.iter().all(|child| child.result.is_ok()));
        let copy = forked.children[0].result.as_ref().unwrap();
        assert_eq!(copy.adopted, None, "a copy is ours");
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn two_who_adopt_at_once_get_one_record() {
    for seed in 0..40 {
        let world = World::new(Simulation::shuffled(seed));
        world.platform.add_foreign("stranger", Files::new());
        world.run(|engine| async move {
            let take = || async {
                let wait = Wait::UpTo(std::time::Duration::from_secs(60));
                let request = SnapshotRequest { wait, ..SnapshotRequest::new("fake:stranger") };
                engine.snapshot(request).await.unwrap()
            };
            futures::future::join(take(), take()).await;
            assert_eq!(count(&engine).await, 1);
        });
        assert_eq!(world.broken_invariants(), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn a_copy_has_the_attachments_that_were_asked_for_it() {
    let world = fixed();
    world.run(|engine| async move {
        let attachments = Attachments {
            networks: false,
            volumes: VolumeChoice::Share,
            publish: vec!["127.0.0.1:8080:80".parse().unwrap()],
            ..Attachments::default()
        };
        let name = Some("shared".parse().unwrap());
        let request =
            RestoreRequest { name, attachments: attachments.clone(), ..RestoreRequest::new("one") };
        let copy = engine.restore(request).await.unwrap();
        let native_name = Some("shared".to_owned());
        let wanted = Attachments { native_name, ..attachments.clone() };
        assert_eq!(copy.spec.attachments, wanted);
        snapshot(&engine, "shared", "of-shared").await;
        let again = engine.restore(RestoreRequest::new("of-shared")).await.unwrap();
        assert!(again.spec.attachments.is_default(), "a copy of the copy is asked anew");

        let source = ForkSource::Snapshot("one".into());
        let request = ForkRequest { attachments, ..ForkRequest::new(source, 2) };
        let err = engine.fork(request).await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Invalid);
        assert!(err.chain().to_string().contains("`127.0.0.1::80`"), "{}", err.chain());
    });
}

#[test]
fn a_driver_without_attachments_is_not_asked_for_any() {
    let world = fixed();
    world.platform.take_away(|can| can.attachments = false);
    world.run(|engine| async move {
        let plain = engine.create(named("plain")).await.unwrap();
        assert!(plain.spec.attachments.is_default(), "not even a name");
        let before = count(&engine).await;
        let attachments = Attachments { networks: false, ..Attachments::default() };
        let request =
            RestoreRequest { attachments: attachments.clone(), ..RestoreRequest::new("one") };
        assert_eq!(kind_of(engine.restore(request).await), ErrorKind::Unsupported);
        let mut request = named("odd");
        request.spec.attachments = attachments;
        assert_eq!(kind_of(engine.create(request).await), ErrorKind::Unsupported);
        assert_eq!(count(&engine).await, before);
        assert_eq!(engine.stats().await.unwrap().open_operations, 0);
    });
}

#[test]
fn what_a_driver_did_otherwise_is_told_once() {
    let mut world = World::new(Simulation::in_order());
    let (tell, told) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    world.config.notices =
        Notices::to(move |text| tell.lock().unwrap().send(text.to_owned()).unwrap());
    world.platform.say("port 80 was taken, and is 81");
    world.run(|engine| async move {
        engine.create(named("web")).await.unwrap();
        snapshot(&engine, "web", "one").await;
    });
    let told: Vec<_> = told.try_iter().collect();
    assert_eq!(told, ["sandbox `web`: port 80 was taken, and is 81"]);
}

#[test]
fn adopting_twice_is_once() {
    let world = fixed();
    world.run(|engine| async move {
        let record = engine.adopt(adopt("stranger")).await.unwrap();
        let again = engine.adopt(AdoptRequest { ..adopt("stranger") }).await.unwrap();
        assert_eq!(record, again);
        let ours = engine.adopt(adopt("web")).await;
        assert_eq!(kind_of(ours), ErrorKind::Conflict, "it is ours already");
    });
}
