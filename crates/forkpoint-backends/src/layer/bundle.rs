//! Small files of a layer in one file, until there is time to make them.
//!
//! To make a file takes the file system many times as long as to read one. So while a sandbox stands still
//! its small files are only read, into a bundle of each thread that copies, and are made when it runs again:
//! by somebody who has nothing else to do, or by whoever needs the layer first. Until then the layer has
//! `packed/` in the place of `tree/`, which lacks nothing but them, and then `made/` while bundles are removed.
//!
//! A bundle is [`MAGIC`] and records, each with a byte in front that tells its kind. All numbers are
//! little-endian.
//!
//! - `d`, a directory, in which the files that follow are: times, length of the path (4), path from the root.
//! - `f`, a file: mode, owner, group (4 each), times, whether it was one of a layer below (1), length of
//!   the name (2), length (4), name, content.
//! - `e`, the end: how many files there are (8).
//!
//! Times are of the last access and the last change, seconds (8) and nanoseconds (4) each.

use std::{
    ffi::CStr,
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, Stat, fgetxattr, fstat, openat},
    io::Errno,
};

use super::{
    LayerResult,
    copy::{allocated, read_all},
    error::{At as _, During as _, Fault},
    store::unique,
};

/// What a layer has in the place of its tree while files are still in bundles.
pub(super) const PACKED: &CStr = c"packed";

/// The same when all of them were made, and bundles are being removed.
pub(super) const MADE: &CStr = c"made";

pub(super) const PREFIX: &str = "bundle";
pub(super) const MAGIC: [u8; 8] = *b"fpbundl1";

/// Up to this, the inode is what costs.
pub(super) const FILE_MAX: u64 = 16 << 10;
/// The kernel takes no more than 4096 at once, and a bundle knows no other way.
pub(super) const PATH_MAX: usize = 2048;
/// What is written at once.
pub(super) const BLOCK: usize = 256 << 10;

pub(super) const DIRECTORY: u8 = b'd';
pub(super) const FILE: u8 = b'f';
pub(super) const END: u8 = b'e';

/// Where bundles go, and of what.
#[derive(Debug)]
pub(super) struct Packing {
    pub(super) directory: OwnedFd,
    /// Of the tree that is read.
    pub(super) source: PathBuf,
}

/// One that is being filled.
#[derive(Debug)]
pub(super) struct Bundle<'a> {
    packing: &'a Packing,
    file: Option<File>,
    buffer: Vec<u8>,
    /// In which directory we are, and whether files of it may come into a bundle.
    folder: Option<(usize, bool)>,
    /// Where the record of that directory begins, as long as there is no file in it.
    empty_from: Option<usize>,
    files: u64,
}

impl<'a> Bundle<'a> {
    pub(super) fn new(packing: &'a Packing) -> Self {
        Self { packing, file: None, buffer: Vec::new(), folder: None, empty_from: None, files: 0 }
    }

    /// The files that come next are in this directory of the source.
    pub(super) fn enter(
        &mut self,
        index: usize,
        path: &Path,
        directory: BorrowedFd,
    ) -> Result<(), Fault> {
        if self.folder.is_some_and(|(last, _)| last == index) {
            return Ok(());
        }
        let stat = fstat(directory).during("inspect")?;
        self.forget_empty();
        // What is longer may be told cut short.
        let path = Some(path).filter(|path| path.as_os_str().len() <= PATH_MAX);
        let path = path.and_then(|path| path.strip_prefix(&self.packing.source).ok());
        let path =
            path.map(|path| path.as_os_str().as_bytes()).filter(|_| is_plain(directory, &stat));
        self.folder = Some((index, path.is_some()));
        if let Some(path) = path {
            self.empty_from = Some(self.buffer.len());
            self.buffer.push(DIRECTORY);
            self.put_times(&stat);
            self.put(&(path.len() as u32).to_le_bytes());
            self.put(path);
        }
        Ok(())
    }

    /// Nobody says where the files are that come next: they are made at once.
    pub(super) fn leave(&mut self) {
        self.folder = None;
    }

    /// Whether such a file may be made later.
    pub(super) fn wants(&self, stat: &Stat) -> bool {
        let len = stat.st_size as u64;
        let is_small = len <= FILE_MAX && allocated(stat) >= len;
        is_small && stat.st_nlink == 1 && self.folder.is_some_and(|(_, plain)| plain)
    }

    pub(super) fn add(
        &mut self,
        source: &File,
        name: &CStr,
        stat: &Stat,
        copied_up: bool,
    ) -> io::Result<()> {
        let (name, len) = (name.to_bytes(), stat.st_size as usize);
        self.empty_from = None;
        self.buffer.push(FILE);
        for number in [stat.st_mode, stat.st_uid, stat.st_gid] {
            self.put(&number.to_le_bytes());
        }
        self.put_times(stat);
        self.buffer.push(copied_up.into());
        self.put(&(name.len() as u16).to_le_bytes());
        self.put(&(len as u32).to_le_bytes());
        self.put(name);
        let start = self.buffer.len();
        self.buffer.resize(start + len, 0);
        read_all(source, &mut self.buffer[start..])?;
        self.files += 1;
        match self.buffer.len() >= BLOCK {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// There may be any number of directories without a file for us.
    fn forget_empty(&mut self) {
        if let Some(start) = self.empty_from.take() {
            self.buffer.truncate(start);
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    fn put_times(&mut self, stat: &Stat) {
        let times = [
            (stat.st_atime, stat.st_atime_nsec as u32),
            (stat.st_mtime, stat.st_mtime_nsec as u32),
        ];
        for (seconds, nanoseconds) in times {
            self.put(&seconds.to_le_bytes());
            self.put(&nanoseconds.to_le_bytes());
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.begin()?,
        };
        file.write_all(&self.buffer)?;
        self.buffer.clear();
        self.file = Some(file);
        Ok(())
    }

    fn begin(&self) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let mut file = File::from(openat(&self.packing.directory, unique(PREFIX), flags, mode)?);
        file.write_all(&MAGIC)?;
        Ok(file)
    }

    /// Nothing more comes.
    pub(super) fn finish(&mut self) -> LayerResult<()> {
        if self.files == 0 {
            return Ok(());
        }
        self.forget_empty();
        self.buffer.push(END);
        self.put(&self.files.to_le_bytes());
        self.flush().during("keep small files of").at(|| self.packing.source.clone())
    }
}

/// What is made in a directory with a group or a list of its own for what is in it comes out otherwise
/// than it was.
fn is_plain(directory: BorrowedFd, stat: &Stat) -> bool {
    let no_list = fgetxattr(directory, c"system.posix_acl_default", &mut [0_u8; 0]);
    let no_list = matches!(no_list, Err(Errno::NODATA | Errno::OPNOTSUPP));
    no_list && !Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID)
}
