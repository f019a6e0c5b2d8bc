//! Images on disk.

use std::{
    fmt,
    fs::{self, File},
    io::{self, IoSlice, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    ImageError, check,
    model::{Machine, Snapshot},
    seen,
};
use crate::sys::PAGE;

pub(crate) const FORMAT: u32 = 1;
const MAGIC: &str = "forkpoint-checkpoint";
const HEADER: &str = "image.json";
const PAGES: &str = "pages";
/// What an image consists of; whatever else is in its directory can go.
pub const FILES: [&str; 2] = [HEADER, PAGES];
/// A header longer than this is not read: ten thousand mappings need two megabytes.
const HEADER_MAX: u64 = 256 << 20;
const LINE_MAX: usize = 128;
/// Pages are under one checksum so many bytes at a time.
const CHUNK: usize = 256 << 10;

/// What an image is called by: the checksum of its header, which holds those of its pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageId(blake3::Hash);

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

impl fmt::Debug for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    /// What it lies over.
    parent: Option<String>,
    pages_len_bytes: u64,
    /// Of pages, [`CHUNK`] by [`CHUNK`].
    sums: Vec<String>,
    snapshot: Snapshot,
}

/// The one thing of a header that is asked for alone.
#[derive(Deserialize)]
struct HeaderOfMachine {
    snapshot: SnapshotOfMachine,
}

#[derive(Deserialize)]
struct SnapshotOfMachine {
    machine: Machine,
}

/// Where an image was captured. Nothing else of it is looked at, which takes a fraction of the time.
pub fn machine(path: &Path) -> Result<Machine, ImageError> {
    read_header(path).map(|(header, _): (HeaderOfMachine, _)| header.snapshot.machine)
}

/// Where the image was captured that was asked about last, which is likely to be asked about again.
#[derive(Debug, Default)]
pub struct LastMachine(Mutex<Option<(PathBuf, Print, Machine)>>);

impl LastMachine {
    /// As [`machine`], of the file as it is now.
    pub fn of(&self, path: &Path) -> Result<Machine, ImageError> {
        let Ok(now) = print(path, HEADER) else { return machine(path) };
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, print, machine)) = &*last
            && of == path
            && *print == now
        {
            return Ok(machine.clone());
        }
        let found = machine(path)?;
        *last = Some((path.to_owned(), now, found.clone()));
        Ok(found)
    }
}

/// An image, checked.
#[derive(Debug)]
pub struct Image {
    pub path: PathBuf,
    pub id: ImageId,
    pub snapshot: Snapshot,
    pub pages_len_bytes: u64,
    pub(crate) pages: File,
    parent: Option<String>,
    sums: Vec<String>,
    /// Of both files, as they were before they were read.
    prints: [Print; 2],
}

/// What the file system says of a file: whatever changes it changes this.
type Print = (u64, u64, u64, (i64, i64), (i64, i64));

fn prints(directory: &Path) -> io::Result<[Print; 2]> {
    Ok([print(directory, HEADER)?, print(directory, PAGES)?])
}

fn print(directory: &Path, name: &str) -> io::Result<Print> {
    use std::os::unix::fs::MetadataExt as _;
    let found = fs::metadata(directory.join(name))?;
    let (modified, changed) = (found.mtime(), found.ctime());
    let modified = (modified, found.mtime_nsec());
    let changed = (changed, found.ctime_nsec());
    Ok((found.dev(), found.ino(), found.len(), modified, changed))
}

/// Writes an image as the directory `path`, which must not exist. `blocks` are its pages.
pub(crate) fn write(
    path: &Path,
    parent: Option<ImageId>,
    snapshot: &Snapshot,
    blocks: &[Vec<u8>],
    sync: bool,
) -> Result<ImageId, ImageError> {
    write_with(path, parent, snapshot, sync, |file, _| {
        write_blocks(file, blocks)?;
        let mut sums = Sums::default();
        blocks.iter().for_each(|block| sums.add(block));
        Ok(sums)
    })
}

/// `fill` writes the pages, and is told where they are until all is complete.
pub(super) fn write_with(
    path: &Path,
    parent: Option<ImageId>,
    snapshot: &Snapshot,
    sync: bool,
    fill: impl FnOnce(&mut File, &Path) -> io::Result<Sums>,
) -> Result<ImageId, ImageError> {
    let staged = staged(path);
    let result = write_staged(&staged, path, parent, snapshot, sync, fill);
    if result.is_err() {
        // What could not be made must not stay half made; that it cannot go either is no second error.
        let _ = fs::remove_dir_all(&staged);
    }
    result
}

