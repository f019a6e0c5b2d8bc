//! Whether what an image says can be true, before anything is done with it.

use std::collections::{HashMap, HashSet};

use super::{
    model::{
        Alive, Life, Mapping, MappingKind, Memory, Process, Segment, Snapshot, Stored, Thread,
    },
    open::{FileKind, FileLock, OpenFile, RangeLock},
};
use crate::{
    arch::{SPACE_END, SPACE_START},
    databases::PLACES_MAX,
    sys::{PAGE, task::LIMITS},
};

mod mounts;

const PROCESSES_MAX: usize = 1 << 15;
const THREADS_MAX: usize = 1 << 15;
const MAPPINGS_MAX: usize = 1 << 17;
const FILES_MAX: usize = 1 << 20;
const PID_MAX: i32 = 1 << 22;
const NUMBER_MAX: i32 = 1 << 20;
const TERMINAL_MAX: u32 = 1 << 20;
const LOCKS_MAX: usize = 1 << 16;
const WATCH_MAX: i32 = 1 << 20;
const ADVICE: [i32; 8] = [1, 2, 10, 12, 14, 15, 16, 18];
const SIGNALS: usize = 64;
const EXTENDED_MIN: usize = 576;
const EXTENDED_MAX: usize = 16 << 10;
const AUXV_MAX: usize = 1 << 12;
const FILTERS_MAX: usize = 64;
const FILTER_MAX: usize = 4096;

type Verdict = Result<(), String>;

fn must(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(what()) }
}

pub(super) fn snapshot(snapshot: &Snapshot, pages_len: u64) -> Verdict {
    let Snapshot { processes, files, memories, mounts, segments, machine: _ } = snapshot;
    must(processes.len() <= PROCESSES_MAX, || "too many processes".to_owned())?;
    must(files.len() <= FILES_MAX, || "too many open files".to_owned())?;
    must(pages_len.is_multiple_of(PAGE), || "half a page".to_owned())?;
    let mut numbers = HashSet::new();
    let mut seen = HashSet::from([1]);
    for process in processes {
        let told = |why: String| format!("process {}: {why}", process.pid);
        tree(process, &mut seen, &mut numbers).map_err(told)?;
        if let Life::Alive(alive) = &process.life {
            for thread in &alive.threads[1..] {
                must(numbers.insert(thread.tid), || {
                    format!("thread {} is there twice", thread.tid)
                })?;
            }
            self::alive(alive, files, pages_len).map_err(told)?;
        }
    }
    files.iter().enumerate().try_for_each(|(index, file)| {
        open_file(file, files.len()).map_err(|why| format!("open file {index}: {why}"))
    })?;
    memories.iter().try_for_each(|memory| self::memory(memory, pages_len))?;
    mounts::all(mounts, pages_len)?;
    segments.iter().try_for_each(|segment| self::segment(segment, pages_len))?;
    no_segment_is_missing(snapshot)?;
    no_memory_is_missing(snapshot)
}

fn memory(memory: &Memory, pages_len: u64) -> Verdict {
    let told = |what: &str| format!("memory {:?}: {what}", memory.id);
    must(memory.len_bytes < 1 << 47, || told("no such length"))?;
    must(memory.name.len() < 250 && !memory.name.contains('\0'), || told("no such name"))?;
    must(memory.mode <= 0o7777 && memory.seals < 1 << 8, || told("no such state"))?;
    let inside =
        |start, end| is_range(start, end) && end <= memory.len_bytes.next_multiple_of(PAGE);
    stored(&memory.stored, inside, pages_len).map_err(|why| told(&why))
}

fn segment(segment: &Segment, pages_len: u64) -> Verdict {
    let told = |what: &str| format!("segment {}: {what}", segment.id);
    must(segment.id >= 0 && segment.mode <= 0o777, || told("no such state"))?;
    must((1..1 << 47).contains(&segment.len_bytes), || told("no such length"))?;
    let end = segment.len_bytes.next_multiple_of(PAGE);
    let inside = |start, until| is_range(start, until) && until <= end;
    stored(&segment.stored, inside, pages_len).map_err(|why| told(&why))
}

