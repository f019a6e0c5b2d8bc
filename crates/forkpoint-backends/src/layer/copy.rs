//! One entry that is not a directory, from one directory to another.
//!
//! Only regular files are opened: opening a fifo would wait for a writer, and opening a device can
//! do anything.

use std::{
    ffi::CStr,
    fs::File,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, SeekFrom, Stat, copy_file_range, fstat, ftruncate,
        ioctl_ficlone, linkat, mknodat, openat, readlinkat, seek, statat, symlinkat,
    },
    io::{Errno, pread, pwrite},
};

use super::{
    LayerSize,
    attributes::{Attributes, Place, set_times},
    bundle::Bundle,
    error::{During as _, Fault},
    marks::put_whiteout,
    site::{Site, file_id},
};

/// Below this, the inode is what costs, and a reflink is no faster than a copy.
const CLONE_MIN: u64 = 1 << 20;

/// Up to this, one read and one write are faster than asking for extents.
const BUFFER: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Copier<'a> {
    site: &'a Site,
    pub(super) attributes: Attributes,
    clones: bool,
    /// Reads without a trace in the time of the last access, which only owners may. The trace would
    /// be one more write per file.
    quiet: bool,
    buffer: Vec<u8>,
    pub(super) bundle: Option<Bundle<'a>>,
    pub(super) done: Done,
}

/// What is in a layer now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) copied: LayerSize,
    /// Shared with an earlier layer.
    pub(super) linked: LayerSize,
    /// Those that are still to be made.
    pub(super) packed: u64,
}

impl<'a> Copier<'a> {
    pub(super) fn new(site: &'a Site) -> Self {
        Self {
            site,
            attributes: Attributes::new(site.marks, site.newborn),
            clones: true,
            quiet: true,
            buffer: vec![0; BUFFER],
            bundle: site.packing.as_ref().map(Bundle::new),
            done: Done::default(),
        }
    }

