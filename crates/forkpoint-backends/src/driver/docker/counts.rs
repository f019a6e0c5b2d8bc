//! What snapshots occupy, each byte counted once however many of them have it.
//!
//! Images have layers in common, and layers of volumes have files in common. So the bytes that a layer
//! brought are a piece beside the layer itself: every snapshot that has some of them holds it, and it goes
//! from the count with the last one. There is nothing to discard with it: an engine, or the file system,
//! frees what nobody has any more. What of which layer is in another is noted when that one is made.
//!
//! Of a volume, it is known how much it has in common with the one before, and not what: that is spread over
//! all that the one before had. A layer of which less than half is still there is held no longer, and the
//! rest is counted once more: a volume that is rewritten each time is not counted for ever.

use forkpoint_core::{
    driver::{DriverResult, Piece, PieceName},
    id::SnapshotId,
};
use serde::{Deserialize, Serialize};

use super::{
    host::Host,
    label,
    volume::{VolumeLayer, piece_name},
};
use crate::layer::LayerName;

pub(super) const COUNTS: &str = "counts";

const BYTES: &str = "bytes:";

/// What a layer, with all that it lies over, is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts(Vec<Count>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Count {
    /// The layer that brought them.
    of: String,
    /// How many of its bytes.
    used: u64,
    whole: u64,
}

impl Counts {
    fn with(mut self, of: &PieceName, bytes: u64) -> Self {
        if bytes > 0 {
            self.0.push(Count { of: of.0.clone(), used: bytes, whole: bytes });
        }
        self
    }

    /// What is still held of these if so many bytes are left of them, and how many are not.
    fn left(&self, bytes: u64) -> (Self, u64) {
        let total: u128 = self.0.iter().map(|count| u128::from(count.used)).sum();
        let scaled = |count: &Count| {
            let used = u128::from(count.used) * u128::from(bytes) / total.max(1);
            Count { used: u64::try_from(used).unwrap_or(u64::MAX), ..count.clone() }
        };
        let held = self.0.iter().map(scaled).filter(|count| count.used >= count.whole.div_ceil(2));
        let held: Vec<Count> = held.collect();
        let used = held.iter().map(|count| count.used).sum();
        (Self(held), bytes.saturating_sub(used))
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> {
        self.0.iter().map(|count| Piece {
            name: PieceName(format!("{BYTES}{}", count.of)),
            over: None,
            bytes: count.whole,
        })
    }
}

impl Host {
    /// Of an image that was made as a snapshot, over the image of another one.
    pub(super) fn count_image(
        &self,
        snapshot: SnapshotId,
        over: Option<SnapshotId>,
        bytes: u64,
    ) -> DriverResult<Counts> {
        let below = match over {
            Some(over) => self.counts_of(&over.to_string())?,
            None => Counts::default(),
        };
        let name = PieceName(label::piece(self.data()?, snapshot));
        self.keep_counts(&snapshot.to_string(), below.with(&name, bytes))
    }

    pub(super) fn count_volume(&self, layer: &VolumeLayer) -> DriverResult<Counts> {
        let below = match &layer.base {
            Some(base) => self.counts_of(base.as_str())?,
            None => Counts::default(),
        };
        let (held, again) = below.left(layer.size.bytes.saturating_sub(layer.own.bytes));
        let counts = held.with(&piece_name(&layer.name), layer.own.bytes + again);
        self.keep_counts(layer.name.as_str(), counts)
    }

    /// One that is lost costs a count, and nothing else.
    fn counts_of(&self, name: &str) -> DriverResult<Counts> {
        let note = self.read_note(COUNTS, name)?;
        Ok(note.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default())
    }

    fn keep_counts(&self, name: &str, counts: Counts) -> DriverResult<Counts> {
        let text = serde_json::to_vec(&counts).unwrap_or_default();
        self.write_note(COUNTS, name, &text)?;
        Ok(counts)
    }

    /// Whether a piece is only a count, and ours.
    pub(super) fn is_count(&self, piece: &PieceName) -> DriverResult<bool> {
        let Some(of) = piece.0.strip_prefix(BYTES) else { return Ok(false) };
        Ok(label::parse_piece(self.data()?, of).is_some() || of.parse::<LayerName>().is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(of: &str, used: u64, whole: u64) -> Count {
        Count { of: of.to_owned(), used, whole }
    }

    fn name(text: &str) -> PieceName {
        PieceName(text.to_owned())
    }

    #[test]
    fn what_is_in_common_is_held_and_what_is_new_is_added() {
        let first = Counts::default().with(&name("a"), 500);
        let (held, again) = first.left(490);
        assert_eq!((held.0.as_slice(), again), (&[count("a", 490, 500)][..], 0));
        let second = held.with(&name("b"), 10);
        let pieces: Vec<(String, u64)> =
            second.pieces().map(|piece| (piece.name.0, piece.bytes)).collect();
        assert_eq!(pieces, [("bytes:a".to_owned(), 500), ("bytes:b".to_owned(), 10)]);
        assert_eq!(second.clone().with(&name("c"), 0), second, "nothing new");
        assert_eq!(second.left(500), (second.clone(), 0));
    }

    #[test]
    fn what_is_hardly_there_any_more_is_counted_with_the_new() {
        let first = Counts::default().with(&name("a"), 500);
        assert_eq!(first.left(249), (Counts::default(), 249));
        assert_eq!(first.left(0), (Counts::default(), 0));
        assert_eq!(Counts::default().left(70), (Counts::default(), 70), "a note that was lost");
        let both = Counts(vec![count("a", 300, 500), count("b", 100, 100)]);
        let (held, again) = both.left(300);
        assert_eq!((held.0.as_slice(), again), (&[count("b", 75, 100)][..], 225));
        let huge = Counts::default().with(&name("a"), u64::MAX);
        assert_eq!(huge.left(u64::MAX).1, 0);
    }
}
