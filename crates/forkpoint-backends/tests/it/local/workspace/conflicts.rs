//! What the host did meanwhile is not overwritten, and not undone.

use std::{
    fs::{self, File},
    time::{Duration, SystemTime},
};

use super::{
    super::scene::{seal, sh, start},
    *,
};

const CHANGED: &str = "changed on the host";
const DELETED: &str = "deleted on the host";
const MADE: &str = "made on the host";

fn found(conflicts: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
    conflicts.iter().map(|(path, reason)| ((*path).to_owned(), *reason)).collect()
}

#[test]
fn a_file_that_both_changed_is_a_conflict() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, "echo theirs > a.txt; echo theirs > b.txt; rm src/main.rs").await;
            desk.write("a.txt", "mine");
            desk.write("src/main.rs", "mine");
            let expected = found(&[("a.txt", CHANGED), ("src/main.rs", CHANGED)]);
            assert_eq!(desk.conflicts(&*sandbox).await, expected);
            // Others can be had.
            assert!(desk.apply_as(&*sandbox, &only(&["b.txt"])).await.done);
            assert_eq!(desk.read("b.txt"), "theirs\n");
            assert_eq!(desk.conflicts(&*sandbox).await, expected);
            assert!(desk.apply_as(&*sandbox, &forced()).await.done);
            assert_eq!(desk.read("a.txt"), "theirs\n");
            assert!(!desk.path("src/main.rs").exists());
        });
    }
}

#[test]
fn a_file_that_both_have_alike_is_none() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(
                &*sandbox,
                "printf same > a.txt; printf same > new; rm b.txt; mkdir d; printf x > d/x",
            )
            .await;
            desk.write("a.txt", "same");
            desk.write("new", "same");
            desk.write("d/x", "x");
            fs::remove_file(desk.path("b.txt")).unwrap();
            assert_eq!(desk.apply(&*sandbox).await.steps, []);
        });
    }
}

#[test]
fn what_was_only_touched_is_told_from_what_was_changed_where_a_copy_tells() {
    let later = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    let touch = |desk: &Desk| {
        desk.write("a.txt", "a");
        File::open(desk.path("b.txt")).unwrap().set_modified(later).unwrap();
    };
    let desk = Desk::with_files();
    desk.scene.run(async {
        let sandbox = desk.enter(WorkspaceMode::Copy).await;
        sh(&*sandbox, "echo x > a.txt; rm b.txt").await;
        touch(&desk);
        desk.apply(&*sandbox).await;
        assert_eq!(desk.read("a.txt"), "x\n");
    });
    let desk = Desk::with_files();
    desk.scene.run(async {
        let sandbox = desk.enter(WorkspaceMode::Live).await;
        sh(&*sandbox, "echo x > a.txt; rm b.txt").await;
        touch(&desk);
        let expected = found(&[("a.txt", CHANGED), ("b.txt", CHANGED)]);
        assert_eq!(desk.conflicts(&*sandbox).await, expected, "nobody can tell");
    });
}

#[test]
fn dates_that_were_set_back_hide_nothing() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let sandbox = desk.enter(WorkspaceMode::Live).await;
        sh(&*sandbox, "echo theirs > a.txt; echo theirs > b.txt").await;
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        desk.write("a.txt", "x");
        File::open(desk.path("a.txt")).unwrap().set_modified(long_ago).unwrap();
        desk.write("other", "y");
        File::open(desk.path("other")).unwrap().set_modified(long_ago).unwrap();
        fs::rename(desk.path("other"), desk.path("b.txt")).unwrap();
        let expected = found(&[("a.txt", CHANGED), ("b.txt", CHANGED)]);
        assert_eq!(desk.conflicts(&*sandbox).await, expected);
    });
}

#[test]
fn a_file_that_both_added_is_a_conflict() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, "echo theirs > new; mkdir d; echo theirs > d/new").await;
            desk.write("new", "mine");
            desk.write("d/new", "mine");
            let reason = if mode == WorkspaceMode::Live { CHANGED } else { MADE };
            let expected = found(&[("d/new", reason), ("new", reason)]);
            assert_eq!(desk.conflicts(&*sandbox).await, expected);
            assert!(desk.apply_as(&*sandbox, &forced()).await.done);
            assert_eq!(desk.read("d/new"), "theirs\n");
        });
    }
}

