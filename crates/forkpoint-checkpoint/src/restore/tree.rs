//! Processes with the numbers, parents, groups and sessions that they had.
//!
//! A process makes its children before it becomes another program, so that they have the right parent. Where
//! the leader of a session or a group is gone, a stand-in has its number until the others have joined.

#![expect(unsafe_code, reason = "a copy of this process becomes another program")]

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{BorrowedFd, RawFd},
};

use rustix::{
    fs::Mode,
    process::{
        DumpableBehavior, Pid, WaitId, WaitIdOptions, WaitOptions, chdir, getpgid, getpid, getsid,
        set_dumpable_behavior, setpgid, setsid, umask, waitid, waitpid,
    },
};

use super::{Assembled, Plan, board::Room, spread::Spread};
use crate::{
    arch,
    error::{Doing as _, Error, Result},
    image::{Alive, Descriptor, FileKind, Life, OpenFile, Process},
    sys::{
        socket::{set_terminal_group, take_terminal},
        task::{block_signals, end_as, fork_as, give_way, kill, set_signals},
    },
};

/// Makes all processes of the plan below the calling one.
pub(super) fn spawn(plan: &Plan<'_>) -> Result<()> {
    let mask = block_signals();
    let all: Vec<usize> = (0..plan.snapshot().processes.len()).collect();
    // Else a copy that was just made may run at once where its parent runs, before the parent has sent it elsewhere.
    let spread = Spread::of(plan.snapshot(), give_way());
    let origin = Origin { spread, score: own_score() };
    let result = children(plan, &origin, 1, &all);
    origin.spread.take_way();
    set_signals(mask);
    result
}

/// What all copies have of process 1.
struct Origin {
    spread: Spread,
    /// For being killed when there is no memory, if that could be read.
    score: Option<i32>,
}

fn own_score() -> Option<i32> {
    std::fs::read_to_string(SCORE).ok()?.trim().parse().ok()
}

const SCORE: &str = "/proc/self/oom_score_adj";

/// Children of the process `parent`, which is the calling one.
fn children(plan: &Plan<'_>, origin: &Origin, parent: i32, among: &[usize]) -> Result<()> {
    let processes = &plan.snapshot().processes;
    let own_session = session();
    let mut orphaned: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    let mut direct = Vec::new();
    for index in among.iter().copied().filter(|index| processes[*index].parent == parent) {
        let Process { pid, session, .. } = processes[index];
        // Sessions of outside are init's.
        if session == pid || session == own_session || session <= 1 {
            direct.push(index);
        } else {
            orphaned.entry(session).or_default().push(index);
        }
    }
    for (session, members) in orphaned {
        stand_in_for_session(plan, origin, session, &members)?;
    }
    spawn_group(plan, origin, &direct)
}

fn session() -> i32 {
    getsid(None).map_or(0, Pid::as_raw_pid)
}

/// A leader that made the members and ended: they are init's now.
fn stand_in_for_session(
    plan: &Plan<'_>,
    origin: &Origin,
    session: i32,
    members: &[usize],
) -> Result<()> {
    let made = fork_as(session).doing("stand in for the session", session)?;
    let Some(pid) = made else {
        let result = setsid()
            .doing("begin the session", session)
            .and_then(|_| spawn_group(plan, origin, members));
        finish(plan, session, result)
    };
    reap(pid)
}

/// Ends this copy, with its failure told.
fn finish(plan: &Plan<'_>, pid: i32, result: Result<()>) -> ! {
    if let Err(err) = &result {
        plan.board.fail(pid, err);
    }
    end_as(if result.is_ok() { 0 } else { 1 << 8 })
}

fn reap(pid: i32) -> Result<()> {
    let wait = waitpid(Pid::from_raw(pid), WaitOptions::empty());
    wait.doing("wait for the end", pid).map(drop)
}

/// Makes processes, and puts each into its group.
fn spawn_group(plan: &Plan<'_>, origin: &Origin, members: &[usize]) -> Result<()> {
    let processes = &plan.snapshot().processes;
    let here = getpgid(None).map_or(0, Pid::as_raw_pid);
    for index in members {
        let process = &processes[*index];
        match fork_as(process.pid).doing("make a copy", process.pid)? {
            Some(pid) => origin.spread.send(*index, pid),
            None => {
                let result = become_process(plan, origin, *index);
                finish(plan, process.pid, result);
            }
        }
        if process.alive().is_none() {
            wait_for_death(process.pid).doing("wait for the end", process.pid)?;
        }
    }
    let joining = |process: &&Process| {
        process.session != process.pid
            && process.group != process.pid
            && process.group > 1
            && process.group != here
    };
    let joining: Vec<&Process> =
        members.iter().map(|index| &processes[*index]).filter(joining).collect();
    let wanted: BTreeSet<i32> = joining.iter().map(|process| process.group).collect();
    for group in wanted {
        let led = processes.iter().any(|process| process.pid == group);
        let stand_in = if led { None } else { stand_in_for_group(plan, group)? };
        for process in joining.iter().filter(|process| process.group == group) {
            join(process.pid, group)?;
        }
        if let Some(pid) = stand_in {
            kill(pid, libc::SIGKILL).doing("end the stand-in", pid)?;
            reap(pid)?;
        }
    }
    Ok(())
}

