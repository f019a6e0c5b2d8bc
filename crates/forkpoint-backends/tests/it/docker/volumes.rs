//! What volumes hold, in layers and back, without any engine.

use std::{
    collections::HashSet,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use forkpoint_backends::{
    driver::docker::volume::{VolumeCapture, VolumeLayer, VolumeStore},
    layer::{LayerError, LayerName},
};
use forkpoint_core::id::SnapshotId;
use proptest::{collection::vec, prelude::*};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr, mknodat};
use tempfile::TempDir;

use crate::layer::{
    needs_root,
    property::{Step, apply, steps},
    settle,
    view::{self, View},
};

/// A store, and directories that stand for volumes.
pub(super) struct Ground {
    pub(super) directory: TempDir,
    pub(super) store: VolumeStore,
    pub(super) taken: u128,
}

impl Ground {
    pub(super) fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let store = VolumeStore::open(&directory.path().join("store")).unwrap();
        Self { directory, store, taken: 0 }
    }

    pub(super) fn volume(&self, name: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub(super) fn capture(&mut self, name: &str) -> VolumeLayer {
        self.taken += 1;
        let (snapshot, path) = (SnapshotId::from_u128(self.taken), self.volume(name));
        let spec = VolumeCapture { snapshot, number: 0, volume: name, path: &path };
        self.store.capture(&spec).unwrap()
    }

    pub(super) fn tree(&self, layer: &LayerName) -> PathBuf {
        self.store.layer(layer).unwrap().tree_path()
    }

    pub(super) fn assert_clean(&self) {
        self.store.reap().unwrap();
        for place in ["store/staging", "store/trash"] {
            assert_eq!(fs::read_dir(self.directory.path().join(place)).unwrap().count(), 0);
        }
    }
}

pub(super) fn inodes(root: &Path) -> HashSet<u64> {
    let mut found = HashSet::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            if meta.is_dir() {
                pending.push(entry.path());
            } else {
                found.insert(meta.ino());
            }
        }
    }
    found
}

fn blocks(root: &Path) -> u64 {
    fs::metadata(root).unwrap().blocks()
}

#[test]
fn what_did_not_change_is_shared_with_the_layer_before() {
    let mut ground = Ground::new();
    let volume = ground.volume("data");
    fs::create_dir(volume.join("sub")).unwrap();
    fs::write(volume.join("sub/large"), vec![7; 1 << 20]).unwrap();
    fs::write(volume.join("small"), "one").unwrap();
    settle();
    let first = ground.capture("data");
    assert_eq!((first.size.files, first.own.files), (2, 2));
    assert!(first.own.bytes >= 1 << 20);

    fs::write(volume.join("small"), "two").unwrap();
    settle();
    let second = ground.capture("data");
    assert_eq!((second.size.files, second.own.files), (2, 1), "{second:?}");
    assert!(second.own.bytes <= 4096 && second.size.bytes >= 1 << 20);
    let inode = |layer: &VolumeLayer, name: &str| {
        fs::metadata(ground.tree(&layer.name).join(name)).unwrap().ino()
    };
    assert_eq!(inode(&first, "sub/large"), inode(&second, "sub/large"));
    assert_ne!(inode(&first, "small"), inode(&second, "small"));
    assert_eq!(fs::read(ground.tree(&first.name).join("small")).unwrap(), b"one");

    // The one does not need the other.
    ground.store.discard(first.name.as_str()).unwrap();
    ground.store.discard(first.name.as_str()).unwrap();
    let large = fs::read(ground.tree(&second.name).join("sub/large")).unwrap();
    assert_eq!(large, vec![7; 1 << 20]);
    assert_eq!(second.piece().over, None);
    ground.assert_clean();
}

#[test]
fn a_layer_that_is_gone_is_not_missed_by_the_next_capture() {
    let mut ground = Ground::new();
    fs::write(ground.volume("data").join("file"), "content").unwrap();
    settle();
    let first = ground.capture("data");
    let second = ground.capture("data");
    assert_eq!(second.own.files, 0);
    ground.store.discard(second.name.as_str()).unwrap();
    assert_eq!(ground.capture("data").own.files, 0, "the first one is still there");
    ground.store.unseal(SnapshotId::from_u128(1)).unwrap();
    ground.store.unseal(SnapshotId::from_u128(3)).unwrap();
    assert_eq!(ground.store.list().unwrap(), []);
    assert_eq!(ground.capture("data").own.files, 1);
    assert!(matches!(ground.store.layer(&first.name), Err(LayerError::Missing { .. })));
}

