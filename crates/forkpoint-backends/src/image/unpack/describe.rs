//! Owners, modes, times and attributes of what was unpacked.

use std::{
    ffi::CString,
    fs::File,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown,
        fsetxattr, futimens, utimensat,
    },
    io::Errno,
};

use super::{
    super::{error::ImageResult, limits::REMEMBERED_MAX},
    During as _, Fault, Later, Owners, Unpacked, Unpacker, open_below,
};
use crate::{
    layer::{Fate, Marks, OF_THE_MACHINE},
    tar::{self, Entry},
};

impl Unpacker<'_> {
    pub(super) fn describe_directory(
        &mut self,
        entry: &Entry,
        directory: &OwnedFd,
        path: Vec<u8>,
    ) -> Result<(), Fault> {
        if self.owners == Owners::Kept {
            fchown(directory, Some(uid(entry)), Some(gid(entry))).during("set the owner of")?;
        }
        let attributes = entry.attributes.clone();
        self.remember(path, Later { mode: entry.mode, attributes, times: Some(times(entry)) })
    }

    pub(super) fn remember(&mut self, path: Vec<u8>, later: Later) -> Result<(), Fault> {
        let attributes = later.attributes.iter().map(|(name, value)| name.len() + value.len());
        self.remembered += path.len() + attributes.sum::<usize>();
        if self.remembered > REMEMBERED_MAX {
            return Err(Fault::Refused(
                "names and attributes of directories are longer than 256 MiB",
            ));
        }
        self.directories.insert(path, later);
        Ok(())
    }

    /// Changing the owner clears set-user-id, so the mode comes after it; whatever is last must be
    /// the times.
    pub(super) fn describe_file(&mut self, entry: &Entry, file: &File) -> Result<(), Fault> {
        if self.owners == Owners::Kept && (entry.uid, entry.gid) != (0, 0) {
            fchown(file, Some(uid(entry)), Some(gid(entry))).during("set the owner of")?;
        }
        self.set_attributes(&entry.attributes, file)?;
        fchmod(file, Mode::from_raw_mode(entry.mode)).during("set the mode of")?;
        futimens(file, &times(entry)).during("set the times of")
    }

    /// Links and fifos have no attributes that count.
    pub(super) fn describe_named(
        &mut self,
        entry: &Entry,
        parent: &OwnedFd,
        at: &CString,
    ) -> Result<(), Fault> {
        self.done.attributes += entry.attributes.len() as u64;
        if self.owners == Owners::Kept {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            chownat(parent, at, Some(uid(entry)), Some(gid(entry)), flags)
                .during("set the owner of")?;
        }
        utimensat(parent, at, &times(entry), AtFlags::SYMLINK_NOFOLLOW).during("set the times of")
    }

    fn set_attributes(
        &mut self,
        attributes: &[(Vec<u8>, Vec<u8>)],
        of: impl AsFd,
    ) -> Result<(), Fault> {
        for (name, value) in attributes {
            if !self.is_kept(name) {
                self.done.attributes += 1;
                continue;
            }
            let name = CString::new(&**name)
                .map_err(|_| Fault::Refused("the name of an attribute has a NUL byte"))?;
            match fsetxattr(&of, &*name, value, XattrFlags::empty()) {
                Err(Errno::OPNOTSUPP | Errno::PERM) => self.done.attributes += 1,
                result => result.during("set attributes of")?,
            }
        }
        Ok(())
    }

    /// What overlayfs believes must not come from an archive.
    fn is_kept(&self, attribute: &[u8]) -> bool {
        if self.marks == Marks::Plain {
            return !OF_THE_MACHINE.contains(&attribute);
        }
        let known = attribute.starts_with(b"user.")
            || (self.owners == Owners::Kept
                && matches!(
                    attribute,
                    b"security.capability"
                        | b"system.posix_acl_access"
                        | b"system.posix_acl_default"
                ));
        known && self.marks.fate(attribute) == Fate::Kept
    }

    /// From the bottom up: a directory may be closed to us from now on.
    pub(super) fn finish(mut self) -> ImageResult<Unpacked> {
        self.parent = None;
        for (path, later) in std::mem::take(&mut self.directories).iter().rev() {
            let directory = match open_below(&self.root, path) {
                // Something else came under its name.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                opened => opened.during("describe"),
            };
            let described = directory.and_then(|directory| {
                self.set_attributes(&later.attributes, &directory)?;
                fchmod(&directory, Mode::from_raw_mode(later.mode)).during("describe")?;
                let times = later.times.as_ref();
                times.map_or(Ok(()), |times| futimens(&directory, times)).during("describe")
            });
            described.map_err(|fault| self.told_of(&tar::shown(path), fault))?;
        }
        Ok(self.done)
    }
}

fn uid(entry: &Entry) -> Uid {
    Uid::from_raw(entry.uid)
}

fn gid(entry: &Entry) -> Gid {
    Gid::from_raw(entry.gid)
}

fn times(entry: &Entry) -> Timestamps {
    let (seconds, nanos) = entry.modified;
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}
