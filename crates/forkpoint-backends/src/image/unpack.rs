//! From an archive to a directory in the form of overlayfs.
//!
//! Nothing that the archive says can lead outside: every name is looked up from the layer's root
//! without following a symbolic link, and whatever would have to is refused. A layer is made in a
//! directory that nobody else sees, and only what it holds itself is in it: what it hides of the
//! layers below is marked, as `layer/marks.rs` tells.
//!
//! Devices are left out and counted: a sandbox has a `/dev` of its own, and elsewhere its file
//! system lets nobody use one.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs::File,
    io::{self, BufRead, Seek as _, Write as _},
    os::fd::OwnedFd,
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, Timestamps, chmodat, linkat, makedev, mkdirat, mknodat,
        openat, statat, symlinkat, unlinkat,
    },
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{
    Limits,
    error::{ImageError, ImageResult, tar_error},
    name::{EntryName, Hides},
};
use crate::{
    layer::{Marks, is_whiteout, open_below, put_whiteout},
    tar::{Entry, EntryKind, TarReader},
};

mod describe;

/// Whom the files of a layer belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owners {
    /// Whom the archive says: who unpacks is root.
    Kept,
    /// Who unpacks.
    Own,
}

/// What was made of an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    pub entries: u64,
    /// Of the content of its files.
    pub bytes: u64,
    /// Devices that were left out.
    #[serde(default)]
    pub devices: u64,
    /// Attributes that were left out: of overlayfs itself, of the machine that made the image, or
    /// more than this user may set.
    #[serde(default)]
    pub attributes: u64,
}

/// So many zeros need not be written.
const HOLE_MIN: usize = 4096;

/// What is set last of a directory: a mode could lock us out, an access list is inherited by what is made below, and
/// times change with every entry.
struct Later {
    mode: u32,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    times: Option<Timestamps>,
}

pub(super) struct Unpacker<'a> {
    root: OwnedFd,
    /// For messages.
    what: &'a str,
    marks: Marks,
    owners: Owners,
    limits: Limits,
    directories: BTreeMap<Vec<u8>, Later>,
    remembered: usize,
    /// Where the last entry went: archives are sorted.
    parent: Option<(Vec<u8>, OwnedFd)>,
    done: Unpacked,
}

