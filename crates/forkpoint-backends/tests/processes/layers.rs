//! Processes that work on one store of layers.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, DirEntry},
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use forkpoint_backends::layer::{Below, CaptureSpec, LayerName, LayerStore};
use forkpoint_core::id::SnapshotId;
use tempfile::TempDir;

use super::SERIAL;

/// Where a child that works on layers does so, in its environment.
pub(crate) const DIRECTORY: &str = "FORKPOINT_TEST_LAYERS";

/// So many that small ones are made later, where they may.
const FILES: usize = 100;
const KILLS: u64 = 60;

/// Makes, flattens and discards layers until it is killed.
pub(crate) fn work_for_ever(directory: &Path) {
    let serial: u128 = env::var(SERIAL).unwrap().parse().unwrap();
    let store = LayerStore::open(&directory.join("store")).unwrap();
    for round in 0.. {
        work(directory, &store, serial << 64 | round << 8);
    }
}

fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn name(number: u128) -> LayerName {
    LayerName::of(SnapshotId::from_u128(number))
}

fn fill(directory: &Path, text: &str) {
    fs::create_dir_all(directory.join("dir")).unwrap();
    for number in 0..FILES {
        fs::write(directory.join(format!("dir/{number}")), text).unwrap();
    }
}

fn work(directory: &Path, store: &LayerStore, number: u128) {
    let upper = directory.join("uppers").join(number.to_string());
    fill(&upper, "one");
    let mut stage = store.stage(name(number), None).unwrap();
    let pack = rustix::process::geteuid().is_root();
    let manifest = stage.capture(&CaptureSpec { pack, ..CaptureSpec::new(&upper) }).unwrap();
    stage.commit(false).unwrap();
    report("captured");

    fill(&upper, "two");
    let over = name(number);
    let mut stage = store.stage(name(number + 1), Some(over)).unwrap();
    let spec = CaptureSpec { since: Some(&manifest), pack, ..CaptureSpec::new(&upper) };
    stage.capture(&spec).unwrap();
    stage.commit(false).unwrap();
    report("captured");

    let mut stage = store.stage(name(number + 2), None).unwrap();
    stage.flatten(&store.chain(&name(number + 1)).unwrap(), Below::Nothing).unwrap();
    stage.commit(false).unwrap();
    report("flattened");

    report(&format!("upper {number}"));
    store.commit_upper(name(number + 3), None, &upper, false).unwrap();
    report("moved");
    for gone in 0..3 {
        store.discard(name(number + gone).as_str()).unwrap();
        report("discarded");
    }
}

struct Worker {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Worker {
    fn start(directory: &Path, serial: u64) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .env(DIRECTORY, directory)
            .env(SERIAL, serial.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Waits for reports, and notes each upper directory that was complete.
    fn listen(&mut self, count: u64, uppers: &mut BTreeSet<String>) {
        let reports = ["captured", "flattened", "moved", "discarded", "upper"];
        let mut heard = 0;
        while heard < count {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "a child ended by itself");
            let line = line.trim_end();
            heard += u64::from(reports.iter().any(|report| line.starts_with(report)));
            if let Some(upper) = line.strip_prefix("upper ") {
                uppers.insert(upper.to_owned());
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn assert_complete(store: &LayerStore, directory: &Path) {
    for layer in store.list().unwrap() {
        // Another process may discard it at any moment.
        let Ok(layer) = store.layer(&layer) else { continue };
        let Ok(found) = fs::read_dir(layer.tree_path().join("dir")) else { continue };
        let is_whole = |entry: &DirEntry| entry.metadata().is_ok_and(|meta| meta.len() == 3);
        let found = found.filter_map(Result::ok).filter(is_whole).count();
        if directory.join("store/layers").join(layer.name().as_str()).exists() {
            assert_eq!(found, FILES, "{layer:?}");
        }
    }
}

pub(crate) fn kill_again_and_again() {
    let directory = TempDir::new().unwrap();
    let root = directory.path();
    fs::create_dir(root.join("uppers")).unwrap();
    let mut uppers = BTreeSet::new();
    let (mut dice, mut left) = (7u64, 0);
    let mut workers = [1, 2].map(|serial| Worker::start(root, serial));
    for serial in 3..3 + KILLS {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let which = (dice >> 40) as usize % 2;
        workers[which].listen(1 + (dice >> 33) % 9, &mut uppers);
        // The child goes on while we count, so it dies anywhere.
        (0..(dice >> 20) % 2_000_000).for_each(|turn| {
            std::hint::black_box(turn);
        });
        drop(std::mem::replace(&mut workers[which], Worker::start(root, serial)));
        let store = LayerStore::open(&root.join("store")).unwrap();
        left += store.sweep().unwrap().trash;
        assert_complete(&store, root);
    }
    drop(workers);
    let store = LayerStore::open(&root.join("store")).unwrap();
    store.sweep().unwrap();
    let stats = store.reap().unwrap();
    assert!(stats.leftovers.is_empty(), "{stats:?}");
    assert_eq!(entries(&root.join("store/staging")), [] as [String; 0]);
    assert_eq!(entries(&root.join("store/trash")), [] as [String; 0]);
    assert_complete(&store, root);
    assert_eq!(store.list().unwrap().len(), entries(&root.join("store/layers")).len());
    assert_no_upper_is_lost(&store, root, &uppers);
    assert!(left > 0, "nobody died at work");
}

/// An upper directory is where it was, or is a layer.
fn assert_no_upper_is_lost(store: &LayerStore, root: &Path, uppers: &BTreeSet<String>) {
    for upper in uppers {
        let there = root.join("uppers").join(upper).join("dir");
        let layer = store.layer(&name(upper.parse::<u128>().unwrap() + 3));
        assert_ne!(there.exists(), layer.is_ok(), "{upper}");
        let kept = layer.map_or(there, |layer| layer.tree_path().join("dir"));
        assert_eq!(entries(&kept).len(), FILES, "{upper}");
    }
}

/// The names in a directory, in order.
fn entries(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}