/// Its parent will ask for it later.
fn wait_for_death(pid: i32) -> io::Result<()> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let only_look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    Ok(waitid(WaitId::Pid(pid), only_look).map(drop)?)
}

fn stand_in_for_group(plan: &Plan<'_>, group: i32) -> Result<Option<i32>> {
    let made = fork_as(group).doing("stand in for the group", group)?;
    let Some(pid) = made else {
        if let Err(source) = setpgid(None, None) {
            let err =
                Error::Process { doing: "begin the group", pid: group, source: source.into() };
            finish(plan, group, Err(err));
        }
        loop {
            crate::sys::pause(std::time::Duration::from_secs(1));
        }
    };
    let number = Pid::from_raw(pid);
    setpgid(number, number).doing("begin the group", group)?;
    Ok(Some(pid))
}

/// The leader may be on its way to begin the group.
fn join(pid: i32, group: i32) -> Result<()> {
    let leader = Pid::from_raw(group);
    // A leader that is our own child is put at the head of its group by whoever comes first.
    let _ = setpgid(leader, leader);
    setpgid(Pid::from_raw(pid), leader).doing("join the group", pid)
}

fn become_process(plan: &Plan<'_>, origin: &Origin, index: usize) -> Result<()> {
    let process = &plan.snapshot().processes[index];
    let pid = process.pid;
    if getpid().as_raw_pid() != pid {
        return Err(Error::Ended { pid });
    }
    if process.session == pid {
        setsid().doing("begin the session", pid)?;
    } else if process.group == pid {
        setpgid(None, None).doing("begin the group", pid)?;
    }
    let alive = match &process.life {
        Life::Dead { status } => end_as(*status),
        Life::Alive(alive) => alive,
    };
    let terminal = if process.session == pid { alive.terminal } else { None };
    let terminal = terminal.map(|number| terminal_of(plan, number)).transpose()?;
    if let Some((fd, _)) = terminal {
        take_terminal(fd).doing("take the terminal", pid)?;
    }
    let all: Vec<usize> = (index + 1..plan.snapshot().processes.len()).collect();
    children(plan, origin, pid, &all)?;
    if let Some((fd, foreground @ 2..)) = terminal {
        set_terminal_group(fd, foreground).doing("set the terminal's group", pid)?;
    }
    let script = plan.steps.scripts[index].as_ref().ok_or(Error::Ended { pid })?;
    dress(plan, alive, pid, origin.score)?;
    origin.spread.take_way();
    enter(plan, script).doing("take the place", pid)
}

/// A descriptor of a terminal, and its foreground group.
fn terminal_of(plan: &Plan<'_>, wanted: u32) -> Result<(RawFd, i32)> {
    let mut found = (None, 0);
    for (index, file) in plan.snapshot().files.iter().enumerate() {
        match &file.kind {
            FileKind::Terminal { terminal } if *terminal == wanted => {
                found.0 = Some(plan.steps.numbers.file(index));
            }
            FileKind::Master { terminal, foreground, .. } if *terminal == wanted => {
                found.1 = *foreground;
            }
            _ => {}
        }
    }
    let source = io::Error::other("nobody has it open");
    let fd = found.0.ok_or(Error::System { doing: "find the controlling terminal", source })?;
    Ok((fd, found.1))
}

/// What a process has besides memory and what only a thread can set for itself.
fn dress(plan: &Plan<'_>, alive: &Alive, pid: i32, score: Option<i32>) -> Result<()> {
    // Whose files in `/proc` are somebody else's cannot write there.
    set_dumpable_behavior(DumpableBehavior::Dumpable).doing("open the state", pid)?;
    if score != Some(alive.oom_score_adj) {
        let written = std::fs::write(SCORE, alive.oom_score_adj.to_string());
        written.doing("set the memory score", pid)?;
    }
    chdir(&alive.cwd).file("change to", &alive.cwd)?;
    umask(Mode::from_raw_mode(alive.umask));
    descriptors(plan, &alive.descriptors).doing("place the descriptors", pid)
}

fn descriptors(plan: &Plan<'_>, all: &[Descriptor]) -> io::Result<()> {
    let needed = needed(plan, all);
    close_but(&needed, plan.steps.numbers.base);
    for Descriptor { file, .. } in all {
        let OpenFile { flags, kind, .. } = &plan.snapshot().files[*file];
        if let FileKind::Process { pid } = kind {
            open_process(*pid, *flags, plan.steps.numbers.file(*file))?;
        }
    }
    for Descriptor { file, .. } in all {
        if let FileKind::Poll { watched, targets, .. } = &plan.snapshot().files[*file].kind {
            watch(plan, plan.steps.numbers.file(*file), watched, targets)?;
        }
    }
    for Descriptor { number, file, close_on_exec } in all {
        put(plan.steps.numbers.file(*file), *number, *close_on_exec)?;
    }
    close_others(&needed, all);
    for Descriptor { number, file, .. } in all {
        if let FileKind::Poll { owner, watched, targets } = &plan.snapshot().files[*file].kind
            && owner == number
            && targets.is_empty()
        {
            watched.iter().try_for_each(|watched| poll(*number, watched.0, watched))?;
        }
    }
    Ok(())
}

