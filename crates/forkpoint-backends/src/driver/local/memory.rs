//! Processes and memory of a sandbox: kept beside its layers, and brought back.
//!
//! `memory/<snapshot>/` is an image of all processes but init, as they were at the moment at which
//! the layer of the same snapshot was made.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use forkpoint_checkpoint::{
    self as checkpoint, CaptureSpec, Captured, Connections, ImageId, Moment, Still, Tree,
    image::{self, Image, ImageError, Process},
};
use forkpoint_core::{
    driver::{
        Artifact, DriverError, DriverResult, Finding, KeptProcess, Piece, PieceName, Severity,
        SnapshotKind,
    },
    id::{SandboxId, SnapshotId},
};
use serde::{Deserialize, Serialize};

use super::{
    DRIVER,
    host::{ArtifactData, Host, failed, io_error, layer_error},
    launch::Isolation,
    record::Record,
    root,
};

use crate::layer::LayerName;

pub(super) mod back;
pub(super) mod merge;
mod same;
mod since;

const PIECE: &str = "memory-";

/// How long the processes may take to stand still.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a full snapshot keeps besides files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptMemory {
    pub(super) image: SnapshotId,
    /// Of several that came together from elsewhere, all but the newest have one; and what earlier ones were merged into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) number: Option<u32>,
    pub(super) bytes: u64,
}

impl KeptMemory {
    /// What its directory is called.
    fn directory(&self) -> String {
        match self.number {
            Some(number) => format!("{}.{number}", self.image),
            None => self.image.to_string(),
        }
    }

    fn name(&self) -> PieceName {
        PieceName(format!("{PIECE}{}", self.directory()))
    }
}

/// Which memory a piece is, if it is one.
pub(super) fn image_of(piece: &PieceName) -> Option<KeptMemory> {
    let name = piece.0.strip_prefix(PIECE)?;
    let (image, number) = match name.split_once('.') {
        Some((image, number)) => (image, Some(number.parse().ok()?)),
        None => (name, None),
    };
    let kept = KeptMemory { image: image.parse().ok()?, number, bytes: 0 };
    (kept.directory() == name).then_some(kept)
}

/// Adds to an artifact of files, whether or not these were counted.
pub(super) fn added(mut artifact: Artifact, memory: &[KeptMemory]) -> Artifact {
    let Some(last) = memory.last() else { return artifact };
    artifact.kind = SnapshotKind::Full;
    let mut own_bytes = 0;
    for (index, own) in memory.iter().enumerate().filter(|(_, each)| each.image == last.image) {
        own_bytes += own.bytes;
        if !artifact.pieces.iter().any(|piece| piece.name == own.name()) {
            let over = index.checked_sub(1).map(|below| memory[below].name());
            artifact.pieces.push(Piece { name: own.name(), over, bytes: own.bytes });
        }
    }
    if artifact.counted {
        artifact.own_bytes += own_bytes;
        artifact.total_bytes += memory.iter().map(|memory| memory.bytes).sum::<u64>();
    }
    artifact
}

impl Host {
    fn memory(&self) -> PathBuf {
        self.root.join("memory")
    }

    pub(super) fn image(&self, snapshot: SnapshotId) -> PathBuf {
        self.memory().join(snapshot.to_string())
    }

    pub(super) fn image_place(&self, kept: &KeptMemory) -> PathBuf {
        self.memory().join(kept.directory())
    }

    /// Where the images of a full snapshot are, the lowest first.
    pub(super) fn memory_images(&self, data: &ArtifactData) -> Vec<PathBuf> {
        data.memory.iter().map(|memory| self.image_place(memory)).collect()
    }

    pub(super) fn kinds(&self) -> Vec<SnapshotKind> {
        match self.isolation() {
            Isolation::Rootless => vec![SnapshotKind::Files],
            _ => vec![SnapshotKind::Files, SnapshotKind::Full],
        }
    }

    /// Before anything happens.
    pub(super) fn can_seal(&self, id: SandboxId, kind: SnapshotKind) -> DriverResult<()> {
        if kind == SnapshotKind::Files {
            return Ok(());
        }
        match refusal(&self.record(id)?) {
            Some(reason) => Err(unavailable(reason)),
            None => Ok(()),
        }
    }

