//! What the headers of an archive say, block by block, whoever reads them.

use super::{BLOCK, Entry, EntryKind, Node, PATH_MAX, TarError, shown};

/// Of what stands before an entry: long names and PAX records.
const EXTENSION_MAX: u64 = 1 << 20;

/// How many of those may stand before one entry.
const EXTENSIONS_MAX: usize = 8;

/// The headers of one entry, and what stands before it.
#[derive(Default)]
pub(crate) struct Headers {
    extension: Extension,
    seen: usize,
}

/// What a block was.
pub(crate) enum Step {
    /// There are no more entries.
    End,
    /// So many bytes follow, and what fills their last block. They are to be told to [`Headers::more`],
    /// with the letter; then comes another block.
    More {
        letter: u8,
        len: usize,
    },
    Entry(Entry),
}

impl Headers {
    pub(crate) fn take(&mut self, block: &[u8; BLOCK]) -> Result<Step, TarError> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(Step::End);
        }
        check_sum(block)?;
        let letter = block[156];
        if !matches!(letter, b'x' | b'g' | b'L' | b'K') {
            return entry(block, std::mem::take(&mut self.extension)).map(Step::Entry);
        }
        self.seen += 1;
        if self.seen > EXTENSIONS_MAX {
            return Err(TarError::Damaged("too much stands before one entry"));
        }
        let len = number(&block[124..136])?;
        if len > EXTENSION_MAX {
            return Err(TarError::Damaged("what stands before an entry is longer than 1 MiB"));
        }
        // At most what was checked a line above.
        Ok(Step::More { letter, len: len as usize })
    }

    pub(crate) fn more(&mut self, letter: u8, bytes: &[u8]) -> Result<(), TarError> {
        match letter {
            b'x' => self.extension.read(bytes)?,
            b'L' => self.extension.path = Some(until_nul(bytes).to_vec()),
            b'K' => self.extension.link = Some(until_nul(bytes).to_vec()),
            // Of the whole archive: tools write comments there.
            _ => {}
        }
        Ok(())
    }
}

fn check_sum(header: &[u8; BLOCK]) -> Result<(), TarError> {
    let byte = |at: usize, byte: u8| if (148..156).contains(&at) { b' ' } else { byte };
    let bytes = || header.iter().enumerate().map(|(at, found)| byte(at, *found));
    let sum: u64 = bytes().map(u64::from).sum();
    // Some old programs summed signed bytes.
    let signed: i64 = bytes().map(|byte| i64::from(byte.cast_signed())).sum();
    let told = number(&header[148..156])?;
    match told == sum || i64::try_from(told) == Ok(signed) {
        true => Ok(()),
        false => Err(TarError::Damaged("the checksum of a header is wrong")),
    }
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

fn entry(header: &[u8; BLOCK], extension: Extension) -> Result<Entry, TarError> {
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
