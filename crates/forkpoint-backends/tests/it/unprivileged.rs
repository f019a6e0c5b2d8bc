//! A user that nothing belongs to, to run tests as.

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    thread,
};

use tempfile::TempDir;

/// Nobody in particular, and without an entry in `/etc/passwd`.
const USER: u32 = 61_234;

/// How a test begins that says why only root can run it.
pub(crate) const SKIPPED: &str = "skipped without root: ";

/// A test that passed.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    pub(crate) name: String,
    /// Why it did nothing, or not all of it.
    pub(crate) skipped: Option<String>,
}

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

    /// Runs the tests whose names begin so, each in a process of its own as `cargo nextest` does. All of them
    /// must pass.
    pub(crate) fn run(&self, suites: &[&str], env: &[(&str, &OsStr)]) -> Vec<Ran> {
        let names = Mutex::new(self.names(suites).into_iter());
        let next = || names.lock().unwrap().next();
        let work = || -> Vec<Ran> {
            std::iter::from_fn(next).map(|name| self.run_one(name, env)).collect()
        };
        let both = thread::scope(|scope| {
            let one = scope.spawn(work);
            let two = scope.spawn(work);
            [one.join(), two.join()].map(|ran| ran.unwrap_or_else(|why| resume_unwind(why)))
        });
        both.concat()
    }

    fn names(&self, suites: &[&str]) -> Vec<String> {
        let (text, _) = finish(self.program().args(["--list", "--format=terse"]));
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        let wanted = names.filter(|name| suites.iter().any(|suite| name.starts_with(suite)));
        wanted.map(str::to_owned).collect()
    }

    fn run_one(&self, name: String, env: &[(&str, &OsStr)]) -> Ran {
        let mut program = self.program();
        program.args(["--exact", &name, "--nocapture"]).envs(env.iter().copied());
        let (text, errors) = finish(&mut program);
        assert!(text.contains("1 passed"), "{name}: {text}");
        let mut told = errors.lines().filter_map(|line| line.strip_prefix(SKIPPED));
        let skipped = told.next().map(str::to_owned);
        Ran { name, skipped }
    }

    fn program(&self) -> Command {
        let mut program = Command::new(self.home.path().join("it"));
        program
            .current_dir(self.home.path())
            .env("TMPDIR", self.home.path())
            .env_remove("NEXTEST_EXECUTION_MODE")
            .uid(USER)
            .gid(USER);
        program
    }

    /// What the tests left in the user's directory.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.home.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| !path.is_file()).collect()
    }
}

/// What was printed, on the one stream and the other.
fn finish(program: &mut Command) -> (String, String) {
    let output = program.output().unwrap();
    let [text, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{text}\n{errors}");
    (text, errors)
}

fn give(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    chown(path, Some(USER), Some(USER)).unwrap();
}
