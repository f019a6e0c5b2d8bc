//! A tree of a stranger's becomes a layer.
//!
//! Every name is looked up from the layer's root without following a symbolic link, and whatever would have to be
//! followed is refused. Nothing is replaced: what comes twice is refused as well. Nobody sees any of it before
//! its stage is committed.

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString},
    fs::File,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{FileExt as _, MetadataExt as _},
        },
    },
};

use forkpoint_core::{
    part::{EntryMeta, Extent, TreeEntry, TreeNode},
    path::SandboxPath,
};
use futures::stream::BoxStream;
use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, linkat, makedev, mkdirat, mknodat, openat, statat,
        symlinkat,
    },
    io::Errno,
};

use super::super::{
    LayerError, LayerResult, LayerSize, Marks,
    attributes::Place,
    cursor::open_below,
    error::Fault,
    marks::{is_whiteout, put_whiteout},
    stage::Stage,
    store::open_path,
};

mod describe;

/// What is remembered of directories until the tree is complete.
const REMEMBERED_MAX: usize = 256 << 20;

/// What the kernel takes as one name.
const NAME_MAX: usize = 255;

pub(super) type Data = BoxStream<'static, io::Result<Extent>>;

/// Gets what comes next of a file, and waits for it.
pub(super) type Pull<'a> = &'a mut dyn FnMut(&mut Data) -> io::Result<Option<Extent>>;

/// A tree on its way into a stage.
#[derive(Debug)]
pub struct Arrival {
    root: OwnedFd,
    marks: Marks,
    keeps_owners: bool,
    directories: BTreeMap<Vec<u8>, Later>,
    remembered: usize,
    /// Where the last entry went: trees are in order.
    parent: Option<(Vec<u8>, OwnedFd)>,
    size: LayerSize,
}

/// A directory's attributes are set last: they could lock us out, be inherited, and its times change with
/// every entry.
#[derive(Debug)]
enum Later {
    Told(EntryMeta),
    /// Something is in it, and nothing was said of it.
    Implied,
}

/// Why an entry cannot be had; which one is known to the caller.
pub(super) enum Bad {
    Refused(String),
    Io(&'static str, io::Error),
    Layer(Fault),
}

impl From<Fault> for Bad {
    fn from(fault: Fault) -> Self {
        Self::Layer(fault)
    }
}

fn refused<T>(reason: impl Into<String>) -> Result<T, Bad> {
    Err(Bad::Refused(reason.into()))
}

pub(super) trait During<T> {
    fn during(self, operation: &'static str) -> Result<T, Bad>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, operation: &'static str) -> Result<T, Bad> {
        self.map_err(|err| Bad::Io(operation, err.into()))
    }
}

impl Stage {
    /// Fills the tree from elsewhere. [`Arrival::finish`] tells how much came.
    pub fn arrive(&self) -> LayerResult<Arrival> {
        Ok(Arrival {
            root: open_path(&self.tree_path())?,
            marks: self.marks(),
            keeps_owners: super::keeps_owners(),
            directories: BTreeMap::from([(Vec::new(), Later::Implied)]),
            remembered: 0,
            parent: None,
            size: LayerSize::default(),
        })
    }
}

impl Arrival {
    /// After a failure the stage is of no use.
    pub fn add(&mut self, entry: TreeEntry, pull: Pull) -> LayerResult<()> {
        let TreeEntry { path, meta, node } = entry;
        self.try_add(&path, &meta, node, pull).map_err(|bad| told(&path, bad))
    }

    fn try_add(
        &mut self,
        path: &SandboxPath,
        meta: &EntryMeta,
        node: TreeNode,
        pull: Pull,
    ) -> Result<(), Bad> {
        check(meta)?;
        let name = Name::new(path)?;
        let Some(name) = name else { return self.add_root(meta, &node) };
        let parent = self.parent(&name)?;
        let added = self.put(&name, &parent, meta, node, pull);
        self.parent = Some((name.parent.to_vec(), parent));
        added
    }

    fn add_root(&mut self, meta: &EntryMeta, node: &TreeNode) -> Result<(), Bad> {
        match node {
            TreeNode::Directory { opaque: false } => self.tell(b"", meta),
            // overlayfs does not look for the mark on the root of a layer.
            TreeNode::Directory { opaque: true } => refused("the root hides all that lies below"),
            _ => refused("the root is no directory"),
        }
    }

