//! Full snapshots when something is in the way: others who are at work, limits, another machine.

use std::{fs, path::PathBuf, time::Duration};

use forkpoint_core::{
    driver::{Artifact, Driver as _, DriverError, SandboxState, SnapshotKind},
    spec::{Resources, SandboxSpec},
};
use futures::future::{join_all, try_join_all};

use super::{
    faults::cgroups_of,
    full::{count, counting, counts_on, heap_is_whole, seal_full, try_seal_full, with_heap},
    scene::{Scene, python, read_text, sh, spec, until, with_causes},
};

#[test]
fn two_who_keep_one_sandbox_at_once_both_get_all_of_it() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let drivers = [scene.another_driver(), scene.another_driver()];
        let id = sandbox.id();
        let handles = try_join_all(drivers.iter().map(|driver| driver.attach(id))).await.unwrap();
        for _ in 0..4 {
            let sealed = join_all(handles.iter().map(|handle| try_seal_full(&**handle))).await;
            for artifact in sealed {
                let artifact = artifact.unwrap_or_else(|err| panic!("{}", with_causes(&err)));
                let copy = scene.restore(&artifact).await;
                let now = count(&*copy).await;
                counts_on(&*copy, now).await;
                scene.driver.destroy(copy.id()).await.unwrap();
            }
        }
        let now = count(&*sandbox).await;
        counts_on(&*sandbox, now).await;
    });
}

#[test]
fn commands_that_begin_meanwhile_run_and_harm_no_copy() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let sealing = async {
            let mut all = Vec::new();
            for _ in 0..6 {
                all.push(seal_full(&*sandbox).await);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            all
        };
        let running = async {
            for number in 0..60 {
                let told =
                    sh(&*sandbox, &format!("echo {number}; echo {number} > /tmp/last")).await;
                assert_eq!(told, format!("{number}\n"));
            }
        };
        let (all, ()) = futures::join!(sealing, running);
        for artifact in all {
            let copy = scene.restore(&artifact).await;
            let now = count(&*copy).await;
            counts_on(&*copy, now).await;
            scene.driver.destroy(copy.id()).await.unwrap();
        }
        assert_eq!(read_text(&*sandbox, "/tmp/last").await.trim(), "59");
    });
}

/// Nearly all that it may have; the image is charged to nobody inside.
#[test]
fn a_sandbox_near_its_limit_of_memory_is_kept_and_comes_back() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    let resources = Resources { memory_bytes: Some(192 << 20), ..Resources::default() };
    let limited = SandboxSpec { resources, ..spec() };
    scene.run(async {
        let sandbox = scene.create_as(&limited).await;
        python(&*sandbox, &with_heap(140)).await;
        let first = seal_full(&*sandbox).await;
        let second = seal_full(&*sandbox).await;
        for artifact in [first, second] {
            let id = scene.new_id();
            let copy = scene.driver.restore(id, &limited, &artifact).await.unwrap();
            scene.note(id);
            heap_is_whole(&*copy).await;
            let usage = scene.driver.usage(id).await.unwrap();
            assert_eq!(usage.killed_for_memory.unwrap_or(0), 0);
            scene.driver.destroy(id).await.unwrap();
        }
        heap_is_whole(&*sandbox).await;
    });
}

/// Where less is allowed than the image needs, nobody is half there.
#[test]
fn an_image_above_the_limit_of_memory_is_no_half_sandbox() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let script = "
import os, time
heap = bytearray(os.urandom(1 << 20)) * 100
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)
time.sleep(1000)
";
        python(&*sandbox, script).await;
        let artifact = seal_full(&*sandbox).await;
        let resources = Resources { memory_bytes: Some(48 << 20), ..Resources::default() };
        let limited = SandboxSpec { resources, ..spec() };
        let id = scene.new_id();
        match scene.driver.restore(id, &limited, &artifact).await {
            // It was refused, and is not there.
            Err(_) => assert!(scene.driver.status(id).await.unwrap().is_none()),
            // It came, and whoever took too much was ended, or all of it: nobody goes on without his memory.
            Ok(_) => {
                scene.note(id);
                let over = async {
                    loop {
                        let state =
                            scene.driver.status(id).await.unwrap().map(|status| status.state);
                        let usage = scene.driver.usage(id).await.ok();
                        let killed = usage.and_then(|usage| usage.killed_for_memory);
                        if state != Some(SandboxState::Running) || killed > Some(0) {
                            break;
                        }
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                };
                tokio::time::timeout(Duration::from_secs(30), over).await.unwrap();
            }
        }
        assert_eq!(sh(&*sandbox, "pgrep -c python3").await, "1\n");
    });
}

