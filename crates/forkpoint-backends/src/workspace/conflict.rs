//! What the host did meanwhile to what is to be changed.
//!
//! Of a copied workspace, the copy tells what the host had, byte by byte. Of a live one only dates tell,
//! and whoever can set dates can deceive them in one direction only: everything whose inode changed
//! after the sandbox began counts as changed, also where it was just a mode, unless it was we who changed it
//! (`ledger.rs`), and so does what lies in a directory that was moved there (`ways.rs`).

use std::{fs::File, path::Path};

use forkpoint_core::driver::{ApplyConflict, FileFacts, FileKind};
use rustix::fs::{Stat, fstat};

use super::{
    ApplySpec,
    error::WorkspaceResult,
    host::{HostDir, is_dir, is_file, is_link},
    ledger::Ledger,
    plan::{Plan, Step, Want, same_file},
    ways::{Doubt, Ways},
};

const CHANGED: &str = "changed on the host";
const DELETED: &str = "deleted on the host";
const MADE: &str = "made on the host";

pub(super) fn find(
    spec: &ApplySpec,
    host: &HostDir,
    plan: &Plan,
    ledger: &Ledger,
) -> WorkspaceResult<Vec<ApplyConflict>> {
    let mut found = Vec::new();
    let ways = Ways::new(spec, host, ledger);
    let has_moved = spec.is_live() && may_have_moved(spec, plan);
    for step in &plan.steps {
        let reason = match spec.is_live() {
            true if step.host.is_none() => {
                let is_lost = is_lost(spec, plan, step, ledger)
                    && (!has_moved || ways.may_have_lost(&step.path)?);
                is_lost.then_some(DELETED)
            }
            true => with_live(step, ledger, &ways)?,
            false => with_copy(spec, host, step, ledger)?,
        };
        found.extend(reason.map(|reason| ApplyConflict { path: step.path.clone(), reason }));
    }
    let removed = plan.steps.iter().filter(|step| matches!(step.want, Want::Nothing));
    let left = plan.left_in(host, removed)?;
    found.extend(left.into_iter().map(|path| ApplyConflict { path, reason: MADE }));
    Ok(found)
}

/// Whether the sandbox may have moved files of the host's to where nobody sees that they were: it has deleted some,
/// or has others in their place, or what seems to have been moved may be another that looks like it.
fn may_have_moved(spec: &ApplySpec, plan: &Plan) -> bool {
    plan.has_deleted
        || !plan.moved.is_empty()
        || plan.changed.iter().any(|path| !is_copied_up(spec, path))
}

/// Whether it lies there in the sandbox only because the host had it. One that was moved inside the
/// sandbox was copied up under another name.
fn is_lost(spec: &ApplySpec, plan: &Plan, step: &Step, ledger: &Ledger) -> bool {
    matches!(step.want, Want::File(_))
        && !plan.moved.contains(&step.path)
        && is_copied_up(spec, &step.path)
        && !ledger.deleted(&step.path)
}

fn with_live(step: &Step, ledger: &Ledger, ways: &Ways) -> WorkspaceResult<Option<&'static str>> {
    let path = &step.path;
    let Some(there) = &step.host else { return Ok(None) };
    let is_changed = match (is_dir(there), &step.want) {
        // What is in it stays, whichever it is.
        (true, Want::Mode(_) | Want::Directory(_)) => false,
        (true, _) => ways.doubt(path)? != Doubt::No || ways.is_swapped(path)?,
        (false, _) if ledger.wrote(path, there) => false,
        (false, _) => !ledger.is_as_left(path, there) || ways.is_swapped(path)?,
    };
    Ok(is_changed.then_some(CHANGED))
}

/// A file that was the host's before the sandbox wrote to it. One that has several names may have got
/// this one from the sandbox.
fn is_copied_up(spec: &ApplySpec, path: &Path) -> bool {
    let is = |file: File| spec.marks.is_copied_up(&file) && has_one_name(&file);
    spec.to.open_file(path).is_ok_and(is)
}

fn has_one_name(file: &File) -> bool {
    fstat(file).is_ok_and(|stat| stat.st_nlink == 1)
}

fn with_copy(
    spec: &ApplySpec,
    host: &HostDir,
    step: &Step,
    ledger: &Ledger,
) -> WorkspaceResult<Option<&'static str>> {
    let path = &step.path;
    Ok(match (&step.before, &step.host) {
        (None, None) => None,
        (Some(_), None) => (!ledger.deleted(path)).then_some(DELETED),
        (None, Some(there)) => (!ledger.wrote(path, there)).then_some(MADE),
        (Some(before), Some(there)) => {
            let same = ledger.wrote(path, there) || is_as_before(spec, host, step, before, there)?;
            (!same).then_some(CHANGED)
        }
    })
}

fn is_as_before(
    spec: &ApplySpec,
    host: &HostDir,
    step: &Step,
    before: &FileFacts,
    there: &Stat,
) -> WorkspaceResult<bool> {
    let same_mode = there.st_mode & 0o7777 == before.mode;
    match before.kind {
        FileKind::File if is_file(there) => {
            Ok(same_mode && same_file(spec.from, host, &step.path, before, there)?)
        }
        // What is in it is a step of its own.
        FileKind::Directory => Ok(is_dir(there)),
        FileKind::Symlink if is_link(there) => {
            Ok(host.read_link(&step.path)? == spec.from.read_link(&step.path)?)
        }
        _ => Ok(false),
    }
}
