//! Several images of a chain as one, so that a chain need not begin anew to stay short.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::FileExt as _,
    path::Path,
};

use super::{
    Chain, EntryKind, ImageError, ImageId, Life, Mapping, Snapshot, Stored,
    file::{Sums, write_with},
};
use crate::databases::{Databases, PLACES_MAX};

/// So much is read at a time.
const PORTION: u64 = 1 << 20;

/// Pages of an image, on their way into another.
struct Taken {
    image: usize,
    at: u64,
    len: u64,
}

#[derive(Default)]
struct Merging {
    all: Vec<Taken>,
    len: u64,
}

impl Chain {
    /// Writes the newest image once more, as the directory `path`, with all that it has of those from number `from` on. So
    /// it lies over the one below these, or over nothing. It is no other than the newest: what was captured after
    /// that can lie over this one.
    ///
    /// Whoever takes away what is half made ends it.
    pub fn merge(&self, from: usize, path: &Path) -> Result<ImageId, ImageError> {
        let mut merging = Merging::default();
        let snapshot = merging.snapshot(self, from);
        let parent = from.checked_sub(1).and_then(|below| self.images().get(below));
        let parent = parent.map(|image| image.id);
        write_with(path, parent, &snapshot, false, |file, staged| merging.copy(self, file, staged))
    }
}

/// Where nobody looked in one of them, or where there are too many, nobody did.
fn known_at(chain: &Chain, from: usize, pid: i32, databases: &Databases) -> Option<Vec<u64>> {
    let noted = chain.images()[from..].iter().map(|image| databases.noted(pid, image));
    let noted: Vec<_> = noted.collect::<Option<_>>()?;
    let all: BTreeSet<u64> = noted.into_iter().flatten().copied().collect();
    (all.len() <= PLACES_MAX).then(|| all.into_iter().collect())
}

impl Merging {
    fn snapshot(&mut self, chain: &Chain, from: usize) -> Snapshot {
        let mut snapshot = chain.top().snapshot.clone();
        let top = chain.images().len() - 1;
        for process in &mut snapshot.processes {
            let Life::Alive(alive) = &mut process.life else { continue };
            for mapping in &mut alive.mappings {
                mapping.stored = self.mapping(chain, from, process.pid, mapping);
            }
            let databases = Databases::of(alive, &snapshot.files);
            alive.known_at =
                databases.and_then(|databases| known_at(chain, from, process.pid, &databases));
        }
        let memories = snapshot.memories.iter_mut().map(|memory| &mut memory.stored);
        let segments = snapshot.segments.iter_mut().map(|segment| &mut segment.stored);
        let entries = snapshot.mounts.iter_mut().flat_map(|mount| &mut mount.entries);
        let files = entries.filter_map(|entry| match &mut entry.kind {
            EntryKind::File { stored, .. } => Some(stored),
            _ => None,
        });
        // Of these, each image has all.
        for stored in memories.chain(segments).chain(files).flatten() {
            stored.at = self.take(top, stored.at, stored.end - stored.start);
        }
        snapshot
    }

    fn mapping(&mut self, chain: &Chain, from: usize, pid: i32, mapping: &Mapping) -> Vec<Stored> {
        let mut stored: Vec<Stored> = Vec::new();
        for piece in chain.pieces(pid, mapping).iter().filter(|piece| piece.image >= from) {
            let at = self.take(piece.image, piece.at, piece.end - piece.start);
            match stored.last_mut() {
                Some(last) if last.end == piece.start => last.end = piece.end,
                _ => stored.push(Stored { start: piece.start, end: piece.end, at }),
            }
        }
        stored
    }

    fn take(&mut self, image: usize, at: u64, len: u64) -> u64 {
        let here = self.len;
        self.all.push(Taken { image, at, len });
        self.len += len;
        here
    }

    fn copy(&self, chain: &Chain, file: &mut File, staged: &Path) -> io::Result<Sums> {
        let (mut sums, mut buffer) = (Sums::default(), vec![0; PORTION as usize]);
        for Taken { image, at, len } in &self.all {
            let mut done = 0;
            while done < *len {
                let portion = &mut buffer[..(len - done).min(PORTION) as usize];
                chain.images()[*image].pages.read_exact_at(portion, at + done)?;
                file.write_all(portion)?;
                sums.add(portion);
                done += portion.len() as u64;
            }
            // Nobody wants it any more.
            if *len >= PORTION {
                fs::metadata(staged)?;
            }
        }
        Ok(sums)
    }
}
