//! A strict reader of tar archives, as a stream.
//!
//! It knows ustar with the extensions of GNU (long names) and POSIX (PAX records), and tells what an
//! entry says; what of it is believed is `unpack.rs`'s business. Every length is bounded before
//! anything is allocated for it.

pub(crate) mod write;

use std::io::{self, BufRead, BufReader, Read, Seek};

const BLOCK: usize = 512;

/// Of a path, which is also what the kernel takes.
pub(crate) const PATH_MAX: usize = 4095;

/// Of what stands before an entry: long names and PAX records.
const EXTENSION_MAX: u64 = 1 << 20;

/// How many of those may stand before one entry.
const EXTENSIONS_MAX: usize = 8;

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

/// What PAX records and long names say about the entry that follows.
#[derive(Default)]
struct Extension {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    modified: Option<(i64, u32)>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: bool,
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
        let mut extension = Extension::default();
        for _ in 0..=EXTENSIONS_MAX {
            let Some(header) = self.header()? else { return Ok(None) };
            match header[156] {
                b'x' => {
                    let records = self.extension(&header)?;
                    extension.read(&records)?;
                }
                // Of the whole archive: tools write comments there.
                b'g' => drop(self.extension(&header)?),
                b'L' => extension.path = Some(until_nul(&self.extension(&header)?).to_vec()),
                b'K' => extension.link = Some(until_nul(&self.extension(&header)?).to_vec()),
                _ => return self.entry(&header, extension).map(Some),
            }
        }
        Err(TarError::Damaged("too much stands before one entry"))
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

    /// `None` at the end: a block of zeros, or nothing more where a header would be.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        if self.input.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let mut header = [0; BLOCK];
        self.read_exact(&mut header)?;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let byte = |at: usize, byte: u8| if (148..156).contains(&at) { b' ' } else { byte };
        let bytes = || header.iter().enumerate().map(|(at, found)| byte(at, *found));
        let sum: u64 = bytes().map(u64::from).sum();
        // Some old programs summed signed bytes.
        let signed: i64 = bytes().map(|byte| i64::from(byte.cast_signed())).sum();
        let told = number(&header[148..156])?;
        if told != sum && i64::try_from(told) != Ok(signed) {
            return Err(TarError::Damaged("the checksum of a header is wrong"));
        }
        Ok(Some(header))
    }

    fn extension(&mut self, header: &[u8; BLOCK]) -> Result<Vec<u8>, TarError> {
        let len = number(&header[124..136])?;
        if len > EXTENSION_MAX {
            return Err(TarError::Damaged("what stands before an entry is longer than 1 MiB"));
        }
        // At most what was checked a line above.
        let mut bytes = vec![0; len as usize];
        self.read_exact(&mut bytes)?;
        self.padding = padding(len);
        self.skip_content()?;
        Ok(bytes)
    }

    fn entry(&mut self, header: &[u8; BLOCK], extension: Extension) -> Result<Entry, TarError> {
        let path = extension.path.unwrap_or_else(|| ustar_path(header));
        let refuse = |reason| Err(TarError::Refused { entry: shown(&path), reason });
        let kind = match header[156] {
            0 | b'0' | b'7' if path.ends_with(b"/") => EntryKind::Directory,
            0 | b'0' | b'7' => EntryKind::File,
            b'1' => EntryKind::HardLink,
            b'2' => EntryKind::Symlink,
            b'3' | b'4' => EntryKind::Device,
            b'5' => EntryKind::Directory,
            b'6' => EntryKind::Fifo,
            b'S' => return refuse("files with holes in the form of GNU tar are not read"),
            _ => return refuse("it is of a kind that is not read"),
        };
        if extension.sparse {
            return refuse("files with holes in the form of GNU tar are not read");
        }
        let link = extension.link.unwrap_or_else(|| until_nul(&header[157..257]).to_vec());
        if path.len() > PATH_MAX || link.len() > PATH_MAX {
            return refuse("its name or where it leads is longer than 4095 bytes");
        }
        let len_bytes = match kind {
            EntryKind::File => extension.size.map_or_else(|| number(&header[124..136]), Ok)?,
            _ => 0,
        };
        if len_bytes > u64::MAX / 4 {
            return Err(TarError::Damaged("an entry is larger than any disk"));
        }
        (self.content, self.padding) = (len_bytes, padding(len_bytes));
        let owner = |told: Option<u32>, field: &[u8]| match told.map_or_else(|| small(field), Ok) {
            // For the kernel that is nobody at all.
            Ok(u32::MAX) => Err(TarError::Damaged("an owner that nobody can be")),
            owner => owner,
        };
        Ok(Entry {
            kind,
            link,
            len_bytes,
            mode: small(&header[100..108])? & 0o7777,
            uid: owner(extension.uid, &header[108..116])?,
            gid: owner(extension.gid, &header[116..124])?,
            modified: match extension.modified {
                Some(modified) => modified,
                None => (seconds(&header[136..148])?, 0),
            },
            attributes: extension.attributes,
            node: match kind {
                EntryKind::Device => Some(Node {
                    block: header[156] == b'4',
                    major: small(&header[329..337])?,
                    minor: small(&header[337..345])?,
                }),
                _ => None,
            },
            path,
        })
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

impl Extension {
    /// Records of the form `LENGTH KEY=VALUE\n`, where the length is that of the whole record.
    fn read(&mut self, mut records: &[u8]) -> Result<(), TarError> {
        let damaged = || TarError::Damaged("a PAX record is malformed");
        while !records.is_empty() {
            let space = records.iter().position(|byte| *byte == b' ').ok_or_else(damaged)?;
            let len: usize = parse(&records[..space]).ok_or_else(damaged)?;
            if len > records.len() || len < space + 3 || records[len - 1] != b'\n' {
                return Err(damaged());
            }
            let record = &records[space + 1..len - 1];
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(damaged)?;
            self.take(&record[..equals], &record[equals + 1..]).ok_or_else(damaged)?;
            records = &records[len..];
        }
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"path" => self.path = Some(without_nul(value)?),
            b"linkpath" => self.link = Some(without_nul(value)?),
            b"size" => self.size = Some(parse(value)?),
            b"uid" => self.uid = Some(parse(value)?),
            b"gid" => self.gid = Some(parse(value)?),
            b"mtime" => self.modified = Some(moment(value)?),
            _ if key.starts_with(b"GNU.sparse.") => self.sparse = true,
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.attributes.push((without_nul(name)?, value.to_vec()));
                }
            }
        }
        Some(())
    }
}

