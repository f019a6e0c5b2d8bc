//! What a snapshot of a sandbox would leave out, looked up while it runs. Best effort: what cannot be
//! looked at is not told, and what is told may have ended since.

use std::{fs, os::unix::ffi::OsStrExt as _};

use forkpoint_core::{
    driver::{DriverResult, Finding, SandboxState, Severity, SnapshotKind},
    id::SandboxId,
};

use super::{
    end::is_ending,
    host::{Host, failed, state_of},
    record::Record,
};

/// How many processes and files are told by name.
const NAMED: usize = 5;

/// How many descriptors are looked at: somebody inside can have millions.
const LOOK_AT: usize = 100_000;

impl Host {
    pub(super) fn findings(&self, id: SandboxId, kind: SnapshotKind) -> DriverResult<Vec<Finding>> {
        let record = self.record(id)?;
        if kind == SnapshotKind::Full {
            return self.full_findings(&record);
        }
        let left_out = |message: String| Finding { severity: Severity::LeftOut, message };
        let note =
            |message: &str| Finding { severity: Severity::Note, message: message.to_owned() };
        if state_of(&record) == SandboxState::Stopped {
            return Ok(vec![note("it is stopped: all of it is files")]);
        }
        let running = self.running_processes(&record)?;
        let mut findings = Vec::new();
        if let Some(message) = running.tell() {
            findings.push(left_out(message));
            findings.extend(running.open.tell().map(left_out));
            findings.push(note(
                "something runs: what changed is copied while it stands still, which takes longer than \
                 with nothing running",
            ));
        }
        findings.push(left_out("memory, and what is in `/dev/shm`".to_owned()));
        Ok(findings)
    }

    fn running_processes(&self, record: &Record) -> DriverResult<Running> {
        let Some(cgroup) = record.freezer() else {
            // Where there is no cgroup to ask, init knows how many there are, and no more.
            let count = match record.paused {
                true => 0,
                false => self.ask_init(record)?.1,
            };
            return Ok(Running { count, ..Running::default() });
        };
        let init = record.init.as_ref().map_or(0, |init| init.pid.cast_unsigned());
        let pids = cgroup.pids().map_err(failed("list the sandbox's processes"))?;
        let mut running = Running::default();
        for pid in pids.into_iter().filter(|pid| *pid != init && !is_ending(*pid)) {
            running.count += 1;
            if running.names.len() < NAMED {
                let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
                running.names.push(String::from_utf8_lossy(name.trim_ascii_end()).into_owned());
            }
            running.open.look(pid);
        }
        Ok(running)
    }
}

#[derive(Debug, Default)]
struct Running {
    count: usize,
    names: Vec<String>,
    open: OpenFiles,
}

impl Running {
    fn tell(&self) -> Option<String> {
        let what = match self.count {
            0 => return None,
            1 => "1 process that runs".to_owned(),
            count => format!("{count} processes that run"),
        };
        Some(format!("{what}{}", named(&self.names, self.count)))
    }
}

/// What processes hold open and no file tree shows.
#[derive(Debug, Default)]
struct OpenFiles {
    looked_at: usize,
    sockets: usize,
    deleted: Vec<String>,
    deleted_count: usize,
}

impl OpenFiles {
    fn look(&mut self, pid: u32) {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return };
        for descriptor in descriptors.flatten() {
            self.looked_at += 1;
            if self.looked_at > LOOK_AT {
                return;
            }
            let Ok(target) = fs::read_link(descriptor.path()) else { continue };
            self.sort(target.as_os_str().as_bytes());
        }
    }

    fn sort(&mut self, target: &[u8]) {
        if target.starts_with(b"socket:") {
            self.sockets += 1;
        } else if let Some(path) = target.strip_suffix(b" (deleted)")
            && path.starts_with(b"/")
            && !path.starts_with(b"/memfd:")
        {
            self.deleted_count += 1;
            if self.deleted.len() < NAMED {
                self.deleted.push(String::from_utf8_lossy(path).into_owned());
            }
        }
    }

    fn tell(&self) -> Option<String> {
        let sockets = (self.sockets > 0).then(|| match self.sockets {
            1 => "1 open socket".to_owned(),
            count => format!("{count} open sockets"),
        });
        let deleted = (self.deleted_count > 0).then(|| {
            let what = match self.deleted_count {
                1 => "1 file that is open and was deleted".to_owned(),
                count => format!("{count} files that are open and were deleted"),
            };
            format!("{what}{}", named(&self.deleted, self.deleted_count))
        });
        let all: Vec<String> = deleted.into_iter().chain(sockets).collect();
        (!all.is_empty()).then(|| all.join(", and "))
    }
}

fn named(names: &[String], count: usize) -> String {
    let more = if count > names.len() { ", …" } else { "" };
    match names.is_empty() {
        true => String::new(),
        false => format!(" ({}{more})", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_tree_shows_is_told_by_name() {
        let mut open = OpenFiles::default();
        for target in
            ["socket:[123]", "pipe:[4]", "/srv/kept", "/srv/gone (deleted)", "/memfd:x (deleted)"]
        {
            open.sort(target.as_bytes());
        }
        let told = open.tell();
        let expected = "1 file that is open and was deleted (/srv/gone), and 1 open socket";
        assert_eq!(told.as_deref(), Some(expected));
        for number in 0..9 {
            open.sort(format!("/srv/{number} (deleted)").as_bytes());
        }
        let told = open.tell().unwrap();
        assert!(told.contains("10 files") && told.contains(", …)"), "{told}");
        assert_eq!(OpenFiles::default().tell(), None);
    }
}
