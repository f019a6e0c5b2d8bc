//! A layer on its way: read, checked and uncompressed on one thread, unpacked on another.
//!
//! Whoever unpacks sees bytes before they are checked; nothing of it counts before [`pour`] has
//! returned, which compares the digests at the end.

use std::{
    cell::Cell,
    io::{self, BufRead, BufReader, Read},
    rc::Rc,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
};

use super::{
    Limits, Progress,
    digest::{Digest, Hasher},
    error::{ImageError, ImageResult, carried, carry},
};

const CHUNK: usize = 256 << 10;

/// Chunks that wait to be unpacked.
const WAITING: usize = 8;

/// What a blob must be, as far as that is known before.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    /// Of the bytes as they come.
    pub(super) digest: Option<Digest>,
    pub(super) len_bytes: Option<u64>,
    /// Of the archive that they are when uncompressed.
    pub(super) diff_id: Option<Digest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// By what the bytes begin with: labels are wrong too often.
    pub(super) fn of(beginning: &[u8]) -> Self {
        match beginning {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            _ => Self::None,
        }
    }

    pub(super) fn decode<'a, R: BufRead + 'a>(self, from: R) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::None => Box::new(from),
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(from)),
            Self::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(from)?),
        })
    }
}

/// Sends a blob through `unpack`. Answers with what that did, and the digest of the archive, when
/// everything was as expected.
pub(super) fn pour<T>(
    blob: impl Read + Send,
    what: &str,
    expected: &Expected,
    limits: Limits,
    progress: &Progress,
    unpack: impl FnOnce(Chunks) -> ImageResult<T>,
) -> ImageResult<(T, Digest)> {
    let (sender, receiver) = sync_channel(WAITING);
    thread::scope(|scope| {
        let source = Source { what, limits, progress };
        let reader = scope.spawn(move || source.send(blob, expected, &sender));
        let unpacked = unpack(Chunks { receiver, chunk: Vec::new(), used: 0 });
        let read = reader.join().map_err(|_| ImageError::damaged(what, "its reader panicked"))?;
        match (read, unpacked) {
            // Whoever unpacks stopped listening for a reason of its own.
            (Err(Stop::Unheard), Err(err)) | (Ok(_), Err(err)) => Err(err),
            (Err(Stop::Unheard), Ok(_)) => {
                Err(ImageError::damaged(what, "more bytes than an archive"))
            }
            (Err(Stop::Failed(err)), _) => Err(err),
            (Ok(digest), Ok(unpacked)) => Ok((unpacked, digest)),
        }
    })
}

enum Stop {
    Unheard,
    Failed(ImageError),
}

impl From<ImageError> for Stop {
    fn from(err: ImageError) -> Self {
        Self::Failed(err)
    }
}

struct Source<'a> {
    what: &'a str,
    limits: Limits,
    progress: &'a Progress,
}

