//! What the engine asks of anything that can run a sandbox.
//!
//! The order of calls is fixed by the types: only a [`Sandbox`] can be paused, only a
//! [`PausedSandbox`] can be sealed. What must also work after a crash takes an id and nothing else.

use std::{collections::BTreeMap, ffi::OsString, fmt, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    id::{SandboxId, SnapshotId},
    part::{ByteStream, Part, PartFormat},
    path::SandboxPath,
    spec::SandboxSpec,
};

mod error;
mod event;
mod native;
mod process;
mod tree;
mod workspace;

pub use error::{DriverError, DriverResult};
pub use event::{EventStream, SandboxEvent};
pub use native::{Claimed, NativeState};
pub use process::{
    ByteSink, Command, ExitStatus, KeptProcess, Leaves, Process, ProcessControl, TtySize,
};
pub use tree::{
    ChangeKind, FileChange, FileDiff, FileFacts, FileKind, FileState, FileTree, NewEntry,
};
pub use workspace::{
    AppliedStep, ApplyConflict, ApplyReport, ApplyRequest, ApplySkip, ApplyStep, Drift,
};

#[async_trait]
pub trait Driver: fmt::Debug + Send + Sync {
    /// Written to the catalog with every sandbox, and used to find the driver again. Never changes
    /// once released.
    fn name(&self) -> &'static str;

    /// Read before an operation starts, so that none fails half-way for want of one.
    fn capabilities(&self) -> Capabilities;

    /// Whether a snapshot of this kind can be taken of this sandbox, as far as can be told before
    /// anything happens. One that cannot is refused with the reason:
    /// [`DriverError::KindUnavailable`].
    async fn can_seal(&self, _id: SandboxId, _kind: SnapshotKind) -> DriverResult<()> {
        Ok(())
    }

    /// Whether [`PausedSandbox::include_volatile`] works, for some of its sandboxes at least.
    fn keeps_volatile(&self) -> bool {
        false
    }

    /// Whether [`PausedSandbox::close_connections`] works.
    fn closes_connections(&self) -> bool {
        false
    }

    /// What was done otherwise than it was asked, for whoever asked: a port that was taken, and
    /// the one that was given. Each is told once, after the call that it is about.
    fn notices(&self, _about: SandboxId) -> Vec<String> {
        Vec::new()
    }

    /// Fills in what a spec leaves to its template: environment, directory, user. A template that
    /// says where to get something is got, and replaced by a name that stays. Asked before anything
    /// is made; what comes out is what the catalog keeps.
    async fn complete(&self, spec: &SandboxSpec, _now: Timestamp) -> DriverResult<SandboxSpec> {
        Ok(spec.clone())
    }

    /// Told that a sandbox is about to be made, of `from` or of the spec's template, before that is
    /// written down: who needs time to get ready can use it. Nothing has to come of it, nothing may
    /// be left of it, and it returns at once.
    fn expect(&self, _spec: &SandboxSpec, _from: Option<&Artifact>) {}

    /// Creates a sandbox that is ready for [`Sandbox::exec`]. The same `id` twice is an error.
    async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> DriverResult<Arc<dyn Sandbox>>;

    /// Creates a sandbox whose state is what `from` holds, with an identity of its own.
    async fn restore(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        from: &Artifact,
    ) -> DriverResult<Arc<dyn Sandbox>>;

    /// Makes the sandbox stand where `to` was taken, under the same id, and run, whether or not it
    /// was stopped or paused. Works too when the platform lost the sandbox. Repeating it is a
    /// success; after a failure the sandbox stands where it stood, or [`Driver::status`] tells that
    /// it does not.
    async fn rollback(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        to: &Artifact,
    ) -> DriverResult<Arc<dyn Sandbox>>;

    /// Looks up a sandbox that somebody else made, and changes nothing. The id follows from the
    /// platform's own identity of it: adopting twice gives the same.
    async fn adopt(&self, native_name: &str) -> DriverResult<Adopted>;

    /// Finds a sandbox that this driver made or adopted, perhaps in another process. One that is
    /// stopped or paused too: it can be sealed.
    async fn attach(&self, id: SandboxId) -> DriverResult<Arc<dyn Sandbox>>;

    /// What the platform says of a sandbox; `None` when it knows none of that id.
    async fn status(&self, id: SandboxId) -> DriverResult<Option<SandboxStatus>>;

