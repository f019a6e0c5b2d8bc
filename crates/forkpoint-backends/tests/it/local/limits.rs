//! Sandboxes that want everything.

use std::{env, fs, process};

use forkpoint_core::{
    driver::{Command, Driver as _, DriverError, ExitStatus, Sandbox},
    spec::{Resources, SandboxSpec},
};

use futures::StreamExt as _;
use serde_json::Value;

use crate::layer::is_root;

use super::scene::{Scene, exec, python, read_text, seal, sh, spec, start, write};

fn limited(resources: Resources) -> SandboxSpec {
    SandboxSpec { resources, ..spec() }
}

async fn processes(sandbox: &dyn Sandbox) -> u32 {
    sh(sandbox, "ls /proc | grep -c '^[0-9]'").await.trim().parse().unwrap()
}

const NO_CGROUP: &str = "nobody gave us a cgroup";

/// How many processes the sandbox has, by whichever version of cgroups limits them.
fn counted(record: &Value) -> u32 {
    let cgroup = &record["cgroup"];
    let v1 = cgroup["v1"].as_array().into_iter().flatten();
    let places = v1.chain([&cgroup["unified"]]).filter_map(Value::as_str);
    let counts = places.filter_map(|at| fs::read_to_string(format!("{at}/pids.current")).ok());
    counts.map(|count| count.trim().parse().unwrap()).next().expect("something counts them")
}

#[test]
fn a_fork_bomb_stays_in_its_sandbox() {
    let Some(scene) = Scene::by_root(true, NO_CGROUP) else { return };
    let spec = limited(Resources { pids: Some(50), ..Resources::default() });
    scene.run(async {
        let sandbox = scene.create_as(&spec).await;
        let bomb = start(&*sandbox, "echo on; bomb() { bomb | bomb & }; bomb; sleep 1000").await;
        // It holds all that it may, and the host goes on.
        for _ in 0..20 {
            assert!(process::Command::new("true").status().unwrap().success());
            let count = counted(&scene.record(sandbox.id()));
            assert!(count <= 51, "{count}");
        }
        // Another one is not concerned.
        let other = scene.create_as(&spec).await;
        assert!(processes(&*other).await < 10);
        drop(bomb);
        // What finds no room to run is told so.
        match sandbox.exec(&Command::new(["true"])).await {
            Ok(running) => drop(running.control.wait().await.unwrap()),
            Err(err) => assert!(matches!(err, DriverError::Failed { .. }), "{err}"),
        }
        let snapshot = seal(&*sandbox).await;
        scene.driver.rollback(sandbox.id(), &spec, &snapshot).await.unwrap();
        scene.note(sandbox.id());
        assert!(processes(&*sandbox).await < 10);
        scene.driver.destroy(sandbox.id()).await.unwrap();
    });
}

#[test]
fn a_fork_bomb_can_be_destroyed() {
    let Some(scene) = Scene::by_root(false, NO_CGROUP) else { return };
    let spec = limited(Resources { pids: Some(200), ..Resources::default() });
    scene.run(async {
        let sandbox = scene.create_as(&spec).await;
        let _bomb = start(&*sandbox, "echo on; bomb() { bomb | bomb & }; bomb; sleep 1000").await;
        scene.driver.destroy(sandbox.id()).await.unwrap();
        assert_eq!(scene.driver.status(sandbox.id()).await.unwrap(), None);
    });
}

#[test]
fn who_takes_too_much_memory_is_killed_alone() {
    let Some(scene) = Scene::by_root(true, NO_CGROUP) else { return };
    let spec = limited(Resources { memory_bytes: Some(64 << 20), ..Resources::default() });
    scene.run(async {
        let sandbox = scene.create_as(&spec).await;
        let other = start(&*sandbox, "echo on; exec sleep 1000").await;
        for _ in 0..3 {
            let hog = "x = []\nwhile True: x.append(bytearray(1 << 20))";
            let (_, status) = exec(&*sandbox, &["python3", "-c", hog]).await;
            assert_eq!(status, ExitStatus::Signal(9));
        }
        // Files in memory count as well.
        let (out, status) =
            exec(&*sandbox, &["sh", "-c", "head -c 200M /dev/zero > /dev/shm/hog"]).await;
        assert_ne!(status, ExitStatus::Code(0), "{out}");
        sh(&*sandbox, "rm -f /dev/shm/hog; echo alive").await;
        assert_eq!(sh(&*sandbox, "pgrep -c sleep").await, "1\n");
        other.control.signal(9).await.unwrap();
        other.control.wait().await.unwrap();
    });
}

