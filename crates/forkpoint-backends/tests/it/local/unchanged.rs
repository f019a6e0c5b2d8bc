//! Whether anything changed since the last snapshot: no change goes unseen, of an idle and of a busy
//! sandbox.

use forkpoint_core::{
    driver::{Artifact, Driver as _, Sandbox},
    id::SnapshotId,
};

use crate::layer::is_root;

use super::{
    Machine,
    scene::{Scene, new_snapshot, python, seal, sh, spec, start, write},
};

async fn is_unchanged(sandbox: &dyn Sandbox, since: SnapshotId) -> bool {
    let mut paused = sandbox.pause(forkpoint_core::driver::SnapshotKind::Files).await.unwrap();
    let unchanged = paused.is_unchanged(&crate::artifact_of(since)).await;
    paused.resume().await.unwrap();
    unchanged.unwrap()
}

/// Each a change that a snapshot would hold.
const CHANGES: [&str; 13] = [
    "echo new > /srv/new",
    "echo more >> /srv/kept",
    "chmod 600 /srv/kept",
    "touch -d 2001-01-01 /srv/kept",
    "rm /srv/kept",
    "rm -r /srv/dir && mkdir /srv/dir",
    "mv /srv/kept /srv/moved",
    "ln /srv/kept /srv/linked",
    "chmod 700 /",
    "touch -d 2001-01-01 /",
    "touch /usr/new",
    "rm /etc/hostname-of-nobody 2>/dev/null; rm -f /etc/os-release; touch /etc/os-release",
    // The last: a root with attributes is always a doubt.
    "python3 -c \"import os; os.setxattr('/', 'user.x', b'1')\"",
];

const PREPARE: &str = "mkdir -p /srv/dir && echo kept > /srv/kept && echo in > /srv/dir/in";

/// A tick of the clock that files are dated by: what changed in the one of the seal is a doubt.
async fn settled(sandbox: &dyn Sandbox) {
    sh(sandbox, "sleep 0.05").await;
}

fn every_change_is_seen(map_users: bool, busy: bool) {
    let scene = Scene::on(Machine::new(map_users));
    scene.run(async {
        let sandbox = scene.create().await;
        let _running = match busy {
            true => Some(start(&*sandbox, "echo on; exec sleep 1000").await),
            false => None,
        };
        for change in CHANGES {
            sh(&*sandbox, PREPARE).await;
            settled(&*sandbox).await;
            let sealed = seal(&*sandbox).await.snapshot;
            assert!(is_unchanged(&*sandbox, sealed).await, "nothing was done before: {change}");
            sh(&*sandbox, "cat /srv/kept; ls -lR /srv /etc >/dev/null").await;
            assert!(is_unchanged(&*sandbox, sealed).await, "it was only read before: {change}");
            sh(&*sandbox, change).await;
            assert!(!is_unchanged(&*sandbox, sealed).await, "busy {busy}: {change}");
        }
    });
}

/// Without root, both would be the same.
fn machines() -> Vec<bool> {
    if is_root() { vec![true, false] } else { vec![true] }
}

#[test]
fn every_change_of_an_idle_sandbox_is_seen() {
    for map_users in machines() {
        every_change_is_seen(map_users, false);
    }
}

#[test]
fn every_change_of_a_busy_sandbox_is_seen() {
    for map_users in machines() {
        every_change_is_seen(map_users, true);
    }
}

#[test]
fn a_write_through_a_mapping_is_seen() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let script = "import mmap, sys, time
file = open('/srv/mapped', 'w+b'); file.write(b'a' * 4096); file.flush()
shared = mmap.mmap(file.fileno(), 4096)
shared[0:1] = b'b'
print('on', flush=True)
import os
while not os.path.exists('/dev/shm/go'): time.sleep(0.01)
shared[1:2] = b'c'
open('/dev/shm/done', 'w').close()
time.sleep(1000)";
        let _running = start(&*sandbox, &format!("exec python3 -c \"{script}\"")).await;
        settled(&*sandbox).await;
        let sealed = seal(&*sandbox).await.snapshot;
        sh(&*sandbox, "touch /dev/shm/go; while [ ! -e /dev/shm/done ]; do sleep 0.01; done").await;
        assert!(!is_unchanged(&*sandbox, sealed).await);
    });
}

#[test]
fn what_a_sandbox_does_not_stand_on_says_nothing() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        assert!(!is_unchanged(&*sandbox, new_snapshot()).await, "there was none");
        sh(&*sandbox, PREPARE).await;
        let first: Artifact = seal(&*sandbox).await;
        write(&*sandbox, "/srv/kept", "second").await.unwrap();
        let second = seal(&*sandbox).await;
        assert!(!is_unchanged(&*sandbox, first.snapshot).await, "an earlier one");
        assert!(is_unchanged(&*sandbox, second.snapshot).await);
        // One that never came to be: what it held is the sandbox's own again.
        write(&*sandbox, "/srv/kept", "third").await.unwrap();
        let third = seal(&*sandbox).await.snapshot;
        scene.driver.unseal(third).await.unwrap();
        assert!(!is_unchanged(&*sandbox, third).await);
        assert!(!is_unchanged(&*sandbox, second.snapshot).await, "it has changed since");
    });
}

#[test]
fn a_restored_and_a_rolled_back_one_are_unchanged_until_somebody_works() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        sh(&*sandbox, PREPARE).await;
        let sealed = seal(&*sandbox).await;
        let copy = scene.restore(&sealed).await;
        assert!(is_unchanged(&*copy, sealed.snapshot).await);
        scene.driver.stop(copy.id()).await.unwrap();
        assert!(is_unchanged(&*copy, sealed.snapshot).await, "stopped");
        scene.driver.start(copy.id(), &spec()).await.unwrap();
        assert!(is_unchanged(&*copy, sealed.snapshot).await, "started again");
        python(&*copy, "open('/srv/new', 'w').write('x')").await;
        assert!(!is_unchanged(&*copy, sealed.snapshot).await);
        scene.driver.rollback(copy.id(), &spec(), &sealed).await.unwrap();
        assert!(is_unchanged(&*copy, sealed.snapshot).await, "rolled back");
    });
}

#[test]
fn a_busy_one_that_became_idle_is_compared_with_its_copy() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let running = start(&*sandbox, "echo on; exec sleep 1000").await;
        sh(&*sandbox, PREPARE).await;
        settled(&*sandbox).await;
        let sealed = seal(&*sandbox).await.snapshot;
        running.control.signal(9).await.unwrap();
        running.control.wait().await.unwrap();
        assert!(is_unchanged(&*sandbox, sealed).await);
        write(&*sandbox, "/srv/kept", "other").await.unwrap();
        assert!(!is_unchanged(&*sandbox, sealed).await);
    });
}
