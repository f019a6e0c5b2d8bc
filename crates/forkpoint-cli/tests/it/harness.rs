//! The real binary on a data directory of its own.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    ops::{Deref, DerefMut},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use forkpoint_backends::{
    catalog::SqliteCatalog,
    driver::local::{LocalConfig, LocalDriver},
};
use forkpoint_core::{
    catalog::{Catalog as _, Operation, OperationKind},
    driver::Driver as _,
    id::{OperationId, SandboxId, SnapshotId},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// What one run of the binary gave.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
}

impl Run {
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints UTF-8");
        let Output { stdout, stderr, status } = output;
        Self { stdout: text(stdout), stderr: text(stderr), code: status.code() }
    }

    /// One line of stdout: an id that a script wants.
    pub(crate) fn id(&self) -> &str {
        let id = self.stdout.trim_end();
        assert!(!id.is_empty() && !id.contains('\n'), "not one id: {self:?}");
        id
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|err| panic!("{err}: {self:?}"))
    }

    /// Text, then its exit code: what a snapshot of a mistake holds.
    pub(crate) fn told(&self) -> String {
        format!("{}{}exit code {}", self.stdout, self.stderr, self.code.unwrap_or(-1))
    }
}

/// A data directory whose sandboxes are gone at the end.
#[derive(Debug)]
pub(crate) struct Home {
    dir: TempDir,
    env: Vec<(&'static str, String)>,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a directory for the test"), env: Vec::new() }
    }

    /// One whose commands all see this.
    pub(crate) fn with_env(name: &'static str, value: String) -> Self {
        let mut home = Self::new();
        home.env.push((name, value));
        home
    }

    pub(crate) fn below(directory: &Path) -> Self {
        let dir = tempfile::tempdir_in(directory).expect("a directory for the test");
        Self { dir, env: Vec::new() }
    }

    /// A data directory with a running sandbox `web`.
    pub(crate) fn with_web() -> Self {
        let home = Self::new();
        home.ok(["create", "--name", "web"]);
        home
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn command<A: AsRef<std::ffi::OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forkpoint"));
        command.arg("--data-dir").arg(self.path().join("data")).args(args);
        command.env_remove("FORKPOINT_DATA_DIR").env_remove("FORKPOINT_CONFIG");
        command.env("XDG_CONFIG_HOME", self.path().join("config")).stdin(Stdio::null());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    pub(crate) fn run<A: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Run {
        Run::of(self.command(args).output().expect("the binary starts"))
    }

    /// A run that has to succeed.
    pub(crate) fn ok<A: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Run {
        let run = self.run(args);
        assert_eq!(run.code, Some(0), "{run:?}");
        run
    }

    /// What a shell script in a sandbox prints.
    pub(crate) fn sh(&self, sandbox: &str, script: &str) -> String {
        self.ok(["exec", sandbox, "--", "sh", "-c", script]).stdout
    }

    pub(crate) fn start<A: AsRef<std::ffi::OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> Started {
        let mut command = self.command(args);
        Started::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// With a directory of its own for what is temporary.
    pub(crate) fn start_in(&self, temporary: &Path, args: &[&str]) -> Started {
        let mut command = self.command(args);
        command.env("TMPDIR", temporary);
        Started::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// The sandboxes that there are, whatever the catalog knows.
    pub(crate) fn sandboxes(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.path().join("data/local/sandboxes"));
        let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("an id");
        entries.into_iter().flatten().flatten().map(name).collect()
    }

    /// The first process of a sandbox, as it is called out here.
    pub(crate) fn init_of(&self, id: &str) -> Pid {
        let record = self.path().join("data/local/sandboxes").join(id).join("record.json");
        let record: Value =
            serde_json::from_slice(&fs::read(record).expect("a record")).expect("a record");
        let pid = record["init"]["pid"].as_i64().expect("a number");
        Pid::from_raw(pid.try_into().expect("a number")).expect("a process")
    }

    pub(crate) fn run_with_input<A: AsRef<std::ffi::OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
        input: &[u8],
    ) -> Run {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let mut stdin = child.stdin.take().expect("its input");
        let input = input.to_vec();
        let writer = thread::spawn(move || {
            // Closed early by a command that wants no more.
            let _ = stdin.write_all(&input);
        });
        let run = Run::of(child.wait_with_output().expect("the binary ends"));
        writer.join().expect("the input is written");
        run
    }
}

impl Drop for Home {
    /// By the driver itself: a test may have done anything to the catalog, and a process that was killed may
    /// have left its operations open.
    fn drop(&mut self) {
        if self.sandboxes().is_empty() {
            return;
        }
        let helper = Some(env!("CARGO_BIN_EXE_forkpoint").into());
        let config = LocalConfig { helper, ..LocalConfig::new(self.path().join("data/local")) };
        let Ok(driver) = LocalDriver::open(config) else { return };
        runtime().block_on(async {
            for id in driver.list().await.unwrap_or_default() {
                let _ = driver.destroy(id).await;
            }
        });
        assert!(thread::panicking() || self.sandboxes().is_empty(), "{:?}", self.sandboxes());
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Whether it has ended by this moment.
#[expect(clippy::disallowed_methods, reason = "the moment of a kill or a key is a moment in time")]
pub(crate) fn wait_until(moment: Duration, mut ended: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if ended() {
            return true;
        }
        if start.elapsed() >= moment {
            return false;
        }
        thread::yield_now();
    }
}

/// Looks again and again, for as long as anything may take on a busy machine.
#[expect(clippy::disallowed_methods, reason = "others get there in their own time")]
pub(crate) fn until(mut is_so: impl FnMut() -> bool) -> bool {
    let pause = Duration::from_millis(5);
    (0..6000).any(|turn| {
        if turn > 0 {
            thread::sleep(pause);
        }
        is_so()
    })
}

/// A run of the binary that goes on. A test that fails meanwhile leaves neither it nor what it makes: it
/// ends before [`Home`] removes what there is.
#[derive(Debug)]
pub(crate) struct Started(Option<Child>);

impl Started {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(Some(command.spawn().expect("the binary starts")))
    }
}

impl Deref for Started {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.0.as_ref().expect("it is waited for once")
    }
}

