//! Workspaces that are copied when a sandbox begins.
//!
//! The copy is a layer that only the sandbox knows, until its first snapshot takes it over. A file in
//! the sandbox's directory names it before it is made, so that whoever clears up after a crash finds it.

use std::{fs, io, path::Path};

use forkpoint_core::{
    driver::{DriverError, DriverResult},
    id::{SandboxId, SnapshotId},
    spec::WorkspaceMode,
};

use super::{find, invalid, place};
use crate::{
    driver::local::{
        host::{Host, failed, io_error, layer_error},
        record::Record,
    },
    layer::{LayerError, LayerName},
};

const NOTE: &str = "pinned";

impl Host {
    /// The sandbox begins on a copy of those workspaces that are to be copied. It is locked, and does
    /// not run yet.
    pub(in super::super) fn pin_workspaces(&self, mut record: Record) -> DriverResult<Record> {
        let workspaces = record.spec.workspaces.iter();
        let pinned: Vec<_> = workspaces.filter(|each| each.mode == WorkspaceMode::Copy).collect();
        if pinned.is_empty() {
            return Ok(record);
        }
        let name = pin_of(record.id)?;
        let note = self.place(record.id).directory().join(NOTE);
        fs::write(&note, name.as_str()).map_err(io_error("write", &note))?;
        let copying = "copy a workspace";
        let mut stage = self.store.stage(name.clone(), None).map_err(layer_error(copying))?;
        for workspace in pinned {
            let like = |way: &Path| find(&record.base.0, way).map(|(path, _)| path);
            let made = stage.pin(workspace.source.as_path(), place(workspace), like);
            made.map_err(explained(copying))?;
        }
        // What is the root of a layer is the root of the sandbox.
        if let Some(root) = record.base.top() {
            let tree = stage.tree_path();
            self.look_like(&tree, root).map_err(io_error("set the mode of", &tree))?;
        }
        stage.commit(false).map_err(layer_error(copying))?;
        record.top = Some(name.clone());
        record.own = vec![name];
        Ok(record)
    }

    /// Once there is a record, it tells of them.
    pub(in super::super) fn forget_pins(&self, id: SandboxId) {
        if matches!(self.find(id), Ok(Some(_))) {
            // One that stays is looked at only where there is no record.
            let _ = fs::remove_file(self.place(id).directory().join(NOTE));
        }
    }

    /// What somebody made for a sandbox that never came to be.
    pub(in super::super) fn forgotten_pins(&self, id: SandboxId) -> Vec<LayerName> {
        if !matches!(self.find(id), Ok(None)) {
            return Vec::new();
        }
        let note = fs::read_to_string(self.place(id).directory().join(NOTE));
        let ours = |pin: &LayerName| pin_of(id).is_ok_and(|name| name == *pin);
        note.ok().and_then(|note| note.parse().ok()).filter(ours).into_iter().collect()
    }
}

/// Names of layers have the id of a snapshot in them. No snapshot has this one: it is the sandbox's.
pub(in super::super) fn pin_of(id: SandboxId) -> DriverResult<LayerName> {
    let id = id.to_string().replacen(SandboxId::PREFIX, SnapshotId::PREFIX, 1);
    let id = id.parse().map_err(failed("name a layer"))?;
    Ok(LayerName::pin(id))
}

fn explained(operation: &'static str) -> impl FnOnce(LayerError) -> DriverError {
    move |err| match err {
        LayerError::Changed { path } => invalid(format!(
            "`{}` changed while the workspace was copied: try again when nobody writes there",
            path.display()
        )),
        LayerError::Io { path, source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            DriverError::Unreadable { path }
        }
        LayerError::Unsupported { .. } => invalid(err.to_string()),
        err => layer_error(operation)(err),
    }
}
