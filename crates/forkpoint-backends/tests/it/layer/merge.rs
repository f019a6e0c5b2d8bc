//! What overlayfs would show, worked out without it: for those who may not mount, and held against
//! the real mount where we may.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use super::view::{self, View};

/// `marks` is `trusted.overlay.` or `user.overlay.`; the lowers come the top first.
pub(crate) fn merge(lowers: &[PathBuf], marks: &str) -> View {
    let mut view = View::new();
    let mut inodes = BTreeMap::new();
    let mut pending = vec![(PathBuf::new(), lowers.to_vec())];
    while let Some((path, parts)) = pending.pop() {
        show(&mut view, &mut inodes, &path, &parts[0], marks);
        for (name, parts) in children(&parts, marks) {
            let below = path.join(&name);
            if fs::symlink_metadata(&parts[0]).unwrap().is_dir() {
                pending.push((below, parts));
            } else {
                show(&mut view, &mut inodes, &below, &parts[0], marks);
            }
        }
    }
    let mut first = HashMap::new();
    for (path, inode) in inodes {
        let name = first.entry(inode).or_insert_with(|| path.clone()).clone();
        view.get_mut(&path).unwrap().first_name = Some(name);
    }
    view
}

type Inodes = BTreeMap<PathBuf, (u64, u64)>;

fn show(view: &mut View, inodes: &mut Inodes, path: &Path, full: &Path, marks: &str) {
    let meta = fs::symlink_metadata(full).unwrap();
    if !meta.is_dir() {
        inodes.insert(path.to_owned(), (meta.dev(), meta.ino()));
    }
    view.insert(path.to_owned(), view::node(full, &meta, marks));
}

fn children(parts: &[PathBuf], marks: &str) -> BTreeMap<std::ffi::OsString, Vec<PathBuf>> {
    let mut found: BTreeMap<_, (bool, Vec<PathBuf>)> = BTreeMap::new();
    for part in parts {
        for entry in fs::read_dir(part).unwrap() {
            let entry = entry.unwrap();
            let meta = fs::symlink_metadata(entry.path()).unwrap();
            let (done, paths) = found.entry(entry.file_name()).or_default();
            let first = paths.is_empty();
            if *done || (!first && !meta.is_dir()) || is_whiteout(&meta) {
                *done = true;
                continue;
            }
            paths.push(entry.path());
            *done = !meta.is_dir() || is_opaque(&entry.path(), marks);
        }
    }
    found
        .into_iter()
        .map(|(name, (_, paths))| (name, paths))
        .filter(|(_, paths)| !paths.is_empty())
        .collect()
}

pub(crate) fn is_whiteout(meta: &fs::Metadata) -> bool {
    meta.file_type().is_char_device() && meta.rdev() == 0
}

pub(crate) fn is_opaque(path: &Path, marks: &str) -> bool {
    let mut value = [0; 4];
    rustix::fs::lgetxattr(path, format!("{marks}opaque"), &mut value)
        .is_ok_and(|len| &value[..len] == b"y")
}
