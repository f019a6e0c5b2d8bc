//! An image with all that it lies over.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Seek as _},
    path::PathBuf,
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::{Image, ImageError, Mapping};
use crate::ranges::Range;

#[derive(Debug)]
pub struct Chain {
    /// The first lies over nothing, each other one over the one before.
    images: Vec<Image>,
    /// Where the pages of the newest are, by process and start of the mapping: found once, since many small changes
    /// are many pieces.
    pieces: HashMap<(i32, u64), Vec<Piece>>,
    is_shared: bool,
}

/// A range of a process's pages: which image has it, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) image: usize,
    pub(crate) at: u64,
}

impl Piece {
    /// A part of it; `range` is inside.
    pub(crate) fn part(&self, range: Range) -> Self {
        let at = self.at + (range.0 - self.start);
        Self { start: range.0, end: range.1, at, ..*self }
    }

    /// The parts of pieces that are in `ranges`, both in order.
    pub(crate) fn within(pieces: &[Self], ranges: &[Range]) -> Vec<Self> {
        let mut found = Vec::with_capacity(pieces.len());
        let mut first = 0;
        for piece in pieces {
            while ranges.get(first).is_some_and(|range| range.1 <= piece.start) {
                first += 1;
            }
            for range in ranges[first..].iter().take_while(|range| range.0 < piece.end) {
                found.push(piece.part((piece.start.max(range.0), piece.end.min(range.1))));
            }
        }
        found
    }
}

impl Chain {
    /// Opens and checks all of them, the lowest first, with the contents of their pages, unless those were
    /// compared since this machine started and have not changed.
    pub fn open(paths: impl IntoIterator<Item = PathBuf>) -> Result<Self, ImageError> {
        let mut images: Vec<Image> = Vec::new();
        for path in paths {
            let image = Image::open(path)?;
            image.check_parent(images.last())?;
            image.check_pages_once()?;
            images.push(image);
        }
        let pieces = find_all(&images)?;
        Ok(Self { images, pieces, is_shared: false })
    }

    /// Keeps the pages in memory from now on. Copies that are brought back from it share what they do not write to,
    /// and cost no more than that; but to a program that gives memory back (`MADV_DONTNEED`), it shows what the image
    /// has there, and not zeros.
    pub fn share_memory(&mut self) -> io::Result<()> {
        for image in &mut self.images {
            image.pages = in_memory(&image.pages)?;
        }
        self.is_shared = true;
        Ok(())
    }

    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Whether all its files are there and nobody touched them since: then it need not be opened again.
    #[must_use]
    pub fn is_as_opened(&self) -> bool {
        self.images.iter().all(Image::is_as_opened)
    }

    /// The newest: what is restored.
    #[must_use]
    pub fn top(&self) -> &Image {
        &self.images[self.images.len() - 1]
    }

    #[must_use]
    pub fn images(&self) -> &[Image] {
        &self.images
    }

    /// Where the pages of a mapping of the newest image are, in order of addresses.
    pub(crate) fn pieces(&self, pid: i32, mapping: &Mapping) -> &[Piece] {
        self.pieces.get(&(pid, mapping.start)).map_or(&[], Vec::as_slice)
    }
}

/// None may be missing.
fn find_all(images: &[Image]) -> Result<HashMap<(i32, u64), Vec<Piece>>, ImageError> {
    let Some(top) = images.last() else {
        return Err(ImageError::Foreign { path: PathBuf::new(), why: "there is none" });
    };
    let mut all = HashMap::new();
    for process in &top.snapshot.processes {
        for mapping in process.alive().iter().flat_map(|alive| &alive.mappings) {
            let Some(pieces) = find(images, process.pid, mapping) else {
                let why = format!(
                    "pages of process {} at {:#x} are in no image",
                    process.pid, mapping.start
                );
                return Err(ImageError::Damaged { path: top.path.clone(), why });
            };
            all.insert((process.pid, mapping.start), pieces);
        }
    }
    Ok(all)
}

fn find(images: &[Image], pid: i32, mapping: &Mapping) -> Option<Vec<Piece>> {
    let mut found = Vec::new();
    let mut missing = mapping.pages.clone();
    for (index, image) in images.iter().enumerate().rev() {
        if missing.is_empty() {
            break;
        }
        let stored = image.stored(pid, mapping.start, mapping.end);
        missing = take_from(&missing, index, &stored, &mut found);
    }
    // Each image's are in order already, which this sort makes use of.
    found.sort_by_key(|piece| piece.start);
    missing.is_empty().then_some(found)
}

/// Takes what `stored` has of `missing`, and returns what is still missing.
fn take_from(
    missing: &[(u64, u64)],
    image: usize,
    stored: &[super::Stored],
    found: &mut Vec<Piece>,
) -> Vec<(u64, u64)> {
    let mut rest = Vec::new();
    let mut first = 0;
    for &(mut start, end) in missing {
        while stored.get(first).is_some_and(|range| range.end <= start) {
            first += 1;
        }
        for range in stored[first..].iter().take_while(|range| range.start < end) {
            if start < range.start {
                rest.push((start, range.start));
                start = range.start;
            }
            let until = end.min(range.end);
            if start < until {
                let at = range.at + (start - range.start);
                found.push(Piece { start, end: until, image, at });
                start = until;
            }
        }
        if start < end {
            rest.push((start, end));
        }
    }
    rest
}

impl Image {
    /// What it has of a process's pages in a range, in order of addresses.
    fn stored(&self, pid: i32, start: u64, end: u64) -> Vec<super::Stored> {
        let process = self.snapshot.processes.iter().find(|process| process.pid == pid);
        let mappings = process.and_then(super::Process::alive).map(|alive| &alive.mappings);
        let inside = mappings.into_iter().flatten().filter(|m| m.start < end && start < m.end);
        inside.flat_map(|mapping| mapping.stored.iter().copied()).collect()
    }
}

/// The same bytes in a file that has no name, and that nobody can change.
fn in_memory(pages: &File) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut copy = File::from(memfd_create("forkpoint-pages", flags)?);
    let mut from = pages.try_clone()?;
    from.rewind()?;
    io::copy(&mut from, &mut copy)?;
    fcntl_add_seals(&copy, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(copy)
}
