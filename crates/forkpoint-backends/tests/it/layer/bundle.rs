//! Small files that are made after the others.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    thread,
};

use forkpoint_backends::layer::{CaptureSpec, Layer, LayerError, LayerStore};
use rustix::{
    fs::{CWD, Timespec, Timestamps, XattrFlags, lgetxattr, lsetxattr, utimensat},
    io::Errno,
};

use super::{
    Scene,
    crowd::{directory, populate},
    entries,
    merge::merge,
    mount, name, needs_root, settle, view,
};

const WHY: &str = "only root has files made later";

fn bundles(layer: &Layer) -> Vec<PathBuf> {
    let names = entries(layer.path()).into_iter().filter(|name| name.starts_with("bundle"));
    names.map(|name| layer.path().join(name)).collect()
}

/// Files and directories with all that they can have of their own.
fn mark(scene: &Scene) {
    let file = |number: usize| directory(scene, number).join("file1");
    for (number, mode) in [0o000, 0o444, 0o4711, 0o2755, 0o1777].into_iter().enumerate() {
        chown(file(number), Some(7), Some(8)).unwrap();
        fs::set_permissions(file(number), Permissions::from_mode(mode)).unwrap();
    }
    fs::write(file(6), "").unwrap();
    lsetxattr(file(7), "trusted.overlay.origin", b"of below", XattrFlags::empty()).unwrap();
    let time = |tv_sec| Timespec { tv_sec, tv_nsec: 987_654_321 };
    let times = Timestamps { last_access: time(-5), last_modification: time(1 << 33) };
    utimensat(CWD, file(8), &times, rustix::fs::AtFlags::empty()).unwrap();
    // What is made in these comes out otherwise.
    chown(directory(scene, 9), Some(0), Some(9)).unwrap();
    fs::set_permissions(directory(scene, 9), Permissions::from_mode(0o2775)).unwrap();
    let list =
        [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 0, 0, 255, 255, 255, 255, 32, 0, 0, 0];
    let list = [&list[..], &[255; 4]].concat();
    let name = "system.posix_acl_default";
    lsetxattr(directory(scene, 10), name, &list, XattrFlags::empty()).unwrap();
    for number in 11..14 {
        fs::set_permissions(directory(scene, number), Permissions::from_mode(0o500)).unwrap();
        utimensat(CWD, directory(scene, number), &times, rustix::fs::AtFlags::empty()).unwrap();
    }
}

fn assert_shown(scene: &Scene) {
    let marks = "trusted.overlay.";
    let (upper, shown) = (view::read(&scene.upper(), marks), merge(&scene.lowers(), marks));
    view::assert_same(&upper, &shown, "merged");
}

/// A layer of which nobody has asked for a file.
fn packed() -> (Scene, Layer) {
    let mut scene = Scene::packing();
    populate(&scene);
    mark(&scene);
    settle();
    let layer = scene.capture();
    assert!(layer.is_packed());
    assert!(!layer.tree_path().exists());
    (scene, layer)
}

#[test]
fn they_are_made_for_who_asks_and_are_what_they_were() {
    if needs_root(WHY) {
        return;
    }
    let (scene, layer) = packed();
    assert!(!bundles(&layer).is_empty());
    assert_eq!(scene.store.list().unwrap(), [layer.name().clone()]);
    assert_eq!(scene.store.known(layer.name()).unwrap(), layer);
    let size = scene.store.measure(layer.name()).unwrap();
    assert!(scene.store.known_chain(layer.name()).unwrap()[0].is_packed());

    let whole = scene.store.layer(layer.name()).unwrap();
    assert!(!whole.is_packed());
    assert_eq!(bundles(&whole), [] as [PathBuf; 0]);
    assert_eq!(entries(whole.path()), ["layer.json", "tree"]);
    assert_shown(&scene);
    let copied_up = whole.tree_path().join("dir7/file1");
    assert_eq!(lgetxattr(&copied_up, "trusted.overlay.origin", &mut [0_u8; 9]), Ok(0));
    assert_eq!(size, forkpoint_backends::layer::measure_tree(&whole.tree_path()).unwrap());
    scene.assert_clean();
}