#[test]
fn a_share_of_the_processor_is_a_share() {
    let Some(scene) = Scene::by_root(true, NO_CGROUP) else { return };
    let spec = limited(Resources { cpu_millis: Some(200), ..Resources::default() });
    let burn = "
import time, resource
end = time.monotonic() + 2
while time.monotonic() < end: pass
use = resource.getrusage(resource.RUSAGE_SELF)
print(int((use.ru_utime + use.ru_stime) * 1000))
";
    scene.run(async {
        let sandbox = scene.create_as(&spec).await;
        let (one, two) = futures::join!(python(&*sandbox, burn), python(&*sandbox, burn));
        let used: u32 = [one, two].iter().map(|text| text.trim().parse::<u32>().unwrap()).sum();
        // A fifth of two seconds, for both together, and a slice or two.
        assert!(used < 900, "{used} ms");
        assert!(used > 50, "{used} ms");
    });
}

#[test]
fn those_whom_nobody_waits_for_are_buried() {
    let Some(scene) = Scene::new(true) else { return };
    let orphans = "
import os
for _ in range(3000):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
";
    scene.run(async {
        let sandbox = scene.create().await;
        python(&*sandbox, orphans).await;
        let mut left = processes(&*sandbox).await;
        for _ in 0..50 {
            if left < 8 {
                break;
            }
            left = processes(&*sandbox).await;
        }
        assert!(left < 8, "{left}");
    });
}

/// Thousands that have ended, and a parent that lives and takes no note.
const UNBURIED: &str = "
import os, time
for _ in range(3000):
    if os.fork() == 0:
        os._exit(0)
print('on', flush=True)
time.sleep(1000)
";

#[test]
fn those_whom_their_parent_does_not_bury_hold_nobody_up() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let id = sandbox.id();
        let command = Command::new(["python3", "-c", UNBURIED]);
        let mut crowd = sandbox.exec(&command).await.unwrap();
        crowd.stdout.next().await;
        assert!(processes(&*sandbox).await > 3000);
        write(&*sandbox, "/srv/text", "kept").await.unwrap();
        let snapshot = seal(&*sandbox).await;
        scene.driver.pause(id).await.unwrap();
        scene.driver.resume(id).await.unwrap();
        assert!(processes(&*sandbox).await > 3000);
        scene.driver.stop(id).await.unwrap();
        scene.driver.start(id, &spec()).await.unwrap();
        scene.note(id);
        assert_eq!(read_text(&*sandbox, "/srv/text").await, "kept");
        let copy = scene.restore(&snapshot).await;
        assert_eq!(read_text(&*copy, "/srv/text").await, "kept");
        let mut crowd = sandbox.exec(&command).await.unwrap();
        crowd.stdout.next().await;
        scene.driver.destroy(id).await.unwrap();
        assert_eq!(scene.driver.status(id).await.unwrap(), None);
    });
}

#[test]
fn ten_thousand_processes_come_and_go() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let churn =
            "import os\nfor _ in range(2500):\n    if os.fork() == 0: os._exit(0)\n    os.wait()";
        let runs = (0..4).map(|_| python(&*sandbox, churn));
        let seals = async {
            let mut snapshots = Vec::new();
            for _ in 0..5 {
                snapshots.push(seal(&*sandbox).await);
            }
            snapshots
        };
        let (_, snapshots) = futures::join!(futures::future::join_all(runs), seals);
        assert_eq!(snapshots.len(), 5);
        assert!(processes(&*sandbox).await < 10);
    });
}

const INNER: &str = "FORKPOINT_TEST_WITHOUT_CGROUPS";

/// The same test once more, where the machine has no cgroups.
#[test]
fn a_limit_that_cannot_be_had_is_an_error() {
    let Some(scene) = Scene::new(true) else { return };
    // Who is not root has none to lose.
    if is_root() && env::var_os(INNER).is_none() {
        drop(scene);
        let name = "local::limits::a_limit_that_cannot_be_had_is_an_error";
        let script = "umount -l /sys/fs/cgroup && exec \"$0\" --exact \"$1\" --nocapture";
        let output = process::Command::new("unshare")
            .args(["-m", "sh", "-c", script])
            .arg(env::current_exe().unwrap())
            .arg(name)
            .env(INNER, "1")
            .env_remove("NEXTEST_EXECUTION_MODE")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
        return;
    }
    scene.run(async {
        let none = Resources::default();
        for resources in [
            Resources { memory_bytes: Some(64 << 20), ..none },
            Resources { cpu_millis: Some(500), ..none },
            Resources { pids: Some(50), ..none },
        ] {
            let id = scene.new_id();
            let err = scene.driver.create(id, &limited(resources)).await.unwrap_err();
            assert!(matches!(err, DriverError::LimitUnavailable { .. }), "{err}");
            assert_eq!(scene.driver.list().await.unwrap(), []);
        }
        // Without limits it does without cgroups: also to stand still, and to end.
        let sandbox = scene.create().await;
        let running = start(&*sandbox, "echo on; exec sleep 1000").await;
        let snapshot = seal(&*sandbox).await;
        assert_eq!(sh(&*sandbox, "pgrep -c sleep").await, "1\n");
        let copy = scene.restore(&snapshot).await;
        scene.driver.pause(copy.id()).await.unwrap();
        scene.driver.resume(copy.id()).await.unwrap();
        drop(running);
    });
}
