//! `--help`, `--version`, and what a mistake prints.

use std::process::Command;

use crate::harness::Run;

pub(crate) const VERBS: [&str; 33] = [
    "demo",
    "doctor",
    "run",
    "create",
    "exec",
    "ps",
    "rm",
    "stop",
    "start",
    "pause",
    "resume",
    "snapshot",
    "restore",
    "rollback",
    "fork",
    "list",
    "show",
    "log",
    "diff",
    "ls",
    "cat",
    "cp",
    "apply",
    "edit",
    "delete",
    "watch",
    "prune",
    "stats",
    "validate",
    "import-legacy",
    "template",
    "config",
    "completions",
];

fn forkpoint(args: &[&str]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forkpoint"));
    command.args(args).env("COLUMNS", "100").env_remove("FORKPOINT_DATA_DIR");
    Run::of(command.output().expect("the binary starts"))
}

#[test]
fn help_goes_to_stdout() {
    let run = forkpoint(&["--help"]);
    insta::assert_snapshot!(run.stdout);
    assert_eq!((run.stderr.as_str(), run.code), ("", Some(0)));
}

#[test]
fn every_verb_has_help_with_examples() {
    let short = forkpoint(&["-h"]).stdout;
    for verb in VERBS {
        let run = forkpoint(&[verb, "--help"]);
        assert!(run.stdout.contains(&format!("Examples:\n  forkpoint {verb}")), "{run:?}");
        assert!(run.stdout.lines().all(|line| line.chars().count() <= 100), "{}", run.stdout);
        assert!(short.contains(&format!("\n  {verb} ")), "{verb} is missing in {short}");
        let own = run.stdout.split("Global options:").next().unwrap_or_default().to_owned();
        let examples = run.stdout.split("Examples:").nth(1).unwrap_or_default();
        insta::assert_snapshot!(format!("help_{verb}"), format!("{own}Examples:{examples}"));
    }
}

#[test]
fn every_verb_of_templates_has_help_with_examples() {
    for verb in ["ls", "add", "rm", "promote"] {
        let run = forkpoint(&["template", verb, "--help"]);
        assert!(run.stdout.contains(&format!("Examples:\n  forkpoint template {verb}")), "{run:?}");
        assert!(run.stdout.lines().all(|line| line.chars().count() <= 100), "{}", run.stdout);
    }
}

#[test]
fn version_is_one_line() {
    let run = forkpoint(&["--version"]);
    assert_eq!(run.stdout, format!("forkpoint {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!((run.stderr.as_str(), run.code), ("", Some(0)));
}

#[test]
fn nothing_asked_is_a_usage_error() {
    let run = forkpoint(&[]);
    assert_eq!((run.stdout.as_str(), run.code), ("", Some(2)));
    assert!(run.stderr.contains("Usage: forkpoint") && run.stderr.contains("demo"), "{run:?}");
}

#[test]
fn a_mistake_names_itself() {
    let run = forkpoint(&["snapshoot"]);
    assert_eq!((run.stdout.as_str(), run.code), ("", Some(2)));
    assert!(run.stderr.contains("'snapshoot'") && run.stderr.contains("--help"), "{run:?}");
    assert!(run.stderr.contains("'snapshot'"), "the nearest verb: {run:?}");
}