    /// What is in the way of a full snapshot. Everything stands still for a moment.
    pub(super) fn full_findings(&self, record: &Record) -> DriverResult<Vec<Finding>> {
        let blocks = |message: String| Finding { severity: Severity::Blocks, message };
        if let Some(reason) = refusal(record) {
            return Ok(vec![blocks(reason.to_owned())]);
        }
        let _lock = self.lock(record.id)?;
        match checkpoint::examine(&tree(record), &spec(record)).map_err(full_error) {
            Ok(found) => Ok(found.0.iter().map(|refusal| blocks(refusal.to_string())).collect()),
            Err(DriverError::KindUnavailable { reason, .. }) => Ok(vec![blocks(reason)]),
            Err(err) => Err(err),
        }
    }

    /// Files, processes and memory of one moment. The sandbox is locked, and runs until then and from then on.
    pub(super) fn seal_full(
        &self,
        lock: &OwnedFd,
        id: SandboxId,
        snapshot: SnapshotId,
        connections: Connections,
    ) -> DriverResult<(Artifact, bool)> {
        let record = self.record(id)?;
        if let Some(reason) = refusal(&record) {
            return Err(unavailable(reason));
        }
        let mut next = self.begin_next_root(lock, &record);
        let mut files = None;
        let moment = SealFiles {
            seal: |still: &mut Still<'_>| {
                let live = next.take().map(|next| (still, next));
                let sealed = files.insert(self.seal_files_of(lock, id, snapshot, live));
                // What it was is told below.
                sealed.as_ref().map(drop).map_err(|_| io::ErrorKind::Other.into())
            },
        };
        let mut since = self.since(&record);
        let captured =
            since.capture(&tree(&record), &CaptureSpec { connections, ..spec(&record) }, moment);
        if let Some(next) = next {
            self.forget_next_root(&record, next);
        }
        let ((artifact, is_long), captured) = match (files, captured) {
            (Some(Err(err)), _) => return Err(err),
            (Some(Ok(sealed)), Ok(captured)) => (sealed, captured),
            (_, Err(err)) => return Err(full_error(err)),
            (None, Ok(_)) => return Err(failed("seal the files")("nobody did")),
        };
        let image = self.write_image(&captured, snapshot)?;
        let merged = since.merged.take().filter(|_| captured.parent().is_some());
        if captured.parent().is_none() {
            since.below.clear();
        }
        if let Some(merged) = merged {
            let taken = self.take_over(&merged, snapshot);
            // An image over what is not there is none.
            let taken = taken.inspect_err(|_| drop(self.forget_image(snapshot)))?;
            since.below.push(taken);
        }
        let bytes = captured.pages_len_bytes();
        since.below.push(KeptMemory { image: snapshot, number: None, bytes });
        let mut artifact = added(artifact, &since.below);
        artifact.data["memory"] =
            serde_json::to_value(&since.below).map_err(failed("describe a snapshot"))?;
        artifact.data["paused_us"] =
            u64::try_from(captured.pause.as_micros()).unwrap_or(u64::MAX).into();
        let memory = since.below.clone();
        // If it is lost, the next one reads all of the memory.
        let _ = self.keep_tracking(&record, since, snapshot, image);
        self.shorten_memory(&record, snapshot, &memory);
        Ok((artifact, is_long))
    }

    /// While the processes run again.
    fn write_image(&self, captured: &Captured, snapshot: SnapshotId) -> DriverResult<ImageId> {
        self.make_memory()?;
        captured.write(&self.image(snapshot), false).map_err(failed("keep the memory"))
    }

    /// Where all images are.
    pub(super) fn make_memory(&self) -> DriverResult<()> {
        let all = self.memory();
        match fs::DirBuilder::new().mode(0o700).create(&all) {
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made.map_err(io_error("create", &all)),
        }
    }

    pub(super) fn discard_image(&self, kept: &KeptMemory) -> DriverResult<()> {
        let path = self.image_place(kept);
        if path.exists() {
            self.pool.forget(&path);
            self.expected.forget(&path);
            self.last_gone_back_to.forget(&path);
            let gone = self.store.throw_away(&path);
            gone.map_err(layer_error("discard the memory of a snapshot"))?;
        }
        self.forget_merged(|snapshot, _| snapshot == kept.image.to_string());
        Ok(())
    }

    /// Of a snapshot that never came to be: also what was written of it when its writer died, and all that came of it.
    pub(super) fn forget_image(&self, snapshot: SnapshotId) -> DriverResult<()> {
        self.discard_image(&KeptMemory { image: snapshot, number: None, bytes: 0 })?;
        let all = self.memory();
        let entries = match fs::read_dir(&all) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(io_error("list", &all))?,
        };
        let staged = format!("{snapshot}.");
        for entry in entries.flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(&staged)) {
                let gone = self.store.throw_away(&entry.path());
                gone.map_err(layer_error("discard the memory of a snapshot"))?;
            }
        }
        Ok(())
    }

    pub(super) fn sync_images(&self, data: &ArtifactData) -> DriverResult<()> {
        let sync = |path: PathBuf| image::sync(&path).map_err(failed("write memory to disk"));
        self.memory_images(data).into_iter().try_for_each(sync)
    }

    pub(super) fn kept_processes(&self, artifact: &Artifact) -> DriverResult<Vec<KeptProcess>> {
        let data = self.read_artifact(artifact)?;
        let Some(image) = self.top_image(&data, artifact.snapshot)? else { return Ok(Vec::new()) };
        let kept = |process: &Process| {
            let alive = process.alive()?;
            let pages = alive.mappings.iter().flat_map(|mapping| &mapping.pages);
            Some(KeptProcess {
                pid: process.pid,
                name: process.name.clone(),
                threads: alive.threads.len(),
                memory_bytes: pages.map(|(start, end)| end - start).sum(),
            })
        };
        Ok(image.snapshot.processes.iter().filter_map(kept).collect())
    }

    fn top_image(&self, data: &ArtifactData, snapshot: SnapshotId) -> DriverResult<Option<Image>> {
        let top = self.memory_images(data).pop();
        top.map(Image::open).transpose().map_err(damaged(snapshot))
    }

    /// Of the template that has this layer.
    pub(super) fn template_memory(&self, layer: &LayerName) -> PathBuf {
        self.memory().join(layer.as_str())
    }

    /// Whose memory templates have: by their layers.
    pub(super) fn templates_with_memory(&self) -> Vec<LayerName> {
        let entries = fs::read_dir(self.memory()).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Whether processes can run here; the first error is one of the image itself.
    pub(super) fn check_runs_here(&self, image: &Path) -> Result<DriverResult<()>, String> {
        let machine = image::machine(image).map_err(|err| err.to_string())?;
        Ok(checkpoint::restore::check_machine(&machine).map_err(full_error))
    }

    /// Whether the processes of a snapshot can run here, before anything is made.
    pub(super) fn check_image(
        &self,
        data: &ArtifactData,
        snapshot: SnapshotId,
    ) -> DriverResult<()> {
        let Some(top) = self.memory_images(data).pop() else { return Ok(()) };
        let machine = self.last_machine.of(&top).map_err(damaged(snapshot))?;
        checkpoint::restore::check_machine(&machine).map_err(full_error)
    }
}

