//! Limits, as the files of each version say them.

use std::{fmt, io, path::Path};

use forkpoint_core::spec::Resources;
use rustix::io::Errno;

use super::{CgroupError, directory::write};

const PERIOD_US: u64 = 100_000;
/// The kernel's longest period. Its shortest quota is 1000 µs, so a hundredth of a processor and
/// less needs it.
const LONG_PERIOD_US: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    Memory,
    Cpu,
    Pids,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::driver::local) enum Version {
    V1,
    V2,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    MemoryBytes(u64),
    CpuMillis(u32),
    Pids(u32),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Setting {
    file: &'static str,
    value: String,
    /// Not every kernel has it, and the limit holds without.
    is_optional: bool,
}

impl Controller {
    pub(super) const ALL: [Self; 3] = [Self::Memory, Self::Cpu, Self::Pids];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Limit {
    pub(super) fn all(resources: &Resources) -> Vec<Self> {
        let Resources { memory_bytes, cpu_millis, pids } = *resources;
        [memory_bytes.map(Self::MemoryBytes), cpu_millis.map(Self::CpuMillis), pids.map(Self::Pids)]
            .into_iter()
            .flatten()
            .collect()
    }

    pub(super) fn controller(self) -> Controller {
        match self {
            Self::MemoryBytes(_) => Controller::Memory,
            Self::CpuMillis(_) => Controller::Cpu,
            Self::Pids(_) => Controller::Pids,
        }
    }

    /// As the core calls it.
    fn what(self) -> &'static str {
        match self {
            Self::MemoryBytes(_) => "memory",
            Self::CpuMillis(_) => "cpus",
            Self::Pids(_) => "pids",
        }
    }

    pub(super) fn unavailable(self, reason: String) -> CgroupError {
        CgroupError::Unavailable { what: self.what(), reason }
    }

    pub(super) fn set(self, version: Version, directory: &Path) -> Result<(), CgroupError> {
        for Setting { file, value, is_optional } in self.settings(version) {
            let path = directory.join(file);
            match write(&path, &value) {
                Ok(()) => {}
                Err(err) if is_optional && is_missing(&err) => {}
                Err(source) => {
                    return Err(CgroupError::Limit { what: self.what(), value, path, source });
                }
            }
        }
        Ok(())
    }

    /// In the order in which they are written.
    pub(super) fn settings(self, version: Version) -> Vec<Setting> {
        match (self, version) {
            (Self::MemoryBytes(bytes), Version::V1) => vec![
                setting("memory.limit_in_bytes", bytes),
                // Counts memory and swap together: what does not fit is not swapped out.
                optional("memory.memsw.limit_in_bytes", bytes),
            ],
            (Self::MemoryBytes(bytes), Version::V2) => vec![
                setting("memory.max", bytes),
                optional("memory.swap.max", 0),
                // What is too large is killed, not all of the sandbox.
                optional("memory.oom.group", 0),
            ],
            (Self::CpuMillis(millis), version) => {
                let period = if millis < 10 { LONG_PERIOD_US } else { PERIOD_US };
                let quota = u64::from(millis) * period / 1000;
                match version {
                    Version::V1 => vec![
                        setting("cpu.cfs_period_us", period),
                        setting("cpu.cfs_quota_us", quota),
                    ],
                    Version::V2 => vec![setting("cpu.max", format!("{quota} {period}"))],
                }
            }
            // One more, for the sandbox's first process.
            (Self::Pids(pids), _) => vec![setting("pids.max", u64::from(pids) + 1)],
        }
    }
}

fn setting(file: &'static str, value: impl ToString) -> Setting {
    Setting { file, value: value.to_string(), is_optional: false }
}

fn optional(file: &'static str, value: u64) -> Setting {
    Setting { is_optional: true, ..setting(file, value) }
}

fn is_missing(err: &io::Error) -> bool {
    let errno = Errno::from_io_error(err);
    matches!(errno, Some(Errno::NOENT | Errno::OPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_files() {
        let texts = |limit: Limit, version| {
            let settings = limit.settings(version).into_iter();
            settings.map(|s| format!("{}={}", s.file, s.value)).collect::<Vec<_>>().join(", ")
        };
        let table = [
            (
                Limit::MemoryBytes(65536),
                "memory.limit_in_bytes=65536, memory.memsw.limit_in_bytes=65536",
                "memory.max=65536, memory.swap.max=0, memory.oom.group=0",
            ),
            (
                Limit::CpuMillis(1500),
                "cpu.cfs_period_us=100000, cpu.cfs_quota_us=150000",
                "cpu.max=150000 100000",
            ),
            (
                Limit::CpuMillis(1),
                "cpu.cfs_period_us=1000000, cpu.cfs_quota_us=1000",
                "cpu.max=1000 1000000",
            ),
            (Limit::Pids(u32::MAX), "pids.max=4294967296", "pids.max=4294967296"),
        ];
        for (limit, v1, v2) in table {
            assert_eq!(texts(limit, Version::V1), v1);
            assert_eq!(texts(limit, Version::V2), v2);
        }
    }
}
