//! Volumes that go back in place, and those who are killed while they do it.

use std::{
    env, fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use forkpoint_backends::{
    driver::docker::volume::{VolumeLayer, VolumeStore},
    layer::LayerError,
};
use proptest::prelude::*;
use rustix::fs::{XattrFlags, lsetxattr};

use super::volumes::{Ground, inodes};
use crate::layer::{
    property::{Step, apply, steps},
    settle,
    view::{self, View},
};

/// Tells a child what to do to which store.
const CHILD: &str = "FORKPOINT_TEST_EXCHANGE";

fn assert_is(path: &Path, expected: &View, what: &str) {
    view::assert_same(expected, &view::read(path, ""), what);
}

/// A volume that was kept and is something else now.
fn changed(ground: &mut Ground, files: usize) -> (VolumeLayer, View, View) {
    let volume = ground.volume("data");
    for number in 0..files {
        fs::write(volume.join(format!("was{number}")), "then").unwrap();
    }
    fs::create_dir(volume.join("dir")).unwrap();
    fs::write(volume.join("dir/file"), "then").unwrap();
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o2750)).unwrap();
    lsetxattr(&volume, "user.then", b"1", XattrFlags::empty()).unwrap();
    settle();
    let layer = ground.capture("data");
    let then = view::read(&volume, "");
    for number in 0..files {
        fs::rename(volume.join(format!("was{number}")), volume.join(format!("is{number}")))
            .unwrap();
    }
    fs::write(volume.join("dir/file"), "now").unwrap();
    fs::write(volume.join("is0"), "now").unwrap();
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o777)).unwrap();
    lsetxattr(&volume, "user.now", b"2", XattrFlags::empty()).unwrap();
    (layer, then, view::read(&volume, ""))
}

#[test]
fn a_volume_goes_back_in_place_and_forth() {
    let mut ground = Ground::new();
    let (layer, then, now) = changed(&mut ground, 3);
    let volume = ground.volume("data");
    let inode = fs::metadata(&volume).unwrap().ino();

    ground.store.exchange(&layer.name, "data", &volume).unwrap();
    let open = ground.store.exchanges().unwrap();
    assert_eq!((open.len(), &open[0].layer, open[0].volume.as_str()), (1, &layer.name, "data"));
    ground.store.undo("data").unwrap();
    assert_is(&volume, &now, "undone");
    ground.store.undo("data").unwrap();
    assert_eq!(ground.store.exchanges().unwrap(), []);

    ground.store.exchange(&layer.name, "data", &volume).unwrap();
    assert!(ground.store.finish("data").unwrap());
    assert!(ground.store.finish("data").unwrap());
    assert_is(&volume, &then, "finished");
    assert_eq!(fs::metadata(&volume).unwrap().ino(), inode, "others may have it mounted");
    assert!(inodes(&volume).is_disjoint(&inodes(&ground.tree(&layer.name))));
    // It is what the layer is, and known to be.
    assert_eq!(ground.capture("data").own.files, 0);
    ground.assert_clean();
}

#[test]
fn while_an_exchange_is_open_there_is_neither_a_capture_nor_another() {
    let mut ground = Ground::new();
    let (layer, _, now) = changed(&mut ground, 3);
    let volume = ground.volume("data");
    ground.store.exchange(&layer.name, "data", &volume).unwrap();
    let again = ground.store.exchange(&layer.name, "data", &volume).unwrap_err();
    assert!(matches!(&again, LayerError::Unsettled { .. }), "{again}");
    ground.store.undo("data").unwrap();
    assert_is(&volume, &now, "undone");
}

#[test]
fn an_exchange_with_what_is_not_there_changes_nothing() {
    let mut ground = Ground::new();
    let (layer, _, now) = changed(&mut ground, 3);
    let volume = ground.volume("data");
    ground.store.discard(layer.name.as_str()).unwrap();
    let err = ground.store.exchange(&layer.name, "data", &volume).unwrap_err();
    assert!(matches!(&err, LayerError::Missing { .. }), "{err}");
    assert_is(&volume, &now, "untouched");
    assert_eq!(ground.store.exchanges().unwrap(), []);
}

#[test]
fn what_only_looks_like_an_exchange_is_content() {
    let mut ground = Ground::new();
    let (layer, then, _) = changed(&mut ground, 3);
    let volume = ground.volume("data");
    for name in ["old", "in", "done"] {
        fs::create_dir_all(volume.join(".forkpoint-1").join(name)).unwrap();
    }
    ground.store.undo("data").unwrap();
    assert!(volume.join(".forkpoint-1/done").exists());
    ground.store.exchange(&layer.name, "data", &volume).unwrap();
    ground.store.finish("data").unwrap();
    assert_is(&volume, &then, "finished");
}

