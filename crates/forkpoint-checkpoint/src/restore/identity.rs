//! What programs know databases by.
//!
//! SQLite finds out whether a file that it opens is one that it has open already by device and inode, which it keeps in
//! memory. In a copy a file has others. A connection from before and one from after would be strangers, and the kernel
//! keeps the locks of one process from nobody in it: both would write at once. So where a process has a database open,
//! what SQLite keeps of it is looked for in its pages, once for an image, and the numbers of the copy are put there
//! before it runs.

use std::{
    array,
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _},
};

use crate::{
    image::{Alive, Chain, Identity, Mapping, MappingKind, Piece, Snapshot},
    ranges::{self, Range},
    sys::PAGE,
};

/// Read at once.
const BLOCK: u64 = 1 << 20;
const WORD: u64 = 8;

/// Who has more databases open, or more in memory that could be what is kept of one, is left as it is: a program has one of
/// these for each database and library, and another may only look like SQLite to cost us time.
const DATABASES_MAX: usize = 64;
const TRIES_MAX: usize = 1 << 22;
const FOUND_MAX: usize = 1024;
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
    /// Looks through the pages of a process that has a database open.
    pub(super) fn find(
        pid: i32,
        alive: &Alive,
        snapshot: &Snapshot,
        chain: &Chain,
    ) -> io::Result<Self> {
        let databases = Databases::of(alive, snapshot);
        let (mut found, mut tries) = (Vec::new(), 0);
        if databases.by_inode.is_empty() || databases.by_inode.len() > DATABASES_MAX {
            return Ok(Self::default());
        }
        for mapping in alive.mappings.iter().filter(|mapping| is_private(mapping)) {
            let pages = Pages { chain, pieces: chain.pieces(pid, mapping) };
            let mut candidates = Candidates { spots: Vec::new(), tries };
            pages.find(&databases, &mut candidates)?;
            tries = candidates.tries;
            let is_kept = |spot: &Spot| pages.is_kept(spot.address, alive);
            found.extend(candidates.spots.iter().copied().filter(is_kept));
            if candidates.are_too_many() || found.len() > SPOTS_MAX {
                return Ok(Self::default());
            }
        }
        Ok(Self(found))
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

/// What is shared is no program's memory of anything.
fn is_private(mapping: &Mapping) -> bool {
    use MappingKind::{Anonymous, Memory, Private};
    matches!(mapping.kind, Anonymous { .. } | Private { .. } | Memory { private: true, .. })
}

/// Where device and inode stand side by side in a mapping, and how often a device was followed by something.
struct Candidates {
    spots: Vec<Spot>,
    tries: usize,
}

impl Candidates {
    fn are_too_many(&self) -> bool {
        self.tries > TRIES_MAX || self.spots.len() > FOUND_MAX
    }
}

/// Those that a process has open, with a descriptor of each.
struct Databases {
    by_inode: BTreeMap<(u64, u64), i32>,
    devices: BTreeSet<u64>,
    /// The lower halves of their inodes.
    marks: BTreeSet<u32>,
}

impl Databases {
    fn of(alive: &Alive, snapshot: &Snapshot) -> Self {
        let open = alive.descriptors.iter().filter_map(|descriptor| {
            let Identity { device, inode } = snapshot.files[descriptor.file].identity?;
            Some(((inode, device), descriptor.number))
        });
        let by_inode: BTreeMap<_, _> = open.collect();
        let devices = by_inode.keys().map(|(_, device)| *device).collect();
        let marks = by_inode.keys().map(|(inode, _)| *inode as u32).collect();
        Self { by_inode, devices, marks }
    }

    /// Whether one may be in there. Most pages hold none, and this is told many bytes at a time.
    fn may_be_in(&self, page: &[u8]) -> bool {
        let has = |mark: u32| {
            let halves = page.chunks_exact(4).map(|half| half.try_into().unwrap_or_default());
            halves.fold(false, |has, half| has | (u32::from_ne_bytes(half) == mark))
        };
        self.marks.iter().any(|mark| has(*mark))
    }
}

/// The pages of a mapping.
struct Pages<'a> {
    chain: &'a Chain,
    pieces: &'a [Piece],
}

impl Pages<'_> {
    /// Wherever device and inode stand side by side.
    fn find(&self, databases: &Databases, found: &mut Candidates) -> io::Result<()> {
        // The word before, and where it ended: the two may be in two pages.
        let mut before = (0, 0);
        let mut block = Vec::new();
        for piece in self.pieces {
            let mut start = piece.start;
            while start < piece.end {
                block.resize((piece.end - start).min(BLOCK) as usize, 0);
                self.read(piece, start, &mut block)?;
                for (number, page) in (0..).zip(block.chunks(PAGE as usize)) {
                    let start = start + number * PAGE;
                    match databases.may_be_in(page) {
                        true => before = look(start, page, before, databases, found),
                        false => before = (word(page, page.len() - 8), start + PAGE),
                    }
                    if found.are_too_many() {
                        return Ok(());
                    }
                }
                start += block.len() as u64;
            }
        }
        Ok(())
    }

    fn read(&self, piece: &Piece, start: u64, to: &mut [u8]) -> io::Result<()> {
        let pages = &self.chain.images()[piece.image].pages;
        pages.read_exact_at(to, piece.at + (start - piece.start))
    }

    /// What SQLite keeps of a file: device and inode, a lock, how many locks there are and of what kind, descriptors to be
    /// closed later, how many connections there are, what they share, and the next and the previous file.
    fn is_kept(&self, address: u64, alive: &Alive) -> bool {
        let Some([_, _, lock, locks, kind, unused, users, shared, next, last]) =
            self.words(address)
        else {
            return false;
        };
        let is_mapped =
            |to: u64| alive.mappings.iter().any(|mapping| mapping.start <= to && to < mapping.end);
        let leads = |to: u64| to == 0 || to.is_multiple_of(WORD) && is_mapped(to);
        let (few, half) = (1 << 20, u64::from(u32::MAX));
        [lock, unused, shared, next, last].into_iter().all(leads)
            && locks & half < few
            && locks >> 32 < few
            && kind & 0xff <= 4
            && kind >> 8 & 0xff <= 1
            && (1..few).contains(&(users & half))
    }

    /// What is nowhere is zero.
    fn words(&self, address: u64) -> Option<[u64; 10]> {
        let mut bytes = [0; 80];
        let end = address.checked_add(bytes.len() as u64)?;
        for piece in self.pieces {
            let (from, to) = (piece.start.max(address), piece.end.min(end));
            if from < to {
                let range = (from - address) as usize..(to - address) as usize;
                self.read(piece, from, &mut bytes[range]).ok()?;
            }
        }
        Some(array::from_fn(|number| word(&bytes, 8 * number)))
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// Each word of a page, with the one before it: the last, and where it ended.
fn look(
    start: u64,
    page: &[u8],
    mut before: (u64, u64),
    databases: &Databases,
    found: &mut Candidates,
) -> (u64, u64) {
    for (number, inode) in page.chunks_exact(8).map(|bytes| word(bytes, 0)).enumerate() {
        let address = start + number as u64 * WORD;
        let (device, ends) = before;
        before = (inode, address + WORD);
        if ends != address || !databases.devices.contains(&device) {
            continue;
        }
        found.tries += 1;
        if let Some(descriptor) = databases.by_inode.get(&(inode, device)) {
            let was = Identity { device, inode };
            found.spots.push(Spot { address: address - WORD, was, descriptor: *descriptor });
            // No two of them overlap.
            before = (0, 0);
        }
    }
    before
}
