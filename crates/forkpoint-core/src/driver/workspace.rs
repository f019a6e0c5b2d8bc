//! Directories of the host that sandboxes see.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::path::{HostPath, SandboxPath};

/// What changed in a workspace behind the back of whoever saw it before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    pub source: HostPath,
    pub at: SandboxPath,
    /// Files and directories that were made, changed or lost an entry.
    pub changed: u64,
    /// The first few, from the source.
    pub examples: Vec<PathBuf>,
    /// Whether there was time to look at everything.
    pub complete: bool,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, changed, examples, complete, .. } = self;
        let least = if *complete { "" } else { "at least " };
        let entries = if *changed == 1 { "entry" } else { "entries" };
        write!(
            f,
            "workspace `{source}`: {least}{changed} {entries} changed on the host meanwhile"
        )?;
        for (index, path) in examples.iter().enumerate() {
            let before = if index == 0 { ": " } else { ", " };
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            write!(f, "{before}`{}`", path.display())?;
        }
        let rest = changed.saturating_sub(examples.len() as u64);
        if rest > 0 { write!(f, " and {rest} more") } else { Ok(()) }
    }
}

/// Which changes to bring home, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyRequest {
    /// Confined to these, from the workspace's root, and what is below them; none for everything.
    pub paths: Vec<PathBuf>,
    /// Also over what changed on the host meanwhile.
    pub force: bool,
    /// Tell what would be done, and do nothing.
    pub dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyReport {
    pub source: HostPath,
    pub at: SandboxPath,
    /// What was done, or would be, in order of path.
    pub steps: Vec<AppliedStep>,
    /// What stays as it is in the sandbox alone.
    pub skipped: Vec<ApplySkip>,
    /// What keeps all of it from being done.
    pub conflicts: Vec<ApplyConflict>,
    pub done: bool,
    /// An earlier one was killed half-way; what it left was cleared away.
    pub cut_short: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedStep {
    /// From the workspace's root.
    pub path: PathBuf,
    pub step: ApplyStep,
    /// Of a file that is written.
    pub len_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ApplyStep {
    Create,
    Change,
    Mode,
    Delete,
    Link,
    MakeDirectory,
    RemoveDirectory,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplySkip {
    pub path: PathBuf,
    pub reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyConflict {
    pub path: PathBuf,
    pub reason: &'static str,
}
