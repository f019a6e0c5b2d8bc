//! Full snapshots in a long row: each holds what was written since the one before, however many there are.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use forkpoint_core::driver::{Artifact, Driver as _, Sandbox};
use serde_json::Value;

use super::{
    full::seal_full,
    scene::{Scene, new_snapshot, python, read_text, sh, spec, until},
};

/// Has thirty megabytes. When it is asked it takes a step, by which it writes to some pages, and tells a checksum of all.
const STEPS: &str = "
import os, random, time, zlib
heap = bytearray(random.Random(7).randbytes(1 << 20)) * 30
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)
os.setsid()
step = 0
while True:
    if os.path.exists('/tmp/ask'):
        step += 1
        r = random.Random(step)
        for _ in range(int(os.environ['PAGES'])): heap[r.randrange(len(heap))] ^= 1 + step % 255
        os.remove('/tmp/ask')
        with open('/tmp/told.new', 'w') as file: file.write(f'{step} {zlib.crc32(heap)}')
        os.rename('/tmp/told.new', '/tmp/told')
    time.sleep(0.001)
";

async fn stepping(scene: &Scene, pages: u32) -> Arc<dyn Sandbox> {
    let sandbox = scene.create().await;
    let program = STEPS.replace("os.environ['PAGES']", &pages.to_string());
    python(&*sandbox, &program).await;
    step(&*sandbox).await;
    sandbox
}

/// What it tells after its next step.
async fn step(sandbox: &dyn Sandbox) -> String {
    sh(sandbox, "rm -f /tmp/told; touch /tmp/ask; until [ -e /tmp/told ]; do sleep 0.005; done")
        .await;
    read_text(sandbox, "/tmp/told").await
}

fn memory(artifact: &Artifact) -> &Vec<Value> {
    artifact.data["memory"].as_array().unwrap()
}

/// How much was read while everything stood.
fn read_in_pause(artifact: &Artifact) -> u64 {
    memory(artifact).last().unwrap()["bytes"].as_u64().unwrap()
}

fn listed(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn merged(scene: &Scene, of: &Artifact) -> Vec<PathBuf> {
    let mut all = listed(&scene.root().join("merged"));
    all.retain(|path| path.to_str().unwrap().contains(&of.snapshot.to_string()));
    all
}

/// Until it is there as a whole.
fn wait_for_merged(scene: &Scene, of: &Artifact) {
    until("the images are merged", || match merged(scene, of).as_slice() {
        [path] if !path.to_str().unwrap().contains(".new-") => Vec::new(),
        other => vec![format!("{other:?}")],
    });
}

async fn takes_the_step(scene: &Scene, artifact: &Artifact, expected: &str) {
    let copy = scene.restore(artifact).await;
    assert_eq!(step(&*copy).await, expected, "{}", artifact.data["memory"]);
    scene.driver.destroy(copy.id()).await.unwrap();
}

async fn discard_memory(scene: &Scene, artifact: &Artifact) {
    let pieces = artifact.pieces.iter().rev().filter(|piece| piece.name.0.starts_with("memory-"));
    for piece in pieces {
        scene.driver.discard(&piece.name).await.unwrap();
    }
}

#[test]
fn forty_in_a_row_hold_what_was_written_since() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = stepping(&scene, 60).await;
        let (mut row, mut told) = (Vec::new(), Vec::new());
        for number in 1..=40 {
            let artifact = seal_full(&*sandbox).await;
            let read = read_in_pause(&artifact);
            assert_eq!(read > 20 << 20, number == 1, "{number}: {read} bytes");
            let len = memory(&artifact).len();
            assert!(len <= 16, "{number}: {len} images");
            if len == 16 {
                wait_for_merged(&scene, &artifact);
            }
            told.push(step(&*sandbox).await);
            row.push(artifact);
        }
        let short: Vec<usize> = (1..40).filter(|at| memory(&row[*at]).len() == 3).collect();
        assert_eq!(short, [2, 16, 30], "over the first, and what was written until then");
        assert_eq!(row[16].pieces.last().unwrap().name.0, format!("memory-{}", row[16].snapshot));
        assert!(row[16].own_bytes < 20 << 20, "{}", row[16].own_bytes);
        for (artifact, told) in row.iter().zip(&told) {
            takes_the_step(&scene, artifact, told).await;
        }
        let parts = scene.driver.export(&row[16]).await.unwrap();
        let came = scene.driver.import(new_snapshot(), parts).await.unwrap();
        takes_the_step(&scene, &came, &told[16]).await;
        discard_memory(&scene, &came).await;
        // In place too, over what was merged.
        assert_eq!(memory(&row[39]).len(), 12);
        let back = scene.driver.rollback(sandbox.id(), &spec(), &row[39]).await;
        assert_eq!(back.unwrap().made_anew(), None);
        assert_eq!(step(&*sandbox).await, told[39]);
        let next = seal_full(&*sandbox).await;
        assert!(read_in_pause(&next) < 20 << 20);

        // What only they used goes with the old ones, and the new ones are what they were.
        let images = || listed(&scene.root().join("memory")).len();
        let before = images();
        for artifact in row[1..16].iter().rev() {
            discard_memory(&scene, artifact).await;
        }
        assert_eq!(images(), before - 15);
        for at in [0, 16, 17, 29, 30, 39] {
            takes_the_step(&scene, &row[at], &told[at]).await;
        }
        scene.driver.destroy(sandbox.id()).await.unwrap();
        for artifact in [&next].into_iter().chain(row[16..].iter().rev()).chain([&row[0]]) {
            discard_memory(&scene, artifact).await;
        }
        assert_eq!(images(), 0);
        assert_eq!(listed(&scene.root().join("merged")), [] as [PathBuf; 0]);
    });
}