    fn put(
        &mut self,
        name: &Name,
        parent: &OwnedFd,
        meta: &EntryMeta,
        node: TreeNode,
        pull: Pull,
    ) -> Result<(), Bad> {
        let at = name.last.as_c_str();
        match node {
            TreeNode::Directory { opaque } => {
                return self.put_directory(name, parent, meta, opaque);
            }
            TreeNode::Whiteout => return self.put_whiteout(parent, at),
            TreeNode::HardLink { to } => self.link(&to, parent, at)?,
            TreeNode::File { len_bytes, mut data } => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                let mode = Mode::RUSR | Mode::WUSR;
                let made = made(openat(parent, at, flags | OFlags::CLOEXEC, mode))?;
                let file = File::from(made);
                write(&file, len_bytes, || pull(&mut data))?;
                self.describe(meta, Place::Open(file.as_fd()), FileType::RegularFile)?;
                self.size.bytes += file.metadata().during("inspect")?.blocks() * 512;
            }
            TreeNode::Symlink { target } => {
                let target = target.as_os_str().as_bytes();
                if target.is_empty() || target.contains(&0) {
                    return refused("it is a link that leads to no name");
                }
                made(symlinkat(target, parent, at))?;
                self.describe(meta, Place::Named(parent.as_fd(), at), FileType::Symlink)?;
            }
            TreeNode::Fifo => self.make_node(parent, at, meta, FileType::Fifo, 0)?,
            TreeNode::Socket => self.make_node(parent, at, meta, FileType::Socket, 0)?,
            TreeNode::Device { block: false, major: 0, minor: 0 } => {
                return refused("to overlayfs this device means that something is gone");
            }
            TreeNode::Device { block, major, minor } => {
                let kind = if block { FileType::BlockDevice } else { FileType::CharacterDevice };
                self.make_node(parent, at, meta, kind, makedev(major, minor))?;
            }
        }
        self.size.files += 1;
        Ok(())
    }

    fn put_directory(
        &mut self,
        name: &Name,
        parent: &OwnedFd,
        meta: &EntryMeta,
        opaque: bool,
    ) -> Result<(), Bad> {
        if matches!(self.directories.get(name.path), Some(Later::Implied)) {
            return refused("it comes after something that is in it");
        }
        made(mkdirat(parent, name.last.as_c_str(), Mode::RWXU))?;
        if opaque {
            let directory = open_below(parent, name.last.to_bytes()).during("open")?;
            self.marks.set_opaque(&directory)?;
        }
        self.tell(name.path, meta)
    }

    fn put_whiteout(&self, parent: &OwnedFd, at: &CStr) -> Result<(), Bad> {
        match put_whiteout(parent, at) {
            Err(Fault::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
                return refused(TWICE);
            }
            put => put?,
        }
        Ok(self.marks.set_whiteouts(parent)?)
    }

    fn make_node(
        &mut self,
        parent: &OwnedFd,
        at: &CStr,
        meta: &EntryMeta,
        kind: FileType,
        device: u64,
    ) -> Result<(), Bad> {
        match mknodat(parent, at, kind, Mode::RUSR, device) {
            Err(Errno::PERM) => return refused("making a device node is not permitted here"),
            node => made(node)?,
        }
        self.describe(meta, Place::Named(parent.as_fd(), at), kind)
    }

