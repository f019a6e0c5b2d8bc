//! Deleting, off everybody's way.
//!
//! What is in the trash belongs to nobody. Whoever deletes an entry holds a lock on it, so that two
//! processes do not do the same work.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, chmod, flock, openat, unlinkat},
    io::Errno,
};

use super::{
    LayerResult,
    cursor::{DirCursor, KEEP, names, open_directory},
    error::{At as _, Fault},
    store::{Directories, open_path},
};

/// Enough to tell what is wrong.
const LEFTOVERS_MAX: usize = 16;

/// For whoever threw something away to come to its end. The kernel rarely gives way while it deletes.
const LATER: Duration = Duration::from_millis(50);

/// Something that could not be deleted, and stays until somebody helps.
#[derive(Debug)]
pub struct Leftover {
    pub path: PathBuf,
    pub error: io::Error,
}

#[derive(Debug, Default)]
pub struct ReapStats {
    pub removed: u64,
    /// The first few.
    pub leftovers: Vec<Leftover>,
}

/// A thread that empties the trash, from the first time that there is something to do until the
/// store is closed and the trash empty. If the process ends before, the next start goes on.
#[derive(Debug, Default)]
pub(super) struct Reaper {
    bell: OnceLock<mpsc::Sender<When>>,
    last: Arc<Mutex<Vec<Leftover>>>,
}

/// When the trash is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Now,
    /// Whoever threw something away is not done yet, and it is seen to that somebody else empties the trash if the
    /// process ends before.
    Later,
}

impl Reaper {
    pub(super) fn ring(&self, directories: &Arc<Directories>, when: When) {
        let bell = self.bell.get_or_init(|| {
            let (bell, heard) = mpsc::channel();
            let (directories, last) = (Arc::clone(directories), Arc::clone(&self.last));
            thread::spawn(move || listen(&heard, &directories, &last));
            bell
        });
        // A thread that is gone has nothing more to do for us.
        let _ = bell.send(when);
    }

