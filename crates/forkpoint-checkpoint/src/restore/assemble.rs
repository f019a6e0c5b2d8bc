//! The scripts by which a copy of ours becomes a process of the image.

use std::io;

use super::{
    Numbers,
    board::{Room, park, tell_ready},
    rights::credentials,
};
use crate::{
    arch::{self, SPACE_END, SPACE_START},
    image::{
        Alive, Bytes, Chain, Lock, Mapping, MappingKind, Piece, PosixTimer, RecordLock, Thread,
    },
    pager::Lazy,
    ranges::Range,
    script::Script,
    sys::{PAGE, fault::Maker, socket::record, task::LIMITS},
};

/// What a process runs to become another.
#[derive(Debug)]
pub(super) struct Assembled {
    /// Where all of it is; nothing of the image is there.
    pub(super) area: Range,
    /// Of the leader, then of each other thread.
    pub(super) scripts: Vec<Script>,
    /// How many calls at the end of each only wait.
    pub(super) parking: usize,
    /// What goes behind [`Room::DATA`].
    pub(super) bytes: Vec<u8>,
    /// Which of the leader's calls makes the descriptor by which missing pages are asked for.
    pub(super) asks: Option<usize>,
}

/// What is to be assembled.
#[derive(Clone, Copy)]
pub(super) struct Whole<'a> {
    pub(super) pid: i32,
    pub(super) alive: &'a Alive,
    pub(super) chain: &'a Chain,
    pub(super) numbers: &'a Numbers,
    /// What comes later, if anything.
    pub(super) lazy: Option<&'a Lazy>,
}

impl Whole<'_> {
    /// Pages that are there before the process runs, for each mapping.
    fn eager(&self) -> Vec<Vec<Piece>> {
        let eager = |mapping: &Mapping| {
            let pieces = self.chain.pieces(self.pid, mapping);
            self.lazy.map_or_else(|| pieces.to_vec(), |lazy| lazy.not_in(pieces))
        };
        self.alive.mappings.iter().map(eager).collect()
    }
}

/// Nothing may be closer to a stack that grows.
const MARGIN: u64 = 2 << 20;
/// What the kernel maps for itself is smaller.
const KERNEL_PAGES: u64 = 64 * PAGE;
const PARKED: usize = 16;
const THREAD_DATA: usize = 4 << 10;

pub(super) fn assemble(whole: Whole<'_>, taken: &[Range]) -> io::Result<Assembled> {
    let eager = whole.eager();
    let find = |len| {
        hole(len, whole.alive, taken).ok_or_else(|| io::Error::other("no room for its scripts"))
    };
    let guess = whole_len(whole, &eager);
    let assembled = at(find(guess)?, whole, &eager)?;
    let len = assembled.area.1 - assembled.area.0;
    if len <= guess { Ok(assembled) } else { at(find(len)?, whole, &eager) }
}

/// About as much as all scripts will need, and rarely less.
fn whole_len(whole: Whole<'_>, eager: &[Vec<Piece>]) -> u64 {
    const CALLS: usize = 256;
    let threads = whole.alive.threads[1..].iter();
    let threads = threads.map(|thread| thread_data(thread) + (CALLS + thread.pending.len()) * 56);
    let threads: usize = threads.sum();
    Room::DATA + (threads as u64 + leader_len(whole, eager)).next_multiple_of(PAGE)
}

/// With what is kept free on both sides.
pub(crate) fn around(mapping: &Mapping) -> Range {
    (mapping.start.saturating_sub(MARGIN), mapping.end + MARGIN)
}

/// Room that neither the image nor this process uses.
pub(crate) fn hole(len: u64, alive: &Alive, taken: &[Range]) -> Option<u64> {
    let mut all: Vec<Range> = taken.to_vec();
    all.extend(alive.mappings.iter().map(around));
    all.extend(alive.space.vdso.map(|start| (start, start + KERNEL_PAGES)));
    all.sort_unstable();
    let mut start = SPACE_START;
    for (taken_start, taken_end) in all {
        if start + len <= taken_start {
            return Some(start);
        }
        start = start.max(taken_end);
    }
    (start + len <= SPACE_END).then_some(start)
}

