//! Pages of an image on their way into a process: many at a time.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use crate::{
    image::{Chain, Piece},
    ranges::Range,
    sys::memory,
};

const READ: u32 = 1;
const WRITE: u32 = 2;
/// So much is held at once.
const BATCH: u64 = 4 << 20;

/// How pages get to where they belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// As the program itself could.
    Plain,
    /// The program may only read it, and mostly did: what is there already is not written.
    Compared,
    Forced,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    way: Way,
    image: usize,
    /// Where it is in the image.
    at: u64,
    range: Range,
}

impl Part {
    fn len(&self) -> u64 {
        self.range.1 - self.range.0
    }
}

/// Parts that are written together.
#[derive(Debug)]
pub(super) struct Fill<'a> {
    pid: i32,
    chain: &'a Chain,
    parts: Vec<Part>,
    len: u64,
}

impl<'a> Fill<'a> {
    /// `pid` is as seen from here.
    pub(super) fn new(pid: i32, chain: &'a Chain) -> Self {
        Self { pid, chain, parts: Vec::new(), len: 0 }
    }

    /// Into memory that has this access.
    pub(super) fn add(&mut self, piece: &Piece, access: u32) -> io::Result<()> {
        let way = match access {
            access if access & WRITE != 0 => Way::Plain,
            access if access & READ != 0 => Way::Compared,
            _ => Way::Forced,
        };
        let mut start = piece.start;
        while start < piece.end {
            let range = (start, piece.end.min(start + BATCH));
            let at = piece.at + (start - piece.start);
            self.parts.push(Part { way, image: piece.image, at, range });
            self.len += range.1 - range.0;
            start = range.1;
            if self.len >= BATCH {
                self.flush()?;
            }
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.parts.is_empty() {
            return Ok(());
        }
        let mut parts = std::mem::take(&mut self.parts);
        parts.sort_unstable_by_key(|part| (part.way, part.image, part.at));
        let bytes = self.read(&parts)?;
        self.len = 0;
        let of = |way: Way| parts.partition_point(|part| part.way < way);
        let (compared, forced) = (of(Way::Compared), of(Way::Forced));
        let len = |parts: &[Part]| parts.iter().map(Part::len).sum::<u64>() as usize;
        let (plain_len, compared_len) = (len(&parts[..compared]), len(&parts[compared..forced]));
        let (plain, rest) = bytes.split_at(plain_len);
        let ranges: Vec<Range> = parts[..compared].iter().map(|part| part.range).collect();
        memory::scatter(self.pid, &ranges, plain)?;
        let (compare, force) = rest.split_at(compared_len);
        self.write_others(&parts[compared..forced], compare)?;
        self.force(&parts[forced..], force, |_| true)
    }

    /// What is one behind the other in an image is read at once.
    fn read(&self, parts: &[Part]) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len as usize];
        let (mut done, mut first) = (0, 0);
        while first < parts.len() {
            let Part { image, at, .. } = parts[first];
            let mut end = at;
            let follows = |part: &&Part| {
                let follows = part.image == image && part.at == end;
                end += if follows { part.len() } else { 0 };
                follows
            };
            let count = parts[first..].iter().take_while(follows).count();
            let len = (end - at) as usize;
            self.chain.images()[image].pages.read_exact_at(&mut bytes[done..done + len], at)?;
            (done, first) = (done + len, first + count);
        }
        Ok(bytes)
    }

    fn write_others(&self, parts: &[Part], wanted: &[u8]) -> io::Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        let ranges: Vec<Range> = parts.iter().map(|part| part.range).collect();
        let mut there = vec![0; wanted.len()];
        match memory::gather(self.pid, &ranges, &mut there) {
            Ok(()) => self.force(parts, wanted, |at| wanted[at.clone()] != there[at]),
            Err(_) => self.force(parts, wanted, |_| true),
        }
    }

    /// Through the kernel's own door, which also opens what the program may only read.
    fn force(
        &self,
        parts: &[Part],
        bytes: &[u8],
        is_due: impl Fn(std::ops::Range<usize>) -> bool,
    ) -> io::Result<()> {
        let mut door = None;
        let mut done = 0;
        for part in parts {
            let at = done..done + part.len() as usize;
            done = at.end;
            if !is_due(at.clone()) {
                continue;
            }
            let open =
                || File::options().read(true).write(true).open(format!("/proc/{}/mem", self.pid));
            let memory = match &door {
                Some(memory) => memory,
                None => door.insert(open()?),
            };
            memory.write_all_at(&bytes[at], part.range.0)?;
        }
        Ok(())
    }
}
