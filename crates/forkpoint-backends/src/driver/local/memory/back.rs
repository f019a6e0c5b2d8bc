//! Back to a full snapshot in place: the processes stay, and what changed in memory and files goes back.
//!
//! It is tried where the sandbox is still what became of that snapshot; where it cannot be done, nothing was touched, or
//! the processes have ended: then the sandbox is made anew. Whoever dies at it takes the processes along, and what is
//! left of the files is thrown away by [`Host::finish`].

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use forkpoint_checkpoint::{
    self as checkpoint, Chain, Files,
    image::{FileKind, Mapping, MappingKind, Process, Snapshot},
    restore::check_machine,
};
use forkpoint_core::{
    driver::{Artifact, DriverResult, FileState},
    id::SnapshotId,
    spec::SandboxSpec,
};
use rustix::fs::{Mode, OFlags, open};

use super::{refusal, since::Keeping, spec as how, tree};
use crate::{
    driver::local::{
        cgroup::with_causes,
        host::{ArtifactData, Host, layer_error},
        launch::Isolation,
        prepare::boot_id,
        record::{Place, Record},
        root::{BOOT_ID, say_anew},
        spawner::{FIRST_OWNER, as_sandbox_root},
        sys,
        workspace::now,
    },
    layer::{Back, BackSpec, CaptureSpec, LayerView, Manifest, describe_upper},
};

impl Host {
    /// The sandbox is locked.
    pub(in crate::driver::local) fn back_in_place(
        &self,
        record: Option<&Record>,
        spec: &SandboxSpec,
        to: &Artifact,
        data: &ArtifactData,
    ) -> DriverResult<Result<Record, Anew>> {
        if data.memory.is_empty() {
            return Ok(Err(Anew(None)));
        }
        let Some(record) = record else { return anew("nothing was left of it") };
        if let Some(why) = moved_on(record, spec, data, to) {
            return anew(why);
        }
        let target = match self.target(to, data)? {
            Ok(target) => target,
            Err(why) => return anew(why),
        };
        let Target { chain, view, .. } = &*target;
        let Some(mut since) = self.since_image(record, chain.top()) else {
            return anew("nobody noted what was written to its memory since, and it has much");
        };
        let files = LiveFiles { host: self, record, view, back: None, maps_files: true };
        match since.rollback(&tree(record), chain, &how(record), files) {
            Ok(_) => {}
            Err(checkpoint::Error::NotInPlace { why }) => return anew(why),
            Err(err) => return anew(with_causes(&err)),
        }
        let record = Record { undoing: false, ..record.clone() };
        // If it is lost, the next one reads all of the memory.
        let kept = self.begin_to_keep(&record, since, to.snapshot, chain.top().id);
        self.write(&record)?;
        let _ = kept.and_then(Keeping::wait);
        Ok(Ok(record))
    }

    /// What is opened once for rollbacks that follow each other; or why its memory cannot be read, or is none for this
    /// machine.
    fn target(
        &self,
        to: &Artifact,
        data: &ArtifactData,
    ) -> DriverResult<Result<Arc<Target>, String>> {
        let mut last = self.last_gone_back_to.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.take_if(|last| last.snapshot != to.snapshot || !last.chain.is_as_opened());
        if let Some(last) = &*last {
            return Ok(Ok(Arc::clone(last)));
        }
        let chain = match Chain::open(self.memory_images(data)) {
            Ok(chain) => chain,
            Err(err) => return Ok(Err(with_causes(&err))),
        };
        if let Err(err) = check_machine(&chain.top().snapshot.machine) {
            return Ok(Err(with_causes(&err)));
        }
        let (view, _) = self.view(&FileState::Snapshot(to.clone()))?;
        let target = Arc::new(Target { snapshot: to.snapshot, chain, view });
        *last = Some(Arc::clone(&target));
        Ok(Ok(target))
    }

    /// A sandbox that was left on its way back has the files of the snapshot, and nothing runs in it.
    pub(in crate::driver::local) fn finish_undoing(
        &self,
        mut record: Record,
    ) -> DriverResult<Record> {
        self.end_completely(record.init.take().as_ref(), record.cgroup.take().as_ref());
        let place = self.place(record.id);
        let old = place.generation(record.generation);
        record.generation += 1;
        record.top = record.captured.take().or(record.top);
        (record.flat, record.undoing, record.held) = (None, false, false);
        let own = std::mem::take(&mut record.own);
        self.clear_generation(&place, record.generation)?;
        let overlays = self.overlays(&record, record.generation, None, record.top.as_ref())?;
        self.make_generation(&overlays)?;
        self.write(&record)?;
        self.store.throw_away(&old).map_err(layer_error("remove what was left half-way"))?;
        self.discard_layers(&own);
        Ok(record)
    }
}

/// It must be made anew; and why, where one would expect otherwise.
#[derive(Debug)]
pub(in crate::driver::local) struct Anew(pub(in crate::driver::local) Option<String>);

fn anew<T>(why: impl Into<String>) -> DriverResult<Result<T, Anew>> {
    Ok(Err(Anew(Some(why.into()))))
}

/// What a rollback gives.
#[derive(Debug)]
pub(in crate::driver::local) struct RolledBack {
    pub(in crate::driver::local) record: Record,
    /// For [`Host::finish`].
    pub(in crate::driver::local) lock: OwnedFd,
    pub(in crate::driver::local) made_anew: Option<String>,
}

