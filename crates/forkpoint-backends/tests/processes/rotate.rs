//! A driver that dies at every step of giving running programs another root, and a helper of it that is killed there.
//!
//! They run on as before, on either root, or all of them ended and their files are as they were: nothing is written to two
//! roots, and nothing that was written is lost.

use std::{
    env, fs, hint,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use forkpoint_backends::driver::local::{LocalConfig, LocalDriver};
use forkpoint_checkpoint::bare::die_after;
use forkpoint_core::{
    driver::{
        Artifact, Command as Argv, Driver as _, DriverError, ExitStatus, Sandbox, SandboxState,
        SnapshotKind,
    },
    id::{SandboxId, SnapshotId},
    spec::SandboxSpec,
};
use futures::{StreamExt as _, TryStreamExt as _};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{
    SERIAL,
    left::nothing_is_left,
    local::{is_root, random, run},
    without_root::helper,
};

/// Where a child that takes one snapshot does so, in its environment.
pub(crate) const DIRECTORY: &str = "FORKPOINT_TEST_ROTATE";

/// Goes on where the log ends, in two processes; one has the log open, and both stand in a directory that is not the root.
const PROGRAM: &str = "cd /srv/here; i=$(wc -l < /srv/log); exec 9>>/srv/log; echo on; exec > /dev/null; \
                       while :; do i=$((i + 1)); echo $i >&9; echo $i > last; sleep 0.002; done";

fn open(directory: &Path) -> LocalDriver {
    let config = LocalConfig::new(directory.join("local"));
    LocalDriver::open(LocalConfig { helper: Some(helper()), ..config }).unwrap()
}

fn spec() -> SandboxSpec {
    SandboxSpec::new("host".parse().unwrap())
}

/// The child: as many steps as it is told, unless it needs fewer.
pub(crate) fn take_one(directory: &Path) {
    let task = fs::read(directory.join("task")).unwrap();
    let (id, snapshot): (SandboxId, SnapshotId) = serde_json::from_slice(&task).unwrap();
    let steps = env::var(SERIAL).unwrap().parse().unwrap();
    let driver = open(directory);
    run(async {
        let sandbox = driver.attach(id).await.unwrap();
        let mut paused = sandbox.pause(SnapshotKind::Full).await.unwrap();
        die_after(steps);
        let artifact = paused.seal(snapshot, SnapshotKind::Full).await.unwrap();
        die_after(u64::MAX);
        paused.resume().await.unwrap();
        fs::write(directory.join("artifact"), serde_json::to_vec(&artifact).unwrap()).unwrap();
    });
}

async fn sh(sandbox: &dyn Sandbox, script: &str) -> String {
    let process = sandbox.exec(&Argv::new(["sh", "-c", script])).await.unwrap();
    let out: bytes::BytesMut = process.stdout.try_collect().await.unwrap();
    let out = String::from_utf8(out.to_vec()).unwrap();
    assert_eq!(process.control.wait().await.unwrap(), ExitStatus::Code(0), "{script}: {out}");
    out
}

async fn start(sandbox: &dyn Sandbox) {
    let mut process = sandbox.exec(&Argv::new(["sh", "-c", PROGRAM])).await.unwrap();
    process.stdout.next().await;
}

/// Both of its processes write to the same place, no line is missing or there twice, and nothing leads to another root.
async fn is_well(sandbox: &dyn Sandbox) {
    const GROWS: &str = "n=$(wc -l < /srv/log); until [ $(wc -l < /srv/log) -gt $((n + 2)) ]; do sleep 0.002; done; \
                         n=$(cat /srv/here/last); until [ \"$(cat /srv/here/last)\" != \"$n\" ]; do sleep 0.002; done";
    let grown = tokio::time::timeout(Duration::from_secs(60), sh(sandbox, GROWS)).await;
    grown.expect("it goes on");
    let told =
        "stat -c %d /srv/log /../srv/log | uniq | wc -l; wc -c < /srv/much; head -n -1 /srv/log";
    let told = sh(sandbox, told).await;
    let mut lines = told.lines();
    assert_eq!(lines.next(), Some("1"));
    assert_eq!(lines.next(), Some("9000000"));
    for (number, line) in (1..).zip(lines) {
        assert_eq!(line, number.to_string());
    }
}

fn record(directory: &Path, id: SandboxId) -> serde_json::Value {
    let record = directory.join("local/sandboxes").join(id.to_string()).join("record.json");
    serde_json::from_slice(&fs::read(record).unwrap()).unwrap()
}

fn generation(directory: &Path, id: SandboxId) -> Option<u64> {
    record(directory, id)["generation"].as_u64()
}

fn init(directory: &Path, id: SandboxId) -> i32 {
    record(directory, id)["init"]["pid"].as_i64().unwrap() as i32
}

/// What was killed with its driver may still be on its way out.
async fn settled(driver: &LocalDriver, id: SandboxId) -> SandboxState {
    loop {
        let state = driver.status(id).await.unwrap().unwrap().state;
        let sandbox = driver.attach(id).await.unwrap();
        if state != SandboxState::Running || sandbox.exec(&Argv::new(["true"])).await.is_ok() {
            return state;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Nothing is left when it fails either.
struct Cleared<'a>(&'a LocalDriver);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        let destroy = async {
            for id in self.0.list().await.unwrap_or_default() {
                let _ = self.0.destroy(id).await;
            }
        };
        run(destroy);
    }
}

/// Ends who stands in a sandbox's mounts to change its root, somewhere on the way.
fn kill_in_there(init: i32, over: &AtomicBool) {
    let mounts = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let (theirs, spawner) = (mounts(init).unwrap(), spawner());
    let children = format!("/proc/{spawner}/task/{spawner}/children");
    while !over.load(Ordering::Relaxed) {
        let all = fs::read_to_string(&children).unwrap_or_default();
        let all = all.split_whitespace().filter_map(|pid| pid.parse().ok());
        let Some(found) = all.into_iter().find(|pid| mounts(*pid).as_ref() == Some(&theirs)) else {
            continue;
        };
        // Short enough that a sleep would be too long.
        for _ in 0..random() as u64 % 20_000 {
            hint::spin_loop();
        }
        let _ = kill_process(Pid::from_raw(found).unwrap(), Signal::KILL);
        return;
    }
}

/// The process of ours that launches sandboxes and changes their roots.
fn spawner() -> i32 {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let children = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap());
    let children = children.collect::<Vec<_>>().join(" ");
    let name = |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let found = children.split_whitespace().find(|pid| name(pid).starts_with("forkpoint-spawn"));
    found.unwrap().parse().unwrap()
}

