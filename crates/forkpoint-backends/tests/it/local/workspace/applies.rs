//! What a sandbox changed comes home, all of it and nothing else.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, chown, symlink},
    },
};

use forkpoint_core::driver::{ApplyStep::*, Driver as _, DriverError};

use super::{
    super::scene::{seal, sh, start, with_causes},
    *,
};

const EVERYTHING: &str = "printf changed > a.txt; chmod 755 src/main.rs; rm b.txt
mkdir -p new/er; printf n > new/er/est; printf x > src/deep/added; ln -s nowhere link
rm -r src/deep/er; printf file > src/deep/er; printf w > was-file.tmp; rm file; mkdir file
printf in > file/in; rm -r empty; truncate -s 3M sparse";

#[test]
fn every_kind_of_change_comes_home() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.write("file", "file");
        fs::create_dir(desk.path("empty")).unwrap();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, EVERYTHING).await;
            let dry = ApplyRequest { dry_run: true, ..ApplyRequest::default() };
            let before = tree(&desk.dir());
            let planned = desk.apply_as(&*sandbox, &dry).await;
            assert!(!planned.done);
            assert_eq!(tree(&desk.dir()), before, "a dry run");
            let report = desk.apply(&*sandbox).await;
            assert_eq!(steps(&report), steps(&planned));
            let told: Vec<(&str, _)> =
                report.steps.iter().map(|step| (step.path.to_str().unwrap(), step.step)).collect();
            assert_eq!(
                told,
                [
                    ("a.txt", Change),
                    ("b.txt", Delete),
                    ("empty", RemoveDirectory),
                    ("file", MakeDirectory),
                    ("file/in", Create),
                    ("link", Link),
                    ("new", MakeDirectory),
                    ("new/er", MakeDirectory),
                    ("new/er/est", Create),
                    ("sparse", Create),
                    ("src/deep/added", Create),
                    ("src/deep/er", Change),
                    ("src/deep/er/file", Delete),
                    ("src/main.rs", Mode),
                    ("was-file.tmp", Create),
                ]
            );
            assert_eq!(
                desk.read("a.txt") + &desk.read("src/deep/er") + &desk.read("file/in"),
                "changedfilein"
            );
            assert_eq!(fs::metadata(desk.path("src/main.rs")).unwrap().mode() & 0o777, 0o755);
            let sparse = fs::metadata(desk.path("sparse")).unwrap();
            assert_eq!((sparse.len(), sparse.blocks()), (3 << 20, 0));
            assert!(desk.is_clean());
            assert_eq!(desk.apply(&*sandbox).await.steps, [], "once more");
        });
    }
}

#[test]
fn work_that_goes_on_can_be_applied_again_and_again() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let spec = desk.spec(mode).await;
            let sandbox = desk.scene.create_as(&spec).await;
            for round in 0..3 {
                let script = format!(
                    "echo {round} > a.txt; echo {round} > new; mkdir -p dir; echo {round} > dir/{round};
                     chmod $((644 + {round} % 2)) b.txt; ln -sfn {round} link"
                );
                sh(&*sandbox, &script).await;
                desk.apply(&*sandbox).await;
                assert_eq!(desk.read("a.txt") + &desk.read("new"), format!("{round}\n{round}\n"));
                if round == 1 {
                    seal(&*sandbox).await;
                }
            }
            // Our own names in a directory are nobody's deletions.
            sh(&*sandbox, "chmod 600 b.txt; mv b.txt moved; echo more >> moved").await;
            desk.apply(&*sandbox).await;
            sh(&*sandbox, "rm new a.txt; rm link; rm -r src").await;
            desk.apply(&*sandbox).await;
            assert!(!desk.path("new").exists() && !desk.path("src").exists());
            sh(&*sandbox, "echo back > a.txt").await;
            desk.apply(&*sandbox).await;
            assert_eq!(desk.read("a.txt"), "back\n");
        });
    }
}

#[test]
fn a_snapshot_and_a_copy_of_it_come_home_as_well() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let spec = desk.spec(mode).await;
            let sandbox = desk.scene.create_as(&spec).await;
            sh(&*sandbox, "echo one > a.txt; rm b.txt").await;
            // A busy one is copied, file by file.
            let busy = start(&*sandbox, "echo on; exec sleep 1000").await;
            let artifact = seal(&*sandbox).await;
            busy.control.signal(9).await.unwrap();
            sh(&*sandbox, "echo two > a.txt; echo new > new").await;
            let copy = desk.restore(&spec, &artifact).await;
            sh(&*copy, "echo copy > copy").await;
            let of = FileState::Snapshot(artifact);
            let report = desk.scene.driver.apply(&of, &ApplyRequest::default()).await.unwrap();
            assert!(report.done);
            assert_eq!(desk.read("a.txt"), "one\n");
            assert!(!desk.path("b.txt").exists() && !desk.path("new").exists());
            desk.apply(&*copy).await;
            assert_eq!(desk.read("copy"), "copy\n");
            desk.apply(&*sandbox).await;
            assert_eq!(desk.read("a.txt") + &desk.read("new"), "two\nnew\n");
        });
    }
}