/// Why an entry cannot be had; which one is known to the caller.
enum Fault {
    Refused(&'static str),
    Io(&'static str, io::Error),
    Whole(ImageError),
}

trait During<T> {
    fn during(self, operation: &'static str) -> Result<T, Fault>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, operation: &'static str) -> Result<T, Fault> {
        self.map_err(|err| Fault::Io(operation, err.into()))
    }
}

/// Unpacks everything into `root`, an empty directory.
pub(super) fn unpack<R: BufRead>(
    archive: R,
    what: &str,
    root: OwnedFd,
    marks: Marks,
    owners: Owners,
    limits: Limits,
) -> ImageResult<Unpacked> {
    let mut unpacker = Unpacker::new(what, root, marks, owners, limits);
    let mut archive = TarReader::new(archive);
    while let Some(entry) = archive.next().map_err(tar_error(what))? {
        unpacker.add(&entry, &mut archive)?;
    }
    archive.drain().map_err(tar_error(what))?;
    unpacker.finish()
}

/// Unpacks what an engine sends of a directory into an empty one, as it is. Every name in it begins
/// with that of the directory, which is left out.
pub(crate) fn unpack_tree<R: BufRead>(
    archive: R,
    what: &str,
    root: OwnedFd,
) -> ImageResult<Unpacked> {
    let is_root = rustix::process::geteuid().is_root();
    let owners = if is_root { Owners::Kept } else { Owners::Own };
    let limits = Limits { entries: u64::MAX, ..Limits::default() };
    let mut unpacker = Unpacker::new(what, root, Marks::Plain, owners, limits);
    let mut archive = TarReader::new(archive);
    while let Some(mut entry) = archive.next().map_err(tar_error(what))? {
        entry.path = below_first(&entry.path);
        if entry.kind == EntryKind::HardLink {
            entry.link = below_first(&entry.link);
        }
        unpacker.add(&entry, &mut archive)?;
    }
    archive.drain().map_err(tar_error(what))?;
    unpacker.finish()
}

/// The directory may be called `.` as well.
fn below_first(path: &[u8]) -> Vec<u8> {
    let mut parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    parts.next();
    parts.collect::<Vec<_>>().join(&b'/')
}

impl<'a> Unpacker<'a> {
    fn new(what: &'a str, root: OwnedFd, marks: Marks, owners: Owners, limits: Limits) -> Self {
        let (directories, done) = (BTreeMap::new(), Unpacked::default());
        let (remembered, parent) = (0, None);
        Self { root, what, marks, owners, limits, directories, remembered, parent, done }
    }

    /// What is unpacked is a tree as it is, and not the changes to another.
    fn is_plain(&self) -> bool {
        self.marks == Marks::Plain
    }
}

impl Unpacker<'_> {
    fn add<R: BufRead>(&mut self, entry: &Entry, content: &mut TarReader<R>) -> ImageResult<()> {
        self.done.entries += 1;
        if self.done.entries > self.limits.entries {
            let (what, limit) = (self.what.to_owned(), format!("{} entries", self.limits.entries));
            return Err(ImageError::TooLarge { what, limit });
        }
        self.try_add(entry, content).map_err(|fault| self.told(entry, fault))
    }

    fn told(&self, entry: &Entry, fault: Fault) -> ImageError {
        self.told_of(&entry.shown(), fault)
    }

    fn told_of(&self, shown: &str, fault: Fault) -> ImageError {
        let what = format!("{shown:?} in {}", self.what);
        match fault {
            Fault::Refused(reason) => ImageError::Refused { what, reason: reason.to_owned() },
            Fault::Io(operation, source) => {
                ImageError::Io { operation, path: shown.into(), source }
            }
            Fault::Whole(err) => err,
        }
    }

    fn try_add<R: BufRead>(
        &mut self,
        entry: &Entry,
        content: &mut TarReader<R>,
    ) -> Result<(), Fault> {
        let Some(name) = EntryName::new(&entry.path).map_err(Fault::Refused)? else {
            return self.describe_root(entry);
        };
        if entry.kind == EntryKind::Device && !self.is_plain() {
            self.done.devices += 1;
            return Ok(());
        }
        let parent = self.parent(&name)?;
        let hides = if self.is_plain() { None } else { name.hides().map_err(Fault::Refused)? };
        let added = match hides {
            Some(hides) => self.hide(&parent, &hides),
            None => self.put(entry, &name, &parent, content),
        };
        self.parent = Some((name.parent().to_vec(), parent));
        added
    }

    fn describe_root(&mut self, entry: &Entry) -> Result<(), Fault> {
        if entry.kind != EntryKind::Directory {
            return Err(Fault::Refused("it stands for the root and is no directory"));
        }
        let root = self.root.try_clone().during("open")?;
        self.describe_directory(entry, &root, Vec::new())
    }

    fn put<R: BufRead>(
        &mut self,
        entry: &Entry,
        name: &EntryName,
        parent: &OwnedFd,
        content: &mut TarReader<R>,
    ) -> Result<(), Fault> {
        let at = name.last();
        match entry.kind {
            EntryKind::Directory => {
                let directory = self.make_directory(parent, at)?;
                self.describe_directory(entry, &directory, name.path().to_vec())
            }
            EntryKind::File => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                let flags = flags | OFlags::CLOEXEC;
                let made =
                    replacing(parent, at, || openat(parent, at, flags, Mode::RUSR | Mode::WUSR))?;
                let mut file = File::from(made);
                self.write(&mut file, content)?;
                self.describe_file(entry, &file)
            }
            EntryKind::Symlink => {
                let target = CString::new(&*entry.link)
                    .map_err(|_| Fault::Refused("a link leads to a name with a NUL byte"))?;
                if target.is_empty() {
                    return Err(Fault::Refused("a link leads nowhere"));
                }
                replacing(parent, at, || symlinkat(&*target, parent, at))?;
                self.describe_named(entry, parent, at)
            }
            EntryKind::Fifo => {
                replacing(parent, at, || mknodat(parent, at, FileType::Fifo, Mode::RUSR, 0))?;
                self.describe_named(entry, parent, at)?;
                let mode = Mode::from_raw_mode(entry.mode);
                chmodat(parent, at, mode, AtFlags::empty()).during("set the mode of")
            }
            EntryKind::HardLink => self.link(entry, name, parent),
            EntryKind::Device => self.make_device(entry, parent, at),
        }
    }

