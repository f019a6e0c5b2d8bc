//! A sandbox with a directory to look into.

use std::{
    fs,
    path::{Path, PathBuf},
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
const LONG: Duration = Duration::from_secs(60);

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

    /// Captures into a new image, over nothing.
    pub(crate) fn capture(&mut self, sandbox: &Bare) -> Captured {
        let captured = try_capture(sandbox).unwrap();
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

    pub(crate) fn restore(&self) -> Bare {
        self.try_restore().unwrap()
    }

    pub(crate) fn try_restore(&self) -> std::io::Result<Bare> {
        let images = self.images.clone();
        Bare::start(Path::new(PROGRAM), &BareSpec { images, ..self.spec() })
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.work().join(name)).unwrap_or_default()
    }

    pub(crate) fn put(&self, name: &str, content: &str) {
        let path = self.work().join(name);
        fs::write(&path, content).unwrap();
        open_to_all(&path);
    }

    /// The number in a file that a program keeps writing.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.read(name).trim().parse().unwrap_or(0)
    }

    /// Waits until the number is above `than`.
    pub(crate) fn grows(&self, name: &str, than: u64) -> u64 {
        until(&format!("{name} above {than}; log: {}", self.read("log")), || {
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
