//! Where a tree is being copied to: what all threads that write there share.

use std::{
    collections::{HashMap, HashSet},
    ffi::{CStr, CString},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, Stat, fstat, linkat, openat, unlinkat},
    io::Errno,
};

use super::{
    Marks,
    bundle::Packing,
    cursor::FileId,
    error::{During as _, Fault},
    store::unique,
};

#[derive(Debug)]
pub(super) struct Site {
    pub(super) marks: Marks,
    /// Whom a new inode belongs to without being asked.
    pub(super) newborn: (u32, u32),
    /// Bits of a mode that a new file here does not get, for the process's mask or the directory's
    /// default access list.
    pub(super) masked: Mode,
    /// Where the first of several names for one inode is kept for the others: their directories may
    /// be too deep to be reached again.
    links: OwnedFd,
    /// For small files, where they may be made later.
    pub(super) packing: Option<Packing>,
    several: Mutex<Several>,
}

/// Inodes with several names.
#[derive(Debug, Default)]
pub(super) struct Several {
    linked: HashMap<FileId, CString>,
    kept: u64,
    counted: HashSet<FileId>,
}

impl Site {
    /// `links` is an empty directory beside the tree that is written.
    pub(super) fn new(
        marks: Marks,
        links: OwnedFd,
        packing: Option<Packing>,
    ) -> Result<Self, Fault> {
        let newborn = fstat(&links).during("inspect")?;
        Ok(Self {
            marks,
            newborn: (newborn.st_uid, newborn.st_gid),
            masked: masked(links.as_fd()).during("create a file in")?,
            links,
            packing,
            several: Mutex::default(),
        })
    }

    /// Whoever copies an inode with several names holds this until it is there, so that whoever has
    /// another of them finds it.
    pub(super) fn several(&self) -> MutexGuard<'_, Several> {
        self.several.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the copy of an inode one more name, if there is a copy.
    pub(super) fn link(
        &self,
        several: &Several,
        stat: &Stat,
        to: BorrowedFd,
        name: &CStr,
    ) -> Result<bool, Fault> {
        let Some(first) = several.linked.get(&file_id(stat)) else { return Ok(false) };
        match linkat(&self.links, first.as_c_str(), to, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            // The next name starts a group of its own: the content matters more than the link.
            Err(Errno::MLINK) => Ok(false),
            Err(err) => Err(err).during("link"),
        }
    }

    /// Makes the copy of an inode known to those who have its other names.
    pub(super) fn keep(
        &self,
        several: &mut Several,
        stat: &Stat,
        to: BorrowedFd,
        name: &CStr,
    ) -> Result<(), Fault> {
        let kept = CString::new(format!("{:x}", several.kept)).unwrap_or_default();
        linkat(to, name, &self.links, &kept, AtFlags::empty()).during("link")?;
        several.kept += 1;
        several.linked.insert(file_id(stat), kept);
        Ok(())
    }
}

impl Several {
    /// Whether it is the first name of an inode that is counted.
    pub(super) fn count(&mut self, stat: &Stat) -> bool {
        self.counted.insert(file_id(stat))
    }
}

pub(super) fn file_id(stat: &Stat) -> FileId {
    (stat.st_dev, stat.st_ino)
}

/// Found by making a file that asks for everything. Several may try in one directory.
fn masked(directory: BorrowedFd) -> rustix::io::Result<Mode> {
    let name = unique("mask");
    let all = Mode::RWXU | Mode::RWXG | Mode::RWXO;
    let file = openat(directory, &name, OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC, all)?;
    let born = fstat(&file).map(|stat| Mode::from_raw_mode(stat.st_mode));
    unlinkat(directory, &name, AtFlags::empty())?;
    Ok(all - born?)
}
