//! Whether a tree is still what it was, without copying anything. A doubt is a no.

use std::{ffi::CStr, os::fd::AsFd, path::Path};

use rustix::fs::{Stat, flistxattr, fstat};

use super::{
    Layer, LayerResult, LayerStore, Manifest,
    attributes::OF_THE_MACHINE,
    cursor::{DirCursor, KEEP, names},
    error::{At as _, During as _, Fault},
    marks::{Fate, Marks},
    plan::Plan,
    store::open_path,
    tree::Tree,
};

/// Longer lists of attributes are a doubt.
const LIST_MAX: usize = 1024;

impl LayerStore {
    /// Whether the upper directory is what `manifest` says, which was made with `layer`. Nothing may
    /// write to it meanwhile.
    pub fn is_as_captured(
        &self,
        upper: &Path,
        manifest: &Manifest,
        layer: &Layer,
    ) -> LayerResult<bool> {
        // A manifest tells of what is in the root, and not of the root itself.
        if !self.looks_like(upper, &layer.root_path())? {
            return Ok(false);
        }
        let mut cursor = DirCursor::new(upper.to_owned(), open_path(upper)?, KEEP);
        let mut now = Tree::scan(&mut cursor, self.marks())?;
        if !rustix::process::geteuid().is_root() {
            // There is one owner. Whoever made the manifest may have been inside, where it is root.
            now.belong_as(manifest.tree());
        }
        Ok(Plan::new(Some(manifest.tree()), &now).is_empty())
    }

    /// Whether a directory holds nothing but these names, and is otherwise as another one.
    pub fn is_bare(&self, directory: &Path, like: &Path, but: &[&Path]) -> LayerResult<bool> {
        let fd = open_path(directory)?;
        let held = names(fd.as_fd()).at(|| directory.to_owned())?;
        let known = |name: &CStr| {
            but.iter().any(|but| but.as_os_str().as_encoded_bytes() == name.to_bytes())
        };
        Ok(held.iter().all(|(name, _)| known(name)) && self.looks_like(directory, like)?)
    }

    fn looks_like(&self, directory: &Path, like: &Path) -> LayerResult<bool> {
        let (one, other) = (open_path(directory)?, open_path(like)?);
        let same = || -> Result<bool, Fault> {
            let facts = |stat: &Stat| (stat.st_mode, stat.st_mtime, stat.st_mtime_nsec);
            let owner = |stat: &Stat| (stat.st_uid, stat.st_gid);
            let (here, there) = (fstat(&one).during("inspect")?, fstat(&other).during("inspect")?);
            // Without root there is one owner, and nobody can make it another.
            let is_root = rustix::process::geteuid().is_root();
            Ok(facts(&here) == facts(&there)
                && (!is_root || owner(&here) == owner(&there))
                && is_plain(&one, self.marks())?
                && is_plain(&other, self.marks())?)
        };
        same().at(|| directory.to_owned())
    }
}

/// Whether it has no attributes that anybody inside can have given it.
fn is_plain(directory: impl AsFd, marks: Marks) -> Result<bool, Fault> {
    let mut buffer = [0; LIST_MAX];
    let len = match flistxattr(directory, &mut buffer) {
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(rustix::io::Errno::RANGE) => return Ok(false),
        result => result.during("list attributes of")?,
    };
    let listed = buffer[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(listed
        .filter(|name| !OF_THE_MACHINE.contains(name))
        .all(|name| matches!(marks.fate(name), Fate::Dropped | Fate::Emptied)))
}
