//! Standing still: by the freezer of cgroups, or where there is none by signals from init.

use std::{os::fd::OwnedFd, time::Duration};

use forkpoint_core::{
    driver::{DriverError, DriverResult, SandboxState},
    id::SandboxId,
};

use super::{
    DRIVER,
    connection::ask_blocking,
    end::ends_soon,
    host::{Host, failed, io_error, state_of},
    init::{Reply, Request},
    launch::Isolation,
    record::Record,
    sandbox::{odd_reply, unreachable},
};

impl Host {
    /// For a seal. Nothing runs when this returns, until [`Host::let_go`]; the lock is the caller's.
    pub(super) fn hold_still(&self, id: SandboxId) -> DriverResult<OwnedFd> {
        let lock = self.lock(id)?;
        let record = self.finish(self.record(id)?)?;
        // Also one that its user paused: whoever did so may have died before it stood still.
        if record.is_alive() {
            unless_it_ended(self.freeze(record))?;
        }
        Ok(lock)
    }

    /// For a seal that stops the processes itself: what runs goes on, and nobody else is at work.
    pub(super) fn hold(&self, id: SandboxId) -> DriverResult<OwnedFd> {
        let lock = self.lock(id)?;
        let record = self.finish(self.record(id)?)?;
        if state_of(&record) == SandboxState::Paused {
            // Somebody left it so who died.
            self.let_go(id)?;
        }
        Ok(lock)
    }

    /// For somebody who writes into the sandbox from outside. A sandbox that stands still although
    /// nobody seals it was left so by one who died, and is set going first.
    pub(super) fn lock_for_writing(&self, id: SandboxId) -> DriverResult<OwnedFd> {
        let place = self.place(id);
        loop {
            let lock = place.lock_shared().map_err(io_error("lock", place.directory()))?;
            let lock = lock.ok_or(DriverError::SandboxMissing { driver: DRIVER, id })?;
            let record = self.record(id)?;
            if state_of(&record) != SandboxState::Paused || record.paused {
                return Ok(lock);
            }
            drop(lock);
            self.settle(id)?;
        }
    }

    /// Runs again, unless its user paused it.
    pub(super) fn let_go(&self, id: SandboxId) -> DriverResult<()> {
        let record = self.record(id)?;
        match record.is_alive() && !record.paused {
            true => unless_it_ended(self.thaw(record)),
            false => Ok(()),
        }
    }

    pub(super) fn settle(&self, id: SandboxId) -> DriverResult<()> {
        let Some(_lock) = self.try_lock(id)? else { return Ok(()) };
        let Some(record) = self.find(id)? else { return Ok(()) };
        let record = self.finish(record)?;
        match record.paused && record.is_alive() {
            true => unless_it_ended(self.freeze(record)),
            false => self.let_go(id),
        }
    }

    pub(super) fn pause(&self, id: SandboxId) -> DriverResult<()> {
        let _lock = self.lock(id)?;
        let record = self.awake(id)?;
        // Written first: a pause that was begun is ended by `resume`, not by `settle`.
        self.write(&Record { paused: true, ..record.clone() })?;
        let frozen = self.freeze(Record { paused: true, ..record.clone() });
        if frozen.is_err() {
            self.write(&record)?;
        }
        frozen
    }

    pub(super) fn resume(&self, id: SandboxId) -> DriverResult<()> {
        let _lock = self.lock(id)?;
        let record = self.awake(id)?;
        let record = Record { paused: false, ..record };
        self.write(&record)?;
        self.thaw(record)
    }

    fn awake(&self, id: SandboxId) -> DriverResult<Record> {
        let record = self.finish(self.record(id)?)?;
        match record.is_alive() {
            true => Ok(record),
            false => Err(DriverError::NotRunning { id, state: SandboxState::Stopped }),
        }
    }

    fn freeze(&self, record: Record) -> DriverResult<()> {
        if let Some(cgroup) = record.freezer() {
            return cgroup.freeze().map_err(failed("freeze the sandbox"));
        }
        self.tell_init(&record, &Request::Hold)?;
        self.write(&Record { held: true, ..record })
    }

    fn thaw(&self, record: Record) -> DriverResult<()> {
        if let Some(cgroup) = record.freezer() {
            return cgroup.thaw().map_err(failed("thaw the sandbox"));
        }
        self.tell_init(&record, &Request::Release)?;
        self.write(&Record { held: false, ..record })
    }

    /// Whoever waits for a command there ends it first and can say why: so a moment later.
    pub(super) fn end_in(&self, id: SandboxId, time: Duration) -> DriverResult<()> {
        const MOMENT: Duration = Duration::from_secs(1);
        let record = self.record(id)?;
        let ms = u64::try_from(time.saturating_add(MOMENT).as_millis()).unwrap_or(u64::MAX);
        match record.is_alive() {
            true => self.tell_init(&record, &Request::EndIn { ms }),
            false => Ok(()),
        }
    }

    /// One that does not answer because it is on its way out is not running: it closes its socket long
    /// before it is gone.
    pub(super) fn ask(
        &self,
        record: &Record,
        request: &Request,
    ) -> DriverResult<(Reply, Vec<OwnedFd>)> {
        let state = SandboxState::Stopped;
        ask_blocking(&self.place(record.id), record, request).map_err(|err| {
            match record.init.as_ref().is_none_or(ends_soon) {
                true => DriverError::NotRunning { id: record.id, state },
                false => unreachable(err),
            }
        })
    }

    fn tell_init(&self, record: &Record, request: &Request) -> DriverResult<()> {
        match self.ask(record, request)?.0 {
            Reply::Done => Ok(()),
            Reply::Failed(failure) => Err(failed("reach the sandbox's processes")(failure)),
            _ => Err(odd_reply()),
        }
    }

    /// On which device its root is, and how many processes it has. Init must not be frozen.
    pub(super) fn ask_init(&self, record: &Record) -> DriverResult<(u64, usize)> {
        match self.ask(record, &Request::Ping)?.0 {
            Reply::Pong { root_device, processes } => Ok((root_device, processes)),
            _ => Err(odd_reply()),
        }
    }

    /// Of users and of mounts, and the root, where the kernel does not show them: it does so to root only.
    pub(super) fn namespaces(&self, record: &Record) -> DriverResult<Vec<OwnedFd>> {
        if record.isolation != Isolation::Rootless {
            return Ok(Vec::new());
        }
        match self.ask(record, &Request::Namespaces)? {
            (Reply::Opened, fds) => Ok(fds),
            (Reply::Failed(failure), _) => Err(failed("look at the sandbox's init")(failure)),
            _ => Err(odd_reply()),
        }
    }
}

/// Whoever wanted to stop it, or to let it run, has what they wanted as far as it can be had.
fn unless_it_ended(done: DriverResult<()>) -> DriverResult<()> {
    match done {
        Err(DriverError::NotRunning { state: SandboxState::Stopped, .. }) => Ok(()),
        done => done,
    }
}
