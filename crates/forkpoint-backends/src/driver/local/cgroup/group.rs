//! The cgroups of one sandbox.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{Mode, OFlags, open};
use serde::{Deserialize, Serialize};

use super::{
    CgroupError,
    directory::{self, Deadline, children, is_gone, make, unless_gone, wait_until, write},
};

const FREEZE_WAIT: Duration = Duration::from_secs(10);
/// A process with many files in its cache is seconds in dying.
const REMOVE_WAIT: Duration = Duration::from_secs(10);

/// Where a sandbox's processes are. To be kept with the sandbox: it is true for every process of
/// ours. Its methods block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::driver::local) struct Cgroup {
    pub(super) unified: Option<PathBuf>,
    /// Those of version 1 that hold limits.
    pub(super) v1: Vec<PathBuf>,
}

/// What a sandbox uses, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::driver::local) struct Usage {
    pub(in crate::driver::local) memory_bytes: Option<u64>,
    /// Processes and threads, the sandbox's first process among them.
    pub(in crate::driver::local) pids: Option<u64>,
    pub(in crate::driver::local) cpu: Option<Duration>,
}

impl Cgroup {
    /// For `clone3` with `CLONE_INTO_CGROUP`.
    pub(in crate::driver::local) fn unified_dir(&self) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &PathBuf| open(path, flags, Mode::empty());
        Ok(self.unified.as_ref().map(open).transpose()?)
    }

    /// The new process writes `0` into each of these, before it has a second thread.
    pub(in crate::driver::local) fn tasks_files(&self) -> io::Result<Vec<OwnedFd>> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let open = |path: &PathBuf| Ok(open(path.join("tasks"), flags, Mode::empty())?);
        self.v1.iter().map(open).collect()
    }

    /// What it is called, in all hierarchies.
    pub(in crate::driver::local) fn name(&self) -> Option<&str> {
        self.unified.as_ref().or(self.v1.first())?.file_name()?.to_str()
    }

    /// Whether its processes can be frozen, counted and killed together.
    pub(in crate::driver::local) fn can_freeze(&self) -> bool {
        self.unified.is_some()
    }

    /// Returns when nothing in it runs. What cannot be frozen in time runs on.
    pub(in crate::driver::local) fn freeze(&self) -> io::Result<()> {
        let unified = self.unified()?;
        write(&unified.join("cgroup.freeze"), "1")?;
        let frozen = wait_until(unified, "frozen 1", Deadline::after(FREEZE_WAIT));
        if let Ok(true) = frozen {
            return Ok(());
        }
        self.thaw()?;
        frozen
            .and(Err(io::Error::new(io::ErrorKind::TimedOut, "its processes do not come to rest")))
    }

    pub(in crate::driver::local) fn thaw(&self) -> io::Result<()> {
        write(&self.unified()?.join("cgroup.freeze"), "0")
    }

    pub(in crate::driver::local) fn is_frozen(&self) -> io::Result<bool> {
        let events = fs::read_to_string(self.unified()?.join("cgroup.events"))?;
        Ok(field(&events, "frozen") == Some(1))
    }

    /// Kills everything in it, frozen or not, and does not wait for its end.
    pub(in crate::driver::local) fn kill(&self) -> io::Result<()> {
        let unified = self.unified()?;
        match write(&unified.join("cgroup.kill"), "1") {
            Err(err) if is_gone(&err) && unified.exists() => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel has no `cgroup.kill`"))
            }
            result => result.or_else(unless_gone),
        }
    }

    /// Those that this process can see. None when it is gone.
    pub(in crate::driver::local) fn pids(&self) -> io::Result<Vec<u32>> {
        let top = self.unified.as_ref().or(self.v1.first()).ok_or_else(no_cgroup)?;
        let mut pids = Vec::new();
        for directory in children(top)?.iter().chain([top]) {
            match fs::read_to_string(directory.join("cgroup.procs")) {
                Ok(text) => pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok())),
                Err(err) => unless_gone(err)?,
            }
        }
        // A process of another pid namespace.
        pids.retain(|pid| *pid != 0);
        Ok(pids)
    }

    pub(in crate::driver::local) fn usage(&self) -> Usage {
        let number = |text: String| text.trim().parse().ok();
        let count = |text: String| u64::try_from(text.lines().count()).ok();
        let cpu = self.read("cpu.stat").and_then(|text| field(&text, "usage_usec"));
        Usage {
            memory_bytes: self
                .read("memory.current")
                .or_else(|| self.read("memory.usage_in_bytes"))
                .and_then(number),
            pids: self
                .read("pids.current")
                .and_then(number)
                .or_else(|| self.read("cgroup.threads").and_then(count)),
            cpu: cpu.map(Duration::from_micros),
        }
    }

    /// How many processes were killed for want of memory. Known where there is a limit.
    pub(in crate::driver::local) fn oom_kills(&self) -> Option<u64> {
        let events = self.read("memory.events").or_else(|| self.read("memory.oom_control"))?;
        field(&events, "oom_kill")
    }

    /// Without waiting; `false` while a process is still in it.
    pub(in crate::driver::local) fn remove_now(&self) -> bool {
        let mut directories = self.unified.iter().chain(&self.v1);
        directories.all(|path| directory::remove(path, Deadline::after(Duration::ZERO)).is_ok())
    }

    /// Waits for a while for processes that are about to go. What is gone is a success.
    pub(in crate::driver::local) fn remove(&self) -> io::Result<()> {
        let deadline = Deadline::after(REMOVE_WAIT);
        let mut result = Ok(());
        for directory in self.unified.iter().chain(&self.v1) {
            result = result.and(directory::remove(directory, deadline));
        }
        result
    }

    /// The directory in the hierarchy of version 1 whose cgroup `base` is ours. Made when it is
    /// first asked for: hierarchies can have several controllers.
    pub(super) fn v1_directory(&mut self, base: &Path, name: &str) -> Result<&Path, CgroupError> {
        let known = self.v1.iter().position(|path| path.starts_with(base));
        let at = match known {
            Some(at) => at,
            None => {
                self.v1.push(make(base, name, |_| {})?);
                self.v1.len() - 1
            }
        };
        Ok(&self.v1[at])
    }

    fn unified(&self) -> io::Result<&Path> {
        self.unified.as_deref().ok_or_else(no_cgroup)
    }

    /// The first file of that name.
    fn read(&self, file: &str) -> Option<String> {
        let mut directories = self.unified.iter().chain(&self.v1);
        directories.find_map(|directory| fs::read_to_string(directory.join(file)).ok())
    }
}

fn no_cgroup() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the sandbox has no cgroup2 directory")
}

/// Of lines such as `oom_kill 3`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(' ')?;
        (found == name).then(|| value.parse().ok())?
    })
}
