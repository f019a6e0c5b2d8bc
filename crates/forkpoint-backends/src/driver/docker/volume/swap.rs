//! What a volume holds changes places with what lies beside it.
//!
//! In a directory in the volume is `old`, and what is new under a name that tells how far it is:
//!
//! ```text
//! part ──► new ──► in ──► done
//!  filled   old goes out   new comes in
//! ```
//!
//! Each arrow is one `rename`, after everything before it was done. In every state but `part`, what was
//! in the volume and what shall be in it are both there in full, so one can go on or go back.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, Stat, Timespec, Timestamps, fchmod, fstat, futimens, mkdirat, renameat};

use super::notes;
use crate::layer::{
    LayerError, LayerResult, LayerStore, list_names, open_child, open_path, remove_tree,
};

const PART: &CStr = c"part";
const NEW: &CStr = c"new";
const IN: &CStr = c"in";
const DONE: &CStr = c"done";
const OLD: &CStr = c"old";

/// By descriptors: nothing that is in the volume is followed.
#[derive(Debug)]
pub(super) struct Swap {
    path: PathBuf,
    root: OwnedFd,
    name: CString,
    own: OwnedFd,
}

impl Swap {
    pub(super) fn make(volume: &Path, directory: &str) -> LayerResult<Self> {
        let failed = || notes::io("create a directory in", volume);
        let (root, name) = (open_path(volume)?, CString::new(directory).unwrap_or_default());
        open_up(&root).map_err(failed())?;
        let make = |at: &OwnedFd, name: &CStr| mkdirat(at, name, Mode::RWXU);
        make(&root, &name).map_err(io::Error::from).map_err(failed())?;
        let own = open_child(&root, &name).map_err(failed())?;
        for name in [OLD, PART] {
            make(&own, name).map_err(io::Error::from).map_err(failed())?;
        }
        Ok(Self { path: volume.to_owned(), root, name, own })
    }

    pub(super) fn find(volume: &Path, directory: &str) -> LayerResult<Option<Self>> {
        let missing = |err: &io::Error| err.kind() == io::ErrorKind::NotFound;
        let root = match open_path(volume) {
            Err(LayerError::Io { source, .. }) if missing(&source) => return Ok(None),
            root => root?,
        };
        let name = CString::new(directory).unwrap_or_default();
        match open_child(&root, &name) {
            Ok(own) => Ok(Some(Self { path: volume.to_owned(), root, name, own })),
            Err(err) if missing(&err) => Ok(None),
            Err(err) => Err(notes::io("open", volume)(err)),
        }
    }

    /// Where what is new is to be made.
    pub(super) fn part_path(&self) -> PathBuf {
        self.own_path().join("part")
    }

    fn own_path(&self) -> PathBuf {
        self.path.join(self.name.to_string_lossy().as_ref())
    }

    pub(super) fn filled(&self) -> LayerResult<()> {
        let part = self.open(PART)?;
        open_up(&part).map_err(notes::io("open up", &self.own_path()))?;
        self.step(PART, NEW)
    }

    pub(super) fn is_filled(&self) -> LayerResult<bool> {
        Ok(self.stands_at(NEW)? || self.stands_at(IN)? || self.stands_at(DONE)?)
    }

    pub(super) fn is_done(&self) -> LayerResult<bool> {
        self.stands_at(DONE)
    }

    /// To where what is new is in the volume. `dress` makes the volume itself look as it should.
    pub(super) fn forward(&self, dress: impl FnOnce() -> LayerResult<()>) -> LayerResult<()> {
        open_up(&self.root).map_err(notes::io("open up", &self.path))?;
        if self.stands_at(NEW)? {
            self.take_out(OLD)?;
            self.step(NEW, IN)?;
        }
        if self.stands_at(IN)? {
            self.bring_in(IN)?;
            dress()?;
            self.step(IN, DONE)?;
        }
        Ok(())
    }

    /// To where what was there is in the volume.
    pub(super) fn back(&self) -> LayerResult<()> {
        open_up(&self.root).map_err(notes::io("open up", &self.path))?;
        if self.stands_at(DONE)? {
            self.step(DONE, IN)?;
        }
        if self.stands_at(IN)? {
            self.take_out(IN)?;
            self.step(IN, NEW)?;
        }
        if self.stands_at(NEW)? {
            self.bring_in(OLD)?;
        }
        Ok(())
    }

    /// With all that is in it: in the background where that is possible.
    /// The volume looks as before.
    pub(super) fn remove(self, store: &LayerStore) -> LayerResult<()> {
        let failed = || notes::io("clear up in", &self.path);
        let before = fstat(&self.root).map_err(io::Error::from).map_err(failed())?;
        open_up(&self.root).map_err(failed())?;
        if store.throw_away(&self.own_path()).is_err() {
            let removed = remove_tree(&self.root, self.path.clone(), self.name.clone());
            if let Some(left) = removed.leftovers.into_iter().next() {
                return Err(notes::io("remove", &left.path)(left.error));
            }
        }
        look_again(&self.root, &before).map_err(failed())
    }

    fn open(&self, name: &CStr) -> LayerResult<OwnedFd> {
        open_child(&self.own, name).map_err(notes::io("open", &self.own_path()))
    }

    fn stands_at(&self, state: &CStr) -> LayerResult<bool> {
        match open_child(&self.own, state) {
            Ok(_) => Ok(true),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(err) => Err(notes::io("open", &self.own_path())(err)),
        }
    }

    fn step(&self, from: &CStr, to: &CStr) -> LayerResult<()> {
        let stepped = renameat(&self.own, from, &self.own, to).map_err(io::Error::from);
        stepped.map_err(notes::io("rename", &self.own_path()))
    }

    fn take_out(&self, to: &CStr) -> LayerResult<()> {
        self.move_all(&self.root, &self.open(to)?)
    }

    fn bring_in(&self, from: &CStr) -> LayerResult<()> {
        self.move_all(&self.open(from)?, &self.root)
    }

    fn move_all(&self, from: &OwnedFd, to: &OwnedFd) -> LayerResult<()> {
        let names = list_names(from.as_fd()).map_err(notes::io("list", &self.path))?;
        for name in names.into_iter().filter(|name| *name != self.name) {
            let moved = renameat(from, &name, to, &name).map_err(io::Error::from);
            let path = || self.path.join(name.to_string_lossy().as_ref());
            moved.map_err(|err| notes::io("move", &path())(err))?;
        }
        Ok(())
    }
}

fn look_again(directory: &OwnedFd, before: &Stat) -> io::Result<()> {
    let mode = Mode::from_raw_mode(before.st_mode);
    if Mode::from_raw_mode(fstat(directory)?.st_mode) != mode {
        fchmod(directory, mode)?;
    }
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(before.st_atime as _, before.st_atime_nsec as _),
        last_modification: time(before.st_mtime as _, before.st_mtime_nsec as _),
    };
    Ok(futimens(directory, &times)?)
}

/// Its mode may forbid its owner to change what is in it. It is set again when all is done.
fn open_up(directory: &OwnedFd) -> io::Result<()> {
    let mode = Mode::from_raw_mode(fstat(directory)?.st_mode);
    match mode.contains(Mode::RWXU) {
        true => Ok(()),
        false => Ok(fchmod(directory, mode | Mode::RWXU)?),
    }
}