/// Where files are that are opened at a number of theirs, of those that this process needs; in order.
fn needed(plan: &Plan<'_>, all: &[Descriptor]) -> Vec<RawFd> {
    let files = all.iter().flat_map(|Descriptor { file, .. }| {
        let targets = match &plan.snapshot().files[*file].kind {
            FileKind::Poll { targets, .. } => targets.as_slice(),
            _ => &[],
        };
        targets.iter().chain([file])
    });
    let numbers = files.map(|file| plan.steps.numbers.file(*file));
    let mut needed: Vec<RawFd> =
        numbers.filter(|number| *number < plan.steps.numbers.base).collect();
    needed.sort_unstable();
    needed.dedup();
    needed
}

/// Closes all below `end` but some, which are in order.
fn close_but(some: &[RawFd], end: RawFd) {
    let mut first = 0;
    for next in some.iter().copied().chain([end]) {
        if first < next {
            // SAFETY: whatever is there belongs to code that this copy never runs again.
            unsafe { libc::syscall(libc::SYS_close_range, first, next - 1, 0) };
        }
        first = next + 1;
    }
}

/// Those of others' numbers, when the process has its own.
fn close_others(needed: &[RawFd], all: &[Descriptor]) {
    if needed.is_empty() {
        return;
    }
    let own: BTreeSet<RawFd> = all.iter().map(|descriptor| descriptor.number).collect();
    for number in needed.iter().filter(|number| !own.contains(number)) {
        // SAFETY: it is a number of the plan, and this process has copied what it needs.
        unsafe { libc::close(*number) };
    }
}

/// What is there already is what it should be: of two who want a number, neither is.
fn put(from: RawFd, number: RawFd, close_on_exec: bool) -> io::Result<()> {
    let (copied, set) = match close_on_exec {
        true => (libc::O_CLOEXEC, libc::FD_CLOEXEC),
        false => (0, 0),
    };
    // SAFETY: both are numbers of the image or the plan, and what this process had itself was closed.
    let result = unsafe {
        match from == number {
            true => libc::fcntl(number, libc::F_SETFD, set),
            false => libc::dup3(from, number, copied),
        }
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// It is our child, or a child's.
fn open_process(pid: i32, flags: i32, number: RawFd) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;

    use rustix::process::{PidfdFlags, pidfd_open};
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let fd = pidfd_open(pid, PidfdFlags::from_bits_retain((flags & libc::O_NONBLOCK) as u32))?;
    // SAFETY: the number is one of the plan's, and holds the place.
    if unsafe { libc::dup3(fd.as_raw_fd(), number, libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

type Watched = (i32, u32, u64);

/// What a poll watches it knows by file and number, also where the number is another's by now: each is
/// there for a moment, and nothing else is yet.
fn watch(plan: &Plan<'_>, number: RawFd, all: &[Watched], targets: &[usize]) -> io::Result<()> {
    for (watched, target) in all.iter().zip(targets) {
        // SAFETY: nothing is there: no file is opened at such a number.
        if unsafe { libc::dup3(plan.steps.numbers.file(*target), watched.0, libc::O_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let added = poll(number, watched.0, watched);
        // SAFETY: made just now, and nobody's.
        unsafe { libc::close(watched.0) };
        added?;
    }
    Ok(())
}

fn poll(poll: RawFd, number: RawFd, (_, events, data): &Watched) -> io::Result<()> {
    use rustix::event::epoll::{EventData, EventFlags, add};
    // SAFETY: both are descriptors of the image, placed just now and closed by nobody meanwhile.
    let (poll, fd) = unsafe { (BorrowedFd::borrow_raw(poll), BorrowedFd::borrow_raw(number)) };
    match add(poll, fd, EventData::new_u64(*data), EventFlags::from_bits_retain(*events)) {
        // Two descriptors of one poll: the other was here first.
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(err) => Err(err.into()),
    }
}

fn enter(plan: &Plan<'_>, script: &Assembled) -> io::Result<()> {
    let (start, end) = script.area;
    let room = Room { start, len: end - start };
    room.make(arch::stub(), &script.bytes, &plan.board)?;
    arch::forget_rseq();
    let leader = script.scripts.first().map(crate::script::Script::start);
    let leader = leader.ok_or(io::ErrorKind::NotFound)?;
    // SAFETY: the stub and the script were just put there; what this process was is given up.
    unsafe { arch::enter(start + Room::CODE, leader) }
}