fn at(start: u64, whole: Whole<'_>, eager: &[Vec<Piece>]) -> io::Result<Assembled> {
    let Whole { pid, alive, numbers, .. } = whole;
    let mut bytes = Vec::new();
    let board = start + Room::BOARD;
    let data = |bytes: &Vec<u8>| start + Room::DATA + bytes.len() as u64;
    let mut others = Vec::new();
    for thread in &alive.threads[1..] {
        let mut script = Script::new(data(&bytes), thread_data(thread));
        tail(&mut script, pid, thread, board)?;
        add(&mut bytes, &script);
        others.push(script);
    }
    let mut leader = Script::new(data(&bytes), leader_data(alive));
    let len = bytes.len() as u64 + leader_len(whole, eager);
    let area = (start, (start + Room::DATA + len).next_multiple_of(PAGE));
    clear(&mut leader, area, alive);
    for (mapping, eager) in alive.mappings.iter().zip(eager) {
        let shares = whole.chain.is_shared() && can_be_shared(mapping);
        map(&mut leader, mapping, numbers, eager, shares)?;
    }
    let asks = whole.lazy.and(numbers.faults).map(|(_, to)| leader.push(Maker::call(to)));
    describe_space(&mut leader, alive, numbers)?;
    leader.call(libc::SYS_close_range, &[numbers.base as u64, u32::MAX.into(), 0]);
    // Closing any descriptor of a file gives back the process's locks of it.
    record_locks(&mut leader, alive)?;
    signals(&mut leader, pid, alive)?;
    timers(&mut leader, alive)?;
    for (thread, script) in alive.threads[1..].iter().zip(&others) {
        start_thread(&mut leader, thread, script)?;
    }
    limits(&mut leader, alive)?;
    if alive.subreaper {
        leader.call(libc::SYS_prctl, &[libc::PR_SET_CHILD_SUBREAPER as u64, 1]);
    }
    tail_of_leader(&mut leader, pid, alive, board)?;
    add(&mut bytes, &leader);
    if bytes.len() as u64 > len {
        return Err(io::Error::other("the steps are longer than was counted"));
    }
    let scripts = [leader].into_iter().chain(others).collect();
    Ok(Assembled { area, scripts, parking: PARKED + 1, bytes, asks })
}

fn add(bytes: &mut Vec<u8>, script: &Script) {
    // Nobody comes behind the last call.
    bytes.extend(script.bytes(&[u64::MAX]));
    bytes.resize(bytes.len().next_multiple_of(64), 0);
}

fn thread_data(thread: &Thread) -> usize {
    let filters: usize = thread.filters.iter().map(|filter| filter.len() * 8 + 128).sum();
    THREAD_DATA + 192 * thread.pending.len() + filters + thread.credentials.groups.len() * 4
}

fn leader_data(alive: &Alive) -> usize {
    let fixed = 64 * 80 + 3 * 64 + LIMITS as usize * 64 + alive.space.auxv.0.len() + 1024;
    let timers = alive.posix_timers.len() * 256 + alive.locks.len() * 64;
    let threads = alive.threads.len() * 256;
    fixed + timers + threads + 192 * alive.pending.len() + thread_data(&alive.threads[0])
}

/// At least as long as the leader's script will be.
fn leader_len(whole: Whole<'_>, eager: &[Vec<Piece>]) -> u64 {
    let alive = whole.alive;
    let pieces: usize = eager.iter().map(Vec::len).sum();
    let advice: usize = alive.mappings.iter().map(|m| m.advice.len() + m.guards.len()).sum();
    let calls = 512
        + advice
        + alive.mappings.len() * 3
        + pieces
        + alive.threads.len() * 2
        + alive.posix_timers.len() * 3
        + alive.locks.len()
        + alive.pending.len()
        + alive.threads[0].pending.len();
    (leader_data(alive) + calls * 56 + 4096) as u64
}

/// Takes everything away but what runs, and puts the kernel's own pages where they were.
fn clear(script: &mut Script, area: Range, alive: &Alive) {
    script.call(libc::SYS_munmap, &[0, area.0]);
    script.call(libc::SYS_munmap, &[area.1, SPACE_END - area.1]);
    if let Some(start) = alive.space.vdso {
        script.push(arch::map_vdso(start));
    }
}

