//! Whatever is planted on either side, nothing is read or written elsewhere.

use std::{
    fs,
    os::{fd::OwnedFd, unix::fs::symlink},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use forkpoint_core::driver::DriverError;
use rustix::fs::{FlockOperation, flock};

use crate::layer::needs_root;

use super::{
    super::scene::{sh, start, with_causes},
    *,
};

#[test]
fn a_link_of_the_hosts_is_not_followed() {
    for mode in MODES {
        let (desk, outside) = (Desk::with_files(), TempDir::new().unwrap());
        fs::write(outside.path().join("main.rs"), "outside").unwrap();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, "echo x > src/main.rs; echo x > src/new; rm src/deep/er/file").await;
            fs::rename(desk.path("src"), desk.path("moved")).unwrap();
            symlink(outside.path(), desk.path("src")).unwrap();
            for how in [ApplyRequest::default(), forced()] {
                let before = tree(&desk.dir());
                let report = desk.try_apply(&*sandbox, &how).await;
                // A live sandbox has a directory there, and the host something else.
                if mode == WorkspaceMode::Live && how.force {
                    assert!(report.unwrap().done);
                    assert!(desk.path("src").symlink_metadata().unwrap().is_dir());
                } else {
                    assert!(!report.unwrap().done);
                    assert_eq!(tree(&desk.dir()), before);
                }
            }
        });
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        assert_eq!(fs::read(outside.path().join("main.rs")).unwrap(), b"outside");
    }
}

#[test]
fn a_link_of_the_sandboxs_comes_home_as_a_link() {
    for mode in MODES {
        let (desk, outside) = (Desk::with_files(), TempDir::new().unwrap());
        fs::write(outside.path().join("file"), "outside").unwrap();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            let to = outside.path().display();
            sh(&*sandbox, &format!("rm -r src; ln -s {to} src; ln -sf {to}/file a.txt")).await;
            desk.apply(&*sandbox).await;
            // From now on the way to what is in it leads outside, and nothing goes there.
            sh(&*sandbox, "rm src; mkdir src; echo x > src/file; rm a.txt; echo x > a.txt").await;
            desk.apply(&*sandbox).await;
            assert_eq!(desk.read("src/file") + &desk.read("a.txt"), "x\nx\n");
        });
        assert_eq!(fs::read(outside.path().join("file")).unwrap(), b"outside");
    }
}

/// Somebody who swaps a directory and a link to the outside, again and again.
#[test]
fn names_that_change_while_they_are_written_lead_nowhere() {
    let (desk, outside) = (Desk::with_files(), TempDir::new().unwrap());
    fs::create_dir(outside.path().join("deep")).unwrap();
    let (src, aside) = (desk.path("src"), desk.path("aside"));
    desk.scene.run(async {
        let sandbox = desk.enter(WorkspaceMode::Copy).await;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // Each may meet what the apply does.
                    let _ = fs::rename(&src, &aside);
                    let _ = symlink(outside.path(), &src);
                    let _ = fs::remove_file(&src);
                    let _ = fs::rename(&aside, &src);
                }
            });
            let runtime = tokio::runtime::Handle::current();
            tokio::task::block_in_place(|| {
                runtime.block_on(async {
                    for round in 0..20 {
                        let script =
                            format!("echo {round} > src/main.rs; echo {round} > src/deep/n");
                        sh(&*sandbox, &script).await;
                        let _ = desk.try_apply(&*sandbox, &forced()).await;
                    }
                });
            });
            stop.store(true, Ordering::Relaxed);
        });
    });
    assert_eq!(tree(outside.path()).keys().collect::<Vec<_>>(), [Path::new("deep")]);
}

#[test]
fn two_at_once_are_told_apart() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let sandbox = desk.enter(WorkspaceMode::Live).await;
        sh(&*sandbox, "echo x > a.txt").await;
        let other: OwnedFd = fs::File::open(desk.dir()).unwrap().into();
        flock(&other, FlockOperation::LockExclusive).unwrap();
        let err = desk.try_apply(&*sandbox, &ApplyRequest::default()).await.unwrap_err();
        assert!(matches!(err, DriverError::InUse { .. }), "{err:?}");
        drop(other);
        desk.apply(&*sandbox).await;
    });
}

#[test]
fn what_a_killed_apply_left_is_cleared_and_nothing_of_anybody_elses() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let sandbox = desk.enter(WorkspaceMode::Live).await;
        sh(&*sandbox, "echo x > a.txt").await;
        desk.write(".forkpoint-apply-dead/mark", "forkpoint apply 1\n");
        desk.write(".forkpoint-apply-dead/3/half", "half");
        desk.write(".forkpoint-apply-mine/file", "mine");
        desk.write(".forkpoint-apply-file", "mine");
        symlink("/", desk.path(".forkpoint-apply-link")).unwrap();
        fs::create_dir(desk.path(".forkpoint-apply-empty")).unwrap();
        let report = desk.apply(&*sandbox).await;
        assert!(report.cut_short);
        let left: Vec<String> = tree(&desk.dir())
            .into_keys()
            .map(|path| path.display().to_string())
            .filter(|path| path.contains("forkpoint"))
            .collect();
        let mine = ["-file", "-link", "-mine", "-mine/file"];
        assert_eq!(left, mine.map(|name| format!(".forkpoint-apply{name}")));
        assert!(!desk.apply(&*sandbox).await.cut_short);
    });
}

