//! What an engine loses when it makes a layer, put back on the disk.
//!
//! A commit goes through an archive that knows whole seconds, no holes, no sockets, and of extended
//! attributes only one. The files are there as they were, so the rest can be put back into the layer that
//! the engine made, as long as nobody else has that layer. None of it changes what a file says.

use std::{
    ffi::{CStr, CString},
    fs::File,
    io,
    os::fd::OwnedFd,
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FallocateFlags, FileType, Mode, OFlags, SeekFrom, Stat, Statx,
        StatxFlags, Timespec, Timestamps, XattrFlags, chmodat, chownat, fallocate, fgetxattr,
        flistxattr, fsetxattr, mknodat, openat, seek, statat, statx, utimensat,
    },
    io::Errno,
};

/// How deep it is worth to look: each level holds two descriptors.
const DEPTH_MAX: usize = 200;

/// Shorter holes are not told apart from what is written.
const HOLE_MIN: u64 = 4096;

const XATTR_MAX: usize = 64 << 10;

/// Whether a directory was made after a moment that [`moment`] told.
pub(super) fn is_newer(path: &Path, moment: (i64, i64)) -> bool {
    let told: Option<Statx> = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME).ok();
    told.is_some_and(|told| {
        told.stx_mask & StatxFlags::BTIME.bits() != 0
            && (told.stx_btime.tv_sec, i64::from(told.stx_btime.tv_nsec)) >= moment
    })
}

/// Now, on the clock of file systems.
pub(super) fn moment() -> (i64, i64) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    (now.tv_sec, now.tv_nsec)
}

/// Makes what is below `to` exactly what is below `from`, where both have the same. Nothing may write to
/// either.
pub(super) fn complete(from: &Path, to: &Path) -> io::Result<()> {
    let open = |path: &Path| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(CWD, path, flags, Mode::empty())
    };
    let (from, to) = (open(from)?, open(to)?);
    Pair { from, to }.complete(0)
}

struct Pair {
    from: OwnedFd,
    to: OwnedFd,
}

impl Pair {
    fn complete(&self, depth: usize) -> io::Result<()> {
        for entry in Dir::read_from(&self.from)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = statat(&self.from, name, AtFlags::SYMLINK_NOFOLLOW)?;
            match statat(&self.to, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(there) if same_kind(&stat, &there) => {
                    self.complete_one(name, &stat, &there, depth)?;
                }
                Ok(_) => {}
                Err(Errno::NOENT) if kind_of(&stat) == FileType::Socket => {
                    self.socket(name, &stat)?;
                }
                Err(Errno::NOENT) => {}
                Err(err) => return Err(err.into()),
            }
        }
        Ok(())
    }

    fn complete_one(&self, name: &CStr, stat: &Stat, there: &Stat, depth: usize) -> io::Result<()> {
        match kind_of(stat) {
            FileType::Directory if depth < DEPTH_MAX => {
                let below = Self { from: enter(&self.from, name)?, to: enter(&self.to, name)? };
                below.complete(depth + 1)?;
                copy_attributes(&below.from, &below.to)?;
            }
            FileType::RegularFile if stat.st_size == there.st_size => {
                self.complete_file(name, stat, there)?;
            }
            FileType::CharacterDevice if stat.st_rdev == 0 => return Ok(()),
            _ => {}
        }
        self.set_times(name, stat)
    }

    fn complete_file(&self, name: &CStr, stat: &Stat, there: &Stat) -> io::Result<()> {
        let len = u64::try_from(stat.st_size).unwrap_or_default();
        let holes = stat.st_blocks.cast_unsigned() * 512 < len && there.st_blocks > stat.st_blocks;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let from = File::from(openat(&self.from, name, flags, Mode::empty())?);
        if holes {
            let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let to = File::from(openat(&self.to, name, flags, Mode::empty())?);
            dig(&from, &to, len)?;
        }
        if has_attributes(&from) {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            copy_attributes(&from, openat(&self.to, name, flags, Mode::empty())?)?;
        }
        Ok(())
    }

    fn socket(&self, name: &CStr, stat: &Stat) -> io::Result<()> {
        mknodat(&self.to, name, FileType::Socket, Mode::RUSR, 0)?;
        let (uid, gid) =
            (rustix::fs::Uid::from_raw(stat.st_uid), rustix::fs::Gid::from_raw(stat.st_gid));
        chownat(&self.to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        chmodat(&self.to, name, Mode::from_raw_mode(stat.st_mode), AtFlags::empty())?;
        self.set_times(name, stat)
    }

    fn set_times(&self, name: &CStr, stat: &Stat) -> io::Result<()> {
        let times = Timestamps {
            last_access: Timespec { tv_sec: stat.st_atime, tv_nsec: stat.st_atime_nsec as _ },
            last_modification: Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as _ },
        };
        Ok(utimensat(&self.to, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn same_kind(one: &Stat, other: &Stat) -> bool {
    kind_of(one) == kind_of(other)
}

fn enter(at: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, name, flags, Mode::empty())?)
}

/// Where `from` has holes, `to` has zeros; then it has holes too.
fn dig(from: &File, to: &File, len: u64) -> io::Result<()> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let mut at = 0;
    while at < len {
        let hole = match seek(from, SeekFrom::Hole(at)) {
            Ok(hole) if hole < len => hole,
            _ => return Ok(()),
        };
        let end = match seek(from, SeekFrom::Data(hole)) {
            Ok(end) => end.min(len),
            Err(Errno::NXIO) => len,
            Err(err) => return Err(err.into()),
        };
        if end - hole >= HOLE_MIN {
            match fallocate(to, punch, hole, end - hole) {
                Err(Errno::OPNOTSUPP) => return Ok(()),
                result => result?,
            }
        }
        at = end;
    }
    Ok(())
}

fn has_attributes(file: &File) -> bool {
    let mut names = [0; 256];
    !matches!(flistxattr(file, &mut names[..]), Ok(0) | Err(Errno::OPNOTSUPP))
}

/// What is the overlay's own business stays where it is.
fn copy_attributes(from: impl rustix::fd::AsFd, to: impl rustix::fd::AsFd) -> io::Result<()> {
    let mut names = vec![0; XATTR_MAX];
    let len = match flistxattr(from.as_fd(), &mut names[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        result => result?,
    };
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if name.starts_with(b"trusted.") || name.starts_with(b"security.") {
            continue;
        }
        let name = CString::new(name)?;
        let mut value = vec![0; XATTR_MAX];
        let len = match fgetxattr(from.as_fd(), name.as_c_str(), &mut value[..]) {
            Err(Errno::NODATA) => continue,
            result => result?,
        };
        fsetxattr(to.as_fd(), name.as_c_str(), &value[..len], XattrFlags::empty())?;
    }
    Ok(())
}
