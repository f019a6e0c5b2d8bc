//! What programs know databases by.
//!
//! SQLite finds out whether a file that it opens is one that it has open already by device and inode, which it keeps in
//! memory. In a copy a file has others. A connection from before and one from after would be strangers, and the kernel
//! keeps the locks of one process from nobody in it: both would write at once. So where a process has a database open,
//! the two numbers, side by side as it keeps them, are looked for in its pages, and those of the copy are put there
//! before it runs.

use std::{
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
        let databases = alive.descriptors.iter().filter_map(|descriptor| {
            let identity = snapshot.files[descriptor.file].identity?;
            Some((identity, descriptor.number))
        });
        let mut databases: Vec<(Identity, i32)> = databases.collect();
        databases.sort_by_key(|(identity, _)| (identity.device, identity.inode));
        databases.dedup_by_key(|(identity, _)| *identity);
        let mut spots = Vec::new();
        if !databases.is_empty() {
            for mapping in alive.mappings.iter().filter(|mapping| is_private(mapping)) {
                look(chain, chain.pieces(pid, mapping), &databases, &mut spots)?;
            }
        }
        Ok(Self(spots))
    }

    /// Pages that must be there before the process runs.
    pub(crate) fn pages(&self) -> Vec<Range> {
        let pages = |spot: &Spot| {
            (spot.address & !(PAGE - 1), (spot.address + 2 * WORD).next_multiple_of(PAGE))
        };
        let mut all: Vec<Range> = self.0.iter().map(pages).collect();
        all.sort_unstable();
        ranges::either(&all, &[])
    }

    /// In the memory of a process that stands and has its files.
    pub(super) fn renew(&self, outside: i32) -> io::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let memory = File::options().read(true).write(true).open(format!("/proc/{outside}/mem"))?;
        for Spot { address, was, descriptor } in &self.0 {
            let now = fs::metadata(format!("/proc/{outside}/fd/{descriptor}"))?;
            let now = Identity { device: now.dev(), inode: now.ino() };
            let mut there = [0; 2 * WORD as usize];
            memory.read_exact_at(&mut there, *address)?;
            if there != words(*was) {
                return Err(io::Error::other("what it knows a database by is not where it was"));
            }
            if now != *was {
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

fn look(
    chain: &Chain,
    pieces: &[Piece],
    databases: &[(Identity, i32)],
    spots: &mut Vec<Spot>,
) -> io::Result<()> {
    // The word before, and where it ended: the two may be in two pieces.
    let mut before = (0, 0);
    let mut block = Vec::new();
    for piece in pieces {
        let mut start = piece.start;
        while start < piece.end {
            block.resize((piece.end - start).min(BLOCK) as usize, 0);
            let pages = &chain.images()[piece.image].pages;
            pages.read_exact_at(&mut block, piece.at + (start - piece.start))?;
            for (number, word) in (0..).zip(block.chunks_exact(WORD as usize)) {
                let word = u64::from_ne_bytes(word.try_into().unwrap_or_default());
                let address = start + number * WORD;
                let is = |(is, _): &&(Identity, i32)| (is.device, is.inode) == (before.0, word);
                if before.1 == address
                    && let Some((was, descriptor)) = databases.iter().find(is)
                {
                    let address = address - WORD;
                    spots.push(Spot { address, was: *was, descriptor: *descriptor });
                }
                before = (word, address + WORD);
            }
            start += block.len() as u64;
        }
    }
    Ok(())
}
