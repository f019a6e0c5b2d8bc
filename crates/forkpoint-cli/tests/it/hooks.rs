//! Hooks in real sandboxes.

use std::fs;

use crate::harness::{Home, Run, assert_told};

fn with_hooks(text: &str) -> Home {
    let home = Home::with_web();
    let dir = home.path().join("config/forkpoint");
    fs::create_dir_all(&dir).expect("a directory for it");
    fs::write(dir.join("forkpoint.toml"), format!("[hooks]\n{text}\n")).expect("a configuration");
    home
}

fn snapshots(home: &Home) -> usize {
    home.ok(["list", "-q"]).stdout.lines().count()
}

#[test]
fn hooks_run_inside_and_know_what_they_are_for() {
    let home = with_hooks(
        "before_snapshot = 'echo $FORKPOINT_HOOK $FORKPOINT_SNAPSHOT > /srv/before'\n\
         after_restore = 'echo $FORKPOINT_HOOK $FORKPOINT_SANDBOX > /srv/after'",
    );
    let id = home.ok(["snapshot", "web", "--name", "one"]).id().to_owned();
    let copy = home.ok(["restore", "one", "--name", "copy"]).id().to_owned();
    assert_eq!(home.sh("copy", "cat /srv/before"), format!("before_snapshot {id}\n"));
    assert_eq!(home.sh("copy", "cat /srv/after"), format!("after_restore {copy}\n"));
    home.ok(["rollback", "web"]);
    assert!(home.sh("web", "cat /srv/after").starts_with("after_restore sbx"));
    home.ok(["fork", "one", "-n", "2", "--name", "try"]);
    assert!(home.sh("try-2", "cat /srv/after").starts_with("after_restore sbx"));
}

#[test]
fn a_hook_that_fails_or_hangs_stops_what_it_belongs_to() {
    let home = with_hooks("before_snapshot = 'echo the database is locked >&2; exit 3'");
    assert_told!(home.run(["snapshot", "web"]).told(), @r"
    error: failed to take a snapshot of sandbox `web`: hook `before_snapshot` failed: it ended with code 3, and said: the database is locked
    exit code 6
    ");
    assert_eq!(snapshots(&home), 0);
    let home = with_hooks("timeout = '200ms'\nbefore_snapshot = 'sleep 1000'");
    let hung = home.run(["snapshot", "web"]);
    assert!(hung.stderr.contains("it took longer than 200ms, and was killed"), "{hung:?}");
    assert_eq!((hung.code, snapshots(&home)), (Some(6), 0));
    assert_eq!(home.sh("web", "echo works"), "works\n");
}

#[test]
fn what_a_hook_leaves_running_keeps_nobody_waiting() {
    let home = with_hooks("after_restore = 'sleep 1000 & echo started'");
    home.ok(["snapshot", "web", "--name", "one"]);
    home.ok(["restore", "one", "--name", "copy"]);
    assert!(home.ok(["validate", "copy"]).stdout.contains("(sleep)"));
}

/// How many of the sandbox's processes have a command line like this.
fn running(home: &Home, command: &str) -> usize {
    let script = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done";
    home.sh("web", script).lines().filter(|line| line.trim() == command).count()
}

#[test]
fn a_hook_before_a_snapshot_leaves_nothing_running() {
    let hook = "setsid sh -c 'trap : TERM; sleep 881; sleep 883' & env -i setsid sleep 881 &";
    let home = with_hooks(&format!("before_snapshot = \"{hook} echo on\""));
    home.ok(["snapshot", "web", "--name", "one"]);
    assert_eq!((running(&home, "sleep 881"), running(&home, "sleep 883")), (0, 0));
    let home = with_hooks(&format!("timeout = '300ms'\nbefore_snapshot = \"{hook} sleep 882\""));
    let run = home.run(["snapshot", "web"]);
    assert!(run.stderr.contains("it took longer than 300ms, and was killed"), "{run:?}");
    for command in ["sleep 881", "sleep 882", "sleep 883"] {
        assert_eq!(running(&home, command), 0, "{command}");
    }
    let home = with_hooks(&format!("after_restore = \"{hook} sleep 0.1; exit 3\""));
    home.ok(["snapshot", "web", "--name", "one"]);
    home.ok(["rollback", "web"]);
    assert_eq!(running(&home, "sleep 881"), 0, "it failed");
}

#[test]
fn a_warning_is_a_line_and_the_work_goes_on() {
    let home =
        with_hooks("on_failure = 'warn'\nbefore_snapshot = 'exit 1'\nafter_restore = 'exit 2'");
    let run: Run = home.ok(["snapshot", "web", "--name", "one"]);
    assert!(run.stderr.contains("warning: in sandbox `sbx"), "{run:?}");
    let run = home.ok(["restore", "one", "--name", "copy"]);
    assert!(run.stderr.contains("hook `after_restore` failed: it ended with code 2"), "{run:?}");
    home.ok(["stop", "web"]);
    let run = home.ok(["snapshot", "web"]);
    assert!(run.stderr.contains("was skipped") && run.stderr.contains("is stopped"), "{run:?}");
}

#[test]
fn a_copy_whose_hook_fails_is_gone() {
    let home = with_hooks("after_restore = 'exit 4'");
    home.ok(["snapshot", "web", "--name", "one"]);
    let run = home.run(["restore", "one", "--name", "copy"]);
    assert_eq!(run.code, Some(6), "{run:?}");
    assert!(run.stderr.contains("it ended with code 4"), "{run:?}");
    assert_eq!(home.ok(["ps", "-q"]).stdout.lines().count(), 1);
    let run = home.ok(["rollback", "web"]);
    assert!(run.stderr.contains("it ended with code 4"), "told, and rolled back: {run:?}");
}
