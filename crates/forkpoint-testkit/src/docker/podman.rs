//! Podman for tests, at the socket where it speaks as Docker does.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use super::{IMAGE, find, make_root, path_of_root};

/// In a network, and with processes, of its own. `$1` is its directory.
const SERVE: &str = r#"
ip link set lo up
# It keeps some things where nobody can tell it not to.
mount -t tmpfs none /var/lib && mount -t tmpfs none /dev/shm || exit
# What it cannot clean up goes with the directory.
export TMPDIR="$1"
exec podman --root "$1/root" --runroot "$1/run" --tmpdir "$1/tmp" --cgroup-manager cgroupfs \
    --events-backend file system service --time=0 "unix://$1/podman.sock"
"#;

/// A service, as long as this lives.
#[derive(Debug)]
pub struct Podman {
    directory: PathBuf,
    service: Child,
}

impl Podman {
    /// In an empty directory that outlives it, with [`IMAGE`] in it.
    ///
    /// # Panics
    ///
    /// When there is no `podman`, or it does not start.
    #[must_use]
    pub fn start(directory: &Path) -> Self {
        let log = File::create(directory.join("log")).expect("a log");
        let mut serve = Command::new("unshare");
        serve.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        serve.args(["--propagation", "private", "sh", "-c", SERVE, "serve"]);
        serve.arg(directory).stdin(Stdio::null()).process_group(0).env("PATH", path_of_root());
        serve.stdout(log.try_clone().expect("a log")).stderr(log);
        let service = serve.spawn().expect("`unshare` starts");
        let podman = Self { directory: directory.to_owned(), service };
        podman.await_answer();
        podman.import();
        podman
    }

    #[expect(clippy::disallowed_methods, reason = "it answers in its own time")]
    fn await_answer(&self) {
        for _ in 0..1200 {
            if self.command(&["version"]).output().is_ok_and(|output| output.status.success()) {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        assert!(find("podman").is_some(), "`podman` is missing (package podman)");
        panic!("`podman` does not answer: {log}");
    }

    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join("podman.sock")
    }

    #[must_use]
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// The docker command, which is spoken to as well as Docker is.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut docker = Command::new("docker");
        docker.arg("-H").arg(self.host()).args(args).stdin(Stdio::null());
        docker
    }

    /// What the docker command prints.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[must_use]
    pub fn docker(&self, args: &[&str]) -> String {
        let output = self.command(args).output().expect("`docker` starts");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    fn import(&self) {
        let (root, archive) = (self.directory.join("image"), self.directory.join("image.tar"));
        make_root(&root);
        let mut tar = Command::new("tar");
        let packed = tar.arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".").status();
        assert!(packed.is_ok_and(|status| status.success()), "`tar` fails");
        let _ = self.docker(&["import", archive.to_str().expect("a path"), IMAGE]);
        let _ = fs::remove_dir_all(root);
        let _ = fs::remove_file(archive);
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let listed = self.command(&["ps", "-aq"]).output().map(|output| output.stdout);
        for id in String::from_utf8_lossy(&listed.unwrap_or_default()).split_whitespace() {
            let _ = self.command(&["rm", "-f", id]).output();
        }
        // Everything in its process namespace goes with the first of them, which goes with `unshare`.
        let first = children_of(self.service.id());
        let _ = self.service.kill();
        let _ = self.service.wait();
        // Until then it may still write to the directory that is about to go.
        await_end(&first);
    }
}

fn children_of(pid: u32) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Whoever should reap them may not.
#[expect(clippy::disallowed_methods, reason = "they end in their own time")]
fn await_end(pids: &[String]) {
    let is_alive = |pid: &String| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    for _ in 0..2000 {
        if !pids.iter().any(is_alive) {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
}
