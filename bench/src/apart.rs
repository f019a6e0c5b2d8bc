//! A place of our own to measure in: namespaces that take everything with them when we die, and a
//! file system with a journal that nobody else writes to.
//!
//! ```text
//!   the command ──exec──► unshare ──► process 1 of a new namespace: reaps ──► the benchmark
//! ```
//!
//! However the benchmark ends, process 1 ends with it, and the kernel ends the rest: sandboxes,
//! daemons and the mount, whose file has no name any more.

use std::{
    env, fs, io,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio, exit},
};

use rustix::process::{WaitOptions, WaitStatus, wait};
use tempfile::{NamedTempFile, TempDir};

const STAGE: &str = "FORKPOINT_BENCH_STAGE";
const FIRST_PROCESS: &str = "first-process";
const INSIDE: &str = "inside";

/// Large enough for 1 GB, its copies, and a daemon's images. Sparse.
const FILE_BYTES: u64 = 6 << 30;

/// In our own namespace of mounts nobody else sees what is mounted here.
const MOUNT_POINT: &str = "/mnt";

/// To be called before there are threads. As root it returns in the last of the processes above,
/// and is told there that it did; others stay where they are.
#[must_use]
pub fn go_apart() -> bool {
    match env::var(STAGE).as_deref() {
        Ok(INSIDE) => return true,
        Ok(FIRST_PROCESS) => be_first_process(),
        _ => {}
    }
    if !rustix::process::geteuid().is_root() {
        return false;
    }
    let Ok(program) = env::current_exe() else { return false };
    let err = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .arg(program)
        .args(env::args_os().skip(1))
        .env(STAGE, FIRST_PROCESS)
        .exec();
    eprintln!("cannot go apart, what is started here may outlive a kill: unshare: {err}");
    false
}

/// Starts the benchmark and reaps what it leaves to us.
fn be_first_process() -> ! {
    let program = env::current_exe().unwrap();
    let child = Command::new(program).args(env::args_os().skip(1)).env(STAGE, INSIDE).spawn();
    let child = child.unwrap().id();
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get().cast_unsigned() == child => {
                exit(code(status));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => exit(1),
        }
    }
}

fn code(status: WaitStatus) -> i32 {
    let status = ExitStatus::from_raw(status.as_raw());
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// Where the benchmark keeps what it makes.
#[derive(Debug)]
pub struct Ground {
    path: PathBuf,
    /// Says what file system it is.
    pub description: String,
    _directory: Option<TempDir>,
}

impl Ground {
    /// In `wanted`, else on a file system of its own if `apart`, else in a temporary directory.
    #[must_use]
    pub fn find(wanted: Option<&Path>, apart: bool) -> Self {
        if wanted.is_none() && apart {
            match mount_file() {
                Ok(()) => {
                    let description = "ext4 with a journal, in a file of its own".to_owned();
                    return Self { path: MOUNT_POINT.into(), description, _directory: None };
                }
                Err(err) => eprintln!("no file system of our own: {err}"),
            }
        }
        let directory = match wanted {
            Some(wanted) => TempDir::new_in(wanted),
            None => TempDir::new(),
        };
        let directory = directory.unwrap();
        let description =
            format!("{} at {}", kind_of(directory.path()), directory.path().display());
        Self { path: directory.path().to_owned(), description, _directory: Some(directory) }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new directory, gone when it is dropped.
    #[must_use]
    pub fn directory(&self) -> TempDir {
        tempfile::Builder::new().prefix("b").rand_bytes(4).tempdir_in(&self.path).unwrap()
    }
}

fn mount_file() -> io::Result<()> {
    let file = NamedTempFile::new()?;
    file.as_file().set_len(FILE_BYTES)?;
    // Everything is initialised now, so that no thread of the kernel does it while we measure.
    let lazy = "lazy_itable_init=0,lazy_journal_init=0";
    let many_inodes = ["-i", "4096"];
    call(Command::new("mkfs.ext4").args(["-qF", "-E", lazy]).args(many_inodes).arg(file.path()))?;
    // The loop device goes with the mount, and the file with the loop device.
    call(Command::new("mount").args(["-o", "loop"]).arg(file.path()).arg(MOUNT_POINT))
}

fn call(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// The type of the mount that `path` is on.
fn kind_of(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let holding = fields.filter(|fields| fields.len() > 2 && path.starts_with(fields[1]));
    let nearest = holding.max_by_key(|fields| fields[1].len());
    nearest.map_or_else(|| "a file system".to_owned(), |fields| fields[2].to_owned())
}

/// The machine, in a line.
#[must_use]
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or_default();
    let processor = field(&read("/proc/cpuinfo"), "model name");
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let memory = memory.split(' ').next().and_then(|kilobytes| kilobytes.parse::<f64>().ok());
    let memory = memory.unwrap_or_default() / f64::from(1 << 20);
    format!(
        "{cores} cores ({processor}), {memory:.1} GiB, Linux {kernel}, load {load} at the start"
    )
}

/// What stands behind the first of these.
fn field(text: &str, name: &str) -> String {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_once(':').map_or("", |(_, value)| value).trim().to_owned()
}
