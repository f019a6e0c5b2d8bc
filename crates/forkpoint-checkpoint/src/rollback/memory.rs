//! Memory in place: what is new is unmapped, and what was written goes back.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use crate::{
    dump::memory::populated,
    freeze::Held,
    image::{Alive, Chain, Mapping, MappingKind, Piece},
    ranges::{self, Range},
    restore,
    script::Script,
    track::{Tracker, is_trackable, written},
};

/// Which memory must change, and how.
#[derive(Debug, Default)]
pub(super) struct MemoryPlan {
    unmap: Vec<Range>,
    /// Made anew and filled from the image: by index of the image's mappings.
    anew: Vec<usize>,
    /// Populated since: thrown away.
    discard: Vec<Range>,
    /// Written since: filled from the image.
    refill: Vec<(usize, Vec<Range>)>,
    pub(super) unfit: Option<String>,
    pub(super) must_succeed: usize,
}

fn same(one: &Mapping, other: &Mapping) -> bool {
    (one.start, one.end, one.access, &one.kind)
        == (other.start, other.end, other.access, &other.kind)
}

/// What others see too goes back with them.
fn is_private(mapping: &Mapping) -> bool {
    match mapping.kind {
        MappingKind::Anonymous { .. }
        | MappingKind::Private { .. }
        | MappingKind::Memory { private: true, .. } => true,
        MappingKind::Shared { .. }
        | MappingKind::Segment { .. }
        | MappingKind::Memory { private: false, .. } => false,
    }
}

impl MemoryPlan {
    pub(super) fn new(
        held: &Held,
        alive: &Alive,
        now: &[Mapping],
        is_tracked: bool,
    ) -> io::Result<Self> {
        let mut plan = Self::default();
        let pagemap = File::open(format!("/proc/{}/pagemap", held.pid))?;
        let kept = |mapping: &Mapping| alive.mappings.iter().any(|was| same(was, mapping));
        plan.unmap =
            now.iter().filter(|mapping| !kept(mapping)).map(|m| (m.start, m.end)).collect();
        for (index, was) in alive.mappings.iter().enumerate() {
            if !now.iter().any(|is| same(was, is)) {
                match was.kind {
                    MappingKind::Anonymous { .. } => plan.anew.push(index),
                    _ => {
                        plan.unfit =
                            Some(format!("a file is not mapped at {:#x} any more", was.start));
                    }
                }
                continue;
            }
            if !is_private(was) {
                continue;
            }
            let range = (was.start, was.end);
            // What could not be written to when the image was made may have been open for a while since.
            let written = match is_tracked && is_trackable(was) {
                true => written(&pagemap, range)?,
                false => Some(vec![range]),
            };
            let Some(written) = written else {
                plan.unfit = Some(format!("memory at {:#x} is not tracked any more", was.start));
                continue;
            };
            for range in ranges::without(&written, &was.pages) {
                plan.discard.extend(populated(&pagemap, was, range)?);
            }
            plan.refill.push((index, ranges::both(&written, &was.pages)));
        }
        Ok(plan)
    }

    pub(super) fn steps(&mut self, script: &mut Script) {
        for (start, end) in &self.unmap {
            script.call(libc::SYS_munmap, &[*start, end - start]);
        }
        for (start, end) in &self.discard {
            script.call(libc::SYS_madvise, &[*start, end - start, libc::MADV_DONTNEED as u64]);
        }
        self.must_succeed = script.calls().len();
    }

    pub(super) fn write(
        &self,
        held: &mut Held,
        chain: &Chain,
        alive: &Alive,
        pid: i32,
    ) -> io::Result<u64> {
        self.map_anew(held, alive)?;
        let memory =
            File::options().read(true).write(true).open(format!("/proc/{}/mem", held.pid))?;
        let mut touched = ranges::len(&self.discard) + ranges::len(&self.unmap);
        let whole = self.anew.iter().map(|index| (*index, alive.mappings[*index].pages.clone()));
        for (index, wanted) in self.refill.iter().cloned().chain(whole) {
            if !wanted.is_empty() {
                touched += fill(&memory, chain, pid, &alive.mappings[index], &wanted)?;
            }
        }
        Ok(touched)
    }

    fn map_anew(&self, held: &mut Held, alive: &Alive) -> io::Result<()> {
        if self.anew.is_empty() {
            return Ok(());
        }
        let mut script = held.script(0, 64);
        for index in &self.anew {
            let was = &alive.mappings[*index];
            let grows = matches!(was.kind, MappingKind::Anonymous { grows_down: true });
            let flags =
                libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let flags = if grows { flags | libc::MAP_GROWSDOWN } else { flags };
            let (len, access) = (was.len(), was.access.into());
            script.call(libc::SYS_mmap, &[was.start, len, access, flags as u64, u64::MAX, 0]);
            restore::advise(&mut script, was);
        }
        match held.run(0, &script)?.failure() {
            Some((_, err)) => Err(err),
            None => Ok(()),
        }
    }

    /// What was written back is what the image has: from now on, writes count again.
    pub(super) fn track(
        &self,
        tracker: &mut Tracker,
        held: &Held,
        alive: &Alive,
    ) -> io::Result<()> {
        let pagemap = File::open(format!("/proc/{}/pagemap", held.pid))?;
        let Some(tracked) = tracker.tracked(held.pid) else {
            return Err(io::Error::other("it is not tracked"));
        };
        for index in &self.anew {
            tracked.begin(&alive.mappings[*index], &pagemap)?;
        }
        for (index, refilled) in &self.refill {
            let mapping = &alive.mappings[*index];
            if !refilled.is_empty() && is_trackable(mapping) {
                written(&pagemap, (mapping.start, mapping.end))?;
            }
        }
        Ok(())
    }
}

/// Through the kernel's own door, which also opens what the program may only read.
fn fill(
    memory: &File,
    chain: &Chain,
    pid: i32,
    mapping: &Mapping,
    wanted: &[Range],
) -> io::Result<u64> {
    let mut touched = 0;
    let mut buffer = Vec::new();
    for piece in Piece::within(chain.pieces(pid, mapping), wanted) {
        buffer.resize((piece.end - piece.start) as usize, 0);
        chain.images()[piece.image].pages.read_exact_at(&mut buffer, piece.at)?;
        memory.write_all_at(&buffer, piece.start)?;
        touched += piece.end - piece.start;
    }
    if touched == ranges::len(wanted) {
        Ok(touched)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}
