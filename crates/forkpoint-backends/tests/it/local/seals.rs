//! Seals at odd moments: what is sealed stays as it is, and whoever died meanwhile harms nobody.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use forkpoint_core::driver::{
    Artifact, Driver as _, PausedSandbox, PieceName, Process, Sandbox, SandboxState, SnapshotKind,
    WriteMode,
};
use futures::{StreamExt as _, channel::mpsc};
use serde_json::json;

use super::scene::{
    Scene, exec, new_snapshot, path, read_text, seal, sh, start, try_seal, until, write,
};
use crate::layer::is_root;

/// More than a chain may have before it is merged.
const MANY: usize = 42;

async fn seal_many(sandbox: &dyn Sandbox, count: usize) -> Vec<Artifact> {
    let mut artifacts = Vec::new();
    for number in 0..count {
        write(sandbox, "/srv/number", &number.to_string()).await.unwrap();
        artifacts.push(seal(sandbox).await);
    }
    artifacts
}

/// What the catalog would do: nobody needs what only this snapshot had.
async fn discard_own(scene: &Scene, artifact: &Artifact) {
    for piece in &artifact.pieces {
        scene.driver.discard(&piece.name).await.unwrap();
    }
}

#[test]
fn a_process_whose_first_thread_is_gone_is_still_one_that_writes() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let script = "import ctypes, itertools, threading, time
def work():
    with open('/tmp/shared', 'w') as file:
        for number in itertools.count():
            file.seek(0); file.write(str(number)); file.flush(); time.sleep(0.002)
threading.Thread(target=work).start()
time.sleep(0.05); print('on', flush=True)
ctypes.CDLL(None).pthread_exit(None)";
        let script = format!("exec python3 -c \"{script}\"");
        let _running = start(&*sandbox, &script).await;
        sh(&*sandbox, "while [ \"$(cut -d' ' -f3 /proc/2/stat)\" != Z ]; do sleep 0.01; done")
            .await;
        let artifact = seal(&*sandbox).await;
        let copy = scene.restore(&artifact).await;
        let first = read_text(&*copy, "/tmp/shared").await;
        sh(&*sandbox, "sleep 0.1").await;
        assert_eq!(read_text(&*copy, "/tmp/shared").await, first, "the snapshot changes");
        assert_ne!(read_text(&*sandbox, "/tmp/shared").await, first, "the writer writes on");
    });
}

/// Where the files of a snapshot are, and where its small ones are missing.
fn parts(scene: &Scene, artifact: &Artifact) -> [PathBuf; 2] {
    let layer = scene.root().join("store/layers").join(format!("lyr{}", artifact.snapshot));
    assert!(layer.exists());
    ["tree", "packed"].map(|part| layer.join(part))
}

async fn busy_with_many_files(scene: &Scene) -> (Arc<dyn Sandbox>, Process) {
    let sandbox = scene.create().await;
    let running = start(&*sandbox, "echo on; exec sleep 1000").await;
    let make = "mkdir /srv/many; for i in $(seq 500); do echo $i > /srv/many/$i; done";
    sh(&*sandbox, make).await;
    (sandbox, running)
}

/// It still stands.
async fn sealed(sandbox: &dyn Sandbox) -> (Artifact, Box<dyn PausedSandbox>) {
    let mut paused = sandbox.pause(SnapshotKind::Files).await.unwrap();
    let artifact = paused.seal(new_snapshot(), SnapshotKind::Files).await.unwrap();
    (artifact, paused)
}

/// To make a file takes long, and a sandbox stands still meanwhile.
#[test]
fn small_files_of_a_busy_sandbox_are_made_when_it_runs_again() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let (sandbox, _running) = busy_with_many_files(&scene).await;
        let (first, paused) = sealed(&*sandbox).await;
        let [tree, packed] = parts(&scene, &first);
        assert_eq!((tree.exists(), packed.exists()), (!is_root(), is_root()));
        paused.resume().await.unwrap();
        until("they are made", || packed.exists().then(|| "no".to_owned()).into_iter().collect());
        assert_eq!(fs::read_dir(tree.join("srv/many")).unwrap().count(), 500);
    });
}