/// Why it is not known what changed since a full snapshot, where it is not.
fn moved_on(
    record: &Record,
    spec: &SandboxSpec,
    data: &ArtifactData,
    to: &Artifact,
) -> Option<&'static str> {
    let files = record.captured.as_ref().or(record.top.as_ref());
    let reasons = [
        (!record.is_alive(), "nothing ran in it"),
        (record.snapshot != Some(to.snapshot), "it did not stand on this snapshot"),
        (files != Some(&data.layer), "its files did not stand on this snapshot"),
        (record.base != data.base, "its template may be another"),
        (record.spec != *spec, "its settings are others"),
        (!record.spec.workspaces.is_empty(), "it has workspaces, which may have changed"),
        (record.held || record.paused, "it was paused"),
    ];
    let found = reasons.into_iter().find(|(is_so, _)| *is_so).map(|(_, why)| why);
    found.or_else(|| refusal(record))
}

/// A snapshot that was gone back to in place.
#[derive(Debug)]
struct Target {
    snapshot: SnapshotId,
    chain: Chain,
    view: LayerView,
}

/// Who goes back once goes back again.
#[derive(Debug, Default)]
pub(in crate::driver::local) struct LastGoneBackTo(Mutex<Option<Arc<Target>>>);

impl LastGoneBackTo {
    /// One of its images goes: what is open takes room on the disk.
    pub(in crate::driver::local) fn forget(&self, image: &Path) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.take_if(|last| last.chain.images().iter().any(|kept| kept.path == image));
    }
}

/// The files of a sandbox in which nothing runs for a moment.
struct LiveFiles<'a> {
    host: &'a Host,
    record: &'a Record,
    view: &'a LayerView,
    back: Option<Back>,
    /// Whether anybody will have files mapped that others see: nobody has others mapped than the image tells of.
    maps_files: bool,
}

impl LiveFiles<'_> {
    fn place(&self) -> Place {
        self.host.place(self.record.id)
    }

    fn was(&self) -> io::Result<Option<Manifest>> {
        let Some(captured) = &self.record.captured else { return Ok(None) };
        let path = self.place().manifest(self.record.generation, captured);
        let manifest = Manifest::load(&path).map_err(io::Error::other)?;
        manifest.map(Some).ok_or_else(|| io::Error::other("it is not known what the files were"))
    }

    /// What the files are now is what the snapshot has.
    fn describe(&self) -> io::Result<()> {
        let Some(captured) = &self.record.captured else { return Ok(()) };
        let mapped = match self.maps_files {
            true => self.host.mapped_files(self.record).map_err(io::Error::other)?,
            false => Vec::new(),
        };
        let upper = self.place().upper(self.record.generation);
        let spec = CaptureSpec { mapped: &mapped, ..CaptureSpec::new(&upper) };
        let state = describe_upper(&spec, self.host.store.marks()).map_err(io::Error::other)?;
        let path = self.place().manifest(self.record.generation, captured);
        state.manifest.save(&path).map_err(io::Error::other)
    }

    /// Where the sandbox's processes look for names.
    fn root(&self) -> io::Result<OwnedFd> {
        let init = self.record.init.as_ref().map_or(0, |init| init.pid);
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(open(format!("/proc/{init}/root"), directory, Mode::empty())?)
    }

    fn write(&self, root: &OwnedFd, back: &Back) -> io::Result<()> {
        let places: Vec<_> = self.record.bottoms().into_iter().map(|bottom| bottom.at).collect();
        let run = |first| back.run(root.as_fd(), &places, first).map_err(io::Error::other);
        if self.record.isolation != Isolation::Mapped {
            return run(0);
        }
        // Who one is for files belongs to a thread.
        let work = || {
            sys::keep_capabilities()?;
            as_sandbox_root(|| run(FIRST_OWNER))
        };
        std::thread::scope(|scope| scope.spawn(work).join())
            .unwrap_or_else(|_| Err(io::Error::other("it was not finished")))
    }
}

impl Files for LiveFiles<'_> {
    fn look(&mut self, snapshot: &Snapshot) -> io::Result<Option<String>> {
        let alive = snapshot.processes.iter().filter_map(Process::alive);
        let is_shared = |mapping: &Mapping| matches!(mapping.kind, MappingKind::Shared { .. });
        self.maps_files = alive.flat_map(|alive| &alive.mappings).any(is_shared);
        let was = self.was()?;
        let spec = BackSpec {
            upper: &self.place().upper(self.record.generation),
            was: was.as_ref(),
            view: self.view,
            marks: self.host.store.marks(),
        };
        let back = match Back::plan(&spec).map_err(io::Error::other)? {
            Ok(back) => back,
            Err(why) => return Ok(Some(why.to_owned())),
        };
        let watches = |kind: &FileKind| matches!(kind, FileKind::Watch { .. });
        if !back.is_empty() && snapshot.files.iter().any(|file| watches(&file.kind)) {
            return Ok(Some("a program watches files, and would hear of ours".to_owned()));
        }
        self.back = Some(back);
        Ok(None)
    }

    fn begin(&mut self) -> io::Result<()> {
        let undoing = Record { undoing: true, ..self.record.clone() };
        self.host.write(&undoing).map_err(io::Error::other)
    }

    fn put_back(&mut self) -> io::Result<()> {
        let root = self.root()?;
        let time = boot_id(self.record, &now().to_string());
        // By this, programs notice. A sandbox without it works.
        let _ = say_anew(root.as_fd(), BOOT_ID, &time);
        let Some(back) = self.back.take().filter(|back| !back.is_empty()) else { return Ok(()) };
        self.write(&root, &back)?;
        self.describe()
    }
}