/// The moment of a full snapshot.
struct SealFiles<F> {
    seal: F,
}

impl<F: FnOnce(&mut Still<'_>) -> io::Result<()>> Moment for SealFiles<F> {
    fn come(self, still: &mut Still<'_>) -> io::Result<()> {
        (self.seal)(still)
    }
}

pub(super) fn tree(record: &Record) -> Tree {
    let init = record.init.as_ref().map_or(0, |init| init.pid);
    Tree::below(init).with_clients()
}

pub(super) fn spec(record: &Record) -> CaptureSpec {
    CaptureSpec {
        patience: PATIENCE,
        mounts: root::IN_MEMORY,
        relocated: record.rotated == Some(record.launches),
        ..CaptureSpec::default()
    }
}

fn damaged(snapshot: SnapshotId) -> impl Fn(ImageError) -> DriverError {
    move |err| DriverError::Damaged { snapshot, reason: err.to_string() }
}

fn unavailable(reason: impl Into<String>) -> DriverError {
    let (kind, reason) = (SnapshotKind::Full, reason.into());
    DriverError::KindUnavailable { driver: DRIVER, kind, reason }
}

fn full_error(err: checkpoint::Error) -> DriverError {
    use checkpoint::Error::{Ended, OtherMachine, Refused, Restless};
    match err {
        // Who does not stand still is in the way like what is refused: the files can be kept all the same.
        err @ (Refused(_) | Restless { .. } | Ended { .. } | OtherMachine { .. }) => {
            unavailable(err.to_string())
        }
        err => failed("keep processes and memory")(err),
    }
}

/// Why nobody can look into the processes of a sandbox.
fn refusal(record: &Record) -> Option<&'static str> {
    if !record.is_alive() {
        return Some("nothing runs in it: a snapshot of files is all that there is");
    }
    if record.paused {
        return Some("it is paused, and what is paused cannot be asked: resume it first");
    }
    if record.isolation == Isolation::Rootless {
        return Some("it was made without root, and only root may look into processes");
    }
    if record.freezer().is_none() {
        return Some("this machine has no cgroups that tell which processes are its own");
    }
    None
}