fn no_segment_is_missing(snapshot: &Snapshot) -> Verdict {
    let lengths: HashMap<i32, u64> = snapshot
        .segments
        .iter()
        .map(|segment| (segment.id, segment.len_bytes.next_multiple_of(PAGE)))
        .collect();
    must(lengths.len() == snapshot.segments.len(), || "a segment is there twice".to_owned())?;
    let alive = snapshot.processes.iter().filter_map(Process::alive);
    let fits = alive.flat_map(|alive| &alive.mappings).all(|mapping| match mapping.kind {
        MappingKind::Segment { id } => lengths.get(&id) == Some(&mapping.len()),
        _ => true,
    });
    must(fits, || "a segment is missing".to_owned())
}

fn no_memory_is_missing(snapshot: &Snapshot) -> Verdict {
    let all: HashSet<_> = snapshot.memories.iter().map(|memory| memory.id).collect();
    must(all.len() == snapshot.memories.len(), || "a memory is there twice".to_owned())?;
    let alive = snapshot.processes.iter().filter_map(Process::alive);
    let mapped = alive.flat_map(|alive| &alive.mappings).filter_map(|m| match &m.kind {
        MappingKind::Memory { memory, .. } => Some(memory),
        _ => None,
    });
    let opened = snapshot.files.iter().filter_map(|file| match &file.kind {
        FileKind::Memory { memory, .. } => Some(memory),
        _ => None,
    });
    let known = mapped.chain(opened).all(|id| all.contains(id));
    must(known, || "a memory is missing".to_owned())
}

fn tree(process: &Process, seen: &mut HashSet<i32>, numbers: &mut HashSet<i32>) -> Verdict {
    let Process { pid, parent, group, session, life, .. } = process;
    must((2..PID_MAX).contains(pid), || "it has no number that a process can have".to_owned())?;
    must(seen.contains(parent), || format!("its parent {parent} does not come before it"))?;
    must(seen.insert(*pid) && numbers.insert(*pid), || "its number is there twice".to_owned())?;
    for number in [group, session] {
        must((0..PID_MAX).contains(number), || format!("no group or session can be {number}"))?;
    }
    if let Life::Alive(alive) = life {
        let first = alive.threads.first().map(|thread| thread.tid);
        must(first == Some(*pid), || "its first thread is another".to_owned())?;
    }
    Ok(())
}

fn alive(alive: &Alive, files: &[OpenFile], pages_len: u64) -> Verdict {
    must(alive.threads.len() <= THREADS_MAX, || "too many threads".to_owned())?;
    must(alive.mappings.len() <= MAPPINGS_MAX, || "too many mappings".to_owned())?;
    must(alive.actions.len() == SIGNALS, || "not one action for each signal".to_owned())?;
    must(alive.timers.len() == 3, || "not three timers".to_owned())?;
    must(alive.limits.len() == LIMITS as usize, || "not all limits".to_owned())?;
    must(alive.umask <= 0o777, || "no file mask".to_owned())?;
    must(alive.dumpable <= 2, || "no such state of dumping".to_owned())?;
    must((-1000..=1000).contains(&alive.oom_score_adj), || "no such memory score".to_owned())?;
    must(alive.terminal.is_none_or(|number| number < TERMINAL_MAX), || {
        "no such terminal".to_owned()
    })?;
    must(
        alive.space.auxv.0.len() <= AUXV_MAX && alive.space.auxv.0.len().is_multiple_of(16),
        || "its auxiliary vector has no such length".to_owned(),
    )?;
    if let Some(start) = alive.space.vdso {
        must(start.is_multiple_of(PAGE) && (SPACE_START..SPACE_END).contains(&start), || {
            "the kernel's pages cannot be there".to_owned()
        })?;
    }
    path(&alive.cwd)?;
    path(&alive.space.exe)?;
    signals(alive.pending.iter().map(|info| info.0.as_slice()))?;
    alive.threads.iter().try_for_each(thread)?;
    mappings(&alive.mappings, pages_len)?;
    let known_at = alive.known_at.as_deref().unwrap_or_default();
    must(known_at.len() <= PLACES_MAX, || "too many places of databases".to_owned())?;
    must(known_at.iter().all(|address| *address < SPACE_END), || {
        "a place of databases that is nowhere".to_owned()
    })?;
    let mut numbers = HashSet::new();
    must(alive.locks.len() <= LOCKS_MAX, || "too many locks".to_owned())?;
    alive.locks.iter().try_for_each(|lock| range_lock(&lock.range))?;
    alive.descriptors.iter().try_for_each(|descriptor| {
        must((0..NUMBER_MAX).contains(&descriptor.number), || "no such descriptor".to_owned())?;
        must(numbers.insert(descriptor.number), || "a descriptor is there twice".to_owned())?;
        must(descriptor.file < files.len(), || "a descriptor of no open file".to_owned())
    })
}

