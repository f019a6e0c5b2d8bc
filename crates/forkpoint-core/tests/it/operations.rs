//! What each operation does, seen from outside.

use std::path::Path;

use bytes::Bytes;
use forkpoint_core::{
    EngineConfig, Error, ErrorKind, Timestamp,
    catalog::{SandboxQuery, SnapshotQuery},
    driver::{Driver as _, SandboxState, Severity, SnapshotKind},
    engine::{
        AdoptRequest, CreateRequest, ForkRequest, ForkSource, RestoreRequest, RollbackRequest,
        SkipReason, SnapshotEdit, SnapshotOutcome, SnapshotRequest, Wait,
    },
    id::SandboxId,
    label::Labels,
    naming::Name,
    retention::{Reason, RetentionPolicy},
    spec::{Attachments, SandboxSpec},
    trigger::{EnabledTriggers, Trigger},
};
use forkpoint_testkit::{
    Files, Simulation, World,
    faults::{Fault, FaultPlan},
    harness::ops::{adopt, fill_small, named, snapshot, snapshot_request, spec, taken, write},
};

fn fixed() -> World {
    let world = World::new(Simulation::in_order());
    fill_small(&world);
    world
}

fn with_config(change: impl FnOnce(&mut EngineConfig)) -> World {
    let mut world = World::new(Simulation::in_order());
    change(&mut world.config);
    world
}

fn kind_of<T>(result: Result<T, Error>) -> ErrorKind {
    result.map(drop).expect_err("it should have been refused").kind()
}

#[test]
fn a_snapshot_keeps_everything_that_was_said_of_it() {
    fixed().run(|engine| async move {
        let expires: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
        let request = SnapshotRequest {
            trigger: Trigger::AfterAction,
            description: Some("before the upgrade".into()),
            context: Some("apt-get dist-upgrade".into()),
            run_id: Some("run-7".into()),
            step: Some(12),
            labels: Labels::new([("task", "upgrade")]).unwrap(),
            agent_state: Some(Bytes::from_static(b"\x00opaque\xff")),
            expires: Some(expires),
            pinned: true,
            ..snapshot_request("web", "full")
        };
        let record = taken(engine.snapshot(request).await.unwrap());
        let view = engine.show("full").await.unwrap();
        assert_eq!(view.record, record);
        assert_eq!(record.trigger, Trigger::AfterAction);
        assert_eq!(record.description.as_deref(), Some("before the upgrade"));
        assert_eq!(record.context.as_deref(), Some("apt-get dist-upgrade"));
        assert_eq!((record.run_id.as_deref(), record.step), (Some("run-7"), Some(12)));
        assert_eq!(record.labels.get("task"), Some("upgrade"));
        assert_eq!((record.expires, record.pinned), (Some(expires), true));
        let native_name = Some("web".to_owned());
        let attachments = Attachments { native_name, ..Attachments::default() };
        assert_eq!(record.spec, SandboxSpec { attachments, ..spec() });
        assert_eq!(record.sandbox_name.as_ref().map(Name::as_str), Some("web"));
        assert_eq!(record.agent_state_bytes, Some(8));
        let state = engine.agent_state("full").await.unwrap();
        assert_eq!(state.as_deref(), Some(b"\x00opaque\xff".as_slice()));
        assert_eq!(engine.agent_state("one").await.unwrap(), None);
        assert_eq!(record.own_bytes, 4, "only `/unsaved` is new");
        assert_eq!((record.file_count, record.durable), (3, false));
    });
}

