//! Fixing what a sandbox has changed, while it stands still.
//!
//! If nothing but init runs, what was written becomes a layer as it is, and a fresh directory is
//! put in its place under init's feet: the same cost, whatever was written. If anything runs, it may
//! have files open, and would go on writing into the layer: then what changed is copied, or in a full snapshot its open files
//! are exchanged ([`super::rotate`]).

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

use forkpoint_checkpoint::Still;
use forkpoint_core::{
    driver::{Artifact, DriverError, DriverResult, Piece, PieceName, SandboxState, SnapshotKind},
    id::{SandboxId, SnapshotId},
};

use super::{
    capture::CHAIN_MAX,
    client::Worker,
    end::{ends_soon, is_ending},
    host::{ARTIFACT_VERSION, ArtifactData, Host, failed, launch_error, layer_error},
    launch::Isolation,
    memory::added,
    mount::OverlaySpec,
    record::{Record, Sealed, Sealing},
    rotate::NextRoot,
    spawner::{Readiness, SwitchSpec, Work},
    wire::Failure,
    workspace::now,
};
use crate::layer::{Layer, LayerName, LayerResult, LayerSize, Manifest};

/// What is smaller is counted while it is sealed: it takes a fraction of a millisecond.
const COUNTED_MAX: usize = 64;

/// What was sealed, the newest layer first, and the layers that only the sandbox knew until now.
type SealedLayers = (Vec<Layer>, Vec<LayerName>);

/// What was written, as a layer on all that it lies on.
#[derive(Debug)]
pub(super) struct Rotated {
    pub(super) chain: Vec<Layer>,
    /// Of what was already copied into the next generation, if anything was, there is a note with this name.
    pub(super) captured: Option<LayerName>,
    /// Programs ran in it.
    pub(super) live: bool,
}

impl Host {
    /// Nothing in the sandbox runs. The sandbox is locked. Answers also whether its chain of layers
    /// has become long.
    pub(super) fn seal_files(
        &self,
        lock: &OwnedFd,
        id: SandboxId,
        snapshot: SnapshotId,
    ) -> DriverResult<(Artifact, bool)> {
        self.seal_files_of(lock, id, snapshot, None)
    }