#[test]
fn a_directory_that_the_host_put_things_into_is_not_deleted() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, "rm -r src").await;
            desk.write("src/deep/mine", "mine");
            let reason = if mode == WorkspaceMode::Live { CHANGED } else { MADE };
            assert_eq!(desk.conflicts(&*sandbox).await, found(&[("src/deep/mine", reason)]));
            let report = desk.apply_as(&*sandbox, &forced()).await;
            assert!(report.done);
            if mode == WorkspaceMode::Copy {
                assert_eq!(desk.read("src/deep/mine"), "mine", "the sandbox never knew it");
                assert_eq!(report.skipped.len(), 2, "{report:?}");
            }
            assert!(!desk.path("src/main.rs").exists());
        });
    }
}

#[test]
fn a_file_that_the_host_deleted_and_the_sandbox_changed_is_a_conflict() {
    for mode in MODES {
        for captured in [false, true] {
            let desk = Desk::with_files();
            desk.scene.run(async {
                let sandbox = desk.enter(mode).await;
                sh(&*sandbox, "echo more >> a.txt; echo more >> src/deep/er/file").await;
                if captured {
                    let _busy = start(&*sandbox, "echo on; exec sleep 1000").await;
                    let artifact = seal(&*sandbox).await;
                    let spec = desk.scene.record(sandbox.id())["spec"].clone();
                    let spec: SandboxSpec = serde_json::from_value(spec).unwrap();
                    delete(&desk);
                    let copy = desk.restore(&spec, &artifact).await;
                    check(&desk, &*copy, mode).await;
                } else {
                    delete(&desk);
                    check(&desk, &*sandbox, mode).await;
                }
            });
        }
    }

    fn delete(desk: &Desk) {
        fs::remove_file(desk.path("a.txt")).unwrap();
        fs::remove_dir_all(desk.path("src/deep")).unwrap();
    }

    async fn check(desk: &Desk, sandbox: &dyn Sandbox, mode: WorkspaceMode) {
        let mut expected = vec![("a.txt", DELETED), ("src/deep/er/file", DELETED)];
        if mode == WorkspaceMode::Copy {
            expected.extend([("src/deep", DELETED), ("src/deep/er", DELETED)]);
            expected.sort_unstable();
        }
        assert_eq!(desk.conflicts(sandbox).await, found(&expected));
        assert!(desk.apply_as(sandbox, &forced()).await.done);
        assert_eq!(desk.read("src/deep/er/file"), "deepmore\n");
    }
}

#[test]
fn a_file_that_the_sandbox_moved_was_not_deleted_by_anybody() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, "mv a.txt c.txt; chmod 600 b.txt; mv b.txt d.txt; echo more >> d.txt")
                .await;
            desk.apply(&*sandbox).await;
            assert_eq!(desk.read("c.txt") + &desk.read("d.txt"), "abmore\n");
            assert!(!desk.path("a.txt").exists());
        });
    }
}

#[test]
fn what_was_applied_and_then_changed_by_the_host_is_a_conflict_again() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, "echo one > a.txt; echo one > new").await;
            desk.apply(&*sandbox).await;
            sh(&*sandbox, "echo two > a.txt; echo two > new").await;
            desk.write("a.txt", "mine");
            assert_eq!(desk.conflicts(&*sandbox).await, found(&[("a.txt", CHANGED)]));
            assert_eq!(desk.read("new"), "one\n");
        });
    }
}

#[test]
fn a_file_where_the_host_has_a_directory_is_refused_even_with_force() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let sandbox = desk.enter(WorkspaceMode::Copy).await;
        sh(&*sandbox, "echo x > new; echo x > a.txt").await;
        desk.write("new/mine", "mine");
        let before = tree(&desk.dir());
        let report = desk.apply_as(&*sandbox, &forced()).await;
        let named = report.conflicts.iter().any(|each| each.path.ends_with("new/mine"));
        assert!(!report.done && named, "{report:?}");
        assert_eq!(tree(&desk.dir()), before);
    });
}

type Moves = &'static [(&'static str, &'static str)];

/// What is made before a sandbox begins, what it does then, what the host moves meanwhile, and what
/// would be lost.
const MOVES: [(&str, &str, Moves, &str); 6] = [
    ("photos/p", "rm -r src", &[("photos", "src/photos")], "src/photos/p"),
    ("old/f", "mkdir new; echo s > new/f", &[("old", "new")], "new/f"),
    ("keep/k", "echo b >> a.txt", &[("a.txt", "a.old"), ("keep", "a.txt")], "a.txt/k"),
    ("c/main.rs", "echo s >> src/main.rs", &[("src", "b"), ("c", "src")], "src/main.rs"),
    ("c/main.rs", "rm src/main.rs", &[("src", "b"), ("c", "src")], "src/main.rs"),
    (
        "c/er/file",
        "echo s > src/deep/er/file",
        &[("src/deep", "b"), ("c", "src/deep")],
        "src/deep/er/file",
    ),
];

