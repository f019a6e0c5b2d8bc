//! Sandboxes on this machine: made, ended, stopped, started, rolled back. Everything here blocks.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::fs::PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use forkpoint_checkpoint::image::LastMachine;
use forkpoint_core::{
    driver::{
        Artifact, DriverError, DriverResult, SandboxState, SandboxStatus, SandboxUsage,
        SnapshotKind,
    },
    id::SandboxId,
    spec::{SandboxSpec, Workspace},
};
use serde::{Deserialize, Serialize};

use super::{
    DRIVER, LocalConfig,
    cgroup::{Cgroup, Cgroups},
    client::Client,
    end::{ends_soon, hold_mounts, is_ending, kill},
    expect::Expected,
    launch::Isolation,
    memory::{
        KeptMemory,
        back::{Anew, LastGoneBackTo, RolledBack},
    },
    record::{self, Doomed, Place, Record},
    spawner::Order,
    template::{Base, TemplateError},
    warm::Pool,
    wire::Failure,
    workspace::now,
};
use crate::{
    layer::{LayerError, LayerName, LayerStore},
    workspace::Line,
};

/// Of [`Artifact::data`].
pub(super) const ARTIFACT_VERSION: u32 = 1;

/// What the driver keeps for a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ArtifactData {
    /// The layer at the top.
    pub(super) layer: LayerName,
    /// What lay below all layers. Empty where that is not known, of one that came from elsewhere.
    pub(super) base: Base,
    /// Of one that came from elsewhere: the layers of images that it must lie on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) lies_on: Vec<String>,
    /// What lay below them besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) workspaces: Vec<Workspace>,
    /// Whose work it holds.
    #[serde(default, skip_serializing_if = "Line::is_empty")]
    pub(super) line: Line,
    /// Of a full snapshot, the lowest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) memory: Vec<KeptMemory>,
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) root: PathBuf,
    pub(super) store: LayerStore,
    pub(super) cgroups: Cgroups,
    pub(super) client: Arc<Client>,
    pub(super) pool: Pool,
    pub(super) expected: Expected,
    pub(super) last_gone_back_to: LastGoneBackTo,
    pub(super) last_machine: LastMachine,
    pub(super) live_rotation: bool,
    isolation: Isolation,
}

impl Host {
    pub(super) fn open(config: LocalConfig) -> DriverResult<Arc<Self>> {
        let LocalConfig { root, helper, map_users, warm, share_memory, live_rotation } = config;
        let create = |path: &Path| fs::create_dir_all(path).map_err(io_error("create", path));
        create(&root)?;
        // What sandboxes write has owners and set-user-id bits, and means nothing on the host.
        fs::set_permissions(&root, fs::Permissions::from_mode(0o700))
            .map_err(io_error("close to others", &root))?;
        // Layers are named from here, and a name with a link in it leads nowhere in a sandbox.
        let root = fs::canonicalize(&root).map_err(io_error("find", &root))?;
        create(&Place::all(&root))?;
        let store =
            LayerStore::open(&root.join("store")).map_err(layer_error("open the layers"))?;
        let isolation = match (rustix::process::geteuid().is_root(), map_users) {
            (true, true) => Isolation::Mapped,
            (true, false) => Isolation::Plain,
            (false, _) => Isolation::Rootless,
        };
        let (cgroups, client) =
            (Cgroups::find(), Arc::new(Client::new(helper, &root, share_memory)));
        let pool = Pool::new(warm, isolation, Arc::clone(&client), cgroups.clone());
        let pool = pool.map_err(failed("keep sandboxes ready"))?;
        let last_gone_back_to = LastGoneBackTo::default();
        let expected = Expected::default();
        Ok(Arc::new(Self {
            root,
            store,
            cgroups,
            client,
            pool,
            expected,
            last_gone_back_to,
            last_machine: LastMachine::default(),
            live_rotation,
            isolation,
        }))
    }