fn signals<'a>(infos: impl IntoIterator<Item = &'a [u8]>) -> Verdict {
    infos.into_iter().try_for_each(|info| {
        let number = info.get(..4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_le_bytes);
        let valid = info.len() == 128 && number.is_some_and(|number| (1..=64).contains(&number));
        must(valid, || "a signal that is none".to_owned())
    })
}

fn thread(thread: &Thread) -> Verdict {
    let told = |what: &str| format!("thread {}: {what}", thread.tid);
    must((2..PID_MAX).contains(&thread.tid), || told("no such number"))?;
    let extended = thread.extended.0.len();
    must((EXTENDED_MIN..=EXTENDED_MAX).contains(&extended), || told("no such registers"))?;
    must((0..=64).contains(&thread.death_signal), || told("no such signal"))?;
    must(thread.name.len() < 16, || told("its name is too long"))?;
    must(thread.affinity.0.len() <= 1024, || told("too many processors"))?;
    must(thread.credentials.groups.len() <= 1 << 16, || told("too many groups"))?;
    must(thread.filters.len() <= FILTERS_MAX, || told("too many filters"))?;
    let filters = thread.filters.iter().all(|filter| (1..=FILTER_MAX).contains(&filter.len()));
    must(filters, || told("a filter has no such length"))?;
    signals(thread.pending.iter().map(|info| info.0.as_slice())).map_err(|why| told(&why))
}

fn mappings(mappings: &[Mapping], pages_len: u64) -> Verdict {
    let mut last = SPACE_START;
    for mapping in mappings {
        let told = |what: &str| format!("mapping at {:#x}: {what}", mapping.start);
        must(is_range(mapping.start, mapping.end), || told("not on pages"))?;
        must(last <= mapping.start && mapping.end <= SPACE_END, || told("it cannot be there"))?;
        must(mapping.access <= 7, || told("no such access"))?;
        last = mapping.end;
        ranges(mapping, pages_len).map_err(|why| told(&why))?;
        let offset = match &mapping.kind {
            MappingKind::Private { path, offset, .. }
            | MappingKind::Shared { path, offset, .. } => {
                self::path(path)?;
                *offset
            }
            MappingKind::Memory { offset, .. } => *offset,
            MappingKind::Anonymous { .. } | MappingKind::Segment { .. } => 0,
        };
        must(offset.is_multiple_of(PAGE) && offset < 1 << 62, || {
            told("no such place in its file")
        })?;
    }
    Ok(())
}

fn is_range(start: u64, end: u64) -> bool {
    start < end && start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE)
}

fn ranges(mapping: &Mapping, pages_len: u64) -> Verdict {
    let inside = |start, end| is_range(start, end) && mapping.start <= start && end <= mapping.end;
    let mut last = 0;
    for (start, end) in &mapping.pages {
        must(inside(*start, *end) && last <= *start, || "pages out of order".to_owned())?;
        last = *end;
    }
    must(mapping.advice.iter().all(|advice| ADVICE.contains(advice)), || {
        "no such advice".to_owned()
    })?;
    let guards = mapping.guards.iter().all(|(start, end)| inside(*start, *end));
    must(guards, || "guards elsewhere".to_owned())?;
    let anonymous = matches!(mapping.kind, MappingKind::Anonymous { .. });
    must(!mapping.droppable || anonymous && mapping.pages.is_empty(), || {
        "pages that the kernel may take away".to_owned()
    })?;
    stored(&mapping.stored, inside, pages_len)
}