    /// Every sandbox that we made and the platform still has, whether or not the catalog knows it.
    /// For audits: recovery goes by what `begin` wrote.
    async fn list(&self) -> DriverResult<Vec<SandboxId>>;

    /// What a sandbox uses now. May take as long as it takes to look at its files.
    async fn usage(&self, id: SandboxId) -> DriverResult<SandboxUsage>;

    /// What a snapshot of this sandbox would refuse or leave out.
    async fn validate(&self, id: SandboxId, kind: SnapshotKind) -> DriverResult<Vec<Finding>>;

    /// Removes a sandbox that we made, with everything it holds, and stops a creation of it that is
    /// still on its way. Succeeds if there is none; refuses one that we did not make.
    async fn destroy(&self, id: SandboxId) -> DriverResult<()>;

    /// Ends every process of a sandbox that runs when this time is over, without anybody who asks
    /// again; the engine destroys it later. Holds until the sandbox is stopped or rolled back. A driver
    /// that cannot does nothing.
    async fn end_in(&self, _id: SandboxId, _time: Duration) -> DriverResult<()> {
        Ok(())
    }

    /// Ends every process; the files stay, and [`Driver::start`] brings the sandbox back. Works on
    /// a paused one. Stopping what is stopped is a success.
    async fn stop(&self, id: SandboxId) -> DriverResult<()>;

    /// Brings a stopped sandbox back with its files, also one whose processes the platform lost, as
    /// in a reboot. Starting what runs is a success. A paused one is refused with
    /// [`DriverError::NotRunning`]: its way out is [`Driver::resume`].
    async fn start(&self, id: SandboxId, spec: &SandboxSpec) -> DriverResult<()>;

    /// The user's own pause: it lasts until [`Driver::resume`], and neither a seal nor
    /// [`Driver::settle`] ends it. Not [`Sandbox::pause`], which is ours and short. Pausing what is
    /// paused is a success; a stopped one is refused with [`DriverError::NotRunning`].
    async fn pause(&self, id: SandboxId) -> DriverResult<()>;

    /// Ends the user's own pause. Resuming what runs is a success; a stopped one is refused with
    /// [`DriverError::NotRunning`].
    async fn resume(&self, id: SandboxId) -> DriverResult<()>;

    /// Undoes a pause of ours that nobody will resume: the sandbox is as it was before, and one
    /// that its user paused or stopped stays so. Succeeds if there is nothing to undo.
    async fn settle(&self, id: SandboxId) -> DriverResult<()>;

    /// Takes back what was sealed or imported under an id that will never be committed: frees it,
    /// or, where a live sandbox has come to stand on it, makes it that sandbox's own, to go or to be
    /// sealed with it. [`Driver::status`] says of the sandbox what it said before. Succeeds if there
    /// is nothing.
    async fn unseal(&self, snapshot: SnapshotId) -> DriverResult<()>;

    /// Frees a piece that no artifact and no sandbox in the catalog needs any more. Succeeds if it
    /// is gone; refuses what does not carry our mark. Fails while something that we no longer know
    /// of stands on it, such as an adopted sandbox that was rolled back and then forgotten: the
    /// chore waits.
    async fn discard(&self, piece: &PieceName) -> DriverResult<()>;

    /// Makes what was sealed survive a power cut, with all that its pieces lie over, where the
    /// platform can, and counts what sealing left uncounted. Answers with the artifact as it is
    /// then. The sandbox may run meanwhile.
    async fn sync(&self, artifact: &Artifact) -> DriverResult<Artifact>;

    /// What changed on the host since then in directories that a sandbox sees as they are now. A
    /// bounded look: [`Drift::complete`] says whether it saw everything.
    async fn drift(&self, _spec: &SandboxSpec, _since: Timestamp) -> DriverResult<Vec<Drift>> {
        Ok(Vec::new())
    }

    /// Brings home what a state changed in a workspace. With a conflict, or when only asked what would
    /// be done, nothing changes, and [`ApplyReport::done`] says so.
    async fn apply(&self, _of: &FileState, _request: &ApplyRequest) -> DriverResult<ApplyReport> {
        let (driver, operation) = (self.name(), "bring a workspace's changes home");
        Err(DriverError::Unsupported { driver, operation })
    }

    /// Opens a state of files to look into. It stays what it is, but for what a sandbox that runs
    /// changes.
    async fn tree(&self, of: &FileState) -> DriverResult<Arc<dyn FileTree>>;

