//! The binary as somebody who may nothing uses it: a user that the test makes.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::harness::Run;

/// Nobody in particular, and without an entry in `/etc/passwd`.
const USER: u32 = 61_235;

/// A home with a copy of the binary: where it was built, others may not be able to go.
struct User {
    home: TempDir,
}

impl User {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory for the test");
        let user = Self { home };
        fs::copy(env!("CARGO_BIN_EXE_forkpoint"), user.program()).expect("a copy");
        for path in [user.home.path(), &user.program()] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its mode");
            if rustix::process::geteuid().is_root() {
                chown(path, Some(USER), Some(USER)).expect("its owner");
            }
        }
        user
    }

    fn program(&self) -> PathBuf {
        self.home.path().join("forkpoint")
    }

    fn data(&self) -> PathBuf {
        self.home.path().join(".local/share/forkpoint")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command.args(args).env_clear().env("HOME", self.home.path());
        command.env("PATH", "/usr/bin:/bin").env("TMPDIR", self.home.path());
        command.current_dir(self.home.path()).stdin(Stdio::null());
        if rustix::process::geteuid().is_root() {
            command.uid(USER).gid(USER);
        }
        command
    }

    fn run(&self, args: &[&str]) -> Run {
        Run::of(self.command(args).output().expect("the binary starts"))
    }

    fn ok(&self, args: &[&str]) -> Run {
        let run = self.run(args);
        assert_eq!(run.code, Some(0), "{args:?}: {run:?}");
        run
    }

    fn sh(&self, sandbox: &str, script: &str) -> String {
        self.ok(&["exec", sandbox, "--", "sh", "-c", script]).stdout
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.home.path()).expect("a home").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let ids = self.run(&["ps", "-q"]).stdout;
        for id in ids.lines() {
            self.run(&["rm", "--force", id]);
        }
    }
}

#[test]
fn the_tour_works_and_leaves_nothing() {
    let user = User::new();
    let run = user.ok(&["demo"]);
    assert!(run.stdout.contains("  rollback ") && run.stdout.contains("  fork "), "{run:?}");
    assert_eq!(user.names(), ["forkpoint"], "something is left");
}

#[test]
fn a_sandbox_lives_is_kept_goes_back_and_is_copied() {
    let user = User::new();
    user.ok(&["create", "--name", "web"]);
    assert_eq!(
        user.sh("web", "id -u; mkdir -p /srv; echo one > /srv/file; cat /srv/file"),
        "0\none\n"
    );
    user.ok(&["snapshot", "web", "--name", "good"]);
    user.sh("web", "rm -r /srv; echo two > /etc/passwd");
    user.ok(&["rollback", "web", "good"]);
    assert_eq!(user.sh("web", "cat /srv/file; head -c 5 /etc/passwd"), "one\nroot:");
    let copies = user.ok(&["fork", "web", "-n", "3"]).stdout;
    assert_eq!(copies.lines().count(), 3, "{copies}");
    for copy in copies.lines() {
        assert_eq!(user.sh(copy, "cat /srv/file"), "one\n");
        user.ok(&["rm", "--force", copy]);
    }
    user.ok(&["stop", "web"]);
    user.ok(&["start", "web"]);
    assert_eq!(user.sh("web", "cat /srv/file"), "one\n");
    user.ok(&["rm", "--force", "web"]);
    assert_eq!(user.ok(&["ps", "-q"]).stdout, "");
    let owner = fs::metadata(user.data()).expect("data").uid();
    let mode = fs::metadata(user.data()).expect("data").mode() & 0o777;
    let own = fs::metadata(user.program()).expect("a program").uid();
    assert_eq!((owner, mode), (own, 0o700));
}

#[test]
fn the_doctor_tells_what_there_is_less_of() {
    let user = User::new();
    let run = user.ok(&["doctor"]);
    for told in [
        "this machine can run sandboxes",
        "a sandbox has one user, its root: you",
        "processes are paused by signals",
    ] {
        assert!(run.stdout.contains(told), "{told}: {}", run.stdout);
    }
    assert!(run.stdout.contains(&user.data().display().to_string()), "{}", run.stdout);
}

#[test]
fn a_limit_that_nobody_gave_is_refused() {
    let user = User::new();
    for limit in ["--memory=64M", "--cpus=0.5", "--pids=50"] {
        let run = user.run(&["create", limit]);
        assert_eq!(run.code, Some(5), "{limit}: {run:?}");
        assert!(run.stderr.contains("this machine cannot limit"), "{limit}: {run:?}");
        assert!(run.stderr.contains("hint: "), "{limit}: {run:?}");
    }
    assert_eq!(user.ok(&["ps", "-q"]).stdout, "");
}

#[test]
fn data_is_kept_where_the_environment_says() {
    let user = User::new();
    let below = |name: &str| user.home.path().join(name);
    let there = |path: &Path| path.join("catalog.db").exists();
    user.ok(&["ps"]);
    assert!(there(&user.data()));
    let run = user.command(&["ps"]).env("XDG_DATA_HOME", below("xdg")).output();
    assert!(run.expect("the binary starts").status.success());
    assert!(there(&below("xdg/forkpoint")));
    // A name that leads somewhere else from everywhere is none.
    let run = user.command(&["ps"]).env("XDG_DATA_HOME", "relative").output();
    assert!(run.expect("the binary starts").status.success());
    assert!(!below("relative").exists());
    for verb in ["ps", "create", "doctor"] {
        let run = Run::of(user.command(&[verb]).env_remove("HOME").output().expect("it starts"));
        assert_eq!(run.code, Some(2), "{run:?}");
        let told = "neither XDG_DATA_HOME nor HOME says where data is kept: give `--data-dir`";
        assert!(run.stderr.contains(told), "{run:?}");
    }
    // One that is somebody else's.
    let run = user.run(&["--data-dir", "/proc/forkpoint", "ps"]);
    assert!(run.code.is_some_and(|code| code != 0), "{run:?}");
    assert!(run.stderr.contains("hint: choose another place"), "{run:?}");
}