    /// The same with what its programs can be asked, and the root that they could be given.
    pub(super) fn seal_files_of(
        &self,
        lock: &OwnedFd,
        id: SandboxId,
        snapshot: SnapshotId,
        live: Option<(&mut Still<'_>, NextRoot)>,
    ) -> DriverResult<(Artifact, bool)> {
        let record = self.record(id)?;
        self.let_owner_in(&record)?;
        let (base, workspaces) = (record.base.clone(), record.spec.workspaces.clone());
        let line = record.line.clone().ended(now());
        let (chain, own) = match self.is_idle(&record)? {
            true => self.rotate(lock, record, snapshot)?,
            false => self.seal_busy(lock, record, snapshot, live)?,
        };
        let layer = &chain[0];
        let mut pieces = vec![piece(layer)];
        for name in &own {
            pieces.push(piece(&self.store.known(name).map_err(layer_error("read a layer"))?));
        }
        let (layer_name, memory) = (layer.name().clone(), Vec::new());
        let lies_on = Vec::new();
        let data = ArtifactData { layer: layer_name, base, lies_on, workspaces, line, memory };
        let artifact = Artifact {
            snapshot,
            kind: SnapshotKind::Files,
            version: ARTIFACT_VERSION,
            data: serde_json::to_value(data).map_err(failed("describe a snapshot"))?,
            pieces,
            own_bytes: 0,
            total_bytes: 0,
            file_count: 0,
            counted: false,
            durable: false,
        };
        // Counting what was taken as it is would cost as much as there is of it.
        let sizes: Option<Vec<_>> = chain.iter().map(|layer| layer.record().size).collect();
        let is_long = chain.len() >= CHAIN_MAX;
        let artifact = match sizes {
            Some(sizes) => counted(artifact, &chain, &sizes),
            None => artifact,
        };
        Ok((artifact, is_long))
    }

    /// Fills in how much a snapshot holds. What lies below a layer that was never counted is
    /// counted too, once.
    fn count(&self, artifact: Artifact) -> DriverResult<Artifact> {
        let data = self.read_artifact(&artifact)?;
        let chain = self.store.known_chain(&data.layer).map_err(layer_error("read the layers"))?;
        let mut sizes = Vec::with_capacity(chain.len());
        for layer in &chain {
            sizes.push(self.store.measure(layer.name()).map_err(layer_error("count files"))?);
        }
        Ok(added(counted(artifact, &chain, &sizes), &data.memory))
    }

    pub(super) fn sync(&self, artifact: &Artifact) -> DriverResult<Artifact> {
        let data = self.read_artifact(artifact)?;
        self.store.sync(&data.layer).map_err(layer_error("write a layer to disk"))?;
        self.sync_images(&data)?;
        Ok(Artifact { durable: true, ..self.count(artifact.clone())? })
    }

    fn is_idle(&self, record: &Record) -> DriverResult<bool> {
        if !record.is_alive() {
            return Ok(true);
        }
        match record.freezer() {
            Some(cgroup) => {
                let pids = cgroup.pids().map_err(failed("list the sandbox's processes"))?;
                Ok(pids.into_iter().filter(|pid| !is_ending(*pid)).count() <= 1)
            }
            None => Ok(self.ask_init(record)?.1 == 0),
        }
    }

    /// Whether the files are what the snapshot holds that it stands on. Nothing in it runs. A doubt is
    /// a no, and so is what cannot be looked at.
    pub(super) fn is_unchanged(&self, id: SandboxId, since: SnapshotId) -> DriverResult<bool> {
        let record = self.record(id)?;
        let only_flat = record.own.iter().all(|own| record.flat.as_ref() == Some(own));
        if record.snapshot != Some(since) || record.sealing.is_some() || !only_flat {
            return Ok(false);
        }
        let looked = match &record.captured {
            Some(last) if *last == LayerName::of(since) => self.is_as_captured(&record, last),
            Some(_) => return Ok(false),
            None => self.is_bare(&record),
        };
        Ok(looked.unwrap_or(false))
    }

    /// Whether nothing was written since the last copy.
    fn is_as_captured(&self, record: &Record, last: &LayerName) -> LayerResult<bool> {
        let place = self.place(record.id);
        let Some(manifest) = Manifest::load(&place.manifest(record.generation, last))? else {
            return Ok(false);
        };
        let layer = self.store.known(last)?;
        self.store.is_as_captured(&place.upper(record.generation), &manifest, &layer)
    }

    /// Whether nothing was written since the generation was made.
    fn is_bare(&self, record: &Record) -> LayerResult<bool> {
        let Ok(overlays) = self.overlays(record, record.generation, None, record.top.as_ref())
        else {
            return Ok(false);
        };
        let places: Vec<&Path> = overlays.iter().map(|overlay| overlay.at.as_path()).collect();
        for OverlaySpec { at, upper, lowers, .. } in &overlays {
            let Some(like) = lowers.first() else { return Ok(false) };
            // Only those that lie right here: of one further down, what is between is not known.
            let within: Vec<&Path> =
                places.iter().filter_map(|place| place.strip_prefix(at).ok()).collect();
            if !self.store.is_bare(upper, like, &within)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What was written becomes the layer itself where that is possible and faster, or a copy of it does.
    fn seal_busy(
        &self,
        lock: &OwnedFd,
        record: Record,
        snapshot: SnapshotId,
        live: Option<(&mut Still<'_>, NextRoot)>,
    ) -> DriverResult<SealedLayers> {
        if let Some((still, next)) = live
            && let Ok(sealed) = self.seal_live(&record, snapshot, still, next)?
        {
            return Ok(sealed);
        }
        let (layer, own) = self.capture(lock, record, snapshot)?;
        let chain = self.store.known_chain(layer.name());
        Ok((chain.map_err(layer_error("read the layers"))?, own))
    }

    /// In which nothing is left half-way while anybody can write.
    fn seal_live(
        &self,
        record: &Record,
        snapshot: SnapshotId,
        still: &mut Still<'_>,
        next: NextRoot,
    ) -> DriverResult<Result<SealedLayers, String>> {
        let rotated = self.rotate_live(record, snapshot, still, next);
        let sealed = rotated.and_then(|rotated| match rotated {
            Ok(rotated) => self.begin_generation(record.clone(), snapshot, rotated).map(Ok),
            Err(why) => Ok(Err(why)),
        });
        // What was begun is brought to an end, or nobody goes on with it: what is written to a root that no record tells of
        // would be lost.
        if sealed.is_err() && self.record(record.id).and_then(|record| self.finish(record)).is_err()
        {
            still.end();
        }
        // If it fails, they are let go of a moment later all the same.
        let _ = still.unbind();
        sealed
    }

    /// What the next layer lies on.
    pub(super) fn lies_on(&self, record: &Record) -> Option<LayerName> {
        record.flat.clone().or_else(|| record.top.clone())
    }

    /// What was written becomes the layer itself. Answers with it and all that it lies on, and with the layers that only
    /// the sandbox knew until now.
    fn rotate(
        &self,
        lock: &OwnedFd,
        record: Record,
        snapshot: SnapshotId,
    ) -> DriverResult<SealedLayers> {
        let worker = record.is_alive().then(|| self.stand_by(record.isolation)).transpose()?;
        let upper = self.place(record.id).upper(record.generation);
        let top = self.lies_on(&record);
        let mut chain = self.chain(top.as_ref())?;
        let promised = self
            .store
            .promise_upper(LayerName::of(snapshot), top, &upper, COUNTED_MAX)
            .map_err(layer_error("prepare a layer"))?;
        match worker {
            Some(worker) => self.switch(lock, worker, &record, snapshot, &chain)?,
            // Where to look for what was written, if we die before the record is right again.
            None => {
                let sealing = Some(Sealing { snapshot, root_device: 0 });
                self.write(&Record { sealing, ..record.clone() })?;
            }
        }
        chain.insert(0, promised.keep(&upper).map_err(layer_error("keep a layer"))?);
        self.begin_generation(record, snapshot, Rotated { chain, captured: None, live: false })
    }

    /// What was written is a layer, and the sandbox writes elsewhere.
    fn begin_generation(
        &self,
        record: Record,
        snapshot: SnapshotId,
        Rotated { chain, captured, live }: Rotated,
    ) -> DriverResult<SealedLayers> {
        let next = record.generation + 1;
        let own = record.own.clone();
        let rotated = if live { Some(record.launches) } else { record.rotated };
        let old = self.place(record.id).generation(record.generation);
        let record = Record {
            generation: next,
            top: chain.first().map(|layer| layer.name().clone()),
            flat: None,
            own: Vec::new(),
            captured,
            rotated,
            snapshot: Some(snapshot),
            sealed: Some(Sealed {
                snapshot,
                before: record.snapshot,
                own_before: own.clone(),
                stands_on_it: true,
            }),
            sealing: None,
            ..record
        };
        let is_alive = record.is_alive();
        if !is_alive {
            self.make_generation(&self.overlays_on(&record, next, None, &chain))?;
        }
        self.write(&record)?;
        let thrown = match is_alive {
            // Whoever changed the root empties the trash when we are gone.
            true => self.store.throw_away_later(&old),
            false => self.store.throw_away(&old),
        };
        thrown.map_err(layer_error("remove a work directory"))?;
        Ok((chain, own))
    }

    pub(super) fn switch_spec(&self, record: &Record, overlays: Vec<OverlaySpec>) -> SwitchSpec {
        SwitchSpec {
            isolation: record.isolation,
            data: self.root.clone(),
            marks: self.store.marks(),
            pid: record.init.as_ref().map_or(0, |init| init.pid),
            overlays,
        }
    }

    /// Whoever will change the root.
    pub(super) fn stand_by(&self, isolation: Isolation) -> DriverResult<Worker> {
        let store = Some(self.root.join("store"));
        let ready =
            Readiness { isolation, own_network: false, images: Vec::new(), store, perhaps: false };
        self.client.stand_by(ready).map_err(launch_error("change the sandbox's root"))
    }

    /// The sandbox writes to the next generation from now on.
    fn switch(
        &self,
        lock: &OwnedFd,
        worker: Worker,
        record: &Record,
        snapshot: SnapshotId,
        chain: &[Layer],
    ) -> DriverResult<()> {
        let place = self.place(record.id);
        let (upper, next) = (place.upper(record.generation), record.generation + 1);
        self.clear_generation(&place, next)?;
        let overlays = self.overlays_on(record, next, Some(&upper), chain);
        self.make_generation(&overlays)?;
        let root_device = self.root_device(record)?;
        let sealing = Some(Sealing { snapshot, root_device });
        self.write(&Record { sealing, ..record.clone() })?;
        let spec = self.switch_spec(record, overlays);
        let namespaces = self.namespaces(record)?;
        let fds: Vec<_> = [lock].into_iter().chain(&namespaces).map(|fd| fd.as_fd()).collect();
        let switched = worker.ask(&Work::Switch(spec), &fds);
        // Only what is seen counts: whoever was asked may have died between the deed and the answer, and what was
        // written must not become a layer while anybody still writes there.
        match self.root_device(record) {
            Ok(now) if now != root_device => return Ok(()),
            Ok(_) | Err(DriverError::NotRunning { .. }) => {}
            // Whoever comes next finds out: the record says what was begun.
            Err(err) => return Err(err),
        }
        let _ = self.store.throw_away(&place.generation(next));
        self.write(record)?;
        let nothing = || Failure::new("look at it", &io::Error::other("it is the one before"));
        Err(launch_error("change the sandbox's root")(switched.err().unwrap_or_else(nothing)))
    }

    /// Tells on which root init stands.
    pub(super) fn root_device(&self, record: &Record) -> DriverResult<u64> {
        let pid = record.init.as_ref().map_or(0, |init| init.pid);
        match rustix::fs::stat(format!("/proc/{pid}/root/")) {
            Ok(stat) => Ok(stat.st_dev),
            // Only init itself may look there, and one that is frozen cannot.
            Err(_) if record.freezer().is_none() => Ok(self.ask_init(record)?.0),
            // One that is on its way out has let go of its root already.
            Err(_) if record.init.as_ref().is_none_or(ends_soon) => {
                let state = SandboxState::Stopped;
                Err(DriverError::NotRunning { id: record.id, state })
            }
            Err(err) => Err(failed("look at the sandbox's root (it takes CAP_SYS_PTRACE)")(
                io::Error::from(err),
            )),
        }
    }

    /// A seal that was cut short: either the root was not changed yet, and nothing happened; or
    /// what was written is below the new root, and becomes a layer that only the sandbox knows.
    pub(super) fn finish_seal(
        &self,
        mut record: Record,
        sealing: &Sealing,
    ) -> DriverResult<Record> {
        let place = self.place(record.id);
        let next = record.generation + 1;
        let name = LayerName::of(sealing.snapshot);
        let upper = place.upper(record.generation);
        let is_alive = record.is_alive();
        // What was moved is the layer, also when nobody lives any more who stands on it.
        let moved = !upper.is_dir() && self.store.known(&name).is_ok();
        let device = match is_alive && !moved {
            true => self.root_device(&record),
            false => Ok(sealing.root_device),
        };
        if matches!(device, Err(DriverError::NotRunning { .. })) {
            // It ended while we looked.
            return self.finish_seal(record, sealing);
        }
        if !moved && device? == sealing.root_device {
            // Of a sandbox that died meanwhile nothing was written there: it stood still.
            let gone = self.store.throw_away(&place.generation(next));
            gone.map_err(layer_error("remove a work directory"))?;
            self.write(&record)?;
            return Ok(record);
        }
        let top = self.lies_on(&record);
        if !moved {
            // Whoever began may have promised the layer, and died before it was kept.
            self.store.sweep().map_err(layer_error("clean up after a seal"))?;
            // A process that it was just starting when it died may still hold the promise for a moment.
            // The sandbox is locked, and this is its own seal: nobody else can mean to keep it. While what was
            // written is where it was, the promise holds nothing.
            if upper.is_dir() {
                self.store.discard(name.as_str()).map_err(layer_error("clean up after a seal"))?;
            }
            let kept = self.store.commit_upper(name.clone(), top, &upper, false);
            kept.map_err(layer_error("keep a layer"))?;
        }
        let old = place.generation(record.generation);
        record.generation = next;
        record.top = Some(name.clone());
        (record.flat, record.captured, record.sealed) = (None, None, None);
        record.own.insert(0, name);
        if is_alive {
            // Programs may run in it, if it was not idle.
            record.rotated = Some(record.launches);
        } else {
            let overlays = self.overlays(&record, next, None, record.top.as_ref())?;
            self.make_generation(&overlays)?;
        }
        self.write(&record)?;
        self.store.throw_away(&old).map_err(layer_error("remove a work directory"))?;
        Ok(record)
    }

    /// Takes back the last seal of whichever sandbox was sealed as `snapshot`.
    pub(super) fn unseal(&self, snapshot: SnapshotId) -> DriverResult<()> {
        // First: no sandbox ever stands on it.
        self.forget_image(snapshot)?;
        for id in self.list()? {
            // One that cannot be read keeps nobody from taking back another's.
            let Ok(Some(record)) = self.find(id) else { continue };
            if !is_about(&record, snapshot) {
                continue;
            }
            let Some(_lock) = self.try_lock(id)? else { continue };
            let Some(record) = self.find(id)? else { continue };
            let mut record = self.finish(record)?;
            let Some(sealed) = record.sealed.take_if(|sealed| sealed.snapshot == snapshot) else {
                // It is the sandbox's own already.
                return Ok(());
            };
            record.snapshot = sealed.before;
            // It may have a flat one since: that stays.
            if sealed.stands_on_it {
                record.own.push(LayerName::of(snapshot));
            }
            record.own.extend(sealed.own_before);
            if sealed.stands_on_it {
                return self.write(&record);
            }
            record.captured = None;
            self.write(&record)?;
        }
        // One that came from elsewhere may have brought two.
        for layer in [LayerName::of(snapshot), LayerName::pin(snapshot)] {
            self.store.discard(layer.as_str()).map_err(layer_error("take back a snapshot"))?;
        }
        self.sweep_later(None);
        Ok(())
    }
}

pub(super) fn counted(mut artifact: Artifact, chain: &[Layer], sizes: &[LayerSize]) -> Artifact {
    for piece in &mut artifact.pieces {
        let mut sized = chain.iter().zip(sizes);
        let known = sized.find(|(layer, _)| layer.name().as_str() == piece.name.0);
        piece.bytes = known.map_or(piece.bytes, |(_, size)| size.bytes);
    }
    artifact.own_bytes = sizes.first().map_or(0, |size| size.bytes);
    artifact.total_bytes = sizes.iter().map(|size| size.bytes).sum();
    artifact.file_count = sizes.iter().map(|size| size.files).sum();
    artifact.counted = true;
    artifact
}

fn is_about(record: &Record, snapshot: SnapshotId) -> bool {
    record.sealed.as_ref().is_some_and(|sealed| sealed.snapshot == snapshot)
        || record.sealing.as_ref().is_some_and(|sealing| sealing.snapshot == snapshot)
        || record.own.contains(&LayerName::of(snapshot))
}

pub(super) fn piece(layer: &Layer) -> Piece {
    let name = |name: &LayerName| PieceName(name.to_string());
    let record = layer.record();
    Piece {
        name: name(layer.name()),
        over: record.over.as_ref().map(name),
        bytes: record.size.unwrap_or_default().bytes,
    }
}
