//! `--help`, `--version`, and what a mistake prints.

use std::process::{Command, Output};

fn forkpoint(args: &[&str]) -> (String, String, Option<i32>) {
    let Output { stdout, stderr, status } = Command::new(env!("CARGO_BIN_EXE_forkpoint"))
        .args(args)
        .env("COLUMNS", "100")
        .output()
        .expect("the binary starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints UTF-8");
    (text(stdout), text(stderr), status.code())
}

#[test]
fn help_goes_to_stdout() {
    let (stdout, stderr, code) = forkpoint(&["--help"]);
    insta::assert_snapshot!(stdout, @"
    Saves, rewinds and forks the sandboxes that AI agents work in

    Usage: forkpoint

    Options:
      -h, --help     Print help
      -V, --version  Print version

    This version holds the engine, its catalog and the harness that tests them.
    The commands (run, snapshot, rollback, fork, …) come with the embedded runtime.
    ");
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
}

#[test]
fn version_is_one_line() {
    let (stdout, stderr, code) = forkpoint(&["--version"]);
    assert_eq!(stdout, format!("forkpoint {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!((stderr.as_str(), code), ("", Some(0)));
}

#[test]
fn nothing_asked_is_a_usage_error() {
    let (stdout, stderr, code) = forkpoint(&[]);
    assert_eq!((stdout.as_str(), code), ("", Some(2)));
    assert!(stderr.contains("Usage: forkpoint"), "{stderr}");
}

#[test]
fn a_mistake_names_itself() {
    let (stdout, stderr, code) = forkpoint(&["snapshoot"]);
    assert_eq!((stdout.as_str(), code), ("", Some(2)));
    assert!(stderr.contains("'snapshoot'") && stderr.contains("--help"), "{stderr}");
}
