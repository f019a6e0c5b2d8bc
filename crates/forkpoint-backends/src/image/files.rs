//! Where the files of an image lie: a directory, or an archive with random access.

use std::{
    cell::Cell,
    collections::HashMap,
    fs::File,
    io::{self, BufRead as _, BufReader, BufWriter, Read},
    os::{fd::OwnedFd, unix::fs::FileExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};

use super::{
    Limits, Progress,
    blob::Compression,
    digest::Digest,
    error::{ImageError, ImageResult, carried, carry, io_error, tar_error},
    limits::DOCUMENT_MAX,
    manifest::Descriptor,
    read::WHOLE,
};
use crate::tar::{EntryKind, TarError, TarReader};

/// How many links an archive's name may lead through.
const LINKS_MAX: usize = 8;

/// What is written to a spool at once.
const SPOOLED: usize = 1 << 20;

/// Of a file's name in an archive of an image, and where it leads: digests and little else.
const NAMES_MAX: usize = 1024;

/// Files of an archive of an image: layers, and a few that tell of them.
const FILES_MAX: usize = 100_000;

/// One piece of an image.
#[derive(Clone, Debug)]
pub(super) struct Blob {
    /// In the words of where it is: a path, or a digest.
    pub(super) name: String,
    pub(super) digest: Option<Digest>,
    pub(super) len_bytes: Option<u64>,
}

impl Blob {
    pub(super) fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), digest: None, len_bytes: None }
    }

    /// Where a layout keeps it.
    pub(super) fn in_layout(descriptor: &Descriptor) -> Self {
        Self {
            name: format!("blobs/sha256/{}", descriptor.digest.hex()),
            digest: Some(descriptor.digest.clone()),
            len_bytes: Some(descriptor.size),
        }
    }
}

/// Whoever has the pieces of an image. Nothing that comes from one is believed.
pub(super) trait Blobs: Send {
    fn open(&self, blob: &Blob) -> ImageResult<Box<dyn Read + Send + '_>>;

    /// A small piece, checked.
    fn document(&self, blob: &Blob) -> ImageResult<Vec<u8>> {
        let what = || format!("`{}`", blob.name);
        let mut bytes = Vec::new();
        let read = self.open(blob)?.take(DOCUMENT_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|err| carried(err).unwrap_or_else(|err| ImageError::damaged(what(), err)))?;
        if bytes.len() as u64 > DOCUMENT_MAX {
            let limit = format!("{DOCUMENT_MAX} bytes");
            return Err(ImageError::TooLarge { what: what(), limit });
        }
        let mismatch =
            |found, expected| Err(ImageError::Mismatch { what: what(), found, expected });
        match (blob.len_bytes, &blob.digest) {
            (Some(len), _) if len != bytes.len() as u64 => {
                mismatch(format!("{} bytes", bytes.len()), format!("{len} bytes"))
            }
            (_, Some(digest)) if Digest::of(&bytes) != *digest => {
                mismatch(Digest::of(&bytes).to_string(), digest.to_string())
            }
            _ => Ok(bytes),
        }
    }
}

/// A directory in the form of an OCI layout. No link leads out of it.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    fd: OwnedFd,
}

impl Directory {
    pub(super) fn open(path: &Path) -> ImageResult<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty())
            .map_err(|err| io_error("open", path)(err.into()))?;
        Ok(Self { path: path.to_owned(), fd })
    }
}

impl Blobs for Directory {
    fn open(&self, blob: &Blob) -> ImageResult<Box<dyn Read + Send + '_>> {
        let path = self.path.join(&blob.name);
        // Nobody waits at a fifo.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = openat2(&self.fd, &*blob.name, flags, Mode::empty(), ResolveFlags::BENEATH);
        match opened {
            Err(rustix::io::Errno::NOENT) => {
                Err(ImageError::Missing { what: format!("`{}`", path.display()) })
            }
            Err(err) => Err(io_error("open", path)(err.into())),
            Ok(fd) => Ok(Box::new(regular(fd, &path)?)),
        }
    }
}

/// A file that is one.
pub(super) fn regular(fd: OwnedFd, path: &Path) -> ImageResult<File> {
    let stat = fstat(&fd).map_err(|err| io_error("inspect", path)(err.into()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(File::from(fd)),
        _ => Err(ImageError::Refused {
            what: format!("`{}`", path.display()),
            reason: "it is not a plain file".to_owned(),
        }),
    }
}

pub(super) fn open_file(path: &Path) -> ImageResult<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match openat(CWD, path, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => {
            Err(ImageError::Missing { what: format!("file `{}`", path.display()) })
        }
        Err(err) => Err(io_error("open", path)(err.into())),
        Ok(fd) => regular(fd, path),
    }
}

/// A tar archive whose files are read from where they lie in it.
#[derive(Debug)]
pub(super) struct Archive {
    /// For messages.
    what: String,
    file: File,
    files: HashMap<String, Place>,
}

#[derive(Debug)]
enum Place {
    File {
        at: u64,
        len_bytes: u64,
    },
    /// `docker save` writes a layer once, and links to it.
    Link(String),
}

impl Archive {
    /// Opens a file, compressed or not. What is compressed is spooled below `staging` first.
    pub(super) fn open(
        path: &Path,
        staging: &Path,
        limits: Limits,
        progress: &Progress,
    ) -> ImageResult<Self> {
        let what = format!("`{}`", path.display());
        let file = open_file(path)?;
        let mut input = BufReader::new(&file);
        let beginning = input.fill_buf().map_err(io_error("read", path))?;
        let compression = Compression::of(beginning);
        if compression == Compression::None {
            drop(input);
            return Self::index(file, what);
        }
        let came = Cell::new(0);
        drop(input);
        let input = BufReader::new(Metered { stream: At { file: &file, at: 0 }, count: &came });
        let decoder = compression.decode(input).map_err(io_error("read", path))?;
        let checked = Checked { stream: decoder, what: &what, limits, came: &came, len: 0 };
        Self::spool(checked, what.clone(), staging, limits, progress)
    }

