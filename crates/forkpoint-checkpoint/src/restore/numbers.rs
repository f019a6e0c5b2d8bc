//! Which numbers the descriptors have that processes are made with: above all that a process of the image has.

use std::{collections::BTreeMap, fs, io, os::fd::AsRawFd as _};

use crate::image::{Chain, FileKind, MappingKind, MemoryId, OpenFile, Process, Snapshot};

/// Where descriptors are until each process has its own: above all that any of them has.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    pub(super) base: i32,
    /// Mapped files, and whether they are written to.
    pub(super) mapped: BTreeMap<String, (i32, bool)>,
    memories: BTreeMap<MemoryId, i32>,
    pages: i32,
    /// What makes userfaultfds: ours, and where it is put.
    pub(super) faults: Option<(i32, i32)>,
    pub(super) end: i32,
}

/// How many descriptors its opener has of a file until all are placed, at most.
fn kept_open(file: &OpenFile) -> i32 {
    match file.kind {
        FileKind::Pair { .. } | FileKind::Connection(_) | FileKind::Fifo { .. } => 1,
        FileKind::Pipe { .. }
        | FileKind::Client { .. }
        | FileKind::Deleted { .. }
        | FileKind::Path { .. }
        | FileKind::Memory { .. }
        | FileKind::Event { .. }
        | FileKind::Timer { .. }
        | FileKind::Signal { .. }
        | FileKind::Poll { .. }
        | FileKind::Listener(_)
        | FileKind::Datagram(_)
        | FileKind::Process { .. }
        | FileKind::Watch { .. }
        | FileKind::Master { .. }
        | FileKind::Terminal { .. } => 0,
    }
}

impl Numbers {
    const LOWEST: i32 = 64;
    const SPARE: i32 = 32;

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
        let in_use = highest.max(of_images).max(highest_open());
        // Room for what this process opens until then, which takes the lowest numbers: what it keeps open of
        // one file must not stand where another is placed.
        let spare = Self::SPARE + snapshot.files.iter().map(kept_open).sum::<i32>();
        let base = in_use.map_or(0, |number| number + spare).max(Self::LOWEST);
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
        let mut next = base + snapshot.files.len() as i32;
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
        Self { base, mapped, memories, pages, faults, end: end + i32::from(faults.is_some()) }
    }

    pub(super) fn file(&self, index: usize) -> i32 {
        self.base + index as i32
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
    let open = fs::read_dir("/proc/self/fd").ok()?.flatten();
    open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max()
}
