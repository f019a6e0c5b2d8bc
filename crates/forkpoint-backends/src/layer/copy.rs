//! One entry that is not a directory, from one directory to another.
//!
//! Only regular files are opened: opening a fifo would wait for a writer, and opening a device can
//! do anything.

use std::{
    collections::{HashMap, HashSet},
    ffi::{CStr, CString},
    fs::File,
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::fs::FileExt as _,
    },
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, SeekFrom, Stat, copy_file_range, fstat, ftruncate,
        ioctl_ficlone, linkat, mknodat, openat, readlinkat, seek, statat, symlinkat, unlinkat,
    },
    io::Errno,
};

use super::{
    LayerSize,
    attributes::{Attributes, Place, set_times},
    cursor::FileId,
    error::{During as _, Fault},
    marks::{Marks, put_whiteout},
    store::unique,
};

/// Below this, the inode is what costs, and a reflink is no faster than a copy.
const CLONE_MIN: u64 = 1 << 20;

/// Up to this, one read and one write are faster than asking for extents.
const BUFFER: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Copier<'a> {
    pub(super) attributes: Attributes,
    /// Where the first of several names for one inode is kept for the others: their directories may
    /// be too deep to be reached again.
    links: BorrowedFd<'a>,
    linked: HashMap<FileId, CString>,
    kept: u64,
    counted: HashSet<FileId>,
    clones: bool,
    /// Bits of a mode that a new file here does not get, for the process's mask or the directory's
    /// default access list.
    masked: Mode,
    /// Reads without a trace in the time of the last access, which only owners may. The trace would
    /// be one more write per file.
    quiet: bool,
    buffer: Vec<u8>,
    pub(super) done: Done,
}

/// What is in a layer now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) copied: LayerSize,
    /// Shared with an earlier layer.
    pub(super) linked: LayerSize,
}

impl<'a> Copier<'a> {
    /// `links` is an empty directory beside the tree that is written.
    pub(super) fn new(marks: Marks, links: BorrowedFd<'a>) -> Result<Self, Fault> {
        let newborn = fstat(links).during("inspect")?;
        Ok(Self {
            attributes: Attributes::new(marks, &newborn),
            links,
            linked: HashMap::new(),
            kept: 0,
            counted: HashSet::new(),
            clones: true,
            masked: masked(links).during("create a file in")?,
            quiet: true,
            buffer: vec![0; BUFFER],
            done: Done::default(),
        })
    }

