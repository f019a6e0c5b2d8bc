//! Full snapshots of containers: processes go on where they were, in another container.

use std::{path::Path, process::Command, sync::Arc};

use forkpoint_backends::driver::docker::DockerDriver;
use forkpoint_core::{
    driver::{Artifact, Driver, DriverError, Sandbox as _, SandboxState, Severity, SnapshotKind},
    id::{SandboxId, SnapshotId},
};
use forkpoint_testkit::docker::{DockerEngine, IMAGE};

use super::{Machine, runtime, spec, unique};

/// Counts in memory, and writes down how far it has come: into its own files, and into a volume.
const COUNT: &str = "i=0; while :; do i=$((i+1)); echo $i > /n.new; mv /n.new /n; \
    echo $i > /vol/n.new; mv /vol/n.new /vol/n; sleep 0.05; done";

struct Counter {
    machine: Machine,
    name: String,
}

impl Counter {
    fn start() -> Self {
        Self::with(&[])
    }

    fn with(options: &[&str]) -> Self {
        let counter = Self { machine: Machine::new(), name: format!("counter-{:x}", unique()) };
        let mut args = vec!["run", "-d", "--name", &counter.name, "-v", "/vol"];
        args.extend(options);
        args.extend([IMAGE, "sh", "-c", COUNT]);
        counter.machine.engine.docker(args);
        counter
    }

    fn await_count(&self, container: &str, least: u64) -> u64 {
        loop {
            let output = self.machine.engine.command().args(["exec", container, "cat", "/n"]).output();
            let text = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
            match text.trim().parse() {
                Ok(count) if count >= least => return count,
                _ => std::thread::yield_now(),
            }
        }
    }

    fn in_volume(&self, container: &str) -> u64 {
        self.machine.engine.docker(["exec", container, "cat", "/vol/n"]).parse().unwrap()
    }

    fn inspect(&self, container: &str, what: &str) -> String {
        self.machine.engine.docker(["inspect", "-f", what, container])
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = self.machine.engine.command().args(["rm", "-fv", &self.name]).output();
    }
}

async fn seal(driver: &DockerDriver, id: SandboxId, kind: SnapshotKind) -> Artifact {
    let sandbox = driver.attach(id).await.unwrap();
    let mut paused = sandbox.pause().await.unwrap();
    let sealed = paused.seal(SnapshotId::from_u128(unique()), kind).await;
    paused.resume().await.unwrap();
    sealed.unwrap()
}

async fn discard(driver: &DockerDriver, artifact: &Artifact) {
    for piece in &artifact.pieces {
        driver.discard(&piece.name).await.unwrap();
    }
}

#[test]
fn processes_go_on_in_copies_and_the_source_never_ended() {
    let counter = Counter::start();
    let driver = Arc::new(counter.machine.docker());
    counter.await_count(&counter.name, 5);
    let started = counter.inspect(&counter.name, "{{.State.StartedAt}} {{.State.Pid}}");
    runtime().block_on(async {
        let id = driver.adopt(&counter.name).await.unwrap().id;
        driver.can_seal(id, SnapshotKind::Full).await.unwrap();
        let before = counter.await_count(&counter.name, 0);
        let artifact = seal(&driver, id, SnapshotKind::Full).await;
        let after = counter.await_count(&counter.name, before + 1);
        assert_eq!(artifact.kind, SnapshotKind::Full);
        assert_eq!(counter.inspect(&counter.name, "{{.State.StartedAt}} {{.State.Pid}}"), started);
        // From the same processes, twice.
        let copies = [SandboxId::from_u128(unique()), SandboxId::from_u128(unique())];
        counter.await_count(&counter.name, after + 200);
        for copy in copies {
            driver.restore(copy, &spec(), &artifact).await.unwrap();
            let name = format!("forkpoint-{copy}");
            let first = counter.await_count(&name, 0);
            assert!(first >= before && first < after + 150, "{before} {first} {after}");
            let later = counter.await_count(&name, first + 2);
            assert!(counter.in_volume(&name) >= later - 1);
        }
        for copy in copies {
            driver.destroy(copy).await.unwrap();
        }
        discard(&driver, &artifact).await;
    });
}

#[test]
fn a_rollback_brings_processes_back() {
    let counter = Counter::start();
    let driver = counter.machine.docker();
    runtime().block_on(async {
        counter.await_count(&counter.name, 5);
        let id = driver.adopt(&counter.name).await.unwrap().id;
        let artifact = seal(&driver, id, SnapshotKind::Full).await;
        let then = counter.await_count(&counter.name, 0);
        counter.await_count(&counter.name, then + 200);
        driver.rollback(id, &spec(), &artifact).await.unwrap();
        let now = counter.await_count(&counter.name, 0);
        assert!((5..then + 150).contains(&now), "{then} {now}");
        counter.await_count(&counter.name, now + 2);
        let status = driver.status(id).await.unwrap().unwrap();
        assert_eq!(status.state, SandboxState::Running);
    });
}

#[test]
fn what_cannot_be_had_is_refused_with_the_reason_before_anything_happens() {
    let counter = Counter::start();
    let driver = counter.machine.docker();
    runtime().block_on(async {
        let id = driver.adopt(&counter.name).await.unwrap().id;
        counter.machine.engine.docker(["stop", "-t", "0", &counter.name]);
        let err = driver.can_seal(id, SnapshotKind::Full).await.unwrap_err();
        assert!(matches!(&err, DriverError::KindUnavailable { .. }), "{err}");
        assert!(err.to_string().contains("nothing runs"), "{err}");
        driver.can_seal(id, SnapshotKind::Files).await.unwrap();
        let findings = driver.validate(id, SnapshotKind::Full).await.unwrap();
        assert!(findings.iter().any(|finding| finding.severity == Severity::Blocks));
    });
}
