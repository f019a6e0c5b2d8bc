//! Processes with a local driver each, that are killed in the middle of everything.
//!
//! A child says what it is about to do and what it has done. The parent kills it, closes what was
//! open as the engine's recovery would, and looks at the sandbox: its files are those of before or
//! after, and every snapshot that was told of restores.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    hash::{BuildHasher as _, RandomState},
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use forkpoint_backends::driver::local::{LocalConfig, LocalDriver};
use forkpoint_core::{
    driver::{
        Artifact, Command as Argv, Driver, Process, Sandbox, SandboxState, SnapshotKind, WriteMode,
    },
    id::{SandboxId, SnapshotId},
    path::SandboxPath,
    spec::SandboxSpec,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::{SERIAL, left::nothing_is_left, without_root::helper};

/// Where a child that works on sandboxes does so, in its environment.
pub(crate) const DIRECTORY: &str = "FORKPOINT_TEST_LOCAL";

/// Fewer without root: it is the second time.
fn kills() -> u64 {
    if rustix::process::geteuid().is_root() { 160 } else { 40 }
}

/// What a child knows of the world: which sandbox is its own, and what can be gone back to.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) sandbox: SandboxId,
    snapshots: Vec<(String, Artifact)>,
}

/// What is about to be done. The next report is that it is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    Write(String),
    Seal(SnapshotId),
    Rollback(String),
    Make(SandboxId),
    Destroy(SandboxId),
    Switch,
    /// With what was sealed.
    Done(Option<Box<Artifact>>),
}

fn dice(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

pub(crate) fn random() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(0));
    half() << 64 | half()
}

fn open(directory: &Path) -> LocalDriver {
    let helper = Some(helper());
    let root = directory.join("local");
    LocalDriver::open(LocalConfig { helper, ..LocalConfig::new(root) }).unwrap()
}

fn spec() -> SandboxSpec {
    SandboxSpec::new("host".parse().unwrap())
}

pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.unwrap().block_on(work)
}

async fn write(sandbox: &dyn Sandbox, text: &str) {
    let path = SandboxPath::new("/srv/text").unwrap();
    let bytes = stream::iter([Ok(Bytes::from(text.to_owned()))]).boxed();
    sandbox.write(&path, bytes, WriteMode::Replace).await.unwrap();
}

