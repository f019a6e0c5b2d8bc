//! Headers of entries, for whoever writes an archive. What the old header cannot say is in PAX records.

use super::{BLOCK, Entry, EntryKind, Node, padding};

/// Names that fit into the old header, without its prefix.
const NAME_MAX: usize = 100;
/// What its octal digits can say: of owners, of lengths and times.
const SMALL_MAX: u64 = 0o7_777_777;
const LARGE_MAX: u64 = 0o77_777_777_777;

/// Everything that stands before the content of an entry.
pub(crate) fn header(entry: &Entry) -> Vec<u8> {
    header_with(entry, &[])
}

/// With records that only we know.
pub(crate) fn header_with(entry: &Entry, own: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut records: Vec<u8> = own.iter().flat_map(|(key, value)| one_record(key, value)).collect();
    records.extend(self::records(entry));
    let mut bytes = Vec::new();
    if !records.is_empty() {
        let len = records.len() as u64;
        bytes.extend(block(b'x', len, &Entry::new(b"records".to_vec(), EntryKind::File)));
        bytes.extend(&records);
        bytes.resize(bytes.len() + fill(len), 0);
    }
    bytes.extend(block(letter(entry), entry.len_bytes, entry));
    bytes
}

/// What fills the last block of a content.
pub(crate) fn fill(len: u64) -> usize {
    padding(len) as usize
}

/// What stands at the end of an archive.
pub(crate) const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

fn letter(entry: &Entry) -> u8 {
    match entry.kind {
        EntryKind::File => b'0',
        EntryKind::HardLink => b'1',
        EntryKind::Symlink => b'2',
        EntryKind::Device if entry.node.is_some_and(|node| node.block) => b'4',
        EntryKind::Device => b'3',
        EntryKind::Directory => b'5',
        EntryKind::Fifo => b'6',
    }
}

fn records(entry: &Entry) -> Vec<u8> {
    let mut records = Vec::new();
    let mut record = |key: &[u8], value: &[u8]| records.extend(one_record(key, value));
    if entry.path.len() > NAME_MAX {
        record(b"path", &entry.path);
    }
    if entry.link.len() > NAME_MAX {
        record(b"linkpath", &entry.link);
    }
    if entry.len_bytes > LARGE_MAX {
        record(b"size", entry.len_bytes.to_string().as_bytes());
    }
    for (key, id) in [("uid", entry.uid), ("gid", entry.gid)] {
        if u64::from(id) > SMALL_MAX {
            record(key.as_bytes(), id.to_string().as_bytes());
        }
    }
    let (seconds, nanos) = entry.modified;
    if nanos != 0 || u64::try_from(seconds).is_ok_and(|seconds| seconds > LARGE_MAX) || seconds < 0
    {
        record(b"mtime", decimal(seconds, nanos).as_bytes());
    }
    for (name, value) in &entry.attributes {
        record(&[b"SCHILY.xattr.", &**name].concat(), value);
    }
    records
}

/// `LENGTH KEY=VALUE\n`, where the length counts its own digits too.
fn one_record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    [len.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// Nanoseconds count upwards, also before 1970; a decimal fraction does not.
fn decimal(seconds: i64, nanos: u32) -> String {
    match (seconds, nanos) {
        (_, 0) => seconds.to_string(),
        (0.., _) => format!("{seconds}.{nanos:09}"),
        (-1, _) => format!("-0.{:09}", 1_000_000_000 - nanos),
        _ => format!("{}.{:09}", seconds + 1, 1_000_000_000 - nanos),
    }
}

fn block(letter: u8, len: u64, entry: &Entry) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    let octal = |number: u64, max: u64, digits: usize| {
        // Too large for it: a record says it.
        format!("{:0digits$o}", if number > max { 0 } else { number })
    };
    let small = |number: u32| octal(number.into(), SMALL_MAX, 7);
    let large = |number: u64| octal(number, LARGE_MAX, 11);
    put(0, &entry.path[..entry.path.len().min(NAME_MAX)]);
    put(100, small(entry.mode).as_bytes());
    put(108, small(entry.uid).as_bytes());
    put(116, small(entry.gid).as_bytes());
    put(124, large(len).as_bytes());
    put(136, large(entry.modified.0.try_into().unwrap_or(0)).as_bytes());
    put(156, &[letter]);
    put(157, &entry.link[..entry.link.len().min(NAME_MAX)]);
    put(257, b"ustar\x0000");
    let Node { major, minor, .. } = entry.node.unwrap_or_default();
    put(329, small(major).as_bytes());
    put(337, small(minor).as_bytes());
    put(148, b"        ");
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::{super::TarReader, *};

    #[test]
    fn a_record_counts_its_own_length() {
        for len in [1, 90, 95, 96, 97, 990, 3989] {
            let entry = Entry::new(vec![b'x'; len], EntryKind::File);
            let records: [(&[u8], &[u8]); 1] = [(b"FORKPOINT.own", &vec![b'y'; len])];
            let archive = [&*header_with(&entry, &records), &END].concat();
            assert_eq!(archive.len() % BLOCK, 0);
            assert_eq!(TarReader::new(&*archive).next().unwrap(), Some(entry), "{len}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut entry = Entry::new(vec![b'n'; 300], EntryKind::Symlink);
        (entry.link, entry.uid, entry.gid) = (vec![0xff; 101], 3_000_000, 7);
        entry.attributes = vec![(b"user.a".to_vec(), b"line\nwith\0all".to_vec())];
        for modified in [(5, 0), (-1, 250_000_000), (-7, 1), (-7, 0), (1 << 40, 999_999_999)] {
            entry.modified = modified;
            let archive = [&*header(&entry), &END].concat();
            assert_eq!(TarReader::new(&*archive).next().unwrap(), Some(entry.clone()));
        }
    }
}
