//! Through an overlay, as somebody who is root in there.

use std::{
    ffi::{CStr, OsStr},
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::FileExt as _},
    },
    path::{Path, PathBuf},
};

use forkpoint_core::driver::{FileFacts, FileKind};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, Timespec,
    Timestamps, UTIME_OMIT, Uid, chmodat, chownat, fstat, ftruncate, openat, openat2, statat,
    statx, symlinkat, utimensat,
};

use super::{Back, Step, What};
use crate::layer::{
    LayerResult,
    error::{At as _, During as _, Fault},
    trash::remove_tree,
};

const BLOCK: usize = 4096;
const ZEROS: [u8; BLOCK] = [0; BLOCK];

impl Back {
    /// `root` is where overlays show the tree, each of them at one of `places`. Whoever owns something in the layers is shown there as `first_owner`
    /// more, and new files belong to whoever this thread is.
    pub fn run(
        &self,
        root: BorrowedFd<'_>,
        places: &[PathBuf],
        first_owner: u32,
    ) -> LayerResult<()> {
        let mut ours = Vec::new();
        for place in places {
            let place = open_within(root, place).and_then(|fd| fstat(&fd)).during("open");
            ours.push(place.at(|| PathBuf::from("/"))?.st_dev);
        }
        for step in &self.steps {
            let make = || Target::open(root, step, &ours)?.make(&step.what, first_owner);
            make().at(|| step.shown())?;
        }
        Ok(())
    }
}

/// No link leads elsewhere.
fn open_within(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let path = Path::new(".").join(path);
    openat2(root, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

impl Step {
    /// For messages.
    fn shown(&self) -> PathBuf {
        let names = self.path.iter().map(|name| OsStr::from_bytes(name.to_bytes()));
        PathBuf::from("/").join(names.collect::<PathBuf>())
    }
}

/// A name in an open directory.
struct Target<'a> {
    parent: OwnedFd,
    name: &'a CStr,
}

impl<'a> Target<'a> {
    /// `ours` are the devices of the overlays: what lies over them is not touched.
    fn open(root: BorrowedFd<'_>, step: &'a Step, ours: &[u64]) -> Result<Self, Fault> {
        let (name, above) = match step.path.split_last() {
            Some((name, above)) => (name.as_c_str(), above),
            None => (c".", &[][..]),
        };
        let above = above.iter().map(|name| OsStr::from_bytes(name.to_bytes()));
        let parent = open_within(root, &above.collect::<PathBuf>()).during("open")?;
        let here = fstat(&parent).during("inspect")?;
        let look = statx(&parent, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
        let is_covered = look.is_ok_and(|there| {
            let is_directory =
                FileType::from_raw_mode(there.stx_mode.into()) == FileType::Directory;
            there.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) && !is_directory
        });
        if !ours.contains(&here.st_dev) || is_covered {
            return Err(Fault::Unsupported { reason: "something lies over it" });
        }
        Ok(Self { parent, name })
    }

    fn make(&self, what: &What, first: u32) -> Result<(), Fault> {
        match what {
            What::Remove => self.remove(),
            What::File { from, facts, is_new } => {
                self.fill(from, *is_new).during("write")?;
                self.dress(facts, first)
            }
            What::Link { target, facts } => {
                symlinkat(target, &self.parent, self.name).during("link")?;
                self.dress(facts, first)
            }
            What::Dress(facts) => self.dress(facts, first),
        }
    }

    fn remove(&self) -> Result<(), Fault> {
        let stats = remove_tree(&self.parent, PathBuf::new(), self.name.to_owned());
        match stats.leftovers.into_iter().next() {
            Some(left) => Err(left.error).during("remove"),
            None => Ok(()),
        }
    }

    fn fill(&self, from: &File, is_new: bool) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let flags = if is_new { flags | OFlags::CREATE | OFlags::EXCL } else { flags };
        let mode = Mode::RUSR | Mode::WUSR;
        let to = File::from(openat(&self.parent, self.name, flags, mode)?);
        if FileType::from_raw_mode(fstat(&to)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is not a regular file"));
        }
        ftruncate(&to, 0)?;
        copy(from, &to)
    }

    /// Times last: all else changes them.
    fn dress(&self, wanted: &FileFacts, first: u32) -> Result<(), Fault> {
        let at = AtFlags::SYMLINK_NOFOLLOW;
        let is = statat(&self.parent, self.name, at).during("inspect")?;
        let (uid, gid) = (wanted.uid.saturating_add(first), wanted.gid.saturating_add(first));
        if (is.st_uid, is.st_gid) != (uid, gid) {
            let (owner, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
            let owned = chownat(&self.parent, self.name, Some(owner), Some(group), at);
            owned.during("set the owner of")?;
        }
        // Another owner takes away some of the mode.
        if wanted.kind != FileKind::Symlink {
            let mode = Mode::from_raw_mode(wanted.mode);
            let set = chmodat(&self.parent, self.name, mode, AtFlags::empty());
            set.during("set the mode of")?;
        }
        let modified = Timespec {
            tv_sec: wanted.modified.as_second(),
            tv_nsec: wanted.modified.subsec_nanosecond().into(),
        };
        let untouched = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: untouched, last_modification: modified };
        utimensat(&self.parent, self.name, &times, at).during("set the times of")
    }
}

/// Into an empty file. What is nothing but zeros stays a hole.
fn copy(from: &File, to: &File) -> io::Result<()> {
    let mut buffer = vec![0; 16 * BLOCK];
    let mut offset = 0;
    loop {
        let len = from.read_at(&mut buffer, offset)?;
        if len == 0 {
            return Ok(ftruncate(to.as_fd(), offset)?);
        }
        for (number, block) in buffer[..len].chunks(BLOCK).enumerate() {
            if *block != ZEROS[..block.len()] {
                to.write_all_at(block, offset + (number * BLOCK) as u64)?;
            }
        }
        offset += len as u64;
    }
}