#[test]
fn going_back_and_applying_takes_back_what_was_applied_of_a_copy() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let spec = desk.spec(WorkspaceMode::Copy).await;
        let sandbox = desk.scene.create_as(&spec).await;
        let begun = tree(&desk.dir());
        let artifact = seal(&*sandbox).await;
        sh(&*sandbox, "echo x > a.txt; rm -r src; echo new > new; chmod 600 b.txt").await;
        desk.apply(&*sandbox).await;
        desk.scene.driver.rollback(sandbox.id(), &spec, &artifact).await.unwrap();
        desk.scene.note(sandbox.id());
        // What somebody changed after the apply is theirs.
        desk.write("b.txt", "mine");
        desk.apply(&*sandbox).await;
        let mut expected = begun;
        expected.insert("b.txt".into(), Seen::File(0o600, b"mine".to_vec()));
        assert_eq!(tree(&desk.dir()), expected);
    });
}

#[test]
fn going_back_deletes_nothing_of_a_live_workspace() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let spec = desk.spec(WorkspaceMode::Live).await;
        let sandbox = desk.scene.create_as(&spec).await;
        sh(&*sandbox, "mkdir nd; echo 1 > nd/1; echo 0 > nd/0").await;
        desk.apply(&*sandbox).await;
        let artifact = seal(&*sandbox).await;
        sh(&*sandbox, "echo 2 > nd/2; echo 2 > top2").await;
        desk.apply(&*sandbox).await;
        desk.scene.driver.rollback(sandbox.id(), &spec, &artifact).await.unwrap();
        desk.scene.note(sandbox.id());
        assert_eq!(desk.apply(&*sandbox).await.steps, []);
        assert_eq!(desk.read("nd/2") + &desk.read("top2"), "2\n2\n");
        // What it had, it can delete.
        sh(&*sandbox, "rm nd/0").await;
        desk.apply(&*sandbox).await;
        assert!(!desk.path("nd/0").exists() && desk.path("nd/2").exists());
    });
}

#[test]
fn what_a_sandbox_made_and_then_deleted_is_deleted_at_home_too() {
    for mode in MODES {
        for sealed in [false, true] {
            let desk = Desk::with_files();
            desk.scene.run(async {
                let sandbox = desk.enter(mode).await;
                sh(
                    &*sandbox,
                    "mkdir -p n/m/o; echo 1 > n/1; echo 2 > n/m/2; echo 3 > n/m/o/3; mkdir e",
                )
                .await;
                desk.apply(&*sandbox).await;
                desk.write("n/mine", "mine");
                sh(&*sandbox, "rm n/1; rm -r n/m/o; rmdir e").await;
                if sealed {
                    seal(&*sandbox).await;
                }
                let report = desk.apply(&*sandbox).await;
                let deleted = [
                    ("e", RemoveDirectory),
                    ("n/1", Delete),
                    ("n/m/o", RemoveDirectory),
                    ("n/m/o/3", Delete),
                ];
                assert_eq!(steps(&report), deleted.map(|(path, step)| (path.to_owned(), step)));
                assert_eq!(desk.read("n/m/2") + &desk.read("n/mine"), "2\nmine");
                assert_eq!(desk.apply(&*sandbox).await.steps, []);
            });
        }
    }
}

#[test]
fn only_what_is_asked_for_comes_home_and_what_leads_there() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(
                &*sandbox,
                "echo x > a.txt; echo x > b.txt; mkdir -p n/m; echo 1 > n/m/1; echo 2 > n/2",
            )
            .await;
            let report = desk.apply_as(&*sandbox, &only(&["n/m", "a.txt"])).await;
            let expected = [
                ("a.txt", Change),
                ("n", MakeDirectory),
                ("n/m", MakeDirectory),
                ("n/m/1", Create),
            ];
            assert_eq!(steps(&report), expected.map(|(path, step)| (path.to_owned(), step)));
            assert_eq!(desk.read("b.txt"), "b");
            assert!(!desk.path("n/2").exists());
            let err = desk.try_apply(&*sandbox, &only(&["a.txt", "typo"])).await.unwrap_err();
            let told = with_causes(&err);
            assert!(told.contains("there is no `typo`"), "{told}");
            assert!(matches!(err, DriverError::FileMissing { .. }));
            desk.apply(&*sandbox).await;
            assert_eq!(desk.read("n/2"), "2\n");
        });
    }
}

