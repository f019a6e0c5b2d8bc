//! Bringing home what a sandbox changed in a directory of the host.
//!
//! First a plan is made (`plan.rs`) and compared with what the host did meanwhile (`conflict.rs`). Then
//! everything that is new is written into a directory of ours inside the host's (`stage.rs`), so that a full
//! disk shows before anything has changed. Only then names change, one `rename` each (`write.rs`): killed at any
//! moment, each file is the old one or the new one. What was written is noted down (`ledger.rs`), so that the
//! next time it is not taken for somebody else's change.
//!
//! Every way on the host begins at one descriptor and follows no symbolic link and no mount: whatever
//! is planted on either side, nothing is written elsewhere.

use std::path::{Path, PathBuf};

use forkpoint_core::{
    Timestamp,
    driver::{ApplyReport, ApplyRequest},
    spec::{Workspace, WorkspaceMode},
};

use crate::layer::{LayerView, Marks, Moment};

mod conflict;
mod earlier;
mod error;
mod host;
mod ledger;
mod line;
mod plan;
mod stage;
mod ways;
mod write;

pub(crate) use error::{WorkspaceError, WorkspaceResult};
pub(crate) use line::Line;

use host::HostDir;
use ledger::Ledger;
use plan::Plan;
use stage::Staging;

/// How often a plan is made anew because something went away while it was looked at.
const TRIES: usize = 5;

/// What is brought home, and how. The views begin at the workspace.
pub(crate) struct ApplySpec<'a> {
    pub(crate) workspace: &'a Workspace,
    /// What the sandbox began with: the host as it is now, or the copy that was made then.
    pub(crate) from: &'a LayerView,
    /// What it has made of it.
    pub(crate) to: &'a LayerView,
    /// What it has written there itself, without what lies below.
    pub(crate) own: &'a LayerView,
    pub(crate) marks: Marks,
    /// Whose work it is.
    pub(crate) line: &'a Line,
    /// When it was looked at.
    pub(crate) at: Timestamp,
    /// Where to keep what was written.
    pub(crate) ledgers: &'a Path,
    pub(crate) request: &'a ApplyRequest,
    /// Whether the sandbox still stands on what is brought home. What is thrown away under our eyes looks
    /// like files that it deleted.
    pub(crate) is_there: &'a dyn Fn() -> bool,
}

impl ApplySpec<'_> {
    fn source(&self) -> &Path {
        self.workspace.source.as_path()
    }

    fn is_live(&self) -> bool {
        self.workspace.mode == WorkspaceMode::Live
    }

    fn since(&self) -> Moment {
        self.workspace.since.into()
    }

    fn is_wanted(&self, path: &Path) -> bool {
        let paths = &self.request.paths;
        paths.is_empty() || paths.iter().any(|wanted| path.starts_with(wanted))
    }
}

pub(crate) fn apply(spec: &ApplySpec) -> WorkspaceResult<ApplyReport> {
    match try_apply(spec) {
        // Half of what was read may be gone, so that anything can have gone wrong.
        Err(_) if !(spec.is_there)() => Err(WorkspaceError::Gone),
        result => result,
    }
}

fn try_apply(spec: &ApplySpec) -> WorkspaceResult<ApplyReport> {
    let host = HostDir::open(spec.source())?;
    let (_lock, cut_short) = match spec.request.dry_run {
        true => (None, false),
        false => (Some(host.lock()?), stage::clear_left(&host)?),
    };
    for _ in 0..TRIES {
        match bring(spec, &host, cut_short) {
            Err(err) if err.is_passing() && (spec.is_there)() => {}
            result => return result,
        }
    }
    Err(WorkspaceError::Restless)
}

fn bring(spec: &ApplySpec, host: &HostDir, cut_short: bool) -> WorkspaceResult<ApplyReport> {
    let dry_run = spec.request.dry_run;
    let mut ledger = Ledger::read(spec)?;
    let plan = Plan::new(spec, host, &ledger)?;
    let conflicts = conflict::find(spec, host, &plan, &ledger)?;
    let stopped = match spec.request.force {
        true => !plan.blocked.is_empty(),
        false => !conflicts.is_empty() || !plan.blocked.is_empty(),
    };
    let mut report = ApplyReport {
        source: spec.workspace.source.clone(),
        at: spec.workspace.at.clone(),
        steps: plan.steps.iter().map(plan::Step::told).collect(),
        skipped: plan.skipped.clone(),
        conflicts: match stopped {
            true => [plan.blocked.clone(), conflicts].concat(),
            false => Vec::new(),
        },
        done: false,
        cut_short,
    };
    report.conflicts.sort_by(|one, other| one.path.cmp(&other.path));
    if dry_run || stopped {
        return (spec.is_there)().then_some(report).ok_or(WorkspaceError::Gone);
    }
    if !plan.steps.is_empty() {
        write::check_rights(host, &plan)?;
        let staging = Staging::create(host)?;
        let staged = staging.fill(spec, &plan)?;
        write::check_unchanged(host, &plan)?;
        if !(spec.is_there)() {
            return Err(WorkspaceError::Gone);
        }
        let untouched = write::untouched(host, &plan, &ledger)?;
        ledger.expect(&plan, &staged);
        ledger.write()?;
        let written = write::write(host, &staging, &plan, &staged, &mut ledger);
        // It lies in a directory whose dates are noted.
        drop(staging);
        write::note_left(host, &untouched, &mut ledger)?;
        // Also what was done before a failure.
        let noted = ledger.write();
        report.skipped.extend(written?);
        noted?;
    }
    report.done = true;
    Ok(report)
}

/// A path as a message shows it.
fn shown(root: &Path, path: &Path) -> PathBuf {
    root.join(path)
}
