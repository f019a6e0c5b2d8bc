//! What the fake platform knows, and what it will not put up with.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use bytes::Bytes;
use forkpoint_core::{
    driver::{
        Adopted, Artifact, Capabilities, Claimed, DriverError, DriverResult, FileState,
        NativeState, Piece, PieceName, SandboxEvent, SandboxState, SandboxStatus, SnapshotKind,
    },
    id::{SandboxId, SnapshotId},
    spec::SandboxSpec,
};

use futures::channel::mpsc;

use super::{DRIVER, Files, process::Processes, sandbox::failed};
use crate::simulation::mix;

/// In front of the name of everything that we keep on the platform.
const MARK: &str = "forkpoint-";

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) sandboxes: BTreeMap<SandboxId, Row>,
    pub(super) pieces: BTreeMap<PieceName, PieceRow>,
    pub(super) truth: BTreeMap<SnapshotId, Files>,
    pub(super) violations: Vec<String>,
    pub(super) take_away: Option<fn(&mut Capabilities)>,
    pub(super) volatile: bool,
    pub(super) notices: Vec<String>,
    pub(super) listeners: Vec<(SandboxId, Listener)>,
    /// States that others kept, by name.
    pub(super) images: BTreeMap<String, Files>,
    /// Ids that ever were: none may come back but by a rollback.
    used: BTreeSet<SandboxId>,
    /// How many there ever were that are not ours.
    foreigners: u64,
}

type Listener = mpsc::UnboundedSender<DriverResult<SandboxEvent>>;

#[derive(Debug)]
pub(super) struct Row {
    pub(super) files: Files,
    pub(super) spec: SandboxSpec,
    /// What its user made of it.
    pub(super) state: SandboxState,
    /// Our own pause, for sealing.
    pub(super) paused: bool,
    pub(super) processes: Processes,
    base: Option<SnapshotId>,
    top: Option<PieceName>,
    /// The platform's name of one that we did not make.
    pub(super) foreign: Option<String>,
}

impl Row {
    fn new(files: Files, spec: SandboxSpec) -> Self {
        Self {
            files,
            spec,
            state: SandboxState::Running,
            paused: false,
            processes: Processes::default(),
            base: None,
            top: None,
            foreign: None,
        }
    }

    /// Files from an artifact, standing on it.
    fn standing_on(artifact: &Artifact, files: Files, spec: SandboxSpec) -> Self {
        let base = Some(artifact.snapshot);
        Self { base, top: top(artifact), ..Self::new(files, spec) }
    }

    fn native_name(&self) -> Option<&str> {
        self.foreign.as_deref().or(self.spec.attachments.native_name.as_deref())
    }

    pub(super) fn shown_state(&self) -> SandboxState {
        match self.state {
            SandboxState::Running if self.paused => SandboxState::Paused,
            state => state,
        }
    }
}

#[derive(Debug)]
pub(super) struct PieceRow {
    synced: bool,
    pub(super) snapshot: SnapshotId,
    over: Option<PieceName>,
    changes: BTreeMap<PathBuf, Option<Bytes>>,
    /// From which sandbox, and what was its base before.
    pub(super) sealed_from: Option<(SandboxId, Option<SnapshotId>)>,
}

impl State {
    pub(super) fn add_foreign(&mut self, native_name: &str, files: Files) -> SandboxId {
        self.foreigners += 1;
        let number =
            native_name.bytes().fold(self.foreigners, |sum, byte| mix(sum ^ u64::from(byte)));
        let id = SandboxId::from_u128(u128::from(number));
        let template = "foreign-image".parse().map(SandboxSpec::new);
        let Ok(spec) = template else { return id };
        let mut row = Row::new(files, spec);
        row.foreign = Some(native_name.to_owned());
        self.sandboxes.insert(id, row);
        id
    }

    pub(super) fn create(
        &mut self,
        id: SandboxId,
        spec: &SandboxSpec,
        from: Option<&Artifact>,
    ) -> DriverResult<()> {
        if self.sandboxes.contains_key(&id) {
            self.violations.push(format!("`{id}` was made twice"));
            return Err(DriverError::SandboxExists { driver: DRIVER, id });
        }
        if !self.used.insert(id) {
            self.violations.push(format!("`{id}` was made again after it was destroyed"));
        }
        let row = match from {
            Some(from) => Row::standing_on(from, self.files_of(from)?, spec.clone()),
            None => Row::new(template_files(spec), spec.clone()),
        };
        self.sandboxes.insert(id, row);
        Ok(())
    }

