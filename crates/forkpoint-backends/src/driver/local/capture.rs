//! Copying what a busy sandbox changed, and merging what has become a long chain.
//!
//! Without root this is done as root of the sandbox: there may be files that their owner may not
//! read.

use std::{
    ffi::OsString,
    fs,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    path::PathBuf,
};

use forkpoint_core::{
    driver::DriverResult,
    id::{SandboxId, SnapshotId},
};
use serde::{Deserialize, Serialize};

use super::{
    host::{Host, failed, launch_error, layer_error},
    init::{Reply, Request},
    launch::Isolation,
    record::{Record, Sealed},
    sandbox::odd_reply,
    spawner::Order,
    wire,
};
use crate::layer::{Below, CaptureSpec, Layer, LayerName, LayerResult, LayerStore, Manifest};

/// A mount looks at each layer, so chains longer than this are merged.
pub(super) const CHAIN_MAX: usize = 40;

impl Host {
    /// What changed is copied, over the last copy if there is one. Answers also with the layers that
    /// only the sandbox knew until now.
    pub(super) fn capture(
        &self,
        lock: &OwnedFd,
        record: Record,
        snapshot: SnapshotId,
    ) -> DriverResult<(Layer, Vec<LayerName>)> {
        let place = self.place(record.id);
        let (generation, name) = (record.generation, LayerName::of(snapshot));
        let path = place.manifest(generation, &name);
        let last = record.captured.clone().filter(|last| self.can_lie_on(last));
        let last = last.map(|last| (place.manifest(generation, &last), last));
        // A manifest that cannot be read costs a full copy, and nothing else.
        let last = last.filter(|(path, _)| matches!(Manifest::load(path), Ok(Some(_))));
        let (since, over) = match last {
            Some((path, last)) => (Some(path), Some(last)),
            None => (None, record.top.clone()),
        };
        let work = CaptureWork {
            layer: name,
            over,
            upper: place.upper(generation),
            since,
            manifest: path.clone(),
            mapped: self.mapped_files(&record)?,
            // Whoever makes them later must be able to give them to their owners, as only root is.
            pack: record.isolation != Isolation::Rootless,
        };
        let layer = self.copy_changes(lock, &record, work)?;
        // The sandbox may lie on the flat one next time: that stays its own until then.
        let (kept, given): (Vec<_>, Vec<_>) =
            record.own.iter().cloned().partition(|own| record.flat.as_ref() == Some(own));
        let written = self.write(&Record {
            captured: Some(layer.name().clone()),
            snapshot: Some(snapshot),
            sealed: Some(Sealed {
                snapshot,
                before: record.snapshot,
                own_before: given.clone(),
                stands_on_it: false,
            }),
            own: kept,
            ..record
        });
        match written {
            Ok(()) => place.keep_manifest(generation, layer.name()),
            Err(_) => {
                let _ = fs::remove_file(&path);
                self.discard_layers([layer.name()]);
            }
        }
        written.map(|()| (layer, given))
    }

    fn copy_changes(
        &self,
        lock: &OwnedFd,
        record: &Record,
        work: CaptureWork,
    ) -> DriverResult<Layer> {
        let layer = work.layer.clone();
        self.on_layers(lock, record, LayerWork::Capture(work))?;
        self.store.known(&layer).map_err(layer_error("read a layer"))
    }

    /// By ourselves, or without root by a copy of the spawner as root of the sandbox.
    fn on_layers(&self, lock: &OwnedFd, record: &Record, work: LayerWork) -> DriverResult<()> {
        if record.isolation != Isolation::Rootless || !record.is_alive() {
            return work.run(&self.store).map_err(layer_error("copy what changed"));
        }
        let namespaces = self.namespaces(record)?;
        let fds: Vec<_> = [lock].into_iter().chain(&namespaces).map(|fd| fd.as_fd()).collect();
        let order = Order::Layers { store: self.root.join("store"), work: Box::new(work) };
        self.client.order(&order, &fds).map(drop).map_err(launch_error("copy what changed"))
    }

    fn can_lie_on(&self, layer: &LayerName) -> bool {
        self.store.known_chain(layer).is_ok_and(|chain| chain.len() < CHAIN_MAX)
    }

    /// Has somebody who outlives us make the small files of a snapshot, while everything runs again.
    pub(super) fn unpack_later(&self, snapshot: SnapshotId) {
        let layer = LayerName::of(snapshot);
        if self.store.known(&layer).is_ok_and(|layer| layer.is_packed()) {
            // Else it is done by whoever needs it first.
            let _ = self.client.tell(&Order::Unpack { store: self.root.join("store"), layer }, &[]);
        }
    }

    /// Merges the chain that the sandbox lies on, for the next seal to lie on. The sandbox may run.
    pub(super) fn shorten(&self, lock: &OwnedFd, id: SandboxId) -> DriverResult<()> {
        let mut record = self.record(id)?;
        let (Some(top), None) = (record.top.clone(), &record.flat) else { return Ok(()) };
        let Some(snapshot) = record.snapshot else { return Ok(()) };
        if self.can_lie_on(&top) {
            return Ok(());
        }
        let name = LayerName::tagged(snapshot, "flat").map_err(layer_error("name a layer"))?;
        self.on_layers(lock, &record, LayerWork::Merge { top, into: name.clone() })?;
        record.flat = Some(name.clone());
        record.own.insert(0, name);
        self.write(&record)
    }