/// Whoever sealed it may be dead before that.
#[test]
fn small_files_of_a_busy_sandbox_are_made_for_who_asks() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let (sandbox, _running) = busy_with_many_files(&scene).await;
        let (first, paused) = sealed(&*sandbox).await;
        let sum = "cat /srv/many/* | cksum; ls /srv/many | wc -l";
        let seen = sh(&*scene.restore(&first).await, sum).await;
        assert!(!parts(&scene, &first)[1].exists());
        paused.resume().await.unwrap();
        assert_eq!(sh(&*sandbox, sum).await, seen);

        sh(&*sandbox, "cd /srv/many; for i in $(seq 100 300); do echo new > $i; done; rm 7").await;
        let (second, paused) = sealed(&*sandbox).await;
        let changed = sh(&*scene.restore(&second).await, sum).await;
        assert_ne!(changed, seen);
        paused.resume().await.unwrap();
        assert_eq!(sh(&*sandbox, sum).await, changed);
        assert_eq!(sh(&*scene.restore(&first).await, sum).await, seen);
    });
}

#[test]
fn a_merged_chain_outlives_the_snapshots_that_it_was_made_of() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let idle = seal_many(&*sandbox, MANY).await;
        let long = idle.iter().map(|artifact| artifact.pieces.len()).max();
        assert!(long > Some(1), "no chain was merged");

        // A merged chain that waits for the next seal, and a busy sandbox meanwhile.
        let sandbox = scene.create().await;
        seal_many(&*sandbox, MANY - 2).await;
        let running = start(&*sandbox, "echo on; exec sleep 1000").await;
        let busy = seal(&*sandbox).await;
        let after = seal(&*sandbox).await;
        discard_own(&scene, &after).await;
        discard_own(&scene, &busy).await;
        running.control.signal(9).await.unwrap();
        running.control.wait().await.unwrap();
        write(&*sandbox, "/srv/number", "last").await.unwrap();
        let last = seal(&*sandbox).await;
        let copy = scene.restore(&last).await;
        assert_eq!(read_text(&*copy, "/srv/number").await, "last");
    });
}

#[test]
fn a_seal_that_is_taken_back_keeps_the_merged_chain() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let taken = seal_many(&*sandbox, MANY - 2).await;
        let known: Vec<PieceName> = taken
            .iter()
            .take(MANY - 3)
            .flat_map(|artifact| &artifact.pieces)
            .map(|piece| piece.name.clone())
            .collect();
        scene.driver.unseal(taken.last().unwrap().snapshot).await.unwrap();
        write(&*sandbox, "/srv/number", "last").await.unwrap();
        let last = seal(&*sandbox).await;
        for piece in &last.pieces {
            let told = |over: &PieceName| {
                known.contains(over) || last.pieces.iter().any(|piece| piece.name == *over)
            };
            assert!(piece.over.as_ref().is_none_or(told), "{piece:?} lies on what nobody knows");
        }
        let copy = scene.restore(&last).await;
        assert_eq!(read_text(&*copy, "/srv/number").await, "last");
    });
}

#[test]
fn a_pause_that_was_only_written_down_is_made_good() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let id = sandbox.id();
        let mut record = scene.record(id);
        record["paused"] = json!(true);
        scene.write_record(id, &record);
        let mut paused = sandbox.pause(SnapshotKind::Files).await.unwrap();
        let state = scene.driver.status(id).await.unwrap().unwrap().state;
        assert_eq!(state, SandboxState::Paused, "it runs while it is sealed");
        paused.seal(new_snapshot(), SnapshotKind::Files).await.unwrap();
        paused.resume().await.unwrap();
        scene.driver.settle(id).await.unwrap();
        let state = scene.driver.status(id).await.unwrap().unwrap().state;
        assert_eq!(state, SandboxState::Paused, "its user paused it");
        scene.driver.resume(id).await.unwrap();
        sh(&*sandbox, "true").await;
    });
}