fn stored(all: &[Stored], inside: impl Fn(u64, u64) -> bool, pages_len: u64) -> Verdict {
    let mut last = 0;
    for stored in all {
        let in_order = inside(stored.start, stored.end) && last <= stored.start;
        must(in_order, || "stored pages out of order".to_owned())?;
        last = stored.end;
        let end = stored.at.checked_add(stored.end - stored.start);
        let there = stored.at.is_multiple_of(PAGE) && end.is_some_and(|end| end <= pages_len);
        must(there, || "pages that are not stored".to_owned())?;
    }
    Ok(())
}

fn path(path: &str) -> Verdict {
    let valid =
        path.starts_with('/') && path.len() < libc::PATH_MAX as usize && !path.contains('\0');
    must(valid, || "a path that is none".to_owned())
}

fn range_lock(range: &RangeLock) -> Verdict {
    let valid =
        range.start < 1 << 63 && range.end.is_none_or(|end| range.start < end && end < 1 << 63);
    must(valid, || "a lock of no part".to_owned())
}

fn open_file(file: &OpenFile, files: usize) -> Verdict {
    const PIPE_MAX: u32 = 1 << 30;
    must(file.locks.len() <= LOCKS_MAX, || "too many locks".to_owned())?;
    for lock in &file.locks {
        if let FileLock::Part(range) = lock {
            range_lock(range)?;
        }
    }
    match &file.kind {
        FileKind::Memory { position, .. } => {
            must(*position < 1 << 63, || "no such position".to_owned())
        }
        FileKind::Path { path, position, .. } => {
            self::path(path)?;
            must(*position < 1 << 63, || "no such position".to_owned())
        }
        FileKind::Fifo { path, capacity, content, .. } => {
            self::path(path)?;
            must(content.0.len() as u64 <= u64::from(*capacity), || "more than fits".to_owned())
        }
        FileKind::Pipe { capacity, content, .. } | FileKind::Client { capacity, content, .. } => {
            let fits = content.0.len() as u64 <= u64::from(*capacity) && *capacity <= PIPE_MAX;
            must(fits, || "more than fits into a pipe".to_owned())
        }
        FileKind::Poll { watched, targets, .. } => {
            must(watched.len() <= FILES_MAX, || "too many watched descriptors".to_owned())?;
            let numbers = watched.iter().all(|(number, ..)| (0..NUMBER_MAX).contains(number));
            must(numbers, || "no such descriptor".to_owned())?;
            let known = targets.is_empty() || targets.len() == watched.len();
            must(known && targets.iter().all(|target| *target < files), || {
                "a poll of no open file".to_owned()
            })
        }
        FileKind::Watch { watches } => watches.iter().try_for_each(|(number, path, _)| {
            must((1..=WATCH_MAX).contains(number), || "no such watch".to_owned())?;
            self::path(path)
        }),
        FileKind::Master { terminal, settings, .. } => {
            let valid = *terminal < TERMINAL_MAX && settings.0.len() <= 128;
            must(valid, || "no such terminal".to_owned())
        }
        FileKind::Terminal { terminal } => {
            must(*terminal < TERMINAL_MAX, || "no such terminal".to_owned())
        }
        FileKind::Listener(listener) => {
            must(listener.address.0.len() <= 128, || "no such address".to_owned())
        }
        FileKind::Datagram(socket) => {
            let mut all = socket.address.iter().chain(&socket.peer);
            must(all.all(|address| address.0.len() <= 128), || "no such address".to_owned())
        }
        FileKind::Connection(connection) => {
            let lengths = [connection.address.0.len(), connection.peer.0.len()];
            let fits = lengths.iter().all(|len| (16..=28).contains(len)) && connection.shut <= 3;
            must(fits, || "no such end of a connection".to_owned())
        }
        FileKind::Pair { address, shut, .. } => {
            let fits = address.0.len() <= 128 && *shut <= 3;
            must(fits, || "no such end of a connection".to_owned())
        }
        FileKind::Process { pid } => {
            must((1..PID_MAX).contains(pid), || "no such process".to_owned())
        }
        FileKind::Deleted { .. }
        | FileKind::Event { .. }
        | FileKind::Timer { .. }
        | FileKind::Signal { .. } => Ok(()),
    }
}
