//! What a directory tree looked like: enough to tell later what changed.

use std::{
    collections::{HashMap, HashSet},
    ffi::{CStr, CString},
    panic,
    sync::{Mutex, PoisonError},
    thread,
};

use rustix::{
    fs::{AtFlags, FileType, Stat, statat},
    time::Timespec,
};

use super::{
    LayerResult,
    cursor::{DirCursor, names},
    error::{At as _, During as _, Fault},
    marks::Marks,
};

/// Entries of a directory from which on a second thread is worth its start.
const LARGE: usize = 512;

/// What changes when the content or the metadata of an inode does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Print {
    pub(super) ino: u64,
    pub(super) ctime_s: i64,
    pub(super) ctime_ns: u32,
    pub(super) len_bytes: u64,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u64,
}

impl Print {
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            ino: stat.st_ino,
            ctime_s: stat.st_ctime as _,
            ctime_ns: stat.st_ctime_nsec as _,
            len_bytes: stat.st_size as _,
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: stat.st_rdev,
        }
    }

    /// Whether a copy of the one can be a copy of the other.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let told = |print: &Self| (print.len_bytes, print.mode, print.uid, print.gid, print.rdev);
        told(self) == told(other)
    }

    pub(super) fn is_dir(&self) -> bool {
        FileType::from_raw_mode(self.mode) == FileType::Directory
    }

    pub(super) fn is_file(&self) -> bool {
        FileType::from_raw_mode(self.mode) == FileType::RegularFile
    }

    pub(super) fn is_whiteout(&self) -> bool {
        FileType::from_raw_mode(self.mode) == FileType::CharacterDevice && self.rdev == 0
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: CString,
    pub(super) print: Print,
    /// Has other names.
    pub(super) linked: bool,
    /// May change without a change of its print; so it counts as changed.
    pub(super) racy: bool,
    /// The index of a directory's own entries.
    pub(super) child: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Directory {
    pub(super) opaque: bool,
    /// In the order of their names.
    pub(super) entries: Vec<Entry>,
}

/// Directories in the order in which a walk enters them, so that a parent comes before its
/// children, and without nesting, so that depth costs no stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    pub(super) directories: Vec<Directory>,
}

impl Tree {
    pub(super) fn scan(cursor: &mut DirCursor, marks: Marks) -> LayerResult<Self> {
        let read = |cursor: &DirCursor| read(cursor, marks).at(|| cursor.path());
        let mut directories = vec![read(cursor)?];
        let mut way = vec![(0, 0)];
        while let Some((directory, next)) = way.last_mut() {
            let Some(position) = directories[*directory].next_dir(*next) else {
                cursor.leave().at(|| cursor.path())?;
                way.pop();
                continue;
            };
            *next = position + 1;
            let index = directories.len();
            let entry = &mut directories[*directory].entries[position];
            entry.child = u32::try_from(index).ok();
            cursor.enter(&entry.name).at(|| cursor.path_of(&entry.name))?;
            directories.push(read(cursor)?);
            way.push((index, 0));
        }
        Ok(Self { directories })
    }

    /// As if all of it belonged to whom another one belongs to.
    pub(super) fn belong_as(&mut self, other: &Self) {
        let mut prints = other.directories.iter().flat_map(|directory| &directory.entries);
        let Some(owner) = prints.next().map(|entry| (entry.print.uid, entry.print.gid)) else {
            return;
        };
        for entry in self.directories.iter_mut().flat_map(|directory| &mut directory.entries) {
            (entry.print.uid, entry.print.gid) = owner;
        }
    }

    /// Whatever has one of these inodes may change without a trace.
    pub(super) fn mark_inodes(&mut self, inodes: &HashSet<u64>) {
        for entry in self.directories.iter_mut().flat_map(|directory| &mut directory.entries) {
            entry.racy |= inodes.contains(&entry.print.ino);
        }
    }

    /// Everything that a change after `now` could leave with the same print. The kernel's clock for
    /// files ticks in milliseconds.
    pub(super) fn mark_racy(&mut self, now: Timespec) {
        let now = (now.tv_sec, now.tv_nsec);
        for entry in self.directories.iter_mut().flat_map(|directory| &mut directory.entries) {
            entry.racy = (entry.print.ctime_s, i64::from(entry.print.ctime_ns)) >= now;
        }
    }

