//! Which numbers the descriptors have that processes are made with.
//!
//! A file is opened at the number that it will have, where all who have that number have this file: so as many can be
//! brought back as there were. All others are above every number that a process of the image has. Below
//! [`Numbers::free`] is what process 1 has open itself, and meanwhile.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs, io,
    os::fd::AsRawFd as _,
};

use crate::{
    dump::name,
    image::{Chain, FileKind, MappingKind, MemoryId, OtherEnd, Process, Snapshot},
    sys,
};

/// Where descriptors are until each process has its own.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    /// From here on there is nothing but these.
    pub(super) free: i32,
    /// From here on nothing stays where it is.
    pub(super) base: i32,
    /// One for each file of the image.
    files: Vec<i32>,
    /// Mapped files, and whether they are written to.
    pub(super) mapped: BTreeMap<String, (i32, bool)>,
    memories: BTreeMap<MemoryId, i32>,
    pages: i32,
    /// What makes userfaultfds: ours, and where it is put.
    pub(super) faults: Option<(i32, i32)>,
    pub(super) end: i32,
}

/// How many descriptors the opener has besides those that are placed, at most: of two ends, it has the second
/// until that is asked for.
fn kept_open(snapshot: &Snapshot) -> i32 {
    let (mut pairs, mut connections, mut fifos) = (HashSet::new(), HashSet::new(), HashSet::new());
    let mut most = 0;
    for file in &snapshot.files {
        match &file.kind {
            FileKind::Pair { socket, peer, .. } => {
                let is_second = pairs.remove(socket);
                pairs.extend((!is_second && *peer != 0).then_some(*peer));
            }
            FileKind::Connection(end) if end.other_end == OtherEnd::Inside => {
                let (here, there) = (name(&end.address.0), name(&end.peer.0));
                let is_second = connections.remove(&(here, there));
                connections.extend((!is_second).then_some((there, here)));
            }
            FileKind::Fifo { pipe, .. } => {
                fifos.insert(*pipe);
            }
            _ => {}
        }
        most = most.max(pairs.len() + connections.len() + fifos.len());
    }
    most as i32
}

/// Files that can be opened at a number that they will have, and which: at least `free`, and nobody's else.
fn at_home(snapshot: &Snapshot, free: i32) -> HashMap<usize, i32> {
    let mut claims: BTreeMap<i32, Option<usize>> = BTreeMap::new();
    let alive = snapshot.processes.iter().filter_map(Process::alive);
    for descriptor in alive.flat_map(|alive| &alive.descriptors).filter(|d| d.number >= free) {
        let claim = claims.entry(descriptor.number).or_insert(Some(descriptor.file));
        *claim = claim.filter(|file| *file == descriptor.file);
    }
    for file in &snapshot.files {
        // Who watches what has another number by now puts it there for a moment.
        if let FileKind::Poll { watched, targets, .. } = &file.kind
            && !targets.is_empty()
        {
            for (number, ..) in watched {
                claims.remove(number);
            }
        }
    }
    let mut homes = HashMap::new();
    for (number, file) in claims {
        if let Some(file) = file {
            homes.entry(file).or_insert(number);
        }
    }
    homes
}

impl Numbers {
    const LOWEST: i32 = 64;
    const SPARE: i32 = 48;