    /// Only to what came before, by its own name, and to nothing that is a directory or an absence.
    fn link(&self, to: &SandboxPath, parent: &OwnedFd, at: &CStr) -> Result<(), Bad> {
        let missing = || Bad::Refused(format!("it is a hard link to `{to}`, which did not come"));
        let name = Name::new(to)?.ok_or_else(missing)?;
        let from = match open_below(&self.root, name.parent) {
            Err(Errno::NOENT) => return Err(missing()),
            opened => opened.map_err(explained)?,
        };
        let stat = match statat(&from, &name.last, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Err(missing()),
            stat => stat.during("inspect")?,
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory || is_whiteout(&stat) {
            return refused(format!("it is a hard link to `{to}`, which is no file"));
        }
        made(linkat(&from, &name.last, parent, at, AtFlags::empty()))
    }

    /// The directory that an entry goes to. What nobody told of is root's, and open to all.
    fn parent(&mut self, name: &Name) -> Result<OwnedFd, Bad> {
        if let Some((path, parent)) = self.parent.take()
            && path == name.parent
        {
            return Ok(parent);
        }
        match open_below(&self.root, name.parent) {
            Err(Errno::NOENT) => self.make_parents(name.parent),
            opened => opened.map_err(explained),
        }
    }

    fn make_parents(&mut self, path: &[u8]) -> Result<OwnedFd, Bad> {
        let mut directory = self.root.try_clone().during("open")?;
        let mut len = 0;
        for part in path.split(|byte| *byte == b'/') {
            len += part.len() + usize::from(len > 0);
            match mkdirat(&directory, part, Mode::RWXU) {
                Ok(()) => self.remember(&path[..len], Later::Implied)?,
                Err(Errno::EXIST) => {}
                Err(err) => return Err(err).during("create"),
            }
            directory = open_below(&directory, part).map_err(explained)?;
        }
        Ok(directory)
    }

    fn tell(&mut self, path: &[u8], meta: &EntryMeta) -> Result<(), Bad> {
        if matches!(self.directories.get(path), Some(Later::Told(_))) {
            return refused(TWICE);
        }
        self.remember(path, Later::Told(meta.clone()))
    }

    fn remember(&mut self, path: &[u8], later: Later) -> Result<(), Bad> {
        let len = |(name, value): (&std::ffi::OsString, &bytes::Bytes)| name.len() + value.len();
        let attributes: usize = match &later {
            Later::Told(meta) => meta.xattrs.iter().map(len).sum(),
            Later::Implied => 0,
        };
        self.remembered += path.len() + attributes + size_of::<Later>();
        if self.remembered > REMEMBERED_MAX {
            return refused("what is told of directories is more than 256 MiB");
        }
        self.directories.insert(path.to_vec(), later);
        Ok(())
    }
}

const TWICE: &str = "it came before";

/// Extents in order, none beyond the end, and the last one up to it.
fn write(
    file: &File,
    len_bytes: u64,
    mut next: impl FnMut() -> io::Result<Option<Extent>>,
) -> Result<(), Bad> {
    let (mut end, mut written) = (0, 0);
    while let Some(Extent { offset, bytes }) = next().during("receive")? {
        if offset < end {
            return refused("its data is out of order");
        }
        end = match offset.checked_add(bytes.len() as u64) {
            Some(end) if end <= len_bytes => end,
            _ => return refused("it has data beyond its end"),
        };
        file.write_all_at(&bytes, offset).during("write")?;
        if !bytes.is_empty() {
            written = end;
        }
    }
    if end < len_bytes {
        return refused(format!("its data are cut after {end} of {len_bytes} bytes"));
    }
    if written < len_bytes {
        file.set_len(len_bytes).during("write")?;
    }
    Ok(())
}

fn check(meta: &EntryMeta) -> Result<(), Bad> {
    if meta.mode > 0o7777 {
        return refused(format!("its mode is {:o}", meta.mode));
    }
    // To the kernel this means that the owner stays.
    if meta.uid == u32::MAX || meta.gid == u32::MAX {
        return refused("its owner is nobody that can be");
    }
    Ok(())
}

/// A path below the root of a layer.
struct Name<'a> {
    path: &'a [u8],
    /// Empty when that is the root.
    parent: &'a [u8],
    last: CString,
}

impl<'a> Name<'a> {
    /// `None` for the root itself.
    fn new(path: &'a SandboxPath) -> Result<Option<Self>, Bad> {
        let path = path.as_path().as_os_str().as_bytes();
        let path = path.strip_prefix(b"/").unwrap_or(path);
        if path.is_empty() {
            return Ok(None);
        }
        if path.split(|byte| *byte == b'/').any(|part| part.len() > NAME_MAX) {
            return refused("it has a name longer than 255 bytes");
        }
        let cut = path.iter().rposition(|byte| *byte == b'/');
        let (parent, last) = cut.map_or((&path[..0], path), |cut| (&path[..cut], &path[cut + 1..]));
        let last = CString::new(last);
        let last = last.map_err(|_| Bad::Refused("it has a name with a NUL byte".to_owned()))?;
        Ok(Some(Self { path, parent, last }))
    }
}

fn made<T>(result: rustix::io::Result<T>) -> Result<T, Bad> {
    match result {
        Err(Errno::EXIST) => refused(TWICE),
        Err(Errno::MLINK) => refused("it has more names than a file can have here"),
        result => result.during("create"),
    }
}

fn explained(err: Errno) -> Bad {
    match err {
        Errno::LOOP => Bad::Refused("a symbolic link is on the way to it".to_owned()),
        Errno::NOTDIR => Bad::Refused("what is on the way to it is no directory".to_owned()),
        err => Bad::Io("open", err.into()),
    }
}

fn told(path: &SandboxPath, bad: Bad) -> LayerError {
    let path = path.as_path().to_owned();
    match bad {
        Bad::Refused(reason) => LayerError::Refused { path, reason },
        Bad::Io(operation, source) => LayerError::Io { operation, path, source },
        Bad::Layer(fault) => fault.at(path),
    }
}