/// An image that says something else, with the right checksum.
struct Forged {
    path: PathBuf,
    good: String,
}

impl Forged {
    fn of(scene: &Scene, artifact: &Artifact, forge: impl FnOnce(&str) -> String) -> Self {
        let snapshot = artifact.snapshot.to_string();
        let path = scene.root().join("memory").join(snapshot).join("image.json");
        let good = fs::read_to_string(&path).unwrap();
        let body = forge(good.split_once('\n').unwrap().1);
        let line = format!("forkpoint-checkpoint 1 {}", blake3::hash(body.as_bytes()));
        fs::write(&path, format!("{line}\n{body}")).unwrap();
        Self { path, good }
    }

    fn put_back(self) {
        fs::write(self.path, self.good).unwrap();
    }
}

/// Its processes are there and stand, traced, when it is seen that one of them cannot be what it was: on a machine without
/// the processor that it ran on.
#[test]
fn a_step_that_fails_when_all_processes_stand_is_told_and_leaves_nothing() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let artifact = seal_full(&*sandbox).await;
        let forged = Forged::of(&scene, &artifact, |body| {
            let (before, after) = body.split_once("\"affinity\":\"").unwrap();
            let (affinity, after) = after.split_once('"').unwrap();
            let elsewhere = "00".repeat(affinity.len() / 2 - 1) + "80";
            format!("{before}\"affinity\":\"{elsewhere}\"{after}")
        });
        // Alone, and two at once.
        for count in [1, 2] {
            let ids: Vec<_> = (0..count).map(|_| scene.new_id()).collect();
            let spec = spec();
            let restores = ids.iter().map(|id| scene.driver.restore(*id, &spec, &artifact));
            let restored = join_all(restores);
            let restored = tokio::time::timeout(Duration::from_secs(20), restored).await.unwrap();
            for (id, restored) in ids.into_iter().zip(restored) {
                let err = with_causes(&restored.map(drop).unwrap_err());
                assert!(err.contains("failed"), "{err}");
                assert!(scene.driver.status(id).await.unwrap().is_none());
                until("its cgroups go", || cgroups_of(id));
            }
        }
        forged.put_back();
        let copy = scene.restore(&artifact).await;
        counts_on(&*copy, count(&*copy).await).await;
    });
}

#[test]
fn an_image_of_another_boot_is_refused_before_anything_is_made() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let artifact = seal_full(&*sandbox).await;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let forged = Forged::of(&scene, &artifact, |body| {
            body.replace(boot.trim(), "00000000-0000-0000-0000-000000000000")
        });
        let id = scene.new_id();
        let err = scene.driver.restore(id, &spec(), &artifact).await.unwrap_err();
        assert!(matches!(err, DriverError::KindUnavailable { .. }), "{}", with_causes(&err));
        assert!(err.to_string().contains("captured on boot `00000000"), "{err}");
        assert!(scene.driver.status(id).await.unwrap().is_none());
        // Nor does a rollback end what runs.
        scene.driver.rollback(sandbox.id(), &spec(), &artifact).await.unwrap_err();
        let now = count(&*sandbox).await;
        counts_on(&*sandbox, now).await;
        forged.put_back();
        scene.restore(&artifact).await;
        assert!(scene.driver.can_seal(sandbox.id(), SnapshotKind::Full).await.is_ok());
    });
}