#[test]
fn a_write_to_a_filled_volume_reaches_no_layer() {
    let mut ground = Ground::new();
    let volume = ground.volume("data");
    fs::write(volume.join("a"), "a").unwrap();
    fs::hard_link(volume.join("a"), volume.join("b")).unwrap();
    settle();
    let layer = ground.capture("data");
    ground.capture("data");
    let copy = ground.volume("copy");
    ground.store.fill(&layer.name, "copy", &copy).unwrap();
    assert!(inodes(&copy).is_disjoint(&inodes(&ground.tree(&layer.name))));
    let (a, b) = (fs::metadata(copy.join("a")).unwrap(), fs::metadata(copy.join("b")).unwrap());
    assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
    fs::write(copy.join("a"), "changed").unwrap();
    assert_eq!(fs::read(ground.tree(&layer.name).join("b")).unwrap(), b"a");
    assert_eq!(fs::read(volume.join("a")).unwrap(), b"a");
}

#[test]
fn the_first_capture_of_a_copy_costs_what_the_copy_changed() {
    let mut ground = Ground::new();
    let volume = ground.volume("data");
    for number in 0..200 {
        fs::write(volume.join(format!("file{number}")), vec![1; 10_000]).unwrap();
    }
    settle();
    let layer = ground.capture("data");
    let copy = ground.volume("copy");
    ground.store.fill(&layer.name, "copy", &copy).unwrap();
    fs::write(copy.join("file7"), "changed").unwrap();
    settle();
    let again = ground.capture("copy");
    assert_eq!((again.own.files, again.size.files), (1, 200), "{again:?}");
    view::assert_same(&view::read(&copy, ""), &view::read(&ground.tree(&again.name), ""), "copy");
}

#[test]
fn a_directory_that_holds_something_is_not_filled() {
    let mut ground = Ground::new();
    let layer = ground.capture("data");
    let other = ground.volume("other");
    fs::write(other.join("mine"), "mine").unwrap();
    let err = ground.store.fill(&layer.name, "other", &other).unwrap_err();
    assert!(matches!(&err, LayerError::NotEmpty { .. }), "{err}");
    assert_eq!(fs::read(other.join("mine")).unwrap(), b"mine");
}

#[test]
fn what_means_something_to_overlayfs_is_content_like_everything_else() {
    if needs_root("devices and trusted attributes") {
        return;
    }
    let mut ground = Ground::new();
    let volume = ground.volume("data");
    let white = volume.join("white");
    mknodat(CWD, &white, FileType::CharacterDevice, Mode::RUSR | Mode::WGRP, 0).unwrap();
    fs::hard_link(&white, volume.join("out")).unwrap();
    rustix::fs::chown(&white, Some(rustix::fs::Uid::from_raw(7)), None).unwrap();
    fs::create_dir(volume.join("opaque")).unwrap();
    for name in ["trusted.overlay.opaque", "trusted.overlay.redirect", "user.overlay.origin"] {
        lsetxattr(volume.join("opaque"), name, b"y", XattrFlags::empty()).unwrap();
    }
    settle();
    let layer = ground.capture("data");
    let copy = ground.volume("copy");
    ground.store.fill(&layer.name, "copy", &copy).unwrap();
    view::assert_same(&view::read(&volume, ""), &view::read(&copy, ""), "copy");
    rustix::fs::chown(&white, Some(rustix::fs::Uid::from_raw(8)), None).unwrap();
    settle();
    let layer = ground.capture("data");
    view::assert_same(&view::read(&volume, ""), &view::read(&ground.tree(&layer.name), ""), "new");
}

#[test]
fn holes_stay_holes() {
    let mut ground = Ground::new();
    let volume = ground.volume("data");
    let file = fs::File::create(volume.join("sparse")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"end", 64 << 20).unwrap();
    drop(file);
    settle();
    let layer = ground.capture("data");
    assert!(layer.size.bytes < 1 << 20, "{layer:?}");
    let copy = ground.volume("copy");
    ground.store.fill(&layer.name, "copy", &copy).unwrap();
    assert_eq!(fs::metadata(copy.join("sparse")).unwrap().len(), (64 << 20) + 3);
    assert!(blocks(&copy.join("sparse")) < 1024);
}

