//! Whole systems: one that debootstrap makes, and one that Docker has.
//!
//! These need root, `debootstrap` with a mirror, and `dockerd`, which `test.sh` installs; without them
//! they fail and say what is missing. The system is made once and kept in the target directory.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, Signal, kill_process},
};
use tempfile::TempDir;

use crate::harness::Home;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("making a system needs root");
    }
    root
}

fn run(command: &mut Command) -> String {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|err| panic!("`{name}` is missing: {err}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A Debian in a directory, as an archive.
fn debian() -> PathBuf {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let lock = File::create(cache.join("debian.lock")).expect("a lock");
    flock(&lock, FlockOperation::LockExclusive).expect("a lock");
    let (tree, archive) = (cache.join("debian"), cache.join("debian.tar"));
    if archive.exists() {
        return archive;
    }
    if !tree.exists() {
        let new = cache.join("debian.new");
        let _ = fs::remove_dir_all(&new);
        let mut debootstrap = Command::new("debootstrap");
        debootstrap.args(["--variant=minbase", "bookworm"]).arg(&new).arg(mirror());
        run(debootstrap.env("PATH", path_of_root()));
        fs::rename(new, &tree).expect("a tree");
    }
    let new = cache.join("debian.tar.new");
    run(Command::new("tar").arg("-C").arg(&tree).arg("-cf").arg(&new).arg("."));
    fs::rename(new, &archive).expect("an archive");
    archive
}

fn path_of_root() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

/// The one that this machine itself takes packages from.
fn mirror() -> String {
    let listed = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
    let files = listed.map(|entry| entry.path()).chain(["/etc/apt/sources.list".into()]);
    let texts = files.filter_map(|path| fs::read_to_string(path).ok()).collect::<String>();
    let mut words = texts.split_ascii_whitespace();
    let found = words
        .find(|word| word.starts_with("http") && word.trim_end_matches('/').ends_with("/debian"));
    found.unwrap_or("http://deb.debian.org/debian").to_owned()
}

/// A package with many small files and some hard links.
fn package(directory: &Path) -> PathBuf {
    let root = directory.join("package");
    let files = root.join("opt/many");
    fs::create_dir_all(&files).expect("a directory");
    for number in 0..300 {
        fs::write(files.join(format!("f{number}")), format!("file {number}\n")).expect("a file");
    }
    for number in 0..20 {
        let from = files.join(format!("f{number}"));
        fs::hard_link(from, files.join(format!("same{number}"))).expect("a link");
    }
    std::os::unix::fs::symlink("f1", files.join("link")).expect("a link");
    fs::create_dir(root.join("DEBIAN")).expect("a directory");
    let control =
        "Package: many\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: many\n";
    fs::write(root.join("DEBIAN/control"), control).expect("a file");
    let script = "#!/bin/sh\nset -e\nchown daemon:games /opt/many/f2\nchmod 4755 /opt/many/f3\n\
                  rm /opt/many/f4\nln /opt/many/f5 /opt/many/made\n";
    fs::write(root.join("DEBIAN/postinst"), script).expect("a file");
    run(Command::new("chmod").arg("755").arg(root.join("DEBIAN/postinst")));
    let file = directory.join("many.deb");
    run(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(root).arg(&file));
    file
}

/// Installs the package and tells what is there then.
const INSTALL: &str = "dpkg -i /many.deb >/dev/null 2>&1 && dpkg -s many | grep ^Status && \
    find /opt/many /var/lib/dpkg/info/many.* -printf '%p %y %m %u %g %n %s %l\\n' | sort && \
    dpkg --purge many >/dev/null 2>&1 && ls /opt && \
    { mknod /opt/device b 8 0 2>&1 || echo refused; } | tail -1";

fn install(home: &Home, template: &str, package: &Path) -> String {
    let bytes = fs::read(package).expect("a package");
    home.ok(["create", "--name", "box", "--template", template]);
    let put =
        home.run_with_input(["exec", "-i", "box", "--", "sh", "-c", "cat > /many.deb"], &bytes);
    assert_eq!(put.code, Some(0), "{put:?}");
    let told = home.sh("box", INSTALL);
    home.ok(["rm", "--force", "box"]);
    told
}

#[test]
fn a_system_of_debootstrap_is_a_template_and_packages_install_in_it() {
    if !is_root() {
        return;
    }
    let home = Home::new();
    let archive = debian();
    let added = home.ok(["template", "add", "debian", archive.to_str().expect("a path")]);
    assert!(added.stderr.contains("devices were left out"), "{added:?}");
    let told = install(&home, "debian", &package(home.path()));
    assert!(told.starts_with("Status: install ok installed\n"), "{told}");
    assert!(
        told.ends_with("refused\n") && told.contains("/opt/many/f3 f 4755 root root"),
        "{told}"
    );
    let directory = format!("dir:{}", archive.with_extension("").display());
    assert_eq!(install(&home, &directory, &package(&home.path().join("second"))), told);
}

#[test]
fn an_image_of_docker_works_as_it_does_in_docker() {
    if !is_root() {
        return;
    }
    let home = Home::new();
    let docker = Docker::start();
    let archive = debian();
    let image = docker.run(
        ["import", "--change", "ENV GREETING=hello", "--change", "WORKDIR /srv/app"]
            .map(str::to_owned)
            .into_iter()
            .chain([archive.display().to_string(), "deb:12".to_owned()]),
    );
    assert!(image.starts_with("sha256:"), "{image}");
    let package = package(home.path());
    let theirs = docker.run(
        ["run", "--rm", "--network=none", "--cap-drop=MKNOD", "-v"]
            .map(str::to_owned)
            .into_iter()
            .chain([
                format!("{}:/many.deb:ro", package.display()),
                "deb:12".to_owned(),
                "sh".to_owned(),
                "-c".to_owned(),
                INSTALL.to_owned(),
            ]),
    );
    let saved = home.path().join("saved.tar");
    docker.run(
        ["save", "-o"]
            .map(str::to_owned)
            .into_iter()
            .chain([saved.display().to_string(), "deb:12".to_owned()]),
    );
    home.ok(["template", "add", "saved", saved.to_str().expect("a path")]);
    assert_eq!(install(&home, "saved", &package), theirs, "what a package leaves");
    let mut command = home.command(["template", "add", "asked", "docker-daemon:deb:12"]);
    let status = command.env("DOCKER_HOST", &docker.host).status().expect("the binary starts");
    assert!(status.success());
    let told =
        home.ok(["run", "--rm", "--template", "asked", "--", "sh", "-c", "echo $GREETING; pwd"]);
    assert_eq!(told.stdout, "hello\n/srv/app\n");
    let listing = home.ok(["template", "ls", "--json"]).json();
    assert_eq!(listing["templates"][1]["digest"], listing["templates"][2]["digest"], "{listing}");
}

/// A Docker of our own, gone at the end.
struct Docker {
    host: String,
    daemon: Child,
    _directory: TempDir,
}

impl Docker {
    #[expect(clippy::disallowed_methods, reason = "it answers in its own time")]
    fn start() -> Self {
        let directory = TempDir::new().expect("a directory");
        let at = |name: &str| directory.path().join(name).display().to_string();
        let host = format!("unix://{}", at("docker.sock"));
        let log = File::create(at("log")).expect("a log");
        let mut dockerd = Command::new("dockerd");
        dockerd.args(["--data-root", &at("data"), "--exec-root", &at("exec"), "-p", &at("pid")]);
        dockerd.args(["-H", &host, "--bridge=none", "--iptables=false"]);
        dockerd.env("PATH", path_of_root()).stdin(Stdio::null());
        dockerd.stdout(log.try_clone().expect("a log")).stderr(log);
        let daemon = dockerd.spawn();
        let daemon =
            daemon.unwrap_or_else(|err| panic!("`dockerd` (package docker.io) is missing: {err}"));
        let docker = Self { host, daemon, _directory: directory };
        for _ in 0..600 {
            let mut asked = Command::new("docker");
            asked.args(["-H", &docker.host, "version"]).stdout(Stdio::null()).stderr(Stdio::null());
            if asked.status().is_ok_and(|status| status.success()) {
                return docker;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{}", fs::read_to_string(docker._directory.path().join("log")).unwrap_or_default());
    }

    fn run(&self, args: impl IntoIterator<Item = String>) -> String {
        run(Command::new("docker").args(["-H", &self.host]).args(args))
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.daemon.id().cast_signed()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.daemon.wait();
    }
}
