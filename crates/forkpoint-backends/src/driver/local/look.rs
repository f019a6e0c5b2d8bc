//! Looking into snapshots and sandboxes from outside, through their layers.
//!
//! Nothing is mounted and nothing runs inside, so it works for what is stopped as well. What is shown
//! is what the kernel would show on the sandbox's root, without `/dev`, `/proc` and the like.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use forkpoint_core::{
    driver::{DriverError, DriverResult, FileDiff, FileState},
    id::SandboxId,
    path::SandboxPath,
};

use super::{
    DRIVER,
    host::{Host, failed, io_error, layer_error},
    record::Record,
    template::Bottom,
    workspace::bottoms,
};
use crate::{
    driver::view::{ViewTree, change},
    layer::{DiffSpec, Layer, LayerError, LayerName, LayerView, ViewMount, diff},
};

/// How often a comparison is made again because the sandbox was rolled back meanwhile.
const TRIES: usize = 5;

/// Where the files of a state are: what lies at the bottom, and the trees on it, the top first.
struct Source {
    bottoms: Vec<Bottom>,
    trees: Vec<PathBuf>,
    held: Held,
}

/// What may be taken away while somebody looks at it: then it looks like files that went away.
#[derive(Clone, Debug)]
pub(super) enum Held {
    Nothing,
    Snapshot(LayerName),
    Generation(SandboxId, u32),
}

impl Host {
    pub(super) fn tree(&self, of: &FileState) -> DriverResult<ViewTree> {
        Ok(ViewTree::new(DRIVER, self.view(of)?.0))
    }

    pub(super) fn diff(
        &self,
        from: &FileState,
        to: &FileState,
        under: &[SandboxPath],
    ) -> DriverResult<FileDiff> {
        let under: Vec<PathBuf> = under.iter().map(|path| path.as_path().to_owned()).collect();
        for _ in 0..TRIES {
            let ((from, from_held), (to, to_held)) = (self.view(from)?, self.view(to)?);
            let found = diff(&DiffSpec { from: &from, to: &to, under: &under });
            if self.is_there(&from_held)? && self.is_there(&to_held)? {
                let found = found.map_err(compare_error)?;
                let changes = found.changes.into_iter().map(change).collect();
                return Ok(FileDiff { changes, too_deep: found.too_deep });
            }
        }
        let reason = "the sandbox was sealed or rolled back again and again meanwhile";
        Err(failed("compare files")(reason.to_owned()))
    }

    pub(super) fn is_there(&self, held: &Held) -> DriverResult<bool> {
        match held {
            Held::Nothing => Ok(true),
            Held::Snapshot(layer) => {
                self.store.layer(layer).map_err(layer_error("read a layer"))?;
                Ok(true)
            }
            Held::Generation(id, generation) => Ok(self.record(*id)?.generation == *generation),
        }
    }

    pub(super) fn view(&self, of: &FileState) -> DriverResult<(LayerView, Held)> {
        let open = |source: Source| {
            let mount = |bottom: &Bottom| ViewMount::new(&bottom.at, &source.trees, &bottom.lowers);
            let mounts: Vec<ViewMount> = source.bottoms.iter().map(mount).collect();
            let view = LayerView::open(&mounts, self.store.marks());
            Ok((view.map_err(layer_error("look at files"))?, source.held))
        };
        match of {
            FileState::Sandbox(id) => {
                self.with_sandbox(*id, |record| open(self.sandbox_source(record)?))
            }
            FileState::Snapshot(_) | FileState::Beginning { .. } => open(self.source(of)?),
        }
    }

    fn source(&self, of: &FileState) -> DriverResult<Source> {
        match of {
            FileState::Snapshot(artifact) => {
                let data = self.read_artifact(artifact)?;
                let trees = self.trees(Some(&data.layer))?;
                let bottoms = bottoms(data.known_base()?, &data.workspaces);
                Ok(Source { bottoms, trees, held: Held::Snapshot(data.layer) })
            }
            FileState::Sandbox(id) => self.sandbox_source(&self.record(*id)?),
            FileState::Beginning { of, .. } => {
                let mut source = self.source(of)?;
                // What was copied from the host was there before anything was written.
                source.trees.retain(|tree| is_pin(tree));
                Ok(Source { held: Held::Nothing, ..source })
            }
        }
    }

    fn sandbox_source(&self, record: &Record) -> DriverResult<Source> {
        let mut trees = vec![self.place(record.id).upper(record.generation)];
        trees.extend(self.trees(record.top.as_ref())?);
        let held = Held::Generation(record.id, record.generation);
        Ok(Source { bottoms: record.bottoms(), trees, held })
    }

    fn trees(&self, top: Option<&LayerName>) -> DriverResult<Vec<PathBuf>> {
        let Some(top) = top else { return Ok(Vec::new()) };
        let chain = self.store.chain(top).map_err(layer_error("read the layers"))?;
        Ok(chain.iter().map(Layer::tree_path).collect())
    }

    /// While nobody seals it or rolls it back: what is opened meanwhile belongs together, and stays
    /// what it is.
    pub(super) fn with_sandbox<T>(
        &self,
        id: SandboxId,
        work: impl FnOnce(&Record) -> DriverResult<T>,
    ) -> DriverResult<T> {
        let place = self.place(id);
        loop {
            let lock = place.lock_shared().map_err(io_error("lock", place.directory()))?;
            let lock = lock.ok_or(DriverError::SandboxMissing { driver: DRIVER, id })?;
            let record = self.record(id)?;
            if record.sealing.is_none() && !record.undoing {
                return work(&record);
            }
            // Whoever sealed it or brought it back died on the way.
            drop(lock);
            let _lock = self.lock(id)?;
            self.finish(self.record(id)?)?;
        }
    }
}

fn compare_error(err: LayerError) -> DriverError {
    match err {
        LayerError::Unreadable { path } => {
            DriverError::Unreadable { path: Path::new("/").join(path) }
        }
        err => failed("compare files")(err),
    }
}

fn is_pin(tree: &Path) -> bool {
    let name = tree.parent().and_then(Path::file_name).and_then(OsStr::to_str);
    name.and_then(|name| name.parse::<LayerName>().ok()).is_some_and(|name| name.is_pin())
}
