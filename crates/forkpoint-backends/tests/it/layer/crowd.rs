//! Trees with so many files that several threads copy them.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
};

use forkpoint_backends::layer::{CaptureSpec, LayerError, Marks, describe_upper};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, chmod, lsetxattr, mkdirat, mknodat};

use super::{Scene, is_root, merge::merge, name, settle, view};

const DIRECTORIES: usize = 40;
const FILES: usize = 25;

pub(super) fn directory(scene: &Scene, number: usize) -> PathBuf {
    scene.upper().join(format!("dir{number}"))
}

pub(super) fn populate(scene: &Scene) {
    for number in 0..DIRECTORIES {
        let directory = directory(scene, number);
        fs::create_dir(&directory).unwrap();
        for file in 0..FILES {
            fs::write(directory.join(format!("file{file}")), format!("{number} {file}")).unwrap();
        }
    }
}

/// Files of which each has a name in every second directory.
fn link_across(scene: &Scene) {
    for file in 0..FILES {
        let first = directory(scene, file % 2).join(format!("file{file}"));
        for number in (file % 2 + 2..DIRECTORIES).step_by(2) {
            fs::hard_link(&first, directory(scene, number).join(format!("link{file}"))).unwrap();
        }
    }
}

/// Deeper than descriptors are kept, with files on each level.
fn deepen(mut path: PathBuf) {
    for depth in 0..100 {
        path.push("d");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("one"), format!("{depth}")).unwrap();
        fs::write(path.join("two"), format!("{depth}")).unwrap();
    }
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

fn assert_layers_show_the_upper(scene: &Scene) {
    let marks = match scene.store.marks() {
        Marks::Trusted => "trusted.overlay.",
        Marks::User | Marks::Plain => "user.overlay.",
    };
    view::assert_same(&view::read(&scene.upper(), ""), &merge(&scene.lowers(), marks), "merged");
}

#[test]
fn many_files_keep_their_links_and_attributes() {
    keep_their_links_and_attributes(Scene::new());
}

#[test]
fn many_files_that_are_made_later_keep_theirs() {
    keep_their_links_and_attributes(Scene::packing());
}

fn keep_their_links_and_attributes(mut scene: Scene) {
    populate(&scene);
    link_across(&scene);
    deepen(scene.upper());
    let large: Vec<u8> = (0..3_000_001u32).map(|at| (at % 251) as u8).collect();
    for number in 0..3 {
        fs::write(directory(&scene, number).join("large"), &large).unwrap();
    }
    symlink("nowhere", directory(&scene, 1).join("symlink")).unwrap();
    set_attribute(&directory(&scene, 2).join("file2"), "user.small", b"value");
    set_attribute(&directory(&scene, 2).join("file3"), "user.large", &[7; 2000]);
    for number in 0..50 {
        let attribute = format!("user.a-rather-long-name-{number}");
        set_attribute(&directory(&scene, 2).join("file4"), &attribute, b"");
    }
    set_attribute(&directory(&scene, 3), "user.of-directory", b"value");
    chmod(directory(&scene, 4), Mode::RUSR | Mode::XUSR).unwrap();
    chmod(directory(&scene, 5).join("file5"), Mode::from_raw_mode(0o4711)).unwrap();
    settle();
    let layer = scene.capture();
    assert_eq!(layer.is_packed(), scene.pack);
    assert_layers_show_the_upper(&scene);
    let linked = FILES * (DIRECTORIES / 2 - 1);
    let size = layer.record().size.unwrap();
    assert_eq!(size.files as usize, DIRECTORIES * FILES + linked + 2 * 100 + 3 + 1);
    assert_eq!(size, scene.store.measure(layer.name()).unwrap());
    let links = fs::metadata(layer.tree_path().join("dir0/file0")).unwrap().nlink();
    assert_eq!(links as usize, DIRECTORIES / 2);

    for number in (0..DIRECTORIES).filter(|number| *number != 4) {
        fs::remove_file(directory(&scene, number).join("file7")).unwrap();
        fs::write(directory(&scene, number).join("file8"), "new").unwrap();
        fs::write(directory(&scene, number).join("file9"), "new").unwrap();
    }
    scene.capture();
    assert_layers_show_the_upper(&scene);
    // Whoever is not root could not delete what is in there.
    chmod(directory(&scene, 4), Mode::RWXU).unwrap();
    for layer in scene.store.list().unwrap() {
        scene.store.discard(layer.as_str()).unwrap();
    }
    scene.assert_clean();
}

/// Whoever copies is who looks: the next capture must be able to rely on it.
#[test]
fn what_is_copied_at_first_sight_is_told_as_if_it_had_been_looked_at_before() {
    let scene = Scene::new();
    populate(&scene);
    link_across(&scene);
    deepen(scene.upper());
    symlink("nowhere", directory(&scene, 1).join("symlink")).unwrap();
    let fifo = directory(&scene, 2).join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
    if is_root() {
        let whiteout = directory(&scene, 3).join("whiteout");
        mknodat(CWD, &whiteout, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        mkdirat(CWD, directory(&scene, 3).join("opaque"), Mode::RWXU).unwrap();
        let opaque = directory(&scene, 3).join("opaque");
        set_attribute(&opaque, "trusted.overlay.opaque", b"y");
    }
    settle();
    let upper = scene.upper();
    let spec = CaptureSpec::new(&upper);
    let looked = describe_upper(&spec, scene.store.marks()).unwrap();
    let mut stage = scene.store.stage(name(1), None).unwrap();
    let captured = stage.capture(&spec).unwrap();
    assert_eq!(captured, looked.manifest);
    drop(stage);
    scene.assert_clean();
}

#[test]
fn one_bad_file_among_many_is_named_and_leaves_nothing() {
    let scene = Scene::new();
    populate(&scene);
    let bad = directory(&scene, DIRECTORIES / 2).join("file3");
    let attribute = match scene.store.marks() {
        Marks::Trusted => "trusted.overlay.metacopy",
        Marks::User | Marks::Plain => "user.overlay.metacopy",
    };
    set_attribute(&bad, attribute, b"");
    let mut stage = scene.store.stage(name(1), None).unwrap();
    let refused = stage.capture(&CaptureSpec::new(&scene.upper())).unwrap_err();
    let LayerError::Unsupported { path, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*path, bad);
    drop(stage);
    scene.assert_clean();
}