    pub(super) fn rollback(
        &mut self,
        id: SandboxId,
        spec: &SandboxSpec,
        to: &Artifact,
    ) -> DriverResult<()> {
        let files = self.files_of(to)?;
        let before = self.sandboxes.remove(&id);
        if before.as_ref().is_some_and(|row| row.paused) {
            self.violations.push(format!("`{id}` was rolled back while it was paused"));
        }
        let mut row = Row::standing_on(to, files, spec.clone());
        row.foreign = before.and_then(|row| row.foreign);
        self.sandboxes.insert(id, row);
        Ok(())
    }

    pub(super) fn adopt(&self, native_name: &str) -> DriverResult<Adopted> {
        let found = self.sandboxes.iter().find(|(_, row)| row.native_name() == Some(native_name));
        let (id, row) = found.ok_or_else(|| DriverError::NativeMissing {
            driver: DRIVER,
            name: native_name.to_owned(),
        })?;
        Ok(Adopted { id: *id, native_name: native_name.to_owned(), spec: row.spec.clone() })
    }

    pub(super) fn sandbox(&mut self, id: SandboxId) -> DriverResult<&mut Row> {
        self.sandboxes.get_mut(&id).ok_or(DriverError::SandboxMissing { driver: DRIVER, id })
    }

    pub(super) fn status(&self, id: SandboxId) -> Option<SandboxStatus> {
        self.sandboxes
            .get(&id)
            .map(|row| SandboxStatus { state: row.shown_state(), base: row.base })
    }

    pub(super) fn ours(&self) -> Vec<SandboxId> {
        let ours = self.sandboxes.iter().filter(|(_, row)| row.foreign.is_none());
        ours.map(|(id, _)| *id).collect()
    }

    pub(super) fn destroy(&mut self, id: SandboxId) -> DriverResult<()> {
        let Some(row) = self.sandboxes.get(&id) else { return Ok(()) };
        if let Some(name) = &row.foreign {
            self.violations.push(format!("the driver was asked to destroy foreign `{name}`"));
            return Err(DriverError::Foreign { what: name.clone() });
        }
        if row.paused {
            self.violations.push(format!("`{id}` was destroyed while it was paused"));
        }
        self.sandboxes.remove(&id);
        Ok(())
    }

    pub(super) fn stop(&mut self, id: SandboxId) -> DriverResult<()> {
        self.note_if_being_sealed(id, "stopped")?;
        let row = self.sandbox(id)?;
        row.state = SandboxState::Stopped;
        row.processes.kill_all();
        Ok(())
    }

    /// From one state to another; being there already is a success, and anything else is refused.
    pub(super) fn switch(
        &mut self,
        id: SandboxId,
        from: SandboxState,
        to: SandboxState,
    ) -> DriverResult<()> {
        self.note_if_being_sealed(id, "switched")?;
        let row = self.sandbox(id)?;
        match row.state {
            state if state == from || state == to => row.state = to,
            state => return Err(DriverError::NotRunning { id, state }),
        }
        Ok(())
    }

    fn note_if_being_sealed(&mut self, id: SandboxId, what: &str) -> DriverResult<()> {
        if self.sandbox(id)?.paused {
            self.violations.push(format!("`{id}` was {what} while it was being sealed"));
        }
        Ok(())
    }

    /// With all that it lies over.
    pub(super) fn sync(&mut self, artifact: &Artifact) -> DriverResult<bool> {
        self.files_of(artifact)?;
        if self.volatile {
            return Ok(false);
        }
        let mut next = top(artifact);
        while let Some(row) = next.and_then(|name| self.pieces.get_mut(&name)) {
            row.synced = true;
            next = row.over.clone();
        }
        Ok(true)
    }

    pub(super) fn is_synced(&self, snapshot: SnapshotId) -> bool {
        self.pieces.get(&piece_name(snapshot)).is_some_and(|piece| piece.synced)
    }

