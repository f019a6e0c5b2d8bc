//! Trees that somebody made to lead us astray.

use std::{
    fs,
    os::unix::fs::symlink,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use forkpoint_backends::layer::{CaptureSpec, LayerError};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};

use super::{Scene, entries, name, needs_root, view};

#[test]
fn links_are_kept_and_not_followed() {
    let mut scene = Scene::new();
    let outside = scene.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    symlink("/", scene.upper().join("root")).unwrap();
    symlink(&outside, scene.upper().join("out")).unwrap();
    symlink("out", scene.upper().join("twice")).unwrap();
    fs::create_dir(scene.upper().join("dir")).unwrap();
    fs::write(scene.upper().join("dir/secret"), "plain").unwrap();
    let layer = scene.capture();
    view::assert_same(
        &view::read(&scene.upper(), ""),
        &view::read(&layer.tree_path(), ""),
        "layer",
    );

    fs::remove_dir_all(scene.upper().join("dir")).unwrap();
    symlink(&outside, scene.upper().join("dir")).unwrap();
    let layer = scene.capture();
    assert_eq!(fs::read_link(layer.tree_path().join("dir")).unwrap(), outside);
    assert_eq!(entries(&outside), ["secret"]);
}

#[test]
fn an_upper_that_is_a_link_is_refused() {
    let scene = Scene::new();
    symlink(scene.upper(), scene.path("link")).unwrap();
    let mut stage = scene.store.stage(name(1), None).unwrap();
    let link = scene.path("link");
    assert!(matches!(stage.capture(&CaptureSpec::new(&link)), Err(LayerError::Io { .. })));
    let moved = scene.store.commit_upper(name(2), None, &link, false);
    assert!(matches!(moved, Err(LayerError::Io { .. })));
    assert_eq!(scene.store.list().unwrap(), []);
}

#[test]
fn nobody_waits_for_a_fifo_or_opens_a_device() {
    let mut scene = Scene::new();
    mknodat(CWD, scene.upper().join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    mknodat(CWD, scene.upper().join("socket"), FileType::Socket, Mode::RUSR, 0).unwrap();
    if !needs_root("only root makes a device node") {
        let device = scene.upper().join("device");
        let tty = rustix::fs::makedev(5, 0);
        mknodat(CWD, device, FileType::CharacterDevice, Mode::RUSR, tty).unwrap();
    }
    let layer = scene.capture();
    view::assert_same(
        &view::read(&scene.upper(), ""),
        &view::read(&layer.tree_path(), ""),
        "layer",
    );
}

/// Against the rules, somebody swaps a directory for a link while it is captured.
#[test]
fn a_directory_that_becomes_a_link_leads_nowhere() {
    let scene = Scene::new();
    let (dir, link) = (scene.upper().join("dir"), scene.path("link"));
    fs::create_dir(scene.path("outside")).unwrap();
    fs::write(scene.path("outside").join("file"), "secret").unwrap();
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), "plain!").unwrap();
    symlink(scene.path("outside"), &link).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        for number in 0..300 {
            let mut stage = scene.store.stage(name(number), None).unwrap();
            // It may fail; it may not succeed with the wrong file.
            let _ = stage.capture(&CaptureSpec::new(&scene.upper()));
            let tree = stage.tree_path().join("dir");
            let is_dir = fs::symlink_metadata(&tree).is_ok_and(|meta| meta.is_dir());
            if is_dir && let Ok(text) = fs::read_to_string(tree.join("file")) {
                assert_ne!(text, "secret");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    scene.assert_clean();
}
