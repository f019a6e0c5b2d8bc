//! Everything about a tree that a layer must keep, to be compared.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
    fs,
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

pub(crate) type View = BTreeMap<PathBuf, Node>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: (i64, i64),
    pub(crate) rdev: u64,
    pub(crate) content: Vec<u8>,
    pub(crate) attributes: BTreeMap<OsString, Vec<u8>>,
    /// The first path of the same inode.
    pub(crate) first_name: Option<PathBuf>,
}

/// `hidden` are attributes that the reader of a mount does not see.
pub(crate) fn read(root: &Path, hidden: &str) -> View {
    let mut view = View::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        let full = root.join(&path);
        // The root itself may be a magic link to a mount.
        let full = if path.as_os_str().is_empty() { root.join(".") } else { full };
        let meta = fs::symlink_metadata(&full).unwrap_or_else(|err| panic!("{full:?}: {err}"));
        if meta.is_dir() {
            let below = fs::read_dir(&full).unwrap();
            pending.extend(below.map(|entry| path.join(entry.unwrap().file_name())));
        }
        let node = node(&full, &meta, hidden);
        view.insert(path, node);
    }
    link_groups(root, &mut view);
    view
}

pub(crate) fn node(full: &Path, meta: &fs::Metadata, hidden: &str) -> Node {
    let kind = meta.file_type();
    let content = if kind.is_file() {
        fs::read(full).unwrap()
    } else if kind.is_symlink() {
        fs::read_link(full).unwrap().into_os_string().into_vec()
    } else {
        Vec::new()
    };
    let device = kind.is_char_device() || kind.is_block_device();
    Node {
        mode: meta.mode(),
        owner: (meta.uid(), meta.gid()),
        mtime: (meta.mtime(), meta.mtime_nsec()),
        rdev: if device { meta.rdev() } else { 0 },
        content,
        attributes: attributes(full, hidden),
        first_name: None,
    }
}

fn link_groups(root: &Path, view: &mut View) {
    let mut first = HashMap::new();
    for (path, node) in view.iter_mut() {
        let meta = fs::symlink_metadata(root.join(path)).unwrap();
        if !meta.is_dir() {
            let key = (meta.dev(), meta.ino());
            node.first_name = Some(first.entry(key).or_insert_with(|| path.clone()).clone());
        }
    }
}

fn attributes(full: &Path, hidden: &str) -> BTreeMap<OsString, Vec<u8>> {
    let mut list = vec![0; 65536];
    let len = rustix::fs::llistxattr(full, &mut list[..]).unwrap();
    let names = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .filter(|name| hidden.is_empty() || !name.starts_with(hidden.as_bytes()))
        .map(|name| {
            let mut value = vec![0; 65536];
            let len = rustix::fs::lgetxattr(full, name, &mut value[..]).unwrap();
            (std::ffi::OsStr::from_bytes(name).to_owned(), value[..len].to_vec())
        })
        .collect()
}

pub(crate) fn assert_same(expected: &View, found: &View, what: &str) {
    for (path, node) in expected {
        assert_eq!(Some(node), found.get(path), "{what}: {path:?}");
    }
    let more: Vec<_> = found.keys().filter(|path| !expected.contains_key(*path)).collect();
    assert!(more.is_empty(), "{what}: {more:?} should not be there");
}
