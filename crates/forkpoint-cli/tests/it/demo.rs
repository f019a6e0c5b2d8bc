//! The guided tour works, and leaves nothing behind.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::Signal;

use crate::harness::{Run, Started, ended, signal};

/// A tour whose temporary directory can be looked at.
fn demo(temp: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forkpoint"));
    command.arg("demo").env("TMPDIR", temp).env_remove("FORKPOINT_DATA_DIR");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).expect("a directory").next().is_none()
}

/// Processes that hold something of the tour's place open.
fn left_running(temp: &Path) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    let open = |process: &PathBuf| {
        let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let links =
            files.map(|file| file.path()).chain([process.join("cwd"), process.join("root")]);
        let mut seen = links.filter_map(|link| std::fs::read_link(link).ok());
        seen.any(|target| target.starts_with(temp))
    };
    processes.map(|entry| entry.path()).filter(open).collect()
}

#[test]
fn the_tour_shows_every_step_and_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let run = Run::of(demo(temp.path()).output().unwrap());
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{run:?}");
    let steps = [
        "prepare", "create", "work", "snapshot", "break", "diff", "rollback", "fork", "diverge",
        "log", "clean up",
    ];
    for step in steps {
        let line = run.stdout.lines().find(|line| line.starts_with(&format!("  {step} ")));
        assert!(line.is_some_and(|line| line.ends_with(" ms")), "{step}: {}", run.stdout);
    }
    assert!(run.stdout.contains("◀ agent"), "{}", run.stdout);
    assert!(!run.stdout.contains('\u{1b}'), "no colours in a pipe");
    assert!(is_empty(temp.path()), "something is left");
    assert_eq!(left_running(temp.path()), Vec::<PathBuf>::new());
}

#[test]
fn the_tour_as_json_is_steps_and_times() {
    let temp = tempfile::tempdir().unwrap();
    let run = Run::of(demo(temp.path()).args(["--json", "-n", "1"]).output().unwrap());
    let report = run.json();
    assert!(report["total_ms"].is_f64() && report["steps"][0]["ms"].is_f64(), "{report}");
    assert_eq!(report["steps"][1]["name"], "create");
}

#[test]
fn an_interrupted_tour_leaves_nothing_either() {
    for sent in [Signal::INT, Signal::TERM] {
        let temp = tempfile::tempdir().unwrap();
        let mut child = Started::spawn(demo(temp.path()).args(["-n", "20"]));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines
            .find(|line| line.as_ref().is_ok_and(|line| line.starts_with("  create")))
            .unwrap()
            .unwrap();
        signal(&child, sent);
        lines.for_each(drop);
        let run = ended(child);
        assert_eq!(run.code, Some(130), "{run:?}");
        assert!(run.stderr.contains("cleaned up"), "{run:?}");
        assert!(is_empty(temp.path()), "something is left");
    }
}

#[test]
fn a_reader_that_leaves_ends_the_tour_cleanly() {
    let temp = tempfile::tempdir().unwrap();
    let mut child = Started::spawn(&mut demo(temp.path()));
    drop(child.stdout.take());
    let run = ended(child);
    assert!(!run.stderr.contains("panicked"), "{run:?}");
    assert!(is_empty(temp.path()), "something is left");
}
