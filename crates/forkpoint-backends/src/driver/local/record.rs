//! What a sandbox's directory says of it.
//!
//! `sandboxes/<id>/` holds `record.json`, `lock`, the socket `s<n>` of the init that serves now, and
//! the directories `g<n>/` in which generation `n` keeps what it changes. The record is replaced at
//! once, never changed; whoever replaces it holds the lock. A directory without a record is a
//! sandbox that never came to be.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use forkpoint_core::{
    id::{SandboxId, SnapshotId},
    spec::SandboxSpec,
};
use rustix::{
    fs::{FlockOperation, flock},
    process::Pid,
};
use serde::{Deserialize, Serialize};

use super::{cgroup::Cgroup, launch::Isolation, template::Base};
use crate::{
    layer::{LayerName, exchange, write_spare},
    workspace::Line,
};

pub(super) const FORMAT: u32 = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) format: u32,
    pub(super) id: SandboxId,
    pub(super) spec: SandboxSpec,
    pub(super) base: Base,
    pub(super) isolation: Isolation,
    pub(super) hostname: String,
    /// Which `g<n>` is written to.
    pub(super) generation: u32,
    /// Which `s<n>` init listens on.
    pub(super) launches: u32,
    /// The layer that the generation lies on.
    pub(super) top: Option<LayerName>,
    /// A layer that shows the same as `top` and all below it, to lie on next time.
    pub(super) flat: Option<LayerName>,
    /// Layers that only this sandbox knows, the newest first: those of a snapshot that never came to
    /// be, and `flat`.
    pub(super) own: Vec<LayerName>,
    /// The last capture of this generation.
    pub(super) captured: Option<LayerName>,
    /// The snapshot that it was last sealed as, restored from or rolled back to.
    pub(super) snapshot: Option<SnapshotId>,
    /// What it was before the last seal, for when that is taken back.
    pub(super) sealed: Option<Sealed>,
    /// A seal that is under way.
    pub(super) sealing: Option<Sealing>,
    /// Its user stopped it.
    pub(super) stopped: bool,
    /// Its user paused it.
    pub(super) paused: bool,
    /// Held by signals, for us or its user: there is no freezer to ask.
    pub(super) held: bool,
    pub(super) cgroup: Option<Cgroup>,
    pub(super) init: Option<InitRecord>,
    pub(super) doomed: Option<Doomed>,
    /// On its way back to `snapshot`, in place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) undoing: bool,
    /// The launch whose programs were given another root while they ran: what they have mapped may be of an older one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rotated: Option<u32>,
    /// Whose work it goes on with, if it has a workspace to bring it home to.
    #[serde(default, skip_serializing_if = "Line::is_empty")]
    pub(super) line: Line,
}

/// A seal that was done, and what was true before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sealed {
    pub(super) snapshot: SnapshotId,
    pub(super) before: Option<SnapshotId>,
    pub(super) own_before: Vec<LayerName>,
    /// Whether the sandbox stands on what was sealed.
    pub(super) stands_on_it: bool,
}

/// What a rollback left behind, and is to end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Doomed {
    pub(super) init: Option<InitRecord>,
    pub(super) cgroup: Option<Cgroup>,
    pub(super) generation: u32,
    pub(super) own: Vec<LayerName>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sealing {
    pub(super) snapshot: SnapshotId,
    /// On which root init stood before; 0 when it did not run.
    pub(super) root_device: u64,
}

/// A process that cannot be taken for another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InitRecord {
    pub(super) pid: i32,
    /// In ticks since boot.
    pub(super) started: u64,
    pub(super) boot: String,
}

impl InitRecord {
    pub(super) fn of(pid: Pid) -> io::Result<Self> {
        let pid = pid.as_raw_nonzero().get();
        Ok(Self { pid, started: started(pid)?, boot: boot_id()?.to_owned() })
    }

    pub(super) fn is_alive(&self) -> bool {
        boot_id().is_ok_and(|boot| boot == self.boot)
            && started(self.pid).is_ok_and(|started| started == self.started)
    }
}