    pub(super) fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Best effort: what does not start now is started when it is needed, and fails then.
    pub(super) fn warm_up(&self) {
        let _ = self.client.tell(&Order::Prepare(self.isolation), &[]);
        self.pool.start();
    }

    pub(super) fn place(&self, id: SandboxId) -> Place {
        Place::of(&self.root, id)
    }

    pub(super) fn find(&self, id: SandboxId) -> DriverResult<Option<Record>> {
        let path = self.place(id);
        Record::read(&self.root, id).map_err(io_error("read the record of", path.directory()))
    }

    pub(super) fn record(&self, id: SandboxId) -> DriverResult<Record> {
        self.find(id)?.ok_or(DriverError::SandboxMissing { driver: DRIVER, id })
    }

    pub(super) fn write(&self, record: &Record) -> DriverResult<()> {
        let place = self.place(record.id);
        record.write(&self.root).map_err(io_error("write the record of", place.directory()))
    }

    /// `None` when there is no such sandbox.
    pub(super) fn try_lock(&self, id: SandboxId) -> DriverResult<Option<OwnedFd>> {
        let place = self.place(id);
        place.lock().map_err(io_error("lock", place.directory()))
    }

    pub(super) fn lock(&self, id: SandboxId) -> DriverResult<OwnedFd> {
        self.try_lock(id)?.ok_or(DriverError::SandboxMissing { driver: DRIVER, id })
    }

    pub(super) fn list(&self) -> DriverResult<Vec<SandboxId>> {
        let path = Place::all(&self.root);
        let entries = fs::read_dir(&path).map_err(io_error("list", &path))?;
        let id = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        let mut ids: Vec<SandboxId> = entries.filter_map(id).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    pub(super) fn status(&self, id: SandboxId) -> DriverResult<Option<SandboxStatus>> {
        let Some(record) = self.find(id)? else { return Ok(None) };
        Ok(Some(SandboxStatus { state: state_of(&record), base: record.snapshot }))
    }

    pub(super) fn usage(&self, id: SandboxId) -> DriverResult<SandboxUsage> {
        let record = self.record(id)?;
        let upper = self.place(id).upper(record.generation);
        let disk = crate::layer::measure_tree(&upper).map_err(layer_error("count files"))?;
        let cgroup = record.cgroup.as_ref().filter(|_| record.is_alive());
        let usage = cgroup.map(Cgroup::usage).unwrap_or_default();
        Ok(SandboxUsage {
            disk_bytes: Some(disk.bytes),
            memory_bytes: usage.memory_bytes,
            processes: usage.pids,
            cpu_ms: usage.cpu.and_then(|cpu| u64::try_from(cpu.as_millis()).ok()),
            killed_for_memory: cgroup.and_then(Cgroup::oom_kills),
        })
    }

    pub(super) fn create(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        from: Option<&Artifact>,
    ) -> DriverResult<()> {
        self.make_way_for_expected();
        let _held = self.hold_templates(&spec.template)?;
        let data = from.map(parse_artifact).transpose()?;
        let images = match &data {
            None => self.template_images(&spec.template)?,
            Some(data) => self.memory_images(data),
        };
        let place = self.place(id);
        // First of all: who dies from here on has left something that is listed, and by whose name the rest is found.
        match fs::create_dir(place.directory()) {
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
                return Err(DriverError::SandboxExists { driver: DRIVER, id });
            }
            result => result.map_err(io_error("create", place.directory()))?,
        }
        let launched = self.launch_first(id, spec, from.zip(data), images);
        self.forget_pins(id);
        if launched.is_err() {
            // Best effort: what stays is destroyed by id. The answer may be all that was lost.
            let _ = self.destroy(id);
        }
        launched.map(drop)
    }

