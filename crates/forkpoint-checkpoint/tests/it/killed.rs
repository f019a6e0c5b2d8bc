//! An engine that dies at any step leaves the tree running as before.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use forkpoint_checkpoint::{
    CaptureSpec, Tree,
    bare::{Bare, BareSpec},
    capture,
};

use crate::place::{PROGRAM, Place, now, until};

/// Threads, a child, signals that are caught, numbers in registers: it notices what changes.
pub(crate) const WATCHFUL: &str = "
import os, signal, threading, time
caught = [0]
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.signal(signal.SIGURG, lambda *_: caught.__setitem__(0, caught[0] + 1))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
counts = [0, 0]
def work(n):
    while True:
        if sum(i * i for i in range(300)) != 8955050: open('/mnt/wrong', 'a').write('sum\\n')
        counts[n] += 1
        time.sleep(0.0005)
for n in range(2): threading.Thread(target=work, args=(n,), daemon=True).start()
n = 0
while True:
    n += 1
    if signal.pthread_sigmask(signal.SIG_BLOCK, []) != {signal.SIGUSR2}: open('/mnt/wrong', 'a').write('mask\\n')
    if caught[0]: open('/mnt/wrong', 'a').write('signal\\n')
    if sum(i * i for i in range(300)) != 8955050: open('/mnt/wrong', 'a').write('sum\\n')
    with open('/mnt/count.new', 'w') as f: f.write(str(min(n, *counts)))
    os.rename('/mnt/count.new', '/mnt/count')
    time.sleep(0.0005)
";

/// Has an engine die after more and more steps, until it needs fewer than it is given.
fn at_every_step(mut attempt: impl FnMut(u32) -> bool) {
    let steps = (0..).find(|steps| attempt(*steps)).unwrap();
    // Steps are only counted where debug assertions are on.
    assert!(steps > 20 || !cfg!(debug_assertions), "it died {steps} times");
}

fn engine(work: &str, init: i32, steps: u32, images: &[PathBuf]) -> bool {
    let (init, steps) = (init.to_string(), steps.to_string());
    let output = Command::new(PROGRAM).args([work, &init, &steps]).args(images).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() != Some(1), "after {steps} steps: {told}");
    output.status.success()
}

fn harms_nobody(work: &str, images: &[&str]) {
    let mut place = Place::new();
    let sandbox = place.python(WATCHFUL);
    let mut before = place.grows("count", 3);
    at_every_step(|steps| {
        let images: Vec<PathBuf> = images.iter().map(|name| place.dir.path().join(name)).collect();
        let done = engine(work, sandbox.init, steps, &images);
        before = goes_on(&place, &sandbox, before, steps);
        assert_eq!(place.read("wrong"), "", "after {steps} steps");
        for image in images.iter().filter(|_| !done) {
            let _ = std::fs::remove_dir_all(image);
        }
        done
    });
    // It can still be captured, and the copy is well.
    let tree = Tree::below(sandbox.init).with_clients();
    let captured = capture(&tree, &CaptureSpec::default(), || place.keep_files()).unwrap();
    place.write(&captured);
    drop(sandbox);
    place.put("count", "0");
    let _copy = place.restore();
    place.grows("count", before.saturating_sub(1));
    assert_eq!(place.read("wrong"), "");
}

#[test]
fn an_engine_that_dies_at_any_step_harms_nobody() {
    harms_nobody("forkpoint-bare-capture", &[]);
}

#[test]
fn an_engine_that_dies_while_it_tracks_harms_nobody() {
    harms_nobody("forkpoint-bare-track", &["base", "since"]);
}

/// Half of the way back is none: who is not left alone ends with the engine.
#[test]
fn an_engine_that_dies_on_the_way_back_leaves_nothing_half_done() {
    let mut place = Place::new();
    let first = place.python(WATCHFUL);
    place.grows("count", 3);
    place.capture(&first);
    let (mut current, mut ended) = (Some(first), 0);
    at_every_step(|steps| {
        let done = until("it is tried", || {
            let last = current.take().filter(|sandbox| !is_empty(sandbox));
            let sandbox = last.unwrap_or_else(|| place.restore());
            let done = goes_back(&place, &sandbox, steps);
            current = Some(sandbox);
            done
        });
        assert_eq!(place.read("wrong"), "", "after {steps} steps");
        let sandbox = current.as_ref().unwrap();
        place.put("count", "0");
        until(&format!("it goes on after {steps} steps, or is gone"), || {
            (place.number("count") > 0 || is_empty(sandbox)).then_some(())
        });
        ended += u32::from(is_empty(sandbox));
        done
    });
    assert!(ended > 10 || !cfg!(debug_assertions), "it ended {ended} times");
    assert_eq!(place.read("wrong"), "");
}

/// Whether an engine got back within so many steps. `None` if it did not begin: while the program writes, it has a file
/// open that it had not, or the other way round; and process 1, on which everything depends, may still be about to end with
/// the engine before.
fn goes_back(place: &Place, sandbox: &Bare, steps: u32) -> Option<bool> {
    let output = Command::new(PROGRAM)
        .args(["forkpoint-bare-back", &sandbox.init.to_string(), &steps.to_string()])
        .args(&place.images)
        .output()
        .unwrap();
    if output.status.code() != Some(1) {
        return Some(output.status.success());
    }
    let told = String::from_utf8_lossy(&output.stdout);
    if !told.contains("in place") {
        until(&format!("it is gone: {told}"), || is_empty(sandbox).then_some(()));
    }
    None
}

/// Whether nobody is left, or nobody but process 1.
fn is_empty(sandbox: &Bare) -> bool {
    let children = format!("/proc/{0}/task/{0}/children", sandbox.init);
    std::fs::read_to_string(children).map_or(true, |children| children.trim().is_empty())
}

#[test]
fn a_restore_that_dies_at_any_step_leaves_nothing() {
    let mut place = Place::new();
    let sandbox = place.python(WATCHFUL);
    place.grows("count", 3);
    place.capture(&sandbox);
    drop(sandbox);
    let images = place.images.clone();
    for lazy in [false, true] {
        at_every_step(|steps| {
            place.bring_files_back();
            let dies_after = Some(steps.into());
            let spec = BareSpec { images: images.clone(), lazy, dies_after, ..place.spec() };
            let started = Bare::start(Path::new(PROGRAM), &spec);
            if let Ok(copy) = &started {
                let now = place.number("count");
                goes_on(&place, copy, now, steps);
            }
            let done = started.is_ok();
            drop(started);
            until("nobody is left", || inhabitants(&place).is_empty().then_some(()));
            done
        });
    }
    assert_eq!(place.read("wrong"), "");
}

/// Who sees the place as a file system of its own.
fn inhabitants(place: &Place) -> Vec<String> {
    let work = place.work();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let sees = |entry: std::fs::DirEntry| {
        let mounts = std::fs::read_to_string(entry.path().join("mountinfo")).ok()?;
        mounts.contains(work.to_str()?).then(|| entry.file_name().into_string().ok())?
    };
    all.filter_map(sees).collect()
}

fn goes_on(place: &Place, sandbox: &Bare, before: u64, steps: u32) -> u64 {
    let end = now() + Duration::from_secs(20);
    loop {
        match place.number("count") {
            count if count > before => return count,
            _ if now() > end => panic!("after {steps} steps: {}", place.states(sandbox, 2)),
            _ => std::hint::spin_loop(),
        }
    }
}