#[test]
fn restoring_leaves_the_source_and_counts() {
    let world = fixed();
    world.run(|engine| async move {
        let copy = engine.restore(RestoreRequest::new("two")).await.unwrap();
        assert_eq!(copy.head, Some(engine.show("two").await.unwrap().record.id));
        let record = engine.show("one").await.unwrap().record;
        assert_eq!(record.restore_count, 1, "`copy` came from it");
        assert!(record.last_restored.is_some());
        let env = [("MODE".to_owned(), "test".to_owned())].into();
        let request = RestoreRequest { env, ..RestoreRequest::new("two") };
        assert_eq!(engine.restore(request).await.unwrap().spec.env["MODE"], "test");
        assert_eq!(engine.show("two").await.unwrap().record.restore_count, 2);
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn a_fork_of_a_sandbox_has_its_state_as_of_now() {
    let world = fixed();
    let forked = world.run(|engine| async move {
        let source = ForkSource::Sandbox("web".into(), SnapshotKind::Files);
        let name = Some("try".parse().unwrap());
        engine.fork(ForkRequest { name, ..ForkRequest::new(source, 5) }).await.unwrap()
    });
    let names: Vec<_> =
        forked.children.iter().map(|child| child.name.as_ref().unwrap().to_string()).collect();
    assert_eq!(names, ["try-1", "try-2", "try-3", "try-4", "try-5"]);
    for child in &forked.children {
        let files = world.platform.files(child.id).unwrap();
        assert_eq!(files[Path::new("/unsaved")], "work");
        assert_eq!(child.result.as_ref().unwrap().head, Some(forked.snapshot));
    }
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn a_child_that_fails_fails_alone() {
    let found = (1..40).any(|at| {
        let world = fixed();
        let process = world.next_process();
        world.faults.arm(FaultPlan::new(process, at, Fault::Before));
        let forked = world.run(|engine| async move {
            let source = ForkSource::Snapshot("one".into());
            engine.fork(ForkRequest::new(source, 3)).await
        });
        let struck = world.faults.struck();
        world.faults.disarm();
        let failed = forked.map_or(0, |forked| {
            forked.children.iter().filter(|child| child.result.is_err()).count()
        });
        assert!(failed <= 1, "one call failed, {failed} children with it");
        assert_eq!(world.broken_invariants(), Vec::<String>::new(), "without any recovery");
        failed == 1 && struck == Some("restore")
    });
    assert!(found, "no fault met a child");
}

#[test]
fn rolling_back_keeps_identity_and_moves_the_head() {
    let world = fixed();
    world.run(|engine| async move {
        let before = engine.sandbox("web").await.unwrap().record;
        let request = RollbackRequest { to: Some("one".into()), ..RollbackRequest::new("web") };
        let one = engine.rollback(request).await.unwrap().to;
        let after = engine.sandbox("web").await.unwrap().record;
        assert_eq!((after.id, &after.name), (before.id, &before.name));
        assert_eq!(after.head, Some(one.id));
        let three = snapshot(&engine, "web", "three").await;
        assert_eq!(three.parent, Some(one.id), "a new branch");
        let back = engine.rollback(RollbackRequest::new("web")).await.unwrap().to;
        assert_eq!(back.id, three.id, "the newest by default");
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn rolling_back_without_a_snapshot_of_its_own_goes_to_where_it_came_from() {
    fixed().run(|engine| async move {
        let name = Some("fresh".parse().unwrap());
        engine.restore(RestoreRequest { name, ..RestoreRequest::new("two") }).await.unwrap();
        let back = engine.rollback(RollbackRequest::new("fresh")).await.unwrap().to;
        assert_eq!(back.name.as_str(), "two");
        let err = engine.rollback(RollbackRequest::new("bare")).await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::NotFound);
        assert!(err.to_string().contains("`bare` has no snapshot"), "{err}");
    });
}

#[test]
fn a_rollback_that_cannot_be_done_changes_nothing() {
    let world = fixed();
    let branch = world.run(|engine| async move { engine.show("branch").await.unwrap().record.id });
    world.platform.damage(branch);
    let before = world.visible();
    world.run(|engine| async move {
        let request = RollbackRequest { to: Some("branch".into()), ..RollbackRequest::new("web") };
        assert_eq!(kind_of(engine.rollback(request).await), ErrorKind::Corrupt);
        let web = engine.sandbox("web").await.unwrap();
        assert_eq!(web.status.unwrap().unwrap().state, SandboxState::Running);
        snapshot(&engine, "web", "goes-on").await;
    });
    assert_eq!(world.visible().sandboxes.len(), before.sandboxes.len());
    assert_eq!(world.platform.violations(), Vec::<String>::new());
}

#[test]
fn a_sandbox_that_the_platform_lost_comes_back_by_rollback() {
    let world = fixed();
    let id = world.run(|engine| async move { engine.sandbox("web").await.unwrap().record.id });
    world.platform.lose(id);
    world.run(|engine| async move {
        assert_eq!(engine.sandbox("web").await.unwrap().status.unwrap(), None, "the truth");
        let refused = engine.snapshot(SnapshotRequest::new("web")).await;
        assert_eq!(kind_of(refused), ErrorKind::NotFound);
        engine.rollback(RollbackRequest::new("web")).await.unwrap();
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn deleting_a_parent_keeps_what_its_children_need() {
    let world = fixed();
    world.run(|engine| async move {
        let one = engine.delete_snapshot("one", Wait::No).await.unwrap();
        assert_eq!(kind_of(engine.show("one").await), ErrorKind::NotFound);
        let two = engine.show("two").await.unwrap();
        assert_eq!(two.ancestors.len(), 1);
        assert!(two.ancestors[0].deleted && two.ancestors[0].id == one.id);
        let tree = engine.log(Some("web")).await.unwrap();
        let drawn: Vec<_> = tree.iter().map(|row| (row.node.name.as_str(), row.depth)).collect();
        assert_eq!(drawn, [("one", 0), ("two", 1), ("branch", 1)]);
        engine.restore(RestoreRequest::new("branch")).await.unwrap();
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn the_last_child_takes_its_parents_with_it() {
    let world = fixed();
    world.run(|engine| async move {
        for sandbox in ["web", "copy", "bare", "theirs"] {
            engine.destroy(sandbox, Wait::No).await.unwrap();
        }
        for snapshot in ["one", "two", "branch", "of-theirs"] {
            engine.delete_snapshot(snapshot, Wait::No).await.unwrap();
        }
        assert!(engine.log(None).await.unwrap().is_empty());
    });
    assert_eq!(world.platform.pieces(), []);
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn destroying_an_adopted_sandbox_forgets_it() {
    let world = fixed();
    let before = world.platform.sandboxes().len();
    world.run(|engine| async move {
        let theirs = engine.destroy("theirs", Wait::No).await.unwrap();
        assert_eq!(theirs.adopted.as_deref(), Some("theirs"));
        assert_eq!(kind_of(engine.destroy("theirs", Wait::No).await), ErrorKind::NotFound);
        let known = engine.sandboxes(&SandboxQuery::default()).await.unwrap().items;
        assert!(known.iter().all(|each| each.record.id != theirs.id));
        let of = engine.list_of("theirs", SnapshotQuery::default()).await.unwrap();
        assert_eq!(of.items.len(), 1, "its snapshots are still found under its name");
    });
    assert_eq!(world.platform.sandboxes().len(), before, "it lives on");
}

#[test]
fn what_a_forgotten_sandbox_stands_on_waits() {
    let world = fixed();
    world.run(|engine| async move {
        engine.rollback(RollbackRequest::new("theirs")).await.unwrap();
        engine.destroy("theirs", Wait::No).await.unwrap();
        engine.delete_snapshot("of-theirs", Wait::No).await.unwrap();
        assert_eq!(engine.stats().await.unwrap().waiting_chores, 1, "it lives on, and needs it");
        engine.recover().await.unwrap();
        assert_eq!(engine.stats().await.unwrap().waiting_chores, 1);
    });
    let theirs = world.run(|engine| async move {
        let request = adopt("theirs");
        engine.adopt(request).await.unwrap().id
    });
    world.platform.lose(theirs);
    world.run(|engine| async move {
        engine.destroy("theirs", Wait::No).await.unwrap();
        assert_eq!(engine.recover().await.unwrap().chores_done, 1);
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn adopting_twice_is_adopting_once() {
    fixed().run(|engine| async move {
        let request = adopt("theirs");
        let again = engine.adopt(request.clone()).await.unwrap();
        assert_eq!(again, engine.sandbox("theirs").await.unwrap().record);
        let nobody = AdoptRequest { native_name: "nobody".into(), ..request };
        assert_eq!(kind_of(engine.adopt(nobody).await), ErrorKind::NotFound);
    });
}

#[test]
fn a_trigger_that_is_off_takes_nothing_and_fails_nothing() {
    let world = with_config(|config| config.triggers = EnabledTriggers::only([Trigger::RunEnd]));
    world.run(|engine| async move {
        engine.create(named("web")).await.unwrap();
        let request = |trigger| SnapshotRequest { trigger, ..SnapshotRequest::new("web") };
        let skipped = engine.snapshot(request(Trigger::OnError)).await.unwrap();
        assert!(matches!(
            skipped,
            SnapshotOutcome::Skipped(SkipReason::TriggerDisabled(Trigger::OnError))
        ));
        taken(engine.snapshot(request(Trigger::RunEnd)).await.unwrap());
        taken(engine.snapshot(request(Trigger::Manual)).await.unwrap());
        let nobody = SnapshotRequest { sandbox: "nobody".to_owned(), ..request(Trigger::OnError) };
        let err = engine.snapshot(nobody).await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::NotFound, "a sandbox that is not there is a mistake");
    });
    assert_eq!(world.visible().snapshots.len(), 2);
}

#[test]
fn snapshots_of_one_second_get_names_of_their_own() {
    let world = with_config(|config| config.naming = "{container_name}".parse().unwrap());
    world.run(|engine| async move {
        engine.create(named("web")).await.unwrap();
        let mut names = std::collections::BTreeSet::new();
        for _ in 0..20 {
            names.insert(taken(engine.snapshot(SnapshotRequest::new("web")).await.unwrap()).name);
        }
        assert_eq!(names.len(), 20);
        assert!(names.iter().all(|name| name.as_str().starts_with("web")));
    });
}

#[test]
fn a_chosen_name_must_be_free() {
    fixed().run(|engine| async move {
        let err = engine.snapshot(snapshot_request("web", "one")).await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Conflict);
        assert!(err.chain().to_string().contains("`one` is taken by `snp"), "{}", err.chain());
        assert_eq!(kind_of(engine.create(named("web")).await), ErrorKind::Conflict);
        let name = Some("two".parse().unwrap());
        let edit = SnapshotEdit { name, ..SnapshotEdit::default() };
        assert_eq!(kind_of(engine.edit_snapshot("one", edit, Wait::No).await), ErrorKind::Conflict);
    });
}

#[test]
fn retention_is_enforced_after_each_snapshot() {
    let policy = RetentionPolicy { max_per_sandbox: Some(3), ..RetentionPolicy::default() };
    let world = with_config(|config| config.retention = policy);
    world.run(|engine| async move {
        engine.create(named("web")).await.unwrap();
        let pinned = SnapshotRequest { pinned: true, ..snapshot_request("web", "pinned") };
        engine.snapshot(pinned).await.unwrap();
        for step in 0..6 {
            write(&engine, "web", "/step", &step.to_string()).await;
            let outcome = engine.snapshot(snapshot_request("web", &format!("s{step}"))).await;
            let SnapshotOutcome::Taken(taken) = outcome.unwrap() else { panic!("skipped") };
            let report = taken.pruned.expect("limits are configured").unwrap();
            assert_eq!(report.deleted.len(), usize::from(step >= 3), "step {step}");
            assert!(report.deleted.iter().all(|each| each.reason == Reason::TooManyInSandbox));
        }
        let left = engine.list(&SnapshotQuery::default()).await.unwrap().items;
        let names: Vec<_> = left.iter().map(|record| record.name.as_str()).collect();
        assert_eq!(names, ["s5", "s4", "s3", "pinned"]);
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn a_plan_is_shown_then_done() {
    let world = fixed();
    world.run(|engine| async move {
        let policy = RetentionPolicy { max_total: Some(2), ..RetentionPolicy::default() };
        let plan = engine.retention_plan(&policy).await.unwrap();
        let names: Vec<_> = plan.deletions.iter().map(|each| each.name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
        assert_eq!(engine.stats().await.unwrap().usage.snapshots, 4, "nothing is done yet");
        engine.delete_snapshot("one", Wait::No).await.unwrap();
        let report = engine.execute_plan(plan).await.unwrap();
        assert_eq!(report.deleted.len(), 2, "what is gone already counts as done");
        assert!(report.failed.is_empty());
        assert_eq!(engine.stats().await.unwrap().usage.snapshots, 2);
        let zero = RetentionPolicy { max_total: Some(0), ..RetentionPolicy::default() };
        assert_eq!(kind_of(engine.prune(&zero).await), ErrorKind::Invalid);
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn what_expires_goes_and_what_is_pinned_stays() {
    let world = fixed();
    world.run(|engine| async move {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let expired = SnapshotEdit { expires: Some(Some(now)), ..SnapshotEdit::default() };
        let pinned = SnapshotEdit { pinned: Some(true), ..expired.clone() };
        engine.edit_snapshot("one", pinned, Wait::No).await.unwrap();
        engine.edit_snapshot("two", expired, Wait::No).await.unwrap();
        let report = engine.prune(&RetentionPolicy::default()).await.unwrap();
        let names: Vec<_> = report.deleted.iter().map(|each| each.name.as_str()).collect();
        assert_eq!(names, ["two"]);
    });
}

#[test]
fn references_resolve_as_people_write_them() {
    fixed().run(|engine| async move {
        let two = engine.show("two").await.unwrap().record;
        let id = two.id.to_string();
        for reference in [&id, &id[..28], "web@latest", "web@1", "fake:web@latest"] {
            assert_eq!(engine.show(reference).await.unwrap().record.id, two.id, "{reference}");
        }
        assert_eq!(engine.show("web@2").await.unwrap().record.name.as_str(), "one");
        for (reference, kind) in [
            ("web@3", ErrorKind::NotFound),
            ("web@0", ErrorKind::Invalid),
            ("web@newest", ErrorKind::Invalid),
            ("nobody@latest", ErrorKind::NotFound),
            ("snp", ErrorKind::Invalid),
            ("", ErrorKind::NotFound),
            ("on%", ErrorKind::NotFound),
            ("o\ne", ErrorKind::NotFound),
            ("docker:web@1", ErrorKind::Unsupported),
        ] {
            assert_eq!(kind_of(engine.show(reference).await), kind, "{reference:?}");
        }
        let err = engine.show("snp").await.unwrap_err().to_string();
        assert!(err.contains("could be `snp"), "{err}");
        let err = engine.show("web@3").await.unwrap_err().to_string();
        assert!(err.contains("has 2"), "{err}");
        engine.destroy("web", Wait::No).await.unwrap();
        assert_eq!(engine.show("web@latest").await.unwrap().record.id, two.id, "after its end");
    });
}

#[test]
fn files_alone_are_kept_where_that_will_do_and_the_reason_is_told() {
    fixed().run(|engine| async move {
        let auto = SnapshotRequest {
            kind: SnapshotKind::Full,
            or_files: true,
            ..SnapshotRequest::new("web")
        };
        let SnapshotOutcome::Taken(taken) = engine.snapshot(auto).await.unwrap() else {
            panic!("it is taken");
        };
        assert_eq!(taken.snapshot.kind, SnapshotKind::Files);
        let why = taken.files_alone.expect("a reason");
        assert!(why.contains("processes and memory"), "{why}");
    });
}

#[test]
fn what_cannot_work_is_refused_before_it_starts() {
    let world = fixed();
    let before = world.visible();
    world.run(|engine| async move {
        let full = SnapshotRequest { kind: SnapshotKind::Full, ..SnapshotRequest::new("web") };
        assert_eq!(kind_of(engine.snapshot(full).await), ErrorKind::Unsupported);
        let state = Some(Bytes::from(vec![0; (1 << 20) + 1]));
        let large = SnapshotRequest { agent_state: state, ..SnapshotRequest::new("web") };
        assert_eq!(kind_of(engine.snapshot(large).await), ErrorKind::Invalid);
        let long = SnapshotRequest {
            description: Some("x".repeat(1 << 20)),
            ..SnapshotRequest::new("web")
        };
        assert_eq!(kind_of(engine.snapshot(long).await), ErrorKind::Invalid);
        for count in [0, 1001] {
            let fork = ForkRequest::new(ForkSource::Snapshot("one".into()), count);
            assert_eq!(kind_of(engine.fork(fork).await), ErrorKind::Invalid);
        }
        let name = Some("x".repeat(128).parse().unwrap());
        let source = ForkSource::Sandbox("web".into(), SnapshotKind::Files);
        let long = ForkRequest { name, ..ForkRequest::new(source, 2) };
        assert_eq!(kind_of(engine.fork(long).await), ErrorKind::Invalid);
        let elsewhere =
            CreateRequest { driver: Some("docker".into()), ..CreateRequest::new(spec()) };
        let err = engine.create(elsewhere).await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Unsupported);
        assert!(err.to_string().contains("only `fake`"), "{err}");
        let mut bad = CreateRequest::new(spec());
        bad.spec.resources.pids = Some(0);
        assert_eq!(kind_of(engine.create(bad).await), ErrorKind::Invalid);
    });
    assert_eq!(world.visible(), before);
}

#[test]
fn reads_tell_what_is_there() {
    fixed().run(|engine| async move {
        let stats = engine.stats().await.unwrap();
        assert_eq!((stats.usage.sandboxes, stats.usage.snapshots), (4, 4));
        assert_eq!((stats.open_operations, stats.waiting_chores), (0, 0));
        assert_eq!(stats.usage.drivers.len(), 1);
        let sandboxes = engine.sandboxes(&SandboxQuery::default()).await.unwrap().items;
        assert_eq!(sandboxes.len(), 4);
        for view in sandboxes {
            assert_eq!(view.status.unwrap().unwrap().state, SandboxState::Running);
        }
        let validation = engine.validate("web", SnapshotKind::Files).await.unwrap();
        assert!(validation.findings.iter().all(|found| found.severity != Severity::Blocks));
        let validation = engine.validate("web", SnapshotKind::Full).await.unwrap();
        assert!(validation.findings.iter().any(|found| found.severity == Severity::Blocks));
        let one = engine.show("one").await.unwrap();
        assert_eq!(one.children.len(), 2);
        let page = SnapshotQuery { limit: Some(3), ..SnapshotQuery::default() };
        let first = engine.list(&page).await.unwrap();
        let second = engine.list(&SnapshotQuery { after: first.next, ..page }).await.unwrap();
        assert_eq!((first.items.len(), second.items.len(), second.next), (3, 1, None));
        assert!(engine.log(Some("bare")).await.unwrap().is_empty());
        assert_eq!(engine.log(None).await.unwrap().len(), 4);
    });
}

#[test]
fn a_rollback_that_nobody_waits_for_is_not_done_later() {
    let world = fixed();
    world.faults.arm(FaultPlan::new(world.next_process(), 3, Fault::CrashAfter));
    world.try_run(|engine| async move {
        let request = RollbackRequest { to: Some("one".into()), ..RollbackRequest::new("web") };
        engine.rollback(request).await.map(drop)
    });
    assert_eq!(world.faults.struck(), Some("begin"));
    world.faults.disarm();
    let precious = world.run(|engine| async move {
        write(&engine, "web", "/srv", "of the whole day").await;
        snapshot(&engine, "web", "precious").await.id
    });
    let files = world.platform.truth(precious).unwrap();
    assert!(files.contains_key(Path::new("/srv")), "a snapshot rolled back what it should save");
}

/// Whether the sandbox went back is for its driver to say.
#[test]
fn a_rollback_that_cannot_be_closed_is_not_told_as_undone() {
    let world = fixed();
    world.faults.arm(FaultPlan::new(world.next_process(), 4, Fault::Outage));
    let err = world.run(|engine| async move {
        let request = RollbackRequest { to: Some("one".into()), ..RollbackRequest::new("web") };
        engine.rollback(request).await.map(drop).unwrap_err()
    });
    let text = err.chain().to_string();
    assert!(text.contains("is left open, and will be finished or undone by recovery"), "{text}");
    world.faults.disarm();
    world.run(|engine| async move { drop(engine.recover().await.unwrap()) });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn what_cannot_be_finished_is_told() {
    let world = fixed();
    world.faults.arm(FaultPlan::new(world.next_process(), 3, Fault::Outage));
    let err = world.run(|engine| async move { engine.destroy("web", Wait::No).await.unwrap_err() });
    let text = err.chain().to_string();
    assert!(text.contains("is left open, and will be finished by recovery"), "{text}");
    world.faults.disarm();
    world.run(|engine| async move {
        engine.recover().await.unwrap();
        assert_eq!(kind_of(engine.sandbox("web").await), ErrorKind::NotFound);
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn a_lost_sandbox_and_a_damaged_snapshot_lock_nothing_up() {
    let world = fixed();
    let (web, two) = world.run(|engine| async move {
        let web = engine.sandbox("web").await.unwrap().record.id;
        (web, engine.show("two").await.unwrap().record.id)
    });
    world.platform.lose(web);
    world.platform.damage(two);
    world.run(|engine| async move {
        let refused = engine.rollback(RollbackRequest::new("web")).await;
        assert_eq!(kind_of(refused), ErrorKind::Corrupt);
        let elsewhere = RollbackRequest { to: Some("one".into()), ..RollbackRequest::new("web") };
        engine.rollback(elsewhere).await.unwrap();
        engine.delete_snapshot("two", Wait::No).await.unwrap();
        engine.destroy("web", Wait::No).await.unwrap();
    });
    assert_eq!(world.open_operations(), Vec::<String>::new());
}

#[test]
fn what_is_pinned_after_the_plan_stays() {
    fixed().run(|engine| async move {
        let policy = RetentionPolicy { max_total: Some(2), ..RetentionPolicy::default() };
        let plan = engine.retention_plan(&policy).await.unwrap();
        let pin = SnapshotEdit { pinned: Some(true), ..SnapshotEdit::default() };
        engine.edit_snapshot("one", pin, Wait::No).await.unwrap();
        let report = engine.execute_plan(plan).await.unwrap();
        assert_eq!(report.kept.len(), 1);
        engine.show("one").await.unwrap();

        let soon: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let later: Timestamp = "2096-01-01T00:00:00Z".parse().unwrap();
        let expires = |at| SnapshotEdit { expires: Some(Some(at)), ..SnapshotEdit::default() };
        engine.edit_snapshot("branch", expires(soon), Wait::No).await.unwrap();
        let plan = engine.retention_plan(&RetentionPolicy::default()).await.unwrap();
        assert_eq!(plan.deletions.len(), 1);
        engine.edit_snapshot("branch", expires(later), Wait::No).await.unwrap();
        assert_eq!(engine.execute_plan(plan).await.unwrap().kept.len(), 1);
        assert_eq!(engine.stats().await.unwrap().open_operations, 0);
    });
}

#[test]
fn pruning_says_what_came_free() {
    let world = World::new(Simulation::in_order());
    world.run(|engine| async move {
        engine.create(named("web")).await.unwrap();
        for number in 0..6 {
            write(&engine, "web", &format!("/{number}"), &"x".repeat(1000)).await;
            snapshot(&engine, "web", &format!("s{number}")).await;
        }
        let policy = RetentionPolicy { max_bytes: Some(2500), ..RetentionPolicy::default() };
        let plan = engine.retention_plan(&policy).await.unwrap();
        assert!(plan.own_bytes >= 4000);
        let report = engine.execute_plan(plan).await.unwrap();
        assert_eq!(report.freed_bytes, 0, "the newer ones lie over all of it");
        let usage = engine.stats().await.unwrap().usage;
        assert!(usage.own_bytes <= 2500 && usage.stored_bytes >= 6000, "{usage:?}");
        engine.destroy("web", Wait::No).await.unwrap();
        let all = RetentionPolicy { max_bytes: Some(1), ..RetentionPolicy::default() };
        assert!(engine.prune(&all).await.unwrap().freed_bytes >= 6000);
    });
    assert_eq!(world.platform.pieces(), []);
}

#[test]
fn a_plan_reads_more_than_a_page() {
    let world = World::new(Simulation::in_order());
    world.run(|engine| async move {
        engine.create(named("web")).await.unwrap();
        for number in 0..620 {
            snapshot(&engine, "web", &format!("s{number}")).await;
        }
        let count = |policy: RetentionPolicy| {
            let engine = engine.clone();
            async move { engine.retention_plan(&policy).await.unwrap().deletions.len() }
        };
        let none = RetentionPolicy::default;
        assert_eq!(count(RetentionPolicy { max_per_sandbox: Some(5), ..none() }).await, 615);
        assert_eq!(count(RetentionPolicy { max_total: Some(7), ..none() }).await, 613);
    });
}

#[test]
fn the_snapshot_just_taken_survives_its_own_retention() {
    let policy = RetentionPolicy { max_bytes: Some(1), ..RetentionPolicy::default() };
    let world = with_config(|config| config.retention = policy);
    world.run(|engine| async move {
        engine.create(named("web")).await.unwrap();
        write(&engine, "web", "/large", &"x".repeat(100)).await;
        let outcome = engine.snapshot(snapshot_request("web", "new")).await.unwrap();
        let SnapshotOutcome::Taken(taken) = outcome else { panic!("skipped") };
        let report = taken.pruned.unwrap().unwrap();
        assert!(report.deleted.is_empty() && report.unmet.len() == 1);
        engine.show("new").await.unwrap();
    });
}

#[test]
fn an_adopted_sandbox_takes_its_name_only_if_it_is_free() {
    let world = fixed();
    world.platform.add_foreign("web", Files::new());
    world.run(|engine| async move {
        let adopted = engine.adopt(adopt("web")).await.unwrap();
        assert_eq!((adopted.name, adopted.adopted.as_deref()), (None, Some("web")));
        let name = Some("bare".parse().unwrap());
        let chosen = AdoptRequest { name, ..adopt("stranger") };
        assert_eq!(kind_of(engine.adopt(chosen).await), ErrorKind::Conflict);
    });
}

#[test]
fn what_is_adopted_again_stands_on_nothing_that_is_going() {
    let world = fixed();
    world.run(|engine| async move {
        engine.rollback(RollbackRequest::new("theirs")).await.unwrap();
        engine.destroy("theirs", Wait::No).await.unwrap();
        engine.delete_snapshot("of-theirs", Wait::No).await.unwrap();
        engine.adopt(adopt("theirs")).await.unwrap();
        write(&engine, "theirs", "/more", "x").await;
        snapshot(&engine, "theirs", "again").await;
        let again = RollbackRequest { to: Some("again".into()), ..RollbackRequest::new("theirs") };
        engine.rollback(again).await.unwrap();
        assert_eq!(engine.recover().await.unwrap().chores_done, 1);
    });
    assert_eq!(world.broken_invariants(), Vec::<String>::new());
}

#[test]
fn a_fork_that_cannot_be_made_takes_no_snapshot() {
    let world = fixed();
    let before = world.visible();
    world.run(|engine| async move {
        let source = ForkSource::Sandbox("web".into(), SnapshotKind::Files);
        let env = [("A=B".to_owned(), String::new())].into();
        let odd = ForkRequest { env, ..ForkRequest::new(source.clone(), 2) };
        assert_eq!(kind_of(engine.fork(odd).await), ErrorKind::Invalid);
        engine.create(named("kid-2")).await.unwrap();
        let name = Some("kid".parse().unwrap());
        let taken = ForkRequest { name, ..ForkRequest::new(source, 2) };
        assert_eq!(kind_of(engine.fork(taken).await), ErrorKind::Conflict);
        engine.destroy("kid-2", Wait::No).await.unwrap();
    });
    assert_eq!(world.visible(), before);
}

#[test]
fn strays_are_told_and_left_alone() {
    let world = fixed();
    let stray = SandboxId::from_u128(7);
    futures::executor::block_on(world.platform.driver().create(stray, &spec())).unwrap();
    let found = world.run(|engine| async move {
        engine.recover().await.unwrap();
        engine.strays().await.unwrap()
    });
    assert_eq!(found, [("fake", stray)]);
    assert!(world.platform.files(stray).is_some());
}

#[test]
fn a_chore_that_waits_keeps_no_other_waiting() {
    let world = fixed();
    world.run(|engine| async move {
        engine.rollback(RollbackRequest::new("theirs")).await.unwrap();
        engine.destroy("theirs", Wait::No).await.unwrap();
        engine.delete_snapshot("of-theirs", Wait::No).await.unwrap();
        engine.destroy("copy", Wait::No).await.unwrap();
    });
    // find_snapshot, begin, snapshot, commit, discard
    world.faults.arm(FaultPlan::new(world.next_process(), 5, Fault::Before));
    world.run(|engine| async move { engine.delete_snapshot("branch", Wait::No).await.unwrap() });
    assert_eq!(world.faults.struck(), Some("discard"));
    world.faults.disarm();
    let report = world.run(|engine| async move { engine.recover().await.unwrap() });
    assert_eq!((report.chores_done, report.chores_waiting), (1, 1));
}
