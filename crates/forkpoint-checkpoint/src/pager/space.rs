//! One address space whose pages come when they are asked for.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::todo::Todo;
use crate::{
    image::Piece,
    ranges::Range,
    sys::{
        PAGE,
        fault::{self, Mapped, Put, Told},
    },
};

/// Who waits for a page gets those around it too.
const AROUND: u64 = 64 << 10;
const SOON: u64 = 16 << 10;

#[derive(Debug)]
pub(super) struct Space {
    pub(super) uffd: OwnedFd,
    todo: Todo,
    /// Near the last fault.
    cursor: u64,
    /// Faults that have to wait until its mappings stand still.
    waiting: Vec<u64>,
    gone: bool,
}

/// A copy that a process made of itself.
#[derive(Debug)]
pub(super) struct Forked {
    uffd: OwnedFd,
    todo: Todo,
}

impl Forked {
    pub(super) fn into_space(self) -> Space {
        Space { todo: self.todo, ..Space::new(self.uffd, []) }
    }

    pub(super) fn needs_pages(&self) -> bool {
        !self.todo.is_empty()
    }

    pub(super) fn uffd(&self) -> BorrowedFd<'_> {
        self.uffd.as_fd()
    }
}

impl Space {
    pub(super) fn new(uffd: OwnedFd, pieces: impl IntoIterator<Item = Piece>) -> Self {
        let todo = Todo::new(pieces);
        Self { uffd, todo, cursor: 0, waiting: Vec::new(), gone: false }
    }

    /// Nothing is missing in it any more.
    pub(super) fn is_whole(&self) -> bool {
        self.gone || self.todo.is_empty()
    }

    /// Its process is no more, or is another program.
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Brings what is around an address that will be touched.
    pub(super) fn expect(&mut self, address: u64, sources: &[Mapped]) -> io::Result<()> {
        let (start, end) = (address.saturating_sub(SOON), address.saturating_add(SOON));
        self.fill((start & !(PAGE - 1), end & !(PAGE - 1)), sources).map(drop)
    }

    /// What somebody else puts there.
    pub(super) fn forget(&mut self, range: Range) -> Vec<Piece> {
        self.todo.take(range)
    }

    /// Hears one thing that it tells. `false`: there is nothing more.
    pub(super) fn hear(&mut self, sources: &[Mapped], forks: &mut Vec<Forked>) -> io::Result<bool> {
        let Some(told) = fault::next(&self.uffd)? else { return Ok(false) };
        match told {
            Told::Fault(page) => self.answer(page, sources)?,
            Told::Fork(uffd) => forks.push(Forked { uffd, todo: self.todo.clone() }),
            Told::Remap { from, to, len } => self.todo.shift(from, to, len),
            Told::Gone(start, end) => drop(self.todo.take((start, end))),
        }
        Ok(true)
    }

    /// Whether somebody waits and could not be answered.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() && !self.gone
    }

    pub(super) fn answer_waiting(&mut self, sources: &[Mapped]) -> io::Result<()> {
        for page in std::mem::take(&mut self.waiting) {
            self.answer(page, sources)?;
        }
        Ok(())
    }

    fn answer(&mut self, page: u64, sources: &[Mapped]) -> io::Result<()> {
        let missing = self.todo.next(page, PAGE).filter(|range| range.0 == page);
        if missing.is_none() {
            return self.answer_empty(page);
        }
        self.cursor = page;
        if !self.fill((page, page + PAGE), sources)? {
            self.waiting.push(page);
            return Ok(());
        }
        let start = page & !(AROUND - 1);
        // Whatever is not done of it now is done later.
        self.fill((start, start + AROUND), sources).map(drop)
    }

    /// What no image has is empty; so is what was thrown away.
    fn answer_empty(&mut self, page: u64) -> io::Result<()> {
        match fault::zero(&self.uffd, page)? {
            Put::Done(_) => Ok(()),
            Put::There | Put::Nowhere => fault::wake(&self.uffd, page),
            Put::Later => {
                self.waiting.push(page);
                Ok(())
            }
            Put::Gone => {
                self.gone = true;
                Ok(())
            }
        }
    }

    /// Copies a bounded part of what is missing, near the last fault.
    /// `false`: that could not be done now.
    pub(super) fn go_on(&mut self, len: u64, sources: &[Mapped]) -> io::Result<bool> {
        let Some(range) = self.todo.next(self.cursor, len) else { return Ok(false) };
        let done = self.fill(range, sources)?;
        if done {
            self.cursor = range.1;
        }
        Ok(done)
    }

    /// Copies what is missing of a range. `false`: its mappings change, and all of that has to be done later.
    fn fill(&mut self, range: Range, sources: &[Mapped]) -> io::Result<bool> {
        let mut pieces = self.todo.take(range).into_iter();
        while let Some(piece) = pieces.next() {
            if let Some(left) = self.put(piece, sources)? {
                self.todo.add(left);
                pieces.for_each(|piece| self.todo.add(piece));
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns what could not be put there now.
    fn put(&mut self, mut piece: Piece, sources: &[Mapped]) -> io::Result<Option<Piece>> {
        let source = sources.get(piece.image).ok_or(io::ErrorKind::NotFound)?;
        source.expect(piece.at, piece.end - piece.start);
        // A part of a range may have become a mapping of its own.
        let mut most = u64::MAX;
        while piece.start < piece.end && !self.gone {
            let len = most.min(piece.end - piece.start);
            let done = match fault::copy(&self.uffd, piece.start, source.slice(piece.at, len)?)? {
                Put::Done(0) | Put::Later => return Ok(Some(piece)),
                Put::Done(len) => len,
                Put::There => {
                    fault::wake(&self.uffd, piece.start)?;
                    PAGE
                }
                Put::Nowhere if len > PAGE => {
                    most = PAGE;
                    0
                }
                Put::Nowhere => PAGE,
                Put::Gone => {
                    self.gone = true;
                    0
                }
            };
            piece = piece.part((piece.start + done, piece.end));
        }
        Ok(None)
    }
}
