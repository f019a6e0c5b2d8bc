//! Whether what an image says of file systems in memory can be true.

use std::collections::HashMap;

use super::{Verdict, is_range, must, path, stored};
use crate::{
    image::mount::{EntryKind, KeptEntry, KeptMount},
    sys::PAGE,
};

const MOUNTS_MAX: usize = 16;
const ENTRIES_MAX: usize = 1 << 17;
const ATTRIBUTES_MAX: usize = 1 << 10;
const ATTRIBUTE_MAX: usize = 1 << 16;
const NAME_MAX: usize = 255;

type Known<'a> = HashMap<&'a str, &'a EntryKind>;

pub(super) fn all(mounts: &[KeptMount], pages_len: u64) -> Verdict {
    must(mounts.len() <= MOUNTS_MAX, || "too many mounts".to_owned())?;
    mounts.iter().try_for_each(|mount| {
        path(&mount.path)?;
        one(mount, pages_len).map_err(|why| format!("mount `{}`: {why}", mount.path))
    })
}

fn one(mount: &KeptMount, pages_len: u64) -> Verdict {
    must(mount.entries.len() <= ENTRIES_MAX, || "too many files".to_owned())?;
    let first = mount.entries.first();
    let has_root = first.is_some_and(|entry| entry.path.is_empty() && entry.is_directory());
    must(has_root, || "it has no root".to_owned())?;
    let mut known = Known::from([("", &EntryKind::Directory)]);
    for entry in &mount.entries[1..] {
        let told = |why: String| format!("`{}`: {why}", entry.path);
        place(&entry.path, &known).map_err(told)?;
        must(known.insert(&entry.path, &entry.kind).is_none(), || told("twice".to_owned()))?;
    }
    mount.entries.iter().try_for_each(|entry| {
        self::entry(entry, &known, pages_len).map_err(|why| format!("`{}`: {why}", entry.path))
    })
}

/// Below a directory that came before it, and nowhere else.
fn place(path: &str, known: &Known<'_>) -> Verdict {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let is_name = !name.is_empty() && name.len() <= NAME_MAX && name != "." && name != "..";
    must(is_name && !name.contains('\0'), || "no such name".to_owned())?;
    let is_directory = matches!(known.get(parent), Some(EntryKind::Directory));
    must(is_directory, || "it is in no directory".to_owned())
}

fn entry(entry: &KeptEntry, known: &Known<'_>, pages_len: u64) -> Verdict {
    must(entry.mode <= 0o7777, || "no such mode".to_owned())?;
    let times = entry.times.iter().all(|(_, nanoseconds)| *nanoseconds < 1_000_000_000);
    must(times, || "no such time".to_owned())?;
    let short = |(name, value): &(String, crate::image::Bytes)| {
        !name.contains('\0') && name.len() <= NAME_MAX && value.0.len() <= ATTRIBUTE_MAX
    };
    let attributes = entry.attributes.len() <= ATTRIBUTES_MAX && entry.attributes.iter().all(short);
    must(attributes, || "no such attributes".to_owned())?;
    match &entry.kind {
        EntryKind::File { len_bytes, stored: all } => {
            must(*len_bytes < 1 << 47, || "no such length".to_owned())?;
            let end = len_bytes.next_multiple_of(PAGE);
            stored(all, |start, until| is_range(start, until) && until <= end, pages_len)
        }
        EntryKind::Link { target } => {
            let valid = !target.is_empty() && target.len() < libc::PATH_MAX as usize;
            must(valid && !target.contains('\0'), || "no such link".to_owned())
        }
        EntryKind::Same { path } => {
            let other = known.get(path.as_str());
            let is_file = other
                .is_some_and(|kind| !matches!(kind, EntryKind::Directory | EntryKind::Same { .. }));
            must(is_file, || "it is another name of nothing".to_owned())
        }
        EntryKind::Directory | EntryKind::Socket | EntryKind::Fifo => Ok(()),
    }
}
