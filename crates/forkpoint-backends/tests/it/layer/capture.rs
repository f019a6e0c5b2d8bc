//! What goes into a layer, case by case. What the kernel then shows is checked in `property`.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use forkpoint_backends::layer::{CaptureSpec, Layer, LayerError, Manifest, Marks};
use rustix::fs::{CWD, Mode, XattrFlags, lsetxattr, mkdirat, openat};

use super::{
    Scene, entries,
    merge::{is_opaque, is_whiteout, merge},
    name, needs_root, settle, view,
};

fn marks(scene: &Scene) -> &'static str {
    match scene.store.marks() {
        Marks::Trusted => "trusted.overlay.",
        Marks::User | Marks::Plain => "user.overlay.",
    }
}

fn holds_whiteout(layer: &Layer, path: &str) -> bool {
    fs::symlink_metadata(layer.tree_path().join(path)).is_ok_and(|meta| is_whiteout(&meta))
}

fn write(scene: &Scene, path: &str, text: &str) {
    let path = scene.upper().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn capture_settled(scene: &mut Scene) -> Layer {
    settle();
    scene.capture()
}

#[test]
fn nothing_changed_is_nothing_captured() {
    let mut scene = Scene::new();
    write(&scene, "dir/file", "text");
    let first = capture_settled(&mut scene);
    assert_eq!(first.record().size.unwrap().files, 1);
    assert_eq!(first.record().size.unwrap().bytes, 4096);
    let second = scene.capture();
    assert_eq!(entries(&second.tree_path()), [] as [String; 0]);
    assert_eq!(second.record().size.unwrap().files, 0);
}

#[test]
fn only_what_changed_is_captured() {
    let mut scene = Scene::new();
    for path in ["a/1", "a/2", "b/1"] {
        write(&scene, path, "old");
    }
    capture_settled(&mut scene);
    write(&scene, "a/2", "new");
    let layer = scene.capture();
    assert_eq!(entries(&layer.tree_path()), ["a"]);
    assert_eq!(entries(&layer.tree_path().join("a")), ["2"]);
}

#[test]
fn what_was_deleted_is_hidden_though_the_upper_has_no_trace_of_it() {
    let mut scene = Scene::new();
    write(&scene, "a/file", "text");
    write(&scene, "b/file", "text");
    capture_settled(&mut scene);
    fs::remove_file(scene.upper().join("a/file")).unwrap();
    fs::remove_dir_all(scene.upper().join("b")).unwrap();
    let layer = scene.capture();
    assert!(holds_whiteout(&layer, "a/file"));
    assert!(holds_whiteout(&layer, "b"));
    let third = capture_settled(&mut scene);
    assert_eq!(third.record().size.unwrap().files, 0);
}

#[test]
fn a_replaced_directory_hides_the_old_one() {
    let mut scene = Scene::new();
    write(&scene, "dir/old", "text");
    write(&scene, "other/new", "text");
    capture_settled(&mut scene);
    fs::remove_dir_all(scene.upper().join("dir")).unwrap();
    fs::rename(scene.upper().join("other"), scene.upper().join("dir")).unwrap();
    let layer = scene.capture();
    assert!(is_opaque(&layer.tree_path().join("dir"), marks(&scene)));
    assert_eq!(entries(&layer.tree_path().join("dir")), ["new"]);
    assert!(holds_whiteout(&layer, "other"));
}

#[test]
fn files_and_directories_take_each_others_place() {
    let mut scene = Scene::new();
    write(&scene, "dir/file", "text");
    write(&scene, "file", "text");
    capture_settled(&mut scene);
    fs::remove_dir_all(scene.upper().join("dir")).unwrap();
    write(&scene, "dir", "now a file");
    fs::remove_file(scene.upper().join("file")).unwrap();
    write(&scene, "file/below", "text");
    let layer = scene.capture();
    assert!(layer.tree_path().join("dir").is_file());
    assert!(is_opaque(&layer.tree_path().join("file"), marks(&scene)));
    view::assert_same(
        &view::read(&scene.upper(), ""),
        &merge(&scene.lowers(), marks(&scene)),
        "merged",
    );
}

#[test]
fn names_of_one_file_stay_names_of_one_file() {
    let mut scene = Scene::new();
    write(&scene, "one/file", "text");
    fs::hard_link(scene.upper().join("one/file"), scene.upper().join("other")).unwrap();
    capture_settled(&mut scene);
    // Leaves the inode as it was.
    fs::rename(scene.upper().join("one"), scene.upper().join("two")).unwrap();
    let layer = scene.capture();
    let inode = |path: &str| fs::metadata(layer.tree_path().join(path)).unwrap().ino();
    assert_eq!(inode("two/file"), inode("other"));
    assert_eq!(layer.record().size.unwrap().bytes, 4096);
    assert_eq!(fs::metadata(layer.tree_path().join("other")).unwrap().nlink(), 2);
}

#[test]
fn holes_cost_nothing_and_large_files_are_whole() {
    let mut scene = Scene::new();
    let file = File::create(scene.upper().join("sparse")).unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_all_at(b"middle", 1 << 29).unwrap();
    let large: Vec<u8> = (0..3_000_001u32).map(|at| (at % 251) as u8).collect();
    fs::write(scene.upper().join("large"), &large).unwrap();
    let layer = scene.capture();
    let meta = fs::metadata(layer.tree_path().join("sparse")).unwrap();
    assert_eq!(meta.len(), 1 << 30);
    assert!(meta.blocks() * 512 < 1 << 20);
    let mut middle = [0; 8];
    File::open(layer.tree_path().join("sparse"))
        .unwrap()
        .read_exact_at(&mut middle, 1 << 29)
        .unwrap();
    assert_eq!(&middle, b"middle\0\0");
    assert!(fs::read(layer.tree_path().join("large")).unwrap() == large);
}

#[test]
fn what_is_mapped_counts_as_changed() {
    let mut scene = Scene::new();
    write(&scene, "dir/mapped", "text");
    write(&scene, "dir/other", "text");
    settle();
    let (upper, mapped) = (scene.upper(), [PathBuf::from("/dir/mapped"), "/none".into()]);
    let mut stage = scene.store.stage(name(1), None).unwrap();
    let spec = CaptureSpec { mapped: &mapped, ..CaptureSpec::new(&upper) };
    scene.manifest = Some(stage.capture(&spec).unwrap());
    scene.captured = 1;
    stage.commit(false).unwrap();
    let layer = scene.capture();
    assert_eq!(entries(&layer.tree_path().join("dir")), ["mapped"]);
}

#[test]
fn a_directory_that_is_kept_elsewhere_is_refused() {
    let scene = Scene::new();
    fs::create_dir(scene.upper().join("dir")).unwrap();
    let attribute = format!("{}redirect", marks(&scene));
    lsetxattr(scene.upper().join("dir"), attribute, b"/x", XattrFlags::empty()).unwrap();
    let mut stage = scene.store.stage(name(1), None).unwrap();
    let refused = stage.capture(&CaptureSpec::new(&scene.upper()));
    assert!(matches!(refused, Err(LayerError::Unsupported { .. })), "{refused:?}");
    drop(stage);
    scene.assert_clean();
}

#[test]
fn an_unreadable_file_is_named() {
    if super::is_root() {
        return; // Root reads everything: there is nothing to refuse.
    }
    let scene = Scene::new();
    write(&scene, "secret", "text");
    rustix::fs::chmod(scene.upper().join("secret"), Mode::empty()).unwrap();
    let mut stage = scene.store.stage(name(1), None).unwrap();
    let err = stage.capture(&CaptureSpec::new(&scene.upper())).unwrap_err();
    assert!(err.to_string().ends_with("upper/secret`"), "{err}");
}

#[test]
fn a_tree_deeper_than_any_path_is_captured_flattened_and_deleted() {
    const DEPTH: usize = 2500;
    let mut scene = Scene::new();
    let name = "d".repeat(100);
    deepen(&scene.upper(), &name, DEPTH);
    let first = scene.capture();
    assert_eq!(first.record().size.unwrap().files, 1);
    deepen(&scene.upper(), "side", 1500);
    scene.capture();
    let mut flat = scene.store.stage(super::name(50), None).unwrap();
    flat.flatten(&scene.chain(), forkpoint_backends::layer::Below::Nothing).unwrap();
    let flat = flat.commit(false).unwrap();
    assert_eq!(flat.record().size.unwrap().files, 2);
    scene.store.commit_upper(super::name(51), None, &scene.upper(), false).unwrap();
    assert_eq!(scene.store.measure(&super::name(51)).unwrap().files, 2);
    // The library's own way to delete a directory would run out of descriptors.
    for layer in scene.store.list().unwrap() {
        scene.store.discard(layer.as_str()).unwrap();
    }
    scene.assert_clean();
}

fn deepen(root: &Path, name: &str, depth: usize) {
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let mut at = openat(CWD, root, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        mkdirat(&at, name, Mode::RWXU).unwrap();
        at = openat(&at, name, flags, Mode::empty()).unwrap();
    }
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    openat(&at, "bottom", flags, Mode::RUSR).unwrap();
}

#[test]
fn a_damaged_manifest_is_refused() {
    let mut scene = Scene::new();
    write(&scene, "dir/file", "text");
    scene.capture();
    let manifest = scene.manifest.take().unwrap();
    assert_eq!(manifest.entry_count(), 2);
    let bytes = manifest.encode();
    for len in 0..bytes.len() {
        assert!(Manifest::decode(&bytes[..len]).is_err(), "{len}");
    }
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        assert!(Manifest::decode(&bytes).is_err(), "{at}");
    }
    let path = scene.path("manifest");
    assert_eq!(Manifest::load(&path).unwrap(), None);
    manifest.save(&path).unwrap();
    assert_eq!(Manifest::load(&path).unwrap(), Some(manifest));
}

#[test]
fn what_somebody_inside_calls_opaque_is_not() {
    if needs_root("the other kind of marks is for the unprivileged") {
        return;
    }
    let mut scene = Scene::new();
    fs::create_dir(scene.upper().join("dir")).unwrap();
    lsetxattr(scene.upper().join("dir"), "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
    let layer = scene.capture();
    let dir = layer.tree_path().join("dir");
    assert!(!is_opaque(&dir, "trusted.overlay."));
    assert!(is_opaque(&dir, "user.overlay."));
}