#[test]
fn a_directory_that_the_host_moved_there_is_not_overwritten() {
    for (made, script, moves, precious) in MOVES {
        let desk = Desk::with_files();
        desk.write(made, "precious");
        desk.scene.run(async {
            let sandbox = desk.enter(WorkspaceMode::Live).await;
            sh(&*sandbox, script).await;
            for (from, to) in moves {
                fs::rename(desk.path(from), desk.path(to)).unwrap();
            }
            let conflicts = desk.conflicts(&*sandbox).await;
            assert!(conflicts.contains(&(precious.to_owned(), CHANGED)), "{script}: {conflicts:?}");
            assert_eq!(desk.read(precious), "precious");
        });
    }
}

#[test]
fn a_workspace_that_was_put_in_anothers_place_is_not_overwritten() {
    let desk = Desk::with_files();
    let home = TempDir::new().unwrap();
    let (work, other) = (home.path().join("work"), home.path().join("other"));
    for (directory, text) in [(&work, "theirs"), (&other, "precious")] {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("a.txt"), text).unwrap();
    }
    desk.scene.run(async {
        let mut spec = desk.spec(WorkspaceMode::Live).await;
        spec.workspaces[0].source = HostPath::new(fs::canonicalize(&work).unwrap()).unwrap();
        let sandbox = desk.scene.create_as(&spec).await;
        sh(&*sandbox, "echo more >> a.txt").await;
        fs::rename(&work, home.path().join("work.old")).unwrap();
        fs::rename(&other, &work).unwrap();
        assert_eq!(desk.conflicts(&*sandbox).await, found(&[("a.txt", CHANGED)]));
        assert_eq!(fs::read_to_string(work.join("a.txt")).unwrap(), "precious");
    });
}

#[test]
fn what_the_host_adds_or_edits_elsewhere_is_no_conflict() {
    let desk = Desk::with_files();
    desk.write("src/other.rs", "other");
    desk.scene.run(async {
        let sandbox = desk.enter(WorkspaceMode::Live).await;
        sh(
            &*sandbox,
            "echo s >> src/main.rs; rm src/deep/er/file; echo s > a.txt; mkdir n; echo s > n/f",
        )
        .await;
        for mine in
            ["mine", "src/mine", "src/deep/mine", "src/deep/er/mine", "n/mine", "src/other.rs"]
        {
            desk.write(mine, "mine");
        }
        fs::remove_file(desk.path("b.txt")).unwrap();
        desk.apply(&*sandbox).await;
        assert_eq!(desk.read("src/main.rs") + &desk.read("n/f"), "mains\ns\n");
        assert_eq!(desk.read("src/other.rs") + &desk.read("n/mine"), "minemine");
    });
}

#[test]
fn two_sandboxes_do_not_overwrite_what_the_other_brought_home() {
    for mode in MODES {
        for forked in [false, true] {
            let desk = Desk::with_files();
            desk.scene.run(async {
                let spec = desk.spec(mode).await;
                let one = desk.scene.create_as(&spec).await;
                let other = match forked {
                    true => desk.restore(&spec, &seal(&*one).await).await,
                    false => desk.scene.create_as(&spec).await,
                };
                sh(&*one, "echo one > a.txt; echo one > new; rm b.txt; mkdir d; echo one > d/f")
                    .await;
                sh(&*other, "echo other > a.txt; echo other > new; echo other >> b.txt").await;
                desk.apply(&*one).await;
                let expected = match mode {
                    WorkspaceMode::Live => {
                        [("a.txt", CHANGED), ("b.txt", DELETED), ("new", CHANGED)]
                    }
                    WorkspaceMode::Copy => [("a.txt", CHANGED), ("b.txt", DELETED), ("new", MADE)],
                };
                assert_eq!(desk.conflicts(&*other).await, found(&expected));
                assert!(desk.apply_as(&*other, &forced()).await.done);
                assert_eq!(desk.read("d/f"), "one\n", "the other never knew it");
                sh(&*one, "echo again > a.txt").await;
                assert!(desk.conflicts(&*one).await.contains(&("a.txt".to_owned(), CHANGED)));
            });
        }
    }
}

