//! Directories of cgroups, and waiting for the kernel to be done with them.
//!
//! Ours are in `forkpoint` directories that all processes of ours share: whoever needs one makes
//! it, and whoever leaves it empty removes it.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    thread::nanosleep,
    time::Timespec,
};

use super::{CgroupError, controllers::ASIDE};

pub(super) const SHARED: &str = "forkpoint";
/// How often somebody may remove the shared directory under our feet.
const ATTEMPTS: usize = 1000;
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// When to stop waiting.
#[derive(Clone, Copy, Debug)]
pub(in crate::driver) struct Deadline {
    start: Instant,
    wait: Duration,
}

impl Deadline {
    #[expect(
        clippy::disallowed_methods,
        reason = "how long the kernel takes is nothing that a test could repeat"
    )]
    pub(in crate::driver) fn after(wait: Duration) -> Self {
        Self { start: Instant::now(), wait }
    }

    pub(in crate::driver) fn left(&self) -> Duration {
        self.wait.saturating_sub(self.start.elapsed())
    }
}

/// Makes `forkpoint/NAME` below `base`, and `prepare`s what is shared before that. What is there
/// already and has nobody in it is replaced, so that none of its limits stay.
pub(super) fn make(
    base: &Path,
    name: &str,
    mut prepare: impl FnMut(&Path),
) -> Result<PathBuf, CgroupError> {
    let shared = base.join(SHARED);
    let path = shared.join(name);
    let made = check(name).and_then(|()| try_make(&shared, &path, &mut prepare));
    made.map_err(|source| {
        // Not while others are in it.
        let _ = fs::remove_dir(&shared);
        CgroupError::Create { path: path.clone(), source }
    })?;
    Ok(path)
}

fn try_make(shared: &Path, path: &Path, prepare: &mut impl FnMut(&Path)) -> io::Result<()> {
    for _ in 0..ATTEMPTS {
        match fs::create_dir(shared) {
            Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(err),
            _ => prepare(shared),
        }
        match fs::create_dir(path) {
            Err(err) if is_gone(&err) => {}
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_dir(path).or_else(unless_gone)?;
            }
            result => return result,
        }
    }
    Err(Errno::BUSY.into())
}

fn check(name: &str) -> io::Result<()> {
    let is_plain = !matches!(name, "" | "." | "..") && !name.contains(['/', '\n', '\0']);
    is_plain.then_some(()).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// What there is of ours below `base` with a name that begins so.
pub(super) fn named(base: &Path, start: &str) -> Vec<(OsString, PathBuf)> {
    let entries = fs::read_dir(base.join(SHARED)).into_iter().flatten().flatten();
    let named = entries.map(|entry| (entry.file_name(), entry.path()));
    named.filter(|(name, _)| name.as_encoded_bytes().starts_with(start.as_bytes())).collect()
}

/// Waits for the last process to go. What is gone is a success.
pub(super) fn remove(path: &Path, deadline: Deadline) -> io::Result<()> {
    wait_until(path, "populated 0", deadline).map(|_| ()).or_else(unless_gone)?;
    for child in children(path)? {
        remove_one(&child, deadline)?;
    }
    remove_one(path, deadline)?;
    if let Some(shared) = path.parent().filter(|parent| parent.ends_with(SHARED)) {
        // Not while others are in it.
        let _ = fs::remove_dir(shared.join(ASIDE));
        let _ = fs::remove_dir(shared);
    }
    Ok(())
}

/// Version 1 has nothing to wait on, and the kernel may take a moment after the last process.
fn remove_one(path: &Path, deadline: Deadline) -> io::Result<()> {
    loop {
        match fs::remove_dir(path) {
            Err(err) if is_busy(&err) && !deadline.left().is_zero() => {
                let _ = nanosleep(&PAUSE);
            }
            result => return result.or_else(unless_gone),
        }
    }
}

/// All cgroups below `path`, the innermost first.
pub(super) fn children(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(err) => return unless_gone(err).map(|()| Vec::new()),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.append(&mut children(&entry.path())?);
            found.push(entry.path());
        }
    }
    Ok(found)
}

const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Waits for a line of `cgroup.events`, and says whether it came in time. A cgroup of version 1
/// has no such file, as if it were gone.
pub(in crate::driver) fn wait_until(
    path: &Path,
    line: &str,
    deadline: Deadline,
) -> io::Result<bool> {
    let events = File::open(path.join("cgroup.events"))?;
    // The kernel tells of a change at most once in 10 ms: what came sooner is seen by looking.
    let mut pause = FIRST_PAUSE;
    loop {
        if read(&events)?.lines().any(|found| found == line) {
            return Ok(true);
        }
        let left = deadline.left();
        if left.is_zero() {
            return Ok(false);
        }
        let left = left.min(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
        // Tells of what changed since it was read.
        let timeout =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
}

fn read(events: &File) -> io::Result<String> {
    let mut text = [0; 256];
    let len = events.read_at(&mut text, 0)?;
    Ok(String::from_utf8_lossy(&text[..len]).into_owned())
}

/// In one call: the kernel takes each for a value of its own.
pub(in crate::driver) fn write(path: &Path, value: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(value.as_bytes())
}

pub(in crate::driver) fn is_gone(err: &io::Error) -> bool {
    matches!(Errno::from_io_error(err), Some(Errno::NOENT | Errno::NODEV))
}

pub(in crate::driver) fn unless_gone(err: io::Error) -> io::Result<()> {
    if is_gone(&err) { Ok(()) } else { Err(err) }
}

fn is_busy(err: &io::Error) -> bool {
    Errno::from_io_error(err) == Some(Errno::BUSY)
}
