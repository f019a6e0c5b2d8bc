//! Memory in place: what is new is unmapped, and what was written goes back.

use std::{fs::File, io};

use super::fill::Fill;
use crate::{
    dump::memory::populated,
    freeze::Held,
    image::{Alive, Chain, Mapping, MappingKind, Piece},
    ranges::{self, Range},
    restore,
    script::Script,
    track::{Tracked, is_trackable, is_view, written, written_so_far},
};

/// Which memory must change, and how.
#[derive(Debug)]
pub(super) struct MemoryPlan {
    pagemap: File,
    unmap: Vec<Range>,
    /// Made anew and filled from the image: by index of the image's mappings.
    anew: Vec<usize>,
    /// Populated since: thrown away.
    discard: Vec<Range>,
    /// Written since: filled from the image.
    refill: Vec<(usize, Vec<Range>)>,
    /// What of memory that is tracked was written: from where to where in each mapping, by what was asked about at once.
    written: Vec<Vec<Range>>,
    pub(super) unfit: Option<String>,
}

fn same(one: &Mapping, other: &Mapping) -> bool {
    (one.start, one.end, one.access, &one.kind)
        == (other.start, other.end, other.access, &other.kind)
}

/// Of mappings in order.
fn has(mappings: &[Mapping], one: &Mapping) -> bool {
    let found = mappings.binary_search_by_key(&one.start, |mapping| mapping.start);
    found.is_ok_and(|index| same(&mappings[index], one))
}

/// Whether everything is mapped as it was.
pub(super) fn is_mapped_as(was: &[Mapping], now: &[Mapping]) -> bool {
    was.len() == now.len() && was.iter().zip(now).all(|(was, is)| same(was, is))
}

/// Nothing that we do maps a file again.
pub(super) fn lost_file(was: &[Mapping], now: &[Mapping]) -> Option<String> {
    let is_file = |mapping: &&Mapping| !matches!(mapping.kind, MappingKind::Anonymous { .. });
    let lost = was.iter().filter(is_file).find(|was| !has(now, was))?;
    Some(format!("a file is not mapped at {:#x} any more", lost.start))
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

/// By what is asked which pages of a mapping must change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Tracked,
    /// What is there: memory without a file, or copies of a file's pages.
    Populated {
        anonymous: bool,
    },
}

fn asked(mapping: &Mapping, is_tracked: bool) -> Asked {
    // What could not be written to when the image was made may have been open for a while since.
    match is_tracked && is_trackable(mapping) {
        true => Asked::Tracked,
        false => {
            let anonymous = matches!(mapping.kind, MappingKind::Anonymous { .. });
            Asked::Populated { anonymous }
        }
    }
}

/// Of one mapping after the other about which the same is asked: each question walks through all of them at once. The
/// kernel's own pages, which begin at `kernels`, are between no two of them.
fn runs(alive: &Alive, kept: &[usize], is_tracked: bool) -> Vec<Vec<usize>> {
    let kernels = alive.space.vdso.unwrap_or(0);
    let mut runs: Vec<Vec<usize>> = Vec::new();
    for index in kept.iter().copied() {
        let mapping = &alive.mappings[index];
        let joins = |last: usize| {
            let before = &alive.mappings[last];
            last + 1 == index
                && asked(before, is_tracked) == asked(mapping, is_tracked)
                && !(before.end..=mapping.start).contains(&kernels)
        };
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(|last| joins(*last)) => run.push(index),
            _ => runs.push(vec![index]),
        }
    }
    runs
}

impl MemoryPlan {
    /// Touches nothing, and notes nothing.
    pub(super) fn new(
        held: &Held,
        alive: &Alive,
        now: &[Mapping],
        is_tracked: bool,
    ) -> io::Result<Self> {
        let mut plan = Self {
            pagemap: File::open(format!("/proc/{}/pagemap", held.pid))?,
            unmap: Vec::new(),
            anew: Vec::new(),
            discard: Vec::new(),
            refill: Vec::new(),
            written: Vec::new(),
            unfit: lost_file(&alive.mappings, now),
        };
        let new = now.iter().filter(|mapping| !has(&alive.mappings, mapping));
        plan.unmap = new.map(|mapping| (mapping.start, mapping.end)).collect();
        let mut kept = Vec::new();
        for (index, was) in alive.mappings.iter().enumerate() {
            match has(now, was) {
                true if was.droppable => plan.discard.push((was.start, was.end)),
                true if is_private(was) => kept.push(index),
                true => {}
                false => plan.anew.push(index),
            }
        }
        for run in runs(alive, &kept, is_tracked) {
            plan.look(alive, &run, is_tracked)?;
        }
        Ok(plan)
    }