    pub(super) fn pause(&mut self, id: SandboxId) -> DriverResult<()> {
        let row = self.sandbox(id)?;
        if std::mem::replace(&mut row.paused, true) {
            self.violations.push(format!("`{id}` was paused twice"));
        }
        Ok(())
    }

    pub(super) fn seal(&mut self, id: SandboxId, snapshot: SnapshotId) -> DriverResult<Artifact> {
        let Some(row) = self.sandboxes.get(&id) else {
            return Err(DriverError::SandboxMissing { driver: DRIVER, id });
        };
        // What is not ours is copied whole: it outlives our knowledge of what it stands on.
        let over = row.top.clone().filter(|_| row.foreign.is_none());
        let (files, base) = (row.files.clone(), row.base);
        if !row.paused {
            self.violations.push(format!("`{id}` was sealed while it ran"));
        }
        if self.truth.insert(snapshot, files.clone()).is_some() {
            self.violations.push(format!("`{snapshot}` was sealed twice"));
        }
        let artifact = self.add_piece(snapshot, files, over, Some((id, base)))?;
        if let Some(row) = self.sandboxes.get_mut(&id) {
            row.base = Some(snapshot);
            if row.foreign.is_none() {
                row.top = top(&artifact);
            }
        }
        Ok(artifact)
    }

    pub(super) fn is_unchanged(&mut self, id: SandboxId, since: SnapshotId) -> DriverResult<bool> {
        let row = self.sandbox(id)?;
        let (base, files, paused) = (row.base, row.files.clone(), row.paused);
        if !paused {
            self.violations.push(format!("`{id}` was compared while it ran"));
        }
        Ok(base == Some(since) && self.truth.get(&since) == Some(&files))
    }

    pub(super) fn import(&mut self, snapshot: SnapshotId, files: Files) -> Artifact {
        self.truth.insert(snapshot, files.clone());
        let name = piece_name(snapshot);
        let (bytes, count) = (len_bytes(files.values()), files.len() as u64);
        let changes = files.into_iter().map(|(path, bytes)| (path, Some(bytes))).collect();
        let row = PieceRow { synced: false, snapshot, over: None, changes, sealed_from: None };
        self.pieces.insert(name.clone(), row);
        artifact(snapshot, Piece { name, over: None, bytes }, bytes, count)
    }

    pub(super) fn claim(
        &mut self,
        snapshot: SnapshotId,
        what: &NativeState,
    ) -> DriverResult<Claimed> {
        let missing = || DriverError::NativeMissing { driver: DRIVER, name: what.name.clone() };
        let files = self.images.get(&what.name).ok_or_else(missing)?.clone();
        let reason = "no template".to_owned();
        let invalid = |_| DriverError::Invalid { driver: DRIVER, reason };
        let spec = SandboxSpec::new("foreign-image".parse().map_err(invalid)?);
        let of = what.of.iter().flat_map(|of| of.bytes());
        let number = of.fold(3, |sum, byte| mix(sum ^ u64::from(byte)));
        let sandbox = SandboxId::from_u128(u128::from(number));
        Ok(Claimed { artifact: self.import(snapshot, files), sandbox, spec })
    }

    fn add_piece(
        &mut self,
        snapshot: SnapshotId,
        files: Files,
        over: Option<PieceName>,
        sealed_from: Option<(SandboxId, Option<SnapshotId>)>,
    ) -> DriverResult<Artifact> {
        let below = match &over {
            Some(over) => self.merged(snapshot, over)?,
            None => Files::new(),
        };
        let gone = below.keys().filter(|path| !files.contains_key(*path));
        let mut changes: BTreeMap<_, _> = gone.map(|path| (path.clone(), None)).collect();
        let changed = files.iter().filter(|(path, bytes)| below.get(*path) != Some(bytes));
        changes.extend(changed.map(|(path, bytes)| (path.clone(), Some(bytes.clone()))));
        let own = len_bytes(changes.values().flatten());
        let (total, count) = (len_bytes(files.values()), files.len() as u64);

        let name = piece_name(snapshot);
        let row = PieceRow { synced: false, snapshot, over: over.clone(), changes, sealed_from };
        self.pieces.insert(name.clone(), row);
        Ok(artifact(snapshot, Piece { name, over, bytes: own }, total, count))
    }

