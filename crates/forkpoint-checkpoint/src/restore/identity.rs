//! What programs know databases by.
//!
//! SQLite finds out whether a file that it opens is one that it has open already by device and inode, which it keeps in
//! memory. In a copy a file has others. A connection from before and one from after would be strangers, and the kernel
//! keeps the locks of one process from nobody in it: both would write at once. So where a process has a database open,
//! what SQLite keeps of it is looked up where the image says it may be, and the numbers of the copy are put there before
//! it runs. Images that say nothing are looked through, once.

use std::{
    array,
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _},
};

use crate::{
    databases::{Databases, Search, WORD, is_private, word},
    image::{Alive, Chain, Identity, Piece, Snapshot},
    ranges::{self, Range},
    sys::PAGE,
};

/// Read at once.
const BLOCK: u64 = 1 << 20;

/// Of a process. One that has more may only look like SQLite.
const SPOTS_MAX: usize = 256;

/// Where a process keeps what a database is known by.
#[derive(Debug, Default)]
pub(crate) struct Spots(Vec<Spot>);

#[derive(Clone, Copy, Debug)]
struct Spot {
    address: u64,
    was: Identity,
    /// Of the process.
    descriptor: i32,
}

impl Spots {
    /// In the pages of a process that has a database open.
    pub(super) fn find(
        pid: i32,
        alive: &Alive,
        snapshot: &Snapshot,
        chain: &Chain,
    ) -> io::Result<Self> {
        let Some(databases) = Databases::of(alive, &snapshot.files) else {
            return Ok(Self::default());
        };
        let memory = Memory { pid, alive, chain };
        let Some(mut places) = memory.places(&databases)? else { return Ok(Self::default()) };
        places.sort_unstable();
        let mut found: Vec<Spot> = Vec::new();
        for address in places {
            // No two of them overlap.
            let is_free = found.last().is_none_or(|last| last.address + 2 * WORD <= address);
            found.extend(is_free.then(|| memory.spot(address, &databases)).flatten());
        }
        match found.len() <= SPOTS_MAX {
            true => Ok(Self(found)),
            false => Ok(Self::default()),
        }
    }

    /// Pages that must be there before the process runs.
    pub(crate) fn pages(&self) -> Vec<Range> {
        let pages = |spot: &Spot| {
            (spot.address & !(PAGE - 1), (spot.address + 2 * WORD).next_multiple_of(PAGE))
        };
        let all: Vec<Range> = self.0.iter().map(pages).collect();
        ranges::either(&all, &[])
    }

    /// In the memory of a process that stands and has its files.
    pub(super) fn renew(&self, outside: i32) -> io::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let memory = File::options().read(true).write(true).open(format!("/proc/{outside}/mem"))?;
        let mut seen = BTreeMap::new();
        for Spot { address, was, descriptor } in &self.0 {
            let now = match seen.get(descriptor) {
                Some(now) => *now,
                None => {
                    let now = fs::metadata(format!("/proc/{outside}/fd/{descriptor}"))?;
                    let now = Identity { device: now.dev(), inode: now.ino() };
                    seen.insert(*descriptor, now);
                    now
                }
            };
            let mut there = [0; 2 * WORD as usize];
            memory.read_exact_at(&mut there, *address)?;
            // What is something else by now is not ours to change.
            if there == words(*was) && now != *was {
                memory.write_all_at(&words(now), *address)?;
            }
        }
        Ok(())
    }
}

fn words(Identity { device, inode }: Identity) -> [u8; 2 * WORD as usize] {
    let mut words = [0; 2 * WORD as usize];
    words[..8].copy_from_slice(&device.to_ne_bytes());
    words[8..].copy_from_slice(&inode.to_ne_bytes());
    words
}

/// Of a process of an image.
struct Memory<'a> {
    pid: i32,
    alive: &'a Alive,
    chain: &'a Chain,
}

impl Memory<'_> {
    /// Where it may keep what it knows databases by. `None`: in too many places.
    fn places(&self, databases: &Databases) -> io::Result<Option<Vec<u64>>> {
        let images = self.chain.images().iter();
        let noted: Vec<_> = images.map(|image| databases.noted(self.pid, image)).collect();
        let mut search = Search::new(databases);
        for mapping in self.alive.mappings.iter().filter(|mapping| is_private(mapping)) {
            let pieces = self.chain.pieces(self.pid, mapping).iter();
            for piece in pieces.filter(|piece| noted[piece.image].is_none()) {
                self.look(piece, &mut search)?;
                if search.is_too_much() {
                    return Ok(None);
                }
            }
        }
        let noted = noted.into_iter().flatten().flatten();
        Ok(search.places().map(|places| places.into_iter().chain(noted.copied()).collect()))
    }

    fn look(&self, piece: &Piece, search: &mut Search<'_>) -> io::Result<()> {
        let mut block = vec![0; (piece.end - piece.start).min(BLOCK) as usize];
        let mut start = piece.start;
        while start < piece.end {
            let now = &mut block[..(piece.end - start).min(BLOCK) as usize];
            self.read(piece, start, now)?;
            search.look(start, now);
            start += now.len() as u64;
        }
        Ok(())
    }

    fn read(&self, piece: &Piece, start: u64, to: &mut [u8]) -> io::Result<()> {
        let pages = &self.chain.images()[piece.image].pages;
        pages.read_exact_at(to, piece.at + (start - piece.start))
    }

    /// What SQLite keeps of a file: device and inode, a lock, how many locks there are and of what kind, descriptors to be
    /// closed later, how many connections there are, what they share, and the next and the previous file.
    fn spot(&self, address: u64, databases: &Databases) -> Option<Spot> {
        let [device, inode, lock, locks, kind, unused, users, shared, next, last] =
            self.words(address)?;
        let was = Identity { device, inode };
        let descriptor = databases.descriptor(was)?;
        let leads = |to: u64| to == 0 || to.is_multiple_of(WORD) && self.is_mapped(to);
        let (few, half) = (1 << 20, u64::from(u32::MAX));
        let is_kept = [lock, unused, shared, next, last].into_iter().all(leads)
            && locks & half < few
            && locks >> 32 < few
            && kind & 0xff <= 4
            && kind >> 8 & 0xff <= 1
            && (1..few).contains(&(users & half));
        is_kept.then_some(Spot { address, was, descriptor })
    }

    fn is_mapped(&self, address: u64) -> bool {
        let after = self.alive.mappings.partition_point(|mapping| mapping.end <= address);
        self.alive.mappings.get(after).is_some_and(|mapping| mapping.start <= address)
    }

    /// Of one mapping. What is in no image is zero.
    fn words(&self, address: u64) -> Option<[u64; 10]> {
        let mut bytes = [0; 80];
        let end = address.checked_add(bytes.len() as u64)?;
        let after = self.alive.mappings.partition_point(|mapping| mapping.end <= address);
        let mapping = self.alive.mappings.get(after).filter(|mapping| is_private(mapping))?;
        let pieces = self.chain.pieces(self.pid, mapping);
        let first = pieces.partition_point(|piece| piece.end <= address);
        for piece in pieces[first..].iter().take_while(|piece| piece.start < end) {
            let (from, to) = (piece.start.max(address), piece.end.min(end));
            let range = (from - address) as usize..(to - address) as usize;
            self.read(piece, from, &mut bytes[range]).ok()?;
        }
        Some(array::from_fn(|number| word(&bytes, 8 * number)))
    }
}