    pub(super) fn take_leftovers(&self) -> Vec<Leftover> {
        std::mem::take(&mut *self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn listen(heard: &mpsc::Receiver<When>, directories: &Directories, last: &Mutex<Vec<Leftover>>) {
    // On Linux this concerns the thread alone. Others are waited for, and this is not.
    let _ = rustix::process::nice(19);
    while let Ok(when) = heard.recv() {
        if when == When::Later {
            wait(heard);
        }
        while heard.try_recv().is_ok() {}
        if let Ok(stats) = empty(directories, FlockOperation::NonBlockingLockExclusive) {
            *last.lock().unwrap_or_else(PoisonError::into_inner) = stats.leftovers;
        }
    }
}

/// Until it is later, or somebody wants it now.
#[expect(clippy::disallowed_methods, reason = "a moment in which nothing is decided")]
fn wait(heard: &mpsc::Receiver<When>) {
    let end = Instant::now() + LATER;
    let left = || end.saturating_duration_since(Instant::now());
    while let Ok(When::Later) = heard.recv_timeout(left()) {}
}

/// Deletes what is in the trash but what somebody else is deleting, unless `lock` waits for them.
pub(super) fn empty(directories: &Directories, lock: FlockOperation) -> LayerResult<ReapStats> {
    let path = directories.trash_path();
    let trash = directories.trash().at(|| path.clone())?;
    empty_open(&trash, &path, lock)
}

/// Empties the trash of the store below `root`, and waits for those who are at it. Makes nothing, not
/// even for a moment: for one who comes late, when the store may be on its way out or gone.
pub(crate) fn empty_trash(root: &Path) -> LayerResult<ReapStats> {
    let path = root.join("trash");
    empty_open(&open_path(&path)?, &path, FlockOperation::LockExclusive)
}

fn empty_open(trash: &OwnedFd, path: &Path, lock: FlockOperation) -> LayerResult<ReapStats> {
    let mut stats = ReapStats::default();
    for (name, _) in names(trash.as_fd()).at(|| path.to_owned())? {
        let mut removal = Removal { stats: &mut stats };
        removal.remove(trash, path.to_owned(), name, lock);
    }
    Ok(stats)
}

/// Removes what is at `name` with all that is in it, without following anything. `path` is for messages.
pub(crate) fn remove_tree(at: &OwnedFd, path: PathBuf, name: CString) -> ReapStats {
    let mut stats = ReapStats::default();
    let lock = FlockOperation::NonBlockingLockExclusive;
    Removal { stats: &mut stats }.remove(at, path, name, lock);
    stats
}

struct Removal<'a> {
    stats: &'a mut ReapStats,
}

impl Removal<'_> {
    fn remove(&mut self, trash: &OwnedFd, path: PathBuf, name: CString, lock: FlockOperation) {
        let mut parent = match trash.try_clone() {
            Ok(fd) => DirCursor::new(path, fd, KEEP),
            Err(_) => return,
        };
        match self.enter(&mut parent, &name) {
            Ok(true) => {}
            Ok(false) => return self.unlink(&parent, &name, AtFlags::empty()),
            Err(fault) => return self.note(&parent, &name, fault),
        }
        // The last is kept until the end: it holds the lock.
        match parent.fd().try_clone_to_owned() {
            Ok(locked) if flock(&locked, lock).is_ok() => self.empty(&mut parent),
            _ => {}
        }
    }

    fn empty(&mut self, cursor: &mut DirCursor) {
        let mut pending = vec![self.unlink_files(cursor)];
        while let Some(directories) = pending.last_mut() {
            let Some(name) = directories.pop() else {
                pending.pop();
                match cursor.leave() {
                    Ok(Some(name)) => self.unlink(cursor, &name, AtFlags::REMOVEDIR),
                    _ => return,
                }
                if pending.is_empty() {
                    return;
                }
                continue;
            };
            match self.enter(cursor, &name) {
                Ok(true) => pending.push(self.unlink_files(cursor)),
                Ok(false) => self.unlink(cursor, &name, AtFlags::empty()),
                Err(fault) => self.note(cursor, &name, fault),
            }
        }
    }

    /// `false` when it is no directory.
    fn enter(&mut self, cursor: &mut DirCursor, name: &CString) -> Result<bool, Fault> {
        match cursor.enter(name) {
            Ok(()) if is_searchable(cursor.fd()) => Ok(true),
            Ok(()) => {
                let _ = open_up(cursor.fd());
                Ok(true)
            }
            Err(Fault::Io { source, .. }) if is_no_directory(&source) => Ok(false),
            Err(Fault::Io { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
                let _ = open_up_named(cursor.fd(), name);
                cursor.enter(name).map(|()| true)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Removes all but the directories, and answers with these.
    fn unlink_files(&mut self, cursor: &DirCursor) -> Vec<CString> {
        let entries = match names(cursor.fd()) {
            Ok(entries) => entries,
            Err(fault) => {
                self.note(cursor, c"", fault);
                return Vec::new();
            }
        };
        let (directories, files): (Vec<_>, Vec<_>) = entries
            .into_iter()
            .partition(|(_, kind)| matches!(kind, FileType::Directory | FileType::Unknown));
        for (name, _) in &files {
            self.unlink(cursor, name, AtFlags::empty());
        }
        directories.into_iter().map(|(name, _)| name).collect()
    }

    fn unlink(&mut self, cursor: &DirCursor, name: &CString, flags: AtFlags) {
        match unlinkat(cursor.fd(), name, flags) {
            Ok(()) => self.stats.removed += 1,
            Err(Errno::NOENT) => {}
            Err(err) => {
                self.note(cursor, name, Fault::Io { operation: "remove", source: err.into() });
            }
        }
    }

    fn note(&mut self, cursor: &DirCursor, name: &std::ffi::CStr, fault: Fault) {
        let error = match fault {
            Fault::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => return,
            Fault::Io { source, .. } => source,
            Fault::Unsupported { reason } => io::Error::other(reason),
            Fault::Changed => io::Error::other("it was moved meanwhile"),
        };
        if self.stats.leftovers.len() < LEFTOVERS_MAX {
            self.stats.leftovers.push(Leftover { path: cursor.path_of(name), error });
        }
    }
}

fn is_no_directory(err: &io::Error) -> bool {
    matches!(Errno::from_io_error(err), Some(Errno::NOTDIR | Errno::LOOP))
}

fn is_searchable(directory: impl AsFd) -> bool {
    rustix::fs::fstat(directory).is_ok_and(|stat| stat.st_mode & 0o700 == 0o700)
}

fn open_up(directory: impl AsFd) -> rustix::io::Result<()> {
    rustix::fs::fchmod(directory, Mode::RWXU)
}

/// A directory that may not be opened, and must not turn into a symbolic link meanwhile.
fn open_up_named(at: impl AsFd, name: &CString) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = openat(at, name, flags, Mode::empty())?;
    chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), Mode::RWXU)
}

/// Whether nobody holds the entry; if so, it stays ours while the answer lives.
pub(super) fn lock_if_dead(at: impl AsFd, name: &CString) -> Option<OwnedFd> {
    let fd = open_directory(at, name).ok()?;
    flock(&fd, FlockOperation::NonBlockingLockExclusive).ok().map(|()| fd)
}