    pub(super) fn unseal(&mut self, snapshot: SnapshotId) {
        let name = piece_name(snapshot);
        let Some(piece) = self.pieces.remove(&name) else { return };
        self.truth.remove(&snapshot);
        if let Some((from, base)) = piece.sealed_from
            && let Some(row) = self.sandboxes.get_mut(&from)
            && row.base == Some(snapshot)
        {
            row.base = base;
            row.top = row.top.take().filter(|top| *top != name).or(piece.over);
        }
        self.note_if_needed(&name, "unsealed");
    }

    pub(super) fn discard(&mut self, name: &PieceName) -> DriverResult<()> {
        if !name.0.starts_with(MARK) {
            return Err(DriverError::Foreign { what: name.to_string() });
        }
        // A foreign sandbox that was rolled back and then forgotten lives on, and still needs it.
        let stands = |row: &&Row| row.foreign.is_some() && row.top.as_ref() == Some(name);
        if let Some(foreign) = self.sandboxes.values().find(stands).and_then(|r| r.foreign.clone())
        {
            return Err(failed("discard a piece", &format!("`{foreign}` stands on it")));
        }
        if self.pieces.remove(name).is_some() {
            self.note_if_needed(name, "discarded");
        }
        Ok(())
    }

    fn note_if_needed(&mut self, name: &PieceName, what: &str) {
        let by_piece = self.pieces.iter().find(|(_, row)| row.over.as_ref() == Some(name));
        let by_sandbox = self.sandboxes.iter().find(|(_, row)| row.top.as_ref() == Some(name));
        let user = by_piece.map(|(user, _)| user.to_string());
        if let Some(user) = user.or(by_sandbox.map(|(id, _)| id.to_string())) {
            self.violations.push(format!("`{name}` was {what} while `{user}` needs it"));
        }
    }

    pub(super) fn files_in(&mut self, state: &FileState) -> DriverResult<Files> {
        match state {
            FileState::Snapshot(artifact) => self.files_of(artifact),
            FileState::Sandbox(id) => Ok(self.sandbox(*id)?.files.clone()),
            FileState::Beginning { spec, .. } => Ok(template_files(spec)),
        }
    }

    pub(super) fn files_of(&self, artifact: &Artifact) -> DriverResult<Files> {
        let snapshot = artifact.snapshot;
        match top(artifact) {
            Some(top) => self.merged(snapshot, &top),
            None => Err(DriverError::Damaged { snapshot, reason: "it names no piece".into() }),
        }
    }

    fn merged(&self, snapshot: SnapshotId, top: &PieceName) -> DriverResult<Files> {
        let mut chain = Vec::new();
        let mut next = Some(top);
        while let Some(name) = next {
            let row = self.pieces.get(name).ok_or_else(|| DriverError::Damaged {
                snapshot,
                reason: format!("piece `{name}` is gone"),
            })?;
            chain.push(row);
            next = row.over.as_ref();
        }
        let mut files = Files::new();
        for (path, change) in chain.into_iter().rev().flat_map(|row| &row.changes) {
            match change {
                Some(bytes) => files.insert(path.clone(), bytes.clone()),
                None => files.remove(path),
            };
        }
        Ok(files)
    }
}

fn template_files(spec: &SandboxSpec) -> Files {
    let template = Bytes::from(spec.template.as_str().to_owned());
    Files::from([(PathBuf::from("/etc/template"), template)])
}

fn piece_name(snapshot: SnapshotId) -> PieceName {
    PieceName(format!("{MARK}{snapshot}"))
}

fn top(artifact: &Artifact) -> Option<PieceName> {
    artifact.data.get("top").and_then(|top| top.as_str()).map(|top| PieceName(top.to_owned()))
}

fn len_bytes<'a>(all: impl Iterator<Item = &'a Bytes>) -> u64 {
    all.map(|bytes| bytes.len() as u64).sum()
}

fn artifact(snapshot: SnapshotId, piece: Piece, total_bytes: u64, file_count: u64) -> Artifact {
    Artifact {
        snapshot,
        kind: SnapshotKind::Files,
        version: 1,
        data: serde_json::json!({ "top": piece.name.0 }),
        own_bytes: piece.bytes,
        pieces: vec![piece],
        total_bytes,
        file_count,
        counted: true,
        durable: false,
    }
}
