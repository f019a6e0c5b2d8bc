//! Holding a container still by its own cgroup: a millisecond, where an engine takes tens to pause and to
//! resume.
//!
//! It is written down before, since nobody else can see whose freeze it is: whoever comes after us ends
//! it. Where the kernel has both versions of cgroups, an engine pauses by version 1 and we freeze
//! by version 2, and neither meets the other: a command that is started meanwhile waits. Else both use
//! one switch, and a pause that somebody made meanwhile is left to them.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use forkpoint_core::driver::{DriverResult, SandboxState};
use rustix::{thread::nanosleep, time::Timespec};
use serde::{Deserialize, Serialize};

use super::{
    container::Container,
    host::{Host, blocking, io_error},
    volatile,
};
use crate::driver::local::cgroup::{
    directory::{Deadline, is_gone, unless_gone, wait_until, write},
    place_of,
};

pub(super) const FREEZES: &str = "freezes";

/// What does not come to rest by then is left to the engine.
const WAIT: Duration = Duration::from_secs(2);

const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000 };

/// Of the id of a container.
const ID_LEN: usize = 64;

/// Nobody else of ours freezes the container while this is there, in whichever data directory they are.
#[derive(Debug)]
pub(super) struct Turn {
    _lock: File,
}

/// The switch that holds a container still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Freezer {
    directory: PathBuf,
    version: Version,
    /// The engine pauses by the same switch.
    shared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Version {
    V1,
    V2,
}

impl Freezer {
    /// From the texts of `/proc/self/mountinfo` and of the container's `/proc/PID/cgroup`.
    fn find(mounts: &str, groups: &str, container: &str) -> Option<Self> {
        let place = |controller| own_group(&place_of(mounts, groups, controller)?, container);
        let paused_by_v1 = groups.lines().any(|line| {
            let controllers = line.split(':').nth(1).unwrap_or_default();
            line.contains(container) && controllers.split(',').any(|name| name == "freezer")
        });
        let v2 = place("").map(|directory| Self {
            directory,
            version: Version::V2,
            shared: !paused_by_v1,
        });
        let v1 = || {
            let directory = place("freezer")?;
            Some(Self { directory, version: Version::V1, shared: true })
        };
        v2.filter(|found| found.switch().is_file()).or_else(v1)
    }

    fn switch(&self) -> PathBuf {
        self.directory.join(match self.version {
            Version::V1 => "freezer.state",
            Version::V2 => "cgroup.freeze",
        })
    }

    fn lock(&self) -> io::Result<Turn> {
        let lock = File::open(&self.directory)?;
        lock.lock()?;
        Ok(Turn { _lock: lock })
    }

    /// Whether somebody switched it, whether or not everything stands still by now.
    pub(super) fn is_on(&self) -> io::Result<bool> {
        let name = match self.version {
            Version::V1 => "freezer.self_freezing",
            Version::V2 => "cgroup.freeze",
        };
        Ok(fs::read_to_string(self.directory.join(name))?.trim() == "1")
    }

    /// Returns when nothing in it runs, or it did not come to rest in time.
    fn freeze(&self) -> io::Result<bool> {
        let deadline = Deadline::after(WAIT);
        match self.version {
            Version::V1 => self.freeze_v1(deadline),
            Version::V2 => write(&self.switch(), "1")
                .and_then(|()| wait_until(&self.directory, "frozen 1", deadline)),
        }
    }

    /// Told again each time: a process that was just being made may have been missed.
    fn freeze_v1(&self, deadline: Deadline) -> io::Result<bool> {
        let switch = self.switch();
        loop {
            write(&switch, "FROZEN")?;
            if fs::read_to_string(&switch)?.trim() == "FROZEN" {
                return Ok(true);
            }
            if deadline.left().is_zero() {
                return Ok(false);
            }
            let _ = nanosleep(&LOOK);
        }
    }

    /// What is gone runs no longer, and is a success.
    fn thaw(&self) -> io::Result<()> {
        let value = match self.version {
            Version::V1 => "THAWED",
            Version::V2 => "0",
        };
        write(&self.switch(), value).or_else(unless_gone)
    }
}

/// The container's own, which those that it made itself are below.
fn own_group(path: &Path, container: &str) -> Option<PathBuf> {
    let is_its = |part: &&Path| {
        let name = part.file_name().and_then(|name| name.to_str());
        container.len() >= ID_LEN && name.is_some_and(|name| name.contains(container))
    };
    path.ancestors().filter(is_its).last().map(Path::to_owned)
}

impl Host {
    fn freezer(&self, container: &Container) -> Option<Freezer> {
        if !self.reaches_processes() {
            return None;
        }
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", volatile::pid(container)?));
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let found = Freezer::find(&mounts, &groups.ok()?, container.id())?;
        // A probe of the engine that began meanwhile would fail where the switch is the engine's own.
        let is_probed = !container.0["State"]["Health"].is_null();
        (!found.shared || !is_probed).then_some(found)
    }

