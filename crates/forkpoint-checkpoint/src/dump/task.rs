//! Processes and threads: what is read from outside, and what they are made to tell.

use std::{fs, io};

use super::{
    maps::Maps,
    proc::{Ids, Stat, Status, link},
};
use crate::{
    arch,
    coverage::{Findings, Whose},
    freeze::{Held, Task},
    hand::{Reins, quiet_signal},
    image::{Alive, Bytes, Credentials, PosixTimer, Space, Thread},
    script::{self, Call, Foothold, Outcome, Script, word},
    sys::{self, ptrace},
};

/// What all processes of a sandbox have in common.
#[derive(Debug)]
pub(super) struct Common {
    uids: Ids,
    gids: Ids,
    namespaces: Vec<(String, String)>,
}

const NAMESPACES: [&str; 8] =
    ["cgroup", "ipc", "mnt", "net", "pid_for_children", "time_for_children", "user", "uts"];

impl Common {
    pub(super) fn of(init: i32) -> io::Result<Self> {
        Ok(Self {
            uids: Ids::of(init, "uid_map")?,
            gids: Ids::of(init, "gid_map")?,
            namespaces: namespaces(init)?,
        })
    }
}

fn namespaces(pid: i32) -> io::Result<Vec<(String, String)>> {
    let one = |kind: &&str| Ok(((*kind).to_owned(), link(&format!("/proc/{pid}/ns/{kind}"))?));
    NAMESPACES.iter().map(one).collect()
}

/// A process on its way into an image.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) whose: Whose,
    pub(crate) parent_outside: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    pub(crate) alive: Alive,
    pub(crate) reins: Option<Reins>,
}

