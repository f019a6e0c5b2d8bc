//! A file system that can share the content of files.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use forkpoint_backends::layer::{CaptureSpec, LayerStore};
use rustix::fs::statvfs;
use tempfile::TempDir;

use super::{
    mount::{self, Mounted},
    name, needs_root,
};

const LARGE: usize = 64 << 20;

/// A small disk in a file. Nobody but us sees it mounted.
struct Disk {
    device: String,
    mounted: Option<Mounted>,
    _file: TempDir,
}

impl Disk {
    fn xfs() -> Self {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("disk");
        fs::File::create(&file).unwrap().set_len(400 << 20).unwrap();
        run("mkfs.xfs", &["-q".as_ref(), &file]);
        let device = run("losetup", &["--find".as_ref(), "--show".as_ref(), &file]);
        let mounted = mount::device("xfs", device.trim());
        Self { device: device.trim().to_owned(), mounted: Some(mounted), _file: directory }
    }

    fn path(&self) -> PathBuf {
        self.mounted.as_ref().unwrap().path()
    }

    fn free_bytes(&self) -> u64 {
        let stat = statvfs(self.path()).unwrap();
        stat.f_bfree * stat.f_frsize
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.mounted = None;
        run("losetup", &["--detach".as_ref(), self.device.as_ref()]);
    }
}

fn run(program: &str, args: &[&Path]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_large_file_is_captured_without_copying_it() {
    if needs_root("a file system must be mounted") {
        return;
    }
    let disk = Disk::xfs();
    let (upper, store) = (disk.path().join("upper"), disk.path().join("store"));
    fs::create_dir(&upper).unwrap();
    let content: Vec<u8> = (0..LARGE).map(|index| (index / 4096 % 251) as u8).collect();
    fs::write(upper.join("large"), &content).unwrap();
    rustix::fs::syncfs(fs::File::open(&upper).unwrap()).unwrap();
    let store = LayerStore::open(&store).unwrap();
    let before = disk.free_bytes();

    let mut stage = store.stage(name(1), None).unwrap();
    stage.capture(&CaptureSpec::new(&upper)).unwrap();
    let layer = stage.commit(true).unwrap();
    let used = before.saturating_sub(disk.free_bytes());
    assert!(used < LARGE as u64 / 8, "{used} bytes were written for a file of {LARGE}");

    // What the sandbox writes afterwards is its own.
    fs::write(upper.join("large"), b"changed").unwrap();
    let kept = fs::read(layer.tree_path().join("large")).unwrap();
    assert!(kept == content, "the layer changed with the sandbox");
}