#[test]
fn a_file_that_never_stands_still_is_told() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let sandbox = desk.enter(WorkspaceMode::Live).await;
        let script = "while :; do head -c 3000000 /dev/zero > busy; [ -e on ] || { touch on; echo on; }; done";
        let busy = start(&*sandbox, script).await;
        let before = tree(&desk.dir());
        for _ in 0..5 {
            match desk.try_apply(&*sandbox, &only(&["busy"])).await {
                Ok(report) => assert!(report.done),
                Err(err) => {
                    let told = with_causes(&err);
                    assert!(told.contains("changed meanwhile"), "{told}");
                    assert_eq!(tree(&desk.dir()), before);
                }
            }
            let _ = fs::remove_file(desk.path("busy"));
        }
        busy.control.signal(9).await.unwrap();
        assert!(desk.is_clean());
    });
}

#[test]
fn a_mount_of_the_hosts_is_not_written_through() {
    if needs_root("nobody else can mount") {
        return;
    }
    let desk = Desk::with_files();
    desk.scene.run(async {
        let sandbox = desk.enter(WorkspaceMode::Copy).await;
        sh(&*sandbox, "echo x > src/main.rs; echo x > src/new").await;
        let mount = |args: &[&str]| {
            let status = Command::new(args[0]).args(&args[1..]).arg(desk.path("src")).status();
            assert!(status.unwrap().success());
        };
        mount(&["mount", "-t", "tmpfs", "tmpfs"]);
        let report = desk.apply_as(&*sandbox, &forced()).await;
        let seen = fs::read_dir(desk.path("src")).unwrap().count();
        mount(&["umount"]);
        assert!(!report.done && report.conflicts.len() >= 2, "{report:?}");
        assert_eq!((seen, desk.read("src/main.rs").as_str()), (0, "main"));
    });
}

#[test]
fn a_mount_from_the_same_file_system_is_not_written_through() {
    if needs_root("nobody else can mount") {
        return;
    }
    for mode in MODES {
        let (desk, outside) = (Desk::with_files(), TempDir::new().unwrap());
        let (dir, file) = (outside.path().join("dir"), outside.path().join("file"));
        fs::create_dir(&dir).unwrap();
        fs::write(&file, "outside").unwrap();
        set_mode(&dir, 0o700);
        set_mode(&file, 0o600);
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, "chmod 777 src/deep; chmod 777 a.txt; rm b.txt; echo x > src/main.rs")
                .await;
            let over = [(&dir, "src/deep"), (&file, "a.txt"), (&file, "b.txt")];
            for (from, to) in over {
                let bind =
                    Command::new("mount").arg("--bind").arg(from).arg(desk.path(to)).status();
                assert!(bind.unwrap().success());
            }
            let result = desk.try_apply(&*sandbox, &forced()).await;
            for (_, to) in over {
                assert!(Command::new("umount").arg(desk.path(to)).status().unwrap().success());
            }
            let report = result.unwrap();
            let paths: Vec<_> = report.conflicts.iter().map(|each| each.path.as_path()).collect();
            assert_eq!(paths, ["a.txt", "b.txt", "src/deep"].map(Path::new), "{report:?}");
            assert_eq!(desk.read("src/main.rs"), "main", "nothing was done");
            let modes = [&dir, &file].map(|path| fs::metadata(path).unwrap().mode() & 0o777);
            assert_eq!(modes, [0o700, 0o600]);
        });
    }
}

/// Whose files come and go while they are brought home.
#[test]
fn a_busy_sandbox_can_be_applied() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let sandbox = desk.enter(WorkspaceMode::Live).await;
        let script =
            "echo on; while :; do mkdir -p t/u; for i in 1 2 3 4 5 6 7 8; do echo x > t/u/$i; done
            rm -r t; done";
        let busy = start(&*sandbox, script).await;
        let (mut done, mut told) = (0, Vec::new());
        for _ in 0..40 {
            match desk.try_apply(&*sandbox, &forced()).await {
                Ok(_) => done += 1,
                Err(err) => told.push(with_causes(&err)),
            }
        }
        busy.control.signal(9).await.unwrap();
        let is_plain =
            |told: &String| told.contains("again and again") || told.contains("changed meanwhile");
        assert!(done > 0 && told.iter().all(is_plain), "{done}: {told:?}");
    });
}