#[test]
fn a_record_that_cannot_be_read_keeps_nobody_from_taking_back_another_seal() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let broken = scene.create().await;
        let sandbox = scene.create().await;
        write(&*sandbox, "/srv/a", "a").await.unwrap();
        let artifact = seal(&*sandbox).await;
        fs::write(scene.place(broken.id()).join("record.json"), "").unwrap();
        scene.driver.unseal(artifact.snapshot).await.unwrap();
        assert_eq!(read_text(&*sandbox, "/srv/a").await, "a");
    });
}

#[test]
fn what_is_written_from_outside_is_in_a_snapshot_or_not_and_never_half() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        write(&*sandbox, "/srv/log", "").await.unwrap();
        let line = "x".repeat(3_000_000);
        let appends = async {
            for _ in 0..6 {
                let content = super::scene::bytes(line.clone());
                sandbox.write(&path("/srv/log"), content, WriteMode::Append).await.unwrap();
            }
        };
        let seals = async {
            let mut artifacts = Vec::new();
            for _ in 0..6 {
                artifacts.push(try_seal(&*sandbox).await.unwrap());
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            artifacts
        };
        let ((), artifacts) = futures::join!(appends, seals);
        for artifact in &artifacts {
            let copy = scene.restore(artifact).await;
            let (out, _) = exec(&*copy, &["stat", "-c", "%s", "/srv/log"]).await;
            let len: usize = out.trim().parse().unwrap();
            assert_eq!(len % line.len(), 0, "half of what was written");
            let (odd, _) = exec(&*copy, &["sh", "-c", "ls -A /srv | grep forkpoint"]).await;
            assert_eq!(odd, "", "half of a file");
        }
    });
}

#[test]
fn a_slow_writer_holds_nobody_up() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let (mut feed, content) = mpsc::unbounded::<std::io::Result<Bytes>>();
        feed.start_send(Ok(Bytes::from_static(b"begun"))).unwrap();
        let at = path("/srv/slow");
        let mut slow = std::pin::pin!(sandbox.write(&at, content.boxed(), WriteMode::Replace));
        let early = tokio::time::timeout(Duration::from_millis(20), &mut slow).await;
        assert!(early.is_err(), "it ended before its content");
        seal(&*sandbox).await;
        feed.start_send(Ok(Bytes::from_static(b" and done"))).unwrap();
        drop(feed);
        slow.await.unwrap();
        assert_eq!(read_text(&*sandbox, "/srv/slow").await, "begun and done");
    });
}

#[test]
fn others_on_the_host_cannot_reach_what_sandboxes_write() {
    let Some(scene) = Scene::new(true) else { return };
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(scene.root()), 0o700);
    fs::set_permissions(scene.root(), fs::Permissions::from_mode(0o755)).unwrap();
    drop(scene.another_driver());
    assert_eq!(mode(scene.root()), 0o700, "one that was open before");
}

#[test]
fn what_was_written_before_a_seal_that_was_cut_short_is_in_the_next() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let _busy = start(&*sandbox, "echo on; exec sleep 1000").await;
        write(&*sandbox, "/srv/text", "one").await.unwrap();
        seal(&*sandbox).await;
        write(&*sandbox, "/srv/text", "two").await.unwrap();
        // What changed a moment ago is copied once more anyway.
        sh(&*sandbox, "sleep 0.1").await;
        let before = scene.record(sandbox.id());
        let cut = seal(&*sandbox).await;
        // Whoever seals has died when all was there but the record.
        scene.write_record(sandbox.id(), &before);
        scene.driver.unseal(cut.snapshot).await.unwrap();
        let next = seal(&*sandbox).await;
        let copy = scene.restore(&next).await;
        assert_eq!(read_text(&*copy, "/srv/text").await, "two");
    });
}