pub(crate) fn kill_the_worker() {
    if !is_root() {
        return;
    }
    let directory = TempDir::new().unwrap();
    let id = SandboxId::from_u128(random());
    let driver = open(directory.path());
    let _cleared = Cleared(&driver);
    run(async {
        let sandbox = driver.create(id, &spec()).await.unwrap();
        sh(&*sandbox, "mkdir /srv/here; : > /srv/log").await;
        start(&*sandbox).await;
        let (mut ended, mut failed) = (0, 0);
        for round in 0.. {
            if round >= 60 && ended > 1 {
                break;
            }
            assert!(round < 1000, "failed {failed} times, and everything ended {ended} times");
            sh(&*sandbox, "head -c 9000000 /dev/zero > /srv/much").await;
            let init = init(directory.path(), id);
            let snapshot = SnapshotId::from_u128(random());
            let mut paused = sandbox.pause(SnapshotKind::Full).await.unwrap();
            let over = Arc::new(AtomicBool::new(false));
            let killer = thread::spawn({
                let over = Arc::clone(&over);
                move || kill_in_there(init, &over)
            });
            let sealed = paused.seal(snapshot, SnapshotKind::Full).await;
            over.store(true, Ordering::Relaxed);
            killer.join().unwrap();
            paused.resume().await.unwrap();
            driver.settle(id).await.unwrap();
            let state = settled(&driver, id).await;
            if state != SandboxState::Running {
                assert_eq!(state, SandboxState::Stopped, "in round {round}");
                ended += 1;
                driver.start(id, &spec()).await.unwrap();
                start(&*driver.attach(id).await.unwrap()).await;
            }
            is_well(&*driver.attach(id).await.unwrap()).await;
            match sealed {
                Ok(artifact) => {
                    let copy = SandboxId::from_u128(random());
                    is_well(&*driver.restore(copy, &spec(), &artifact).await.unwrap()).await;
                    driver.destroy(copy).await.unwrap();
                }
                Err(err) => {
                    // Nothing that was left stands in the way of the next one.
                    assert!(!matches!(err, DriverError::KindUnavailable { .. }), "{err}");
                    failed += 1;
                    driver.unseal(snapshot).await.unwrap();
                }
            }
        }
        eprintln!("failed {failed} times, and everything ended {ended} times");
        driver.destroy(id).await.unwrap();
        nothing_is_left(&[id].into()).await;
    });
}

