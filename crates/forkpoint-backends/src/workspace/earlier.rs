//! What earlier applies brought home and the sandbox no longer has.
//!
//! A comparison with what it began with does not tell: there it never was. Only what is still as we left
//! it is taken back, and of a sandbox's own line: itself, and what it comes from.

use std::path::Path;

use forkpoint_core::driver::{ChangeKind, FileKind};

use super::{
    ApplySpec,
    error::WorkspaceResult,
    host::{HostDir, Way, is_dir},
    ledger::Ledger,
    plan::Changes,
};
use crate::layer::ViewChange;

pub(super) fn add(
    spec: &ApplySpec,
    host: &HostDir,
    ledger: &Ledger,
    changes: &mut Changes,
) -> WorkspaceResult<()> {
    for path in ledger.earlier() {
        let is_ours = match host.look(path)? {
            Way::There(stat) => ledger.wrote(path, &stat),
            Way::Open => ledger.deleted(path),
            Way::Blocked | Way::Mounted => false,
        };
        if !is_ours || changes.contains_key(path) {
            continue;
        }
        let (kind, before) = (ChangeKind::Changed, spec.from.entry(path)?);
        let after = match spec.is_live() {
            false => spec.to.entry(path)?,
            true if is_gone(spec, host, ledger, path)? => None,
            // It sees what was brought home as the host's own.
            true => continue,
        };
        let path = path.to_owned();
        changes.insert(path.clone(), ViewChange { kind, path, before, after });
    }
    Ok(())
}

/// Whether a live sandbox deleted what lay in a directory that it had made itself. Nothing in its own
/// files tells so: when it did, there was nothing below to be hidden.
fn is_gone(
    spec: &ApplySpec,
    host: &HostDir,
    ledger: &Ledger,
    path: &Path,
) -> WorkspaceResult<bool> {
    // What it was rolled back from is none of its business: at that time it had none of it.
    if !ledger.had(path) || spec.own.entry(path)?.is_some() {
        return Ok(false);
    }
    for way in path.ancestors().skip(1).filter(|way| !way.as_os_str().is_empty()) {
        let made = matches!(host.look(way)?, Way::There(stat) if is_dir(&stat) && ledger.wrote(way, &stat));
        let own = spec.own.entry(way)?;
        if made && own.is_some_and(|facts| facts.facts.kind == FileKind::Directory) {
            return Ok(true);
        }
    }
    Ok(false)
}
