//! Many at once: sandboxes, callers, and processes with a driver each.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use forkpoint_core::{
    driver::{Command, Driver as _, ExitStatus, Sandbox, SandboxState, SnapshotKind},
    id::SandboxId,
};
use futures::{
    StreamExt as _,
    future::{join_all, try_join_all},
    stream,
};

use super::scene::{
    Scene, exec, finish, new_snapshot, read_text, seal, sh, spec, start, with_causes, write,
};

/// More than init takes at once.
#[test]
fn three_hundred_commands_at_once_all_run() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        // It stands still for a while, and all of them wait.
        let paused = sandbox.pause(SnapshotKind::Files).await.unwrap();
        let run = |number: u32| {
            let sandbox = Arc::clone(&sandbox);
            async move {
                let command = Command::new(["echo".to_owned(), number.to_string()]);
                let running = sandbox.exec(&command).await.map_err(|err| with_causes(&err))?;
                Ok::<_, String>(finish(running).await)
            }
        };
        let runs = (0..300).map(|number| tokio::spawn(run(number)));
        let mut runs: Vec<_> = runs.collect();
        let first = tokio::time::timeout(Duration::from_millis(500), &mut runs[0]).await;
        assert!(first.is_err(), "it stands still: {first:?}");
        paused.resume().await.unwrap();
        for (number, run) in runs.into_iter().enumerate() {
            assert_eq!(run.await.unwrap(), Ok((format!("{number}\n"), ExitStatus::Code(0))));
        }
    });
}

#[test]
fn two_drivers_seal_one_sandbox_at_once() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let id = sandbox.id();
        let drivers = [scene.another_driver(), scene.another_driver()];
        let handles = try_join_all(drivers.iter().map(|driver| driver.attach(id))).await.unwrap();
        let work = handles.iter().zip(["one", "two"]).map(|(handle, name)| async move {
            let mut sealed = Vec::new();
            for round in 0..15 {
                let text = format!("{name} {round}");
                write(&**handle, &format!("/srv/{name}"), &text).await.unwrap();
                let busy = match round % 4 {
                    3 => Some(start(&**handle, "echo on; exec sleep 1000").await),
                    _ => None,
                };
                sealed.push((format!("/srv/{name}"), text, seal(&**handle).await));
                assert_eq!(sh(&**handle, "echo yes").await, "yes\n");
                if let Some(busy) = busy {
                    busy.control.signal(9).await.unwrap();
                    busy.control.wait().await.unwrap();
                }
            }
            sealed
        });
        let sealed: Vec<_> = join_all(work).await.concat();
        assert_eq!(sealed.len(), 30);
        for (at, text, artifact) in sealed.iter().step_by(3) {
            let copy = scene.restore(artifact).await;
            assert_eq!(read_text(&*copy, at).await, *text);
            scene.driver.destroy(copy.id()).await.unwrap();
        }
        let state = scene.driver.status(id).await.unwrap().unwrap().state;
        assert_eq!(state, SandboxState::Running);
    });
}

#[test]
fn one_seals_while_another_rolls_back_stops_and_starts() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let id = sandbox.id();
        write(&*sandbox, "/srv/text", "first").await.unwrap();
        let first = seal(&*sandbox).await;
        let other = scene.another_driver();
        let seals = async {
            let mut sealed = Vec::new();
            for _ in 0..25 {
                // Whether it runs is the other one's choice; sealing works all the same.
                let _ = write(&*sandbox, "/srv/text", "later").await;
                let mut paused = sandbox.pause(SnapshotKind::Files).await.unwrap();
                sealed.push(paused.seal(new_snapshot(), SnapshotKind::Files).await.unwrap());
                paused.resume().await.unwrap();
            }
            sealed
        };
        let switches = async {
            for round in 0..25 {
                match round % 4 {
                    0 => drop(other.rollback(id, &spec(), &first).await.unwrap()),
                    1 => other.stop(id).await.unwrap(),
                    2 => other.start(id, &spec()).await.unwrap(),
                    _ => other.settle(id).await.unwrap(),
                }
            }
        };
        let (sealed, ()) = futures::join!(seals, switches);
        other.start(id, &spec()).await.unwrap();
        scene.note(id);
        assert!(["first", "later"].contains(&&*read_text(&*sandbox, "/srv/text").await));
        for artifact in sealed.iter().step_by(4) {
            let copy = scene.restore(artifact).await;
            let text = read_text(&*copy, "/srv/text").await;
            assert!(["first", "later"].contains(&&*text), "{text}");
            scene.driver.destroy(copy.id()).await.unwrap();
        }
        other.rollback(id, &spec(), &first).await.unwrap();
        scene.note(id);
        assert_eq!(read_text(&*sandbox, "/srv/text").await, "first");
    });
}

#[test]
fn sixty_sandboxes_live_at_once() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let origin = scene.create().await;
        sh(&*origin, "mkdir -p /srv && seq 1000 > /srv/numbers").await;
        let snapshot = seal(&*origin).await;
        let copies: Vec<Arc<dyn Sandbox>> = stream::iter((0..60).map(|_| scene.restore(&snapshot)))
            .buffer_unordered(8)
            .collect()
            .await;
        let names = join_all(copies.iter().map(|copy| async move {
            let name = sh(&**copy, "hostname").await;
            write(&**copy, "/srv/own", &name).await.unwrap();
            name
        }));
        let names: BTreeSet<String> = names.await.into_iter().collect();
        assert_eq!(names.len(), 60);
        for copy in &copies {
            let (out, _) = exec(&**copy, &["sh", "-c", "cat /srv/own; wc -l < /srv/numbers"]).await;
            assert_eq!(out, format!("{}\n1000\n", copy.id()));
        }
        assert_eq!(scene.driver.list().await.unwrap().len(), 61);
        let gone = copies.iter().map(|copy| scene.driver.destroy(copy.id()));
        try_join_all(gone).await.unwrap();
        assert_eq!(scene.driver.list().await.unwrap(), [origin.id()]);
    });
}

#[test]
fn what_is_made_and_destroyed_at_once_is_there_or_is_not() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let drivers = [scene.another_driver(), scene.another_driver()];
        let storm = (0..40).map(|number: usize| {
            let (maker, breaker) = (&drivers[number % 2], &drivers[(number + 1) % 2]);
            let scene = &scene;
            async move {
                let id: SandboxId = scene.new_id();
                let spec = spec();
                let make = maker.create(id, &spec);
                let unmake = async {
                    for _ in 0..number % 7 {
                        tokio::task::yield_now().await;
                        let _ = breaker.status(id).await.unwrap();
                    }
                    breaker.destroy(id).await.unwrap();
                };
                let (made, ()) = futures::join!(make, unmake);
                let there = breaker.status(id).await.unwrap().is_some();
                if there {
                    scene.note(id);
                    assert!(made.is_ok());
                    assert_eq!(sh(&*made.unwrap(), "echo yes").await, "yes\n");
                    breaker.destroy(id).await.unwrap();
                }
            }
        });
        stream::iter(storm).buffer_unordered(8).collect::<Vec<()>>().await;
        assert_eq!(scene.driver.list().await.unwrap(), []);
    });
}
