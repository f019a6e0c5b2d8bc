//! A machine with a driver to attack, and a look around when the attack is over.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use forkpoint_backends::driver::local::LocalDriver;
use forkpoint_core::{
    driver::{
        Artifact, Command, Driver, DriverError, DriverResult, ExitStatus, Process, Sandbox,
        SnapshotKind, WriteMode,
    },
    id::{SandboxId, SnapshotId},
    part::ByteStream,
    path::SandboxPath,
    spec::SandboxSpec,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Machine, unique};
use crate::layer::needs_root;

/// What takes longer hangs, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(200);

pub(super) struct Scene {
    machine: Option<Machine>,
    pub(super) driver: Arc<LocalDriver>,
    made: Mutex<Vec<Made>>,
}

/// What no process may be part of when the sandbox is destroyed.
struct Made {
    id: SandboxId,
    /// Their namespace, which only root can be told.
    processes: Option<PathBuf>,
    /// The first of them, as its number and when it was started. With it go all others.
    init: Option<(i32, u64)>,
}

impl Scene {
    /// `None` for those who are not root and would have to be: their users are always mapped.
    pub(super) fn new(map_users: bool) -> Option<Self> {
        match map_users {
            true => Some(Self::on(Machine::new(true))),
            false => Self::by_root(false, "users are always mapped"),
        }
    }

    /// `None` for those who are not root.
    pub(super) fn by_root(map_users: bool, why: &str) -> Option<Self> {
        (!needs_root(why)).then(|| Self::on(Machine::new(map_users)))
    }

    pub(super) fn on(machine: Machine) -> Self {
        let driver = Arc::new(machine.local());
        Self { machine: Some(machine), driver, made: Mutex::default() }
    }

    /// A driver as one more process would open it.
    pub(super) fn another_driver(&self) -> Arc<LocalDriver> {
        Arc::new(self.machine.as_ref().unwrap().local())
    }

    pub(super) fn root(&self) -> PathBuf {
        self.machine.as_ref().unwrap().directory.path().join("local")
    }

    pub(super) fn place(&self, id: SandboxId) -> PathBuf {
        self.root().join("sandboxes").join(id.to_string())
    }

    pub(super) fn record(&self, id: SandboxId) -> Value {
        read_record(&self.place(id))
    }

    pub(super) fn write_record(&self, id: SandboxId, record: &Value) {
        let text = serde_json::to_vec(record).unwrap();
        fs::write(self.place(id).join("record.json"), text).unwrap();
    }

    /// The host's number of the sandbox's first process.
    pub(super) fn init(&self, id: SandboxId) -> i32 {
        init_of(&self.record(id)).unwrap()
    }

    pub(super) fn new_id(&self) -> SandboxId {
        let id = SandboxId::from_u128(unique());
        self.made.lock().unwrap().push(Made { id, processes: None, init: None });
        id
    }

    /// From now on, nothing that lives in the sandbox may outlive it.
    pub(super) fn note(&self, id: SandboxId) {
        let record = self.record(id);
        let pid = init_of(&record);
        let processes = pid.and_then(|pid| fs::read_link(format!("/proc/{pid}/ns/pid")).ok());
        let init = pid.zip(record["init"]["started"].as_u64());
        self.made.lock().unwrap().push(Made { id, processes, init });
    }

    pub(super) async fn create(&self) -> Arc<dyn Sandbox> {
        self.create_as(&spec()).await
    }

    pub(super) async fn create_as(&self, spec: &SandboxSpec) -> Arc<dyn Sandbox> {
        let id = self.new_id();
        let sandbox = self.driver.create(id, spec).await.unwrap_or_else(|err| {
            panic!("{}", with_causes(&err));
        });
        self.note(id);
        sandbox
    }

    pub(super) async fn restore(&self, from: &Artifact) -> Arc<dyn Sandbox> {
        let id = self.new_id();
        let sandbox = self.driver.restore(id, &spec(), from).await.unwrap_or_else(|err| {
            panic!("{}", with_causes(&err));
        });
        self.note(id);
        sandbox
    }

    /// Runs an attack, for as long as anything may take.
    pub(super) fn run<T>(&self, attack: impl Future<Output = T>) -> T {
        super::run(async { tokio::time::timeout(PATIENCE, attack).await }).expect("something hangs")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let Some(machine) = self.machine.take() else { return };
        let directory = machine.directory.path().to_owned();
        drop(machine);
        if thread::panicking() {
            return;
        }
        let made = std::mem::take(&mut *self.made.lock().unwrap());
        // What was killed is on its way out.
        until("the sandboxes leave nothing behind", || leftovers(&made, &directory));
    }
}

/// Everything that is still there of the sandboxes below `directory`.
fn leftovers(made: &[Made], directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for cgroup in cgroups_of_ours() {
        if made.iter().any(|made| name_of(&cgroup).contains(&made.id.to_string())) {
            found.push(format!("cgroup {}", cgroup.display()));
        }
    }
    let namespaces: BTreeSet<&PathBuf> =
        made.iter().filter_map(|made| made.processes.as_ref()).collect();
    for pid in pids() {
        let namespace = fs::read_link(format!("/proc/{pid}/ns/pid"));
        if namespace.is_ok_and(|namespace| namespaces.contains(&namespace)) && is_alive(pid) {
            found.push(format!("process {pid}"));
        }
    }
    for (pid, started) in made.iter().filter_map(|made| made.init) {
        if is_alive(pid) && started_at(pid) == Some(started) {
            found.push(format!("init {pid}"));
        }
    }
    let here = directory.to_str().unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    found.extend(mounts.lines().filter(|line| line.contains(here)).map(str::to_owned));
    found.extend(loop_devices().into_iter().filter(|file| file.contains(here)));
    found
}