/// All that can be read from outside. Threads are in the order of `held.tasks`.
pub(super) fn look(held: &mut Held, common: &Common, findings: &mut Findings) -> io::Result<Draft> {
    let pid = held.pid;
    let status = Status::of(pid, pid)?;
    let stat = Stat::of(pid)?;
    let whose = Whose { pid: status.last("NSpid")?, name: status.text("Name").to_owned() };
    check_process(pid, &status, common, &whose, findings)?;
    let maps = Maps::of(pid, &whose, findings)?;
    if maps.vdso.is_none() {
        findings.refuse(&whose, "no vDSO", "without the kernel's own code it cannot be led");
    }
    let astray =
        |task: &Task| maps.vdso.is_some_and(|vdso| Foothold::has(vdso, task.regs.instruction()));
    if held.tasks.iter().any(astray) {
        // Somebody died while he led it: it is on its way back, which must not be taken from under its feet.
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let mut threads = Vec::with_capacity(held.tasks.len());
    for task in &mut held.tasks {
        threads.push(look_at_thread(pid, task, common, &whose, findings)?);
    }
    let mut waiting = status.hex("SigPnd")? | status.hex("ShdPnd")?;
    if held.tasks.iter().any(|task| task.job_stop != 0) {
        waiting |= 1 << (libc::SIGSTOP - 1);
    }
    let bell = quiet_signal(status.hex("SigCgt")?, status.hex("SigIgn")?, waiting);
    if bell.is_none() {
        findings.refuse(&whose, "a handler for every signal", "none is left to lead it by");
    }
    let numbers = threads.iter().map(|thread| thread.tid).collect();
    let reins = maps.vdso.zip(bell).map(|(vdso, bell)| Reins { vdso, numbers, bell });
    let posix_timers = posix_timers(pid, held, &threads, &whose, findings)?;
    let alive = Alive {
        space: space(pid, &stat, maps.kernel_start, &whose, findings)?,
        mappings: maps.mappings,
        descriptors: Vec::new(),
        cwd: directory(pid, &whose, findings)?,
        umask: status.octal("Umask")?,
        limits: sys::task::limits(pid)?,
        actions: Vec::new(),
        timers: Vec::new(),
        posix_timers,
        pending: infos(ptrace::pending(pid, true)?),
        terminal: terminal(&stat),
        job_stopped: held.tasks.iter().any(|task| task.job_stop != 0),
        subreaper: false,
        dumpable: 1,
        oom_score_adj: oom_score_adj(pid)?,
        locks: Vec::new(),
        threads,
    };
    Ok(Draft {
        whose,
        parent_outside: stat.number(4) as i32,
        group: status.last("NSpgid")?,
        session: status.last("NSsid")?,
        alive,
        reins,
    })
}

fn check_process(
    pid: i32,
    status: &Status,
    common: &Common,
    whose: &Whose,
    findings: &mut Findings,
) -> io::Result<()> {
    for ((kind, theirs), (_, inits)) in namespaces(pid)?.iter().zip(&common.namespaces) {
        if theirs != inits {
            let thing = format!("a {kind} namespace of its own");
            findings.refuse(whose, thing, "nested sandboxes are not captured");
        }
    }
    for (key, thing, reason) in [
        ("VmSwap", "swapped memory", "it would have to be read back first; free some memory"),
        ("VmLck", "locked memory", "locks on memory are not captured; unlock it first"),
        ("HugetlbPages", "huge pages", "they are the machine's; use ordinary memory"),
    ] {
        if status.number(key) != 0 {
            findings.refuse(whose, thing, reason);
        }
    }
    if link(&format!("/proc/{pid}/root"))? != "/" {
        findings.refuse(
            whose,
            "another root directory",
            "`chroot` is not captured; leave it first",
        );
    }
    Ok(())
}

fn look_at_thread(
    pid: i32,
    task: &mut Task,
    common: &Common,
    whose: &Whose,
    findings: &mut Findings,
) -> io::Result<Thread> {
    let tid = task.tid;
    let status = Status::of(pid, tid)?;
    if let Some(thing) = task.regs.unsupported() {
        findings.refuse(whose, thing, "only programs of 64 bits are captured");
    }
    if status.text("x86_Thread_features").contains("shstk") {
        findings.refuse(whose, "a shadow stack", "it cannot be brought back; run it without");
    }
    let rseq = ptrace::rseq(tid)?;
    if let Some((area, ..)) = rseq {
        leave_sequence(pid, task, area);
    }
    Ok(Thread {
        tid: status.last("NSpid")?,
        name: status.text("Name").to_owned(),
        registers: task.regs.restarted(),
        extended: Bytes(arch::extended(tid)?),
        mask: task.mask,
        signal_stack: [0; 3],
        clear_tid: 0,
        robust_list: sys::task::robust_list(tid)?,
        rseq,
        pending: infos(ptrace::pending(tid, false)?),
        credentials: credentials(&status, common, whose, findings)?,
        death_signal: 0,
        scheduling: sys::task::scheduling(tid)?,
        affinity: Bytes(sys::task::affinity(tid)?),
        timer_slack: 0,
        filters: filters(tid, &status, whose, findings),
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
            findings.refuse(whose, "a seccomp filter", &format!("it cannot be read ({err})"));
            Vec::new()
        }
    }
}

fn infos(signals: Vec<ptrace::SignalInfo>) -> Vec<Bytes> {
    signals.into_iter().map(|info| Bytes(info.to_vec())).collect()
}

/// Fields of `stat` in the order of `prctl_mm_map`; the sixth, the heap's end, only the process knows.
fn space(
    pid: i32,
    stat: &Stat,
    vdso: Option<u64>,
    whose: &Whose,
    findings: &mut Findings,
) -> io::Result<Space> {
    const HEAP_END: usize = 0;
    let fields = [26, 27, 45, 46, 47, HEAP_END, 28, 48, 49, 50, 51];
    let exe = link(&format!("/proc/{pid}/exe"))?;
    if exe.ends_with(" (deleted)") {
        findings.refuse(whose, "no program file any more", "it was replaced; restart the program");
    }
    Ok(Space {
        fields: fields.map(|field| if field == HEAP_END { 0 } else { stat.number(field) }),
        auxv: Bytes(fs::read(format!("/proc/{pid}/auxv"))?),
        exe,
        vdso,
    })
}

fn directory(pid: i32, whose: &Whose, findings: &mut Findings) -> io::Result<String> {
    let cwd = link(&format!("/proc/{pid}/cwd"))?;
    if cwd.ends_with(" (deleted)") {
        findings.refuse(whose, "a working directory that is deleted", "change to another one");
    }
    Ok(cwd)
}

/// The number of the controlling pseudo-terminal.
fn terminal(stat: &Stat) -> Option<u32> {
    const SLAVES: std::ops::RangeInclusive<u64> = 136..=143;
    let device = stat.number(7);
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xf_ff00));
    SLAVES.contains(&major).then(|| (minor + (major - SLAVES.start()) * (1 << 20)) as u32)
}

