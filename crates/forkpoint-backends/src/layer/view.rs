//! What overlayfs would show of a chain of layers, without mounting it.
//!
//! A view is made of mounts, as a sandbox's root is: each has levels, the top first, and hides what
//! the others have where it lies. Nothing here follows a symbolic link or enters a mount of the
//! machine, so no tree leads outside, and nothing waits for a FIFO. What a running sandbox does
//! meanwhile is seen or not; what went away between two looks was not there.

use std::{
    ffi::{CStr, CString, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Component, Path, PathBuf},
};

use forkpoint_core::driver::{FileFacts, FileKind};
use jiff::Timestamp;
use rustix::{
    fs::{FileType, Stat, fstat},
    io::Errno,
};

use super::{
    LayerError, LayerResult, Marks,
    cursor::{FileId, open_directory},
    error::{At as _, During as _},
    store::open_path,
};

mod walker;

pub(super) use walker::{Seen, Walker};

/// An overlay: at a path from the root of the view, empty for the root itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewMount {
    pub at: PathBuf,
    /// The top first.
    pub levels: Vec<ViewLevel>,
}

/// The directory `below` of `root`. `root` is trusted and must be there. `below` is not trusted: no
/// link in it is followed, and where it leads to no directory there is no such level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewLevel {
    pub root: PathBuf,
    pub below: PathBuf,
}

impl ViewMount {
    /// What `trees` have at `at`, over `bottoms`.
    #[must_use]
    pub fn new(at: &Path, trees: &[PathBuf], bottoms: &[PathBuf]) -> Self {
        let level = |below: &Path| {
            let below = below.to_owned();
            move |root: &PathBuf| ViewLevel { root: root.clone(), below: below.clone() }
        };
        let bottoms = bottoms.iter().map(level(Path::new("")));
        Self { at: at.to_owned(), levels: trees.iter().map(level(at)).chain(bottoms).collect() }
    }
}

/// What is known of an entry, and of the inode behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewFacts {
    pub facts: FileFacts,
    /// Device and number of the inode that is shown.
    pub inode: (u64, u64),
    /// Which mount shows it, and which of the levels of that one, as they were given: those that
    /// were not there are not counted.
    pub mount: usize,
    pub level: usize,
}

/// Holds every level open: one that is moved or thrown away stays what it is.
#[derive(Debug)]
pub struct LayerView {
    marks: Marks,
    mounts: Vec<Mount>,
}

#[derive(Debug)]
struct Mount {
    at: Vec<CString>,
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    path: PathBuf,
    fd: OwnedFd,
    id: FileId,
}

impl LayerView {
    pub fn open(mounts: &[ViewMount], marks: Marks) -> LayerResult<Self> {
        let mounts = mounts.iter().map(Mount::open).collect::<LayerResult<Vec<_>>>()?;
        Ok(Self { marks, mounts })
    }

    /// What a directory shows, as a view of its own; `None` where there is no directory. What hides a
    /// level on the way there, as a whiteout does, hides it in this view too.
    pub fn below(&self, directory: &Path) -> LayerResult<Option<Self>> {
        let mut walker = Walker::new(self, 0)?;
        for name in components(directory)? {
            match walker.find(&name)? {
                Some(seen) if seen.is_dir() => walker.enter(&name, &seen)?,
                _ => return Ok(None),
            }
        }
        let mount = Mount { at: Vec::new(), levels: walker.levels()? };
        Ok(Some(Self { marks: self.marks, mounts: vec![mount] }))
    }

    /// What is at a path; `None` for nothing. A path may begin with a slash, and goes up nowhere.
    pub fn entry(&self, path: &Path) -> LayerResult<Option<ViewFacts>> {
        let mut walker = Walker::new(self, 0)?;
        let Some(name) = walk_to_parent(&mut walker, path)? else {
            return Ok(Some(walker.root_facts()?));
        };
        match name {
            Some(name) => Ok(walker.find(&name)?.map(|seen| seen.facts)),
            None => Ok(None),
        }
    }

    /// A directory's own entries, in order of name.
    pub fn entries(&self, directory: &Path) -> LayerResult<Vec<(OsString, ViewFacts)>> {
        let mut walker = Walker::new(self, 0)?;
        for name in components(directory)? {
            match walker.find(&name)? {
                Some(seen) if seen.is_dir() => walker.enter(&name, &seen)?,
                found => return Err(no_directory(directory, found.is_some())),
            }
        }
        let entries = walker.list()?.into_iter();
        Ok(entries
            .map(|(name, seen)| (OsString::from_vec(name.into_bytes()), seen.facts))
            .collect())
    }

