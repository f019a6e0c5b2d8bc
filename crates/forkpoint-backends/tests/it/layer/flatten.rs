//! Flattening, case by case. That the result shows the same is checked in `property`.

use std::{fs, os::unix::fs::MetadataExt as _};

use forkpoint_backends::layer::{Below, Layer};

use super::{Scene, entries, merge::is_whiteout, mount, name, needs_root, view};

fn flatten(scene: &Scene, below: Below) -> Layer {
    let mut stage = scene.store.stage(name(100), None).unwrap();
    stage.flatten(&scene.chain(), below).unwrap();
    stage.commit(false).unwrap()
}

fn two_layers() -> Scene {
    let mut scene = Scene::new();
    fs::create_dir(scene.upper().join("dir")).unwrap();
    for file in ["dir/gone", "dir/kept", "dir/linked"] {
        fs::write(scene.upper().join(file), file).unwrap();
    }
    fs::hard_link(scene.upper().join("dir/linked"), scene.upper().join("link")).unwrap();
    scene.capture();
    fs::remove_file(scene.upper().join("dir/gone")).unwrap();
    fs::write(scene.upper().join("dir/new"), "new").unwrap();
    scene.capture();
    scene
}

#[test]
fn over_nothing_there_is_nothing_to_hide() {
    let scene = two_layers();
    let flat = flatten(&scene, Below::Nothing);
    assert_eq!(entries(&flat.tree_path().join("dir")), ["kept", "linked", "new"]);
    let expected = view::read(&scene.upper(), "");
    view::assert_same(&expected, &view::read(&flat.tree_path(), ""), "flat");
    assert_eq!(flat.record().size.unwrap().files, 4);
    scene.assert_clean();
}

#[test]
fn over_something_the_hidden_stays_hidden() {
    let scene = two_layers();
    let flat = flatten(&scene, Below::Something);
    let gone = fs::symlink_metadata(flat.tree_path().join("dir/gone")).unwrap();
    assert!(is_whiteout(&gone));
}

#[test]
fn content_is_shared_with_the_layers() {
    let scene = two_layers();
    let flat = flatten(&scene, Below::Nothing);
    let inode = |path| fs::metadata(path).unwrap().ino();
    let flat_inode = |file: &str| inode(flat.tree_path().join(file));
    let layers = scene.chain().into_iter().map(|layer| layer.tree_path().join("dir/linked"));
    let shown = layers.into_iter().find(|path| path.exists()).unwrap();
    assert_eq!(flat_inode("dir/linked"), inode(shown));
    assert_eq!(flat_inode("dir/linked"), flat_inode("link"));
}

#[test]
fn what_cannot_be_linked_is_copied() {
    if needs_root("another file system must be mounted") {
        return;
    }
    let scene = two_layers();
    let other = mount::tmpfs("4m");
    let store = forkpoint_backends::layer::LayerStore::open(&other.path().join("store")).unwrap();
    let mut stage = store.stage(name(100), None).unwrap();
    stage.flatten(&scene.chain(), Below::Nothing).unwrap();
    let flat = stage.commit(false).unwrap();
    let expected = view::read(&scene.upper(), "");
    view::assert_same(&expected, &view::read(&flat.tree_path(), ""), "flat elsewhere");
    assert_eq!(entries(flat.path()), ["layer.json", "tree"]);
}
