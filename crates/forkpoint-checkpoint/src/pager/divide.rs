//! Which pages of a process are there before it runs, and which come later.

use crate::{
    arch::SPACE_END,
    image::{Alive, Chain, MappingKind, Piece},
    ranges::{self, Range},
    sys::PAGE,
};

/// A process with fewer bytes in pages is brought back at once.
pub const LAZY_FROM: u64 = 8 << 20;
/// So many bytes of its smaller mappings are there before it runs: many small ones cost more to ask about.
const EAGER: u64 = 1 << 20;
/// Ranges closer to one another are asked about as one.
const NEAR: u64 = 2 << 20;

/// What comes later.
#[derive(Debug, Default)]
pub(crate) struct Lazy {
    /// Where a page that is not there is asked for.
    pub(crate) ranges: Vec<Range>,
    /// Where the pages are, in order of addresses.
    pub(crate) pieces: Vec<Piece>,
}

impl Lazy {
    /// `None`: all of it is there at once, and not only `needed`.
    pub(crate) fn of(pid: i32, alive: &Alive, chain: &Chain, needed: &[Range]) -> Option<Self> {
        let pages = |pages: &[Range]| ranges::len(pages);
        let all: u64 = alive.mappings.iter().map(|mapping| pages(&mapping.pages)).sum();
        if all < LAZY_FROM {
            return None;
        }
        let lazy =
            |kind: &MappingKind| matches!(kind, MappingKind::Anonymous { grows_down: false });
        let mut mappings: Vec<_> =
            alive.mappings.iter().filter(|mapping| lazy(&mapping.kind)).collect();
        mappings.sort_by_key(|mapping| pages(&mapping.pages));
        let mut eager = 0;
        mappings.retain(|mapping| {
            eager += pages(&mapping.pages);
            eager > EAGER
        });
        mappings.sort_by_key(|mapping| mapping.start);
        let early = ranges::either(&written_by_the_kernel(alive), needed);
        let mut found = Self::default();
        for mapping in mappings {
            let wanted = ranges::without(&mapping.pages, &early);
            found.ranges.extend(joined(&wanted));
            found.pieces.extend(Piece::within(chain.pieces(pid, mapping), &wanted));
        }
        (!found.pieces.is_empty()).then_some(found)
    }

    /// What of pieces, which are in order, is there before the process runs.
    pub(crate) fn not_in(&self, pieces: &[Piece]) -> Vec<Piece> {
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Vec::new() };
        let begin = self.pieces.partition_point(|lazy| lazy.end <= first.start);
        let inside = self.pieces[begin..].iter().take_while(|lazy| lazy.start < last.end);
        let range = |piece: &Piece| (piece.start, piece.end);
        let lazy: Vec<Range> = inside.map(range).collect();
        let all: Vec<Range> = pieces.iter().map(range).collect();
        Piece::within(pieces, &ranges::without(&all, &lazy))
    }
}

/// Pages that the kernel writes to as soon as a thread has told it of them: before anybody can be asked.
fn written_by_the_kernel(alive: &Alive) -> Vec<Range> {
    let areas = alive.threads.iter().filter_map(|thread| thread.rseq);
    let mut pages: Vec<Range> = areas
        .filter(|(address, ..)| *address < SPACE_END)
        .map(|(address, len, _)| {
            (address & !(PAGE - 1), (address + u64::from(len)).next_multiple_of(PAGE))
        })
        .collect();
    pages.sort_unstable();
    ranges::either(&pages, &[])
}

fn joined(all: &[Range]) -> Vec<Range> {
    let mut joined: Vec<Range> = Vec::new();
    for &(start, end) in all {
        match joined.last_mut() {
            Some(last) if start - last.1 < NEAR => last.1 = end,
            _ => joined.push((start, end)),
        }
    }
    joined
}
