//! Volumes that come and go as archives, in the form in which an engine sends and takes them.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::Command,
};

use forkpoint_backends::{
    driver::docker::volume::{Inside, VolumeArchive, VolumeLayer},
    layer::{LayerError, LayerResult},
};
use forkpoint_core::id::SnapshotId;
use forkpoint_testkit::image::{TarEntry, tar};
use proptest::prelude::*;

use super::volumes::Ground;
use crate::layer::{
    needs_root,
    property::{Step, apply, steps},
    settle, view,
};

impl Ground {
    fn receive(&mut self, archive: &[u8]) -> LayerResult<VolumeLayer> {
        self.taken += 1;
        let snapshot = SnapshotId::from_u128(self.taken);
        let spec = VolumeArchive { snapshot, number: 0, volume: "data" };
        self.store.receive(&spec, archive)
    }
}

/// What an engine answers for the directory `data`, by a program that others wrote.
fn packed(volume: &Path) -> Vec<u8> {
    let output = Command::new("tar")
        .args(["--create", "--format=pax", "--xattrs", "--xattrs-include=*", "--numeric-owner"])
        .arg("--directory")
        .arg(volume.parent().unwrap())
        .arg(volume.file_name().unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

#[test]
fn an_archive_becomes_what_its_directory_was() {
    let mut ground = Ground::new();
    let volume = ground.volume("data");
    fs::create_dir_all(volume.join("a/.wh.name")).unwrap();
    fs::write(volume.join("a/file"), vec![3; 70_000]).unwrap();
    fs::hard_link(volume.join("a/file"), volume.join("link")).unwrap();
    fs::write(volume.join(".wh.kept"), "is no absence here").unwrap();
    std::os::unix::fs::symlink("../../etc/passwd", volume.join("out")).unwrap();
    fs::set_permissions(volume.join("a"), fs::Permissions::from_mode(0o1711)).unwrap();
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o750)).unwrap();
    settle();
    let layer = ground.receive(&packed(&volume)).unwrap();
    view::assert_same(&view::read(&volume, ""), &view::read(&ground.tree(&layer.name), ""), "tree");
    let copy = ground.volume("copy");
    ground.store.fill(&layer.name, "copy", &copy).unwrap();
    view::assert_same(&view::read(&volume, ""), &view::read(&copy, ""), "copy");
}