    /// What differs between two states, at `under` and below, or everywhere if that is empty. Costs
    /// what differs, where the platform can tell.
    async fn diff(
        &self,
        from: &FileState,
        to: &FileState,
        under: &[SandboxPath],
    ) -> DriverResult<FileDiff>;

    /// The processes that a full snapshot holds, those that were started first before the others. A driver
    /// that keeps them in a form of somebody else's tells of none.
    async fn processes(&self, _artifact: &Artifact) -> DriverResult<Vec<KeptProcess>> {
        Ok(Vec::new())
    }

    /// What happens to a sandbox from now on, until whoever listens goes away. An error ends it:
    /// what happened since is not known.
    async fn events(&self, _id: SandboxId) -> DriverResult<EventStream> {
        let (driver, operation) = (self.name(), "tell what happens to a sandbox");
        Err(DriverError::Unsupported { driver, operation })
    }

    /// Makes an artifact for `snapshot` of something that the platform has, and that somebody else
    /// made as a snapshot. It stays theirs: discarding its pieces frees nothing of theirs. Undone by
    /// [`Driver::unseal`].
    async fn claim(&self, _snapshot: SnapshotId, _what: &NativeState) -> DriverResult<Claimed> {
        let (driver, operation) = (self.name(), "take over what others made");
        Err(DriverError::Unsupported { driver, operation })
    }

    async fn export(&self, artifact: &Artifact) -> DriverResult<Vec<Part>>;

    /// Makes an artifact for `snapshot`. A part in a format outside [`Capabilities::imports`] is an
    /// error before anything is made.
    async fn import(&self, snapshot: SnapshotId, parts: Vec<Part>) -> DriverResult<Artifact>;
}

#[async_trait]
pub trait Sandbox: fmt::Debug + Send + Sync {
    fn id(&self) -> SandboxId;

    /// Of one that [`Driver::rollback`] answered with, whose processes were to go back as well: why they had to be
    /// made anew, where they had.
    fn made_anew(&self) -> Option<String> {
        None
    }

    /// Answers when the command runs: [`DriverError::CommandMissing`] and
    /// [`DriverError::CommandRefused`] are told here. In a sandbox that is stopped or paused nothing
    /// can run: [`DriverError::NotRunning`].
    async fn exec(&self, command: &Command) -> DriverResult<Process>;

    async fn read(&self, path: &SandboxPath) -> DriverResult<ByteStream>;

    async fn write(
        &self,
        path: &SandboxPath,
        bytes: ByteStream,
        mode: WriteMode,
    ) -> DriverResult<()>;

    /// Makes what is not a file, or sets a mode. The last name of the path is not followed.
    async fn make(&self, path: &SandboxPath, entry: &NewEntry) -> DriverResult<()>;

    /// What is below a directory, in order of path; `depth` 1 is the directory's own entries.
    async fn entries(&self, path: &SandboxPath, depth: u32) -> DriverResult<Vec<Entry>>;

    /// Nothing in the sandbox runs when this returns. Our own pause, for sealing, and short; the
    /// user's is [`Driver::pause`]. One that its user paused or stopped is sealed as well, and stays
    /// so. `kind` is what will be asked for: of processes, a driver may have to choose the moment
    /// itself, and then they run until [`PausedSandbox::seal`].
    async fn pause(&self, kind: SnapshotKind) -> DriverResult<Box<dyn PausedSandbox>>;
}

/// A sandbox in which nothing runs.
///
/// Dropping it does not resume: the sandbox stands still until [`Driver::settle`].
#[async_trait]
pub trait PausedSandbox: fmt::Debug + Send {
    /// Fixes the state as of now under an id that the caller chose. Should take milliseconds: the
    /// sandbox stands still meanwhile. A sandbox that we made may come to stand on what this makes;
    /// an adopted one must not, for it outlives our knowledge of it.
    async fn seal(&mut self, snapshot: SnapshotId, kind: SnapshotKind) -> DriverResult<Artifact>;

    /// Makes the next seal keep files too that are in memory alone, and that a snapshot of files leaves
    /// out otherwise: what is in a `tmpfs`. A seal of processes keeps them anyway.
    async fn include_volatile(&mut self) -> DriverResult<()> {
        let operation = "keep what is in memory without its processes";
        Err(DriverError::Unsupported { driver: "this one", operation })
    }