    /// The directory that an entry goes to. What the archive does not tell of is made as Docker
    /// does: for root, and open to all.
    fn parent(&mut self, name: &EntryName) -> Result<OwnedFd, Fault> {
        if let Some((path, _)) = &self.parent
            && path == name.parent()
            && let Some((_, parent)) = self.parent.take()
        {
            return Ok(parent);
        }
        match open_below(&self.root, name.parent()) {
            Ok(parent) => Ok(parent),
            Err(Errno::NOENT) => self.make_parents(name),
            Err(err) => Err(explained(err)),
        }
    }

    fn make_parents(&mut self, name: &EntryName) -> Result<OwnedFd, Fault> {
        let mut directory = self.root.try_clone().during("open")?;
        let mut path = Vec::new();
        for part in name.parents() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(part.to_bytes());
            match mkdirat(&directory, &*part, Mode::RWXU) {
                Ok(()) => {
                    let later = Later { mode: 0o755, attributes: Vec::new(), times: None };
                    self.remember(path.clone(), later)?;
                }
                Err(Errno::EXIST) => {}
                Err(err) => return Err(err).during("create"),
            }
            directory = open_below(&directory, part.to_bytes()).map_err(explained)?;
        }
        Ok(directory)
    }

    /// What hid a directory below hides what is in it, too.
    fn make_directory(&self, parent: &OwnedFd, at: &CString) -> Result<OwnedFd, Fault> {
        let there = statat(parent, at, AtFlags::SYMLINK_NOFOLLOW);
        let is_directory = |mode| FileType::from_raw_mode(mode) == FileType::Directory;
        let hid = match there {
            Ok(stat) if is_directory(stat.st_mode) => {
                return open_below(parent, at.to_bytes()).map_err(explained);
            }
            Ok(stat) => {
                unlinkat(parent, at, AtFlags::empty()).during("replace")?;
                is_whiteout(&stat)
            }
            Err(_) => false,
        };
        mkdirat(parent, at, Mode::RWXU).during("create")?;
        let directory = open_below(parent, at.to_bytes()).map_err(explained)?;
        if hid {
            self.marks.set_opaque(&directory).map_err(layer_fault)?;
        }
        Ok(directory)
    }

    fn hide(&self, parent: &OwnedFd, hides: &Hides) -> Result<(), Fault> {
        let name = match hides {
            Hides::Nothing => return Ok(()),
            Hides::Everything => return self.marks.set_opaque(parent).map_err(layer_fault),
            Hides::Name(name) => name,
        };
        match put_whiteout(parent, name) {
            Ok(()) => self.marks.set_whiteouts(parent).map_err(layer_fault),
            // Something of this layer has that name, which hides what is below it anyway; but a
            // directory shows what is below it too.
            Err(fault) => match open_below(parent, name.to_bytes()) {
                Ok(directory) => self.marks.set_opaque(&directory).map_err(layer_fault),
                Err(_) if statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() => Ok(()),
                Err(_) => Err(layer_fault(fault)),
            },
        }
    }

    fn write<R: BufRead>(
        &mut self,
        file: &mut File,
        content: &mut TarReader<R>,
    ) -> Result<(), Fault> {
        loop {
            let chunk = content.chunk().map_err(|err| Fault::Whole(tar_error(self.what)(err)))?;
            let len = chunk.len();
            if len == 0 {
                return Ok(());
            }
            if self.is_plain() && len >= HOLE_MIN && chunk.iter().all(|byte| *byte == 0) {
                file.seek_relative(len as i64).during("write")?;
                let end = file.stream_position().during("write")?;
                // A hole at the end is one as well.
                file.set_len(end).during("write")?;
            } else {
                file.write_all(chunk).during("write")?;
            }
            content.consume(len);
            self.done.bytes += len as u64;
        }
    }

    /// One that may not be made is counted as left out.
    fn make_device(&mut self, entry: &Entry, parent: &OwnedFd, at: &CString) -> Result<(), Fault> {
        let Some(node) = entry.node else { return Ok(()) };
        let kind = if node.block { FileType::BlockDevice } else { FileType::CharacterDevice };
        let number = makedev(node.major, node.minor);
        match replacing(parent, at, || mknodat(parent, at, kind, Mode::RUSR, number)) {
            Err(Fault::Io(_, err)) if err.kind() == io::ErrorKind::PermissionDenied => {
                self.done.devices += 1;
                return Ok(());
            }
            made => made?,
        }
        self.describe_named(entry, parent, at)?;
        let mode = Mode::from_raw_mode(entry.mode);
        chmodat(parent, at, mode, AtFlags::empty()).during("set the mode of")
    }

    /// Only to what this layer brought, by its own name, and never to a directory.
    fn link(&self, entry: &Entry, own: &EntryName, parent: &OwnedFd) -> Result<(), Fault> {
        let at = own.last();
        let name = EntryName::new(&entry.link).map_err(Fault::Refused)?;
        let name = name.ok_or(Fault::Refused("a hard link leads to the root"))?;
        let missing = "a hard link leads to what is not in the layer";
        let from = match open_below(&self.root, name.parent()) {
            Err(Errno::NOENT) => return Err(Fault::Refused(missing)),
            opened => opened.map_err(explained)?,
        };
        let kind = match statat(&from, name.last(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Err(Fault::Refused(missing)),
            stat => FileType::from_raw_mode(stat.during("inspect")?.st_mode),
        };
        if kind == FileType::Directory || kind == FileType::CharacterDevice && !self.is_plain() {
            return Err(Fault::Refused("a hard link leads to what is no file"));
        }
        if name.path() == own.path() {
            return Err(Fault::Refused("a hard link leads to itself"));
        }
        replacing(parent, at, || linkat(&from, name.last(), parent, at, AtFlags::empty()))
    }
}

/// Makes something under a name that may be taken, by something that is no full directory.
fn replacing<T>(
    parent: &OwnedFd,
    at: &CString,
    make: impl Fn() -> rustix::io::Result<T>,
) -> Result<T, Fault> {
    match make() {
        Err(Errno::EXIST) => {}
        made => return made.during("create"),
    }
    match unlinkat(parent, at, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => match unlinkat(parent, at, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                return Err(Fault::Refused("it replaces a directory of the same layer"));
            }
            removed => removed.during("replace")?,
        },
        removed => removed.during("replace")?,
    }
    make().during("create")
}

fn explained(err: Errno) -> Fault {
    match err {
        Errno::LOOP => Fault::Refused("a symbolic link of the same layer is on the way to it"),
        Errno::NOTDIR => Fault::Refused("what is on the way to it is no directory"),
        err => Fault::Io("open", err.into()),
    }
}

fn layer_fault(fault: crate::layer::Fault) -> Fault {
    match fault {
        crate::layer::Fault::Io { operation, source } => Fault::Io(operation, source),
        _ => Fault::Refused("it cannot be marked"),
    }
}
