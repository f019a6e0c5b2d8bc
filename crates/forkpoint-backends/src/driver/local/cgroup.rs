//! Limits for a sandbox, and a handle on all of its processes.
//!
//! A sandbox has a directory in cgroup2 wherever there is one: its processes are born there, and
//! are frozen and killed together there. That needs no controller. Limits do: where a machine has
//! bound them to version 1, the sandbox has a directory in these hierarchies too, and only in those
//! that it has a limit in. Such a directory lies below our own cgroup, so that limits on us hold
//! for our sandboxes.
//!
//! Nobody is born into a version 1 cgroup. The sandbox's first process moves there itself, by
//! writing `0` to [`Cgroup::tasks_files`] while it has one thread: such a move waits for nobody,
//! and takes microseconds. Any other, or one by `cgroup.procs`, waits for all processors: 10 ms.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use forkpoint_core::spec::Resources;
use rustix::fs::Access;

pub(in crate::driver) use self::hierarchy::place_of;
use self::{
    controllers::{Zeal, before_stepping_aside, contains, hand_down},
    directory::make,
    hierarchy::{Hierarchies, Hierarchy},
    limit::{Controller, Limit},
};
pub(super) use self::{
    error::{CgroupError, with_causes},
    group::Cgroup,
    limit::Version,
};

mod controllers;
pub(in crate::driver) mod directory;
mod error;
mod group;
mod hierarchy;
mod limit;
#[cfg(test)]
mod tests;

/// What this machine's cgroups can do for a sandbox.
#[derive(Clone, Debug)]
pub(super) struct Cgroups {
    /// The directory of cgroup2 that ours is made in, or why there is none.
    unified: Result<PathBuf, String>,
    memory: Source,
    cpu: Source,
    pids: Source,
}

/// Where limits of a kind come from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Unified,
    /// From version 1, in a directory below this one.
    V1(PathBuf),
    /// From nowhere, and why.
    None(String),
}

/// What can be done, and by which version; or why it cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Description {
    pub(super) freeze: Result<(), String>,
    pub(super) kill: Result<(), String>,
    pub(super) memory: Result<Version, String>,
    pub(super) cpu: Result<Version, String>,
    pub(super) pids: Result<Version, String>,
}

impl Cgroups {
    /// Looks at the machine as this process sees it. Having none is an answer too.
    pub(super) fn find() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let is_root = rustix::process::geteuid().is_root();
        Self::find_in(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"), is_root)
    }

    fn find_in(mounts: &str, own: &str, is_root: bool) -> Self {
        let hierarchies = Hierarchies::parse(mounts, own);
        let unified = find_unified(hierarchies.unified.as_ref(), is_root);
        let source = |controller| match hierarchies.v1(controller) {
            Some(v1) if is_writable(&v1.own) => Source::V1(v1.own.clone()),
            Some(v1) => Source::None(not_writable(&v1.own)),
            None => find_in_unified(&unified, controller),
        };
        Self {
            memory: source(Controller::Memory),
            cpu: source(Controller::Cpu),
            pids: source(Controller::Pids),
            unified,
        }
    }

    /// A directory for the sandbox in every hierarchy that it needs, with its limits. One of the
    /// same name that nobody is in is replaced. A limit that cannot be had is an error.
    ///
    /// The limit of pids is for what runs in the sandbox: its first process, which is ours, comes
    /// on top.
    pub(super) fn create(&self, name: &str, limits: &Resources) -> Result<Cgroup, CgroupError> {
        self.create_on(Cgroup::default(), name, limits)
    }

    /// The same for a process that was born already, into a cgroup without limits.
    pub(super) fn create_on(
        &self,
        born_in: Cgroup,
        name: &str,
        limits: &Resources,
    ) -> Result<Cgroup, CgroupError> {
        let limits = Limit::all(limits);
        for limit in &limits {
            if let Source::None(reason) = self.source(limit.controller()) {
                return Err(limit.unavailable(reason.clone()));
            }
        }
        let is_ours = born_in.unified.is_none();
        let mut cgroup = born_in;
        let filled = self.fill(&mut cgroup, name, &limits);
        if filled.is_err() {
            // Who was born lives in it.
            cgroup.unified.take_if(|_| !is_ours);
            let _ = cgroup.remove();
        }
        filled.map(|()| cgroup)
    }

    /// Those of ours whose names begin so, whoever made them.
    pub(super) fn find_named(&self, start: &str) -> Vec<Cgroup> {
        let mut found: BTreeMap<OsString, Cgroup> = BTreeMap::new();
        if let Ok(base) = &self.unified {
            for (name, path) in directory::named(base, start) {
                found.entry(name).or_default().unified = Some(path);
            }
        }
        let v1 =
            [&self.memory, &self.cpu, &self.pids].into_iter().filter_map(|source| match source {
                Source::V1(base) => Some(base),
                Source::Unified | Source::None(_) => None,
            });
        // Two controllers may share a hierarchy.
        for base in v1.collect::<BTreeSet<_>>() {
            for (name, path) in directory::named(base, start) {
                found.entry(name).or_default().v1.push(path);
            }
        }
        found.into_values().collect()
    }

