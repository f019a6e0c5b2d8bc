//! A directory in the form of overlayfs, as a layer that an engine takes.
//!
//! Whiteouts become names that begin with `.wh.`, as images have them. Times are told to the
//! nanosecond, and attributes all of them, which an engine's own commit does not.

use std::{
    collections::HashMap,
    ffi::CString,
    fs::{self, File},
    io::{self, Read as _, Write},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use forkpoint_core::id::SnapshotId;
use rustix::{
    fs::{lgetxattr, llistxattr, major, minor},
    io::Errno,
};

use crate::tar::{
    Entry, EntryKind, Node,
    write::{END, fill, header, header_with},
};

/// The kernel's own limit for a list and for a value.
const XATTR_MAX: usize = 64 << 10;

const OPAQUE: &str = "trusted.overlay.opaque";

/// Writes what is below `tree`. The snapshot's name in it makes the layer one of its own: an engine
/// keeps layers that are equal only once.
pub(super) fn write(tree: &Path, snapshot: SnapshotId, out: &mut impl Write) -> io::Result<()> {
    let mut writer = Writer { out, seen: HashMap::new(), buffer: vec![0; 128 << 10] };
    writer.mark(tree, snapshot)?;
    let mut pending = vec![(tree.to_owned(), PathBuf::new())];
    while let Some((directory, inner)) = pending.pop() {
        let mut names = fs::read_dir(&directory)?.collect::<io::Result<Vec<_>>>()?;
        names.sort_by_key(fs::DirEntry::file_name);
        for name in names {
            let (path, inner) = (name.path(), inner.join(name.file_name()));
            let is_dir = writer.add(&path, &inner)?;
            if is_dir {
                pending.push((path, inner));
            }
        }
    }
    writer.out.write_all(&END)
}

struct Writer<'a, W> {
    out: &'a mut W,
    /// The first name of an inode with several.
    seen: HashMap<(u64, u64), Vec<u8>>,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<'_, W> {
    fn mark(&mut self, tree: &Path, snapshot: SnapshotId) -> io::Result<()> {
        let mut entry = entry_of(&fs::symlink_metadata(tree)?, b"./");
        entry.kind = EntryKind::Directory;
        entry.attributes = attributes(tree)?;
        let own = format!("{snapshot}");
        self.out.write_all(&header_with(&entry, &[(b"FORKPOINT.snapshot", own.as_bytes())]))
    }

    /// Whether it is a directory.
    fn add(&mut self, path: &Path, inner: &Path) -> io::Result<bool> {
        let meta = fs::symlink_metadata(path)?;
        let kind = meta.file_type();
        if kind.is_char_device() && meta.rdev() == 0 {
            self.whiteout(inner)?;
            return Ok(false);
        }
        // There is no letter for it.
        if kind.is_socket() {
            return Ok(false);
        }
        let name = inner.as_os_str().as_bytes();
        let mut entry = entry_of(&meta, name);
        if !kind.is_dir() && meta.nlink() > 1 {
            if let Some(first) = self.seen.get(&(meta.dev(), meta.ino())) {
                (entry.kind, entry.link, entry.len_bytes) = (EntryKind::HardLink, first.clone(), 0);
                return self.out.write_all(&header(&entry)).map(|()| false);
            }
            self.seen.insert((meta.dev(), meta.ino()), name.to_vec());
        }
        entry.attributes = attributes(path)?;
        match kind {
            _ if kind.is_dir() => {
                entry.kind = EntryKind::Directory;
                entry.path.push(b'/');
                self.out.write_all(&header(&entry))?;
                if is_opaque(path)? {
                    self.empty(&[name, b"/.wh..wh..opq"].concat())?;
                }
            }
            _ if kind.is_file() => self.file(path, entry, meta.len())?,
            _ => {
                if kind.is_symlink() {
                    entry.link = fs::read_link(path)?.as_os_str().as_bytes().to_vec();
                }
                self.out.write_all(&header(&entry))?;
            }
        }
        Ok(kind.is_dir())
    }

    fn whiteout(&mut self, inner: &Path) -> io::Result<()> {
        let parent = inner.parent().unwrap_or(Path::new("")).as_os_str().as_bytes();
        let name = inner.file_name().unwrap_or_default().as_bytes();
        let slash: &[u8] = if parent.is_empty() { b"" } else { b"/" };
        self.empty(&[parent, slash, b".wh.", name].concat())
    }

    fn empty(&mut self, name: &[u8]) -> io::Result<()> {
        self.out.write_all(&header(&Entry::new(name.to_vec(), EntryKind::File)))
    }

    fn file(&mut self, path: &Path, mut entry: Entry, len: u64) -> io::Result<()> {
        (entry.kind, entry.len_bytes) = (EntryKind::File, len);
        self.out.write_all(&header(&entry))?;
        let mut file = File::open(path)?;
        let mut left = len;
        while left > 0 {
            let max = self.buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = file.read(&mut self.buffer[..max])?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.out.write_all(&self.buffer[..read])?;
            left -= read as u64;
        }
        self.out.write_all(&END[..fill(len)])
    }
}

fn entry_of(meta: &fs::Metadata, name: &[u8]) -> Entry {
    let kind = meta.file_type();
    let letter = match kind {
        _ if kind.is_symlink() => EntryKind::Symlink,
        _ if kind.is_fifo() => EntryKind::Fifo,
        _ if kind.is_char_device() || kind.is_block_device() => EntryKind::Device,
        _ => EntryKind::File,
    };
    let (block, device) = (kind.is_block_device(), letter == EntryKind::Device);
    let node = Node { block, major: major(meta.rdev()), minor: minor(meta.rdev()) };
    Entry {
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        modified: (meta.mtime(), u32::try_from(meta.mtime_nsec()).unwrap_or_default()),
        node: device.then_some(node),
        ..Entry::new(name.to_vec(), letter)
    }
}

fn attributes(path: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0; XATTR_MAX];
    let len = match llistxattr(path, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        result => result?,
    };
    let mut found = Vec::new();
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if name.starts_with(b"trusted.") || name == b"security.selinux" {
            continue;
        }
        let mut value = vec![0; XATTR_MAX];
        let key = CString::new(name)?;
        match lgetxattr(path, key.as_c_str(), &mut value[..]) {
            Err(Errno::NODATA) => {}
            result => {
                value.truncate(result?);
                found.push((name.to_vec(), value));
            }
        }
    }
    Ok(found)
}

fn is_opaque(path: &Path) -> io::Result<bool> {
    let mut value = [0; 8];
    match lgetxattr(path, OPAQUE, &mut value[..]) {
        Ok(len) => Ok(value[..len] == *b"y"),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(false),
        Err(err) => Err(err.into()),
    }
}
