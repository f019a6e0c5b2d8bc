//! Namespaces that are there before anybody wants them.
//!
//! To make a network takes as long as all else that is new in a sandbox, and depends on nothing. So when nobody has asked
//! for anything for a moment, the spawner makes one for the next sandbox, with the users that it belongs to, and with those of
//! its mounts that know nothing of its processes. Nobody is in there, and it is used once.

use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    process::{Pid, Signal, kill_process},
    time::Timespec,
};

use super::map_all_owners;
use crate::driver::local::{
    launch::{self, Isolation},
    root::{self, Floor},
    sys,
    wire::{self, Failure},
};

/// Who has asked for something may ask for more.
pub(super) const QUIET: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Users as a sandbox has them, a network of theirs that has a loopback interface, and a floor.
#[derive(Debug)]
pub(in super::super) struct Spare {
    users: OwnedFd,
    network: OwnedFd,
    floor: Floor,
}

impl Spare {
    pub(super) fn make() -> io::Result<Self> {
        let (ours, theirs) = wire::pair()?;
        let Some(pid) = sys::clone(sys::NEW_USER | sys::NEW_NET | sys::NEW_MOUNTS, None)? else {
            drop(ours);
            let floor = prepare(&theirs);
            let fds: Vec<_> = floor.iter().map(|fd| fd.as_fd()).collect();
            let _ = wire::send(&theirs, &floor.as_ref().err(), &fds);
            // Ends when the other side closes, or ends it.
            let _ = wire::receive::<()>(&theirs);
            std::process::exit(0);
        };
        drop(theirs);
        let made = Self::of(pid, &ours);
        let _ = kill_process(pid, Signal::KILL);
        made
    }

    /// Of a process that was born into them.
    fn of(pid: Pid, process: &OwnedFd) -> io::Result<Self> {
        map_all_owners(pid)?;
        wire::send(process, &(), &[])?;
        let missing = || io::Error::other("it ended at once");
        let (failure, fds) = wire::receive::<Option<Failure>>(process)?.ok_or_else(missing)?;
        if let Some(failure) = failure {
            return Err(failure.to_io());
        }
        let open = |kind| File::open(format!("/proc/{}/ns/{kind}", pid.as_raw_nonzero()));
        let root = fds.into_iter().next().ok_or_else(missing)?;
        let floor = Floor { root, shared_memory_bytes: launch::shared_memory(None) };
        Ok(Self { users: open("user")?.into(), network: open("net")?.into(), floor })
    }

    /// Copies this process into them, and into new namespaces of all other kinds: `None` is the copy. With the floor.
    pub(in super::super) fn bear(
        self,
        cgroup: Option<BorrowedFd<'_>>,
    ) -> io::Result<(Option<Pid>, Floor)> {
        let Self { users, network, floor } = self;
        Ok((sys::clone_inside([users, network], sys::NEW_REST, cgroup)?, floor))
    }
}

fn prepare(spawner: &OwnedFd) -> Result<OwnedFd, Failure> {
    sys::restore_signals();
    launch::begin(Isolation::Mapped, true, spawner)?;
    root::make_furnished_floor(launch::shared_memory(None))
}
