//! A live sandbox of the fake platform.

use std::{path::PathBuf, sync::MutexGuard};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use forkpoint_core::{
    driver::{
        Artifact, Command, DriverError, DriverResult, Entry, EntryKind, NewEntry, PausedSandbox,
        Process, Sandbox, SandboxState, SnapshotKind, WriteMode,
    },
    id::{SandboxId, SnapshotId},
    part::ByteStream,
    path::SandboxPath,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::{DRIVER, FakePlatform, process, state::State};

#[derive(Clone, Debug)]
pub(super) struct FakeSandbox {
    platform: FakePlatform,
    id: SandboxId,
}

impl FakeSandbox {
    pub(super) fn new(platform: FakePlatform, id: SandboxId) -> Self {
        Self { platform, id }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.platform.state()
    }

    fn missing(&self, path: &SandboxPath) -> DriverError {
        DriverError::PathMissing { id: self.id, path: path.clone() }
    }
}

#[async_trait]
impl Sandbox for FakeSandbox {
    fn id(&self) -> SandboxId {
        self.id
    }

    async fn exec(&self, command: &Command) -> DriverResult<Process> {
        let mut state = self.state();
        let row = state.sandbox(self.id)?;
        match row.shown_state() {
            SandboxState::Running => process::start(command, self.id, row),
            state => Err(DriverError::NotRunning { id: self.id, state }),
        }
    }

    async fn read(&self, path: &SandboxPath) -> DriverResult<ByteStream> {
        let bytes = self.state().sandbox(self.id)?.files.get(path.as_path()).cloned();
        let bytes = bytes.ok_or_else(|| self.missing(path))?;
        Ok(stream::iter([Ok(bytes)]).boxed())
    }

    async fn write(
        &self,
        path: &SandboxPath,
        bytes: ByteStream,
        mode: WriteMode,
    ) -> DriverResult<()> {
        let io = |source| DriverError::Io {
            operation: "write",
            path: path.as_path().to_owned(),
            source,
        };
        let new: BytesMut = bytes.try_collect().await.map_err(io)?;
        let mut state = self.state();
        let files = &mut state.sandbox(self.id)?.files;
        let old = files.get(path.as_path());
        let content = match (mode, old) {
            (WriteMode::Create, Some(_)) => {
                return Err(io(std::io::ErrorKind::AlreadyExists.into()));
            }
            (WriteMode::Append, Some(old)) => [old.as_ref(), &new].concat().into(),
            _ => new.freeze(),
        };
        files.insert(path.as_path().to_owned(), content);
        Ok(())
    }

    /// The platform keeps files alone: directories are implied, and all have one mode.
    async fn make(&self, path: &SandboxPath, entry: &NewEntry) -> DriverResult<()> {
        let mut state = self.state();
        let files = &mut state.sandbox(self.id)?.files;
        match entry {
            NewEntry::Symlink { .. } => {
                let operation = "make symbolic links";
                Err(DriverError::Unsupported { driver: DRIVER, operation })
            }
            NewEntry::Directory { .. } if files.contains_key(path.as_path()) => {
                Err(failed("make a directory", "there is a file"))
            }
            NewEntry::Mode(_) if !files.keys().any(|file| file.starts_with(path.as_path())) => {
                Err(self.missing(path))
            }
            NewEntry::Directory { .. } | NewEntry::Mode(_) => Ok(()),
        }
    }

    async fn entries(&self, path: &SandboxPath, depth: u32) -> DriverResult<Vec<Entry>> {
        let mut state = self.state();
        let files = &state.sandbox(self.id)?.files;
        let mut entries = Vec::new();
        for (file, bytes) in files {
            let Ok(below) = file.strip_prefix(path.as_path()) else { continue };
            let parts: Vec<_> = below.components().collect();
            for level in 1..=parts.len().min(depth as usize) {
                let at: PathBuf = path.as_path().join(parts[..level].iter().collect::<PathBuf>());
                let is_file = level == parts.len();
                entries.push(entry(at, is_file.then_some(bytes))?);
            }
        }
        if entries.is_empty() && path.as_path() != "/" {
            return Err(self.missing(path));
        }
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        entries.dedup();
        Ok(entries)
    }

    async fn pause(&self, _kind: SnapshotKind) -> DriverResult<Box<dyn PausedSandbox>> {
        self.state().pause(self.id)?;
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl PausedSandbox for FakeSandbox {
    async fn seal(&mut self, snapshot: SnapshotId, kind: SnapshotKind) -> DriverResult<Artifact> {
        if kind != SnapshotKind::Files {
            let operation = "take a snapshot with processes and memory";
            return Err(DriverError::Unsupported { driver: DRIVER, operation });
        }
        self.state().seal(self.id, snapshot)
    }

    async fn is_unchanged(&mut self, since: &Artifact) -> DriverResult<bool> {
        self.state().is_unchanged(self.id, since.snapshot)
    }

    async fn resume(self: Box<Self>) -> DriverResult<()> {
        self.state().sandbox(self.id)?.paused = false;
        Ok(())
    }
}

fn entry(path: PathBuf, file: Option<&Bytes>) -> DriverResult<Entry> {
    let reason = |err: forkpoint_core::Error| DriverError::Invalid {
        driver: DRIVER,
        reason: err.to_string(),
    };
    Ok(Entry {
        path: SandboxPath::new(path).map_err(reason)?,
        kind: if file.is_some() { EntryKind::File } else { EntryKind::Directory },
        len_bytes: file.map_or(0, |bytes| bytes.len() as u64),
        mode: if file.is_some() { 0o644 } else { 0o755 },
    })
}

pub(super) fn failed(operation: &'static str, reason: &str) -> DriverError {
    DriverError::Failed { driver: DRIVER, operation, source: reason.to_owned().into() }
}