/// As by one who died at it.
#[test]
fn what_was_half_made_is_made_again() {
    if needs_root(WHY) {
        return;
    }
    let (scene, layer) = packed();
    let there = |number: usize, file: &str| layer.path().join(format!("packed/dir{number}/{file}"));
    fs::write(there(20, "file3"), "something else that is longer").unwrap();
    fs::write(there(21, "file4"), "").unwrap();
    fs::set_permissions(there(21, "file4"), Permissions::from_mode(0o000)).unwrap();
    File::create(there(22, "file5")).unwrap();
    chown(there(22, "file5"), Some(5), Some(5)).unwrap();
    assert_shown(&scene);
    assert_eq!(entries(layer.path()), ["layer.json", "tree"]);
}

/// Where the kernel is told to be strict, root may not open what it may delete.
#[test]
fn what_was_half_made_where_all_may_write_is_made_again() {
    if needs_root(WHY) {
        return;
    }
    let mut scene = Scene::packing();
    populate(&scene);
    let shared = directory(&scene, 20);
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    chown(shared.join("file3"), Some(5), Some(5)).unwrap();
    let layer = scene.capture();
    let half = layer.path().join("packed/dir20/file3");
    fs::write(&half, "half").unwrap();
    let before = fs::metadata(&half).unwrap().ino();
    chown(&half, Some(5), Some(5)).unwrap();
    let open = File::open(&half).unwrap();
    assert_shown(&scene);
    let made = layer.path().join("tree/dir20/file3");
    assert_ne!(fs::metadata(made).unwrap().ino(), before, "it was opened");
    drop(open);
}

/// Bundles are gone before the layer is whole: afterwards nobody would look for them.
#[test]
fn one_who_died_when_all_was_made_leaves_no_bundle() {
    if needs_root(WHY) {
        return;
    }
    let (scene, layer) = packed();
    let kept: Vec<_> = bundles(&layer).iter().map(|path| fs::read(path).unwrap()).collect();
    let whole = scene.store.layer(layer.name()).unwrap();
    fs::rename(whole.tree_path(), whole.path().join("made")).unwrap();
    for (number, bundle) in kept.iter().enumerate() {
        fs::write(whole.path().join(format!("bundle-{number}")), bundle).unwrap();
    }
    assert!(scene.store.known(layer.name()).unwrap().is_packed());
    assert_shown(&scene);
    assert_eq!(entries(layer.path()), ["layer.json", "tree"]);
}

#[test]
fn a_synced_one_is_whole_with_all_that_it_lies_on() {
    if needs_root(WHY) {
        return;
    }
    let (mut scene, below) = packed();
    fs::write(directory(&scene, 1).join("more"), "more").unwrap();
    let layer = scene.capture();
    scene.store.sync(layer.name()).unwrap();
    assert!(scene.store.known(layer.name()).unwrap().record().synced);
    // What is made later would be written to disk later.
    for layer in [layer, below] {
        assert!(!scene.store.known(layer.name()).unwrap().is_packed());
    }
    assert_shown(&scene);
}

/// All bytes of a bundle, one after another.
#[test]
fn a_damaged_bundle_is_told_and_makes_nothing_elsewhere() {
    if needs_root(WHY) {
        return;
    }
    let (scene, layer) = packed();
    let bundle = &bundles(&layer)[0];
    let right = fs::read(bundle).unwrap();
    let outside = entries(scene.directory.path());
    let asked = || scene.store.layer(layer.name());
    for len in [0, 7, 8, 9, 40, right.len() / 2, right.len() - 9, right.len() - 1] {
        fs::write(bundle, &right[..len]).unwrap();
        let err = asked().unwrap_err();
        assert!(matches!(err, LayerError::Damaged { .. }), "cut at {len}: {err}");
    }
    fs::write(bundle, &right).unwrap();
    let file = File::options().write(true).open(bundle).unwrap();
    for at in (0..right.len().min(400)).chain([right.len() - 8]) {
        for byte in [right[at] ^ 1, right[at] ^ 0x80, b'/', 0] {
            file.write_all_at(&[byte], at as u64).unwrap();
            // What tells of content alone may be anything.
            let done = asked();
            assert_eq!(entries(scene.directory.path()), outside);
            if done.is_ok() {
                put_back(&layer, bundle, &right);
                return a_damaged_name_leads_nowhere(&scene, &layer, bundle, &right);
            }
        }
        file.write_all_at(&right[at..=at], at as u64).unwrap();
    }
    panic!("no byte was of content");
}

