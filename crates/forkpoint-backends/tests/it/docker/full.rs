//! Full snapshots of containers: processes go on where they were, in another container.

use forkpoint_backends::driver::docker::DockerDriver;
use forkpoint_core::{
    driver::{Artifact, Driver, DriverError, SandboxState, Severity, SnapshotKind},
    id::{SandboxId, SnapshotId},
};
use forkpoint_testkit::docker::IMAGE;

use super::{Machine, runtime, spec, unique};

/// Counts, and writes down how far it has come: into its own files, and into a volume. Who it is it knows
/// by heart alone.
const COUNT: &str = "trap 'exit 0' TERM; read who < /proc/sys/kernel/random/uuid; i=0; \
    while :; do i=$((i+1)); for at in / /vol/; do echo $i $who > ${at}new; mv ${at}new ${at}n; done; \
    sleep 0.05; done";

struct Counter {
    machine: Machine,
    name: String,
}

impl Counter {
    fn start() -> Self {
        let counter = Self { machine: Machine::new(), name: format!("counter-{:x}", unique()) };
        let run = ["run", "-d", "--name", &counter.name, "-v", "/vol", IMAGE, "sh", "-c", COUNT];
        counter.machine.engine.docker(run);
        counter.await_count(&counter.name, 3);
        counter
    }

    /// How far it has come, at least so far, and who it is.
    fn await_count(&self, container: &str, least: u64) -> (u64, String) {
        loop {
            let text =
                self.machine.engine.command().args(["exec", container, "cat", "/n"]).output();
            let text = String::from_utf8_lossy(&text.unwrap().stdout).into_owned();
            match text.trim().split_once(' ').map(|(count, who)| (count.parse(), who)) {
                Some((Ok(count), who)) if count >= least => return (count, who.to_owned()),
                _ => std::thread::yield_now(),
            }
        }
    }

    fn in_volume(&self, container: &str) -> u64 {
        let text = self.machine.engine.docker(["exec", container, "cat", "/vol/n"]);
        text.split(' ').next().unwrap().parse().unwrap()
    }

    fn life(&self, container: &str) -> String {
        let life = "{{.Id}} {{.State.StartedAt}} {{.State.Pid}}";
        self.machine.engine.docker(["inspect", "-f", life, container])
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = self.machine.engine.command().args(["rm", "-fv", &self.name]).output();
    }
}

async fn seal(driver: &DockerDriver, id: SandboxId, kind: SnapshotKind) -> Artifact {
    let sandbox = driver.attach(id).await.unwrap();
    let mut paused = sandbox.pause(SnapshotKind::Full).await.unwrap();
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
    let driver = counter.machine.docker();
    let life = counter.life(&counter.name);
    runtime().block_on(async {
        let id = driver.adopt(&counter.name).await.unwrap().id;
        driver.can_seal(id, SnapshotKind::Full).await.unwrap();
        let (before, who) = counter.await_count(&counter.name, 0);
        let artifact = seal(&driver, id, SnapshotKind::Full).await;
        assert_eq!(artifact.kind, SnapshotKind::Full);
        counter.await_count(&counter.name, before + 20);
        assert_eq!(counter.life(&counter.name), life);
        // From the same processes, twice.
        for _ in 0..2 {
            let copy = SandboxId::from_u128(unique());
            driver.restore(copy, &spec(), &artifact).await.unwrap();
            let name = format!("forkpoint-{copy}");
            let (now, same) = counter.await_count(&name, 0);
            assert!(now >= before && same == who, "{before} {now}");
            let (later, _) = counter.await_count(&name, now + 2);
            assert!(counter.in_volume(&name) + 1 >= later);
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
        let id = driver.adopt(&counter.name).await.unwrap().id;
        let (_, who) = counter.await_count(&counter.name, 0);
        let artifact = seal(&driver, id, SnapshotKind::Full).await;
        let life = counter.life(&counter.name);
        counter.machine.engine.docker(["restart", "-t", "0", &counter.name]);
        assert_ne!(counter.await_count(&counter.name, 1).1, who, "it began again");
        driver.rollback(id, &spec(), &artifact).await.unwrap();
        let (now, same) = counter.await_count(&counter.name, 0);
        assert!(now >= 3 && same == who, "{now}");
        counter.await_count(&counter.name, now + 2);
        assert_ne!(counter.life(&counter.name), life);
        let status = driver.status(id).await.unwrap().unwrap();
        assert_eq!(status.state, SandboxState::Running);
    });
}

#[test]
fn volumes_and_processes_travel_too() {
    let counter = Counter::start();
    let driver = counter.machine.docker();
    runtime().block_on(async {
        let id = driver.adopt(&counter.name).await.unwrap().id;
        let (before, who) = counter.await_count(&counter.name, 0);
        let artifact = seal(&driver, id, SnapshotKind::Full).await;
        let parts = driver.export(&artifact).await.unwrap();
        assert_eq!(parts.len(), 4, "the container, its image, a volume, its processes");
        let came = driver.import(SnapshotId::from_u128(unique()), parts).await.unwrap();
        assert_eq!((came.kind, super::scene::things(&came)), (SnapshotKind::Full, 3));
        discard(&driver, &artifact).await;
        let copy = SandboxId::from_u128(unique());
        driver.restore(copy, &spec(), &came).await.unwrap();
        let name = format!("forkpoint-{copy}");
        let (now, same) = counter.await_count(&name, before + 2);
        assert!(same == who && counter.in_volume(&name) + 1 >= now);
        driver.destroy(copy).await.unwrap();
        discard(&driver, &came).await;
    });
}

/// An engine fills an empty volume from the image when a container is made.
#[test]
fn a_volume_that_held_nothing_holds_nothing_in_a_copy() {
    let machine = Machine::new();
    let (name, image) = (format!("empty-{:x}", unique()), format!("filled-{:x}", unique()));
    let engine = &machine.engine;
    engine.docker(["run", "--name", &name, IMAGE, "sh", "-c", "echo x > /srv/file"]);
    engine.docker(["commit", &name, &image]);
    engine.docker(["rm", "-f", &name]);
    engine.docker(["run", "-d", "--name", &name, "-v", "/srv", &image, "sleep", "1000"]);
    engine.docker(["exec", &name, "rm", "/srv/file"]);
    let driver = machine.docker();
    runtime().block_on(async {
        let id = driver.adopt(&name).await.unwrap().id;
        let artifact = seal(&driver, id, SnapshotKind::Files).await;
        let copy = SandboxId::from_u128(unique());
        driver.restore(copy, &spec(), &artifact).await.unwrap();
        let listed = engine.docker(["exec", &format!("forkpoint-{copy}"), "ls", "-A", "/srv"]);
        driver.destroy(copy).await.unwrap();
        discard(&driver, &artifact).await;
        assert_eq!(listed, "");
    });
    engine.docker(["rm", "-fv", &name]);
    engine.docker(["rmi", &image]);
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
