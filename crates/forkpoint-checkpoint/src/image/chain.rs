//! An image with all that it lies over.

use std::{collections::BTreeMap, path::PathBuf};

use super::{Image, ImageError, Mapping};

/// The first lies over nothing, each other one over the one before.
#[derive(Debug)]
pub struct Chain(Vec<Image>);

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
    pub(crate) fn part(&self, range: (u64, u64)) -> Self {
        let at = self.at + (range.0 - self.start);
        Self { start: range.0, end: range.1, at, ..*self }
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
        let chain = Self(images);
        chain.check_complete()?;
        Ok(chain)
    }

    /// The newest: what is restored.
    #[must_use]
    pub fn top(&self) -> &Image {
        &self.0[self.0.len() - 1]
    }

    #[must_use]
    pub fn images(&self) -> &[Image] {
        &self.0
    }

    fn check_complete(&self) -> Result<(), ImageError> {
        let Some(top) = self.0.last() else {
            return Err(ImageError::Foreign { path: PathBuf::new(), why: "there is none" });
        };
        for process in &top.snapshot.processes {
            for mapping in process.alive().iter().flat_map(|alive| &alive.mappings) {
                let found: u64 = self.pieces(process.pid, mapping).map(|p| p.end - p.start).sum();
                let wanted: u64 = mapping.pages.iter().map(|(start, end)| end - start).sum();
                if found != wanted {
                    let why = format!(
                        "pages of process {} at {:#x} are in no image",
                        process.pid, mapping.start
                    );
                    return Err(ImageError::Damaged { path: top.path.clone(), why });
                }
            }
        }
        Ok(())
    }

    /// Where the pages of a mapping of the newest image are, in order of addresses.
    pub(crate) fn pieces(&self, pid: i32, mapping: &Mapping) -> impl Iterator<Item = Piece> {
        let mut found: BTreeMap<u64, Piece> = BTreeMap::new();
        let mut missing = mapping.pages.clone();
        for (index, image) in self.0.iter().enumerate().rev() {
            if missing.is_empty() {
                break;
            }
            let stored = image.stored(pid, mapping.start, mapping.end);
            missing = take_from(&missing, index, &stored, &mut found);
        }
        found.into_values()
    }
}

/// Takes what `stored` has of `missing`, and returns what is still missing.
fn take_from(
    missing: &[(u64, u64)],
    image: usize,
    stored: &[super::Stored],
    found: &mut BTreeMap<u64, Piece>,
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
                found.insert(start, Piece { start, end: until, image, at });
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
