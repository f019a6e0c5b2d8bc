//! The end of processes.

use std::{
    fs::{self, File},
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use forkpoint_core::id::SandboxId;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal, setpriority_process};

use super::{
    cgroup::Cgroup, connection::Line, host::Host, init::Request, record::InitRecord, spawner::Order,
};

/// How long a caller waits for processes that were killed to be gone. What takes longer (giving back
/// the memory of many files) goes on without anybody who waits.
const DEATH: Duration = Duration::from_micros(400);
const COMPLETE_DEATH: Duration = Duration::from_secs(10);

impl Host {
    /// Ends what the record names. Does not wait until the last file is let go of.
    pub(super) fn end(&self, init: Option<&InitRecord>, cgroup: Option<&Cgroup>) {
        if let Some(pidfd) = kill(init, cgroup) {
            wait_for_death(&pidfd, DEATH);
        }
        if let Some(cgroup) = cgroup {
            self.remove_cgroup(cgroup.clone());
        }
    }

    /// The same, and nothing of it is left: somebody is about to use what it wrote to.
    pub(super) fn end_completely(&self, init: Option<&InitRecord>, cgroup: Option<&Cgroup>) {
        if let Some(pidfd) = kill(init, cgroup) {
            wait_for_death(&pidfd, COMPLETE_DEATH);
        }
        // Waits for the last of it.
        if let Some(cgroup) = cgroup
            && cgroup.remove().is_err()
        {
            self.remove_cgroup(cgroup.clone());
        }
    }

    /// At once if it is empty, else when it is.
    pub(super) fn remove_cgroup(&self, cgroup: Cgroup) {
        if !cgroup.remove_now() {
            let store = self.root.join("store");
            let _ = self.client.tell(&Order::Sweep { store, cgroups: vec![cgroup] }, &[]);
        }
    }

    /// Lets a process that outlives us empty the trash, and let go of what is held.
    pub(super) fn sweep_later(&self, held: Option<OwnedFd>) {
        let order = Order::Sweep { store: self.root.join("store"), cgroups: Vec::new() };
        let fds: Vec<_> = held.iter().map(|fd| fd.as_fd()).collect();
        let _ = self.client.tell(&order, &fds);
    }

    /// What somebody began who died before a record told of it.
    pub(super) fn end_unrecorded(&self, id: SandboxId) {
        for cgroup in self.cgroups.find_named(&format!("{id}-")) {
            self.end(None, Some(&cgroup));
        }
    }

    /// Of one whose record is lost, and who may have no cgroup to be found by: it is asked to end.
    pub(super) fn end_unknown(&self, id: SandboxId) {
        let place = self.place(id);
        for socket in place.sockets() {
            // Nobody hears at those of earlier launches.
            let Ok(line) = Line::open_named(&place, &socket) else { continue };
            let told = line.send(&Request::EndIn { ms: 0 }, &[]).and_then(|()| line.receive());
            // It is closed by its end.
            let _ = told.and_then(|_| line.receive());
        }
    }
}

/// Keeps the mounts of a sandbox alive beyond its end. Otherwise the last work of its first process
/// is to let go of all files that it has in memory, at the expense of whoever waits. Not for one
/// that is to be started again on the same files.
pub(super) fn hold_mounts(init: Option<&InitRecord>) -> Option<OwnedFd> {
    let init = init.filter(|init| init.is_alive())?;
    Some(File::open(format!("/proc/{}/ns/mnt", init.pid)).ok()?.into())
}

/// Sends the signals, and waits for nothing.
pub(super) fn kill(init: Option<&InitRecord>, cgroup: Option<&Cgroup>) -> Option<OwnedFd> {
    if let Some(cgroup) = cgroup.filter(|cgroup| cgroup.can_freeze()) {
        let _ = cgroup.kill();
    }
    // With the first process go the others, also where there is no cgroup to kill.
    let init = init.filter(|init| init.is_alive())?;
    let pid = rustix::process::Pid::from_raw(init.pid)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // Whatever it has to do at its end is not to be at the expense of whoever waits for us.
    let _ = setpriority_process(Some(pid), 19);
    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    Some(pidfd)
}

/// Whether one that does not answer is gone after a moment.
pub(super) fn ends_soon(init: &InitRecord) -> bool {
    const MOMENT: Duration = Duration::from_secs(2);
    let pid = rustix::process::Pid::from_raw(init.pid).filter(|_| init.is_alive());
    if let Some(pidfd) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) {
        wait_for_death(&pidfd, MOMENT);
    }
    !init.is_alive()
}

fn wait_for_death(pidfd: &OwnedFd, time: Duration) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let wait =
        Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
    let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&wait));
}

/// A process that is on its way out writes nothing any more. Its first thread may have ended long
/// before the others, so all are asked.
pub(super) fn is_ending(pid: u32) -> bool {
    let Ok(mut threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.all(|thread| {
        let stat = thread.and_then(|thread| fs::read_to_string(thread.path().join("stat")));
        stat.map_or(true, |stat| is_thread_ending(&stat))
    })
}

fn is_thread_ending(stat: &str) -> bool {
    const PF_EXITING: u64 = 4;
    let flags = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(6)?.parse().ok());
    flags.is_some_and(|flags: u64| flags & PF_EXITING != 0)
}