    fn look(&mut self, alive: &Alive, run: &[usize], is_tracked: bool) -> io::Result<()> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
        let (first, last) = (&alive.mappings[*first], &alive.mappings[*last]);
        let span = (first.start, last.end);
        if asked(first, is_tracked) != Asked::Tracked {
            let found = populated(&self.pagemap, first, span)?;
            for index in run {
                let was = &alive.mappings[*index];
                let found = ranges::both(&[(was.start, was.end)], &found);
                self.discard.extend(ranges::without(&found, &was.pages));
                self.refill.push((*index, was.pages.clone()));
            }
            return Ok(());
        }
        let Some(written) = written_so_far(&self.pagemap, span)? else {
            match run {
                // Something else was mapped in its place, and looks the same.
                [one] if matches!(first.kind, MappingKind::Anonymous { .. }) => {
                    self.anew.push(*one);
                }
                [_] => {
                    let why = format!("memory at {:#x} is not tracked any more", first.start);
                    self.unfit = Some(why);
                }
                // Something is between them.
                run => run.iter().try_for_each(|one| self.look(alive, &[*one], is_tracked))?,
            }
            return Ok(());
        };
        let mut spans = Vec::new();
        for index in run {
            let was = &alive.mappings[*index];
            let written = ranges::both(&[(was.start, was.end)], &written);
            if let (Some(first), Some(last)) = (written.first(), written.last()) {
                spans.push((first.0, last.1));
            }
            for range in ranges::without(&written, &was.pages) {
                self.discard.extend(populated(&self.pagemap, was, range)?);
            }
            let mut wanted = ranges::both(&written, &was.pages);
            if is_view(was) && !was.pages.is_empty() {
                let there = populated(&self.pagemap, was, (was.start, was.end))?;
                wanted = ranges::either(&wanted, &ranges::without(&was.pages, &there));
            }
            self.refill.push((*index, wanted));
        }
        self.written.push(spans);
        Ok(())
    }

    /// All of them must succeed.
    pub(super) fn steps(&self, script: &mut Script) {
        for (start, end) in &self.unmap {
            script.call(libc::SYS_munmap, &[*start, end - start]);
        }
        for (start, end) in &self.discard {
            script.call(libc::SYS_madvise, &[*start, end - start, libc::MADV_DONTNEED as u64]);
        }
    }

    pub(super) fn write(
        &self,
        held: &mut Held,
        chain: &Chain,
        alive: &Alive,
        pid: i32,
    ) -> io::Result<u64> {
        self.map_anew(held, alive)?;
        let mut touched = ranges::len(&self.discard) + ranges::len(&self.unmap);
        let refill = self.refill.iter().map(|(index, wanted)| (*index, wanted));
        let whole = self.anew.iter().map(|index| (*index, &alive.mappings[*index].pages));
        let mut fill = Fill::new(held.pid, chain);
        for (index, wanted) in refill.chain(whole).filter(|(_, wanted)| !wanted.is_empty()) {
            let mapping = &alive.mappings[index];
            let mut found = 0;
            for piece in Piece::within(chain.pieces(pid, mapping), wanted) {
                found += piece.end - piece.start;
                fill.add(&piece, mapping.access)?;
            }
            if found != ranges::len(wanted) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            touched += found;
        }
        fill.flush()?;
        Ok(touched)
    }

    fn map_anew(&self, held: &mut Held, alive: &Alive) -> io::Result<()> {
        if self.anew.is_empty() {
            return Ok(());
        }
        let mut script = held.script(0, 64);
        for index in &self.anew {
            let was = &alive.mappings[*index];
            let (len, access) = (was.len(), was.access.into());
            let flags = restore::anonymous_flags(was) as u64;
            script.call(libc::SYS_mmap, &[was.start, len, access, flags, u64::MAX, 0]);
            restore::advise(&mut script, was);
        }
        match held.run(0, &script)?.failure() {
            Some((_, err)) => Err(err),
            None => Ok(()),
        }
    }

    /// What was written back is what the image has: from now on, writes count again.
    pub(super) fn track(&self, tracked: &Tracked, alive: &Alive) -> io::Result<()> {
        for index in &self.anew {
            tracked.begin(&alive.mappings[*index], &self.pagemap)?;
        }
        let note = |span: Range| Ok::<_, io::Error>(written(&self.pagemap, span)?.is_some());
        for spans in &self.written {
            let (Some(first), Some(last)) = (spans.first(), spans.last()) else { continue };
            if note((first.0, last.1))? {
                continue;
            }
            // What is ours may be between them.
            for span in spans {
                if !note(*span)? {
                    return Err(io::Error::other("its memory is not tracked any more"));
                }
            }
        }
        Ok(())
    }
}