fn oom_score_adj(pid: i32) -> io::Result<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?;
    Ok(text.trim().parse().unwrap_or(0))
}

fn posix_timers(
    pid: i32,
    held: &Held,
    threads: &[Thread],
    whose: &Whose,
    findings: &mut Findings,
) -> io::Result<Vec<PosixTimer>> {
    let text = fs::read_to_string(format!("/proc/{pid}/timers")).unwrap_or_default();
    let mut timers = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for lines in lines.chunks(4) {
        let inside = |outside: i32| {
            let index = held.tasks.iter().position(|task| task.tid == outside)?;
            Some(threads[index].tid)
        };
        match posix_timer(lines, inside) {
            Some(timer) => timers.push(timer),
            None => findings.refuse(whose, "a timer", "how it tells of itself is not understood"),
        }
    }
    Ok(timers)
}

fn posix_timer(lines: &[&str], inside: impl Fn(i32) -> Option<i32>) -> Option<PosixTimer> {
    let field = |key: &str| lines.iter().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let (signal, value) = field("signal:")?.split_once('/')?;
    let (how, whom) = field("notify:")?.split_once('/')?;
    let (to, number) = whom.split_once('.')?;
    let notify = match (how, to) {
        ("signal", "pid") => libc::SIGEV_SIGNAL,
        ("none", _) => libc::SIGEV_NONE,
        ("signal" | "thread", "tid") => libc::SIGEV_THREAD_ID,
        _ => return None,
    };
    let thread = match notify {
        libc::SIGEV_THREAD_ID => inside(number.parse().ok()?)?,
        _ => 0,
    };
    Some(PosixTimer {
        id: field("ID:")?.parse().ok()?,
        clock: field("ClockID:")?.parse().ok()?,
        notify,
        signal: signal.parse().ok()?,
        value: u64::from_str_radix(value, 16).ok()?,
        thread,
        time: [0; 4],
    })
}

/// What a task is asked, and where its answers will be.
#[derive(Debug)]
pub(super) struct Questions {
    script: Script,
    stack: u64,
    clear_tid: u64,
    death_signal: u64,
    securebits: usize,
    timer_slack: usize,
    process: Option<ProcessQuestions>,
}