    /// Keeps a stream in a file that has no name.
    pub(super) fn spool(
        stream: impl Read,
        what: String,
        staging: &Path,
        limits: Limits,
        progress: &Progress,
    ) -> ImageResult<Self> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(CWD, staging, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|err| io_error("write to", staging)(err.into()))?;
        let mut file = BufWriter::with_capacity(SPOOLED, File::from(file));
        let mut stream =
            Watched { stream, progress }.take(limits.bytes.min(limits.room).saturating_add(1));
        let copied = io::copy(&mut stream, &mut file);
        let file =
            file.into_inner().map_err(|err| io_error("write to", staging)(err.into_error()))?;
        let copied = copied.map_err(|err| {
            carried(err).unwrap_or_else(|err| match err.kind() {
                io::ErrorKind::StorageFull => io_error("write to", staging)(err),
                _ => ImageError::damaged(&*what, err),
            })
        })?;
        limits.check(&what, copied, copied)?;
        Self::index(file, what)
    }

    fn index(file: File, what: String) -> ImageResult<Self> {
        let mut files = HashMap::new();
        let mut archive = TarReader::new(BufReader::new(At { file: &file, at: 0 }));
        loop {
            let entry = match archive.next() {
                Err(TarError::Damaged(_) | TarError::CutShort) if files.is_empty() => {
                    let reason = "it is no archive".to_owned();
                    let source_text = what.trim_matches('`').to_owned();
                    return Err(ImageError::Source { source_text, reason });
                }
                entry => entry.map_err(tar_error(&what))?,
            };
            let Some(entry) = entry else { break };
            if entry.path.len() + entry.link.len() > NAMES_MAX {
                continue;
            }
            let Ok(name) = String::from_utf8(entry.path) else { continue };
            let name = name.trim_start_matches("./").trim_end_matches('/').to_owned();
            let link = String::from_utf8_lossy(&entry.link).into_owned();
            let place = match entry.kind {
                EntryKind::File => {
                    Place::File { at: archive.position(), len_bytes: entry.len_bytes }
                }
                EntryKind::Symlink => Place::Link(beside(&name, &link)),
                EntryKind::HardLink => Place::Link(link),
                _ => continue,
            };
            files.insert(name, place);
            if files.len() > FILES_MAX {
                break;
            }
            archive.skip().map_err(tar_error(&what))?;
        }
        Ok(Self { what, file, files })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// Whether something is called so, or lies below a directory that is.
    pub(super) fn holds(&self, name: &str) -> bool {
        let below = format!("{name}/");
        self.files
            .keys()
            .map(|key| key.trim_start_matches('/'))
            .any(|key| key == name || key.starts_with(&below))
    }

    pub(super) fn len_bytes(&self) -> Option<u64> {
        self.file.metadata().ok().map(|metadata| metadata.len())
    }

    fn find(&self, name: &str) -> Option<(u64, u64)> {
        let mut name = name;
        for _ in 0..LINKS_MAX {
            match self.files.get(name)? {
                Place::File { at, len_bytes } => return Some((*at, *len_bytes)),
                Place::Link(to) => name = to,
            }
        }
        None
    }

    pub(super) fn len_of(&self, name: &str) -> Option<u64> {
        self.find(name).map(|(_, len)| len)
    }
}

impl Blobs for Archive {
    fn open(&self, blob: &Blob) -> ImageResult<Box<dyn Read + Send + '_>> {
        if blob.name == WHOLE {
            return Ok(Box::new(At { file: &self.file, at: 0 }));
        }
        let missing = || ImageError::Missing { what: format!("`{}` in {}", blob.name, self.what) };
        let (at, len) = self.find(&blob.name).ok_or_else(missing)?;
        Ok(Box::new(Exactly { left: len, from: At { file: &self.file, at } }))
    }
}

/// A link's target, from the directory that the link is in.
fn beside(name: &str, link: &str) -> String {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// A file from some place on, without moving what others read from.
struct At<'a> {
    file: &'a File,
    at: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(buffer, self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl io::Seek for At<'_> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let at = match to {
            io::SeekFrom::Start(at) => Some(at),
            io::SeekFrom::Current(by) => self.at.checked_add_signed(by),
            io::SeekFrom::End(_) => None,
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// As many bytes as there must be.
struct Exactly<R> {
    from: R,
    left: u64,
}

impl<R: Read> Read for Exactly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let len = self.from.read(&mut buffer[..most])?;
        self.left -= len as u64;
        match len {
            0 if most > 0 => Err(io::Error::other("it is cut short")),
            len => Ok(len),
        }
    }
}

/// Counts what is read.
struct Metered<'a, R> {
    stream: R,
    count: &'a Cell<u64>,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.stream.read(buffer)?;
        self.count.set(self.count.get() + len as u64);
        Ok(len)
    }
}

/// Stops what gets too large by being uncompressed.
struct Checked<'a, R> {
    stream: R,
    what: &'a str,
    limits: Limits,
    came: &'a Cell<u64>,
    len: u64,
}

impl<R: Read> Read for Checked<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.stream.read(buffer)?;
        self.len += len as u64;
        self.limits.check(self.what, self.len, self.came.get()).map_err(carry)?;
        Ok(len)
    }
}

/// Lets somebody see how much has come, and stop it.
struct Watched<'a, R> {
    stream: R,
    progress: &'a Progress,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.stream.read(buffer)?;
        self.progress.passed(len as u64).map_err(carry)?;
        Ok(len)
    }
}