impl DerefMut for Started {
    fn deref_mut(&mut self) -> &mut Child {
        self.0.as_mut().expect("it is waited for once")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_test_that_fails_leaves_nothing_that_it_started() {
    let home = Home::new();
    let path = home.path().to_owned();
    let mut pids = Vec::new();
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let home = home;
        let started: Vec<Started> =
            (0..3).map(|_| home.start(["run", "--rm", "--", "sleep", "1000"])).collect();
        pids.extend(started.iter().map(|child| child.id()));
        assert!(until(|| home.sandboxes().len() == 3));
        panic!("as a test does");
    }));
    assert!(failed.is_err());
    assert!(!path.exists());
    let alive = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
    assert!(!pids.iter().any(alive), "{pids:?}");
}

/// Holds sandbox `web` as another process that is at work on it.
#[derive(Debug)]
pub(crate) struct Holder {
    _catalog: SqliteCatalog,
}

impl Holder {
    pub(crate) fn of_web(home: &Home) -> Self {
        let id: SandboxId = home.ok(["ps", "-q"]).id().parse().expect("an id");
        let catalog = SqliteCatalog::open(home.path().join("data/catalog.db")).expect("a catalog");
        let operation = Operation {
            id: OperationId::from_u128(7),
            driver: "local".to_owned(),
            kind: OperationKind::Snapshot {
                sandbox: id,
                snapshot: SnapshotId::from_u128(8),
                name: "never".parse().expect("a name"),
            },
            started: "2026-08-15T09:50:55Z".parse().expect("a time"),
        };
        runtime().block_on(catalog.begin(&operation)).expect("nobody else holds it");
        Self { _catalog: catalog }
    }
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process id");
    kill_process(pid, signal).expect("it is still there");
}

/// Waits for the end of a run that was started.
pub(crate) fn ended(mut started: Started) -> Run {
    let child = started.0.take().expect("it is waited for once");
    Run::of(child.wait_with_output().expect("the binary ends"))
}

/// Compares with a stored text in which ids and times are the same every time.
macro_rules! assert_told {
    ($($argument:tt)*) => {
        insta::with_settings!({
            filters => vec![
                (r"\b(sbx|snp|opr)[0-9a-z]{26}\b", "[$1]"),
                (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "[time]"),
                (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "[time]"),
                (r"_\d{8}_\d{6}", "_[time]"),
                (r"\((now|\d+s ago)\)", "([age])"),
                (r"(/[\w.-]+)+/\.tmp\w+", "[home]"),
                // A column is as wide as the path in it.
                (r"(\[home\][\w./-]*) {2,}", "$1  "),
            ]
        }, { insta::assert_snapshot!($($argument)*) })
    };
}

pub(crate) use assert_told;
