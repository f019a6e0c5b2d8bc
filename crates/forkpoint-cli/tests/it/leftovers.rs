//! `leftovers.py`, by which `test.sh` proves that the tests leave nothing.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command},
};

use tempfile::TempDir;

use crate::harness::{Home, Run};

/// Tests that leave things, and what is found of them.
struct Tests {
    place: TempDir,
    notes: TempDir,
    /// Cgroups have no mark that tells whose they are: one test would see another's.
    _alone: File,
}

impl Tests {
    fn begin() -> Self {
        let directory = || tempfile::tempdir().expect("a directory");
        let alone = File::create(concat!(env!("CARGO_TARGET_TMPDIR"), "/leftovers.lock"));
        let _alone = alone.expect("a file to lock");
        _alone.lock().expect("a lock");
        let tests = Self { place: directory(), notes: directory(), _alone };
        let noted = tests.look("note");
        assert_eq!(noted.code, Some(0), "{noted:?}");
        tests
    }

    fn look(&self, how: &str) -> Run {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/leftovers.py");
        let mut python = Command::new("python3");
        python.arg(script).arg(how).arg(self.notes.path().join("before"));
        python.env("TMPDIR", self.place.path()).env("FORKPOINT_LOOKS", "7");
        Run::of(python.output().expect("python3 starts"))
    }

    /// Something that sleeps, and ends with the test.
    fn sleeper(&self, args: &[&str]) -> Sleeper {
        let mut sleep = Command::new("sleep");
        Sleeper(sleep.args(args).env("TMPDIR", self.place.path()).spawn().expect("`sleep` starts"))
    }
}

struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A cgroup as a sandbox has one, that nobody is in.
struct Cgroup(PathBuf);

impl Cgroup {
    fn make() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let mut unified = mounts.lines().filter(|line| line.starts_with("cgroup2 "));
        let parent = Path::new(unified.next()?.split(' ').nth(1)?).join("forkpoint");
        // Made by the first sandbox, and gone with the last.
        let _ = fs::create_dir(&parent);
        let path = parent.join(format!("leftover-{}", std::process::id()));
        fs::create_dir(&path).ok().map(|()| Self(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
        // Not while others are in it.
        let _ = self.0.parent().map(fs::remove_dir);
    }
}

#[test]
fn what_is_left_is_told_until_it_is_gone() {
    let tests = Tests::begin();
    fs::create_dir_all(tests.place.path().join("dir/empty")).expect("a directory");
    let (sleeper, cgroup) = (tests.sleeper(&["1000"]), Cgroup::make());
    let told = tests.look("check");
    assert_eq!(told.code, Some(1), "{told:?}");
    let mut expected = vec![
        "left behind:\n".to_owned(),
        format!("file {}/dir\n", tests.place.path().display()),
        format!("file {}/dir/empty\n", tests.place.path().display()),
        format!("process {}: sleep 1000", sleeper.0.id()),
    ];
    expected.extend(cgroup.iter().map(|cgroup| format!("cgroup {}\n", cgroup.0.display())));
    for line in expected {
        assert!(told.stderr.contains(&line), "{line:?} is missing: {}", told.stderr);
    }
    drop((sleeper, cgroup));
    fs::remove_dir_all(tests.place.path().join("dir")).expect("it goes");
    let told = tests.look("check");
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""));
}

/// Launchers and inits forget their environment, but for whose they are.
#[test]
fn a_sandbox_that_is_left_is_told() {
    let tests = Tests::begin();
    let home = Home::below(tests.place.path());
    home.ok(["create", "--name", "web"]);
    let told = tests.look("check");
    assert!(told.stderr.contains("forkpoint-spawner"), "{told:?}");
    drop(home);
    let told = tests.look("check");
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_directory_that_others_use_too_is_refused() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/leftovers.py");
    for shared in ["", "/tmp", "/var/tmp/"] {
        let mut python = Command::new("python3");
        python.arg(&script).args(["note", "/dev/null"]).env("TMPDIR", shared);
        let run = Run::of(python.output().expect("python3 starts"));
        assert_eq!(run.code, Some(1), "{run:?}");
        assert!(run.stderr.contains("a directory for the tests alone"), "{run:?}");
    }
}