/// What is smaller is copied: a mapping of its own costs more.
const SHARED_MIN: u64 = 16 * PAGE;

fn can_be_shared(mapping: &Mapping) -> bool {
    matches!(mapping.kind, MappingKind::Anonymous { grows_down: false })
}

/// `shares`: large pieces are seen where the image has them, until they are written to.
fn map(
    script: &mut Script,
    mapping: &Mapping,
    numbers: &Numbers,
    eager: &[Piece],
    shares: bool,
) -> io::Result<()> {
    const WRITE: u32 = 2;
    let (start, len) = (mapping.start, mapping.len());
    let is_shared = |piece: &&Piece| shares && piece.end - piece.start >= SHARED_MIN;
    let copies = || eager.iter().filter(|piece| !is_shared(piece));
    let must_open = copies().next().is_some() && mapping.access & WRITE == 0;
    let access = u64::from(if must_open { mapping.access | WRITE } else { mapping.access });
    let private = (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64;
    let anonymous = anonymous_flags(mapping) as u64;
    let (flags, file, offset) = match &mapping.kind {
        MappingKind::Segment { id } => {
            attach(script, *id, mapping);
            advise(script, mapping);
            return Ok(());
        }
        MappingKind::Anonymous { .. } => (anonymous, u64::MAX, 0),
        MappingKind::Private { path, offset, .. } => {
            (private, numbers.mapped(path)? as u64, *offset)
        }
        MappingKind::Memory { memory, offset, private: true } => {
            (private, numbers.memory(memory)? as u64, *offset)
        }
        MappingKind::Memory { memory, offset, private: false } => {
            let shared = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
            (shared, numbers.memory(memory)? as u64, *offset)
        }
        MappingKind::Shared { path, offset, .. } => {
            let shared = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
            (shared, numbers.mapped(path)? as u64, *offset)
        }
    };
    script.call(libc::SYS_mmap, &[start, len, access, flags, file, offset]);
    for piece in copies() {
        let pages = numbers.pages(piece.image) as u64;
        script.call(libc::SYS_pread64, &[pages, piece.start, piece.end - piece.start, piece.at]);
    }
    if must_open {
        script.call(libc::SYS_mprotect, &[start, len, mapping.access.into()]);
    }
    for piece in eager.iter().filter(is_shared) {
        let (len, access) = (piece.end - piece.start, mapping.access.into());
        let flags = private | libc::MAP_NORESERVE as u64;
        let pages = numbers.pages(piece.image) as u64;
        script.call(libc::SYS_mmap, &[piece.start, len, access, flags, pages, piece.at]);
    }
    advise(script, mapping);
    Ok(())
}

/// How memory without a file is mapped where it was.
pub(crate) fn anonymous_flags(mapping: &Mapping) -> i32 {
    const DROPPABLE: i32 = 8;
    let kind = if mapping.droppable { DROPPABLE } else { libc::MAP_PRIVATE };
    let grows = match mapping.kind {
        MappingKind::Anonymous { grows_down: true } => libc::MAP_GROWSDOWN | libc::MAP_STACK,
        _ => 0,
    };
    kind | grows | libc::MAP_FIXED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE
}

fn attach(script: &mut Script, id: i32, mapping: &Mapping) {
    const EXECUTE: i32 = 0o100_000;
    let mut flags = 0;
    if mapping.access & 2 == 0 {
        flags |= libc::SHM_RDONLY;
    }
    if mapping.access & 4 != 0 {
        flags |= EXECUTE;
    }
    script.call(libc::SYS_shmat, &[id as u64, mapping.start, flags as u64]);
    if mapping.access & 1 == 0 {
        script.call(libc::SYS_mprotect, &[mapping.start, mapping.len(), mapping.access.into()]);
    }
}

pub(crate) fn advise(script: &mut Script, mapping: &Mapping) {
    const GUARD_INSTALL: u64 = 102;
    for advice in &mapping.advice {
        script.call(libc::SYS_madvise, &[mapping.start, mapping.len(), *advice as u64]);
    }
    for (start, end) in &mapping.guards {
        script.call(libc::SYS_madvise, &[*start, end - start, GUARD_INSTALL]);
    }
}

fn describe_space(script: &mut Script, alive: &Alive, numbers: &Numbers) -> io::Result<()> {
    const SET_MAP: u64 = 14;
    let space = &alive.space;
    let auxv = script.put(&space.auxv.0)?;
    let exe = numbers.mapped(&space.exe)? as u64;
    let mut words = space.fields.to_vec();
    words.extend([auxv, space.auxv.0.len() as u64 | exe << 32]);
    let map = script.put_words(&words)?;
    let len = words.len() as u64 * 8;
    script.call(libc::SYS_prctl, &[libc::PR_SET_MM as u64, SET_MAP, map, len]);
    Ok(())
}

pub(crate) fn record_locks(script: &mut Script, alive: &Alive) -> io::Result<()> {
    for RecordLock { descriptor, range } in &alive.locks {
        let exclusive = range.lock == Lock::Exclusive;
        let record = script.put_words(&record(exclusive, range.start, range.end))?;
        script.call(libc::SYS_fcntl, &[*descriptor as u64, libc::F_SETLK as u64, record]);
    }
    Ok(())
}

fn signals(script: &mut Script, pid: i32, alive: &Alive) -> io::Result<()> {
    for (signal, action) in (1..).zip(&alive.actions) {
        if matches!(signal, libc::SIGKILL | libc::SIGSTOP) {
            continue;
        }
        let action = script.put_words(action)?;
        script.call(libc::SYS_rt_sigaction, &[signal as u64, action, 0, 8]);
    }
    for info in &alive.pending {
        let at = script.put(&info.0)?;
        script.call(libc::SYS_rt_sigqueueinfo, &[pid as u64, signal_of(info), at]);
    }
    Ok(())
}

fn signal_of(info: &Bytes) -> u64 {
    info.0.first().copied().unwrap_or(0).into()
}

fn timers(script: &mut Script, alive: &Alive) -> io::Result<()> {
    for (kind, timer) in alive.timers.iter().enumerate() {
        if timer[2..] != [0, 0] {
            let at = script.put_words(timer)?;
            script.call(libc::SYS_setitimer, &[kind as u64, at, 0]);
        }
    }
    if alive.posix_timers.is_empty() {
        return Ok(());
    }
    const CREATE_RESTORE_IDS: u64 = 77;
    script.call(libc::SYS_prctl, &[CREATE_RESTORE_IDS, 1, 0, 0, 0]);
    for timer in &alive.posix_timers {
        posix_timer(script, timer)?;
    }
    script.call(libc::SYS_prctl, &[CREATE_RESTORE_IDS, 0, 0, 0, 0]);
    Ok(())
}

fn posix_timer(script: &mut Script, timer: &PosixTimer) -> io::Result<()> {
    let mut event =
        vec![timer.value, timer.signal as u64 & 0xffff_ffff | (timer.notify as u64) << 32];
    event.push(timer.thread as u64);
    event.extend([0; 5]);
    let event = script.put_words(&event)?;
    let id = script.put_words(&[timer.id as u64])?;
    script.call(libc::SYS_timer_create, &[timer.clock as u64, event, id]);
    if timer.time[2..] != [0, 0] {
        let time = script.put_words(&timer.time)?;
        script.call(libc::SYS_timer_settime, &[timer.id as u64, 0, time, 0]);
    }
    Ok(())
}

/// A thread's stack is its script.
fn start_thread(script: &mut Script, thread: &Thread, its: &Script) -> io::Result<()> {
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM;
    let tid = script.put_words(&[thread.tid as u64])?;
    const STACK: u64 = 64;
    let stack = its.start() - STACK;
    let args = [flags as u64, 0, 0, 0, 0, stack, STACK, 0, tid, 1, 0];
    let at = script.put_words(&args)?;
    script.call(libc::SYS_clone3, &[at, 8 * args.len() as u64]);
    Ok(())
}

fn limits(script: &mut Script, alive: &Alive) -> io::Result<()> {
    for (kind, (soft, hard)) in alive.limits.iter().enumerate() {
        let limit = script.put_words(&[*soft, *hard])?;
        script.call(libc::SYS_prlimit64, &[0, kind as u64, limit, 0]);
    }
    Ok(())
}

fn tail_of_leader(script: &mut Script, pid: i32, alive: &Alive, board: u64) -> io::Result<()> {
    let thread = &alive.threads[0];
    own_state(script, pid, thread)?;
    credentials(script, &thread.credentials)?;
    if alive.dumpable <= 1 {
        let state = alive.dumpable.into();
        script.call(libc::SYS_prctl, &[libc::PR_SET_DUMPABLE as u64, state]);
    }
    end(script, thread, board)
}

fn tail(script: &mut Script, pid: i32, thread: &Thread, board: u64) -> io::Result<()> {
    own_state(script, pid, thread)?;
    credentials(script, &thread.credentials)?;
    end(script, thread, board)
}

fn own_state(script: &mut Script, pid: i32, thread: &Thread) -> io::Result<()> {
    let mut name = thread.name.as_bytes().to_vec();
    name.push(0);
    let name = script.put(&name)?;
    script.call(libc::SYS_prctl, &[libc::PR_SET_NAME as u64, name]);
    script.call(libc::SYS_set_tid_address, &[thread.clear_tid]);
    if thread.robust_list.0 != 0 {
        script.call(libc::SYS_set_robust_list, &[thread.robust_list.0, thread.robust_list.1]);
    }
    if let Some((address, len, signature)) = thread.rseq {
        script.call(libc::SYS_rseq, &[address, len.into(), 0, signature.into()]);
    }
    // Also where there is none: a copy of ours has inherited one of ours.
    let stack = script.put_words(&thread.signal_stack)?;
    script.call(libc::SYS_sigaltstack, &[stack, 0]);
    for info in &thread.pending {
        let at = script.put(&info.0)?;
        let (pid, tid) = (pid as u64, thread.tid as u64);
        script.call(libc::SYS_rt_tgsigqueueinfo, &[pid, tid, signal_of(info), at]);
    }
    scheduling(script, thread)
}

fn scheduling(script: &mut Script, thread: &Thread) -> io::Result<()> {
    let [policy, priority, nice] = thread.scheduling;
    if policy != i64::from(libc::SCHED_OTHER) || priority != 0 {
        let param = script.put_words(&[priority as u64])?;
        script.call(libc::SYS_sched_setscheduler, &[0, policy as u64, param]);
    }
    if nice != 0 {
        let whose = libc::PRIO_PROCESS as u64;
        script.call(libc::SYS_setpriority, &[whose, 0, nice as u64]);
    }
    if !thread.affinity.0.is_empty() {
        let bits = script.put(&thread.affinity.0)?;
        let len = thread.affinity.0.len() as u64;
        script.call(libc::SYS_sched_setaffinity, &[0, len, bits]);
    }
    let slack = libc::PR_SET_TIMERSLACK as u64;
    script.call(libc::SYS_prctl, &[slack, thread.timer_slack]);
    Ok(())
}

/// Whatever may forbid something comes last.
fn end(script: &mut Script, thread: &Thread, board: u64) -> io::Result<()> {
    if thread.death_signal != 0 {
        let signal = thread.death_signal as u64;
        script.call(libc::SYS_prctl, &[libc::PR_SET_PDEATHSIG as u64, signal]);
    }
    let mut filters = Vec::new();
    for filter in &thread.filters {
        let code = script.put_words(filter)?;
        filters.push(script.put_words(&[filter.len() as u64, code])?);
    }
    if thread.credentials.no_new_privs {
        script.call(libc::SYS_prctl, &[libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0]);
    }
    for filter in filters {
        let mode = u64::from(libc::SECCOMP_SET_MODE_FILTER);
        script.call(libc::SYS_seccomp, &[mode, libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW, filter]);
    }
    script.push(tell_ready(board));
    for _ in 0..PARKED {
        script.push(park(board));
    }
    script.call(libc::SYS_exit_group, &[1]);
    Ok(())
}
