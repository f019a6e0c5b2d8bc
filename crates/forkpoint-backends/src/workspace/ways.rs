//! Whether directories of the host are still those that a live sandbox looked at.
//!
//! Moving a directory leaves the dates of all that is in it, so that its files look as if nobody had touched
//! them. It changes its own inode, and the directory that it is put into. So does other work:
//! but whatever adds or removes a name dates a directory's content anew as well.

use std::{
    cell::RefCell,
    collections::HashMap,
    path::{Path, PathBuf},
};

use rustix::fs::{Stat, stat};

use super::{
    ApplySpec,
    error::WorkspaceResult,
    host::{HostDir, Way, is_dir},
    ledger::Ledger,
};
use crate::layer::Moment;

/// How likely it is that a directory is another than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Doubt {
    No,
    /// Names in it changed, and names beside it.
    Perhaps,
    /// The last that happened to it changed no name in it.
    Strong,
}

#[derive(Debug)]
pub(super) struct Ways<'a> {
    host: &'a HostDir,
    ledger: &'a Ledger,
    since: Moment,
    known: RefCell<HashMap<PathBuf, Doubt>>,
}

impl<'a> Ways<'a> {
    pub(super) fn new(spec: &ApplySpec, host: &'a HostDir, ledger: &'a Ledger) -> Self {
        Self { host, ledger, since: spec.since(), known: RefCell::default() }
    }

    /// Whether something on the way to a path was put in another's place.
    pub(super) fn is_swapped(&self, path: &Path) -> WorkspaceResult<bool> {
        for way in path.ancestors().skip(1) {
            if self.doubt(way)? == Doubt::Strong {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn doubt(&self, directory: &Path) -> WorkspaceResult<Doubt> {
        if let Some(doubt) = self.known.borrow().get(directory) {
            return Ok(*doubt);
        }
        let doubt = self.judge(directory)?;
        self.known.borrow_mut().insert(directory.to_owned(), doubt);
        Ok(doubt)
    }

    fn judge(&self, directory: &Path) -> WorkspaceResult<Doubt> {
        let Some(there) = self.look(directory)? else { return Ok(Doubt::No) };
        if self.ledger.is_untouched(directory, &there) || self.ledger.wrote(directory, &there) {
            return Ok(Doubt::No);
        }
        let is_put_there = match directory.parent() {
            Some(parent) => {
                self.look(parent)?.is_some_and(|stat| !self.ledger.is_untouched(parent, &stat))
            }
            None => self.is_beside_changed(),
        };
        let named = (there.st_ctime, there.st_ctime_nsec) == (there.st_mtime, there.st_mtime_nsec);
        Ok(match (is_put_there, named) {
            (false, _) => Doubt::No,
            (true, true) => Doubt::Perhaps,
            (true, false) => Doubt::Strong,
        })
    }

    /// Whether the workspace itself may have been moved.
    fn is_beside_changed(&self) -> bool {
        let above = self.host.path.parent().and_then(|above| stat(above).ok());
        above.is_none_or(|stat| Moment::of_change(&stat) >= self.since)
    }

    /// Whether the host may have deleted something there: the directory that it would have been in, or the
    /// next above that is there, changed.
    pub(super) fn may_have_lost(&self, path: &Path) -> WorkspaceResult<bool> {
        for way in path.ancestors().skip(1) {
            if let Some(stat) = self.look(way)? {
                return Ok(!self.ledger.is_untouched(way, &stat));
            }
        }
        Ok(true)
    }

    fn look(&self, directory: &Path) -> WorkspaceResult<Option<Stat>> {
        if directory.as_os_str().is_empty() {
            return Ok(Some(self.host.begun));
        }
        Ok(match self.host.look(directory)? {
            Way::There(stat) if is_dir(&stat) => Some(stat),
            _ => None,
        })
    }
}