/// A container that was started on what the exchange gave it, before that was finished.
#[test]
fn what_is_done_in_the_volume_before_the_exchange_is_finished_stays_and_is_not_missed() {
    let mut ground = Ground::new();
    let (layer, _, _) = changed(&mut ground, 3);
    let volume = ground.volume("data");
    ground.store.exchange(&layer.name, "data", &volume).unwrap();
    fs::write(volume.join("dir/file"), "by the new container").unwrap();
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o700)).unwrap();
    let mut expected = view::read(&volume, "");
    expected.retain(|path, _| !path.to_string_lossy().starts_with(".forkpoint"));
    assert!(ground.store.finish("data").unwrap());
    assert_is(&volume, &expected, "finished");
    settle();
    let after = ground.capture("data");
    assert_eq!(after.own.files, 1, "{after:?}");
    assert_is(&ground.tree(&after.name), &expected, "captured");
}

#[test]
fn what_was_written_down_and_never_begun_is_not_finished() {
    let mut ground = Ground::new();
    let (layer, _, now) = changed(&mut ground, 3);
    let volume = ground.volume("data");
    ground.store.exchange(&layer.name, "data", &volume).unwrap();
    let exchanges = ground.directory.path().join("store/exchanges");
    let (kept, open) = (ground.directory.path().join("kept"), ground.directory.path().join("open"));
    let copy = |from: &Path, to: &Path| {
        assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    };
    copy(&exchanges, &kept);
    ground.store.undo("data").unwrap();
    fs::rename(&exchanges, &open).unwrap();
    fs::rename(&kept, &exchanges).unwrap();
    assert!(!ground.store.finish("data").unwrap());
    assert_is(&volume, &now, "as it was");
    settle();
    let after = ground.capture("data");
    assert_is(&ground.tree(&after.name), &now, "captured");
}

#[test]
fn a_volume_that_is_gone_is_no_obstacle() {
    let mut ground = Ground::new();
    let (layer, _, _) = changed(&mut ground, 3);
    let volume = ground.volume("data");
    ground.store.exchange(&layer.name, "data", &volume).unwrap();
    fs::rename(&volume, ground.directory.path().join("away")).unwrap();
    // Another one under its name is none of our business.
    fs::create_dir(&volume).unwrap();
    let other = view::read(&volume, "");
    ground.store.undo("data").unwrap();
    assert_eq!(ground.store.exchanges().unwrap(), []);
    assert_is(&volume, &other, "another volume");
}

/// Does nothing unless it is asked to by the test below.
#[test]
fn as_a_child_exchanges_until_it_is_killed() {
    let Ok(directory) = env::var(CHILD) else { return };
    let directory = Path::new(&directory);
    let store = VolumeStore::open(&directory.join("store")).unwrap();
    let layer = store.list().unwrap().remove(0);
    loop {
        store.exchange(&layer, "data", &directory.join("data")).unwrap();
        store.undo("data").unwrap();
    }
}

#[test]
fn a_kill_at_any_moment_can_be_undone_or_finished() {
    let mut ground = Ground::new();
    let (_, then, now) = changed(&mut ground, 100);
    let volume = ground.volume("data");
    let also = ground.capture("data");
    for moment in 0..60 {
        kill_a_child_after(&ground, Duration::from_micros(moment * 400));
        if moment % 2 == 0 {
            ground.store.undo("data").unwrap();
            assert_is(&volume, &now, &format!("undone {moment}"));
            continue;
        }
        let was_open = !ground.store.exchanges().unwrap().is_empty();
        let is_new = ground.store.finish("data").unwrap() && was_open;
        assert_is(&volume, if is_new { &then } else { &now }, &format!("finished {moment}"));
        ground.store.exchange(&also.name, "data", &volume).unwrap();
        ground.store.finish("data").unwrap();
        assert_is(&volume, &now, "for the next");
    }
}

#[expect(clippy::disallowed_methods, reason = "it is killed at any moment, whichever that is")]
fn kill_a_child_after(ground: &Ground, time: Duration) {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "docker::exchange::as_a_child_exchanges_until_it_is_killed"])
        .env(CHILD, ground.directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while child.try_wait().unwrap().is_none() && ground.store.exchanges().unwrap().is_empty() {
        std::thread::yield_now();
    }
    // Whenever that is, the outcome is the same.
    std::thread::sleep(time);
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
}

fn exchanges_agree(first: &[Step], second: &[Step]) {
    let mut ground = Ground::new();
    let volume = ground.volume("data");
    for step in first {
        apply(&volume, step);
    }
    let layer = ground.capture("data");
    let then = view::read(&volume, "");
    for step in second {
        apply(&volume, step);
    }
    let now = view::read(&volume, "");
    ground.store.exchange(&layer.name, "data", &volume).unwrap();
    ground.store.undo("data").unwrap();
    assert_is(&volume, &now, "undone");
    ground.store.exchange(&layer.name, "data", &volume).unwrap();
    ground.store.finish("data").unwrap();
    assert_is(&volume, &then, "finished");
    settle();
    for step in second {
        apply(&volume, step);
    }
    let layer = ground.capture("data");
    assert_is(&ground.tree(&layer.name), &view::read(&volume, ""), "captured again");
    ground.assert_clean();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_volume_goes_back_in_place(first in steps(30), second in steps(30)) {
        exchanges_agree(&first, &second);
    }
}