#[derive(Debug)]
struct ProcessQuestions {
    actions: u64,
    timers: u64,
    subreaper: u64,
    posix_timers: u64,
    heap_end: usize,
    dumpable: usize,
    /// That must be 0.
    zeros: [(usize, &'static str); 2],
    userfaultfd: Option<usize>,
}

const ACTIONS: usize = 64;
const PR_GET_TID_ADDRESS: u64 = 40;
const PR_GET_THP_DISABLE: u64 = 42;
const PR_GET_MDWE: u64 = 66;

impl Questions {
    /// For the task with this index; the first is asked for the whole process.
    pub(super) fn new(
        held: &Held,
        index: usize,
        alive: &Alive,
        userfaultfd: bool,
    ) -> io::Result<Self> {
        let data = if index == 0 { (8 << 10) + 64 * alive.posix_timers.len() } else { 512 };
        let mut script = held.script(index, data);
        let prctl = |script: &mut Script, args: &[u64]| script.call(libc::SYS_prctl, args);
        let stack = script.room(24)?;
        script.call(libc::SYS_sigaltstack, &[0, stack]);
        let clear_tid = script.room(8)?;
        prctl(&mut script, &[PR_GET_TID_ADDRESS, clear_tid]);
        let death_signal = script.room(8)?;
        prctl(&mut script, &[libc::PR_GET_PDEATHSIG as u64, death_signal]);
        let securebits = prctl(&mut script, &[libc::PR_GET_SECUREBITS as u64]);
        let timer_slack = prctl(&mut script, &[libc::PR_GET_TIMERSLACK as u64]);
        let process = match index {
            0 => Some(ProcessQuestions::add(&mut script, alive, userfaultfd)?),
            _ => None,
        };
        // For the way back, should we die.
        let frame = script::stack_in_frame(&script, script.calls().len() + 1);
        script.call(libc::SYS_sigaltstack, &[0, frame]);
        Ok(Self { script, stack, clear_tid, death_signal, securebits, timer_slack, process })
    }

    pub(super) fn script(&self) -> &Script {
        &self.script
    }

    pub(super) fn answer_thread(&self, outcome: &Outcome, thread: &mut Thread) -> io::Result<()> {
        thread.signal_stack = outcome.words(self.stack);
        thread.signal_stack[1] &= 0xffff_ffff;
        [thread.clear_tid] = outcome.words(self.clear_tid);
        let [signal] = outcome.words(self.death_signal);
        thread.death_signal = signal as i32;
        thread.credentials.securebits = outcome.result(self.securebits)? as u32;
        thread.timer_slack = outcome.result(self.timer_slack)?;
        Ok(())
    }

    /// The descriptor of a userfaultfd that it made, if it was asked to.
    pub(super) fn answer_process(
        &self,
        outcome: &Outcome,
        alive: &mut Alive,
        whose: &Whose,
        findings: &mut Findings,
    ) -> io::Result<Option<i32>> {
        let Some(asked) = &self.process else { return Ok(None) };
        let words = |at: u64, index: usize| outcome.words(at + 32 * index as u64);
        alive.actions = (0..ACTIONS).map(|index| words(asked.actions, index)).collect();
        alive.timers = (0..3).map(|index| whole_timer(words(asked.timers, index))).collect();
        for (index, timer) in alive.posix_timers.iter_mut().enumerate() {
            timer.time = words(asked.posix_timers, index);
        }
        let [subreaper] = outcome.words(asked.subreaper);
        alive.subreaper = subreaper as i32 != 0;
        alive.dumpable = outcome.result(asked.dumpable)? as u32;
        alive.space.fields[5] = outcome.result(asked.heap_end)?;
        for (call, thing) in asked.zeros {
            // A kernel that does not know the question has none.
            if outcome.result(call).is_ok_and(|value| value != 0) {
                findings.refuse(whose, thing, "it cannot be brought back; run it without");
            }
        }
        asked.userfaultfd.map(|call| Ok(outcome.result(call)? as i32)).transpose()
    }
}

/// A timer that rings again and again stands while its signal waits to be taken, and looks like none.
pub(super) fn whole_timer(timer: [u64; 4]) -> [u64; 4] {
    match timer {
        [seconds, rest, 0, 0] => [seconds, rest, seconds, rest],
        timer => timer,
    }
}

/// Nobody is ever asked through it, so it does not matter whose faults would be answered.
pub(super) fn make_userfaultfd() -> Call {
    Call::new(libc::SYS_userfaultfd, &[sys::memory::USERFAULTFD_FLAGS as u64])
}

impl ProcessQuestions {
    fn add(script: &mut Script, alive: &Alive, userfaultfd: bool) -> io::Result<Self> {
        let actions = script.room(32 * ACTIONS)?;
        for index in 0..ACTIONS as u64 {
            script.call(libc::SYS_rt_sigaction, &[index + 1, 0, actions + 32 * index, 8]);
        }
        let timers = script.room(32 * 3)?;
        for index in 0..3 {
            script.call(libc::SYS_getitimer, &[index, timers + 32 * index]);
        }
        let posix_timers = script.room(32 * alive.posix_timers.len())?;
        for (index, timer) in alive.posix_timers.iter().enumerate() {
            let at = posix_timers + 32 * index as u64;
            script.call(libc::SYS_timer_gettime, &[timer.id as u64, at]);
        }
        let subreaper = script.room(8)?;
        script.call(libc::SYS_prctl, &[libc::PR_GET_CHILD_SUBREAPER as u64, subreaper]);
        let dumpable = script.call(libc::SYS_prctl, &[libc::PR_GET_DUMPABLE as u64]);
        let zeros = [
            (script.call(libc::SYS_prctl, &[PR_GET_THP_DISABLE]), "huge pages switched off"),
            (script.call(libc::SYS_prctl, &[PR_GET_MDWE]), "memory that denies being executable"),
        ];
        let heap_end = script.call(libc::SYS_brk, &[0]);
        let userfaultfd = userfaultfd.then(|| script.push(make_userfaultfd()));
        Ok(Self {
            actions,
            timers,
            subreaper,
            posix_timers,
            heap_end,
            dumpable,
            zeros,
            userfaultfd,
        })
    }
}

const _: () = assert!(size_of::<libc::itimerval>() == 32, "as the kernel has it");