    fn launch_first(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        from: Option<(&Artifact, ArtifactData)>,
        images: Vec<PathBuf>,
    ) -> DriverResult<Record> {
        let launcher = self.launcher((id, 0), self.isolation, spec, images)?;
        let chain = from.as_ref().map(|(artifact, data)| {
            let chain = self.store.chain(&data.layer);
            chain.map_err(|err| damaged(artifact, err.to_string()))
        });
        let (chain, is_new) = (chain.transpose()?, from.is_none());
        let start = self.starting_point(id, spec, from)?;
        let lock = self.lock(id)?;
        let start = if is_new { self.pin_workspaces(start)? } else { start };
        let chain = chain.map_or_else(|| self.chain(start.top.as_ref()), Ok)?;
        self.launch(&lock, start, &chain, launcher)
    }

    /// The record of a sandbox that does not run yet.
    fn starting_point(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        from: Option<(&Artifact, ArtifactData)>,
    ) -> DriverResult<Record> {
        let (artifact, data) = from.unzip();
        if let Some((artifact, data)) = artifact.zip(data.as_ref()) {
            self.check_image(data, artifact.snapshot)?;
        }
        self.check_workspaces(spec, data.is_none())?;
        let base = self.base_under(data.as_ref(), spec)?;
        let before = data.as_ref().map(|data| data.line.clone()).unwrap_or_default();
        let line = match spec.workspaces.is_empty() {
            true => Line::default(),
            false => before.begun(id, now()),
        };
        Ok(Record {
            format: record::FORMAT,
            id,
            spec: spec.clone(),
            base,
            isolation: self.isolation,
            hostname: id.to_string(),
            generation: 0,
            launches: 0,
            top: data.map(|data| data.layer),
            flat: None,
            own: Vec::new(),
            captured: None,
            snapshot: artifact.map(|artifact| artifact.snapshot),
            sealed: None,
            sealing: None,
            stopped: false,
            paused: false,
            held: false,
            cgroup: None,
            init: None,
            doomed: None,
            undoing: false,
            rotated: None,
            line,
        })
    }

    /// What the processes of a full snapshot are brought back from. Checked to fit this machine.
    pub(super) fn images_from(&self, artifact: &Artifact) -> DriverResult<Vec<PathBuf>> {
        let data = self.read_artifact(artifact)?;
        self.check_image(&data, artifact.snapshot)?;
        Ok(self.memory_images(&data))
    }

    pub(super) fn read_artifact(&self, artifact: &Artifact) -> DriverResult<ArtifactData> {
        let data = parse_artifact(artifact)?;
        let chain = self.store.known_chain(&data.layer);
        chain.map_err(|err| damaged(artifact, err.to_string()))?;
        Ok(data)
    }

    pub(super) fn destroy(&self, id: SandboxId) -> DriverResult<()> {
        // First: whoever holds the lock may be waiting for an answer from inside.
        let mut held = None;
        if let Ok(Some(record)) = self.find(id) {
            held = hold_mounts(record.init.as_ref());
            let _ = kill(record.init.as_ref(), record.cgroup.as_ref());
        }
        let Some(_lock) = self.try_lock(id)? else {
            self.end_unrecorded(id);
            return Ok(());
        };
        let place = self.place(id);
        // A record that cannot be read must not keep the sandbox from being destroyed.
        let record = self.find(id).ok().flatten();
        if let Some(record) = &record {
            if let Some(doomed) = &record.doomed {
                self.end(doomed.init.as_ref(), doomed.cgroup.as_ref());
            }
            self.end(record.init.as_ref(), record.cgroup.as_ref());
        }
        self.end_unrecorded(id);
        if record.is_none() {
            self.end_unknown(id);
        }
        let pins = self.forgotten_pins(id);
        self.store.throw_away_later(place.directory()).map_err(layer_error("remove a sandbox"))?;
        self.discard_layers(&pins);
        self.forget_merged_of(id);
        if let Some(record) = record {
            let doomed = record.doomed.map(|doomed| doomed.own).unwrap_or_default();
            self.discard_layers(record.own.iter().chain(&doomed));
        }
        self.sweep_later(held);
        Ok(())
    }

