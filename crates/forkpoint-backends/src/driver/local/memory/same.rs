//! Whether a sandbox is still all that its last full snapshot holds.

use std::fs;

use forkpoint_checkpoint::{self as checkpoint, Chain};
use forkpoint_core::{
    driver::{Artifact, DriverResult},
    id::SandboxId,
};

use super::{refusal, since::SMALL, spec, tree};
use crate::driver::local::{
    host::{Host, failed},
    record::Record,
};

impl Host {
    /// Files, processes and memory. The sandbox is locked, and stands still for a moment. Where there is much memory it
    /// counts as changed: to compare all of it would take longer than to keep what was written. A doubt is a no, and so is
    /// what cannot be captured: whoever seals it then hears why.
    pub(in crate::driver::local) fn is_wholly_unchanged(
        &self,
        id: SandboxId,
        since: &Artifact,
    ) -> DriverResult<bool> {
        let record = self.record(id)?;
        let stands_on_it = record.snapshot == Some(since.snapshot);
        if !stands_on_it || refusal(&record).is_some() || private_bytes(&record)? > SMALL {
            return Ok(false);
        }
        let data = self.read_artifact(since)?;
        let Ok(chain) = Chain::open(self.memory_images(&data)) else { return Ok(false) };
        let mut same_files = Ok(false);
        let moment = || {
            same_files = self.is_unchanged(id, since.snapshot);
            Ok(())
        };
        let captured = checkpoint::capture(&tree(&record), &spec(&record), moment);
        let same = captured.is_ok_and(|captured| captured.is_same_as(&chain).unwrap_or(false));
        Ok(same_files? && same)
    }
}

/// Of all processes, what is in memory and in no file.
fn private_bytes(record: &Record) -> DriverResult<u64> {
    const PAGE: u64 = 4096;
    let Some(cgroup) = record.freezer() else { return Ok(u64::MAX) };
    let pids = cgroup.pids().map_err(failed("list the sandbox's processes"))?;
    // One that is gone has none.
    let told = pids.iter().filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/statm")).ok());
    Ok(told.filter_map(|text| private_pages(&text)).map(|pages| pages * PAGE).sum())
}

/// Of a `/proc/PID/statm`.
fn private_pages(text: &str) -> Option<u64> {
    let mut numbers = text.split(' ').map(|word| word.parse::<u64>().ok());
    let (resident, shared) = (numbers.nth(1)??, numbers.next()??);
    Some(resident.saturating_sub(shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_files_do_not_count() {
        assert_eq!(private_pages("9000 700 300 20 0 100 0\n"), Some(400));
        assert_eq!(private_pages("9000 300 700 20 0 100 0\n"), Some(0));
        assert_eq!(private_pages("9000 x"), None);
        assert_eq!(private_pages(""), None);
    }
}