pub(crate) fn die_at_every_step() {
    if !is_root() {
        return;
    }
    let directory = TempDir::new().unwrap();
    let id = SandboxId::from_u128(random());
    let driver = open(directory.path());
    let _cleared = Cleared(&driver);
    run(async {
        let sandbox = driver.create(id, &spec()).await.unwrap();
        sh(&*sandbox, "mkdir /srv/here; : > /srv/log").await;
        start(&*sandbox).await;
        let (mut steps, mut ended, mut again) = (0, 0, 0);
        let artifact: Artifact = loop {
            sh(&*sandbox, "head -c 9000000 /dev/zero > /srv/much").await;
            let snapshot = SnapshotId::from_u128(random());
            let task = serde_json::to_vec(&(id, snapshot)).unwrap();
            fs::write(directory.path().join("task"), task).unwrap();
            let mut child = Command::new(env::current_exe().unwrap());
            child.env(DIRECTORY, directory.path()).env(SERIAL, steps.to_string());
            let before = generation(directory.path(), id);
            let status = child.status().unwrap();
            if status.success() && generation(directory.path(), id) == before {
                // It was caught with something that could not move, and was copied: that is not what is tried here.
                continue;
            }
            if status.success() && ended == 0 && again < 5 && cfg!(debug_assertions) {
                // At the late steps it is a race whether everything ends with the driver: both are to be seen.
                again += 1;
                steps /= 2;
                continue;
            }
            if status.success() {
                let artifact = fs::read(directory.path().join("artifact")).unwrap();
                break serde_json::from_slice(&artifact).unwrap();
            }
            assert_eq!(status.code(), None, "after {steps} steps it failed");
            driver.settle(id).await.unwrap();
            driver.unseal(snapshot).await.unwrap();
            let state = settled(&driver, id).await;
            if state != SandboxState::Running {
                assert_eq!(state, SandboxState::Stopped, "after {steps} steps");
                ended += 1;
                driver.start(id, &spec()).await.unwrap();
                start(&*driver.attach(id).await.unwrap()).await;
            }
            is_well(&*driver.attach(id).await.unwrap()).await;
            steps += 1;
        };
        eprintln!("died {steps} times, and everything with it {ended} times");
        if cfg!(debug_assertions) {
            assert!(steps > 40 && ended > 0, "{steps} {ended}");
        }
        is_well(&*driver.attach(id).await.unwrap()).await;
        let copy = SandboxId::from_u128(random());
        is_well(&*driver.restore(copy, &spec(), &artifact).await.unwrap()).await;
        for id in [id, copy] {
            driver.destroy(id).await.unwrap();
        }
        nothing_is_left(&[id, copy].into()).await;
    });
}