#[test]
fn modes_of_directories_come_home_while_only_the_sandbox_works_in_them() {
    for mode in MODES {
        let desk = Desk::with_files();
        let of = |path: &str| fs::metadata(desk.path(path)).unwrap().mode() & 0o777;
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, "chmod 750 src; mkdir new; echo x > src/deep/x; echo x > new/x").await;
            desk.apply(&*sandbox).await;
            sh(&*sandbox, "chmod 700 src/deep; chmod 711 new; echo y > src/y").await;
            desk.apply(&*sandbox).await;
            assert_eq!((of("src"), of("src/deep"), of("new")), (0o750, 0o700, 0o711));
            desk.write("src/deep/mine", "mine");
            sh(&*sandbox, "chmod 755 src/deep; chmod 755 src").await;
            let report = desk.apply(&*sandbox).await;
            assert_eq!(of("src"), 0o755);
            if mode == WorkspaceMode::Live {
                assert_eq!(of("src/deep"), 0o700, "nobody can tell whose mode is newer");
                assert_eq!(report.skipped.len(), 1, "{report:?}");
            }
        });
    }
}

/// Inside, a file that is changed is no longer the one that its other names lead to.
#[test]
fn the_mode_of_one_name_is_not_that_of_the_others() {
    for mode in MODES {
        let desk = Desk::with_files();
        set_mode(&desk.path("a.txt"), 0o644);
        fs::hard_link(desk.path("a.txt"), desk.path("other")).unwrap();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, "chmod 600 a.txt").await;
            let inside = sh(&*sandbox, "stat -c %a a.txt other").await;
            desk.apply(&*sandbox).await;
            let of = |path: &str| fs::metadata(desk.path(path)).unwrap().mode() & 0o7777;
            assert_eq!(format!("{:o}\n{:o}\n", of("a.txt"), of("other")), inside);
        });
    }
}

#[test]
fn owners_and_rights_of_programs_do_not_come_along() {
    for mode in MODES {
        let desk = Desk::with_files();
        let root = rustix::process::geteuid().is_root();
        if root {
            chown(desk.path("src"), Some(1234), Some(5678)).unwrap();
            chown(desk.path("a.txt"), Some(4321), Some(8765)).unwrap();
        }
        set_mode(&desk.path("b.txt"), 0o4711);
        desk.write("same", "same");
        set_mode(&desk.path("same"), 0o4755);
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            let chowns = if root { "chown 7:8 a.txt src/new src" } else { "true" };
            let script = format!(
                "echo x > a.txt; echo x > src/new; mkdir src/d; echo x > src/d/f; {chowns}
                 cp /bin/true prog; chmod 6755 prog; touch -d '2001-02-03 04:05:06.789' src/new
                 printf x >> b.txt; chmod 4711 b.txt; chmod 7777 src/d; chmod 4711 same"
            );
            sh(&*sandbox, &script).await;
            desk.apply(&*sandbox).await;
            let of = |path: &str| fs::metadata(desk.path(path)).unwrap();
            let owner = |path: &str| (of(path).uid(), of(path).gid());
            if root {
                assert_eq!(owner("a.txt"), (4321, 8765), "keeps its owner");
                for new in ["src/new", "src/d", "src/d/f"] {
                    assert_eq!(owner(new), (1234, 5678), "{new} is whose directory it is");
                }
            }
            assert_eq!(of("prog").mode() & 0o7777, 0o755);
            assert_eq!(of("src/d").mode() & 0o7777, 0o1777);
            assert_eq!(of("b.txt").mode() & 0o7777, 0o711, "the content is another");
            assert_eq!(of("same").mode() & 0o7777, 0o4711, "it had the bit before");
            assert_eq!(desk.apply(&*sandbox).await.steps, [], "once more");
            assert_eq!(
                (of("src/new").mtime(), of("src/new").mtime_nsec()),
                (981_173_106, 789_000_000)
            );
        });
    }
}

#[test]
fn what_has_no_place_in_a_directory_of_files_stays_behind_and_is_told() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            let script = "mkfifo fifo; mkdir d; mkfifo d/fifo; echo x > d/file; mkdir .forkpoint-apply-x
                echo x > .forkpoint-apply-x/mark; rm b.txt; mkfifo b.txt; ln a.txt hard; echo more >> hard
                python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('socket')\"";
            sh(&*sandbox, script).await;
            let report = desk.apply(&*sandbox).await;
            let left: Vec<_> =
                report.skipped.iter().map(|each| each.path.to_str().unwrap()).collect();
            let ours = [".forkpoint-apply-x", ".forkpoint-apply-x/mark"];
            let expected = [ours[0], ours[1], "b.txt", "d/fifo", "fifo", "socket"];
            assert_eq!(left, expected, "{report:?}");
            assert_eq!(desk.read("d/file") + &desk.read("b.txt"), "x\nb");
            assert_eq!(desk.read("a.txt"), desk.read("hard"));
            assert!(desk.is_clean());
        });
    }
}

