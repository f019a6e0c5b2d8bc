//! Where there is no room or no right, nothing changes.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::Command,
};

use crate::layer::needs_root;

use super::{
    super::scene::{sh, with_causes},
    *,
};

/// A small disk with somebody's project on it.
struct Disk {
    image: TempDir,
    at: PathBuf,
}

impl Disk {
    fn at(desk: &Desk) -> Self {
        let image = TempDir::new().unwrap();
        let file = image.path().join("disk");
        File::create(&file).unwrap().set_len(8 << 20).unwrap();
        let at = desk.dir();
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&file));
        run(Command::new("mount").args(["-o", "loop"]).arg(&file).arg(&at));
        Self { image, at }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
        let _ = &self.image;
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_full_disk_is_found_before_anything_changes() {
    if needs_root("nobody else can mount") {
        return;
    }
    for mode in MODES {
        let desk = Desk::new();
        let disk = Disk::at(&desk);
        desk.write("a.txt", "a");
        desk.write("b.txt", "b");
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            let script = "rm b.txt; mkdir d; echo x > a.txt; head -c 20000000 /dev/zero > d/big";
            sh(&*sandbox, script).await;
            let before = tree(&desk.dir());
            let err = desk.try_apply(&*sandbox, &ApplyRequest::default()).await.unwrap_err();
            let told = with_causes(&err);
            assert!(told.contains("d/big") && told.contains("No space left"), "{told}");
            assert_eq!(tree(&desk.dir()), before);
            // With room it is all there; what failed is no change of anybody's.
            sh(&*sandbox, "head -c 100000 /dev/zero > d/big").await;
            desk.apply(&*sandbox).await;
            assert_eq!(desk.read("a.txt"), "x\n");
            assert!(!desk.path("b.txt").exists());
        });
        drop(disk);
    }
}

#[test]
fn a_directory_that_may_not_be_written_to_is_found_before_anything_changes() {
    for mode in MODES {
        let desk = Desk::with_files();
        let root = rustix::process::geteuid().is_root();
        let lock = |on: bool| match root {
            // Nothing else keeps root from writing.
            true => run(Command::new("chattr")
                .arg(if on { "+i" } else { "-i" })
                .arg(desk.path("src/deep"))),
            false => set_mode(&desk.path("src/deep"), if on { 0o555 } else { 0o755 }),
        };
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, "echo x > a.txt; chmod 755 src/deep; echo x > src/deep/new").await;
            lock(true);
            let before = tree(&desk.dir());
            let result = desk.try_apply(&*sandbox, &forced()).await;
            let now = tree(&desk.dir());
            lock(false);
            let told = with_causes(&result.unwrap_err());
            assert!(told.contains("src/deep"), "{told}");
            assert_eq!(now, before);
            assert!(desk.is_clean());
            assert!(desk.apply_as(&*sandbox, &forced()).await.done);
            assert_eq!(desk.read("src/deep/new"), "x\n");
        });
    }
}

#[test]
fn a_file_that_nobody_may_change_is_found_before_anything_changes() {
    if needs_root("nobody else can mark one") {
        return;
    }
    for (mark, unmark) in [("+i", "-i"), ("+a", "-a")] {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(WorkspaceMode::Copy).await;
            sh(&*sandbox, "echo x > a.txt; echo x > b.txt; chmod 700 src/main.rs; rm -r src/deep")
                .await;
            for path in ["b.txt", "src/main.rs", "src/deep/er/file", "src/deep"] {
                run(Command::new("chattr").arg(mark).arg(desk.path(path)));
                let before = tree(&desk.dir());
                let result = desk.try_apply(&*sandbox, &forced()).await;
                let now = tree(&desk.dir());
                run(Command::new("chattr").arg(unmark).arg(desk.path(path)));
                let told = with_causes(&result.unwrap_err());
                assert!(told.contains(path) && told.contains("chattr"), "{told}");
                assert_eq!(now, before);
            }
            assert!(desk.apply_as(&*sandbox, &forced()).await.done);
        });
    }
}

#[test]
fn a_workspace_on_another_file_system_is_as_good() {
    if needs_root("nobody else can mount") {
        return;
    }
    for mode in MODES {
        let desk = Desk::new();
        let disk = Disk::at(&desk);
        desk.write("a.txt", "a");
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            assert_eq!(
                sh(&*sandbox, "cat a.txt; echo x > a.txt; head -c 2000000 /dev/zero > big").await,
                "a"
            );
            let spec: SandboxSpec =
                serde_json::from_value(desk.scene.record(sandbox.id())["spec"].clone()).unwrap();
            let copy = desk.restore(&spec, &super::super::scene::seal(&*sandbox).await).await;
            desk.apply(&*copy).await;
            assert_eq!(desk.read("a.txt"), "x\n");
            assert_eq!(fs::metadata(desk.path("big")).unwrap().len(), 2_000_000);
        });
        for id in super::super::run(desk.scene.driver.list()).unwrap() {
            super::super::run(desk.scene.driver.destroy(id)).unwrap();
        }
        drop(disk);
    }
}