    /// Lets the next seal of processes keep those that are connected to somebody outside: a copy finds such
    /// connections reset, and the sandbox itself keeps them. Without this, they are refused.
    async fn close_connections(&mut self) -> DriverResult<()> {
        let operation = "keep processes without their connections";
        Err(DriverError::Unsupported { driver: "this one", operation })
    }

    /// Whether its files are exactly what they were when it was sealed as `since`, restored from it
    /// or rolled back to it; and its processes and memory too, if it stands still for a full seal. Never true in
    /// doubt; a driver that cannot tell says no.
    async fn is_unchanged(&mut self, _since: &Artifact) -> DriverResult<bool> {
        Ok(false)
    }

    /// The sandbox is as it was before the pause, whether or not sealing succeeded.
    async fn resume(self: Box<Self>) -> DriverResult<()>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    pub kinds: Vec<SnapshotKind>,
    pub rollback: bool,
    pub adopt: bool,
    /// [`Driver::stop`] and [`Driver::start`].
    pub stop: bool,
    /// [`Driver::pause`] and [`Driver::resume`].
    pub pause: bool,
    /// Whether it has networks, volumes, ports and names of its own, and so looks at
    /// [`SandboxSpec::attachments`]. Where it has not, only the default is let through to it.
    pub attachments: bool,
    /// Formats of the parts that `export` makes.
    pub exports: Vec<PartFormat>,
    /// Formats of the parts that `import` takes.
    pub imports: Vec<PartFormat>,
}

/// How much of a sandbox a snapshot holds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotKind {
    #[default]
    Files,
    /// Files, processes and memory.
    Full,
}

impl SnapshotKind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Full => "full",
        }
    }
}

impl fmt::Display for SnapshotKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a driver keeps for a snapshot. Only the driver that made it looks into `data`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// The id under which it was sealed or imported.
    pub snapshot: SnapshotId,
    pub kind: SnapshotKind,
    /// Of `data`. A driver reads every version that it ever released and refuses later ones.
    pub version: u32,
    pub data: serde_json::Value,
    /// What it occupies on the platform. The catalog counts who needs each piece; the engine
    /// discards a piece when nobody does.
    pub pieces: Vec<Piece>,
    pub own_bytes: u64,
    pub total_bytes: u64,
    pub file_count: u64,
    /// Whether the numbers above are known. Counting takes longer than sealing, so a driver may
    /// leave it to [`Driver::sync`]; then they are zero.
    #[serde(default = "counted")]
    pub counted: bool,
    /// Survives a power cut.
    pub durable: bool,
}

/// Artifacts that were written before there was the question.
const fn counted() -> bool {
    true
}

/// The unit in which a platform's space is freed: a layer, an image, a memory dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    pub name: PieceName,
    /// A piece of an earlier artifact that this one cannot do without. The catalog must know it:
    /// what is sealed of an adopted sandbox lies over nothing.
    pub over: Option<PieceName>,
    /// What it occupies.
    pub bytes: u64,
}

/// Chosen by the driver, and never used again, not even for the same content: a discard may be
/// waiting for the old one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PieceName(pub String);

impl fmt::Display for PieceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A sandbox that was there before us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Follows from the platform's own identity of it.
    pub id: SandboxId,
    /// The platform's own name, in full.
    pub native_name: String,
    pub spec: SandboxSpec,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SandboxStatus {
    pub state: SandboxState,
    /// The snapshot that it was last sealed as, restored from or rolled back to.
    pub base: Option<SnapshotId>,
}

/// What a sandbox uses, as far as its platform knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SandboxUsage {
    /// Written since it was last sealed.
    pub disk_bytes: Option<u64>,
    pub memory_bytes: Option<u64>,
    /// With their threads.
    pub processes: Option<u64>,
    pub cpu_ms: Option<u64>,
    /// Processes that were killed because memory had run out.
    pub killed_for_memory: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    Running,
    Paused,
    Stopped,
}

impl SandboxState {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What somebody should know before taking a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Note,
    /// The snapshot works, without this.
    LeftOut,
    /// No snapshot as things are.
    Blocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// Fails if the file exists.
    Create,
    Replace,
    Append,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub path: SandboxPath,
    pub kind: EntryKind,
    pub len_bytes: u64,
    pub mode: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Directory,
    Symlink { target: PathBuf },
    Other,
}

/// The environment of a command: names and values as the kernel takes them.
pub type CommandEnv = BTreeMap<OsString, OsString>;