async fn read(sandbox: &dyn Sandbox) -> String {
    let path = SandboxPath::new("/srv/text").unwrap();
    let bytes: BytesMut = sandbox.read(&path).await.unwrap().try_collect().await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn report(report: &Report) {
    let mut out = std::io::stdout().lock();
    let line = serde_json::to_string(report).unwrap();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Works on its sandbox until it is killed.
pub(crate) fn work_for_ever(directory: &Path) {
    let mut seed = env::var(SERIAL).unwrap().parse::<u64>().unwrap() << 7;
    let task: Task = serde_json::from_slice(&fs::read(directory.join("task")).unwrap()).unwrap();
    let driver = open(directory);
    run(async {
        loop {
            step(&driver, &task, dice(&mut seed)).await;
        }
    });
}

async fn step(driver: &LocalDriver, task: &Task, number: u64) {
    let id = task.sandbox;
    let sandbox = driver.attach(id).await.unwrap();
    let back = &task.snapshots[(number >> 8) as usize % task.snapshots.len()];
    // There are no full snapshots without root.
    let kinds = if rustix::process::geteuid().is_root() { 13 } else { 10 };
    match number % kinds {
        0 | 1 => write_anew(&*sandbox).await,
        2 | 3 => seal(&*sandbox).await,
        4 => {
            let busy = sandbox.exec(&Argv::new(["sleep", "1000"])).await.unwrap();
            seal(&*sandbox).await;
            busy.control.signal(9).await.unwrap();
            busy.control.wait().await.unwrap();
        }
        8 | 9 => {
            let busy = sandbox.exec(&Argv::new(["sleep", "1000"])).await.unwrap();
            for _ in 0..3 {
                write_anew(&*sandbox).await;
                // What is as new as this may be taken again without being known to have changed.
                tokio::time::sleep(OLD).await;
                seal(&*sandbox).await;
            }
            busy.control.signal(9).await.unwrap();
            busy.control.wait().await.unwrap();
        }
        10.. => {
            // Programs that have written much, and have something open: they are given another root.
            let busy = sandbox.exec(&Argv::new(["sh", "-c", WRITES])).await.unwrap();
            let Process { mut stdout, control, .. } = busy;
            stdout.next().await;
            for _ in 0..2 {
                write_anew(&*sandbox).await;
                tokio::time::sleep(OLD).await;
                seal_as(&*sandbox, SnapshotKind::Full).await;
            }
            control.signal(9).await.unwrap();
            control.wait().await.unwrap();
        }
        5 => {
            report(&Report::Switch);
            driver.stop(id).await.unwrap();
            report(&Report::Done(None));
            seal(&*sandbox).await;
            report(&Report::Switch);
            driver.start(id, &spec()).await.unwrap();
            report(&Report::Done(None));
        }
        6 => {
            report(&Report::Rollback(back.0.clone()));
            driver.rollback(id, &spec(), &back.1).await.unwrap();
            report(&Report::Done(None));
        }
        _ => {
            let copy = SandboxId::from_u128(random());
            report(&Report::Make(copy));
            let made = driver.restore(copy, &spec(), &back.1).await.unwrap();
            assert_eq!(read(&*made).await, back.0);
            report(&Report::Done(None));
            report(&Report::Destroy(copy));
            driver.destroy(copy).await.unwrap();
            report(&Report::Done(None));
        }
    }
}

/// From here on a file's time tells whether it changed.
const OLD: Duration = Duration::from_millis(20);

async fn write_anew(sandbox: &dyn Sandbox) {
    let text = format!("text {:x}", random());
    report(&Report::Write(text.clone()));
    write(sandbox, &text).await;
    report(&Report::Done(None));
}

const WRITES: &str = "cd /srv; exec 9>>log; head -c 9000000 /dev/zero > much; echo on; \
                      exec > /dev/null; while :; do echo x >&9; : > new; sleep 0.002; done";

async fn seal(sandbox: &dyn Sandbox) {
    seal_as(sandbox, SnapshotKind::Files).await;
}

async fn seal_as(sandbox: &dyn Sandbox, kind: SnapshotKind) {
    let snapshot = SnapshotId::from_u128(random());
    report(&Report::Seal(snapshot));
    let mut paused = sandbox.pause(kind).await.unwrap();
    let artifact = paused.seal(snapshot, kind).await.unwrap();
    paused.resume().await.unwrap();
    report(&Report::Done(Some(Box::new(artifact))));
}

pub(crate) struct Worker {
    pub(crate) child: Child,
    lines: BufReader<ChildStdout>,
}

impl Worker {
    pub(crate) fn start(directory: &Path, serial: u64) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .env(DIRECTORY, directory)
            .env(SERIAL, serial.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    pub(crate) fn next(&mut self) -> Option<Report> {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        // The last one may have been cut short.
        serde_json::from_str(&line).ok()
    }

    /// The process that launches for it.
    fn launcher(&self) -> Option<u32> {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let found =
            fs::read_to_string(path).ok().and_then(|text| text.split(' ').next()?.parse().ok());
        found.or_else(|| child_of(self.child.id()))
    }

    fn kill(mut self, launcher: Option<u32>) -> Vec<Report> {
        if let Some(launcher) = launcher {
            let pid = Pid::from_raw(i32::try_from(launcher).unwrap()).unwrap();
            let _ = kill_process(pid, Signal::KILL);
        }
        self.end();
        std::iter::from_fn(|| self.next()).collect()
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Also when the parent fails: else the child goes on for ever, and makes sandboxes.
impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

fn child_of(parent: u32) -> Option<u32> {
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        fields.split(' ').nth(1) == Some(&parent.to_string())
    };
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_child)
}

/// What the parent knows.
pub(crate) struct World {
    pub(crate) directory: TempDir,
    driver: LocalDriver,
    pub(crate) task: Task,
    text: String,
    pub(crate) others: BTreeSet<SandboxId>,
    open: Option<Report>,
    at_work: BTreeMap<&'static str, u64>,
}

impl World {
    pub(crate) async fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let driver = open(directory.path());
        let id = SandboxId::from_u128(random());
        let sandbox = driver.create(id, &spec()).await.unwrap();
        write(&*sandbox, "first").await;
        let mut paused = sandbox.pause(SnapshotKind::Files).await.unwrap();
        let snapshot = SnapshotId::from_u128(random());
        let first = paused.seal(snapshot, SnapshotKind::Files).await.unwrap();
        paused.resume().await.unwrap();
        let text = "first".to_owned();
        let task = Task { sandbox: id, snapshots: vec![(text.clone(), first)] };
        let (others, at_work) = (BTreeSet::new(), BTreeMap::new());
        Self { directory, driver, task, text, others, open: None, at_work }
    }

    pub(crate) fn hear(&mut self, report: Report) {
        let Report::Done(artifact) = report else {
            if let Report::Make(id) = report {
                self.others.insert(id);
            }
            self.open = Some(report);
            return;
        };
        if let Some(artifact) = artifact {
            self.task.snapshots.push((self.text.clone(), *artifact));
        }
        if let Some(Report::Write(text) | Report::Rollback(text)) = self.open.take() {
            self.text = text;
        }
    }

    /// As the engine closes an operation whose owner is gone.
    async fn recover(&mut self) {
        let (id, driver) = (self.task.sandbox, &self.driver);
        let mut possible = BTreeSet::from([self.text.clone()]);
        let open = self.open.take();
        driver.settle(id).await.unwrap();
        let kind = match open {
            Some(Report::Seal(snapshot)) => {
                driver.unseal(snapshot).await.unwrap();
                "seal"
            }
            Some(Report::Write(text)) => {
                possible.insert(text);
                // Whoever puts the file in its place lives in the sandbox, and goes on without the one who
                // asked: until it is gone too, the text may change.
                driver.stop(id).await.unwrap();
                "write"
            }
            Some(Report::Rollback(text)) => {
                possible.insert(text);
                "rollback"
            }
            Some(Report::Make(other) | Report::Destroy(other)) => {
                driver.destroy(other).await.unwrap();
                assert_eq!(driver.status(other).await.unwrap(), None);
                "fork"
            }
            Some(Report::Switch) => "switch",
            Some(Report::Done(_)) | None => "nothing",
        };
        *self.at_work.entry(kind).or_default() += 1;
        let state = driver.status(id).await.unwrap().unwrap().state;
        assert_ne!(state, SandboxState::Paused, "after {kind}");
        driver.start(id, &spec()).await.unwrap();
        let sandbox = driver.attach(id).await.unwrap();
        self.text = read(&*sandbox).await;
        assert!(possible.contains(&self.text), "{kind}: {} is none of {possible:?}", self.text);
    }

    async fn assert_restores(&self, number: usize) {
        let (text, artifact) = &self.task.snapshots[number];
        let copy = SandboxId::from_u128(random());
        let made = self.driver.restore(copy, &spec(), artifact).await.unwrap();
        assert_eq!(read(&*made).await, *text);
        self.driver.destroy(copy).await.unwrap();
    }

    /// When everything is destroyed and discarded there is nothing.
    async fn assert_nothing_is_left(&mut self) {
        self.others.insert(self.task.sandbox);
        for id in &self.others {
            self.driver.destroy(*id).await.unwrap();
        }
        assert_eq!(self.driver.list().await.unwrap(), []);
        let pieces = self.task.snapshots.iter().flat_map(|(_, artifact)| &artifact.pieces);
        for piece in pieces {
            self.driver.discard(&piece.name).await.unwrap();
        }
        let layers = fs::read_dir(self.directory.path().join("local/store/layers")).unwrap();
        let layers: Vec<_> = layers.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(layers, [] as [&str; 0], "of {} snapshots", self.task.snapshots.len());
        nothing_is_left(&self.others).await;
    }
}

/// Nothing is left when the parent fails either. By a thread of its own: on one that runs tasks, nobody may
/// wait for others.
impl Drop for World {
    fn drop(&mut self) {
        let driver = &self.driver;
        let destroy = async {
            for id in driver.list().await.unwrap_or_default() {
                let _ = driver.destroy(id).await;
            }
        };
        std::thread::scope(|scope| drop(scope.spawn(|| run(destroy)).join()));
    }
}

pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("this needs root");
    }
    root
}