#[test]
fn a_file_that_is_mapped_to_write_counts_as_changed_next_time() {
    if needs_root("looking at processes") {
        return;
    }
    let mut ground = Ground::new();
    let volume = ground.volume("data");
    fs::write(volume.join("mapped"), vec![0; 4096]).unwrap();
    fs::write(volume.join("plain"), vec![0; 4096]).unwrap();
    settle();
    let script = "import mmap,sys; f=open(sys.argv[1],'r+b'); m=mmap.mmap(f.fileno(),0); \
        m[0]=1; print('up',flush=True); sys.stdin.readline(); m[1]=2; print('done',flush=True); \
        sys.stdin.readline()";
    let mut child = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(volume.join("mapped"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    settle();
    ground.capture("data");
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    let second = ground.capture("data");
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(second.own.files, 1, "{second:?}");
    assert_eq!(fs::read(ground.tree(&second.name).join("mapped")).unwrap()[..2], [1, 2]);
}

#[test]
fn a_layer_that_may_not_be_on_the_disk_is_not_relied_on_after_a_restart_of_the_machine() {
    let mut ground = Ground::new();
    fs::write(ground.volume("data").join("file"), "content").unwrap();
    settle();
    let first = ground.capture("data");
    let notes = ground.directory.path().join("store/notes");
    let of_volume = fs::read_dir(notes).unwrap().next().unwrap().unwrap().path();
    let note = of_volume.join(first.name.as_str());
    let other_run = || {
        let bytes = fs::read(&note).unwrap();
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        let mut head: serde_json::Value = serde_json::from_slice(&bytes[..end]).unwrap();
        head["boot"] = "another".into();
        fs::write(&note, [head.to_string().as_bytes(), &bytes[end..]].concat()).unwrap();
    };
    other_run();
    let second = ground.capture("data");
    assert_eq!(second.own.files, 1);
    ground.store.discard(second.name.as_str()).unwrap();
    ground.store.sync(&first.name).unwrap();
    assert_eq!(ground.capture("data").own.files, 0);
}

#[test]
fn a_volume_that_its_owner_may_not_write_to_is_filled_too() {
    let mut ground = Ground::new();
    let volume = ground.volume("data");
    fs::create_dir(volume.join("closed")).unwrap();
    fs::write(volume.join("closed/file"), "x").unwrap();
    let set = |path: PathBuf, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    set(volume.join("closed"), 0o555).unwrap();
    set(volume.clone(), 0o555).unwrap();
    let layer = ground.capture("data");
    let copy = ground.volume("copy");
    ground.store.fill(&layer.name, "copy", &copy).unwrap();
    view::assert_same(&view::read(&volume, ""), &view::read(&copy, ""), "copy");
    for path in [&volume, &copy] {
        set(path.clone(), 0o755).unwrap();
        set(path.join("closed"), 0o755).unwrap();
    }
}

fn captures_and_fills_agree(rounds: &[Vec<Step>]) {
    let mut ground = Ground::new();
    let volume = ground.volume("data");
    let mut kept: Vec<(VolumeLayer, View)> = Vec::new();
    for (number, round) in rounds.iter().enumerate() {
        for step in round {
            apply(&volume, step);
        }
        if number % 3 != 1 {
            settle();
        }
        let layer = ground.capture("data");
        let live = view::read(&volume, "");
        let copy = ground.volume(&format!("copy{number}"));
        ground.store.fill(&layer.name, &format!("copy{number}"), &copy).unwrap();
        view::assert_same(&live, &view::read(&copy, ""), &format!("fill {number}"));
        assert!(inodes(&copy).is_disjoint(&inodes(&ground.tree(&layer.name))));
        // Nobody who works in a copy reaches a layer.
        for step in rounds.iter().flatten() {
            apply(&copy, step);
        }
        let of_copy = ground.capture(&format!("copy{number}"));
        let tree = ground.tree(&of_copy.name);
        view::assert_same(&view::read(&copy, ""), &view::read(&tree, ""), "capture of a copy");
        kept.push((layer, live));
        if number % 4 == 3 {
            let (gone, _) = kept.remove(number / 2);
            ground.store.discard(gone.name.as_str()).unwrap();
        }
        for (layer, then) in &kept {
            view::assert_same(then, &view::read(&ground.tree(&layer.name), ""), "a kept layer");
        }
    }
    ground.assert_clean();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn layers_are_what_the_volume_was_and_copies_are_what_layers_are(
        rounds in vec(steps(25), 1..6),
    ) {
        captures_and_fills_agree(&rounds);
    }
}

#[test]
fn the_store_says_that_its_layers_are_no_overlay() {
    let mut ground = Ground::new();
    let layer = ground.capture("data");
    let record = fs::read_to_string(
        ground.directory.path().join("store/layers").join(layer.name.as_str()).join("layer.json"),
    );
    assert!(record.unwrap().contains(r#""marks":"plain""#));
}
