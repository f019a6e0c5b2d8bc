//! Processes, as they are seen from outside.

use std::io::{self, Read as _};

use super::{
    CaptureSpec,
    maps::Maps,
    proc::{Ids, Stat, Status},
    thread::{infos, look_at_thread},
};
use crate::{
    coverage::{Findings, Whose},
    freeze::{Held, Task},
    hand::{Reins, quiet_signal},
    image::{Alive, Bytes, PosixTimer, Space, Thread},
    mounts::Names,
    script::Foothold,
    sys::{self, Proc, ptrace},
};

/// How much of a process is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// All that an image has.
    Whole,
    /// By what it is known whether it can be captured and is still what it was, and by what it is led.
    Outline,
}

/// What all processes of a sandbox have in common.
#[derive(Debug)]
pub(super) struct Common {
    depth: Depth,
    pub(super) uids: Ids,
    pub(super) gids: Ids,
    namespaces: Vec<String>,
    pub(super) names: Names,
}

const NAMESPACES: [&str; 8] = [
    "ns/cgroup",
    "ns/ipc",
    "ns/mnt",
    "ns/net",
    "ns/pid_for_children",
    "ns/time_for_children",
    "ns/user",
    "ns/uts",
];

impl Common {
    pub(super) fn of(init: i32, spec: &CaptureSpec, depth: Depth) -> io::Result<Self> {
        Ok(Self {
            depth,
            uids: Ids::of(init, "uid_map")?,
            gids: Ids::of(init, "gid_map")?,
            namespaces: namespaces(&Proc::of(init)?)?,
            names: Names::of(init, spec.mounts, spec.relocated),
        })
    }

    /// What only an image needs.
    pub(super) fn whole<T: Default>(&self, read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.depth {
            Depth::Whole => read(),
            Depth::Outline => Ok(T::default()),
        }
    }
}

fn namespaces(proc: &Proc) -> io::Result<Vec<String>> {
    NAMESPACES.iter().map(|kind| proc.link(kind)).collect()
}

/// A process on its way into an image.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) whose: Whose,
    pub(crate) proc: Proc,
    /// See [`Stat::started`].
    pub(crate) started: u64,
    pub(crate) parent_outside: i32,
    /// The group in the foreground of its terminal.
    pub(crate) foreground_outside: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    pub(crate) alive: Alive,
    pub(crate) reins: Option<Reins>,
    /// Descriptors that somebody of ours had it make, who died before they were closed.
    pub(crate) left: Vec<i32>,
    /// Descriptors of which only it knows whether they are closed when it becomes another program.
    pub(crate) unsure: Vec<usize>,
}

/// All that can be read from outside. Threads are in the order of `held.tasks`.
pub(super) fn look(held: &mut Held, common: &Common, findings: &mut Findings) -> io::Result<Draft> {
    let pid = held.pid;
    let proc = Proc::of(pid)?;
    let status = Status::in_directory(&proc)?;
    let stat = Stat::in_directory(&proc)?;
    let whose = Whose { pid: status.last("NSpid")?, name: status.text("Name").to_owned() };
    check_process(&proc, &status, common, &whose, findings)?;
    let maps = Maps::of(&proc, &common.names, &whose, findings)?;
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
        // The leader's is that of the process.
        let own = if task.tid == pid { None } else { Some(Status::of_thread(&proc, task.tid)?) };
        let status = own.as_ref().unwrap_or(&status);
        threads.push(look_at_thread(pid, task, status, common, &whose, findings)?);
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
    let posix_timers = posix_timers(&proc, held, &threads, &whose, findings)?;
    let alive = Alive {
        space: space(&proc, &stat, maps.kernel_start, common, &whose, findings)?,
        mappings: maps.mappings,
        descriptors: Vec::new(),
        cwd: directory(&proc, &whose, findings)?,
        umask: status.octal("Umask")?,
        limits: common.whole(|| sys::task::limits(pid))?,
        actions: Vec::new(),
        timers: Vec::new(),
        posix_timers,
        pending: infos(ptrace::pending(pid, true)?),
        terminal: terminal(&stat),
        job_stopped: held.tasks.iter().any(|task| task.job_stop != 0),
        subreaper: false,
        dumpable: 1,
        oom_score_adj: common.whole(|| oom_score_adj(&proc))?,
        locks: Vec::new(),
        known_at: None,
        threads,
    };
    Ok(Draft {
        whose,
        proc,
        started: stat.started(),
        parent_outside: stat.number(4) as i32,
        foreground_outside: stat.number(8) as i32,
        group: status.last("NSpgid")?,
        session: status.last("NSsid")?,
        alive,
        reins,
        left: Vec::new(),
        unsure: Vec::new(),
    })
}

fn check_process(
    proc: &Proc,
    status: &Status,
    common: &Common,
    whose: &Whose,
    findings: &mut Findings,
) -> io::Result<()> {
    let theirs = namespaces(proc)?;
    for (kind, (theirs, inits)) in NAMESPACES.iter().zip(theirs.iter().zip(&common.namespaces)) {
        if theirs != inits {
            let kind = kind.trim_start_matches("ns/");
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
    if proc.link("root")? != "/" {
        findings.refuse(
            whose,
            "another root directory",
            "`chroot` is not captured; leave it first",
        );
    }
    Ok(())
}

/// Fields of `stat` in the order of `prctl_mm_map`; the sixth, the heap's end, only the process knows.
fn space(
    proc: &Proc,
    stat: &Stat,
    vdso: Option<u64>,
    common: &Common,
    whose: &Whose,
    findings: &mut Findings,
) -> io::Result<Space> {
    const HEAP_END: usize = 0;
    let fields = [26, 27, 45, 46, 47, HEAP_END, 28, 48, 49, 50, 51];
    let exe = proc.link("exe")?;
    if exe.ends_with(" (deleted)") {
        findings.refuse(whose, "no program file any more", "it was replaced; restart the program");
    }
    Ok(Space {
        fields: fields.map(|field| if field == HEAP_END { 0 } else { stat.number(field) }),
        auxv: Bytes(common.whole(|| read_bytes(proc, "auxv"))?),
        exe,
        vdso,
    })
}

fn read_bytes(proc: &Proc, name: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    proc.open(name)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn directory(proc: &Proc, whose: &Whose, findings: &mut Findings) -> io::Result<String> {
    let cwd = proc.link("cwd")?;
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

pub(crate) fn oom_score_adj(proc: &Proc) -> io::Result<i32> {
    let text = proc.text_at_once("oom_score_adj")?;
    Ok(text.trim().parse().unwrap_or(0))
}

fn posix_timers(
    proc: &Proc,
    held: &Held,
    threads: &[Thread],
    whose: &Whose,
    findings: &mut Findings,
) -> io::Result<Vec<PosixTimer>> {
    let text = proc.text("timers").unwrap_or_default();
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