#[test]
fn a_fork_of_what_was_brought_home_goes_on_with_it() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let spec = desk.spec(mode).await;
            let sandbox = desk.scene.create_as(&spec).await;
            sh(&*sandbox, "echo one > a.txt; rm b.txt").await;
            desk.apply(&*sandbox).await;
            let fork = desk.restore(&spec, &seal(&*sandbox).await).await;
            sh(&*fork, "echo two > a.txt; echo back > b.txt").await;
            desk.apply(&*fork).await;
            assert_eq!(desk.read("a.txt") + &desk.read("b.txt"), "two\nback\n");
            sh(&*sandbox, "echo three > a.txt").await;
            assert!(desk.conflicts(&*sandbox).await.contains(&("a.txt".to_owned(), CHANGED)));
        });
    }
}

/// As editors do: the old one is put aside, and a new one written. What is put aside is the host's file
/// under a name that the host never had.
#[test]
fn a_file_that_was_put_aside_and_written_anew_is_no_conflict() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, "mv a.txt a.old; echo new > a.txt; mv b.txt b.old; ln -s b.old b.txt")
                .await;
            let (a, b) = (desk.read("a.txt"), desk.read("b.txt"));
            desk.apply(&*sandbox).await;
            assert_eq!((desk.read("a.old"), desk.read("b.old")), (a, b));
            assert_eq!(desk.read("a.txt"), "new\n");
        });
    }
}

/// Taking one name of a file away dates the file anew, under all names that it has left.
#[test]
fn a_file_of_several_names_is_no_conflict_when_one_of_them_was_brought_home() {
    for mode in MODES {
        let desk = Desk::with_files();
        fs::hard_link(desk.path("a.txt"), desk.path("second")).unwrap();
        fs::hard_link(desk.path("a.txt"), desk.path("third")).unwrap();
        fs::hard_link(desk.path("a.txt"), desk.path("fourth")).unwrap();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, "rm a.txt").await;
            desk.apply(&*sandbox).await;
            sh(&*sandbox, "rm second; echo new > second").await;
            desk.apply(&*sandbox).await;
            sh(&*sandbox, "rm third").await;
            desk.apply(&*sandbox).await;
            assert_eq!(desk.read("second"), "new\n");
            assert!(!desk.path("third").exists());
            fs::write(desk.path("fourth"), "the host's\n").unwrap();
            sh(&*sandbox, "rm fourth").await;
            assert_eq!(desk.conflicts(&*sandbox).await, found(&[("fourth", CHANGED)]));
        });
    }
}

/// What was forced over one name says nothing of the others.
#[test]
fn a_file_of_several_names_that_the_host_changed_stays_a_conflict_when_one_was_forced() {
    for mode in MODES {
        let desk = Desk::with_files();
        fs::hard_link(desk.path("a.txt"), desk.path("second")).unwrap();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            fs::write(desk.path("a.txt"), "the host's\n").unwrap();
            sh(&*sandbox, "rm a.txt").await;
            let force = ApplyRequest { force: true, ..ApplyRequest::default() };
            assert!(desk.apply_as(&*sandbox, &force).await.done);
            sh(&*sandbox, "rm second").await;
            assert_eq!(desk.conflicts(&*sandbox).await, found(&[("second", CHANGED)]));
        });
    }
}

/// Which of the files that look like it is the one that was moved, nobody can tell by looking.
#[test]
fn a_file_that_was_moved_and_has_a_double_is_no_conflict() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            let text = desk.read("a.txt");
            sh(&*sandbox, "mkdir m; mv a.txt m/m; cat m/m > 0; cat m/m > m/0; cat m/m > z").await;
            desk.apply(&*sandbox).await;
            for name in ["m/m", "0", "m/0", "z"] {
                assert_eq!(desk.read(name), text);
            }
        });
    }
}

#[test]
fn a_file_that_the_host_deleted_is_a_conflict_though_the_sandbox_replaced_another() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, "echo more >> a.txt; mv b.txt b.old; echo new > b.txt").await;
            fs::remove_file(desk.path("a.txt")).unwrap();
            let conflicts = desk.conflicts(&*sandbox).await;
            assert!(conflicts.contains(&found(&[("a.txt", DELETED)])[0]), "{conflicts:?}");
        });
    }
}

#[test]
fn a_file_that_the_host_deleted_is_a_conflict_though_the_sandbox_deleted_another() {
    for mode in MODES {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(mode).await;
            sh(&*sandbox, "echo more >> a.txt; rm b.txt").await;
            fs::remove_file(desk.path("a.txt")).unwrap();
            assert_eq!(desk.conflicts(&*sandbox).await, found(&[("a.txt", DELETED)]));
        });
    }
}