    /// Answers what it found there, which `check` may refuse.
    pub(super) fn copy(
        &mut self,
        from: BorrowedFd,
        to: BorrowedFd,
        name: &CStr,
        check: impl FnOnce(&Stat) -> bool,
    ) -> Result<Stat, Fault> {
        let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW).during("inspect")?;
        if !check(&stat) {
            return Err(Fault::Changed);
        }
        if self.attributes.marks.is_whiteout(&stat) {
            put_whiteout(to, name)?;
            return Ok(stat);
        }
        self.copy_once(to, name, &stat, |copier| match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => copier.copy_file(from, to, name, &stat),
            _ => copier.copy_special(from, to, name, &stat),
        })?;
        Ok(stat)
    }

    /// The same for a regular file, with one look less. Whatever was told of it before is not known
    /// here.
    pub(super) fn copy_found(
        &mut self,
        from: BorrowedFd,
        to: BorrowedFd,
        name: &CStr,
    ) -> Result<Stat, Fault> {
        let (source, stat) = self.open_file(from, name)?;
        self.copy_once(to, name, &stat, |copier| copier.copy_open(&source, to, name, &stat))?;
        Ok(stat)
    }

    /// The same for what was seen to have one name in the tree, and that nobody could change since.
    pub(super) fn copy_plain(
        &mut self,
        from: BorrowedFd,
        to: BorrowedFd,
        name: &CStr,
        check: impl FnOnce(&Stat) -> bool,
    ) -> Result<(), Fault> {
        let (source, stat) = self.open_file(from, name)?;
        if !check(&stat) {
            return Err(Fault::Changed);
        }
        self.copy_open(&source, to, name, &stat)?;
        self.count(&stat);
        Ok(())
    }

    /// Links what has been copied under another name.
    fn copy_once(
        &mut self,
        to: BorrowedFd,
        name: &CStr,
        stat: &Stat,
        copy: impl FnOnce(&mut Self) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        if stat.st_nlink <= 1 {
            copy(self)?;
            self.add(stat, true);
            return Ok(());
        }
        let site = self.site;
        let mut several = site.several();
        if !site.link(&several, stat, to, name)? {
            copy(self)?;
            site.keep(&mut several, stat, to, name)?;
        }
        self.add(stat, several.count(stat));
        Ok(())
    }

    /// Counts an inode once, however many names it has.
    pub(super) fn count(&mut self, stat: &Stat) {
        let first = stat.st_nlink <= 1 || self.site.several().count(stat);
        self.add(stat, first);
    }

    fn add(&mut self, stat: &Stat, first: bool) {
        self.done.copied.files += 1;
        self.done.copied.bytes += if first { allocated(stat) } else { 0 };
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
        if !several || self.site.several().count(&stat) {
            self.done.linked.bytes += allocated(&stat);
        }
        Ok(true)
    }

    fn open_file(&mut self, from: BorrowedFd, name: &CStr) -> Result<(File, Stat), Fault> {
        let source = File::from(self.open(from, name).during("read")?);
        let stat = fstat(&source).during("inspect")?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok((source, stat)),
            _ => Err(Fault::Changed),
        }
    }

    fn copy_file(
        &mut self,
        from: BorrowedFd,
        to: BorrowedFd,
        name: &CStr,
        stat: &Stat,
    ) -> Result<(), Fault> {
        let (source, opened) = self.open_file(from, name)?;
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
        if self.pack(source, name, stat)? {
            return Ok(());
        }
        let born = self.born_with(stat);
        let target = create(to, name, born.unwrap_or(Mode::RUSR | Mode::WUSR));
        let target = File::from(target.during("create a copy of")?);
        self.copy_content(source, &target, stat).during("copy")?;
        let (from, to) = (Place::Open(source.as_fd()), Place::Open(target.as_fd()));
        self.attributes.copy(from, stat, to, born.is_some())?;
        set_times(to, stat)
    }

    /// Leaves it to be made later, if that can be.
    fn pack(&mut self, source: &File, name: &CStr, stat: &Stat) -> Result<bool, Fault> {
        let Some(bundle) = self.bundle.as_mut().filter(|bundle| bundle.wants(stat)) else {
            return Ok(false);
        };
        let Some(copied_up) = self.attributes.only_origin(source.as_fd())? else {
            return Ok(false);
        };
        bundle.add(source, name, stat, copied_up).during("copy")?;
        self.done.packed += 1;
        Ok(true)
    }

    /// The mode, if a file can be made with it: it must be open to its owner, who has yet to set
    /// attributes, and what is special about a mode goes when a file is written to.
    fn born_with(&self, stat: &Stat) -> Option<Mode> {
        let mode = Mode::from_raw_mode(stat.st_mode);
        let special = Mode::SUID | Mode::SGID | Mode::SVTX;
        (mode.contains(Mode::WUSR) && !mode.intersects(self.site.masked | special)).then_some(mode)
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
    // Most have no holes, and then there is nothing more to ask or to set.
    if seek(source, SeekFrom::Hole(0)).is_ok_and(|hole| hole >= len) {
        return copy_in_kernel(source, target, 0, len, buffer);
    }
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
        match pread(source, &mut buffer[..len], start) {
            Ok(0) => return Err(io::Error::other("the file became shorter")),
            Ok(done) => {
                write_all(target, &buffer[..done], start)?;
                start += done as u64;
            }
            Err(Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Ok(())
}

/// As many bytes as there is room for, from the start.
pub(super) fn read_all(source: &File, buffer: &mut [u8]) -> io::Result<()> {
    let mut start = 0;
    while start < buffer.len() {
        match pread(source, &mut buffer[start..], start as u64) {
            Ok(0) => return Err(io::Error::other("the file became shorter")),
            Ok(done) => start += done,
            Err(Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Ok(())
}

fn write_all(target: &File, mut bytes: &[u8], mut start: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match pwrite(target, bytes, start) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(done) => {
                bytes = &bytes[done..];
                start += done as u64;
            }
            Err(Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Ok(())
}
