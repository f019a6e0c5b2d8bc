//! A user that nothing belongs to, to run tests as.

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// Nobody in particular, and without an entry in `/etc/passwd`.
const USER: u32 = 61_234;

/// A directory of their own, with a copy of this test program: where it was built, others may not
/// be able to go.
pub(crate) struct Unprivileged {
    home: TempDir,
}

impl Unprivileged {
    /// `None` for those who are not root themselves.
    pub(crate) fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let home = TempDir::new().unwrap();
        give(home.path());
        let user = Self { home };
        user.bring_as(&env::current_exe().unwrap(), OsStr::new("it"));
        Some(user)
    }

    pub(crate) fn bring(&self, program: &Path) -> PathBuf {
        self.bring_as(program, program.file_name().unwrap())
    }

    fn bring_as(&self, program: &Path, name: &OsStr) -> PathBuf {
        let to = self.home.path().join(name);
        fs::copy(program, &to).unwrap();
        give(&to);
        to
    }

    /// Runs the tests that `filter` names, and answers with what was printed.
    pub(crate) fn run(&self, filter: &[&str], env: &[(&str, &OsStr)]) -> String {
        let output = Command::new(self.home.path().join("it"))
            .args(filter)
            .arg("--test-threads=2")
            .current_dir(self.home.path())
            .env("TMPDIR", self.home.path())
            .env_remove("NEXTEST_EXECUTION_MODE")
            .envs(env.iter().copied())
            .uid(USER)
            .gid(USER)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// What the tests left in the user's directory.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.home.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| !path.is_file()).collect()
    }
}

fn give(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    chown(path, Some(USER), Some(USER)).unwrap();
}