#[test]
fn what_an_archive_repeats_is_kept_once() {
    let mut ground = Ground::new();
    let volume = ground.volume("data");
    fs::create_dir(volume.join("sub")).unwrap();
    fs::write(volume.join("sub/large"), vec![7; 1 << 20]).unwrap();
    fs::write(volume.join("small"), "one").unwrap();
    let first = ground.receive(&packed(&volume)).unwrap();
    assert_eq!(first.own, first.size);
    fs::write(volume.join("small"), "two").unwrap();
    let second = ground.receive(&packed(&volume)).unwrap();
    assert_eq!((second.own.files, second.size.files), (1, 2), "{second:?}");
    for layer in [&first, &second] {
        let large = ground.tree(&layer.name).join("sub/large");
        assert_eq!(fs::metadata(large).unwrap().nlink(), 2);
    }
    view::assert_same(&view::read(&volume, ""), &view::read(&ground.tree(&second.name), ""), "2nd");
    assert_eq!(fs::read(ground.tree(&first.name).join("small")).unwrap(), b"one");
    // The same bytes under another mode are another file.
    fs::set_permissions(volume.join("sub/large"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(ground.receive(&packed(&volume)).unwrap().own.files, 1);
    ground.assert_clean();
}

fn round_trip(steps: &[Step]) {
    let mut ground = Ground::new();
    let volume = ground.volume("data");
    for step in steps {
        apply(&volume, step);
    }
    let layer = ground.capture("data");
    ground.capture("data");
    let mut archive = Vec::new();
    let sent = ground.store.send(&layer.name, &mut archive).unwrap();
    // As an engine would send it again.
    let again = ground.receive(&archive).unwrap();
    let is_socket = |node: &view::Node| node.mode & 0o170_000 == 0o140_000;
    let mut expected = view::read(&volume, "");
    let all = expected.len();
    expected.retain(|_, node| !is_socket(node));
    assert_eq!(sent.sockets as usize, all - expected.len());
    let tree = ground.tree(&again.name);
    let mut found = view::read(&tree, "");
    for view in [&mut expected, &mut found] {
        for node in view.values_mut().filter(|node| node.mode & 0o170_000 != 0o100_000) {
            // Of what is neither a file nor a directory the reader takes no attributes.
            node.attributes.retain(|_, _| node.mode & 0o170_000 == 0o040_000);
        }
    }
    view::assert_same(&expected, &found, "sent and received");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_sent_is_what_the_volume_was(steps in steps(40)) {
        round_trip(&steps);
    }
}

#[test]
fn others_read_what_is_sent() {
    let mut ground = Ground::new();
    let volume = ground.volume("data");
    fs::create_dir(volume.join("dir")).unwrap();
    fs::write(volume.join("dir").join("n".repeat(200)), vec![5; 3000]).unwrap();
    fs::hard_link(volume.join("dir").join("n".repeat(200)), volume.join("short")).unwrap();
    std::os::unix::fs::symlink("dir", volume.join("link")).unwrap();
    let layer = ground.capture("data");
    let archive = ground.directory.path().join("archive.tar");
    ground.store.send(&layer.name, fs::File::create(&archive).unwrap()).unwrap();
    let copy = ground.volume("copy");
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--same-permissions", "--file"]).arg(&archive);
    assert!(tar.arg("--directory").arg(&copy).status().unwrap().success());
    view::assert_same(&view::read(&volume, ""), &view::read(&copy, ""), "unpacked by tar");
}

#[test]
fn zeros_in_an_archive_cost_nothing() {
    let mut ground = Ground::new();
    let zeros = TarEntry::file("data/zeros", vec![0; 8 << 20]);
    let layer = ground.receive(&tar([TarEntry::directory("data"), zeros])).unwrap();
    assert!(layer.size.bytes < 1 << 20, "{layer:?}");
    let file = ground.tree(&layer.name).join("zeros");
    assert_eq!(fs::metadata(file).unwrap().len(), 8 << 20);
}

#[test]
fn an_archive_leads_nowhere_and_half_of_one_is_none() {
    let mut ground = Ground::new();
    let link = TarEntry::symlink("data/out", "/etc");
    for entries in [
        vec![TarEntry::directory("data"), TarEntry::file("data/../../up", "x")],
        vec![link, TarEntry::file("data/out/file", "x")],
        vec![TarEntry::hard_link("data/a", "data/../../../etc/passwd")],
    ] {
        let err = ground.receive(&tar(entries)).unwrap_err();
        assert!(matches!(&err, LayerError::Archive { .. }), "{err}");
    }
    let whole = tar([TarEntry::file("data/a", vec![1; 5000])]);
    let err = ground.receive(&whole[..2000]).unwrap_err();
    assert!(err.to_string().contains("ends in the middle"), "{err}");
    assert_eq!(ground.store.list().unwrap(), []);
    ground.assert_clean();
}

#[test]
fn what_only_a_process_sees_is_reached_through_it_and_links_lead_nowhere_else() {
    if needs_root("another root") {
        return;
    }
    let mut ground = Ground::new();
    let root = ground.volume("root");
    fs::create_dir_all(root.join("dev/shm")).unwrap();
    fs::write(root.join("dev/shm/segment"), "shared").unwrap();
    std::os::unix::fs::symlink("/dev", root.join("devices")).unwrap();
    std::os::unix::fs::symlink(ground.directory.path(), root.join("host")).unwrap();
    let mut child = inside(&root);
    let shm = Inside::open(child.id(), Path::new("/devices/shm")).unwrap();
    let host = Inside::open(child.id(), Path::new("/host"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(host.is_err(), "{host:?}");
    ground.taken += 1;
    let snapshot = SnapshotId::from_u128(ground.taken);
    let spec = forkpoint_backends::driver::docker::volume::VolumeCapture {
        snapshot,
        number: 1,
        volume: "shm",
        path: &shm.path(),
    };
    let layer = ground.store.capture(&spec).unwrap();
    assert_eq!(fs::read(ground.tree(&layer.name).join("segment")).unwrap(), b"shared");
    fs::write(root.join("dev/shm/segment"), "else").unwrap();
    ground.store.exchange(&layer.name, "shm", &shm.path()).unwrap();
    ground.store.finish("shm").unwrap();
    assert_eq!(fs::read(root.join("dev/shm/segment")).unwrap(), b"shared");
}

/// A process with another root, which does nothing.
fn inside(root: &Path) -> std::process::Child {
    let script = "import os,sys; os.chroot(sys.argv[1]); print(flush=True); sys.stdin.read()";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .arg(root)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = std::io::BufReader::new(child.stdout.as_mut().unwrap());
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    child
}
