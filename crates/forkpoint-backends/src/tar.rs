//! Tar archives: a strict reader, as a stream, and headers for whoever writes one.
//!
//! It knows ustar with the extensions of GNU (long names) and POSIX (PAX records), and tells what an
//! entry says; what of it is believed is the reader's business. Every length is bounded before anything
//! is allocated for it. What headers say is read in one place (`header.rs`), whoever brings the bytes.

mod header;
#[cfg(any(feature = "docker", test))]
pub(crate) mod write;

pub(crate) use header::{Headers, Step};

use std::io::{self, BufRead, BufReader, Read, Seek};

pub(crate) const BLOCK: usize = 512;

/// Of a path, which is also what the kernel takes.
pub(crate) const PATH_MAX: usize = 4095;

#[derive(Debug, thiserror::Error)]
pub(crate) enum TarError {
    #[error("the archive ends in the middle of something")]
    CutShort,
    #[error("the archive is damaged: {0}")]
    Damaged(&'static str),
    #[error("{entry:?} is refused: {reason}")]
    Refused { entry: String, reason: &'static str },
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for TarError {
    fn from(err: io::Error) -> Self {
        match err.kind() {
            io::ErrorKind::UnexpectedEof => Self::CutShort,
            _ => Self::Io(err),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    HardLink,
    Symlink,
    Directory,
    Fifo,
    Device,
}

/// What an archive says of a thing in it. Nothing of it is checked but its form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: EntryKind,
    /// Where a link leads.
    pub(crate) link: Vec<u8>,
    /// Of the content, which only a file has.
    pub(crate) len_bytes: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds and nanoseconds.
    pub(crate) modified: (i64, u32),
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Of a device.
    pub(crate) node: Option<Node>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) block: bool,
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl Entry {
    pub(crate) fn new(path: Vec<u8>, kind: EntryKind) -> Self {
        let (link, attributes) = (Vec::new(), Vec::new());
        let (len_bytes, mode, uid, gid, modified) = (0, 0o644, 0, 0, (0, 0));
        Self { path, kind, link, len_bytes, mode, uid, gid, modified, attributes, node: None }
    }

    pub(crate) fn shown(&self) -> String {
        shown(&self.path)
    }
}

pub(crate) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(&path[..path.len().min(256)]).into_owned()
}

#[derive(Debug)]
pub(crate) struct TarReader<R> {
    input: R,
    /// Of the current entry's content, and of what fills its last block.
    content: u64,
    padding: u64,
    /// Since the beginning of the archive.
    position: u64,
}

impl<R: BufRead> TarReader<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, content: 0, padding: 0, position: 0 }
    }

    /// Where the content of the current entry begins.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next entry, past what was not read of the one before.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, TarError> {
        self.skip_content()?;
        let mut headers = Headers::default();
        while let Some(block) = self.block()? {
            match headers.take(&block)? {
                Step::End => return Ok(None),
                Step::More { letter, len } => {
                    let bytes = self.more(len)?;
                    headers.more(letter, &bytes)?;
                }
                Step::Entry(entry) => {
                    (self.content, self.padding) = (entry.len_bytes, padding(entry.len_bytes));
                    return Ok(Some(entry));
                }
            }
        }
        Ok(None)
    }

    /// What is there of the current entry's content; empty at its end.
    pub(crate) fn chunk(&mut self) -> Result<&[u8], TarError> {
        if self.content == 0 {
            return Ok(&[]);
        }
        let there = self.input.fill_buf()?;
        if there.is_empty() {
            return Err(TarError::CutShort);
        }
        let len = there.len().min(usize::try_from(self.content).unwrap_or(usize::MAX));
        Ok(&there[..len])
    }

    pub(crate) fn consume(&mut self, len: usize) {
        self.input.consume(len);
        self.content -= len as u64;
        self.position += len as u64;
    }

    /// Reads to the end of everything, for those who count.
    pub(crate) fn drain(mut self) -> Result<(), TarError> {
        loop {
            let len = self.input.fill_buf()?.len();
            if len == 0 {
                return Ok(());
            }
            self.input.consume(len);
        }
    }

    fn skip_content(&mut self) -> Result<(), TarError> {
        self.content += std::mem::take(&mut self.padding);
        while self.content > 0 {
            let len = self.chunk()?.len();
            self.consume(len);
        }
        Ok(())
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), TarError> {
        self.input.read_exact(buffer)?;
        self.position += buffer.len() as u64;
        Ok(())
    }

    /// `None` where there is nothing more.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        if self.input.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let mut block = [0; BLOCK];
        self.read_exact(&mut block)?;
        Ok(Some(block))
    }

    fn more(&mut self, len: usize) -> Result<Vec<u8>, TarError> {
        let mut bytes = vec![0; len];
        self.read_exact(&mut bytes)?;
        self.padding = padding(len as u64);
        self.skip_content()?;
        Ok(bytes)
    }
}

impl<R: Read + Seek> TarReader<BufReader<R>> {
    /// Goes past the content without reading it.
    pub(crate) fn skip(&mut self) -> Result<(), TarError> {
        let len = std::mem::take(&mut self.content) + std::mem::take(&mut self.padding);
        self.position += len;
        let by = i64::try_from(len).map_err(|_| TarError::CutShort)?;
        Ok(self.input.seek_relative(by)?)
    }
}

/// What fills the last block of a content.
pub(crate) fn padding(len: u64) -> u64 {
    len.next_multiple_of(BLOCK as u64) - len
}
