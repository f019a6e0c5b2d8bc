//! Terminals whose other side a client had: somebody must read what is written to them.
//!
//! A copy of process 1 holds the masters and throws away what comes, until nobody has the terminals any more. As a copy of
//! process 1 it is part of no image; who captures a sandbox with one finds terminals of a client again. Its death is a
//! hang-up, as that of a client would have been.

use std::{
    collections::BTreeSet,
    os::fd::{BorrowedFd, RawFd},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{DumpableBehavior, set_dumpable_behavior},
    thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs},
};

use super::Plan;
use crate::{
    error::{Doing as _, Result},
    image::{FileKind, Process, Snapshot},
    sys::task::{end_as, fork_as},
};

/// Masters that no process of the image has.
fn masters(snapshot: &Snapshot) -> Vec<usize> {
    let alive = snapshot.processes.iter().filter_map(Process::alive);
    let held: BTreeSet<usize> =
        alive.flat_map(|alive| alive.descriptors.iter().map(|d| d.file)).collect();
    let is_master = |index: &usize| matches!(snapshot.files[*index].kind, FileKind::Master { .. });
    (0..snapshot.files.len()).filter(|index| is_master(index) && !held.contains(index)).collect()
}

/// The number of the keeper, if there is one: nobody of the image has it.
pub(super) fn number(snapshot: &Snapshot) -> Option<i32> {
    if masters(snapshot).is_empty() {
        return None;
    }
    let threads = |process: &Process| {
        let alive = process.alive();
        alive.map_or(Vec::new(), |alive| alive.threads.iter().map(|thread| thread.tid).collect())
    };
    let all = snapshot.processes.iter();
    let taken: BTreeSet<i32> = all
        .flat_map(|process| {
            let own = [process.pid, process.group, process.session];
            own.into_iter().chain(threads(process))
        })
        .collect();
    (2..).find(|number| !taken.contains(number))
}

/// Starts the keeper, below process 1, when all others are there.
pub(super) fn spawn(plan: &Plan<'_>) -> Result<()> {
    let snapshot = plan.snapshot();
    let Some(number) = number(snapshot) else { return Ok(()) };
    let masters: Vec<RawFd> =
        masters(snapshot).into_iter().map(|index| plan.steps.numbers.file(index)).collect();
    if fork_as(number).doing("keep the terminals", number)?.is_none() {
        keep(&masters);
        end_as(0);
    }
    Ok(())
}

fn keep(masters: &[RawFd]) {
    let mut last = 0;
    for master in masters.iter().copied() {
        close_between(last, master - 1);
        last = master + 1;
    }
    close_between(last, RawFd::MAX);
    let nothing = CapabilitySet::empty();
    let nothing = CapabilitySets { effective: nothing, permitted: nothing, inheritable: nothing };
    // Whoever cannot give up rights does without the terminals.
    if set_no_new_privs(true).is_err()
        || set_dumpable_behavior(DumpableBehavior::NotDumpable).is_err()
        || set_capabilities(None, nothing).is_err()
    {
        return;
    }
    let mut open = masters.to_vec();
    while !open.is_empty() {
        open = drain(&open);
    }
}

fn close_between(first: RawFd, last: RawFd) {
    if first <= last {
        #[expect(unsafe_code, reason = "a whole range is closed")]
        // SAFETY: this copy uses no other descriptor than the masters.
        unsafe {
            libc::syscall(libc::SYS_close_range, first, last, 0)
        };
    }
}

/// Waits until something comes, throws it away, and tells who is left.
fn drain(open: &[RawFd]) -> Vec<RawFd> {
    #[expect(unsafe_code, reason = "descriptors are known by their numbers")]
    // SAFETY: they are this process's, and nobody closes them.
    let fds: Vec<BorrowedFd<'_>> =
        open.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect();
    let mut waiting: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    if poll(&mut waiting, None).is_err() {
        return open.to_vec();
    }
    let ready = waiting.iter().map(|fd| !fd.revents().is_empty());
    let mut left = Vec::new();
    for ((fd, ready), number) in fds.iter().zip(ready).zip(open) {
        let over = ready
            && match rustix::io::read(fd, &mut [0; 4096]) {
                Ok(len) => len == 0,
                Err(Errno::AGAIN | Errno::INTR) => false,
                // Nobody has the other side any more.
                Err(_) => true,
            };
        if !over {
            left.push(*number);
        }
    }
    left
}