#[test]
fn names_that_are_not_text_come_home() {
    for mode in MODES {
        let desk = Desk::with_files();
        let odd = OsStr::from_bytes(b"\xff\n \"odd\"");
        fs::write(desk.dir().join(odd), "1").unwrap();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, "for f in *odd*; do printf 2 > \"$f\"; mkdir \"$f.d\"; printf 3 > \"$f.d/$f\"; done")
                .await;
            desk.apply(&*sandbox).await;
            let mut made = odd.to_owned();
            made.push(".d");
            assert_eq!(fs::read(desk.dir().join(odd)).unwrap(), b"2");
            assert_eq!(fs::read(desk.dir().join(made).join(odd)).unwrap(), b"3");
            sh(&*sandbox, "for f in *odd*[!d]; do printf 4 > \"$f\"; done").await;
            desk.apply(&*sandbox).await;
            assert_eq!(fs::read(desk.dir().join(odd)).unwrap(), b"4", "its note is found again");
        });
    }
}

#[test]
fn git_may_look_on_both_sides() {
    for mode in MODES {
        let desk = Desk::with_files();
        let git = |args: &[&str]| {
            let mut git = std::process::Command::new("git");
            git.args(["-c", "user.name=x", "-c", "user.email=x@y", "-C"]).arg(desk.dir());
            let output = git.args(args).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        git(&["init", "-q"]);
        git(&["add", "-A"]);
        git(&["commit", "-qm", "one"]);
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            let git_inside = "git -c safe.directory=* -c user.name=x -c user.email=x@y";
            sh(&*sandbox, &format!("echo x > a.txt; touch b.txt; {git_inside} status")).await;
            symlink("a.txt", desk.path("mine")).unwrap();
            fs::remove_file(desk.path("mine")).unwrap();
            fs::write(desk.path(".git/index"), fs::read(desk.path(".git/index")).unwrap()).unwrap();
            let report = desk.apply(&*sandbox).await;
            assert_eq!(steps(&report), [("a.txt".to_owned(), Change)]);
            assert_eq!(git(&["status", "--short"]), " M a.txt\n");
            sh(&*sandbox, &format!("{git_inside} commit -qam two")).await;
            let report = desk.apply_as(&*sandbox, &forced()).await;
            assert!(report.done, "{report:?}");
            assert_eq!(git(&["status", "--short"]), "");
            assert_eq!(git(&["log", "--format=%s"]), "two\none\n");
        });
    }
}

#[test]
fn a_directory_that_may_not_be_written_to_comes_home_as_one() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            let script = "mkdir -p ro/in; echo x > ro/in/x; chmod 555 ro/in ro
                rm a.txt; mkdir a.txt; echo x > a.txt/x; chmod 500 a.txt";
            sh(&*sandbox, script).await;
            desk.apply(&*sandbox).await;
            let of = |path: &str| fs::metadata(desk.path(path)).unwrap().mode() & 0o777;
            assert_eq!((of("ro"), of("ro/in"), of("a.txt")), (0o555, 0o555, 0o500));
            assert_eq!(desk.read("ro/in/x") + &desk.read("a.txt/x"), "x\nx\n");
            assert_eq!(desk.apply(&*sandbox).await.steps, [], "once more");
        });
        for path in ["ro", "ro/in", "a.txt"] {
            set_mode(&desk.path(path), 0o755);
        }
    }
}

#[test]
fn names_of_one_file_come_home_together() {
    for mode in MODES {
        let desk = Desk::with_files();
        for name in ["one", "two", "three"] {
            fs::hard_link(desk.path("a.txt"), desk.path(name)).unwrap();
        }
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            let script = "echo x > one; echo y > two; rm three; chmod 600 a.txt";
            sh(&*sandbox, script).await;
            desk.apply(&*sandbox).await;
            assert!(!desk.path("three").exists());
            let inside = sh(&*sandbox, "cat one two a.txt").await;
            assert_eq!(desk.read("one") + &desk.read("two") + &desk.read("a.txt"), inside);
        });
    }
}

#[test]
fn what_lies_too_deep_keeps_nothing_else_from_coming_home() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            let script = "echo x > a.txt; mkdir deep; cd deep; n=$(printf %0200d 0)
                i=0; while [ $i -lt 30 ]; do mkdir $n; cd $n; i=$((i+1)); done; echo x > x";
            sh(&*sandbox, script).await;
            let err = desk.try_apply(&*sandbox, &ApplyRequest::default()).await.unwrap_err();
            assert!(with_causes(&err).contains("deeper than a path"), "{err}");
            assert!(desk.apply_as(&*sandbox, &only(&["a.txt"])).await.done);
            assert_eq!(desk.read("a.txt"), "x\n");
        });
    }
}