/// Names that lead elsewhere, in a bundle that is right otherwise.
fn a_damaged_name_leads_nowhere(scene: &Scene, layer: &Layer, bundle: &Path, right: &[u8]) {
    for evil in [&b"../../dir1"[..], b"/tmp", b"nowhere"] {
        let at = right.windows(3).position(|window| window == b"dir").unwrap();
        let len = u32::from_le_bytes(right[at - 4..at].try_into().unwrap()) as usize;
        let mut changed = right[..at - 4].to_vec();
        changed.extend((evil.len() as u32).to_le_bytes());
        changed.extend(evil);
        changed.extend(&right[at + len..]);
        fs::write(bundle, &changed).unwrap();
        scene.store.layer(layer.name()).unwrap_err();
    }
    fs::write(bundle, right).unwrap();
    assert_shown(scene);
}

fn put_back(layer: &Layer, bundle: &Path, right: &[u8]) {
    fs::rename(layer.tree_path(), layer.path().join("packed")).unwrap();
    fs::write(bundle, right).unwrap();
}

#[test]
fn several_who_ask_and_one_who_throws_away_do_not_meet() {
    if needs_root(WHY) {
        return;
    }
    for round in 0..10 {
        let (scene, layer) = packed();
        let other = LayerStore::open(&scene.store_path()).unwrap();
        let store = &scene.store;
        let asked = thread::scope(|scope| {
            let one = scope.spawn(|| store.layer(layer.name()));
            let two = scope.spawn(|| other.chain(layer.name()));
            if round % 2 == 1 {
                store.discard(layer.name().as_str()).unwrap();
            }
            [one.join().unwrap().map(drop), two.join().unwrap().map(drop)]
        });
        for answer in asked {
            match answer {
                Ok(()) => {}
                Err(LayerError::Missing { .. }) if round % 2 == 1 => {}
                Err(err) => panic!("{err}"),
            }
        }
        match round % 2 {
            0 => assert_shown(&scene),
            _ => assert_eq!(store.list().unwrap(), []),
        }
        scene.assert_clean();
    }
}

#[test]
fn a_full_disk_is_told_to_who_asks_and_loses_nothing() {
    if needs_root("a small file system must be mounted") {
        return;
    }
    let scene = Scene::new();
    populate(&scene);
    let disk = mount::tmpfs("2m");
    let store = LayerStore::open(&disk.path().join("store")).unwrap();
    let mut stage = store.stage(name(1), None).unwrap();
    let upper = scene.upper();
    stage.capture(&CaptureSpec { pack: true, ..CaptureSpec::new(&upper) }).unwrap();
    let layer = stage.commit(false).unwrap();
    assert!(layer.is_packed());
    for _ in 0..2 {
        let err = store.layer(layer.name()).unwrap_err();
        let LayerError::Io { source, .. } = &err else { panic!("{err}") };
        assert_eq!(Errno::from_io_error(source), Some(Errno::NOSPC), "{err}");
        assert!(store.known(layer.name()).unwrap().is_packed());
    }
    disk.resize("32m");
    let whole = store.layer(layer.name()).unwrap();
    let made = view::read(&whole.tree_path(), "");
    view::assert_same(&view::read(&upper, ""), &made, "after all");
}