/// No process outlives a boot.
fn boot_id() -> io::Result<&'static str> {
    static READ: OnceLock<String> = OnceLock::new();
    if let Some(boot) = READ.get() {
        return Ok(boot);
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(READ.get_or_init(|| boot.trim().to_owned()))
}

fn is_socket(name: &str) -> bool {
    name.strip_prefix('s').is_some_and(|number| number.parse::<u32>().is_ok())
}

/// When a process that lives was started. One that ended and waits to be reaped does not live.
fn started(pid: i32) -> io::Result<u64> {
    let odd = || io::Error::other("an odd /proc/PID/stat");
    // The kernel gives all of it at once to whoever has room for it, and somebody asks several times in each operation.
    let mut bytes = [0; 2048];
    let len = File::open(format!("/proc/{pid}/stat"))?.read(&mut bytes)?;
    let stat = String::from_utf8_lossy(&bytes[..len]);
    // The name may hold anything, also parentheses.
    let mut fields = stat.rsplit_once(") ").ok_or_else(odd)?.1.split(' ');
    if fields.next().is_some_and(|state| matches!(state, "Z" | "X")) {
        return Err(io::ErrorKind::NotFound.into());
    }
    fields.nth(18).and_then(|field| field.parse().ok()).ok_or_else(odd)
}

/// Where things are below the driver's root.
#[derive(Clone, Debug)]
pub(super) struct Place {
    directory: PathBuf,
}

const CAPTURED: &str = "captured-";

impl Place {
    pub(super) fn all(root: &Path) -> PathBuf {
        root.join("sandboxes")
    }