    /// `check` may refuse what is found there.
    pub(super) fn copy(
        &mut self,
        from: BorrowedFd,
        to: BorrowedFd,
        name: &CStr,
        check: impl FnOnce(&Stat) -> bool,
    ) -> Result<(), Fault> {
        let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW).during("inspect")?;
        if !check(&stat) {
            return Err(Fault::Changed);
        }
        if self.attributes.marks.is_whiteout(&stat) {
            return put_whiteout(to, name);
        }
        let several = stat.st_nlink > 1;
        if several && self.link(&stat, to, name)? {
            return Ok(());
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.copy_file(from, to, name, &stat)?,
            _ => self.copy_special(from, to, name, &stat)?,
        }
        self.count(&stat);
        if several { self.keep(&stat, to, name) } else { Ok(()) }
    }

    /// The same for what was seen to be a regular file with one name, and that nobody could change
    /// since: one look less.
    pub(super) fn copy_plain(
        &mut self,
        from: BorrowedFd,
        to: BorrowedFd,
        name: &CStr,
        check: impl FnOnce(&Stat) -> bool,
    ) -> Result<(), Fault> {
        let source = File::from(self.open(from, name).during("read")?);
        let stat = fstat(&source).during("inspect")?;
        if !check(&stat) || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Fault::Changed);
        }
        self.copy_open(&source, to, name, &stat)?;
        self.count(&stat);
        Ok(())
    }

    /// Counts an inode once, however many names it has.
    pub(super) fn count(&mut self, stat: &Stat) {
        self.done.copied.files += 1;
        if stat.st_nlink <= 1 || self.counted.insert(file_id(stat)) {
            self.done.copied.bytes += allocated(stat);
        }
    }

    /// Gives what `base` has under this name one more name, if it is what `check` wants. `several`
    /// when the tree has it under other names too.
    pub(super) fn share(
        &mut self,
        base: BorrowedFd,
        to: BorrowedFd,
        name: &CStr,
        several: bool,
        check: impl FnOnce(&Stat) -> bool,
    ) -> Result<bool, Fault> {
        let stat = match statat(base, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if check(&stat) => stat,
            // Somebody is deleting it.
            Ok(_) | Err(Errno::NOENT) => return Ok(false),
            Err(err) => return Err(err).during("inspect"),
        };
        match linkat(base, name, to, name, AtFlags::empty()) {
            Ok(()) => {}
            // As many names as there can be, somebody else's, or gone meanwhile.
            Err(Errno::MLINK | Errno::PERM | Errno::XDEV | Errno::NOENT) => return Ok(false),
            Err(err) => return Err(err).during("link"),
        }
        self.done.linked.files += 1;
        if !several || self.counted.insert(file_id(&stat)) {
            self.done.linked.bytes += allocated(&stat);
        }
        Ok(true)
    }

    fn link(&mut self, stat: &Stat, to: BorrowedFd, name: &CStr) -> Result<bool, Fault> {
        let Some(first) = self.linked.get(&file_id(stat)) else { return Ok(false) };
        match linkat(self.links, first.as_c_str(), to, name, AtFlags::empty()) {
            Ok(()) => {
                self.count(stat);
                Ok(true)
            }
            // The next name starts a group of its own: the content matters more than the link.
            Err(Errno::MLINK) => Ok(false),
            Err(err) => Err(err).during("link"),
        }
    }

    fn keep(&mut self, stat: &Stat, to: BorrowedFd, name: &CStr) -> Result<(), Fault> {
        let kept = CString::new(format!("{:x}", self.kept)).unwrap_or_default();
        linkat(to, name, self.links, &kept, AtFlags::empty()).during("link")?;
        self.kept += 1;
        self.linked.insert(file_id(stat), kept);
        Ok(())
    }

    fn copy_file(
        &mut self,
        from: BorrowedFd,
        to: BorrowedFd,
        name: &CStr,
        stat: &Stat,
    ) -> Result<(), Fault> {
        let source = File::from(self.open(from, name).during("read")?);
        let opened = fstat(&source).during("inspect")?;
        if file_id(&opened) != file_id(stat) || opened.st_size != stat.st_size {
            return Err(Fault::Changed);
        }
        self.copy_open(&source, to, name, stat)
    }

    fn copy_open(
        &mut self,
        source: &File,
        to: BorrowedFd,
        name: &CStr,
        stat: &Stat,
    ) -> Result<(), Fault> {
        let born = self.born_with(stat);
        let target = create(to, name, born.unwrap_or(Mode::RUSR | Mode::WUSR));
        let target = File::from(target.during("create a copy of")?);
        self.copy_content(source, &target, stat).during("copy")?;
        let (from, to) = (Place::Open(source.as_fd()), Place::Open(target.as_fd()));
        self.attributes.copy(from, stat, to, born.is_some())?;
        set_times(to, stat)
    }

    /// The mode, if a file can be made with it: it must be open to its owner, who has yet to set
    /// attributes, and what is special about a mode goes when a file is written to.
    fn born_with(&self, stat: &Stat) -> Option<Mode> {
        let mode = Mode::from_raw_mode(stat.st_mode);
        let special = Mode::SUID | Mode::SGID | Mode::SVTX;
        (mode.contains(Mode::WUSR) && !mode.intersects(self.masked | special)).then_some(mode)
    }

    fn open(&mut self, directory: BorrowedFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
        // Somebody may put a fifo here after we looked: do not wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        if self.quiet {
            match openat(directory, name, flags | OFlags::NOATIME, Mode::empty()) {
                Err(Errno::PERM) => self.quiet = false,
                result => return result,
            }
        }
        openat(directory, name, flags, Mode::empty())
    }

    fn copy_content(&mut self, source: &File, target: &File, stat: &Stat) -> io::Result<()> {
        let len = stat.st_size as u64;
        if len >= CLONE_MIN && self.clones {
            match ioctl_ficlone(target, source) {
                Ok(()) => return Ok(()),
                Err(_) => self.clones = false,
            }
        }
        if len <= BUFFER as u64 && allocated(stat) >= len {
            return copy_range(source, target, 0, len, &mut self.buffer);
        }
        copy_extents(source, target, len, &mut self.buffer)
    }

    fn copy_special(
        &mut self,
        from: BorrowedFd,
        to: BorrowedFd,
        name: &CStr,
        stat: &Stat,
    ) -> Result<(), Fault> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let target = readlinkat(from, name, Vec::new()).during("read")?;
                symlinkat(&target, to, name).during("create a copy of")?;
            }
            kind @ (FileType::Fifo | FileType::Socket) => {
                mknodat(to, name, kind, Mode::RUSR, 0).during("create a copy of")?;
            }
            kind @ (FileType::CharacterDevice | FileType::BlockDevice) => {
                match mknodat(to, name, kind, Mode::RUSR, stat.st_rdev) {
                    Err(Errno::PERM) => return Err(Fault::Unsupported { reason: DEVICE }),
                    result => result.during("create a copy of")?,
                }
            }
            _ => return Err(Fault::Changed),
        }
        let place = Place::Named(to, name);
        self.attributes.copy(Place::Named(from, name), stat, place, false)?;
        set_times(place, stat)
    }
}

