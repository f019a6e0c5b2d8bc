//! Where programs keep what they know databases by.
//!
//! SQLite finds out whether a file that it opens is one that it has open already by device and inode, which it keeps in
//! memory, side by side. Where that may be is noted when pages are written, so that a restore need not look through all
//! of them again.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    mem,
};

use crate::{
    dump::memory::Pages,
    image::{Alive, Identity, Image, Life, Mapping, MappingKind, OpenFile, Snapshot},
    sys::PAGE,
};

pub(crate) const WORD: u64 = 8;

/// Who has more databases open, or more in memory that could be what is kept of one, is left as it is: a program has one of
/// these for each database and library, and another may only look like SQLite to cost us time.
const DATABASES_MAX: usize = 64;
const TRIES_MAX: usize = 1 << 22;
pub(crate) const PLACES_MAX: usize = 4096;

/// Those that a process has open.
pub(crate) struct Databases {
    /// Device and inode, with a descriptor.
    open: BTreeMap<(u64, u64), i32>,
    devices: BTreeSet<u64>,
    inodes: BTreeSet<u64>,
    /// The lower halves of their inodes.
    marks: BTreeSet<u32>,
}

impl Databases {
    /// `None`: there are none, or too many.
    pub(crate) fn of(alive: &Alive, files: &[OpenFile]) -> Option<Self> {
        let open = alive.descriptors.iter().filter_map(|descriptor| {
            let Identity { device, inode } = files[descriptor.file].identity?;
            Some(((device, inode), descriptor.number))
        });
        let open: BTreeMap<_, _> = open.collect();
        let devices = open.keys().map(|(device, _)| *device).collect();
        let inodes: BTreeSet<u64> = open.keys().map(|(_, inode)| *inode).collect();
        let marks = inodes.iter().map(|inode| *inode as u32).collect();
        let are_some = (1..=DATABASES_MAX).contains(&open.len());
        are_some.then_some(Self { open, devices, inodes, marks })
    }

    /// Where a process may keep what it knows these by, as far as its pages of that image go. `None`: nobody looked for all of
    /// them there.
    pub(crate) fn noted<'a>(&self, pid: i32, image: &'a Image) -> Option<&'a [u64]> {
        let process = image.snapshot.processes.iter().find(|process| process.pid == pid)?;
        let alive = process.alive()?;
        let were = Self::of(alive, &image.snapshot.files)?;
        let all = self.open.keys().all(|identity| were.open.contains_key(identity));
        alive.known_at.as_deref().filter(|_| all)
    }

    pub(crate) fn descriptor(&self, of: Identity) -> Option<i32> {
        self.open.get(&(of.device, of.inode)).copied()
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

/// Looks through pages for places where device and inode of a database stand side by side, or may do so if the one that
/// is not in these pages is elsewhere.
pub(crate) struct Search<'a> {
    databases: &'a Databases,
    /// The word before, and where it ended.
    before: (u64, u64),
    places: Vec<u64>,
    /// How often a device was followed by something.
    tries: usize,
}

impl<'a> Search<'a> {
    pub(crate) fn new(databases: &'a Databases) -> Self {
        Self { databases, before: (0, 0), places: Vec::new(), tries: 0 }
    }

    pub(crate) fn is_too_much(&self) -> bool {
        self.tries > TRIES_MAX || self.places.len() > PLACES_MAX
    }

    /// `None`: there are too many.
    pub(crate) fn places(mut self) -> Option<Vec<u64>> {
        self.leave();
        (!self.is_too_much()).then_some(self.places)
    }

    /// Whole pages, which begin at `start`.
    pub(crate) fn look(&mut self, start: u64, pages: &[u8]) {
        if self.before.1 != start {
            self.leave();
            if self.databases.inodes.contains(&word(pages, 0)) {
                self.places.push(start.saturating_sub(WORD));
            }
        }
        for (start, page) in (start..).step_by(PAGE as usize).zip(pages.chunks(PAGE as usize)) {
            if self.is_too_much() {
                return;
            }
            match self.databases.may_be_in(page) {
                true => self.look_at_words(start, page),
                false => self.before = (word(page, page.len() - 8), start + PAGE),
            }
        }
    }

    /// What comes next is elsewhere.
    fn leave(&mut self) {
        let (device, end) = mem::take(&mut self.before);
        if self.databases.devices.contains(&device) {
            self.places.extend(end.checked_sub(WORD));
        }
    }