fn staged(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".new-{}", std::process::id()));
    path.with_file_name(name)
}

fn write_staged(
    staged: &Path,
    path: &Path,
    parent: Option<ImageId>,
    snapshot: &Snapshot,
    sync: bool,
    fill: impl FnOnce(&mut File, &Path) -> io::Result<Sums>,
) -> Result<ImageId, ImageError> {
    let failed = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| ImageError::File { doing, path, source }
    };
    fs::create_dir(staged).map_err(failed("create", staged))?;
    let pages_path = staged.join(PAGES);
    let mut pages = private(&pages_path).map_err(failed("create", &pages_path))?;
    let sums = fill(&mut pages, staged).map_err(failed("write", &pages_path))?;
    let header = Header {
        parent: parent.map(|id| id.to_string()),
        pages_len_bytes: sums.len_bytes,
        sums: sums.finish(),
        snapshot: snapshot.clone(),
    };
    let header_path = staged.join(HEADER);
    let body = serde_json::to_vec(&header).map_err(io::Error::other);
    let body = body.map_err(failed("write", &header_path))?;
    let id = ImageId(blake3::hash(&body));
    let mut file = private(&header_path).map_err(failed("create", &header_path))?;
    let line = format!("{MAGIC} {FORMAT} {id}\n");
    let text = file.write_all(line.as_bytes()).and_then(|()| file.write_all(&body));
    text.map_err(failed("write", &header_path))?;
    if sync {
        pages.sync_all().map_err(failed("sync", &pages_path))?;
        file.sync_all().map_err(failed("sync", &header_path))?;
    }
    // These are the bytes that the checksums were made of.
    if let Ok(sight) = seen::Sight::of(id, &pages) {
        sight.remember(staged);
    }
    fs::rename(staged, path).map_err(failed("create", path))?;
    if sync && let Some(parent) = path.parent() {
        let directory = File::open(parent).and_then(|directory| directory.sync_all());
        directory.map_err(failed("sync", parent))?;
    }
    Ok(id)
}

/// Makes an image survive a power cut.
pub fn sync(path: &Path) -> Result<(), ImageError> {
    let parent = path.parent().unwrap_or(path);
    for path in [&path.join(PAGES), &path.join(HEADER), path, parent] {
        let synced = File::open(path).and_then(|file| file.sync_all());
        synced.map_err(|source| ImageError::File {
            doing: "sync",
            path: path.to_owned(),
            source,
        })?;
    }
    Ok(())
}

/// Memory holds secrets.
fn private(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

fn write_blocks(file: &mut File, blocks: &[Vec<u8>]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = blocks.iter().map(|block| IoSlice::new(block)).collect();
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let written = file.write_vectored(&rest[..rest.len().min(512)])?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}

/// Checksums of pages, which come in any portions.
#[derive(Debug, Default)]
pub(super) struct Sums {
    done: Vec<String>,
    hasher: blake3::Hasher,
    filled: usize,
    len_bytes: u64,
}

impl Sums {
    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        self.len_bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - self.filled));
            self.hasher.update(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == CHUNK {
                self.end_chunk();
            }
        }
    }

    fn end_chunk(&mut self) {
        self.done.push(self.hasher.finalize().to_hex().to_string());
        self.hasher.reset();
        self.filled = 0;
    }

    fn finish(mut self) -> Vec<String> {
        if self.filled > 0 {
            self.end_chunk();
        }
        self.done
    }
}

