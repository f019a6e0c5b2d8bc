//! What a name means where several layers have it.

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString},
};

use rustix::fs::{AtFlags, FileType, statat};

use super::{
    LayerResult,
    cursor::{DirCursor, names},
    error::{At as _, During as _, Fault},
    marks::is_whiteout,
};

/// What a name stands for.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) kind: Kind,
    /// The layers that have it, the top first. Only a directory is in several.
    pub(super) parts: Vec<usize>,
    /// A lower layer has something else under this name, which ends the directory there.
    pub(super) ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Whiteout,
    Directory,
    Other,
}

impl Found {
    /// Layers further down have no say.
    pub(super) fn is_decided(&self) -> bool {
        self.kind != Kind::Directory || self.ended
    }
}

/// All names in a directory that `parts` of the cursors stand in.
pub(super) fn look(
    cursors: &[DirCursor],
    parts: impl Iterator<Item = usize>,
) -> LayerResult<BTreeMap<CString, Found>> {
    let mut all: BTreeMap<CString, Option<Found>> = BTreeMap::new();
    for part in parts {
        let cursor = &cursors[part];
        for (name, kind) in names(cursor.fd()).at(|| cursor.path())? {
            if let Some(kind) = kind_of(cursor, &name, kind).at(|| cursor.path_of(&name))? {
                see(all.entry(name).or_default(), part, kind);
            }
        }
    }
    Ok(all.into_iter().filter_map(|(name, found)| Some((name, found?))).collect())
}

/// The upper layer wins, but a directory goes on in the layers below until something ends it.
pub(super) fn see(found: &mut Option<Found>, part: usize, kind: Kind) {
    match found {
        None => *found = Some(Found { kind, parts: vec![part], ended: false }),
        Some(found) if found.is_decided() => {}
        Some(found) if kind == Kind::Directory => found.parts.push(part),
        Some(found) => found.ended = true,
    }
}

/// `None` for what went away since it was listed.
pub(super) fn kind_of(
    cursor: &DirCursor,
    name: &CStr,
    listed: FileType,
) -> Result<Option<Kind>, Fault> {
    match listed {
        FileType::Directory => Ok(Some(Kind::Directory)),
        FileType::CharacterDevice | FileType::Unknown => {
            let stat = match statat(cursor.fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(rustix::io::Errno::NOENT) => return Ok(None),
                result => result.during("inspect")?,
            };
            Ok(Some(match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => Kind::Directory,
                _ if is_whiteout(&stat) => Kind::Whiteout,
                _ => Kind::Other,
            }))
        }
        _ => Ok(Some(Kind::Other)),
    }
}