impl Source<'_> {
    fn send(
        &self,
        blob: impl Read,
        expected: &Expected,
        to: &SyncSender<io::Result<Vec<u8>>>,
    ) -> Result<Digest, Stop> {
        let result = self.read(blob, expected, to);
        if let Err(Stop::Failed(_)) = &result {
            // Or the end would be taken for the end of the archive.
            let _ = to.send(Err(carry(ImageError::damaged(self.what, "it ends early"))));
        }
        result
    }

    fn read(
        &self,
        mut blob: impl Read,
        expected: &Expected,
        to: &SyncSender<io::Result<Vec<u8>>>,
    ) -> Result<Digest, Stop> {
        let beginning = beginning(&mut blob).map_err(|err| self.failed(err))?;
        let compression = Compression::of(beginning.get_ref());
        // What is not compressed is its own archive, and is hashed once.
        let once = compression == Compression::None && expected.digest == expected.diff_id;
        let raw = Counted {
            blob: beginning.chain(blob),
            progress: self.progress,
            len: Rc::default(),
            max: expected.len_bytes.unwrap_or(self.limits.bytes),
            hasher: (!once && expected.digest.is_some()).then(Hasher::default),
        };
        let mut input = BufReader::with_capacity(CHUNK, raw);
        let diff_id = self.pass_on(&mut input, compression, to)?;
        // What follows the compressed part counts too.
        io::copy(&mut input, &mut io::sink()).map_err(|err| self.failed(err))?;
        let raw = input.into_inner();
        let len = raw.len.get();
        if let Some(expected) = expected.len_bytes.filter(|expected| *expected != len) {
            let (found, expected) = (format!("{len} bytes"), format!("{expected} bytes"));
            return Err(self.mismatch(found, expected).into());
        }
        self.compare(raw.hasher.map(Hasher::finish).as_ref(), expected.digest.as_ref())?;
        self.compare(Some(&diff_id), expected.diff_id.as_ref())?;
        Ok(diff_id)
    }

    /// Answers with the digest of what comes out.
    fn pass_on<R: Read>(
        &self,
        input: &mut BufReader<Counted<'_, R>>,
        compression: Compression,
        to: &SyncSender<io::Result<Vec<u8>>>,
    ) -> Result<Digest, Stop> {
        let mut hasher = Hasher::default();
        let mut len = 0;
        let came = Rc::clone(&input.get_ref().len);
        let mut decoder = compression.decode(input).map_err(|err| self.failed(err))?;
        loop {
            let mut chunk = Vec::with_capacity(CHUNK);
            let read = (&mut decoder).take(CHUNK as u64).read_to_end(&mut chunk);
            read.map_err(|err| self.failed(err))?;
            if chunk.is_empty() {
                return Ok(hasher.finish());
            }
            len += chunk.len() as u64;
            self.limits.check(self.what, len, came.get())?;
            hasher.update(&chunk);
            to.send(Ok(chunk)).map_err(|_| Stop::Unheard)?;
        }
    }

    fn compare(&self, found: Option<&Digest>, expected: Option<&Digest>) -> ImageResult<()> {
        match (found, expected) {
            (Some(found), Some(expected)) if found != expected => {
                Err(self.mismatch(found.to_string(), expected.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn mismatch(&self, found: String, expected: String) -> ImageError {
        ImageError::Mismatch { what: self.what.to_owned(), found, expected }
    }

    fn failed(&self, err: io::Error) -> ImageError {
        carried(err).unwrap_or_else(|err| ImageError::damaged(self.what, err))
    }
}

fn beginning(blob: &mut impl Read) -> io::Result<io::Cursor<Vec<u8>>> {
    let mut beginning = Vec::new();
    blob.take(4).read_to_end(&mut beginning)?;
    Ok(io::Cursor::new(beginning))
}

/// Counts and hashes what comes, and stops when there is more than there can be.
struct Counted<'a, R> {
    blob: R,
    progress: &'a Progress,
    /// Also for who looks while a decoder has the reader.
    len: Rc<Cell<u64>>,
    max: u64,
    hasher: Option<Hasher>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.blob.read(buffer)?;
        self.len.set(self.len.get() + len as u64);
        if self.len.get() > self.max {
            return Err(io::Error::other(format!("it is longer than {} bytes", self.max)));
        }
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..len]);
        }
        self.progress.passed(len as u64).map_err(carry)?;
        Ok(len)
    }
}

/// The archive, for whoever unpacks it.
#[derive(Debug)]
pub(super) struct Chunks {
    receiver: Receiver<io::Result<Vec<u8>>>,
    chunk: Vec<u8>,
    used: usize,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.fill_buf()?.read(buffer)?;
        self.consume(len);
        Ok(len)
    }
}

impl BufRead for Chunks {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.used == self.chunk.len()
            && let Ok(next) = self.receiver.recv()
        {
            (self.chunk, self.used) = (next?, 0);
        }
        Ok(&self.chunk[self.used..])
    }

    fn consume(&mut self, len: usize) {
        self.used += len;
    }
}
