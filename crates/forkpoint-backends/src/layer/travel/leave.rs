//! A chain of layers as one tree of changes, entry by entry.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{CStr, CString, OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
    sync::Arc,
    vec,
};

use bytes::Bytes;
use forkpoint_core::{
    part::{EntryMeta, EntryStream, TreeEntry, TreeNode},
    path::SandboxPath,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fstat, major, minor, openat, readlinkat, statat,
};

use super::{
    super::{
        Fate, Layer, LayerResult, Marks,
        attributes::{OF_THE_MACHINE, all_attributes},
        copy::allocated,
        cursor::{DirCursor, FileId},
        error::{At as _, During as _, Fault},
        merged::{Found, Kind, look},
        site::file_id,
        store::open_path,
    },
    COPIED_UP,
    content::{Content, whole},
    keeps_owners,
};

/// Descriptors of ancestors that all layers together keep open.
const KEEP_ALL: usize = 256;

/// Up to this a file is read when it is met: asking again costs more.
const SMALL: u64 = 32 << 10;

/// So many entries, or so many bytes of files, are looked up at a time.
const BATCH: usize = 128;
const BATCH_BYTES: u64 = 1 << 20;

const TOO_LONG: &str = "its path is longer than 4096 bytes, and no part can hold that";
const TOO_FAR: &str = "its date is one that no part can hold";

/// What layers change, all of them together: parents first, names in order.
pub struct Departure {
    layers: Vec<DirCursor>,
    trees: Vec<Arc<OwnedFd>>,
    marks: Marks,
    way: Vec<Leaving>,
    /// Of the directory that is being listed.
    path: PathBuf,
    begun: bool,
    /// Where an inode with several names was met first.
    met: HashMap<FileId, SandboxPath>,
}

/// A directory that is being listed.
struct Leaving {
    parts: Vec<usize>,
    /// What lies below all layers is hidden here anyway.
    hidden: bool,
    names: vec::IntoIter<(CString, Found)>,
}

impl Departure {
    /// Of `layers`, the top first. Nothing may change in them.
    pub fn new(layers: &[Layer]) -> LayerResult<Self> {
        let marks = layers.first().map_or(Marks::Plain, |layer| layer.record().marks);
        let keep = KEEP_ALL / layers.len().max(1);
        let (mut cursors, mut trees) = (Vec::new(), Vec::new());
        for layer in layers {
            super::super::flatten::expect(layer, marks)?;
            let path = layer.tree_path();
            trees.push(Arc::new(open_path(&path)?));
            cursors.push(DirCursor::new(path.clone(), open_path(&path)?, keep));
        }
        let (way, path) = (Vec::new(), PathBuf::from("/"));
        Ok(Self { layers: cursors, trees, marks, way, path, begun: false, met: HashMap::new() })
    }

    /// Looked up on threads that may block, a few at a time, when somebody asks.
    pub fn stream(self) -> EntryStream {
        let batches = stream::try_unfold(self, |mut departure| async {
            let next = move || {
                let batch = departure.batch().map_err(io::Error::other)?;
                Ok::<_, io::Error>((!batch.is_empty()).then_some((batch, departure)))
            };
            tokio::task::spawn_blocking(next).await.map_err(io::Error::other)?
        });
        batches.map_ok(|batch| stream::iter(batch.into_iter().map(Ok))).try_flatten().boxed()
    }

