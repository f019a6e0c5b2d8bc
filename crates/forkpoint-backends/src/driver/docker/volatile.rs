//! What is in memory alone: `tmpfs` mounts and `/dev/shm`, reached through a process of the container.
//!
//! Such a mount is there only while the container runs, and empty when it starts. So a copy is started,
//! stands still while its mounts are filled, and goes on: its first process has a moment in which it
//! sees them empty.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    container::Container,
    engine::invalid,
    files::io_at,
    host::{Host, blocking, layer_error},
    kept::KeptVolume,
    seal::Data,
    volume::{Inside, VolumeCapture},
};
use forkpoint_core::{
    driver::{DriverResult, SandboxState},
    id::{SandboxId, SnapshotId},
};

const SHM: &str = "/dev/shm";

/// Of the id of a container.
const ID_LEN: usize = 64;

const COVERED: &str = "something else is mounted below it";

/// Where a container has something in memory.
pub(super) fn places(container: &Container) -> Vec<String> {
    let host = container.host_config();
    let tmpfs = host["Tmpfs"].as_object().into_iter().flatten().map(|(place, _)| place.clone());
    let mounts = container.mounts().iter().filter(|mount| mount["Type"] == "tmpfs");
    let mounts = mounts.filter_map(|mount| mount["Destination"].as_str()).map(str::to_owned);
    let mut places: Vec<String> = tmpfs.chain(mounts).collect();
    let ipc = host["IpcMode"].as_str().unwrap_or_default();
    let others = container.mounts().iter().any(|mount| mount["Destination"] == SHM);
    if matches!(ipc, "" | "private" | "shareable") && !others {
        places.push(SHM.to_owned());
    }
    places.sort();
    places.dedup();
    places
}

/// A process of the container, as it is called here. An engine with processes of its own calls it by
/// another number, which may be anybody's here.
pub(super) fn pid(container: &Container) -> Option<u32> {
    let told = container.0["State"]["Pid"].as_u64().filter(|pid| *pid > 0)?;
    let is_its = |pid: &u32| {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"));
        container.id().len() >= ID_LEN && groups.is_ok_and(|text| text.contains(container.id()))
    };
    let all = || {
        let names = fs::read_dir("/proc").into_iter().flatten().flatten();
        names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_its).min()
    };
    u32::try_from(told).ok().filter(is_its).or_else(all)
}

/// Whether anything else is mounted below a place: it would be taken for a part of what is there.
fn is_covered(pid: u32, place: &str) -> bool {
    let Ok(mounts) = fs::read_to_string(format!("/proc/{pid}/mountinfo")) else { return true };
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points.into_iter().any(|point| Path::new(point).starts_with(place) && point != place)
}

/// Who such a mount is, for the store: another one each time that the container starts.
fn identity(container: &Container, place: &str) -> String {
    let started = container.0["State"]["StartedAt"].as_str().unwrap_or_default();
    format!("memory at {place} of {} since {started}", container.id())
}

impl Host {
    pub(super) fn reaches_processes(&self) -> bool {
        self.engine.endpoint().is_near() && rustix::process::geteuid().is_root()
    }

    pub(super) fn expect_volatile(&self, container: &Container) -> DriverResult<()> {
        let runs = container.state() != SandboxState::Stopped;
        if !runs || self.reaches_processes() && pid(container).is_some() {
            return Ok(());
        }
        invalid("what is in memory can be kept only where the engine is, as root")
    }

