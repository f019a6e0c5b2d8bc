//! File systems that cannot map owners: root is told which, and what to do.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use forkpoint_backends::driver::local::{LocalConfig, Verdict, examine};
use forkpoint_core::driver::Driver as _;
use tempfile::TempDir;

use crate::layer::needs_root;

use super::{
    helper,
    scene::{Scene, spec, with_causes},
};

/// One that cannot.
struct Ramfs(TempDir);

impl Ramfs {
    fn mount() -> Self {
        let ramfs = Self(TempDir::new().unwrap());
        let mut mount = Command::new("mount");
        mount.args(["-t", "ramfs", "ramfs"]).arg(ramfs.0.path());
        assert!(mount.status().unwrap().success());
        ramfs
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("there")
    }
}

impl Drop for Ramfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn assert_told(told: &str, place: &Path) {
    assert!(told.contains("map the owners of files"), "{told}");
    assert!(told.contains(place.to_str().unwrap()) && told.contains("ext4"), "{told}");
}

#[test]
fn a_disk_that_cannot_map_owners_is_named_with_the_way_out() {
    if needs_root("nobody else can mount") {
        return;
    }
    let ramfs = Ramfs::mount();
    std::fs::create_dir_all(ramfs.path().join("bin")).unwrap();
    let config = LocalConfig { helper: Some(helper()), ..LocalConfig::new(ramfs.path()) };
    let checks = examine(&config);
    let check = checks.iter().find(|check| check.name == "sandboxes").unwrap();
    assert_eq!(check.verdict, Verdict::No, "{check:?}");
    assert_told(&check.detail, &ramfs.path());
    let way_out = check.way_out.as_ref().unwrap();
    assert!(way_out.starts_with("put the data directory on a file system that can"), "{way_out}");

    let Some(scene) = Scene::new(true) else { return };
    let template = format!("dir:{}", ramfs.path().display()).parse().unwrap();
    let spec = forkpoint_core::spec::SandboxSpec { template, ..spec() };
    let err = scene.run(scene.driver.create(scene.new_id(), &spec)).err().unwrap();
    assert_told(&with_causes(&err), &ramfs.path());
}
