//! How layers come and go.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use forkpoint_backends::layer::{LayerError, LayerName, LayerSize, LayerStore};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use serde_json::{Value, json};

use super::{Scene, entries, mount, name, needs_root};

fn commit(scene: &Scene, number: u128, over: Option<LayerName>) {
    let stage = scene.store.stage(name(number), over).unwrap();
    fs::write(stage.tree_path().join("file"), number.to_string()).unwrap();
    stage.commit(false).unwrap();
}

fn describe(scene: &Scene, number: u128, field: &str, value: Value) {
    let path = scene.store_path().join("layers").join(name(number).as_str()).join("layer.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record[field] = value;
    // It is only ever replaced: by that, a change is seen also within one tick of the clock.
    let new = path.with_extension("new");
    fs::write(&new, record.to_string()).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn nobody_else_may_look_into_a_store() {
    let scene = Scene::new();
    for place in ["layers", "staging", "trash"] {
        let meta = fs::metadata(scene.store_path().join(place)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o7777, 0o700, "{place}");
    }
}

#[test]
fn a_stage_is_seen_when_it_is_committed_and_not_before() {
    let scene = Scene::new();
    let stage = scene.store.stage(name(1), None).unwrap();
    fs::write(stage.tree_path().join("file"), "text").unwrap();
    assert_eq!(scene.store.list().unwrap(), []);
    assert!(matches!(scene.store.layer(&name(1)), Err(LayerError::Missing { .. })));
    let layer = stage.commit(true).unwrap();
    assert_eq!(scene.store.list().unwrap(), [name(1)]);
    assert_eq!(scene.store.layer(&name(1)).unwrap(), layer);
    assert!(layer.record().synced);
    assert_eq!(entries(layer.path()), ["layer.json", "tree"]);
    assert_eq!(entries(&layer.tree_path()), ["file"]);
    scene.assert_clean();
}

#[test]
fn a_dropped_stage_leaves_nothing() {
    let scene = Scene::new();
    let stage = scene.store.stage(name(1), None).unwrap();
    fs::write(stage.tree_path().join("file"), "text").unwrap();
    drop(stage);
    assert_eq!(scene.store.list().unwrap(), []);
    scene.assert_clean();
}

#[test]
fn a_name_is_used_once() {
    let scene = Scene::new();
    let late = scene.store.stage(name(1), None).unwrap();
    commit(&scene, 1, None);
    assert!(matches!(late.commit(false), Err(LayerError::Exists { .. })));
    assert!(matches!(scene.store.stage(name(1), None), Err(LayerError::Exists { .. })));
    let upper = scene.upper();
    let taken = scene.store.commit_upper(name(1), None, &upper, false);
    assert!(matches!(taken, Err(LayerError::Exists { .. })));
    assert!(upper.is_dir());
    let layer = scene.store.layer(&name(1)).unwrap();
    assert_eq!(fs::read_to_string(layer.tree_path().join("file")).unwrap(), "1");
    scene.assert_clean();
}

#[test]
fn only_what_is_ours_is_discarded_and_what_is_gone_is_no_failure() {
    let scene = Scene::new();
    commit(&scene, 1, None);
    for foreign in ["", "..", "../layers", "lyr", "sbx1", "lyrsnp/../../x"] {
        let refused = scene.store.discard(foreign);
        assert!(matches!(refused, Err(LayerError::Foreign { .. })), "{foreign}");
    }
    assert_eq!(scene.store.list().unwrap(), [name(1)]);
    scene.store.discard(name(1).as_str()).unwrap();
    assert_eq!(scene.store.list().unwrap(), []);
    scene.store.discard(name(1).as_str()).unwrap();
    scene.assert_clean();
}

#[test]
fn a_chain_goes_from_the_top_to_the_bottom() {
    let scene = Scene::new();
    commit(&scene, 1, None);
    commit(&scene, 2, Some(name(1)));
    commit(&scene, 3, Some(name(2)));
    let chain = scene.store.chain(&name(3)).unwrap();
    assert_eq!(
        chain.iter().map(|layer| layer.name().clone()).collect::<Vec<_>>(),
        [3, 2, 1].map(name)
    );
    describe(&scene, 1, "over", json!(name(3)));
    assert_damaged(&scene, 3, "twice");
    describe(&scene, 1, "over", json!(name(4)));
    assert_damaged(&scene, 3, name(4).as_str());
    assert!(matches!(scene.store.chain(&name(9)), Err(LayerError::Missing { .. })));
}

fn assert_damaged(scene: &Scene, top: u128, reason: &str) {
    let err = scene.store.chain(&name(top)).unwrap_err();
    let LayerError::Damaged { name: damaged, .. } = &err else { panic!("{err}") };
    assert_eq!(damaged, name(top).as_str());
    assert!(err.to_string().contains(reason), "{err}");
}

/// A store remembers what layers say of themselves, and not a moment longer than they say it.
#[test]
fn a_layer_that_was_seen_before_is_what_it_is_now() {
    let scene = Scene::new();
    commit(&scene, 1, None);
    commit(&scene, 2, Some(name(1)));
    commit(&scene, 3, Some(name(2)));
    let seen = scene.store.chain(&name(3)).unwrap();
    assert_eq!(scene.store.chain(&name(3)).unwrap(), seen);
    describe(&scene, 2, "over", Value::Null);
    assert_eq!(scene.store.chain(&name(3)).unwrap().len(), 2);
    describe(&scene, 2, "over", json!(name(1)));
    assert_eq!(scene.store.chain(&name(3)).unwrap(), seen);
    // By somebody else, who has not told this one.
    LayerStore::open(&scene.store_path()).unwrap().discard(name(1).as_str()).unwrap();
    assert!(matches!(scene.store.layer(&name(1)), Err(LayerError::Missing { .. })));
    assert_damaged(&scene, 3, "there is no layer");
    commit(&scene, 1, None);
    assert_eq!(scene.store.chain(&name(3)).unwrap(), seen);
    describe(&scene, 1, "format", json!(2));
    assert!(matches!(scene.store.layer(&name(1)), Err(LayerError::TooNew { .. })));
}

#[test]
fn a_chain_has_an_end() {
    let scene = Scene::new();
    commit(&scene, 0, None);
    for number in 1..=500 {
        commit(&scene, number, Some(name(number - 1)));
    }
    assert_eq!(scene.store.chain(&name(499)).unwrap().len(), 500);
    assert_damaged(&scene, 500, "500");
}

#[test]
fn a_layer_that_is_not_understood_is_not_used() {
    let scene = Scene::new();
    commit(&scene, 1, None);
    describe(&scene, 1, "format", json!(2));
    assert!(matches!(scene.store.layer(&name(1)), Err(LayerError::TooNew { format: 2, .. })));
    describe(&scene, 1, "format", json!(1));
    describe(&scene, 1, "name", json!(name(2)));
    assert!(matches!(scene.store.layer(&name(1)), Err(LayerError::Damaged { .. })));
    fs::write(scene.store_path().join("layers").join(name(1).as_str()).join("layer.json"), "{")
        .unwrap();
    assert!(matches!(scene.store.layer(&name(1)), Err(LayerError::Damaged { .. })));
}

#[test]
fn an_upper_directory_becomes_a_layer_as_it_is() {
    let scene = Scene::new();
    fs::write(scene.upper().join("a"), "text").unwrap();
    fs::hard_link(scene.upper().join("a"), scene.upper().join("b")).unwrap();
    fs::create_dir(scene.upper().join("dir")).unwrap();
    let layer = scene.store.commit_upper(name(1), None, &scene.upper(), true).unwrap();
    assert!(!scene.upper().exists());
    assert_eq!(entries(&layer.tree_path()), ["a", "b", "dir"]);
    assert_eq!(layer.record().size, None);
    let size = scene.store.measure(&name(1)).unwrap();
    assert_eq!(size, LayerSize { bytes: 4096, files: 2 });
    assert_eq!(scene.store.layer(&name(1)).unwrap().record().size, Some(size));
    scene.assert_clean();
}

#[test]
fn an_upper_directory_elsewhere_stays_where_it_is() {
    if needs_root("another file system must be mounted") {
        return;
    }
    let scene = Scene::new();
    let other = mount::tmpfs("1m");
    let upper = other.path().join("upper");
    fs::create_dir(&upper).unwrap();
    let refused = scene.store.commit_upper(name(1), None, &upper, false);
    assert!(matches!(refused, Err(LayerError::OtherFileSystem { .. })), "{refused:?}");
    assert!(upper.is_dir());
    assert_eq!(scene.store.list().unwrap(), []);
    scene.assert_clean();
}

#[test]
fn a_layer_can_be_synced_later() {
    let scene = Scene::new();
    commit(&scene, 1, None);
    assert!(!scene.store.layer(&name(1)).unwrap().record().synced);
    scene.store.sync(&name(1)).unwrap();
    assert!(scene.store.layer(&name(1)).unwrap().record().synced);
}

#[test]
fn a_sweep_takes_from_the_dead_and_not_from_the_living() {
    let scene = Scene::new();
    let living = scene.store.stage(name(1), None).unwrap();
    let staging = scene.store_path().join("staging");
    fs::create_dir_all(staging.join("stage-dead/tree/deep")).unwrap();
    fs::write(staging.join("stage-dead/tree/deep/file"), "text").unwrap();
    fs::create_dir(scene.store_path().join("trash/gone-dead")).unwrap();
    let other = LayerStore::open(&scene.store_path()).unwrap();
    other.reap().unwrap();
    assert_eq!(entries(&staging).len(), 1);
    assert_eq!(entries(&scene.store_path().join("trash")).len(), 0);
    living.commit(false).unwrap();
    scene.assert_clean();
}

#[test]
fn a_layer_whose_upper_never_came_is_none() {
    let scene = Scene::new();
    commit(&scene, 1, None);
    let layers = scene.store_path().join("layers");
    let json = layers.join(name(1).as_str()).join("layer.json");
    let text = fs::read_to_string(&json).unwrap();
    let text = text.replace(name(1).as_str(), name(2).as_str());
    for place in [layers.join(name(2).as_str()), scene.store_path().join("staging/stage-dead")] {
        fs::create_dir(&place).unwrap();
        fs::write(place.join("layer.json"), &text).unwrap();
    }
    assert_eq!(scene.store.list().unwrap(), [name(1)]);
    assert!(matches!(scene.store.layer(&name(2)), Err(LayerError::Missing { .. })));
    assert_eq!(scene.store.sweep().unwrap().stages, 1);
    assert_eq!(entries(&layers), [name(1).to_string()]);
    scene.assert_clean();
}

#[test]
fn what_may_not_be_opened_can_be_discarded() {
    let scene = Scene::new();
    let stage = scene.store.stage(name(1), None).unwrap();
    fs::create_dir_all(stage.tree_path().join("a/b")).unwrap();
    fs::write(stage.tree_path().join("a/b/file"), "text").unwrap();
    for (path, mode) in [("a/b", 0o500), ("a", 0)] {
        set_mode(&stage.tree_path().join(path), mode);
    }
    stage.commit(false).unwrap();
    scene.store.discard(name(1).as_str()).unwrap();
    scene.assert_clean();
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_cannot_be_deleted_is_reported_and_the_rest_goes() {
    if needs_root("only root makes a file immutable") {
        return;
    }
    let scene = Scene::new();
    let stage = scene.store.stage(name(1), None).unwrap();
    fs::create_dir(stage.tree_path().join("dir")).unwrap();
    let path = stage.tree_path().join("dir/stuck");
    fs::write(&path, "text").unwrap();
    fs::write(stage.tree_path().join("other"), "text").unwrap();
    let file = fs::File::open(&path).unwrap();
    let flags = ioctl_getflags(&file).unwrap();
    ioctl_setflags(&file, flags | IFlags::IMMUTABLE).unwrap();
    let staged = stage.commit(false);
    scene.store.discard(name(1).as_str()).unwrap();
    let stats = scene.store.reap();
    ioctl_setflags(&file, flags).unwrap();
    staged.unwrap();
    let stats = stats.unwrap();
    assert!(stats.leftovers[0].path.ends_with("tree/dir/stuck"), "{stats:?}");
    scene.assert_clean();
}

#[test]
fn what_goes_later_goes() {
    let scene = Scene::new();
    let place = scene.store_path().join("thrown");
    fs::create_dir_all(place.join("deep")).unwrap();
    scene.store.throw_away_later(&place).unwrap();
    assert!(!place.exists());
    while !entries(&scene.store_path().join("trash")).is_empty() {
        std::thread::yield_now();
    }
}