/// All cgroups that any process of ours has made, in every hierarchy.
pub(super) fn cgroups_of_ours() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = pending.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        for entry in entries.flatten().filter(is_dir) {
            if directory.ends_with("forkpoint") {
                found.push(entry.path());
            }
            pending.push(entry.path());
        }
    }
    found
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

pub(super) fn pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whoever ended waits to be reaped, by a process that is not ours.
pub(super) fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn started_at(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

pub(super) fn loop_devices() -> Vec<String> {
    let entries = fs::read_dir("/sys/block").unwrap().flatten();
    entries
        .filter_map(|entry| fs::read_to_string(entry.path().join("loop/backing_file")).ok())
        .collect()
}

fn init_of(record: &Value) -> Option<i32> {
    i32::try_from(record["init"]["pid"].as_i64()?).ok()
}

pub(super) fn read_record(place: &Path) -> Value {
    serde_json::from_slice(&fs::read(place.join("record.json")).unwrap()).unwrap()
}

/// Waits until nothing is left of what `look` finds.
#[expect(clippy::disallowed_methods, reason = "the kernel tells nobody when the last one is gone")]
pub(super) fn until(what: &str, look: impl Fn() -> Vec<String>) {
    let mut found = Vec::new();
    for _ in 0..12_000 {
        found = look();
        if found.is_empty() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: {found:#?}");
}

pub(super) fn spec() -> SandboxSpec {
    SandboxSpec::new("host".parse().unwrap())
}

pub(super) fn path(text: &str) -> SandboxPath {
    SandboxPath::new(text).unwrap()
}

pub(super) fn bytes(content: impl Into<Bytes>) -> ByteStream {
    stream::iter([Ok::<_, io::Error>(content.into())]).boxed()
}

pub(super) async fn write(sandbox: &dyn Sandbox, at: &str, text: &str) -> DriverResult<()> {
    sandbox.write(&path(at), bytes(text.to_owned()), WriteMode::Replace).await
}

pub(super) async fn read(sandbox: &dyn Sandbox, at: &str) -> DriverResult<Vec<u8>> {
    let stream = sandbox.read(&path(at)).await?;
    let bytes: Result<BytesMut, io::Error> = stream.try_collect().await;
    let failed = |source| DriverError::Io { operation: "read", path: at.into(), source };
    Ok(bytes.map_err(failed)?.to_vec())
}

pub(super) async fn read_text(sandbox: &dyn Sandbox, at: &str) -> String {
    String::from_utf8(read(sandbox, at).await.unwrap()).unwrap()
}

pub(super) async fn finish(running: Process) -> (String, ExitStatus) {
    let Process { stdin, stdout, stderr, control } = running;
    drop(stdin);
    let all = |stream: ByteStream| async {
        let bytes: BytesMut = stream.try_collect().await.unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (out, err) = futures::join!(all(stdout), all(stderr));
    (out + &err, control.wait().await.unwrap())
}

/// What it printed, and how it ended.
pub(super) async fn exec(sandbox: &dyn Sandbox, argv: &[&str]) -> (String, ExitStatus) {
    finish(sandbox.exec(&Command::new(argv)).await.unwrap()).await
}

pub(super) async fn sh(sandbox: &dyn Sandbox, script: &str) -> String {
    let (out, status) = exec(sandbox, &["sh", "-c", script]).await;
    assert_eq!(status, ExitStatus::Code(0), "{script}: {out}");
    out
}

pub(super) async fn python(sandbox: &dyn Sandbox, script: &str) -> String {
    let (out, status) = exec(sandbox, &["python3", "-c", script]).await;
    assert_eq!(status, ExitStatus::Code(0), "{out}");
    out
}

/// Starts a command that runs until it is killed.
pub(super) async fn start(sandbox: &dyn Sandbox, script: &str) -> Process {
    let mut running = sandbox.exec(&Command::new(["sh", "-c", script])).await.unwrap();
    running.stdout.next().await;
    running
}

pub(super) fn new_snapshot() -> SnapshotId {
    SnapshotId::from_u128(unique())
}

pub(super) async fn try_seal(sandbox: &dyn Sandbox) -> DriverResult<Artifact> {
    let mut paused = sandbox.pause(SnapshotKind::Files).await?;
    let artifact = paused.seal(new_snapshot(), SnapshotKind::Files).await;
    paused.resume().await?;
    artifact
}

pub(super) async fn seal(sandbox: &dyn Sandbox) -> Artifact {
    try_seal(sandbox).await.unwrap_or_else(|err| panic!("{}", with_causes(&err)))
}

pub(super) fn with_causes(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut next = err.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// What is gone already is a success.
pub(super) fn kill(pid: i32) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}
