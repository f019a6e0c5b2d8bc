//! A full disk: a clear error, nothing half-made to be seen, and the space back.

use std::fs;

use forkpoint_backends::layer::{CaptureSpec, LayerError, LayerStore};
use rustix::{fs::statvfs, io::Errno};

use super::{Scene, mount, name, needs_root};

#[test]
fn a_capture_that_finds_no_room_leaves_nothing() {
    if needs_root("a small file system must be mounted") {
        return;
    }
    let scene = Scene::new();
    for number in 0..200 {
        fs::write(scene.upper().join(format!("file{number}")), vec![7; 50_000]).unwrap();
    }
    let disk = mount::tmpfs("4m");
    let store = LayerStore::open(&disk.path().join("store")).unwrap();
    let free = || statvfs(disk.path().join("store")).unwrap().f_bfree;
    let before = free();

    let mut stage = store.stage(name(1), None).unwrap();
    let err = stage.capture(&CaptureSpec::new(&scene.upper())).unwrap_err();
    let LayerError::Io { path, source, .. } = &err else { panic!("{err}") };
    assert_eq!(Errno::from_io_error(source), Some(Errno::NOSPC), "{err}");
    assert!(path.starts_with(scene.upper()), "{err}");
    drop(stage);

    assert_eq!(store.list().unwrap(), []);
    assert!(store.reap().unwrap().leftovers.is_empty());
    assert_eq!(free(), before);
}