    /// What is shared with other layers has more names than this tree knows.
    pub(super) fn recount_links(&mut self) {
        let mut names: HashMap<u64, u32> = HashMap::new();
        let entries = || self.directories.iter().flat_map(|directory| &directory.entries);
        for entry in entries().filter(|entry| entry.linked) {
            *names.entry(entry.print.ino).or_default() += 1;
        }
        for entry in self.directories.iter_mut().flat_map(|directory| &mut directory.entries) {
            entry.linked = names.get(&entry.print.ino).is_some_and(|names| *names > 1);
        }
    }

    pub(super) fn find_mut<'a>(
        &mut self,
        names: impl Iterator<Item = &'a CStr>,
    ) -> Option<&mut Entry> {
        let mut index = 0;
        let mut found = None;
        for name in names {
            let directory = self.directories.get(usize::try_from(index).ok()?)?;
            let position = directory.position(name)?;
            found = Some((index, position));
            index = directory.entries[position].child.unwrap_or(u32::MAX);
        }
        let (index, position) = found?;
        self.directories.get_mut(usize::try_from(index).ok()?)?.entries.get_mut(position)
    }
}

impl Directory {
    fn next_dir(&self, from: usize) -> Option<usize> {
        let rest = self.entries.get(from..)?;
        rest.iter().position(|entry| entry.print.is_dir()).map(|offset| from + offset)
    }

    fn position(&self, name: &CStr) -> Option<usize> {
        self.entries.binary_search_by(|entry| entry.name.as_c_str().cmp(name)).ok()
    }
}

fn read(cursor: &DirCursor, marks: Marks) -> Result<Directory, Fault> {
    let names = names(cursor.fd())?.into_iter().map(|(name, _)| name).collect();
    let mut entries = inspect_all(cursor, names, marks)?;
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(Directory { opaque: marks.is_opaque(cursor.fd())?, entries })
}

/// Of a large directory another thread takes half.
fn inspect_all(
    cursor: &DirCursor,
    mut names: Vec<CString>,
    marks: Marks,
) -> Result<Vec<Entry>, Fault> {
    let here = |names: Vec<CString>| -> Result<Vec<_>, Fault> {
        names.into_iter().map(|name| inspect(cursor, name, marks)).collect()
    };
    if names.len() < LARGE {
        return here(names);
    }
    let half = names.split_off(names.len() / 2);
    let half = Mutex::new(Some(half));
    let take = || half.lock().unwrap_or_else(PoisonError::into_inner).take();
    thread::scope(|scope| {
        let other = thread::Builder::new().spawn_scoped(scope, || take().map(here));
        let mut entries = here(names)?;
        let rest = match other {
            Ok(other) => other.join().unwrap_or_else(|panic| panic::resume_unwind(panic)),
            // There could be no thread.
            Err(_) => take().map(here),
        };
        entries.extend(rest.transpose()?.into_iter().flatten());
        Ok(entries)
    })
}

pub(super) fn inspect(cursor: &DirCursor, name: CString, marks: Marks) -> Result<Entry, Fault> {
    let stat = statat(cursor.fd(), &name, AtFlags::SYMLINK_NOFOLLOW).during("inspect")?;
    let (print, linked) = (Print::of(&stat), is_linked(&stat, marks));
    Ok(Entry { name, print, linked, racy: false, child: None })
}

/// Whether it has other names. The kernel shares one inode between whiteouts.
pub(super) fn is_linked(stat: &Stat, marks: Marks) -> bool {
    let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    stat.st_nlink > 1 && !is_dir && !marks.is_whiteout(stat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_in_the_current_tick_is_racy() {
        let entry = |name: &CStr, ctime_s, ctime_ns| {
            let print = Print {
                ino: 1,
                ctime_s,
                ctime_ns,
                len_bytes: 0,
                mode: 0o100_644,
                uid: 0,
                gid: 0,
                rdev: 0,
            };
            Entry { name: name.to_owned(), print, linked: false, racy: false, child: None }
        };
        let entries = vec![entry(c"after", 5, 9), entry(c"before", 5, 7), entry(c"same", 5, 8)];
        let mut tree = Tree { directories: vec![Directory { opaque: false, entries }] };
        tree.mark_racy(Timespec { tv_sec: 5, tv_nsec: 8 });
        let racy = tree.directories[0].entries.iter().map(|entry| entry.racy);
        assert_eq!(racy.collect::<Vec<_>>(), [true, false, true]);
    }
}
