//! Whether a capture is what an image holds already.

use std::{io, os::unix::fs::FileExt as _};

use super::Captured;
use crate::{
    image::{Alive, Chain, EntryKind, KeptEntry, Life, Mapping, Piece, Snapshot},
    ranges::Range,
};

impl Captured {
    /// Whether bringing back `chain` would give the same, but for what the kernel itself writes into a
    /// program's memory. Never true in doubt: memory that is a file is not compared, nor a capture of what was written alone.
    pub fn is_same_as(&self, chain: &Chain) -> io::Result<bool> {
        let then = &chain.top().snapshot;
        let in_doubt = self.parent.is_some() || has_files_in_memory(&self.snapshot);
        if in_doubt || without_traces(&self.snapshot) != without_traces(then) {
            return Ok(false);
        }
        for process in &self.snapshot.processes {
            let Some(alive) = process.alive() else { continue };
            let kernels = kernels_own(alive);
            for mapping in &alive.mappings {
                if !self.has_pages_of(chain, process.pid, mapping, &kernels)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn has_pages_of(
        &self,
        chain: &Chain,
        pid: i32,
        mapping: &Mapping,
        kernels: &[Range],
    ) -> io::Result<bool> {
        let mut there = Vec::new();
        for stored in &mapping.stored {
            let Some(here) = self.pages.stored(stored) else { return Ok(false) };
            for piece in Piece::within(chain.pieces(pid, mapping), &[(stored.start, stored.end)]) {
                there.resize((piece.end - piece.start) as usize, 0);
                chain.images()[piece.image].pages.read_exact_at(&mut there, piece.at)?;
                let from = (piece.start - stored.start) as usize;
                let here = &here[from..from + there.len()];
                if !is_same_but_for(kernels, piece.start, here, &there) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Everything but where pages are, which depends on who copied them and when, and what reading alone changes.
fn without_traces(snapshot: &Snapshot) -> Snapshot {
    let mut bare = snapshot.clone();
    for process in &mut bare.processes {
        if let Life::Alive(alive) = &mut process.life {
            alive.mappings.iter_mut().for_each(|mapping| mapping.stored.clear());
        }
    }
    for entry in bare.mounts.iter_mut().flat_map(|mount| &mut mount.entries) {
        entry.times[0] = (0, 0);
    }
    bare
}

fn has_files_in_memory(snapshot: &Snapshot) -> bool {
    let holds = |entry: &KeptEntry| matches!(&entry.kind, EntryKind::File { stored, .. } if !stored.is_empty());
    let in_mounts = snapshot.mounts.iter().flat_map(|mount| &mount.entries).any(holds);
    !snapshot.memories.is_empty() || !snapshot.segments.is_empty() || in_mounts
}

/// Where it notes on which processor a thread runs (`rseq`), in order.
fn kernels_own(alive: &Alive) -> Vec<Range> {
    let noted = alive.threads.iter().filter_map(|thread| thread.rseq);
    let mut ranges: Vec<Range> =
        noted.map(|(start, len, _)| (start, start.saturating_add(len.into()))).collect();
    ranges.sort_unstable();
    ranges
}

/// `at` is the address at which both begin. `but` is in order, and may overlap.
fn is_same_but_for(but: &[Range], at: u64, here: &[u8], there: &[u8]) -> bool {
    let place = |address: u64| here.len().min(address.saturating_sub(at) as usize);
    let mut from = 0;
    for (start, end) in but {
        let (start, end) = (place(*start), place(*end));
        if from < start && here[from..start] != there[from..start] {
            return false;
        }
        from = from.max(end);
    }
    here[from..] == there[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_left_out_may_differ() {
        let (here, there) = (*b"abcdefgh", *b"abXXefXh");
        let table: [(&[Range], bool); 7] = [
            (&[(2, 4), (6, 7)], true),
            (&[(2, 7)], true),
            (&[(0, 8)], true),
            (&[(1, 3), (2, 5), (6, 8)], true),
            (&[(2, 4)], false),
            (&[(3, 4), (6, 7)], false),
            (&[], false),
        ];
        for (but, expected) in table {
            assert_eq!(is_same_but_for(but, 0, &here, &there), expected, "{but:?}");
            let moved: Vec<Range> =
                but.iter().map(|(start, end)| (start + 100, end + 100)).collect();
            assert_eq!(is_same_but_for(&moved, 100, &here, &there), expected, "{but:?}");
            assert!(!is_same_but_for(&moved, 0, &here, &there), "what is elsewhere is no matter");
        }
    }
}
