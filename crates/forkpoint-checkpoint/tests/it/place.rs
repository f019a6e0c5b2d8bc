//! A sandbox with a directory to look into.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use forkpoint_checkpoint::{
    CaptureSpec, Captured, Error, Tree,
    bare::{Bare, BareSpec},
    capture,
};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_forkpoint-checkpoint-sandbox");

pub(crate) struct Place {
    pub(crate) dir: TempDir,
    pub(crate) images: Vec<PathBuf>,
}

/// For a condition that must come true some time.
const LONG: Duration = Duration::from_secs(25);

pub(crate) fn now() -> Duration {
    clock_gettime(ClockId::Monotonic).try_into().unwrap()
}

/// Waits until `condition` has an answer.
pub(crate) fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = now() + LONG;
    loop {
        if let Some(answer) = condition() {
            return answer;
        }
        assert!(now() < end, "it never came true: {what}");
        let moment = rustix::time::Timespec { tv_sec: 0, tv_nsec: 300_000 };
        let _ = rustix::thread::nanosleep(&moment);
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { dir: TempDir::new().unwrap(), images: Vec::new() }
    }

    pub(crate) fn work(&self) -> PathBuf {
        let work = self.dir.path().join("work");
        if !work.exists() {
            fs::create_dir(&work).unwrap();
        }
        // Whoever is root inside must get here.
        open_to_all(self.dir.path());
        work
    }

    pub(crate) fn spec(&self) -> BareSpec {
        BareSpec { work: self.work(), ..BareSpec::default() }
    }

    pub(crate) fn run(&self, command: &[&str]) -> Bare {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        Bare::start(Path::new(PROGRAM), &BareSpec { command, ..self.spec() }).unwrap()
    }

    pub(crate) fn shell(&self, script: &str) -> Bare {
        self.run(&["/bin/bash", "-c", script])
    }

    pub(crate) fn python(&self, program: &str) -> Bare {
        fs::write(self.work().join("program.py"), program).unwrap();
        self.run(&["/usr/bin/python3", "-u", "/mnt/program.py"])
    }

    /// A shell that may gain no rights and is under a filter.
    pub(crate) fn confined(&self, script: &str) -> Bare {
        let command = ["/bin/bash", "-c", script].map(str::to_owned).to_vec();
        Bare::start(Path::new(PROGRAM), &BareSpec { command, confined: true, ..self.spec() })
            .unwrap()
    }

    /// What a command inside says.
    pub(crate) fn inside(&self, sandbox: &Bare, command: &[&str]) -> String {
        let init = sandbox.init.to_string();
        let output = Command::new("nsenter")
            .args(["-t", &init, "-U", "-m", "-n", "-p", "--setuid", "0", "--setgid", "0", "--"])
            .args(command)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// The number from here of a process inside.
    pub(crate) fn outside(&self, sandbox: &Bare, inside: i32) -> i32 {
        let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let numbers = fs::read_dir("/proc").unwrap().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_it = |pid: &i32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let own = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            let own = own.and_then(|own| own.split_whitespace().last()?.parse::<i32>().ok());
            own == Some(inside) && namespace(*pid) == namespace(sandbox.init)
        };
        numbers.into_iter().find(is_it).unwrap()
    }

    pub(crate) fn signal(&self, sandbox: &Bare, inside: i32, signal: i32) {
        let pid = rustix::process::Pid::from_raw(self.outside(sandbox, inside)).unwrap();
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn state(&self, sandbox: &Bare, inside: i32) -> Option<char> {
        let stat = fs::read_to_string(sandbox.path(&format!("/proc/{inside}/stat"))).ok()?;
        stat[stat.rfind(") ")? + 2..].chars().next()
    }

    /// What the kernel says each thread does.
    pub(crate) fn states(&self, sandbox: &Bare, inside: i32) -> String {
        let pid = self.outside(sandbox, inside);
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        let told = threads.map(|thread| {
            let status = read(thread.path().join("status"));
            let keys = ["State", "TracerPid", "SigPnd", "ShdPnd", "SigBlk", "SigCgt"];
            let lines = status.lines().filter(|line| keys.iter().any(|key| line.starts_with(key)));
            let lines = lines.collect::<Vec<_>>().join(" ");
            format!("{lines} {}", read(thread.path().join("syscall")))
        });
        told.collect()
    }

    /// Captures into a new image, over nothing.
    pub(crate) fn capture(&mut self, sandbox: &Bare) -> Captured {
        let tree = Tree::below(sandbox.init);
        let captured = capture(&tree, &CaptureSpec::default(), || self.keep_files()).unwrap();
        self.write(&captured);
        captured
    }

    pub(crate) fn write(&mut self, captured: &Captured) -> forkpoint_checkpoint::ImageId {
        if captured.parent().is_none() {
            self.images.clear();
        }
        let name = format!("image-{}-{}", self.images.len(), now().as_nanos());
        let path = self.dir.path().join(name);
        let id = captured.write(&path, false).unwrap();
        self.images.push(path);
        id
    }

    /// Files and processes are one moment: to be called while nothing runs.
    pub(crate) fn keep_files(&self) -> std::io::Result<()> {
        let kept = self.dir.path().join("kept");
        let _ = fs::remove_dir_all(&kept);
        copy_tree(&self.work(), &kept)
    }

    /// As they were when they were kept, if they were.
    pub(crate) fn bring_files_back(&self) {
        let kept = self.dir.path().join("kept");
        if kept.exists() {
            fs::remove_dir_all(self.work()).unwrap();
            copy_tree(&kept, &self.dir.path().join("work")).unwrap();
        }
    }

    pub(crate) fn restore(&self) -> Bare {
        self.bring_files_back();
        self.try_restore().unwrap()
    }

    pub(crate) fn try_restore(&self) -> std::io::Result<Bare> {
        let images = self.images.clone();
        Bare::start(Path::new(PROGRAM), &BareSpec { images, ..self.spec() })
    }

    /// Restores with memory that comes when it is asked for, and slowly otherwise.
    pub(crate) fn restore_slowly(&self) -> Bare {
        self.bring_files_back();
        self.restore_as(BareSpec { lazy: true, slow: true, ..self.spec() })
    }

    /// The files stay as they are.
    pub(crate) fn restore_as(&self, spec: BareSpec) -> Bare {
        let images = self.images.clone();
        Bare::start(Path::new(PROGRAM), &BareSpec { images, ..spec }).unwrap()
    }

    /// How many processes said that they are.
    pub(crate) fn ready(&self) -> usize {
        self.said("ready")
    }

    /// How many files there are whose names begin so.
    pub(crate) fn said(&self, what: &str) -> usize {
        let names = fs::read_dir(self.work()).unwrap().flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with(what)).count()
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.work().join(name)).unwrap_or_default()
    }

    pub(crate) fn put(&self, name: &str, content: &str) {
        // A program that waits for it may take it away as soon as it sees it.
        let path = self.work().join(name);
        let new = self.work().join(format!(".{}.new", name.replace('/', "-")));
        fs::write(&new, content).unwrap();
        open_to_all(&new);
        fs::rename(new, path).unwrap();
    }

    /// The number in a file that a program keeps writing.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.read(name).trim().parse().unwrap_or(0)
    }

    /// Waits until the number is above `than`.
    pub(crate) fn grows(&self, name: &str, than: u64) -> u64 {
        until(&format!("{name} above {than}"), || {
            // Init reaps orphans too; the program itself is number 2.
            let ended = self.read("ended");
            let ended = ended.lines().find(|line| line.starts_with("2 "));
            assert!(ended.is_none(), "it ended: {ended:?}; log: {}", self.read("log"));
            Some(self.number(name)).filter(|number| *number > than)
        })
    }
}

pub(crate) fn try_capture(sandbox: &Bare) -> Result<Captured, Error> {
    let tree = Tree::below(sandbox.init);
    capture(&tree, &CaptureSpec::default(), || Ok(()))
}

fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    match Command::new("cp").arg("-a").args([from, to]).status()?.success() {
        true => Ok(()),
        false => Err(std::io::Error::other("the files could not be copied")),
    }
}
