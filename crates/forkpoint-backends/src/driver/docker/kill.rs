//! Signals to a command in a container, for which an engine has no call.
//!
//! On this machine they go to the process that the engine names, once it was seen to be in the
//! container.

use std::{fs, path::Path, sync::Arc};

use forkpoint_core::driver::{DriverError, DriverResult};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use super::{DRIVER, container::Container, host::Host};

/// A process of a command.
pub(super) struct Target {
    host: Arc<Host>,
    container: String,
    /// What the engine calls the container's first process.
    init: Option<i32>,
    pid: Option<i32>,
    running: bool,
}

impl Target {
    pub(super) fn new(host: Arc<Host>, container: &Container, exec: &Value) -> Self {
        let number =
            |told: &Value| i32::try_from(told.as_i64().unwrap_or(0)).ok().filter(|&pid| pid > 0);
        let (init, running) = (number(&container.0["State"]["Pid"]), exec["Running"] == true);
        let (container, pid) = (container.id().to_owned(), number(&exec["Pid"]));
        Self { host, container, init, pid, running }
    }

    /// What the engine's number is called here, if it names a process of this container. An engine
    /// with processes of its own counts them otherwise.
    fn here(&self) -> Option<i32> {
        let pid = self.pid?;
        if self.is_here(pid) || !self.host.engine.endpoint().is_near() {
            return Some(pid).filter(|&pid| self.is_here(pid));
        }
        let inside = processes().filter(|&pid| self.is_here(pid)).filter_map(names);
        let inside: Vec<Vec<i32>> = inside.collect();
        let level = |names: &Vec<i32>| {
            let is_first = names.last() == Some(&1);
            let at = names.iter().rposition(|name| Some(*name) == self.init);
            at.filter(|_| is_first)
        };
        let level = inside.iter().find_map(level)?;
        inside.iter().find(|names| names.get(level) == Some(&pid))?.first().copied()
    }

    /// To the process, or to all of its group: the runtime made it the leader of one.
    pub(super) async fn signal(&self, number: i32, group: bool) -> DriverResult<()> {
        if self.pid.is_none() || !self.running {
            return Ok(());
        }
        let Some(pid) = self.here() else { return self.out_of_reach() };
        let (Some(process), Some(signal)) = (Pid::from_raw(pid), Signal::from_named_raw(number))
        else {
            return self.out_of_reach();
        };
        let sent = match group {
            true => kill_process_group(process, signal),
            false => kill_process(process, signal),
        };
        match sent {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(err) => Err(failure(err.into())),
        }
    }

    /// Whether it is the command, and no longer the runtime that is about to become it. True where that
    /// cannot be seen.
    pub(super) fn became_itself(&self) -> bool {
        let Some(pid) = self.pid else { return false };
        if !self.is_here(pid) {
            // Gone, or never here: if it is gone, the engine says so in a moment.
            return !self.host.engine.endpoint().is_near()
                || Path::new(&format!("/proc/{pid}")).exists();
        }
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        !name.is_empty() && !name.starts_with("runc:[")
    }

    /// Whether the engine's number names a process of this container for us too.
    fn is_here(&self, pid: i32) -> bool {
        if !self.host.engine.endpoint().is_near() {
            return false;
        }
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        groups.contains(&self.container)
    }

    fn out_of_reach(&self) -> DriverResult<()> {
        let operation = "send a signal to a command of an engine that is elsewhere";
        Err(DriverError::Unsupported { driver: DRIVER, operation })
    }

    /// Ends everything that is left of the command's session.
    pub(super) async fn end_session(&self) {
        let Some(session) = self.pid.filter(|_| self.host.engine.endpoint().is_near()) else {
            return;
        };
        let session = self.here().unwrap_or(session);
        for _ in 0..8 {
            let left = session_of(session, &self.container);
            if left.is_empty() {
                return;
            }
            for pid in left.into_iter().filter_map(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

fn failure(source: std::io::Error) -> DriverError {
    DriverError::Failed { driver: DRIVER, operation: "send a signal", source: source.into() }
}

fn processes() -> impl Iterator<Item = i32> {
    let listed = fs::read_dir("/proc").into_iter().flatten().flatten();
    listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// What a process is called, from here down to where it lives.
fn names(pid: i32) -> Option<Vec<i32>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().map(|name| name.parse().ok()).collect()
}

/// Processes of a container with this session's number.
fn session_of(session: i32, container: &str) -> Vec<i32> {
    let pids = processes().filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after = stat.rsplit(") ").next().unwrap_or_default();
        let mut fields = after.split(' ');
        let is_dead = matches!(fields.next(), Some("Z" | "X"));
        fields.nth(2).and_then(|text| text.parse().ok()) == Some(session)
            && !is_dead
            && fs::read_to_string(format!("/proc/{pid}/cgroup"))
                .unwrap_or_default()
                .contains(container)
    });
    pids.collect()
}
