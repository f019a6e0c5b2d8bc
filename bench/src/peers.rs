//! What others do, by their own commands, in the same run.

use std::{
    env, fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    apart::Ground,
    figures::timed,
    options::{Options, PeersWanted},
};

const LABEL: &str = "forkpoint-bench";
const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(15);

/// Those that are there, or why they are not.
#[derive(Debug)]
pub struct Peers {
    pub docker: Result<Docker, String>,
    pub runc: Result<Runc, String>,
}

impl Peers {
    #[must_use]
    pub fn find(options: &Options, ground: &Ground) -> Self {
        if options.peers == PeersWanted::None {
            let none = || "not asked for".to_owned();
            return Self { docker: Err(none()), runc: Err(none()) };
        }
        let docker = Docker::find(options.peers == PeersWanted::Start, ground);
        let runc = Runc::find(ground);
        Self {
            docker: docker.map_err(|err| err.to_string()),
            runc: runc.map_err(|err| err.to_string()),
        }
    }
}

/// Runs a command to its end; its output without the last line break.
pub fn output(command: &mut Command) -> io::Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|err| {
        io::Error::new(err.kind(), format!("{}: {err}", command.get_program().display()))
    })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim().lines().last().unwrap_or_default().to_owned();
            Err(io::Error::other(format!("{}: {said}", command.get_program().display())))
        }
    }
}

/// A root file system with a shell and what our scripts call.
fn make_tree(at: &Path) -> io::Result<()> {
    for directory in ["bin", "dev", "etc", "proc", "root", "sys", "tmp"] {
        fs::create_dir_all(at.join(directory))?;
    }
    let programs = ["sh", "true", "sleep", "dd", "mkdir", "rm"];
    let found = env::split_paths("/bin:/usr/bin").map(|path| path.join("busybox"));
    if let Some(busybox) = found.into_iter().find(|path| path.exists()) {
        fs::copy(busybox, at.join("bin/busybox"))?;
        return programs.iter().try_for_each(|name| symlink("busybox", at.join("bin").join(name)));
    }
    programs.iter().try_for_each(|name| add_program(at, name))
}

/// One of the machine's, with its libraries.
fn add_program(at: &Path, name: &str) -> io::Result<()> {
    let program = Path::new("/bin").join(name);
    fs::copy(&program, at.join("bin").join(name))?;
    for word in output(Command::new("ldd").arg(&program))?.split_ascii_whitespace() {
        let library = Path::new(word);
        if library.is_absolute() {
            let copy = at.join(word.trim_start_matches('/'));
            fs::create_dir_all(copy.parent().unwrap())?;
            fs::copy(library, copy)?;
        }
    }
    Ok(())
}

#[derive(Debug)]
pub struct Docker {
    host: String,
    image: String,
    /// What we made of it.
    images: std::cell::RefCell<Vec<String>>,
    daemon: Option<Child>,
    _directory: TempDir,
}

