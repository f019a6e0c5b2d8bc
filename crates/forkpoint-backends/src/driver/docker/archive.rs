//! Tar archives, as an engine sends and takes them.
//!
//! Reading is for what an engine sends of one path; it knows ustar, long names and PAX records, and
//! bounds every length before it allocates. Writing says everything in PAX records that the old header
//! cannot.

use std::io;

use bytes::{Bytes, BytesMut};

use super::http::Body;

pub(super) const BLOCK: usize = 512;

/// Of long names and PAX records.
const EXTENSION_MAX: u64 = 1 << 20;

pub(super) const FILE: u8 = b'0';
pub(super) const HARD_LINK: u8 = b'1';
pub(super) const SYMLINK: u8 = b'2';
pub(super) const CHAR: u8 = b'3';
pub(super) const BLOCK_DEVICE: u8 = b'4';
pub(super) const DIRECTORY: u8 = b'5';
pub(super) const FIFO: u8 = b'6';

/// What an archive says of a thing in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: Vec<u8>,
    /// One of the letters of the old header.
    pub(super) kind: u8,
    pub(super) link: Vec<u8>,
    pub(super) len_bytes: u64,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Seconds and nanoseconds.
    pub(super) modified: (i64, u32),
    pub(super) device: (u32, u32),
    pub(super) attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    pub(super) fn new(path: &[u8], kind: u8) -> Self {
        Self { path: path.to_vec(), kind, ..Self::default() }
    }

    /// The header, with what goes before it.
    pub(super) fn header(&self) -> Vec<u8> {
        self.header_with(&[])
    }

    /// With records that only we know.
    pub(super) fn header_with(&self, own: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut records = Vec::new();
        for (key, value) in own {
            record(&mut records, key, value);
        }
        if self.path.len() > 100 {
            record(&mut records, b"path", &self.path);
        }
        if self.link.len() > 100 {
            record(&mut records, b"linkpath", &self.link);
        }
        if self.len_bytes >= 1 << 33 {
            record(&mut records, b"size", self.len_bytes.to_string().as_bytes());
        }
        for (key, id) in [("uid", self.uid), ("gid", self.gid)] {
            if id >= 1 << 21 {
                record(&mut records, key.as_bytes(), id.to_string().as_bytes());
            }
        }
        if self.modified.1 != 0 || self.modified.0 < 0 || self.modified.0 >= 1 << 33 {
            record(&mut records, b"mtime", time(self.modified).as_bytes());
        }
        for (name, value) in &self.attributes {
            record(&mut records, &[b"SCHILY.xattr.", &name[..]].concat(), value);
        }
        let mut bytes = Vec::new();
        if !records.is_empty() {
            let len_bytes = records.len() as u64;
            let before = Self { path: b"pax".to_vec(), kind: b'x', len_bytes, ..Self::default() };
            bytes.extend_from_slice(&before.block());
            bytes.extend_from_slice(&records);
            bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        }
        bytes.extend_from_slice(&self.block());
        bytes
    }

    fn block(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        let mut put = |at: usize, bytes: &[u8], max: usize| {
            let len = bytes.len().min(max);
            block[at..at + len].copy_from_slice(&bytes[..len]);
        };
        put(0, &self.path, 100);
        put(157, &self.link, 100);
        put(100, format!("{:07o}", self.mode & 0o7777).as_bytes(), 8);
        put(108, octal(u64::from(self.uid), 7).as_bytes(), 8);
        put(116, octal(u64::from(self.gid), 7).as_bytes(), 8);
        put(124, octal(self.len_bytes, 11).as_bytes(), 12);
        put(136, octal(u64::try_from(self.modified.0).unwrap_or(0), 11).as_bytes(), 12);
        put(148, b"        ", 8);
        put(156, &[self.kind], 1);
        put(257, b"ustar\x0000", 8);
        put(329, octal(u64::from(self.device.0), 7).as_bytes(), 8);
        put(337, octal(u64::from(self.device.1), 7).as_bytes(), 8);
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

/// Zero where it does not fit: then a PAX record says it.
fn octal(number: u64, digits: usize) -> String {
    let text = format!("{number:0digits$o}");
    if text.len() > digits { "0".repeat(digits) } else { text }
}

fn time((seconds, nanoseconds): (i64, u32)) -> String {
    match (seconds < 0, nanoseconds) {
        (_, 0) => seconds.to_string(),
        (false, _) => format!("{seconds}.{nanoseconds:09}"),
        // One second earlier, and so much later: a decimal fraction goes the other way.
        (true, _) => {
            let whole = seconds + 1;
            let sign = if whole == 0 { "-" } else { "" };
            format!("{sign}{whole}.{:09}", 1_000_000_000 - nanoseconds)
        }
    }
}

/// `LENGTH KEY=VALUE\n`, where the length counts itself.
fn record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    records.extend_from_slice(len.to_string().as_bytes());
    records.push(b' ');
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

/// What fills the last block of a content.
pub(super) fn padding(len_bytes: u64) -> usize {
    let over = usize::try_from(len_bytes % BLOCK as u64).unwrap_or(0);
    if over == 0 { 0 } else { BLOCK - over }
}

/// The end of an archive.
pub(super) const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// An archive that comes from an engine.
#[derive(Debug)]
pub(super) struct Reader {
    body: Body,
    buffer: BytesMut,
    /// Of the current entry's content, and of what fills its last block.
    content: u64,
    padding: u64,
}

impl Reader {
    pub(super) fn new(body: Body) -> Self {
        Self { body, buffer: BytesMut::new(), content: 0, padding: 0 }
    }

    /// The next entry, past what was not read of the one before.
    pub(super) async fn next(&mut self) -> io::Result<Option<Entry>> {
        self.skip().await?;
        let mut over = Entry::default();
        let mut time = None;
        loop {
            let Some(block) = self.block().await? else { return Ok(None) };
            let kind = block[156];
            let len = number(&block[124..136])?;
            if !matches!(kind, b'x' | b'g' | b'L' | b'K') {
                return self.entry(&block, over, time, len).map(Some);
            }
            let bytes = self.extension(len).await?;
            match kind {
                b'x' => read_records(&bytes, &mut over, &mut time)?,
                b'L' => over.path = until_nul(&bytes).to_vec(),
                b'K' => over.link = until_nul(&bytes).to_vec(),
                _ => {}
            }
        }
    }

    fn entry(
        &mut self,
        block: &[u8],
        over: Entry,
        time: Option<(i64, u32)>,
        len: u64,
    ) -> io::Result<Entry> {
        let or = |known: Vec<u8>, field: &[u8]| match known.is_empty() {
            true => until_nul(field).to_vec(),
            false => known,
        };
        let kind = if block[156] == 0 { FILE } else { block[156] };
        let small =
            |field: &[u8]| number(field).map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        let mut path = or(over.path, &block[..100]);
        let prefix = until_nul(&block[345..500]);
        if &block[257..263] == b"ustar\0" && !prefix.is_empty() && path.len() <= 100 {
            path = [prefix, b"/", &path].concat();
        }
        let len_bytes = if over.len_bytes > 0 { over.len_bytes } else { len };
        self.content = if kind == FILE { len_bytes } else { 0 };
        self.padding = padding(self.content) as u64;
        Ok(Entry {
            path,
            kind,
            link: or(over.link, &block[157..257]),
            len_bytes: self.content,
            mode: small(&block[100..108])? & 0o7777,
            uid: if over.uid > 0 { over.uid } else { small(&block[108..116])? },
            gid: if over.gid > 0 { over.gid } else { small(&block[116..124])? },
            modified: match time {
                Some(time) => time,
                None => (i64::try_from(number(&block[136..148])?).unwrap_or(0), 0),
            },
            device: (small(&block[329..337])?, small(&block[337..345])?),
            attributes: over.attributes,
        })
    }

    /// What is there of the current content; `None` at its end.
    pub(super) async fn chunk(&mut self) -> io::Result<Option<Bytes>> {
        if self.content == 0 {
            return Ok(None);
        }
        if self.buffer.is_empty() && !self.fill().await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let len = self.buffer.len().min(usize::try_from(self.content).unwrap_or(usize::MAX));
        self.content -= len as u64;
        Ok(Some(self.buffer.split_to(len).freeze()))
    }

    async fn skip(&mut self) -> io::Result<()> {
        while self.chunk().await?.is_some() {}
        let padding = usize::try_from(self.padding).unwrap_or(0);
        self.padding = 0;
        self.take(padding).await.map(drop)
    }

    async fn fill(&mut self) -> io::Result<bool> {
        match self.body.next().await? {
            Some(bytes) => {
                self.buffer.extend_from_slice(&bytes);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    async fn take(&mut self, len: usize) -> io::Result<BytesMut> {
        while self.buffer.len() < len {
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.buffer.split_to(len))
    }

    /// `None` at the end of the archive.
    async fn block(&mut self) -> io::Result<Option<BytesMut>> {
        while self.buffer.len() < BLOCK {
            if !self.fill().await? {
                return Ok(None);
            }
        }
        let block = self.buffer.split_to(BLOCK);
        Ok(block.iter().any(|byte| *byte != 0).then_some(block))
    }

    async fn extension(&mut self, len: u64) -> io::Result<Vec<u8>> {
        if len > EXTENSION_MAX {
            return Err(io::Error::other("too much stands before one entry of the archive"));
        }
        let bytes = self.take(usize::try_from(len).unwrap_or(0)).await?.to_vec();
        self.take(padding(len)).await?;
        Ok(bytes)
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn number(field: &[u8]) -> io::Result<u64> {
    let odd = || io::Error::other("a number in the archive is none");
    if field[0] & 0x80 != 0 {
        let bytes = field.iter().enumerate();
        return Ok(bytes.fold(0u64, |sum, (index, byte)| {
            sum << 8 | u64::from(if index == 0 { byte & 0x7f } else { *byte })
        }));
    }
    let text = std::str::from_utf8(until_nul(field)).map_err(|_| odd())?.trim();
    if text.is_empty() { Ok(0) } else { u64::from_str_radix(text, 8).map_err(|_| odd()) }
}

fn read_records(
    mut bytes: &[u8],
    entry: &mut Entry,
    modified: &mut Option<(i64, u32)>,
) -> io::Result<()> {
    let odd = || io::Error::other("a PAX record is malformed");
    while !bytes.is_empty() {
        let space = bytes.iter().position(|byte| *byte == b' ').ok_or_else(odd)?;
        let len = std::str::from_utf8(&bytes[..space]).ok().and_then(|text| text.parse().ok());
        let len: usize =
            len.filter(|len| *len > space + 1 && *len <= bytes.len()).ok_or_else(odd)?;
        let text = &bytes[space + 1..len - 1];
        let equals = text.iter().position(|byte| *byte == b'=').ok_or_else(odd)?;
        let (key, value) = (&text[..equals], &text[equals + 1..]);
        let number = || std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
        match key {
            b"path" => entry.path = value.to_vec(),
            b"linkpath" => entry.link = value.to_vec(),
            b"size" => entry.len_bytes = number().ok_or_else(odd)?,
            b"uid" => entry.uid = number().and_then(|id| u32::try_from(id).ok()).ok_or_else(odd)?,
            b"gid" => entry.gid = number().and_then(|id| u32::try_from(id).ok()).ok_or_else(odd)?,
            b"mtime" => *modified = Some(read_time(value).ok_or_else(odd)?),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    entry.attributes.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        bytes = &bytes[len..];
    }
    Ok(())
}

fn read_time(value: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let nanoseconds: u32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    match whole.starts_with('-') && nanoseconds > 0 {
        true => Some((seconds - 1, 1_000_000_000 - nanoseconds)),
        false => Some((seconds, nanoseconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_as_they_are() {
        for told in
            [(0, 0), (5, 0), (5, 7), (-1, 0), (-1, 500_000_000), (-3, 250_000_000), (1 << 40, 1)]
        {
            assert_eq!(read_time(time(told).as_bytes()), Some(told), "{}", time(told));
        }
    }

    #[test]
    fn a_record_counts_its_own_length() {
        for len in [1, 90, 95, 96, 97, 990, 9989] {
            let mut records = Vec::new();
            record(&mut records, b"path", &vec![b'x'; len]);
            let mut entry = Entry::default();
            read_records(&records, &mut entry, &mut None).unwrap();
            assert_eq!(entry.path.len(), len);
        }
    }

    #[test]
    fn a_header_says_what_it_was_told() {
        let entry = Entry {
            mode: 0o4755,
            uid: 12,
            modified: (77, 5),
            attributes: vec![(b"user.a".to_vec(), b"b".to_vec())],
            ..Entry::new(&[b'n'; 150], FILE)
        };
        let bytes = entry.header();
        assert_eq!(bytes.len() % BLOCK, 0);
        let last = &bytes[bytes.len() - BLOCK..];
        assert_eq!(number(&last[100..108]).unwrap(), 0o4755);
        let sum: u32 = last
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
            .sum();
        assert_eq!(number(&last[148..156]).unwrap(), u64::from(sum));
    }
}
