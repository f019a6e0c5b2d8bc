//! The real binary on a data directory of its own.

use std::{
    io::Write as _,
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use forkpoint_backends::catalog::SqliteCatalog;
use forkpoint_core::{
    catalog::{Catalog as _, Operation, OperationKind},
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
    ) -> Child {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
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
        let writer = std::thread::spawn(move || {
            // Closed early by a command that wants no more.
            let _ = stdin.write_all(&input);
        });
        let run = Run::of(child.wait_with_output().expect("the binary ends"));
        writer.join().expect("the input is written");
        run
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let ids = self.run(["ps", "-q"]).stdout;
        let ids: Vec<&str> = ids.lines().collect();
        if !ids.is_empty() {
            self.run(["rm", "--force", "--wait", "10s"].into_iter().chain(ids));
        }
    }
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
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(catalog.begin(&operation)).expect("nobody else holds it");
        Self { _catalog: catalog }
    }
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process id");
    kill_process(pid, signal).expect("it is still there");
}

/// Waits for the end of a run that was started.
pub(crate) fn ended(child: Child) -> Run {
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
                (r"/tmp/\.tmp\w+", "[home]"),
            ]
        }, { insta::assert_snapshot!($($argument)*) })
    };
}

pub(crate) use assert_told;
