//! Podman, through the socket at which it speaks as Docker does.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use crate::harness::{Home, until};

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

const WAIT: &str = "trap 'exit 0' TERM; while :; do sleep 1 & wait; done";

struct Podman {
    directory: TempDir,
    service: Child,
}

impl Podman {
    fn start() -> Self {
        let directory = TempDir::new().expect("a directory");
        let log = File::create(directory.path().join("log")).expect("a log");
        let mut serve = Command::new("unshare");
        serve.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        serve.args(["--propagation", "private", "sh", "-c", SERVE, "serve"]);
        serve.arg(directory.path()).stdin(Stdio::null()).process_group(0);
        serve.stdout(log.try_clone().expect("a log")).stderr(log);
        let service = serve.spawn().expect("`unshare` starts");
        let podman = Self { directory, service };
        let answers = || podman.command(&["version"]).output().is_ok_and(|it| it.status.success());
        let log = || fs::read_to_string(podman.directory.path().join("log")).unwrap_or_default();
        assert!(until(answers), "`podman` does not answer: {}", log());
        podman
    }

    fn host(&self) -> String {
        format!("unix://{}", self.directory.path().join("podman.sock").display())
    }

    /// The docker command, which is spoken to as well as Docker is.
    fn command(&self, args: &[&str]) -> Command {
        let mut docker = Command::new("docker");
        docker.arg("-H").arg(self.host()).args(args).stdin(Stdio::null());
        docker
    }

    fn docker(&self, args: &[&str]) -> String {
        let output = self.command(args).output().expect("`docker` starts");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    fn import(&self, image: &str) {
        let root = self.directory.path().join("image");
        fs::create_dir_all(root.join("bin")).expect("a directory");
        fs::create_dir(root.join("root")).expect("a directory");
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new);
        let busybox = busybox.into_iter().find(|path| path.exists()).expect("`busybox`");
        fs::copy(busybox, root.join("bin/busybox")).expect("a copy");
        for command in ["sh", "cat", "sleep", "rm"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(command)).expect("a link");
        }
        let archive: PathBuf = self.directory.path().join("image.tar");
        let mut tar = Command::new("tar");
        let packed = tar.arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".").status();
        assert!(packed.is_ok_and(|status| status.success()), "`tar` fails");
        self.docker(&["import", archive.to_str().expect("a path"), image]);
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let listed = self.command(&["ps", "-aq"]).output().map(|output| output.stdout);
        for id in String::from_utf8_lossy(&listed.unwrap_or_default()).split_whitespace() {
            let _ = self.command(&["rm", "-f", id]).output();
        }
        // Everything in its process namespace goes with it.
        let _ = self.service.kill();
        let _ = self.service.wait();
    }
}

#[test]
fn containers_of_podman_are_kept_restored_and_rolled_back() {
    let podman = Podman::start();
    podman.import("localhost/small:1");
    podman.docker(&[
        "run",
        "-d",
        "--name",
        "web",
        "-v",
        "site:/data",
        "--network",
        "none",
        "localhost/small:1",
        "sh",
        "-c",
        WAIT,
    ]);
    let sh = |name: &str, script: &str| podman.docker(&["exec", name, "sh", "-c", script]);
    let look = |name: &str| sh(name, "cat /root/state /data/state");
    let set = |text: &str| {
        sh("web", &format!("echo {text} > /root/state; echo {text} > /data/state"));
    };
    let home = Home::with_env("DOCKER_HOST", podman.host());
    set("good");
    let good = home.ok(["snapshot", "docker:web"]).id().to_owned();
    set("bad");
    let second = home.ok(["snapshot", "docker:web"]).id().to_owned();

    let copy = home.ok(["restore", &good, "--name", "copy"]).id().to_owned();
    assert_eq!((look("copy").as_str(), look("web").as_str()), ("good\ngood", "bad\nbad"));
    home.ok(["rollback", "docker:web", &good]);
    assert_eq!(look("web"), "good\ngood");
    home.ok(["rollback", "docker:web", &second]);
    assert_eq!(look("web"), "bad\nbad");
    home.ok(["rollback", "docker:web", &good]);

    home.ok(["rm", "--force", &copy]);
    home.ok(["delete", "--force", &second]);
    let ours = podman.docker(&["images", "--format", "{{.Repository}}"]);
    let ours = ours.lines().filter(|name| name.contains("forkpoint/")).count();
    assert_eq!(ours, 1, "that which the container stands on");
    assert_eq!(podman.docker(&["volume", "ls", "-q"]), "site", "the copy's own is gone");
}
