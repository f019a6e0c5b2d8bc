//! `run` and `exec`: streams, exit codes, signals.

use std::io::{BufRead as _, BufReader, Read as _};

use rustix::process::Signal;

use crate::harness::{Home, Run, Started, assert_told, ended, signal};

#[test]
fn the_exit_code_is_the_commands_own() {
    let home = Home::with_web();
    for code in [0, 1, 3, 42, 255] {
        let run = home.run(["exec", "web", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (Some(code), "", ""));
    }
    let run = home.run(["exec", "web", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(run.code, Some(137), "{run:?}");
}

#[test]
fn what_cannot_be_run_has_codes_of_its_own() {
    let home = Home::with_web();
    assert_told!(home.run(["exec", "web", "--", "nosuch"]).told(), @r"
    error: there is no command `nosuch` in the sandbox
    hint: commands are looked for inside the sandbox, along its PATH
    exit code 127
    ");
    let refused = home.run(["exec", "web", "--", "/etc"]);
    assert_eq!(refused.code, Some(126), "{refused:?}");
    let gone = home.run(["exec", "nosuch", "--", "true"]);
    assert_eq!(gone.code, Some(125), "{gone:?}");
}

#[test]
fn a_command_without_its_dashes_is_told_so() {
    let home = Home::new();
    for args in [&["exec", "web", "ls"][..], &["run", "ls", "-l"]] {
        let run = home.run(args);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains("hint: a command stands behind `--`"), "{run:?}");
    }
    let other = home.run(["exec", "--nosuch", "web", "--", "ls"]);
    assert!(!other.stderr.contains("hint: a command stands"), "{other:?}");
}

#[test]
fn what_is_missing_inside_is_no_other_sandbox() {
    let home = Home::with_web();
    let run = home.run(["exec", "-w", "/nowhere", "web", "--", "true"]);
    assert_told!(run.told(), @r"
    error: there is no `/nowhere` in sandbox `[sbx]`
    exit code 125
    ");
    let run = home.run(["exec", "-u", "nosuch", "web", "--", "true"]);
    assert_eq!(run.code, Some(125), "{run:?}");
    assert!(run.stderr.contains("`nosuch`"), "{run:?}");
}

#[test]
fn both_streams_come_through_whole() {
    let home = Home::with_web();
    let run = home.run(["exec", "web", "--", "sh", "-c", "echo out; echo err >&2"]);
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("out\n", "err\n"));
    let long = home.ok(["exec", "web", "--", "seq", "200000"]).stdout;
    assert_eq!(long.lines().count(), 200_000);
    assert!(long.ends_with("\n200000\n"));
}

#[test]
fn input_is_empty_unless_asked_for() {
    let home = Home::with_web();
    assert_eq!(home.run_with_input(["exec", "web", "--", "cat"], b"hello").stdout, "");
    assert_eq!(home.run_with_input(["exec", "-i", "web", "--", "cat"], b"hello").stdout, "hello");
    let input: Vec<u8> = (0..1_000_000).map(|n: u32| b"0123456789"[n as usize % 10]).collect();
    let run = home.run_with_input(["exec", "-i", "web", "--", "wc", "-c"], &input);
    assert_eq!(run.stdout.trim(), "1000000");
}

#[test]
fn a_command_may_leave_input_unread() {
    let home = Home::with_web();
    let run = home.run_with_input(["exec", "-i", "web", "--", "true"], &[b'x'; 1 << 20]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
}

#[test]
fn environment_and_directory() {
    let home = Home::new();
    home.ok(["create", "--name=web", "--env=A=1", "--env=B=1", "--workdir=/srv"]);
    assert_eq!(home.sh("web", "echo $A $B $PWD"), "1 1 /srv\n");
    let script = "echo $A $B $TAKEN $PWD";
    let args = ["exec", "--env=B=2", "--env=TAKEN", "-w=/tmp", "web", "--", "sh", "-c", script];
    let run = Run::of(home.command(args).env("TAKEN", "here").output().unwrap());
    assert_eq!(run.stdout, "1 2 here /tmp\n", "{run:?}");
    let unset = home.run(["exec", "--env", "FORKPOINT_NEVER_SET", "web", "--", "true"]);
    assert_eq!(unset.code, Some(2), "{unset:?}");
}

#[test]
fn another_user() {
    let home = Home::with_web();
    let run = home.run(["exec", "--user=nobody", "web", "--", "id", "-un"]);
    if rustix::process::geteuid().is_root() {
        assert_eq!(run.stdout, "nobody\n", "{run:?}");
    } else {
        // A sandbox of somebody who is not root has one user.
        assert_eq!(run.code, Some(125), "{run:?}");
        assert!(run.stderr.contains("hint: `forkpoint doctor`"), "{run:?}");
    }
}

#[test]
fn a_timeout_is_124() {
    let home = Home::with_web();
    let run = home.run(["exec", "--timeout", "200ms", "web", "--", "sleep", "60"]);
    assert_told!(run.told(), @r"
    the command took too long, and was killed
    exit code 124
    ");
}

#[test]
fn what_stays_in_the_background_holds_nobody_up() {
    let home = Home::with_web();
    let run = home.ok(["exec", "web", "--", "sh", "-c", "sleep 600 & echo started"]);
    assert_eq!(run.stdout, "started\n");
    assert_eq!(home.sh("web", "pgrep -c sleep || cat /proc/[0-9]*/comm | grep -c sleep"), "1\n");
}

#[test]
fn run_makes_a_sandbox_and_leaves_it() {
    let home = Home::new();
    let run = home.run(["run", "--name", "web", "--", "sh", "-c", "echo hello; exit 5"]);
    assert_eq!((run.stdout.as_str(), run.code), ("hello\n", Some(5)), "{run:?}");
    assert_eq!(home.ok(["ps", "-q"]).stdout.lines().count(), 1);
}

#[test]
fn run_rm_leaves_nothing_however_it_ends() {
    let home = Home::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -15 $$", 143)] {
        assert_eq!(home.run(["run", "--rm", "--", "sh", "-c", script]).code, Some(code));
    }
    assert_eq!(home.run(["run", "--rm", "--", "nosuch"]).code, Some(127));
    assert_eq!(home.run(["run", "--rm", "--timeout=100ms", "--", "sleep", "9"]).code, Some(124));
    assert_eq!(home.ok(["ps", "-q"]).stdout, "");
}

#[test]
fn run_without_a_command_is_a_shell() {
    let home = Home::new();
    let run = home.run_with_input(["run", "--rm", "-i"], b"echo $((6 * 7)); exit 4\n");
    assert_eq!((run.stdout.as_str(), run.code), ("42\n", Some(4)), "{run:?}");
}

/// Waits for the line that a script prints when it is ready, sends a signal, and gives the rest.
fn after(mut child: Started, sent: Signal) -> (String, Option<i32>) {
    let mut stdout = BufReader::new(child.stdout.take().expect("its output"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    signal(&child, sent);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("the rest");
    (rest, ended(child).code)
}

#[test]
fn signals_go_to_the_command() {
    let home = Home::with_web();
    let script =
        "trap 'echo got; exit 7' INT TERM HUP QUIT; echo ready; while :; do sleep 0.05; done";
    for sent in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let child = home.start(["exec", "web", "--", "sh", "-c", script]);
        assert_eq!(after(child, sent), ("got\n".to_owned(), Some(7)), "{sent:?}");
    }
    let child = home.start(["exec", "web", "--", "sh", "-c", "echo ready; exec sleep 60"]);
    assert_eq!(after(child, Signal::TERM), (String::new(), Some(143)));
}

#[test]
fn run_rm_removes_after_a_signal_too() {
    let home = Home::new();
    let child = home.start(["run", "--rm", "--", "sh", "-c", "echo ready; exec sleep 60"]);
    assert_eq!(after(child, Signal::TERM), (String::new(), Some(143)));
    assert_eq!(home.ok(["ps", "-q"]).stdout, "");
}

#[test]
fn a_reader_that_leaves_ends_the_command_without_a_panic() {
    let home = Home::with_web();
    let mut child = home.start(["exec", "web", "--", "yes"]);
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "y\n");
    drop(stdout);
    let run = ended(child);
    assert_eq!(run.code, Some(141), "{run:?}");
    assert!(!run.stderr.contains("panicked"), "{run:?}");
}

#[test]
fn a_list_may_be_cut_short_by_its_reader() {
    let home = Home::with_web();
    let mut child = home.start(["ps"]);
    drop(child.stdout.take());
    let run = ended(child);
    assert!(!run.stderr.contains("panicked") && !run.stderr.contains("error"), "{run:?}");
}