    pub(super) fn of(root: &Path, id: SandboxId) -> Self {
        Self { directory: Self::all(root).join(id.to_string()) }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn generation(&self, number: u32) -> PathBuf {
        self.directory.join(format!("g{number}"))
    }

    pub(super) fn upper(&self, generation: u32) -> PathBuf {
        self.generation(generation).join("u")
    }

    /// Of the copy that is `layer`: one that was cut short must not be taken for the last that was kept.
    pub(super) fn manifest(&self, generation: u32, layer: &LayerName) -> PathBuf {
        self.generation(generation).join(format!("{CAPTURED}{layer}"))
    }

    /// Takes away those of all other copies: what stays is gone with the generation.
    pub(super) fn keep_manifest(&self, generation: u32, layer: &LayerName) {
        let kept = self.manifest(generation, layer);
        let there = fs::read_dir(self.generation(generation)).into_iter().flatten().flatten();
        for entry in there.filter(|entry| entry.path() != kept) {
            if entry.file_name().to_string_lossy().starts_with(CAPTURED) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    pub(super) fn socket(launches: u32) -> String {
        format!("s{launches}")
    }

    /// Those that are there, of whichever launch.
    pub(super) fn sockets(&self) -> Vec<String> {
        let there = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let names = there.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| is_socket(name)).collect()
    }

    pub(super) fn open(&self) -> io::Result<OwnedFd> {
        use rustix::fs::{Mode, OFlags, open};
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(open(&self.directory, flags, Mode::empty())?)
    }

    /// Waits for whoever is at work on the sandbox. `None` when there is none of that id.
    pub(super) fn lock(&self) -> io::Result<Option<OwnedFd>> {
        self.lock_as(FlockOperation::LockExclusive)
    }

    /// With others who do the same, and without anybody who changes the sandbox.
    pub(super) fn lock_shared(&self) -> io::Result<Option<OwnedFd>> {
        self.lock_as(FlockOperation::LockShared)
    }

    fn lock_as(&self, operation: FlockOperation) -> io::Result<Option<OwnedFd>> {
        let path = self.directory.join("lock");
        loop {
            let file = match File::options().create(true).append(true).open(&path) {
                Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
                result => result?,
            };
            match flock(&file, operation) {
                Err(rustix::io::Errno::INTR) => continue,
                result => result?,
            }
            // Whoever held it may have destroyed the sandbox.
            use std::os::unix::fs::MetadataExt as _;
            let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
            let ours = file.metadata().map(id)?;
            match fs::metadata(&path).map(id) {
                Ok(there) if there == ours => return Ok(Some(file.into())),
                Ok(_) => {}
                Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(err) => return Err(err),
            }
        }
    }
}

impl Record {
    /// `None` when there is no such sandbox.
    pub(super) fn read(root: &Path, id: SandboxId) -> io::Result<Option<Self>> {
        let path = Place::of(root, id).directory.join("record.json");
        let bytes = match fs::read(&path) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
            result => result?,
        };
        let version: Version = serde_json::from_slice(&bytes)?;
        if version.format > FORMAT {
            let format = version.format;
            return Err(io::Error::other(format!(
                "it has format {format}, and this release reads up to {FORMAT}"
            )));
        }
        Ok(Some(serde_json::from_slice(&bytes)?))
    }

    pub(super) fn write(&self, root: &Path) -> io::Result<()> {
        self.stage(root)?.publish()
    }

    /// Writes it where nobody looks. The sandbox is locked until it is published.
    pub(super) fn stage(&self, root: &Path) -> io::Result<StagedRecord> {
        let directory = Place::of(root, self.id).directory;
        let staged = StagedRecord {
            path: directory.join("record.json"),
            spare: directory.join("record.new"),
        };
        write_spare(&staged.spare, &serde_json::to_vec(self)?)?;
        Ok(staged)
    }

    pub(super) fn is_alive(&self) -> bool {
        self.init.as_ref().is_some_and(InitRecord::is_alive)
    }

    /// Whether nothing is left to do that somebody began.
    pub(super) fn is_finished(&self) -> bool {
        self.doomed.is_none() && !self.undoing && self.sealing.is_none()
    }

    /// What freezes all of it. Without root, init must stay awake to be asked for its namespaces.
    pub(super) fn freezer(&self) -> Option<&Cgroup> {
        let cgroup = self.cgroup.as_ref()?;
        (cgroup.can_freeze() && self.isolation != Isolation::Rootless).then_some(cgroup)
    }
}

/// One that nobody has read yet.
#[must_use]
#[derive(Debug)]
pub(super) struct StagedRecord {
    path: PathBuf,
    spare: PathBuf,
}

impl StagedRecord {
    pub(super) fn publish(&self) -> io::Result<()> {
        exchange(&self.path, &self.spare)
    }
}

#[derive(Deserialize)]
struct Version {
    format: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT_1: &str = include_str!("../../../tests/fixtures/sandbox-v1.json");

    #[test]
    fn format_1_stays_what_it_is() {
        let record: Record = serde_json::from_str(FORMAT_1).unwrap();
        let (written, fixture): (serde_json::Value, serde_json::Value) =
            (serde_json::to_value(&record).unwrap(), serde_json::from_str(FORMAT_1).unwrap());
        assert_eq!(written, fixture);
        assert!(record.sealing.is_some() && record.doomed.is_some() && record.sealed.is_some());
    }

    #[test]
    fn a_newer_format_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let id = SandboxId::from_u128(7);
        assert!(Record::read(root.path(), id).unwrap().is_none());
        let place = Place::of(root.path(), id);
        fs::create_dir_all(place.directory()).unwrap();
        fs::write(place.directory().join("record.json"), r#"{"format": 2}"#).unwrap();
        let err = Record::read(root.path(), id).unwrap_err().to_string();
        assert!(err.contains("format 2"), "{err}");
    }

    #[test]
    fn a_process_is_known_by_its_start() {
        let me = Pid::from_raw(std::process::id().cast_signed()).unwrap();
        let record = InitRecord::of(me).unwrap();
        assert!(record.is_alive());
        assert!(!InitRecord { started: record.started + 1, ..record.clone() }.is_alive());
        assert!(!InitRecord { boot: "another".into(), ..record }.is_alive());
    }
}