    /// Holds it still, if that can be done without the engine. One that stood still stays so.
    pub(super) async fn freeze(&self, container: &Container) -> DriverResult<Option<Turn>> {
        let Some(freezer) = self.freezer(container) else { return Ok(None) };
        let found = freezer.clone();
        let turn = blocking(move || Ok(found.lock().and_then(|turn| Ok((turn, found.is_on()?)))));
        // It may have ended meanwhile, which the engine tells.
        let Ok((turn, is_on)) = turn.await? else { return Ok(None) };
        let is_ours = !is_on || self.read_note(FREEZES, container.id())?.is_some();
        if is_ours {
            let text = serde_json::to_vec(&freezer).unwrap_or_default();
            self.write_note(FREEZES, container.id(), &text)?;
        }
        match blocking(move || Ok(freezer.freeze())).await? {
            Ok(true) => Ok(Some(turn)),
            Ok(false) | Err(_) => self.thaw(container.id()).await.map(|()| None),
        }
    }

    fn frozen_by_us(&self, container: &str) -> DriverResult<Option<Freezer>> {
        let note = self.read_note(FREEZES, container)?;
        Ok(note.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// Ends our own freeze, if there is one.
    pub(super) async fn thaw(&self, container: &str) -> DriverResult<()> {
        let Some(freezer) = self.frozen_by_us(container)? else {
            return self.drop_note(FREEZES, container);
        };
        // An engine that does not answer pauses nothing.
        let now = match freezer.shared {
            true => self.inspect(container).await.unwrap_or_default(),
            false => None,
        };
        if now.is_none_or(|now| now.state() != SandboxState::Paused) {
            let path = freezer.switch();
            let thawed = blocking(move || Ok(freezer.thaw())).await?;
            thawed.map_err(io_error("write", &path))?;
        }
        self.drop_note(FREEZES, container)
    }

    /// What it is, our own freeze seen as the pause that it is.
    pub(super) fn state_of(&self, container: &Container) -> DriverResult<SandboxState> {
        let state = container.state();
        if state != SandboxState::Running {
            return Ok(state);
        }
        let Some(freezer) = self.frozen_by_us(container.id())? else { return Ok(state) };
        match freezer.is_on() {
            Ok(true) => Ok(SandboxState::Paused),
            Ok(false) => Ok(state),
            Err(err) if is_gone(&err) => Ok(state),
            Err(err) => Err(io_error("read", &freezer.directory)(err)),
        }
    }

    /// Whether a command that is started in it now would be refused for our sake.
    pub(super) fn refuses_commands(&self, container: &Container) -> DriverResult<bool> {
        let shared = self.frozen_by_us(container.id())?.is_some_and(|freezer| freezer.shared);
        Ok(shared && self.state_of(container)? == SandboxState::Paused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "06b262d9ff3c22857ff2cdfe84c62fb6d7a3068daf346661c6f4540069994721";

    fn find(mounts: &str, groups: &str) -> Option<(PathBuf, Version, bool)> {
        let found = Freezer::find(mounts, &groups.replace("ID", ID), ID)?;
        Some((found.directory, found.version, found.shared))
    }

    fn v1_mount(at: &Path, root: &str) -> String {
        format!("30 1 0:30 {root} {} rw - cgroup cgroup rw,freezer\n", at.display())
    }

    fn v2_mount(at: &Path) -> String {
        format!("31 1 0:31 / {} rw - cgroup2 cgroup2 rw\n", at.display())
    }

    #[test]
    fn the_switch_is_of_the_container_and_of_nobody_else() {
        let directory = tempfile::TempDir::new().unwrap();
        let (v1, v2) = (directory.path().join("v1"), directory.path().join("v2"));
        let own = v2.join(format!("system.slice/docker-{ID}.scope"));
        fs::create_dir_all(&own).unwrap();
        let scope = "0::/system.slice/docker-ID.scope\n";
        let both = v1_mount(&v1, "/") + &v2_mount(&v2);
        let old = (v1.join("docker").join(ID), Version::V1, true);
        let groups = format!("6:freezer:/docker/ID\n{scope}");
        assert_eq!(find(&both, &groups), Some(old.clone()), "a kernel without the file");
        fs::write(own.join("cgroup.freeze"), "0\n").unwrap();
        assert_eq!(find(&both, &groups), Some((own.clone(), Version::V2, false)));
        assert_eq!(find(&v1_mount(&v1, "/"), &groups), Some(old));
        let alone = Some((own, Version::V2, true));
        assert_eq!(find(&both, scope), alone, "the engine's own");
        let deeper = "0::/system.slice/docker-ID.scope/init\n";
        assert_eq!(find(&both, deeper), alone, "one that the container made");
        let others = ["", "0::/\n", "6:freezer:/\n0::/\n", "0::/docker/other\n", "0::/../ID\n"];
        for groups in others {
            assert_eq!(find(&both, groups), None, "{groups:?}");
        }
        let part = v1_mount(&v1, "/elsewhere");
        assert_eq!(find(&part, "6:freezer:/docker/ID\n"), None, "it is not mounted here");
        assert_eq!(Freezer::find(&both, scope, ""), None);
    }
}
