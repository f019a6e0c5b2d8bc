//! Pages that are still missing in one address space.

use std::collections::BTreeMap;

use crate::{image::Piece, ranges::Range};

/// By address; they do not overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct Todo(BTreeMap<u64, Piece>);

impl Todo {
    pub(super) fn new(pieces: impl IntoIterator<Item = Piece>) -> Self {
        Self(pieces.into_iter().map(|piece| (piece.start, piece)).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, piece: Piece) {
        if piece.start < piece.end {
            self.0.insert(piece.start, piece);
        }
    }

    /// Takes out what is in `range`, in order.
    pub(super) fn take(&mut self, range: Range) -> Vec<Piece> {
        let (start, end) = range;
        if start >= end {
            return Vec::new();
        }
        let before = self.0.range(..start).next_back().map(|(_, piece)| *piece);
        let before = before.filter(|piece| piece.end > start);
        let inside = self.0.range(start..end).map(|(_, piece)| *piece);
        let touched: Vec<Piece> = before.into_iter().chain(inside).collect();
        let mut taken = Vec::with_capacity(touched.len());
        for piece in touched {
            self.0.remove(&piece.start);
            let (from, to) = (piece.start.max(start), piece.end.min(end));
            self.add(piece.part((piece.start, from)));
            self.add(piece.part((to, piece.end)));
            taken.push(piece.part((from, to)));
        }
        taken
    }

    /// The same pages are wanted elsewhere now.
    pub(super) fn shift(&mut self, from: u64, to: u64, len: u64) {
        let moved = self.take((from, from.saturating_add(len)));
        // What was there before is gone.
        self.take((to, to.saturating_add(len)));
        for piece in moved {
            let start = to + (piece.start - from);
            self.add(Piece { start, end: start + (piece.end - piece.start), ..piece });
        }
    }

    /// What is missing at `from` or behind it, or else the first of all: at most `len` bytes.
    pub(super) fn next(&self, from: u64, len: u64) -> Option<Range> {
        let at = self.0.range(..=from).next_back().filter(|(_, piece)| piece.end > from);
        let at = at.map(|(_, piece)| (from, piece.end));
        let behind = || self.0.range(from..).next().map(|(start, piece)| (*start, piece.end));
        let first = || self.0.first_key_value().map(|(start, piece)| (*start, piece.end));
        let (start, end) = at.or_else(behind).or_else(first)?;
        Some((start, end.min(start + len)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Take(u64, u64),
        Shift(u64, u64, u64),
        Next(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..80, 0u64..30).prop_map(|(start, len)| Step::Take(start, start + len)),
            (0u64..80, 100u64..180, 1u64..40)
                .prop_map(|(from, to, len)| Step::Shift(from, to, len)),
            (0u64..200, 1u64..9).prop_map(|(from, len)| Step::Next(from, len)),
        ]
    }

    fn model(todo: &Todo) -> BTreeMap<u64, u64> {
        let pieces = todo.0.values();
        let bytes = pieces.flat_map(|p| (p.start..p.end).map(|at| (at, p.at + (at - p.start))));
        bytes.collect()
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_nothing_is_invented(steps in proptest::collection::vec(step(), 1..30)) {
            let piece = |start, end, at| Piece { start, end, image: 0, at };
            let mut todo = Todo::new([piece(0, 20, 1000), piece(20, 33, 50), piece(40, 90, 3000)]);
            let mut known = model(&todo);
            for step in steps {
                match step {
                    Step::Take(start, end) => {
                        let taken = Todo::new(todo.take((start, end)));
                        let wanted: BTreeMap<u64, u64> =
                            known.range(start..end).map(|(at, from)| (*at, *from)).collect();
                        prop_assert_eq!(model(&taken), wanted);
                        known.retain(|at, _| !(start..end).contains(at));
                    }
                    Step::Shift(from, to, len) => {
                        todo.shift(from, to, len);
                        let moved: Vec<(u64, u64)> =
                            known.range(from..from + len).map(|(at, v)| (at - from + to, *v)).collect();
                        known.retain(|at, _| {
                            !(from..from + len).contains(at) && !(to..to + len).contains(at)
                        });
                        known.extend(moved);
                    }
                    Step::Next(from, len) => {
                        let next = todo.next(from, len);
                        let wanted = known.range(from..).next().or(known.first_key_value());
                        prop_assert_eq!(next.map(|range| range.0), wanted.map(|(at, _)| *at));
                        if let Some((start, end)) = next {
                            prop_assert!(start < end && end - start <= len);
                            prop_assert!((start..end).all(|at| known.contains_key(&at)));
                        }
                    }
                }
                prop_assert_eq!(model(&todo), known.clone());
                prop_assert_eq!(todo.is_empty(), known.is_empty());
            }
        }
    }
}