impl Docker {
    fn find(start: bool, ground: &Ground) -> io::Result<Self> {
        let directory = ground.directory();
        let (host, daemon) = match start {
            true => {
                let (host, daemon) = start_daemon(directory.path())?;
                (host, Some(daemon))
            }
            false => {
                let host = env::var("DOCKER_HOST");
                (host.unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned()), None)
            }
        };
        let image = String::new();
        let mut docker =
            Self { host, image, images: Vec::new().into(), daemon, _directory: directory };
        docker.wait_for_daemon()?;
        docker.image = docker.import(ground)?;
        docker.images.borrow_mut().push(docker.image.clone());
        Ok(docker)
    }

    fn wait_for_daemon(&self) -> io::Result<()> {
        let start = Instant::now();
        loop {
            match output(self.command().args(["version", "--format", "{{.Server.Version}}"])) {
                Ok(version) => {
                    eprintln!("docker {version} at {}", self.host);
                    return Ok(());
                }
                Err(_) if self.daemon.is_none() => {
                    return Err(io::Error::other("no daemon answers"));
                }
                Err(err) if start.elapsed() > START => return Err(err),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    fn import(&self, ground: &Ground) -> io::Result<String> {
        let tree = ground.directory();
        make_tree(tree.path())?;
        let archive = ground.directory();
        let archive = archive.path().join("tree.tar");
        output(Command::new("tar").arg("-C").arg(tree.path()).arg("-cf").arg(&archive).arg("."))?;
        output(self.command().arg("import").arg(&archive))
    }

    fn command(&self) -> Command {
        let mut command = Command::new("docker");
        command.args(["--host", &self.host]);
        command
    }

    fn timed(command: &mut Command) -> (Duration, String) {
        let (time, output) = timed(|| output(command));
        (time, output.unwrap())
    }

    /// `docker run -d`, without a network, as our own sandboxes.
    pub fn run(&self, image: Option<&str>) -> (Duration, String) {
        let image = image.unwrap_or(&self.image);
        let mut command = self.command();
        command.args(["run", "-d", "--network", "none", "--label", LABEL, image]);
        Self::timed(command.args(["/bin/sleep", "100000"]))
    }

    /// The same with a volume of its own.
    pub fn run_with_volume(&self, at: &str) -> String {
        let mut command = self.command();
        command.args(["run", "-d", "--network", "none", "--label", LABEL, "-v", at, &self.image]);
        Self::timed(command.args(["/bin/sleep", "100000"])).1
    }

    pub fn remove_with_volumes(&self, id: &str) {
        Self::timed(self.command().args(["rm", "-f", "-v", id]));
    }

    /// Where the daemon listens, if that is here.
    #[must_use]
    pub fn socket(&self) -> Option<PathBuf> {
        self.host.strip_prefix("unix://").map(PathBuf::from)
    }

    pub fn exec(&self, id: &str) -> Duration {
        Self::timed(self.command().args(["exec", id, "/bin/true"])).0
    }

    pub fn script(&self, id: &str, script: &str) {
        Self::timed(self.command().args(["exec", id, "/bin/sh", "-ec", script]));
    }

    pub fn start(&self, id: &str, script: &str) {
        Self::timed(self.command().args(["exec", "-d", id, "/bin/sh", "-c", script]));
    }

    pub fn commit(&self, id: &str) -> (Duration, String) {
        let (time, image) = Self::timed(self.command().args(["commit", id]));
        self.images.borrow_mut().push(image.clone());
        (time, image)
    }

    pub fn remove(&self, id: &str) -> Duration {
        Self::timed(self.command().args(["rm", "-f", id])).0
    }

    /// An image of a directory in a file, as others would give it to us.
    pub fn save(&self, tree: &Path, archive: &Path) -> io::Result<()> {
        let flat = archive.with_extension("tree");
        output(Command::new("tar").arg("-C").arg(tree).arg("-cf").arg(&flat).arg("."))?;
        let image = output(self.command().arg("import").arg(&flat))?;
        fs::remove_file(flat)?;
        output(self.command().arg("save").arg("-o").arg(archive).arg(&image))?;
        output(self.command().args(["rmi", "-f", &image])).map(drop)
    }

    /// `docker load`, and what it loaded.
    pub fn load(&self, archive: &Path) -> (Duration, String) {
        let (time, said) = Self::timed(self.command().arg("load").arg("-i").arg(archive));
        (time, said.rsplit(' ').next().unwrap_or_default().to_owned())
    }

    /// Of what was committed or loaded.
    pub fn remove_image(&self, image: &str) {
        let _ = output(self.command().args(["rmi", "-f", image]));
        self.images.borrow_mut().retain(|known| known != image);
    }
}

fn start_daemon(at: &Path) -> io::Result<(String, Child)> {
    let host = format!("unix://{}/docker.sock", at.display());
    let daemon = Command::new("dockerd")
        .arg("--data-root")
        .arg(at.join("data"))
        .arg("--exec-root")
        .arg(at.join("exec"))
        .arg("--pidfile")
        .arg(at.join("pid"))
        .args(["--host", &host])
        // Nothing is left in the machine's network.
        .args(["--bridge", "none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(at.join("log"))?)
        .spawn();
    let daemon = daemon.map_err(|err| io::Error::new(err.kind(), format!("dockerd: {err}")))?;
    Ok((host, daemon))
}

impl Drop for Docker {
    fn drop(&mut self) {
        let ours = ["ps", "-aq", "--filter", &format!("label={LABEL}")];
        for id in output(self.command().args(ours)).unwrap_or_default().lines() {
            let _ = output(self.command().args(["rm", "-f", id]));
        }
        for image in self.images.take() {
            let _ = output(self.command().args(["rmi", "-f", &image]));
        }
        if let Some(daemon) = &mut self.daemon {
            stop(daemon);
        }
    }
}

fn stop(daemon: &mut Child) {
    let start = Instant::now();
    if let Some(pid) = Pid::from_raw(daemon.id().cast_signed()) {
        let _ = kill_process(pid, Signal::TERM);
    }
    while matches!(daemon.try_wait(), Ok(None)) && start.elapsed() < STOP {
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = daemon.kill();
    let _ = daemon.wait();
}

#[derive(Debug)]
pub struct Runc {
    directory: TempDir,
    next: std::cell::Cell<u32>,
}

impl Runc {
    fn find(ground: &Ground) -> io::Result<Self> {
        let directory = ground.directory();
        make_tree(&directory.path().join("rootfs"))?;
        let runc = Self { directory, next: 0.into() };
        runc.write_bundle("bundle", &["/bin/sleep", "100000"], false)?;
        let (_, id) = runc.try_run("bundle")?;
        runc.remove(&id);
        Ok(runc)
    }

    fn command(&self) -> Command {
        let mut command = Command::new("runc");
        command.arg("--root").arg(self.directory.path().join("state"));
        command
    }

    fn rootfs(&self) -> PathBuf {
        self.directory.path().join("rootfs")
    }

    fn bundle(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// All have the same root file system.
    fn write_bundle(&self, name: &str, program: &[&str], with_usr: bool) -> io::Result<()> {
        let (bundle, config) = (self.bundle(name), self.bundle(name).join("config.json"));
        fs::create_dir_all(&bundle)?;
        if !config.exists() {
            output(Command::new("runc").arg("spec").current_dir(&bundle))?;
        }
        let mut said: serde_json::Value = serde_json::from_slice(&fs::read(&config)?)?;
        said["process"]["terminal"] = json!(false);
        said["process"]["args"] = json!(program);
        said["root"] = json!({ "path": self.rootfs(), "readonly": false });
        if let Some(mounts) = said["mounts"].as_array_mut() {
            mounts.retain(|mount| mount["destination"] != "/usr");
            mounts.extend(with_usr.then(|| {
                let options = ["rbind", "ro"];
                json!({ "destination": "/usr", "type": "bind", "source": "/usr", "options": options })
            }));
        }
        fs::write(&config, serde_json::to_vec(&said)?)
    }

    fn try_run(&self, bundle: &str) -> io::Result<(Duration, String)> {
        let id = format!("{LABEL}-{}-{}", std::process::id(), self.next.get());
        self.next.set(self.next.get() + 1);
        let mut command = self.command();
        command.args(["run", "-d", "--bundle"]).arg(self.bundle(bundle)).arg(&id);
        // What it starts would hold a pipe open.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match timed(|| command.status()) {
            (time, Ok(status)) if status.success() => Ok((time, id)),
            (_, Ok(status)) => Err(io::Error::other(format!("runc run: {status}"))),
            (_, Err(err)) => Err(io::Error::new(err.kind(), format!("runc: {err}"))),
        }
    }

    pub fn run(&self) -> (Duration, String) {
        self.try_run("bundle").unwrap()
    }

    pub fn exec(&self, id: &str) -> Duration {
        let (time, answer) = timed(|| output(self.command().args(["exec", id, "/bin/true"])));
        answer.unwrap();
        time
    }

    /// Captures a script of bash with CRIU into `images`, which ends it, and brings it back. It tells by `/root/count`
    /// that it runs. Where it needs more than a shell, it has this machine's `/usr`.
    pub fn checkpoint_and_restore(
        &self,
        script: &str,
        with_usr: bool,
        images: &Path,
    ) -> io::Result<(Duration, Duration)> {
        for name in ["bash", "mkfifo"] {
            add_program(&self.rootfs(), name)?;
        }
        self.write_bundle("script", &["/bin/bash", "-c", script], with_usr)?;
        let home = self.rootfs().join("root");
        fs::remove_dir_all(&home).and_then(|()| fs::create_dir(&home))?;
        let (_, id) = self.try_run("script")?;
        let times = self.checkpoint_then_restore(&id, images);
        self.remove(&id);
        times
    }

    fn checkpoint_then_restore(&self, id: &str, images: &Path) -> io::Result<(Duration, Duration)> {
        self.wait_for_count(id)?;
        let mut dump = self.command();
        dump.args(["checkpoint", "--image-path"]).arg(images).arg(id);
        let (dumped, answer) = timed(|| output(&mut dump));
        answer?;
        let mut restore = self.command();
        restore.args(["restore", "-d", "--image-path"]).arg(images);
        restore.arg("--bundle").arg(self.bundle("script")).arg(id);
        restore.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let (restored, status) = timed(|| restore.status());
        match status? {
            status if status.success() => self.wait_for_count(id).map(|()| (dumped, restored)),
            status => Err(io::Error::other(format!("runc restore: {status}"))),
        }
    }

    /// Until the script says something else than it did.
    fn wait_for_count(&self, id: &str) -> io::Result<()> {
        const PATIENCE: Duration = Duration::from_secs(10);
        let count = self.rootfs().join("root/count");
        let count = || fs::metadata(&count).and_then(|file| file.modified()).ok();
        let (before, start) = (count(), Instant::now());
        while count() == before {
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other(format!("`{id}` does not run")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    pub fn remove(&self, id: &str) -> Duration {
        let (time, answer) = timed(|| output(self.command().args(["delete", "-f", id])));
        answer.unwrap();
        time
    }
}

impl Drop for Runc {
    fn drop(&mut self) {
        for id in output(self.command().args(["list", "-q"])).unwrap_or_default().lines() {
            let _ = output(self.command().args(["delete", "-f", id]));
        }
    }
}
