//! Threads, as they are seen from outside.

use std::io;

use super::{
    proc::{Ids, Status},
    task::Common,
};
use crate::{
    arch,
    coverage::{Findings, NOT_TEXT, Whose},
    freeze::Task,
    image::{Bytes, Credentials, Thread},
    script::word,
    sys::{self, ptrace},
};

pub(super) fn look_at_thread(
    pid: i32,
    task: &mut Task,
    status: &Status,
    common: &Common,
    whose: &Whose,
    findings: &mut Findings,
) -> io::Result<Thread> {
    let tid = task.tid;
    if let Some(thing) = task.regs.unsupported() {
        findings.refuse(whose, thing, "only programs of 64 bits are captured");
    }
    if arch::has_shadow_stack(|key| status.text(key)) {
        findings.refuse(whose, "a shadow stack", "it cannot be brought back; run it without");
    }
    if !sys::is_whole_text(status.text("Name")) {
        findings.refuse(whose, NOT_TEXT.0, NOT_TEXT.1);
    }
    let rseq = ptrace::rseq(tid)?;
    if let Some((area, ..)) = rseq {
        leave_sequence(pid, task, area);
    }
    Ok(Thread {
        tid: status.last("NSpid")?,
        name: status.text("Name").to_owned(),
        registers: task.regs.restarted(),
        extended: Bytes(common.whole(|| arch::extended(tid))?),
        mask: task.mask,
        signal_stack: [0; 3],
        clear_tid: 0,
        robust_list: common.whole(|| sys::task::robust_list(tid))?,
        rseq,
        pending: infos(ptrace::pending(tid, false)?),
        credentials: credentials(status, common, whose, findings)?,
        death_signal: 0,
        scheduling: common.whole(|| sys::task::scheduling(tid))?,
        affinity: Bytes(common.whole(|| sys::task::affinity(tid))?),
        timer_slack: 0,
        filters: filters(tid, status, whose, findings),
    })
}

/// A restartable sequence is left by its own way out, as if it had been preempted: the kernel would do
/// that when it sees the thread elsewhere.
fn leave_sequence(pid: i32, task: &mut Task, area: u64) {
    let mut pointer = [0; 8];
    let mut section = [0; 32];
    let read =
        sys::memory::read(pid, area + 8, &mut pointer).and_then(|()| {
            match u64::from_le_bytes(pointer) {
                0 => Err(io::ErrorKind::NotFound.into()),
                address => sys::memory::read(pid, address, &mut section),
            }
        });
    if read.is_err() {
        return;
    }
    let (start, len, abort) = (word(&section, 8), word(&section, 16), word(&section, 24));
    if task.regs.instruction().wrapping_sub(start) < len {
        task.regs.go_to(abort);
        task.moved = true;
    }
}

fn credentials(
    status: &Status,
    common: &Common,
    whose: &Whose,
    findings: &mut Findings,
) -> io::Result<Credentials> {
    let mut inside = |ids: &Ids, outside: u32, what: &str| {
        ids.inside(outside).unwrap_or_else(|| {
            let thing = format!("{what} {outside}, which the sandbox does not know");
            findings.refuse(whose, thing, "only users of the sandbox are captured");
            0
        })
    };
    let mut four = |ids: &Ids, key: &str, what: &str| {
        let outside = status.numbers(key);
        let outside: [u32; 4] = outside.try_into().map_err(|_| io::Error::other("no ids"))?;
        Ok::<_, io::Error>(outside.map(|id| inside(ids, id, what)))
    };
    let uids = four(&common.uids, "Uid", "user")?;
    let gids = four(&common.gids, "Gid", "group")?;
    let groups = status.numbers("Groups");
    let groups = groups.into_iter().map(|id| inside(&common.gids, id, "group")).collect();
    Ok(Credentials {
        uids,
        gids,
        groups,
        inheritable: status.hex("CapInh")?,
        permitted: status.hex("CapPrm")?,
        effective: status.hex("CapEff")?,
        bounding: status.hex("CapBnd")?,
        ambient: status.hex("CapAmb")?,
        securebits: 0,
        no_new_privs: status.text("NoNewPrivs") == "1",
    })
}

fn filters(tid: i32, status: &Status, whose: &Whose, findings: &mut Findings) -> Vec<Vec<u64>> {
    const MAX: u64 = 64;
    match status.text("Seccomp") {
        "" | "0" => return Vec::new(),
        "2" => {}
        _ => {
            findings.refuse(whose, "strict seccomp", "it may make no call that would lead it");
            return Vec::new();
        }
    }
    let all = (0..MAX).map_while(|number| ptrace::filter(tid, number).transpose());
    match all.collect::<io::Result<Vec<_>>>() {
        Ok(mut filters) => {
            filters.reverse();
            filters
        }
        Err(err) => {
            findings.refuse(whose, "a seccomp filter", format!("it cannot be read ({err})"));
            Vec::new()
        }
    }
}

pub(super) fn infos(signals: Vec<ptrace::SignalInfo>) -> Vec<Bytes> {
    signals.into_iter().map(|info| Bytes(info.to_vec())).collect()
}