    /// Of layers that nobody else knows. Best effort: what stays wastes room and nothing else.
    pub(super) fn discard_layers<'a>(&self, layers: impl IntoIterator<Item = &'a LayerName>) {
        for layer in layers {
            let _ = self.store.discard(layer.as_str());
        }
    }

    /// In place where that can be done. Else makes the new one first: if that fails, the old one is as it was. What was
    /// there before is dead when this returns, and is cleared away by [`Host::finish`], for which the lock is.
    pub(super) fn rollback(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        to: &Artifact,
    ) -> DriverResult<RolledBack> {
        let data = self.read_artifact(to)?;
        self.check_same_workspaces(spec, &data)?;
        let _held = self.hold_templates(&spec.template)?;
        let place = self.place(id);
        fs::create_dir_all(place.directory()).map_err(io_error("create", place.directory()))?;
        let lock = self.lock(id)?;
        let old = self.find(id)?.map(|old| self.finish(old)).transpose()?;
        let made_anew = match self.back_in_place(old.as_ref(), spec, to, &data)? {
            Ok(record) => return Ok(RolledBack { record, lock, made_anew: None }),
            Err(Anew(why)) => why,
        };
        let launches = old.as_ref().map_or(0, |old| old.launches + 1);
        let images = self.memory_images(&data);
        let launcher = self.launcher((id, launches), self.isolation, spec, images)?;
        let mut new = self.starting_point(id, spec, Some((to, data)))?;
        if let Some(old) = old {
            new.generation = old.generation + 1;
            new.launches = launches;
            new.hostname = old.hostname;
            let Record { init, cgroup, generation, own, .. } = old;
            new.doomed = Some(Doomed { init, cgroup, generation, own });
        }
        let generation = new.generation;
        self.clear_generation(&place, generation)?;
        let chain = self.chain(new.top.as_ref())?;
        let launched = self.launch(&lock, new, &chain, launcher);
        match (launched, self.find(id)?) {
            // The answer may be all that was lost.
            (_, Some(record)) if record.launches == launches => {
                if let Some(doomed) = &record.doomed {
                    let held = hold_mounts(doomed.init.as_ref());
                    let _ = kill(doomed.init.as_ref(), doomed.cgroup.as_ref());
                    self.sweep_later(held);
                }
                self.forget_merged_of(id);
                Ok(RolledBack { record, lock, made_anew })
            }
            (Ok(_), _) => Err(DriverError::SandboxMissing { driver: DRIVER, id }),
            (Err(err), _) => {
                let _ = self.store.throw_away(&place.generation(generation));
                Err(err)
            }
        }
    }

    /// Ends what a rollback replaced, and completes a seal that somebody left. The sandbox is
    /// locked. One that is on its way out is waited for, for a moment.
    pub(super) fn finish(&self, mut record: Record) -> DriverResult<Record> {
        if let Some(init) = &record.init
            && is_ending(init.pid.cast_unsigned())
        {
            // Whoever stopped it may have been killed before it was gone.
            ends_soon(init);
        }
        if let Some(doomed) = record.doomed.take() {
            self.end(doomed.init.as_ref(), doomed.cgroup.as_ref());
            let place = self.place(record.id);
            let old = place.generation(doomed.generation);
            self.store.throw_away(&old).map_err(layer_error("remove what was rolled back"))?;
            self.discard_layers(&doomed.own);
            remove_old_sockets(&place, record.launches);
            self.write(&record)?;
            self.sweep_later(None);
        }
        if record.undoing {
            record = self.finish_undoing(record)?;
        }
        match record.sealing.take() {
            Some(sealing) => self.finish_seal(record, &sealing),
            None => Ok(record),
        }
    }

    pub(super) fn stop(&self, id: SandboxId) -> DriverResult<()> {
        let _lock = self.lock(id)?;
        let mut record = self.finish(self.record(id)?)?;
        self.end_completely(record.init.as_ref(), record.cgroup.as_ref());
        record.stopped = true;
        (record.paused, record.held) = (false, false);
        (record.init, record.cgroup) = (None, None);
        self.forget_merged_of(id);
        self.write(&record)
    }

    pub(super) fn start(&self, id: SandboxId, spec: &SandboxSpec) -> DriverResult<()> {
        let lock = self.lock(id)?;
        let mut record = self.finish(self.record(id)?)?;
        if record.is_alive() {
            if record.paused {
                return Err(DriverError::NotRunning { id, state: SandboxState::Paused });
            }
            // Whoever wanted to stop it may have been killed when it was on its way out already.
            if self.let_go(id).and_then(|()| self.ask_init(&record)).is_ok() {
                return Ok(());
            }
        }
        self.check_workspaces(spec, false)?;
        // After a reboot there may be a cgroup of that name, and nothing in it.
        self.end(record.init.take().as_ref(), record.cgroup.take().as_ref());
        record.spec = spec.clone();
        record.launches += 1;
        (record.stopped, record.paused, record.held) = (false, false, false);
        let launcher = self.launcher((id, record.launches), record.isolation, spec, Vec::new())?;
        let chain = self.chain(record.top.as_ref())?;
        let record = self.launch(&lock, record, &chain, launcher)?;
        remove_old_sockets(&self.place(id), record.launches);
        Ok(())
    }
}