fn padding(len: u64) -> u64 {
    len.next_multiple_of(BLOCK as u64) - len
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn without_nul(bytes: &[u8]) -> Option<Vec<u8>> {
    (!bytes.contains(&0)).then(|| bytes.to_vec())
}

fn parse<T: std::str::FromStr>(bytes: &[u8]) -> Option<T> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

fn ustar_path(header: &[u8; BLOCK]) -> Vec<u8> {
    let name = until_nul(&header[..100]);
    // GNU tar writes times where ustar has the rest of a name.
    let prefix = match &header[257..263] {
        b"ustar\0" => until_nul(&header[345..500]),
        _ => &[],
    };
    match prefix {
        [] => name.to_vec(),
        _ => [prefix, b"/", name].concat(),
    }
}

/// Octal digits, or, where these do not suffice, binary behind a set bit.
fn number(field: &[u8]) -> Result<u64, TarError> {
    let damaged = || TarError::Damaged("a number in a header is malformed");
    if let Some((first, rest)) = field.split_first()
        && first & 0x80 != 0
    {
        let (zeros, digits) = rest.split_at(rest.len().saturating_sub(8));
        if first & 0x7f != 0 || zeros.iter().any(|byte| *byte != 0) {
            return Err(damaged());
        }
        return Ok(digits.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    }
    let text = std::str::from_utf8(until_nul(field)).map_err(|_| damaged())?.trim();
    if text.is_empty() {
        return Ok(0);
    }
    u64::from_str_radix(text, 8).map_err(|_| damaged())
}

fn small(field: &[u8]) -> Result<u32, TarError> {
    number(field)?.try_into().map_err(|_| TarError::Damaged("a number in a header is too large"))
}

/// A time before 1970 is binary, and negative.
fn seconds(field: &[u8]) -> Result<i64, TarError> {
    if field.first() == Some(&0xff) {
        let (_, digits) = field.split_at(field.len().saturating_sub(8));
        return Ok(digits.iter().fold(-1, |sum, byte| sum << 8 | i64::from(*byte)));
    }
    let told = number(field)?;
    told.try_into().map_err(|_| TarError::Damaged("a number in a header is too large"))
}

/// `1700000000.123456789`
fn moment(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = fraction.get(..9).unwrap_or(fraction);
    let nanos = format!("{digits:0<9}").parse().ok()?;
    match (text.starts_with('-'), nanos) {
        (true, 1..) => Some((whole.checked_sub(1)?, 1_000_000_000 - nanos)),
        _ => Some((whole, nanos)),
    }
}