    /// A regular file, to be read.
    pub fn open_file(&self, path: &Path) -> LayerResult<File> {
        let (walker, name, seen) = self.stand_before(path)?;
        walker.open_file(&name, &seen)
    }

    pub fn read_link(&self, path: &Path) -> LayerResult<PathBuf> {
        let (walker, name, seen) = self.stand_before(path)?;
        walker.read_link(&name, &seen)
    }

    /// In the directory of something that is there and is not the root.
    fn stand_before(&self, path: &Path) -> LayerResult<(Walker<'_>, CString, Seen)> {
        let mut walker = Walker::new(self, 0)?;
        let Some(name) = walk_to_parent(&mut walker, path)? else {
            return Err(io_error("open", path, Errno::ISDIR.into()));
        };
        let found = match &name {
            Some(name) => walker.find(name)?,
            None => None,
        };
        match (name, found) {
            (Some(name), Some(seen)) => Ok((walker, name, seen)),
            _ => Err(no_directory(path, false)),
        }
    }
}

/// The last name of the path, for a walker that stands where it is looked for; `Some(None)` when
/// the way there does not exist, and `None` when the path is the root.
fn walk_to_parent(walker: &mut Walker, path: &Path) -> LayerResult<Option<Option<CString>>> {
    let mut names = components(path)?;
    let Some(last) = names.pop() else { return Ok(None) };
    for name in names {
        match walker.find(&name)? {
            Some(seen) if seen.is_dir() => walker.enter(&name, &seen)?,
            _ => return Ok(Some(None)),
        }
    }
    Ok(Some(Some(last)))
}

fn components(path: &Path) -> LayerResult<Vec<CString>> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => {
                let name = CString::new(name.as_bytes());
                names.push(name.map_err(|err| io_error("look up", path, err.into()))?);
            }
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(refused("look up", path, "it goes up with `..`"));
            }
        }
    }
    Ok(names)
}

fn io_error(operation: &'static str, path: &Path, source: io::Error) -> LayerError {
    LayerError::Io { operation, path: path.to_owned(), source }
}

fn refused(operation: &'static str, path: &Path, why: &str) -> LayerError {
    io_error(operation, path, io::Error::new(io::ErrorKind::InvalidInput, why))
}

fn no_directory(path: &Path, is_there: bool) -> LayerError {
    let errno = if is_there { Errno::NOTDIR } else { Errno::NOENT };
    io_error("open", path, errno.into())
}

impl Mount {
    fn open(spec: &ViewMount) -> LayerResult<Self> {
        let at = components(&spec.at)?;
        let mut levels = Vec::new();
        for level in &spec.levels {
            levels.extend(Level::open(level)?);
        }
        Ok(Self { at, levels })
    }
}

impl Level {
    fn open(spec: &ViewLevel) -> LayerResult<Option<Self>> {
        let path = spec.root.join(&spec.below);
        let mut fd = open_path(&spec.root)?;
        for name in components(&spec.below)? {
            fd = match open_directory(&fd, &name) {
                Err(err) if leads_nowhere(&err) => return Ok(None),
                result => result.during("open").at(|| path.clone())?,
            };
        }
        let stat = fstat(&fd).during("inspect").at(|| path.clone())?;
        Ok(Some(Self { path, fd, id: (stat.st_dev, stat.st_ino) }))
    }

    /// A descriptor of its own, since listing moves the place that a descriptor is at.
    fn reopen(&self) -> LayerResult<OwnedFd> {
        open_directory(self.fd.as_fd(), c".").during("open").at(|| self.path.clone())
    }
}

/// Nothing there, something else, or a mount of the machine, which an overlay does not show.
fn leads_nowhere(err: &io::Error) -> bool {
    let nowhere = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::XDEV];
    nowhere.iter().any(|errno| err.raw_os_error() == Some(errno.raw_os_error()))
}

fn facts(stat: &Stat, mount: usize, level: usize) -> ViewFacts {
    ViewFacts { facts: facts_of(stat), inode: (stat.st_dev, stat.st_ino), mount, level }
}

pub(super) fn facts_of(stat: &Stat) -> FileFacts {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::Socket | FileType::Unknown => FileKind::Socket,
    };
    let has_length = matches!(kind, FileKind::File | FileKind::Symlink);
    let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
    let nanoseconds = i32::try_from(stat.st_mtime_nsec).unwrap_or_default();
    FileFacts {
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        len_bytes: if has_length { u64::try_from(stat.st_size).unwrap_or_default() } else { 0 },
        modified: Timestamp::new(stat.st_mtime, nanoseconds).unwrap_or_default(),
        device: if is_device { stat.st_rdev } else { 0 },
    }
}

fn starts_with(names: &[CString], name: &CStr, depth: usize) -> bool {
    names.get(depth).is_some_and(|there| there.as_c_str() == name)
}
