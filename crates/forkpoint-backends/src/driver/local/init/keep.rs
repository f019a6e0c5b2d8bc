//! Commands that must not leave anything running.
//!
//! A process stands between init and such a command. Whatever of the command's is orphaned becomes a
//! child of that process and not of init, so all of it is found below it, whatever sessions or
//! groups it made for itself.

use std::io;

use forkpoint_core::driver::Leaves;
use rustix::{
    io::Errno,
    process::{Pid, WaitOptions, WaitStatus, getpid, set_child_subreaper, wait},
    thread::nanosleep,
    time::Timespec,
};

use super::{super::caps, processes, sys};

const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Returns in the process that is to become the command.
pub(super) fn stand_between(leaves: Leaves) -> io::Result<()> {
    if leaves == Leaves::Anything {
        return Ok(());
    }
    set_child_subreaper(Some(getpid()))?;
    match sys::fork()? {
        None => Ok(()),
        Some(command) => keep(command, leaves),
    }
}

/// All signals stay blocked, as init has them: those in the sandbox are not for this process.
fn keep(command: Pid, leaves: Leaves) -> ! {
    sys::close_from(3);
    if caps::limit_to_bounding().is_err() {
        end_all();
    }
    let code = wait_for(command);
    if leaves == Leaves::Nothing || code != 0 {
        end_all();
    }
    std::process::exit(code);
}

/// As shells tell it.
fn wait_for(command: Pid) -> i32 {
    let code = |status: WaitStatus| {
        let killed = || status.terminating_signal().map(|signal| 128 + signal);
        status.exit_status().or_else(killed).unwrap_or(1)
    };
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => return code(status),
            Err(Errno::CHILD) => return 1,
            _ => {}
        }
    }
}

/// Again and again: some may be born while others are told. Whoever has no children has nobody
/// below them either.
fn end_all() {
    loop {
        signal_below(getpid(), libc::SIGKILL);
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Err(Errno::CHILD) => return,
                Ok(None) | Err(_) => break,
            }
        }
        let _ = nanosleep(&PAUSE);
    }
}

/// To all that a process started, and that these started.
pub(super) fn signal_below(top: Pid, signal: i32) {
    let parents: Vec<(i32, i32)> =
        processes().into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![top.as_raw_nonzero().get()];
    let mut next = 0;
    while let Some(above) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid));
        next += 1;
    }
    for pid in &found[1..] {
        // It may have ended.
        let _ = sys::kill(*pid, signal);
    }
}

fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, and need not be UTF-8.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[end + 1..]).ok()?;
    rest.split_whitespace().nth(1)?.parse().ok()
}