    fn look_at_words(&mut self, start: u64, page: &[u8]) {
        for (number, inode) in page.chunks_exact(8).map(|bytes| word(bytes, 0)).enumerate() {
            let address = start + number as u64 * WORD;
            let (device, end) = mem::replace(&mut self.before, (inode, address + WORD));
            if end != address || !self.databases.devices.contains(&device) {
                continue;
            }
            self.tries += 1;
            if self.databases.open.contains_key(&(device, inode)) {
                self.places.push(address - WORD);
            }
        }
    }
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// What is shared is no program's memory of anything.
pub(crate) fn is_private(mapping: &Mapping) -> bool {
    use MappingKind::{Anonymous, Memory, Private};
    matches!(mapping.kind, Anonymous { .. } | Private { .. } | Memory { private: true, .. })
}

/// The snapshot with what is in its pages noted.
pub(crate) fn note<'a>(snapshot: &'a Snapshot, pages: &Pages) -> Cow<'a, Snapshot> {
    let mut noted = Cow::Borrowed(snapshot);
    for (index, process) in snapshot.processes.iter().enumerate() {
        let Some(alive) = process.alive() else { continue };
        let Some(databases) = Databases::of(alive, &snapshot.files) else { continue };
        if let Life::Alive(alive) = &mut noted.to_mut().processes[index].life {
            alive.known_at = find(&databases, alive, pages);
        }
    }
    noted
}

fn find(databases: &Databases, alive: &Alive, pages: &Pages) -> Option<Vec<u64>> {
    let mut search = Search::new(databases);
    for mapping in alive.mappings.iter().filter(|mapping| is_private(mapping)) {
        for stored in &mapping.stored {
            search.look(stored.start, pages.stored(stored)?);
            if search.is_too_much() {
                return None;
            }
        }
    }
    search.places()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: u64 = 0x2e;
    const INODE: u64 = 0x1_0000_1234;

    fn databases() -> Databases {
        Databases {
            open: BTreeMap::from([((DEVICE, INODE), 3)]),
            devices: BTreeSet::from([DEVICE]),
            inodes: BTreeSet::from([INODE]),
            marks: BTreeSet::from([INODE as u32]),
        }
    }

    fn pages(count: usize, words: &[(usize, u64)]) -> Vec<u8> {
        let mut pages = vec![0; count * PAGE as usize];
        for (at, word) in words {
            pages[*at..*at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        pages
    }

    fn places(parts: &[(u64, Vec<u8>)]) -> Vec<u64> {
        let databases = databases();
        let mut search = Search::new(&databases);
        parts.iter().for_each(|(start, pages)| search.look(*start, pages));
        search.places().unwrap()
    }

    #[test]
    fn two_words_are_found_in_a_page_and_across_pages() {
        let here = pages(3, &[(64, DEVICE), (72, INODE), (8184, DEVICE), (8192, INODE)]);
        assert_eq!(places(&[(0x10000, here)]), [0x10040, 0x11ff8]);
        let (first, second) = (pages(1, &[(4088, DEVICE)]), pages(1, &[(0, INODE)]));
        assert_eq!(places(&[(0x10000, first), (0x11000, second)]), [0x10ff8]);
    }

    #[test]
    fn half_of_it_at_an_edge_is_enough() {
        assert_eq!(places(&[(0x10000, pages(1, &[(4088, DEVICE)]))]), [0x10ff8]);
        assert_eq!(places(&[(0x10000, pages(1, &[(0, INODE)]))]), [0xfff8]);
        let (first, second) = (pages(1, &[(4088, DEVICE)]), pages(1, &[(0, INODE)]));
        assert_eq!(places(&[(0x10000, first), (0x20000, second)]), [0x10ff8, 0x1fff8]);
    }

    #[test]
    fn what_is_alone_or_lies_otherwise_is_nothing() {
        let alone =
            [(64, DEVICE), (80, INODE), (120, INODE), (128, DEVICE), (204, DEVICE), (212, INODE)];
        assert!(places(&[(0x10000, pages(1, &alone))]).is_empty());
        assert!(places(&[(0, pages(2, &[(4088, INODE), (4096, DEVICE)]))]).is_empty());
    }

    #[test]
    fn too_many_are_told() {
        let databases = databases();
        let mut search = Search::new(&databases);
        let many: Vec<_> = (0..512).flat_map(|n| [(16 * n, DEVICE), (16 * n + 8, INODE)]).collect();
        for start in 0..9 {
            search.look(start * 2 * PAGE, &pages(2, &many));
        }
        assert!(search.is_too_much() && search.places().is_none());
    }
}
