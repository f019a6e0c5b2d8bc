//! Who works on a catalog, and whether they still do.
//!
//! Each owner holds a lock on a file of its own for as long as it lives. It is gone when its file
//! is missing or not locked. So nobody may clear the directory while owners live, and a catalog is
//! not to be shared between machines whose locks do not reach each other.
//!
//! The descriptor closes itself on `exec`. A child that is forked and does not `exec` keeps its
//! parent's lock, and with it the parent, alive.

use std::{
    collections::BTreeSet,
    fs::{self, DirEntry, File, OpenOptions, TryLockError},
    hash::{BuildHasher as _, RandomState},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use forkpoint_core::{
    Timestamp,
    catalog::{OpenOperation, OwnerState},
    id::OwnerId,
};

use super::operation::OpenRow;

#[derive(Debug)]
pub(super) struct Owner {
    id: OwnerId,
    directory: PathBuf,
    _locked: File,
}

impl Owner {
    pub(super) fn create(directory: &Path) -> io::Result<Self> {
        loop {
            let id = new_id();
            let path = path_of(directory, id);
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            match file.try_lock() {
                // A sweeper may have taken the new file for one that a dead owner left.
                Ok(()) if is_at(&file, &path) => {
                    return Ok(Self { id, directory: directory.to_owned(), _locked: file });
                }
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(err)) => return Err(err),
            }
        }
    }

    pub(super) fn id(&self) -> OwnerId {
        self.id
    }

    /// Says of an open operation whether its owner lives now.
    pub(super) fn describe(&self, row: OpenRow) -> OpenOperation {
        let OpenRow { operation, claim, owner } = row;
        let owner_state = match owner {
            us if us == self.id => OwnerState::Us,
            other if is_gone(&path_of(&self.directory, other)) => OwnerState::Gone,
            _ => OwnerState::Alive,
        };
        OpenOperation { operation, claim, owner, owner_state }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Whether or not this succeeds, the lock goes, and we are gone to the others.
        let _ = fs::remove_file(path_of(&self.directory, self.id));
    }
}

/// One that cannot be asked about counts as alive: nothing is taken from the living.
///
/// Asking takes a shared lock, so that two who ask at the same time do not take each other for the
/// owner.
fn is_gone(path: &Path) -> bool {
    match File::open(path) {
        Ok(file) => file.try_lock_shared().is_ok(),
        Err(err) => err.kind() == io::ErrorKind::NotFound,
    }
}

/// Removes what owners left who died, and whom no open operation names. What cannot be removed
/// does no harm, and the next one tries again.
pub(super) fn sweep(directory: &Path, named: &BTreeSet<OwnerId>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten().filter(|entry| is_unnamed(entry, named)) {
        let path = entry.path();
        if let Ok(file) = File::open(&path)
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(&path);
        }
    }
}

fn is_unnamed(entry: &DirEntry, named: &BTreeSet<OwnerId>) -> bool {
    let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
    id.is_some_and(|id: OwnerId| !named.contains(&id))
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

fn path_of(directory: &Path, id: OwnerId) -> PathBuf {
    directory.join(id.to_string())
}

#[expect(
    clippy::disallowed_methods,
    reason = "an owner's id must differ from all that ever were, in a test as well"
)]
fn new_id() -> OwnerId {
    let hash = || u128::from(RandomState::new().hash_one(std::process::id()));
    OwnerId::new(Timestamp::now(), hash() << 64 | hash())
}