impl Image {
    /// Opens and checks everything but the contents of pages, which [`Image::check_pages`] looks at.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, ImageError> {
        let path = path.into();
        let failed = |source| ImageError::File { doing: "open", path: path.clone(), source };
        let prints = prints(&path).map_err(failed)?;
        let (header, id) = read_header::<Header>(&path)?;
        let Header { parent, pages_len_bytes, sums, snapshot } = header;
        let damaged = |why: String| ImageError::Damaged { path: path.clone(), why };
        check::snapshot(&snapshot, pages_len_bytes).map_err(damaged)?;
        let pages_path = path.join(PAGES);
        let failed = |source| ImageError::File { doing: "open", path: pages_path.clone(), source };
        let pages = File::open(&pages_path).map_err(failed)?;
        let len = pages.metadata().map_err(failed)?.len();
        if len != pages_len_bytes {
            let why = format!("`{PAGES}` has {len} bytes instead of {pages_len_bytes}");
            return Err(damaged(why));
        }
        if sums.len() as u64 != pages_len_bytes.div_ceil(CHUNK as u64) {
            return Err(damaged(format!("checksums of `{PAGES}` are missing")));
        }
        Ok(Self { id, snapshot, pages_len_bytes, pages, parent, sums, prints, path })
    }

    /// Whether its files are there and nobody touched them since.
    pub(crate) fn is_as_opened(&self) -> bool {
        prints(&self.path).is_ok_and(|prints| prints == self.prints)
    }

    /// Reads all pages and compares them with their checksums.
    pub fn check_pages(&self) -> Result<(), ImageError> {
        use std::os::unix::fs::FileExt as _;
        let mut buffer = vec![0; CHUNK];
        let path = || self.path.join(PAGES);
        for (index, sum) in self.sums.iter().enumerate() {
            let at = (index * CHUNK) as u64;
            let len = (self.pages_len_bytes - at).min(CHUNK as u64) as usize;
            let read = self.pages.read_exact_at(&mut buffer[..len], at);
            read.map_err(|source| ImageError::File { doing: "read", path: path(), source })?;
            if blake3::hash(&buffer[..len]).to_hex().as_str() != sum {
                let why = format!("bytes {at} to {} are not what was written", at + len as u64);
                return Err(ImageError::Damaged { path: path(), why });
            }
        }
        Ok(())
    }

    /// As [`Image::check_pages`], unless these very pages were compared before.
    pub fn check_pages_once(&self) -> Result<(), ImageError> {
        if seen::is_seen(&self.path, self.id, &self.pages) {
            return Ok(());
        }
        let sight = seen::Sight::of(self.id, &self.pages);
        self.check_pages()?;
        if let Ok(sight) = sight {
            sight.remember(&self.path);
        }
        Ok(())
    }

    /// Whether it lies over `parent`, or over nothing.
    pub(crate) fn check_parent(&self, parent: Option<&Self>) -> Result<(), ImageError> {
        let below = parent.map(|parent| parent.id.to_string());
        if self.parent == below {
            return Ok(());
        }
        let wanted = self.parent.clone().unwrap_or_else(|| "none".to_owned());
        Err(ImageError::OtherParent { path: self.path.clone(), wanted })
    }

    /// What it lies over.
    #[must_use]
    pub fn parent(&self) -> Option<&str> {
        self.parent.as_deref()
    }
}

fn read_header<T: DeserializeOwned>(directory: &Path) -> Result<(T, ImageId), ImageError> {
    let path = directory.join(HEADER);
    let failed = |source| ImageError::File { doing: "read", path: path.clone(), source };
    let file = File::open(&path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(HEADER_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    let foreign = |why| ImageError::Foreign { path: path.clone(), why };
    if bytes.len() as u64 > HEADER_MAX {
        return Err(foreign("it is too long"));
    }
    let end = bytes.iter().take(LINE_MAX).position(|byte| *byte == b'\n');
    let (line, body) = bytes.split_at(end.ok_or_else(|| foreign("its first line is missing"))?);
    let body = &body[1..];
    let line = std::str::from_utf8(line).map_err(|_| foreign("its first line is not text"))?;
    let mut words = line.split(' ');
    if words.next() != Some(MAGIC) {
        return Err(foreign("it does not begin as one"));
    }
    let format = words.next().and_then(|word| word.parse::<u32>().ok());
    match format.ok_or_else(|| foreign("it has no format"))? {
        FORMAT => {}
        format if format > FORMAT => return Err(ImageError::Newer { path: path.clone(), format }),
        _ => return Err(foreign("it has no format that ever was")),
    }
    let id = ImageId(blake3::hash(body));
    let damaged = |why: String| ImageError::Damaged { path: path.clone(), why };
    if words.next() != Some(id.to_string().as_str()) || words.next().is_some() {
        return Err(damaged("its checksum does not fit".to_owned()));
    }
    let header = serde_json::from_slice(body).map_err(|err| damaged(err.to_string()))?;
    Ok((header, id))
}

const _: () = assert!((CHUNK as u64).is_multiple_of(PAGE), "a page lies in one chunk");