    pub(super) async fn keep_volatile(
        &self,
        sandbox: SandboxId,
        container: &Container,
        snapshot: SnapshotId,
        first: usize,
    ) -> DriverResult<Vec<KeptVolume>> {
        let Some(pid) = pid(container).filter(|_| self.reaches_processes()) else {
            return Ok(Vec::new());
        };
        let mut kept = Vec::new();
        for (index, place) in places(container).into_iter().enumerate() {
            if is_covered(pid, &place) {
                let text = format!("what is in memory at `{place}` is not kept: {COVERED}");
                self.notice(sandbox, text);
                continue;
            }
            let (store, identity) = (self.volumes()?, identity(container, &place));
            let at = PathBuf::from(&place);
            let layer = blocking(move || {
                let inside = Inside::open(pid, &at).map_err(layer_error("reach a mount"))?;
                let path = inside.path();
                let number = first + index;
                let spec = VolumeCapture { snapshot, number, volume: &identity, path: &path };
                store.capture(&spec).map_err(layer_error("keep what is in memory"))
            })
            .await?;
            let mut one = KeptVolume::at(place);
            self.keep_as(&mut one, layer)?;
            kept.push(one);
        }
        Ok(kept)
    }

    /// Fills the mounts of a container that has just been started.
    pub(super) async fn fill_volatile(
        &self,
        sandbox: SandboxId,
        id: &str,
        data: &Data,
    ) -> DriverResult<()> {
        if data.volatile.is_empty() {
            return Ok(());
        }
        let Some(container) = self.inspect(id).await? else { return Ok(()) };
        let (Some(pid), true) = (pid(&container), self.reaches_processes()) else {
            self.notice(sandbox, "what was in memory is not there: nothing runs in it".to_owned());
            return Ok(());
        };
        let still = self.hold_container(&container).await?;
        let filled = self.fill_places(pid, &container, data).await;
        if still {
            self.release_container(&container).await?;
        }
        filled
    }

    async fn fill_places(&self, pid: u32, container: &Container, data: &Data) -> DriverResult<()> {
        let there = places(container);
        for volume in &data.volatile {
            let Some(place) = volume.places.first().filter(|place| there.contains(place)) else {
                continue;
            };
            let Some(layer) = volume.layer.clone().filter(|_| !is_covered(pid, place)) else {
                continue;
            };
            let (store, at) = (self.volumes()?, PathBuf::from(place));
            blocking(move || {
                let inside = Inside::open(pid, &at).map_err(layer_error("reach a mount"))?;
                empty(&inside.path()).map_err(|err| io_at("empty", &at, err))?;
                let layer = store.layer(&layer).map_err(layer_error("fill a mount"))?;
                layer.fill(&inside.path()).map(drop).map_err(layer_error("fill a mount"))
            })
            .await?;
        }
        Ok(())
    }
}

/// Nothing else is mounted below, and nothing runs that could put a link there.
fn empty(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// What a snapshot of files leaves out, in words. Every container has a `/dev/shm`, and most have nothing
/// in it.
pub(super) fn left_out(container: &Container) -> Vec<String> {
    let pid = pid(container);
    let holds = |place: &str| {
        let inside = pid.and_then(|pid| Inside::open(pid, Path::new(place)).ok());
        let entries = inside.and_then(|inside| fs::read_dir(inside.path()).ok());
        entries.is_some_and(|mut entries| entries.next().is_some())
    };
    let told = |place: &String| {
        let fate = match pid.is_some_and(|pid| is_covered(pid, place)) {
            true => format!("not kept: {COVERED}"),
            false => "kept only with `--tmpfs`".to_owned(),
        };
        format!("`{place}` is in memory (tmpfs): what is in it is {fate}")
    };
    places(container).iter().filter(|place| *place != SHM || holds(place)).map(told).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn each_place_is_told_once() {
        let told = json!({
            "HostConfig": { "Tmpfs": { "/run": "", "/tmp": "size=1m" }, "IpcMode": "private" },
            "Mounts": [{ "Type": "tmpfs", "Destination": "/tmp" }, { "Type": "bind", "Destination": "/x" }],
        });
        assert_eq!(places(&Container(told.clone())), ["/dev/shm", "/run", "/tmp"]);
        let mut host = told;
        host["HostConfig"]["IpcMode"] = json!("host");
        assert_eq!(places(&Container(host)), ["/run", "/tmp"], "the machine's own is not its");
        assert_eq!(places(&Container(Value::Null)), ["/dev/shm"]);
    }
}