fn damaged(artifact: &Artifact, reason: String) -> DriverError {
    DriverError::Damaged { snapshot: artifact.snapshot, reason }
}

/// What it says, whether or not it is there.
pub(super) fn parse_artifact(artifact: &Artifact) -> DriverResult<ArtifactData> {
    if artifact.version > ARTIFACT_VERSION {
        let reason = format!(
            "the artifact of `{}` has version {}, and this release reads up to {ARTIFACT_VERSION}",
            artifact.snapshot, artifact.version
        );
        return Err(DriverError::Invalid { driver: DRIVER, reason });
    }
    let data: ArtifactData = serde_json::from_value(artifact.data.clone())
        .map_err(|err| damaged(artifact, err.to_string()))?;
    if (artifact.kind == SnapshotKind::Full) == data.memory.is_empty() {
        return Err(damaged(artifact, "what it says of processes is not true".to_owned()));
    }
    Ok(data)
}

pub(super) fn state_of(record: &Record) -> SandboxState {
    if !record.is_alive() {
        return SandboxState::Stopped;
    }
    let frozen = record.freezer().is_some_and(|cgroup| cgroup.is_frozen().unwrap_or(false));
    match frozen || record.held {
        true => SandboxState::Paused,
        false => SandboxState::Running,
    }
}

fn remove_old_sockets(place: &Place, launches: u32) {
    for number in launches.saturating_sub(2)..launches {
        let _ = fs::remove_file(place.directory().join(Place::socket(number)));
    }
}

pub(super) fn io_error<'a>(
    operation: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> DriverError + 'a {
    move |source| DriverError::Io { operation, path: path.to_owned(), source }
}

pub(super) fn failed<E>(operation: &'static str) -> impl FnOnce(E) -> DriverError
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |err| DriverError::Failed { driver: DRIVER, operation, source: err.into() }
}

pub(super) fn launch_error(operation: &'static str) -> impl FnOnce(Failure) -> DriverError {
    failed(operation)
}

pub(super) fn layer_error(operation: &'static str) -> impl FnOnce(LayerError) -> DriverError {
    failed(operation)
}

pub(super) fn template_error(err: TemplateError) -> DriverError {
    match err {
        TemplateError::Invalid(reason) => DriverError::Invalid { driver: DRIVER, reason },
        err => failed("prepare the template")(err),
    }
}