    fn batch(&mut self) -> LayerResult<Vec<TreeEntry>> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            let Some(entry) = self.next()? else { break };
            if let TreeNode::File { len_bytes, .. } = &entry.node {
                bytes += len_bytes.min(&SMALL);
            }
            batch.push(entry);
        }
        Ok(batch)
    }

    fn next(&mut self) -> LayerResult<Option<TreeEntry>> {
        if !self.begun {
            self.begun = true;
            return self.begin();
        }
        while let Some(leaving) = self.way.last_mut() {
            let hidden = leaving.hidden;
            let Some((name, found)) = leaving.names.next() else {
                self.leave()?;
                continue;
            };
            match found.kind {
                Kind::Whiteout if hidden => {}
                Kind::Whiteout => {
                    let node = TreeNode::Whiteout;
                    return Ok(Some(TreeEntry { path: self.below(&name)?, meta: absent(), node }));
                }
                Kind::Directory => return self.enter(&name, &found, hidden).map(Some),
                Kind::Other => {
                    let part = found.parts.first().copied().unwrap_or_default();
                    let path = self.below(&name)?;
                    let entry = self.entry(part, &name, path);
                    return entry.at(|| self.layers[part].path_of(&name)).map(Some);
                }
            }
        }
        Ok(None)
    }

    fn begin(&mut self) -> LayerResult<Option<TreeEntry>> {
        let parts: Vec<usize> = (0..self.layers.len()).collect();
        self.list(parts, false)?;
        self.directory(0, false).map(Some)
    }

    fn list(&mut self, parts: Vec<usize>, hidden: bool) -> LayerResult<()> {
        let names: Vec<_> = look(&self.layers, parts.iter().copied())?.into_iter().collect();
        self.way.push(Leaving { parts, hidden, names: names.into_iter() });
        Ok(())
    }

    /// Goes into a directory in each layer down to the first in which it is opaque.
    fn enter(&mut self, name: &CStr, found: &Found, hidden: bool) -> LayerResult<TreeEntry> {
        let (mut parts, mut covered) = (Vec::new(), found.ended);
        let below = self.below(name)?;
        for part in &found.parts {
            let cursor = &mut self.layers[*part];
            cursor.enter(name).at(|| cursor.path_of(name))?;
            parts.push(*part);
            if self.marks.is_opaque(cursor.fd()).at(|| cursor.path())? {
                covered = true;
                break;
            }
        }
        self.path = below.as_path().to_owned();
        let top = parts.first().copied().unwrap_or_default();
        self.list(parts, covered || hidden)?;
        self.directory(top, covered && !hidden)
    }

    fn leave(&mut self) -> LayerResult<()> {
        let Some(left) = self.way.pop() else { return Ok(()) };
        for part in left.parts {
            let cursor = &mut self.layers[part];
            cursor.leave().at(|| cursor.path())?;
        }
        self.path.pop();
        Ok(())
    }

    fn directory(&self, part: usize, opaque: bool) -> LayerResult<TreeEntry> {
        let cursor = &self.layers[part];
        let entry = || {
            let stat = fstat(cursor.fd()).during("inspect")?;
            let meta = self.meta(&stat, cursor.fd(), None)?;
            let path = SandboxPath::new(&self.path);
            let path = path.map_err(|_| Fault::Unsupported { reason: TOO_LONG })?;
            Ok(TreeEntry { path, meta, node: TreeNode::Directory { opaque } })
        };
        entry().at(|| cursor.path())
    }

    fn below(&self, name: &CStr) -> LayerResult<SandboxPath> {
        let path = self.path.join(OsStr::from_bytes(name.to_bytes()));
        let plain = SandboxPath::new(&path);
        plain.map_err(|_| Fault::Unsupported { reason: TOO_LONG }).at(|| path)
    }

    fn entry(&mut self, part: usize, name: &CStr, path: SandboxPath) -> Result<TreeEntry, Fault> {
        let at = self.layers[part].fd();
        let stat = statat(at, name, AtFlags::SYMLINK_NOFOLLOW).during("inspect")?;
        let meta = self.meta(&stat, at, Some(name))?;
        if stat.st_nlink > 1 {
            if let Some(to) = self.met.get(&file_id(&stat)) {
                let node = TreeNode::HardLink { to: to.clone() };
                return Ok(TreeEntry { path, meta, node });
            }
            self.met.insert(file_id(&stat), path.clone());
        }
        let node = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.file(part, name, path.as_path(), &stat)?,
            FileType::Symlink => {
                let target = readlinkat(at, name, Vec::new()).during("read")?;
                TreeNode::Symlink { target: OsString::from_vec(target.into_bytes()).into() }
            }
            FileType::Fifo => TreeNode::Fifo,
            FileType::Socket => TreeNode::Socket,
            kind @ (FileType::CharacterDevice | FileType::BlockDevice) => TreeNode::Device {
                block: kind == FileType::BlockDevice,
                major: major(stat.st_rdev),
                minor: minor(stat.st_rdev),
            },
            FileType::Directory | FileType::Unknown => return Err(Fault::Changed),
        };
        Ok(TreeEntry { path, meta, node })
    }

    fn file(&self, part: usize, name: &CStr, path: &Path, stat: &Stat) -> Result<TreeNode, Fault> {
        let len_bytes = u64::try_from(stat.st_size).unwrap_or_default();
        let data = if len_bytes <= SMALL && allocated(stat) >= len_bytes {
            whole(read_small(self.layers[part].fd(), name, len_bytes)?)
        } else {
            let path = path.strip_prefix("/").unwrap_or(path).to_owned();
            Content::new(&self.trees[part], path, stat).stream()
        };
        Ok(TreeNode::File { len_bytes, data })
    }

    /// As it is seen inside.
    fn meta(&self, stat: &Stat, at: BorrowedFd, name: Option<&CStr>) -> Result<EntryMeta, Fault> {
        let nanoseconds = i32::try_from(stat.st_mtime_nsec).unwrap_or_default();
        let modified = Timestamp::new(stat.st_mtime, nanoseconds);
        let modified = modified.map_err(|_| Fault::Unsupported { reason: TOO_FAR })?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let mut xattrs = BTreeMap::new();
        for (attribute, value) in all_attributes(at, name).during("read attributes of")? {
            let attribute = attribute.to_bytes();
            match self.marks.fate(attribute) {
                // What the machine's own policy gave means nothing on another.
                Fate::Kept if OF_THE_MACHINE.contains(&attribute) => {}
                Fate::Kept => {
                    let shown = OsString::from_vec(self.marks.shown(attribute));
                    xattrs.insert(shown, Bytes::from(value));
                }
                Fate::Emptied if is_file => {
                    xattrs.insert(COPIED_UP.into(), Bytes::new());
                }
                Fate::Emptied | Fate::Dropped => {}
                Fate::Refused => {
                    return Err(Fault::Unsupported {
                        reason: "overlayfs keeps part of it elsewhere (`redirect_dir`, `metacopy`)",
                    });
                }
            }
        }
        let (uid, gid) = owner(stat);
        Ok(EntryMeta { mode: stat.st_mode & 0o7777, uid, gid, modified, xattrs })
    }
}

impl std::fmt::Debug for Departure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Departure").field("path", &self.path).finish_non_exhaustive()
    }
}

fn owner(stat: &Stat) -> (u32, u32) {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    match keeps_owners() {
        true => (stat.st_uid, stat.st_gid),
        false => {
            let shown = |id: u32, own: u32| if id == own { 0 } else { id };
            (shown(stat.st_uid, uid.as_raw()), shown(stat.st_gid, gid.as_raw()))
        }
    }
}

fn absent() -> EntryMeta {
    let (modified, xattrs) = (Timestamp::UNIX_EPOCH, BTreeMap::new());
    EntryMeta { mode: 0, uid: 0, gid: 0, modified, xattrs }
}

fn read_small(at: BorrowedFd, name: &CStr, len: u64) -> Result<Bytes, Fault> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(at, name, flags, Mode::empty()).during("read")?);
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or_default());
    file.take(len + 1).read_to_end(&mut bytes).during("read")?;
    if bytes.len() as u64 == len { Ok(bytes.into()) } else { Err(Fault::Changed) }
}