pub(crate) fn kill_again_and_again() {
    run(async {
        let kills = kills();
        let mut world = World::new().await;
        let mut seed = 11;
        for serial in 0..kills {
            let task = serde_json::to_vec(&world.task).unwrap();
            fs::write(world.directory.path().join("task"), task).unwrap();
            let mut worker = Worker::start(world.directory.path(), serial);
            for _ in 0..1 + dice(&mut seed) % 12 {
                world.hear(worker.next().expect("a child ended by itself"));
            }
            let launcher = worker.launcher().filter(|_| dice(&mut seed).is_multiple_of(3));
            // The child goes on while we count, so it dies anywhere.
            (0..dice(&mut seed) % 400_000).for_each(|turn| {
                std::hint::black_box(turn);
            });
            for report in worker.kill(launcher) {
                world.hear(report);
            }
            if serial % 2 == 0 {
                // Another one that lived all the while does as well.
                world.driver = open(world.directory.path());
            }
            world.recover().await;
            let latest = world.task.snapshots.len() - 1;
            world.assert_restores(latest).await;
            if serial % 8 == 0 {
                world.assert_restores(dice(&mut seed) as usize % (latest + 1)).await;
            }
        }
        eprintln!("died at: {:?}; {} snapshots", world.at_work, world.task.snapshots.len());
        let idle = world.at_work.get("nothing").copied().unwrap_or_default();
        assert!(idle < kills * 3 / 4, "only {} of {kills} died at work", kills - idle);
        for number in 0..world.task.snapshots.len() {
            world.assert_restores(number).await;
        }
        world.assert_nothing_is_left().await;
    });
}