const DEVICE: &str = "making a device node is not permitted here";

fn create(directory: BorrowedFd, name: &CStr, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, mode)
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

pub(super) fn file_id(stat: &Stat) -> FileId {
    (stat.st_dev, stat.st_ino)
}

pub(super) fn allocated(stat: &Stat) -> u64 {
    stat.st_blocks as u64 * 512
}

/// The content of a file of `len` bytes: shared if the file system can, else copied, with its holes.
pub(crate) fn copy_bytes(source: &File, target: &File, len: u64) -> io::Result<()> {
    if len >= CLONE_MIN && ioctl_ficlone(target, source).is_ok() {
        return Ok(());
    }
    copy_extents(source, target, len, &mut vec![0; BUFFER])
}

fn copy_extents(source: &File, target: &File, len: u64, buffer: &mut [u8]) -> io::Result<()> {
    let mut end = 0;
    loop {
        let start = match seek(source, SeekFrom::Data(end)) {
            Ok(start) if start < len => start,
            Ok(_) | Err(Errno::NXIO) => break,
            // Not every file system tells where its holes are.
            Err(Errno::INVAL) => return copy_range(source, target, 0, len, buffer),
            Err(err) => return Err(err.into()),
        };
        end = seek(source, SeekFrom::Hole(start))?.min(len);
        copy_in_kernel(source, target, start, end, buffer)?;
    }
    Ok(ftruncate(target, len)?)
}

fn copy_in_kernel(
    source: &File,
    target: &File,
    mut start: u64,
    end: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    while start < end {
        let (mut from, mut to) = (start, start);
        let len = usize::try_from(end - start).unwrap_or(usize::MAX);
        match copy_file_range(source, Some(&mut from), target, Some(&mut to), len) {
            Ok(0) | Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                return copy_range(source, target, start, end, buffer);
            }
            Ok(done) => start += done as u64,
            Err(Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Ok(())
}

fn copy_range(
    source: &File,
    target: &File,
    mut start: u64,
    end: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    while start < end {
        let len = buffer.len().min(usize::try_from(end - start).unwrap_or(usize::MAX));
        match source.read_at(&mut buffer[..len], start) {
            Ok(0) => return Err(io::Error::other("the file became shorter")),
            Ok(done) => {
                target.write_all_at(&buffer[..done], start)?;
                start += done as u64;
            }
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(())
}