    fn fill(&self, cgroup: &mut Cgroup, name: &str, limits: &[Limit]) -> Result<(), CgroupError> {
        let mut failures = Vec::new();
        if let (Ok(base), None) = (&self.unified, &cgroup.unified) {
            let wanted = self.unified_controllers();
            let is_needed = |limit: &Limit| *self.source(limit.controller()) == Source::Unified;
            let zeal = match limits.iter().any(is_needed) {
                true => Zeal::StepAside,
                false => Zeal::StayWhereWeAre,
            };
            cgroup.unified = Some(make(base, name, |_| failures = hand_down(&wanted, base, zeal))?);
        }
        for limit in limits {
            let controller = limit.controller();
            if let Some(reason) = not_enabled(controller, &failures) {
                return Err(limit.unavailable(reason));
            }
            match (self.source(controller), &cgroup.unified) {
                (Source::Unified, Some(unified)) => limit.set(Version::V2, unified)?,
                (Source::V1(base), _) => {
                    limit.set(Version::V1, cgroup.v1_directory(base, name)?)?;
                }
                (Source::Unified | Source::None(_), _) => {
                    return Err(limit.unavailable("there is no cgroup for it".to_owned()));
                }
            }
        }
        Ok(())
    }

    /// Tries what can be tried, in a cgroup of its own.
    pub(super) fn describe(&self) -> Description {
        let probe = self.probe();
        let has = |file: &str| match &probe {
            Ok(Probe { files, .. }) if files.iter().any(|name| name == file) => Ok(()),
            Ok(_) => Err(format!("this kernel's cgroups have no `{file}`")),
            Err(reason) => Err(reason.clone()),
        };
        let enabled = |controller| match &probe {
            Ok(Probe { failures, .. }) => not_enabled(controller, failures).map_or(Ok(()), Err),
            Err(_) => Ok(()),
        };
        let limit = |controller: Controller, file| match self.source(controller) {
            Source::Unified => enabled(controller).and_then(|()| has(file)).map(|()| Version::V2),
            Source::V1(_) => Ok(Version::V1),
            Source::None(reason) => Err(reason.clone()),
        };
        Description {
            freeze: has("cgroup.freeze"),
            kill: has("cgroup.kill"),
            memory: limit(Controller::Memory, "memory.max"),
            cpu: limit(Controller::Cpu, "cpu.max"),
            pids: limit(Controller::Pids, "pids.max"),
        }
    }

    fn probe(&self) -> Result<Probe, String> {
        let base = self.unified.as_ref().map_err(Clone::clone)?;
        let name = format!("probe-{}", std::process::id());
        let cgroup = self.create(&name, &Resources::default()).map_err(|err| with_causes(&err))?;
        let failures = hand_down(&self.unified_controllers(), base, Zeal::StepAside);
        let names = cgroup.unified.iter().flat_map(fs::read_dir).flatten().flatten();
        let files = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        let _ = cgroup.remove();
        Ok(Probe { files, failures })
    }

    fn source(&self, controller: Controller) -> &Source {
        match controller {
            Controller::Memory => &self.memory,
            Controller::Cpu => &self.cpu,
            Controller::Pids => &self.pids,
        }
    }

    fn unified_controllers(&self) -> Vec<&'static str> {
        let is_unified = |controller: &Controller| *self.source(*controller) == Source::Unified;
        Controller::ALL.into_iter().filter(is_unified).map(Controller::name).collect()
    }
}

/// What a cgroup of ours is like.
struct Probe {
    files: Vec<String>,
    failures: Vec<(&'static str, io::Error)>,
}

fn not_enabled(controller: Controller, failures: &[(&'static str, io::Error)]) -> Option<String> {
    let failed = failures.iter().find(|(name, _)| *name == controller.name());
    failed.map(|(_, err)| format!("failed to enable its controller: {err}"))
}

/// Root makes its cgroups below the mount. Others, or root in a container that may not, have at
/// most what was delegated to them.
fn find_unified(hierarchy: Option<&Hierarchy>, is_root: bool) -> Result<PathBuf, String> {
    let Some(Hierarchy { mount, own }) = hierarchy else {
        return Err("no cgroup2 file system is mounted".to_owned());
    };
    if is_root && is_writable(mount) {
        return Ok(mount.clone());
    }
    let own = before_stepping_aside(own);
    // To be moved below `own`, a process needs both.
    match is_writable(&own) && is_writable(&own.join("cgroup.procs")) {
        true => Ok(own),
        false => Err(not_writable(&own)),
    }
}

fn find_in_unified(unified: &Result<PathBuf, String>, controller: Controller) -> Source {
    let base = match unified {
        Ok(base) => base,
        Err(reason) => return Source::None(reason.clone()),
    };
    match fs::read_to_string(base.join("cgroup.controllers")) {
        Ok(known) if contains(&known, controller.name()) => Source::Unified,
        _ => Source::None(format!("`{}` has no controller `{controller}`", base.display())),
    }
}

fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, Access::WRITE_OK).is_ok()
}

fn not_writable(path: &Path) -> String {
    format!("`{}` cannot be written to", path.display())
}
