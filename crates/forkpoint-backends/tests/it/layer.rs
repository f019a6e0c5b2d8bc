//! `LayerStore`, against the kernel's own overlayfs where we may mount it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use forkpoint_backends::layer::{CaptureSpec, Layer, LayerName, LayerStore, Manifest};
use forkpoint_core::id::SnapshotId;
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use crate::unprivileged::SKIPPED;

mod bundle;
mod capture;
mod crowd;
mod flatten;
mod full_disk;
mod hostile;
mod looks;
mod merge;
mod mount;
pub(crate) mod property;
mod reflink;
mod store;
mod travel;
mod unprivileged;
pub(crate) mod view;

fn name(number: u128) -> LayerName {
    LayerName::of(SnapshotId::from_u128(number))
}

/// Waits for the next tick of the clock of files, after which nothing counts as changed just because
/// it changed a moment ago.
pub(crate) fn settle() {
    let read = |clock| {
        let now = clock_gettime(clock);
        (now.tv_sec, now.tv_nsec)
    };
    let start = read(ClockId::Realtime);
    while read(ClockId::RealtimeCoarse) <= start {
        std::thread::yield_now();
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says why a case cannot run. As root every case runs, so that a test run as root skips nothing.
pub(crate) fn needs_root(why: &str) -> bool {
    if !is_root() {
        eprintln!("{SKIPPED}{why}");
    }
    !is_root()
}

/// A store and an upper directory, which go with it.
#[derive(Debug)]
struct Scene {
    directory: TempDir,
    store: LayerStore,
    captured: u128,
    manifest: Option<Manifest>,
    /// Whether small files are made later.
    pack: bool,
}

impl Scene {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        fs::create_dir(directory.path().join("upper")).unwrap();
        let store = LayerStore::open(&directory.path().join("store")).unwrap();
        Self { directory, store, captured: 0, manifest: None, pack: false }
    }

    /// Only root has files made later.
    fn packing() -> Self {
        Self { pack: is_root(), ..Self::new() }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }

    fn upper(&self) -> PathBuf {
        self.path("upper")
    }

    fn store_path(&self) -> PathBuf {
        self.path("store")
    }

    /// Captures the upper directory into a layer on the one before.
    fn capture(&mut self) -> Layer {
        let over = (self.captured > 0).then(|| name(self.captured));
        self.captured += 1;
        let mut stage = self.store.stage(name(self.captured), over).unwrap();
        let upper = self.upper();
        let (since, pack) = (self.manifest.as_ref(), self.pack);
        let spec = CaptureSpec { since, pack, ..CaptureSpec::new(&upper) };
        let manifest = stage.capture(&spec).unwrap();
        // What a driver does: the manifest goes to disk and comes back.
        self.manifest = Some(Manifest::decode(&manifest.encode()).unwrap());
        assert_eq!(self.manifest.as_ref(), Some(&manifest));
        stage.commit(false).unwrap()
    }

    fn chain(&self) -> Vec<Layer> {
        self.store.chain(&name(self.captured)).unwrap()
    }

    /// Trees of all layers, the top first.
    fn lowers(&self) -> Vec<PathBuf> {
        self.chain().iter().map(Layer::tree_path).collect()
    }

    fn assert_clean(&self) {
        let stats = self.store.reap().unwrap();
        assert!(stats.leftovers.is_empty(), "{stats:?}");
        for place in ["store/staging", "store/trash"] {
            assert_eq!(entries(&self.path(place)), [] as [String; 0], "{place}");
        }
    }
}

pub(crate) fn entries(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
