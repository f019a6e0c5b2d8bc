//! The manifest of a captured tree, in memory and as bytes.
//!
//! The bytes are a magic word, a version, the directories in the order of [`Tree`] with all numbers
//! as LEB128, and a checksum. They are small enough to be written at every capture.

use std::{ffi::CString, fs, io, path::Path};

use super::{
    LayerError, LayerResult,
    error::{At as _, During as _},
    replace,
    tree::{Directory, Entry, Print, Tree},
};

const MAGIC: &[u8; 7] = b"FPTREE\n";
const VERSION: u8 = 1;
const CHECKSUM: usize = 8;

const LINKED: u8 = 1;
const RACY: u8 = 2;
const DIRECTORY: u8 = 4;

/// What a tree looked like when it was captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest(Tree);

impl From<Tree> for Manifest {
    fn from(tree: Tree) -> Self {
        Self(tree)
    }
}

impl Manifest {
    pub(super) fn tree(&self) -> &Tree {
        &self.0
    }

    /// How many entries the tree has, whiteouts and directories included.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        self.0.directories.iter().map(|directory| directory.entries.len()).sum()
    }

    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        put(&mut bytes, self.0.directories.len() as u64);
        for directory in &self.0.directories {
            bytes.push(u8::from(directory.opaque));
            put(&mut bytes, directory.entries.len() as u64);
            directory.entries.iter().for_each(|entry| put_entry(&mut bytes, entry));
        }
        let checksum = fnv(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> LayerResult<Self> {
        decode(bytes).map(Self).map_err(|reason| LayerError::Manifest { reason })
    }

    /// Replaces the file at once, so that a reader finds the old or the new one.
    pub fn save(&self, path: &Path) -> LayerResult<()> {
        let spare = path.with_extension("new");
        replace(path, &spare, &self.encode()).during("write").at(|| path.to_owned())
    }

    /// `None` when there is no such file.
    pub fn load(path: &Path) -> LayerResult<Option<Self>> {
        match fs::read(path) {
            Ok(bytes) => Self::decode(&bytes).map(Some),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(err).during("read").at(|| path.to_owned()),
        }
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number as u8) | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn put_entry(bytes: &mut Vec<u8>, entry: &Entry) {
    let flag = |set, flag| if set { flag } else { 0 };
    bytes.push(
        flag(entry.linked, LINKED)
            | flag(entry.racy, RACY)
            | flag(entry.child.is_some(), DIRECTORY),
    );
    put(bytes, entry.name.as_bytes().len() as u64);
    bytes.extend_from_slice(entry.name.as_bytes());
    let print = &entry.print;
    let seconds = (print.ctime_s << 1) ^ (print.ctime_s >> 63);
    for number in [print.ino, seconds as u64, print.ctime_ns.into(), print.len_bytes] {
        put(bytes, number);
    }
    for number in [print.mode.into(), print.uid.into(), print.gid.into(), print.rdev] {
        put(bytes, number);
    }
    if let Some(child) = entry.child {
        put(bytes, child.into());
    }
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn decode(bytes: &[u8]) -> Result<Tree, &'static str> {
    let Some((bytes, checksum)) = bytes.split_last_chunk::<CHECKSUM>() else {
        return Err("it is too short");
    };
    let rest = bytes.strip_prefix(MAGIC).ok_or("it is something else")?;
    let [VERSION, rest @ ..] = rest else { return Err("its version is not known to this release") };
    if fnv(bytes) != u64::from_le_bytes(*checksum) {
        return Err("its checksum is wrong");
    }
    let mut reader = Reader(rest);
    let count = reader.number()?;
    let mut directories = Vec::new();
    for index in 0..count {
        directories.push(reader.directory(index, count)?);
    }
    if directories.is_empty() || !reader.0.is_empty() {
        return Err("it does not end where it should");
    }
    Ok(Tree { directories })
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("it ends too early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, &'static str> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u64, &'static str> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number is too long")
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Result<T, &'static str> {
        T::try_from(self.number()?).map_err(|_| "a number is too large")
    }

    fn directory(&mut self, index: u64, count: u64) -> Result<Directory, &'static str> {
        let opaque = self.byte()? != 0;
        let mut entries: Vec<Entry> = Vec::new();
        for _ in 0..self.number()? {
            let entry = self.entry()?;
            if entries.last().is_some_and(|last| last.name >= entry.name) {
                return Err("its names are out of order");
            }
            // A child comes after its parent, so no walk can go round in circles.
            if entry.child.is_some_and(|child| !(index + 1..count).contains(&child.into())) {
                return Err("a directory is out of place");
            }
            entries.push(entry);
        }
        Ok(Directory { opaque, entries })
    }

    fn entry(&mut self) -> Result<Entry, &'static str> {
        let flags = self.byte()?;
        let len = self.small()?;
        let name = CString::new(self.take(len)?).map_err(|_| "a name is not one")?;
        let ino = self.number()?;
        let seconds = self.number()?;
        let print = Print {
            ino,
            ctime_s: (seconds >> 1) as i64 ^ -((seconds & 1) as i64),
            ctime_ns: self.small()?,
            len_bytes: self.number()?,
            mode: self.small()?,
            uid: self.small()?,
            gid: self.small()?,
            rdev: self.number()?,
        };
        let child = if flags & DIRECTORY != 0 { Some(self.small()?) } else { None };
        Ok(Entry { name, print, linked: flags & LINKED != 0, racy: flags & RACY != 0, child })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// As version 1 writes it. Every release must read these bytes.
    const VERSION_1: &[u8] = b"FPTREE\n\x01\x02\x00\x02\
        \x02\x01a\x05\x01\x07\x80\x20\xa4\x83\x02\xe8\x07\x00\x00\
        \x04\x01d\x06\xd0\x0f\x00\x00\xed\x83\x01\x00\x00\x00\x01\
        \x01\x00";

    fn sample() -> Manifest {
        let print = |ino, ctime_s, ctime_ns, len_bytes, mode, uid| Print {
            ino,
            ctime_s,
            ctime_ns,
            len_bytes,
            mode,
            uid,
            gid: 0,
            rdev: 0,
        };
        let entry = |name: &CStr, print, racy, child| {
            let name = name.to_owned();
            Entry { name, print, linked: false, racy, child }
        };
        let file = entry(c"a", print(5, -1, 7, 4096, 0o100_644, 1000), true, None);
        let below = entry(c"d", print(6, 1000, 0, 0, 0o40_755, 0), false, Some(1));
        let root = Directory { opaque: false, entries: vec![file, below] };
        let opaque = Directory { opaque: true, entries: Vec::new() };
        Manifest(Tree { directories: vec![root, opaque] })
    }

    #[test]
    fn version_1_stays_what_it_is() {
        let bytes = sample().encode();
        let (content, checksum) = bytes.split_last_chunk::<CHECKSUM>().unwrap();
        assert_eq!(content, VERSION_1);
        assert_eq!(u64::from_le_bytes(*checksum), fnv(VERSION_1));
        assert_eq!(Manifest::decode(&bytes).unwrap(), sample());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Also with a checksum that fits: what is read is in its form, or refused.
        #[test]
        fn no_bytes_are_too_odd(
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            more in vec(any::<u8>(), 0..12),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = VERSION_1.to_vec();
            let start = MAGIC.len() + 1;
            for (at, byte) in changes {
                let at = start + at.index(bytes.len() - start);
                bytes[at] = byte;
            }
            bytes.truncate(start + cut.index(2 * bytes.len()));
            bytes.extend(more);
            bytes.extend_from_slice(&fnv(&bytes).to_le_bytes());
            if let Ok(manifest) = Manifest::decode(&bytes) {
                prop_assert_eq!(Manifest::decode(&manifest.encode()).unwrap(), manifest);
            }
        }
    }

    #[test]
    fn a_later_version_is_refused() {
        let mut bytes = VERSION_1.to_vec();
        bytes[MAGIC.len()] = 2;
        bytes.extend_from_slice(&fnv(&bytes).to_le_bytes());
        let err = Manifest::decode(&bytes).unwrap_err();
        assert!(err.to_string().contains("version"), "{err}");
    }
}