    /// Files that processes of the sandbox have mapped to write, from its root.
    pub(super) fn mapped_files(&self, record: &Record) -> DriverResult<Vec<PathBuf>> {
        let Some(cgroup) = record.freezer() else {
            return match self.ask(record, &Request::Mapped)?.0 {
                Reply::Paths(paths) => {
                    Ok(paths.into_iter().map(|path| OsString::from(path).into()).collect())
                }
                _ => Err(odd_reply()),
            };
        };
        let pids = cgroup.pids().map_err(failed("list the sandbox's processes"))?;
        let paths = pids.into_iter().flat_map(|pid| mapped_by(&format!("/proc/{pid}/maps")));
        let bottoms = record.bottoms();
        let places: Vec<_> = bottoms.iter().map(|bottom| bottom.at.as_path()).collect();
        // From outside, a name is told from the mount that it is on: it may be any of them.
        let from_root = |path: PathBuf| places.iter().map(|at| at.join(&path)).collect::<Vec<_>>();
        Ok(paths.flat_map(from_root).collect())
    }
}

/// The files that a `/proc/PID/maps` tells to be shared, from the root. What may not be written to at
/// this moment may have been written to before.
pub(in crate::driver) fn mapped_by(maps: &str) -> Vec<PathBuf> {
    let maps = fs::read(maps).unwrap_or_default();
    maps.split(|byte| *byte == b'\n').filter_map(shared_file).collect()
}

/// Of a line such as `7f54d000-7f54e000 rw-s 00000000 00:2b 1234    /name of a file`; without the
/// slash.
fn shared_file(line: &[u8]) -> Option<PathBuf> {
    let mut rest = line;
    let mut field = || {
        let end = rest.iter().position(|byte| *byte == b' ')?;
        let (field, after) = rest.split_at(end);
        rest = after.trim_ascii_start();
        Some(field)
    };
    field()?;
    let is_shared = field()?.ends_with(b"s");
    for _offset_device_inode in 0..3 {
        field()?;
    }
    let name = rest.strip_prefix(b"/").filter(|_| is_shared)?;
    // The one byte that is told in another way.
    let mut parts = name.split(|byte| *byte == b'\\');
    let mut path = parts.next()?.to_vec();
    for part in parts {
        match part.strip_prefix(b"012") {
            Some(after) => path.extend([b"\n", after].concat()),
            None => path.extend([b"\\", part].concat()),
        }
    }
    Some(OsString::from_vec(path).into())
}

/// What is done to layers, by whoever may read them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum LayerWork {
    Capture(CaptureWork),
    Merge { top: LayerName, into: LayerName },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CaptureWork {
    layer: LayerName,
    over: Option<LayerName>,
    upper: PathBuf,
    /// The manifest of the last capture.
    since: Option<PathBuf>,
    /// Where the new one goes.
    manifest: PathBuf,
    #[serde(with = "wire::paths")]
    mapped: Vec<PathBuf>,
    pack: bool,
}

impl LayerWork {
    pub(super) fn run(&self, store: &LayerStore) -> LayerResult<()> {
        match self {
            Self::Capture(work) => work.run(store),
            Self::Merge { top, into } => {
                let mut chain = store.chain(top)?;
                // What was copied from the host stays apart: what changed is told by comparing with it.
                let pin = chain.pop_if(|bottom| bottom.name().is_pin());
                let mut stage = store.stage(into.clone(), pin.map(|pin| pin.name().clone()))?;
                stage.flatten(&chain, Below::Something)?;
                stage.commit(false).map(drop)
            }
        }
    }
}

impl CaptureWork {
    fn run(&self, store: &LayerStore) -> LayerResult<()> {
        let since = match &self.since {
            Some(path) => Manifest::load(path)?,
            None => None,
        };
        let mut stage = store.stage(self.layer.clone(), self.over.clone())?;
        let spec = CaptureSpec {
            upper: &self.upper,
            since: since.as_ref(),
            mapped: &self.mapped,
            pack: self.pack,
        };
        let manifest = stage.capture(&spec)?;
        // Before the layer is there: a manifest without its layer is of no use, and the reverse is
        // a layer that nobody asks for.
        manifest.save(&self.manifest)?;
        stage.commit(false).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_names_a_file_that_is_shared() {
        let name = |line: &str| shared_file(line.as_bytes());
        let start = "7f54d000-7f54e000 rw-s 00000000 00:2b 1234";
        let table = [
            (format!("{start}                     /a b"), Some("a b")),
            (format!("{start} /srv/new\\012line\\x"), Some("srv/new\nline\\x")),
            (format!("{}  /read", start.replace("rw-s", "r--s")), Some("read")),
            (format!("{}  /private", start.replace("rw-s", "rw-p")), None),
            (format!("{start} [stack]"), None),
            (start.to_owned(), None),
            (String::new(), None),
        ];
        for (line, expected) in table {
            assert_eq!(name(&line), expected.map(PathBuf::from), "{line}");
        }
    }
}
