//! What an inotify watches.
//!
//! The kernel tells inodes, not names. Names are looked for in the sandbox, first where its processes are at work; what
//! has none is refused.

use std::{
    collections::{HashMap, HashSet},
    os::fd::{BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, makedev, openat2, statat,
};

use super::proc::FdInfo;
use crate::{coverage::Reason, image::FileKind, sys::Deadline};

/// Numbers are given out one by one, and brought back so.
const NUMBER_MAX: i32 = 1 << 20;
/// The tree stands meanwhile. So long it is looked for all that is watched by anybody.
pub(super) const SEARCH: Duration = Duration::from_secs(2);

type Inode = (u64, u64);

#[derive(Debug, PartialEq, Eq)]
struct Watched {
    number: i32,
    inode: Inode,
    mask: u32,
}

/// `wd:2 ino:2e1 sdev:fe00000 mask:4000402 ignored_mask:0 …`
fn parse(line: &str) -> Option<Watched> {
    const MINOR_BITS: u64 = 20;
    let field = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
    let hex = |key: &str| u64::from_str_radix(field(key)?, 16).ok();
    let device = hex("sdev:")?;
    let (major, minor) = (device >> MINOR_BITS, device & ((1 << MINOR_BITS) - 1));
    Some(Watched {
        number: field("wd:")?.parse().ok()?,
        inode: (makedev(major as u32, minor as u32), hex("ino:")?),
        mask: hex("mask:")? as u32,
    })
}

/// `waiting` are bytes of events that were not read yet.
pub(super) fn kind(
    info: &FdInfo,
    waiting: u64,
    (root, cwd): (&OwnedFd, &str),
    limit: Deadline,
) -> Result<FileKind, Reason> {
    if waiting > 0 {
        return Err(Reason::passing("it has events that were not read yet; try again"));
    }
    let all = info.lines("inotify ").map(parse).collect::<Option<Vec<_>>>();
    let mut all = all.ok_or_else(|| "what it watches is not understood".to_owned())?;
    all.sort_unstable_by_key(|watched| watched.number);
    if all.last().is_some_and(|last| last.number > NUMBER_MAX) {
        return Err("it has watched too much in its life; close it first".into());
    }
    let mut search = Search::new(root, all.iter().map(|watched| watched.inode).collect(), limit);
    search.below(cwd);
    search.below("/");
    let path = |watched: Watched| {
        let found = search.found.get(&watched.inode).cloned();
        let found = found.ok_or("what it watches has no name any more, or none that was found")?;
        Ok((watched.number, found, watched.mask))
    };
    let watches = all.into_iter().map(path).collect::<Result<_, &str>>();
    Ok(FileKind::Watch { watches: watches.map_err(|why| format!("{why}; close it first"))? })
}

struct Search<'a> {
    root: &'a OwnedFd,
    wanted: HashSet<Inode>,
    numbers: HashSet<u64>,
    found: HashMap<Inode, String>,
    seen: HashSet<Inode>,
    limit: Deadline,
}

impl<'a> Search<'a> {
    fn new(root: &'a OwnedFd, wanted: HashSet<Inode>, limit: Deadline) -> Self {
        let numbers = wanted.iter().map(|(_, inode)| *inode).collect();
        let (found, seen) = (HashMap::new(), HashSet::new());
        Self { root, wanted, numbers, found, seen, limit }
    }

    fn below(&mut self, start: &str) {
        let mut open = vec![start.to_owned()];
        while let Some(path) = open.pop() {
            if self.found.len() == self.wanted.len() || self.limit.passed() {
                return;
            }
            if !matches!(path.as_str(), "/proc" | "/sys") {
                self.directory(&path, &mut open);
            }
        }
    }

    /// What cannot be read has nothing that anybody watches.
    fn directory(&mut self, path: &str, open: &mut Vec<String>) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let name = path.trim_start_matches('/');
        let name = if name.is_empty() { "." } else { name };
        let Ok(fd) = openat2(self.root, name, flags, Mode::empty(), confined) else { return };
        let Ok(stat) = fstat(&fd) else { return };
        if !self.seen.insert(inode(&stat)) {
            return;
        }
        self.take(&stat, path);
        let Ok(entries) = Dir::new(fd) else { return };
        let mut entries = entries;
        while !self.limit.passed()
            && let Some(Ok(entry)) = entries.read()
        {
            let Ok(name) = entry.file_name().to_str() else { continue };
            if matches!(name, "." | "..") {
                continue;
            }
            let below = format!("{}/{name}", path.trim_end_matches('/'));
            match entry.file_type() {
                FileType::Directory => open.push(below),
                _ if self.numbers.contains(&entry.ino()) => {
                    if let Ok(fd) = entries.fd() {
                        self.file(fd, name, &below);
                    }
                }
                _ => {}
            }
        }
    }

    fn file(&mut self, directory: BorrowedFd<'_>, name: &str, path: &str) {
        if let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            self.take(&stat, path);
        }
    }

    fn take(&mut self, stat: &Stat, path: &str) {
        if self.wanted.contains(&inode(stat)) {
            self.found.entry(inode(stat)).or_insert_with(|| path.to_owned());
        }
    }
}

fn inode(stat: &Stat) -> Inode {
    (stat.st_dev, stat.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_watched_is_parsed() {
        let line = "wd:2 ino:2e1 sdev:fe00003 mask:4000402 ignored_mask:0 fhandle-bytes:8";
        let inode = (makedev(254, 3), 0x2e1);
        assert_eq!(parse(line), Some(Watched { number: 2, inode, mask: 0x400_0402 }));
        assert_eq!(parse("wd:2 ino:x"), None);
    }
}
