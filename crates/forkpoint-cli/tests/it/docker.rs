//! Containers of a real engine, as sandboxes.
//!
//! These need root and `dockerd`, which `test.sh` installs. The engine is shared: each test has names of
//! its own in it, and removes what it made.

use std::{
    cell::RefCell,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use forkpoint_testkit::docker::{DockerEngine, IMAGE};
use serde_json::Value;

use crate::harness::{Home, Run};

mod away;
mod copies;
mod counted;
mod everything;
mod killed;
mod legacy;
mod names;
mod older;
mod podman;
mod still;
mod watching;

/// What a container runs that only waits, and ends when it is told to.
pub(crate) const WAIT: &str = "trap 'exit 0' TERM; while :; do sleep 1 & wait; done";

/// A data directory, and an engine.
#[derive(Debug)]
pub(crate) struct Dock {
    pub(crate) home: Home,
    engine: DockerEngine,
    mark: String,
    networks: RefCell<Vec<String>>,
}

impl Dock {
    pub(crate) fn new() -> Self {
        Self::on(DockerEngine::shared(Path::new(env!("CARGO_TARGET_TMPDIR"))))
    }

    /// On an engine that nobody else uses, in a directory that outlives this.
    fn alone(directory: &Path) -> Self {
        Self::on(DockerEngine::own(directory))
    }

    fn on(engine: DockerEngine) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("t{}x{number}", std::process::id());
        let home = Home::with_env("DOCKER_HOST", engine.host());
        Self { home, engine, mark, networks: RefCell::default() }
    }

    /// A name that no other test has.
    fn name(&self, of: &str) -> String {
        format!("{}-{of}", self.mark)
    }

    /// How such a container is named to the command line.
    fn reference(&self, of: &str) -> String {
        format!("docker:{}", self.name(of))
    }

    fn docker<I: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = I>) -> String {
        self.engine.docker(args)
    }

    /// Starts a container that waits, with these options.
    fn start(&self, of: &str, options: &[&str]) -> String {
        self.start_running(of, options, WAIT)
    }

    fn start_running(&self, of: &str, options: &[&str], script: &str) -> String {
        let name = self.name(of);
        let label = format!("test={}", self.mark);
        let mut args = vec!["run", "-d", "--name", &name, "--label", &label, "--stop-timeout", "5"];
        args.extend(options);
        args.extend([IMAGE, "sh", "-c", script]);
        self.docker(args)
    }

    fn network(&self, of: &str) -> String {
        let name = self.name(of);
        self.docker(["network", "create", &name]);
        self.networks.borrow_mut().push(name.clone());
        name
    }

    fn sh(&self, of: &str, script: &str) -> String {
        self.docker(["exec", &self.name(of), "sh", "-c", script])
    }

    fn inspect(&self, of: &str) -> Value {
        let told = self.docker(["inspect", &self.name(of)]);
        let told: Value = serde_json::from_str(&told).expect("it tells JSON");
        told[0].clone()
    }

    fn ok(&self, args: &[&str]) -> Run {
        self.home.ok(args)
    }

    fn run(&self, args: &[&str]) -> Run {
        self.home.run(args)
    }

    fn ids(&self) -> Vec<String> {
        self.ok(&["ps", "-q"]).stdout.lines().map(str::to_owned).collect()
    }

    fn remove(&self, kind: &[&str], what: &str) {
        let listed = self.engine.command().args(kind).args(["-q", "--filter", what]).output();
        let listed = listed.map(|output| output.stdout).unwrap_or_default();
        for id in String::from_utf8_lossy(&listed).lines() {
            let mut remove = self.engine.command();
            remove.arg(kind[0]).args(["rm", "-f", id]);
            let _ = remove.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for Dock {
    fn drop(&mut self) {
        if !self.engine.answers() {
            return;
        }
        let listed = |args: &[&str]| self.run(args).stdout;
        for (verb, ids) in [("rm", listed(&["ps", "-q"])), ("delete", listed(&["list", "-q"]))] {
            let ids: Vec<&str> = ids.lines().collect();
            if !ids.is_empty() {
                self.home.run([verb, "--force", "--wait", "10s"].into_iter().chain(ids));
            }
        }
        self.remove(&["container", "ls", "-a"], &format!("label=test={}", self.mark));
        self.remove(&["container", "ls", "-a"], &format!("name={}", self.mark));
        self.remove(&["volume", "ls"], &format!("name={}", self.mark));
        for network in self.networks.borrow().iter() {
            let mut remove = self.engine.command();
            let _ = remove.args(["network", "rm", network]).stdout(Stdio::null()).status();
        }
    }
}

/// An image that serves a page, from one static program.
pub(crate) fn import_server(engine: &DockerEngine, image: &str, directory: &Path) {
    let root = directory.join("server");
    let page = root.join("usr/share/nginx/html");
    for directory in [&root.join("bin"), &root.join("etc"), &root.join("tmp"), &page] {
        std::fs::create_dir_all(directory).expect("a directory");
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new);
    let busybox = busybox.into_iter().find(|path| path.exists());
    let busybox = busybox.expect("`busybox` (package busybox-static) is missing");
    std::fs::copy(busybox, root.join("bin/busybox")).expect("a copy");
    for command in ["sh", "httpd", "cat", "ls", "rm", "sleep", "echo", "wget", "mkdir"] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(command)).expect("a link");
    }
    std::fs::write(page.join("index.html"), "It works.\n").expect("a file");
    let serve = "trap 'exit 0' TERM; httpd -f -p 80 -h /usr/share/nginx/html & wait";
    let command = serde_json::json!(["/bin/sh", "-c", serve]);
    let mut tar = Command::new("tar");
    let tar = tar.arg("-C").arg(&root).args(["-c", "."]).stdout(Stdio::piped()).spawn();
    let mut tar = tar.expect("`tar` starts");
    let mut import = engine.command();
    import.args(["import", "--change", &format!("CMD {command}"), "--change", "EXPOSE 80"]);
    import.args(["-", image]).stdin(tar.stdout.take().expect("a pipe"));
    let output = import.output().expect("`docker` starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(tar.wait().is_ok_and(|status| status.success()), "`tar` fails");
}