/// Much is written each time, so that all of it is merged into one that lies over nothing. Whoever merges is killed at it,
/// and nobody waits for it: the row goes on.
#[test]
fn who_is_killed_while_it_merges_costs_nothing() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = stepping(&scene, 1500).await;
        let (mut row, mut told, mut killed) = (Vec::new(), Vec::new(), 0);
        for number in 1..=24 {
            let artifact = seal_full(&*sandbox).await;
            let read = read_in_pause(&artifact);
            assert_eq!(read > 20 << 20, number == 1, "{number}: {read} bytes");
            if memory(&artifact).len() >= 16 && killed < 3 {
                killed += u32::from(kill_merging(&scene, &artifact));
            }
            told.push(step(&*sandbox).await);
            row.push(artifact);
        }
        assert!(killed > 0, "it was too fast each time");
        let last = row.last().unwrap();
        if memory(last).len() >= 16 {
            wait_for_merged(&scene, last);
        }
        let next = seal_full(&*sandbox).await;
        let lens: Vec<_> = row.iter().chain([&next]).map(|each| memory(each).len()).collect();
        let merged = lens.iter().rposition(|len| *len == 2).unwrap();
        assert!(merged >= 16, "over nothing: {lens:?}");
        for at in [0, 14, 15, 16, 17, 22, 23] {
            takes_the_step(&scene, &row[at], &told[at]).await;
        }
        takes_the_step(&scene, &next, &step(&*sandbox).await).await;
        // What was left by somebody who died goes with the processes.
        let (id, driver) = (sandbox.id(), &scene.driver);
        for which in 0..3 {
            let left = scene.root().join(format!("merged/{}.{id}.new-1", next.snapshot));
            fs::create_dir_all(&left).unwrap();
            match which {
                0 => drop(driver.rollback(id, &spec(), &row[3]).await.unwrap()),
                1 => driver.stop(id).await.unwrap(),
                _ => driver.destroy(id).await.unwrap(),
            }
            assert_eq!(listed(&scene.root().join("merged")), [] as [PathBuf; 0], "{which}");
        }
    });
}

/// Whether it was at it.
fn kill_merging(scene: &Scene, artifact: &Artifact) -> bool {
    // It takes a moment only: who sleeps meanwhile misses it.
    for _ in 0..1_000_000 {
        let found = merged(scene, artifact);
        let Some(path) = found.first().and_then(|path| path.to_str()) else {
            std::thread::yield_now();
            continue;
        };
        let Some((_, pid)) = path.rsplit_once(".new-") else { return false };
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        return rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok();
    }
    panic!("nobody merges");
}

/// For a while nobody can merge. Whoever takes the one that is too much does it himself, so that a row that is faster than
/// all merging does not grow for ever.
#[test]
fn a_row_that_became_too_long_is_merged_by_who_made_it_so() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = stepping(&scene, 60).await;
        let obstacle = scene.root().join("merged");
        fs::write(&obstacle, "").unwrap();
        for number in 1..32 {
            assert_eq!(memory(&seal_full(&*sandbox).await).len(), number);
            step(&*sandbox).await;
        }
        fs::remove_file(&obstacle).unwrap();
        let last = seal_full(&*sandbox).await;
        assert_eq!(memory(&last).len(), 32);
        let made = merged(&scene, &last);
        assert!(made.len() == 1 && !made[0].to_str().unwrap().contains(".new-"), "{made:?}");
        let told = step(&*sandbox).await;
        let next = seal_full(&*sandbox).await;
        assert_eq!(memory(&next).len(), 3);
        assert!(read_in_pause(&next) < 20 << 20);
        takes_the_step(&scene, &last, &told).await;
        takes_the_step(&scene, &next, &step(&*sandbox).await).await;
    });
}