    pub(super) fn new(snapshot: &Snapshot, chain: &Chain, faults: Option<i32>) -> Self {
        let alive = || snapshot.processes.iter().filter_map(Process::alive);
        let highest = alive().flat_map(|alive| alive.descriptors.iter().map(|d| d.number)).max();
        let polled = snapshot.files.iter().flat_map(|file| match &file.kind {
            FileKind::Poll { watched, .. } => watched.as_slice(),
            _ => &[],
        });
        let highest = highest.max(polled.map(|(number, ..)| *number).max());
        // Nor may the images' own be overwritten before they are copied.
        let of_images = chain.images().iter().map(|image| image.pages.as_raw_fd()).max();
        let in_use = of_images.max(highest_open());
        // Room for what this process opens until then, which takes the lowest numbers: what it keeps open of
        // one file must not stand where another is placed.
        let spare = Self::SPARE + kept_open(snapshot);
        let free = in_use.map_or(0, |number| number + spare).max(Self::LOWEST);
        let base = highest.map_or(0, |number| number + 1).max(free);
        let homes = at_home(snapshot, free);
        let mut next = base;
        let mut above = || {
            next += 1;
            next - 1
        };
        let files = (0..snapshot.files.len())
            .map(|index| homes.get(&index).copied().unwrap_or_else(&mut above))
            .collect();
        let mut mapped: BTreeMap<String, (i32, bool)> = BTreeMap::new();
        for alive in alive() {
            mapped.entry(alive.space.exe.clone()).or_default();
            for mapping in &alive.mappings {
                match &mapping.kind {
                    MappingKind::Private { path, .. } => {
                        mapped.entry(path.clone()).or_default();
                    }
                    MappingKind::Shared { path, writable, .. } => {
                        mapped.entry(path.clone()).or_default().1 |= writable;
                    }
                    MappingKind::Anonymous { .. }
                    | MappingKind::Memory { .. }
                    | MappingKind::Segment { .. } => {}
                }
            }
        }
        for (number, _) in mapped.values_mut() {
            *number = next;
            next += 1;
        }
        let mut memories = BTreeMap::new();
        for memory in &snapshot.memories {
            memories.insert(memory.id, next);
            next += 1;
        }
        let pages = next;
        let end = pages + chain.images().len() as i32;
        let faults = faults.map(|number| (number, end));
        let end = end + i32::from(faults.is_some());
        Self { free, base, files, mapped, memories, pages, faults, end }
    }

    pub(super) fn file(&self, index: usize) -> i32 {
        self.files[index]
    }

    pub(super) fn mapped(&self, path: &str) -> io::Result<i32> {
        let number = self.mapped.get(path).map(|(number, _)| *number);
        number.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn memory(&self, id: &MemoryId) -> io::Result<i32> {
        self.memories.get(id).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn pages(&self, image: usize) -> i32 {
        self.pages + image as i32
    }

    pub(super) fn of_chain(&self, chain: &Chain) -> Vec<(i32, i32)> {
        let pages = chain.images().iter().enumerate();
        let pages = pages.map(|(index, image)| (image.pages.as_raw_fd(), self.pages(index)));
        pages.chain(self.faults).collect()
    }
}

fn highest_open() -> Option<i32> {
    highest_of_few().or_else(highest_listed)
}

fn highest_listed() -> Option<i32> {
    let open = fs::read_dir("/proc/self/fd").ok()?.flatten();
    open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max()
}

/// The same where all are low, in a tenth of the time: of each that it lists, the kernel makes a file.
fn highest_of_few() -> Option<i32> {
    // How many there are, since Linux 6.2.
    let count = fs::metadata("/proc/self/fd").ok()?.len();
    let open = sys::open_below(FEW).ok()?;
    open.last().copied().filter(|_| open.len() as u64 == count)
}

const FEW: i32 = 256;

#[cfg(test)]
mod tests {
    use rustix::io::fcntl_dupfd_cloexec;

    use super::*;

    #[test]
    fn the_highest_open_descriptor_is_found_whether_low_or_high() {
        // Whoever started us may have left some open.
        let file = fs::File::open("/dev/null").unwrap();
        let low = fcntl_dupfd_cloexec(&file, FEW - 10).unwrap();
        assert!(highest_of_few() >= Some(low.as_raw_fd()) || highest_listed() >= Some(FEW));
        assert_eq!(highest_open(), highest_listed());
        let high = fcntl_dupfd_cloexec(&file, FEW + 100).unwrap();
        assert_eq!(highest_of_few(), None);
        assert_eq!(highest_open(), highest_listed().max(Some(high.as_raw_fd())));
    }
}
