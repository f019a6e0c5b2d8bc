//! A process that keeps sandboxes ready is killed, alone or with those who work for it.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use forkpoint_backends::driver::local::{LocalConfig, LocalDriver};
use forkpoint_core::{driver::Driver as _, id::SandboxId, spec::SandboxSpec};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::local::{is_root, random, run};

/// Where a child that keeps sandboxes ready does so, in its environment.
pub(crate) const DIRECTORY: &str = "FORKPOINT_TEST_WARM";

const READY: usize = 3;

fn open(directory: &Path, warm: usize) -> LocalDriver {
    let helper = Some(env!("CARGO_BIN_EXE_forkpoint-spawner").into());
    LocalDriver::open(LocalConfig { helper, warm, ..LocalConfig::new(directory) }).unwrap()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("in vain: {what}");
}

/// Makes a sandbox, tells of it, and stays until it is killed.
pub(crate) fn keep_ready(directory: &Path) {
    let driver = open(directory, READY);
    driver.warm_up();
    run(async {
        let id = SandboxId::from_u128(random());
        until("they are ready", || driver.warmth().ready == READY).await;
        driver.create(id, &SandboxSpec::new("host".parse().unwrap())).await.unwrap();
        assert_eq!(driver.warmth().used, 1);
        until("they are ready again", || driver.warmth().ready == READY).await;
        println!("{id}");
        std::io::stdout().flush().unwrap();
        std::future::pending::<()>().await;
    });
}

/// Everybody who works for the driver of this directory, or lives in its sandboxes.
fn processes(directory: &Path) -> Vec<i32> {
    let mark = format!("FORKPOINT_ROOT={}", directory.display());
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
    })
    .collect()
}

fn cgroups(owner: u32) -> Vec<PathBuf> {
    let start = format!("warm-{owner}-");
    let all = fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path());
    let all = all.chain(["/sys/fs/cgroup".into()]).map(|path| path.join("forkpoint"));
    let entries = all.filter_map(|path| fs::read_dir(path).ok()).flatten().flatten();
    let is_its = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&start);
    entries.map(|entry| entry.path()).filter(is_its).collect()
}

fn kill(pid: i32) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

/// Also when the parent fails.
struct Owner(Child);

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(directory: &Path) -> (Owner, SandboxId) {
    let child = Command::new(env::current_exe().unwrap())
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut owner = Owner(child);
    let mut line = String::new();
    BufReader::new(owner.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (owner, line.trim().parse().unwrap())
}

pub(crate) fn kill_in_every_way() {
    if !is_root() {
        return;
    }
    let directory = TempDir::new().unwrap();
    let directory = fs::canonicalize(directory.path()).unwrap();
    run(async {
        for all in [false, true] {
            let (owner, id) = start(&directory);
            let pid = owner.0.id();
            let record = fs::read(directory.join(format!("sandboxes/{id}/record.json"))).unwrap();
            let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
            let init = i32::try_from(record["init"]["pid"].as_i64().unwrap()).unwrap();
            // Each blank is two, and the sandbox and who starts others are there.
            let there = 2 * READY + 2;
            until("all are there", || processes(&directory).len() == there).await;
            assert_eq!(cgroups(pid).len(), READY + 1);
            if all {
                // Whoever could clean up is gone as well.
                processes(&directory).into_iter().filter(|pid| *pid != init).for_each(kill);
            }
            drop(owner);
            until("only the sandbox is there", || processes(&directory) == [init]).await;
            if all {
                // The next one that keeps any ready does it.
                let next = open(&directory, 1);
                next.warm_up();
                until("only the sandbox's is there", || cgroups(pid).len() == 1).await;
            } else {
                until("only the sandbox's is there", || cgroups(pid).len() == 1).await;
            }
            let driver = open(&directory, 0);
            assert_eq!(driver.attach(id).await.unwrap().id(), id);
            driver.destroy(id).await.unwrap();
            until("nothing is left", || cgroups(pid).is_empty()).await;
            drop(driver);
            until("nobody is left", || processes(&directory).is_empty()).await;
        }
    });
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(directory.to_str().unwrap()), "{mounts}");
}
