//! `watch`, on containers and others.

use std::{
    io::{BufRead as _, BufReader},
    process::ChildStdout,
};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::Dock;
use crate::harness::{Home, Run, Started, ended, signal, until};

/// A watch whose lines are read as they come.
struct Watching {
    child: Started,
    lines: BufReader<ChildStdout>,
}

impl Watching {
    fn begin(home: &Home, args: &[&str]) -> Self {
        let mut child = home.start(["watch", "--json"].iter().chain(args));
        let lines = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, lines }
    }

    /// The next thing that happened, if it is not only the clock that found nothing new.
    fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).expect("a line"), 0, "it ended");
            let told: Value = serde_json::from_str(&line).expect("it tells JSON");
            if told["event"] != "skipped" {
                return told;
            }
        }
    }

    fn stop(self) -> Run {
        signal(&self.child, Signal::INT);
        ended(self.child)
    }
}

#[test]
fn a_container_is_kept_when_it_ends() {
    let dock = Dock::new();
    let web = dock.reference("web");
    // Fails when it is told to, in a way that is no signal.
    let script = "trap 'exit 0' TERM; while [ ! -e /fail ]; do sleep 0.1 & wait; done; exit 3";
    dock.start_running("web", &[], script);
    let clean = dock.ok(&["snapshot", &web]).id().to_owned();
    dock.ok(&["rm", "--force", &web]);
    let mut watching = Watching::begin(&dock.home, &[&web]);
    // It listens when it has adopted the container.
    while dock.ids().is_empty() {
        std::thread::yield_now();
    }
    dock.sh("web", "touch /fail");
    let told = watching.next();
    assert_eq!(
        (&told["event"], &told["snapshot"]["trigger"]),
        (&"taken".into(), &"on_error".into())
    );
    assert_eq!(told["snapshot"]["context"], "it ended with code 3");
    let failed = told["snapshot"]["id"].as_str().expect("an id").to_owned();
    assert_eq!(dock.ok(&["ls", &format!("{failed}:/fail")]).code, Some(0));

    dock.ok(&["rollback", &web, &clean]);
    dock.sh("web", "touch /fail");
    let mut again = watching.next();
    while again["snapshot"]["trigger"] != "on_error" {
        again = watching.next();
    }
    dock.docker(["rm", "-f", &dock.name("web")]);
    let mut last = watching.next();
    while last["event"] != "gone" {
        last = watching.next();
    }
    assert_eq!(ended(watching.child).code, Some(0));
}

#[test]
fn a_container_that_is_stopped_is_the_end_of_a_run() {
    let dock = Dock::new();
    let web = dock.reference("web");
    dock.start("web", &[]);
    let mut watching = Watching::begin(&dock.home, &[&web]);
    while dock.ids().is_empty() {
        std::thread::yield_now();
    }
    dock.docker(["stop", &dock.name("web")]);
    assert_eq!(watching.next()["snapshot"]["trigger"], "run_end");
    dock.docker(["start", &dock.name("web")]);
    assert_eq!(watching.next()["event"], "started");
    let run = watching.stop();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(dock.ok(&["stats", "--json"]).json()["open_operations"], 0);
}

#[test]
fn the_clock_takes_what_changed_and_limits_hold() {
    let home = Home::with_web();
    let config = home.path().join("limits.toml");
    std::fs::write(&config, "[retention]\nmax_per_sandbox = 2\n").expect("a file");
    let config = config.to_str().expect("a path");
    let mut watching = Watching::begin(&home, &["web", "--every", "100ms", "--config", config]);
    for number in 0..4 {
        home.sh("web", &format!("echo {number} > /note"));
        let told = watching.next();
        assert_eq!(told["snapshot"]["trigger"], "periodic", "{told}");
    }
    let run = watching.stop();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(home.ok(["list", "-q"]).stdout.lines().count(), 2);
    home.sh("web", "echo last > /note");
    let counted = home.ok(["watch", "web", "--every", "50ms", "--count", "1"]);
    assert!(
        counted.stderr.contains("every 50ms") && counted.stdout.starts_with("snp"),
        "{counted:?}"
    );
    let deaf = home.run(["watch", "web"]);
    assert!(deaf.code == Some(5) && deaf.stderr.contains("--every"), "{deaf:?}");
    let missing = home.run(["watch", "nobody", "--every", "1s"]);
    assert_eq!(missing.code, Some(3), "{missing:?}");
}

#[test]
fn ctrl_c_is_how_a_watch_ends_also_while_it_takes_a_snapshot() {
    let home = Home::with_web();
    let config = home.path().join("slow.toml");
    let slow = "[hooks]\nbefore_snapshot = \"touch /begun; sleep 1\"\n";
    std::fs::write(&config, slow).expect("a file");
    let config = config.to_str().expect("a path");
    let mut watching = Watching::begin(&home, &["web", "--every", "50ms", "--config", config]);
    let begun = || home.run(["exec", "web", "--", "test", "-e", "/begun"]).code == Some(0);
    assert!(until(begun), "a snapshot is under way");
    signal(&watching.child, Signal::INT);
    assert_eq!(watching.next()["event"], "taken", "it is finished");
    let run = ended(watching.child);
    assert_eq!(run.code, Some(0), "{run:?}");
}

#[test]
fn a_watch_outlives_the_engine() {
    let directory = TempDir::new().expect("a directory");
    let dock = Dock::alone(directory.path());
    let web = dock.reference("web");
    dock.start("web", &["--restart", "always"]);
    let mut watching = Watching::begin(&dock.home, &[&web]);
    while dock.ids().is_empty() {
        std::thread::yield_now();
    }
    dock.engine.kill();
    assert_eq!(watching.next()["event"], "away");
    dock.engine.await_answer();
    assert_eq!(watching.next()["event"], "back");
    dock.docker(["stop", &dock.name("web")]);
    let mut told = watching.next();
    while told["event"] != "taken" {
        told = watching.next();
    }
    assert_eq!(told["snapshot"]["trigger"], "run_end");
    assert_eq!(watching.stop().code, Some(0));
}
