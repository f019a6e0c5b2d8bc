//! Everything new, written beside what it is to replace before anything is replaced.

use std::{
    collections::HashMap,
    ffi::{CString, OsStr},
    fs::File,
    io::{Read as _, Write as _},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use forkpoint_core::{Timestamp, driver::FileFacts};
use rustix::{
    fs::{
        AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, chownat,
        fchmod, fchown, fstat, futimens, mkdirat, openat, statat, symlinkat, unlinkat, utimensat,
    },
    io::Errno,
};

use super::{
    ApplySpec,
    error::{Doing as _, WorkspaceError, WorkspaceResult},
    host::{HostDir, Way, beneath, is_dir},
    plan::{Plan, Step, Want, home_mode},
};
use crate::layer::{LayerError, copy_bytes, remove_tree, unique_name};

const PREFIX: &str = ".forkpoint-apply";
const MARK: &str = "mark";
const MARK_TEXT: &[u8] = b"forkpoint apply 1\n";

/// How often a file is read anew that changes while it is read.
const TRIES: usize = 5;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Whether a path leads into a directory of ours, perhaps of one who is dead.
pub(super) fn is_ours(path: &Path) -> bool {
    let first = path.iter().next().unwrap_or_default();
    first.as_bytes().starts_with(PREFIX.as_bytes())
}

/// A directory in the host's, which is gone when this is.
#[derive(Debug)]
pub(super) struct Staging<'a> {
    host: &'a HostDir,
    name: CString,
    pub(super) fd: OwnedFd,
}

/// Something that is ready to be put in its place.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) path: PathBuf,
    /// From the staging directory.
    pub(super) at: PathBuf,
    /// Whether it is moved by itself, and not with the directory that it is in.
    pub(super) is_top: bool,
    pub(super) stat: Stat,
}

/// Whether somebody was killed at this before us. What they left is removed.
pub(super) fn clear_left(host: &HostDir) -> WorkspaceResult<bool> {
    let mut found = false;
    for name in host.names(Path::new("."))? {
        if is_ours(Path::new(&name)) && is_left(host, &name) {
            remove(host, &name);
            found = true;
        }
    }
    Ok(found)
}

/// Only with our mark in it, or with nothing: somebody may like the name.
fn is_left(host: &HostDir, name: &OsStr) -> bool {
    let Ok(directory) = beneath(&host.fd, Path::new(name), DIRECTORY) else { return false };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match openat(&directory, MARK, flags, Mode::empty()) {
        Ok(mark) => {
            let mut text = Vec::new();
            let read = File::from(mark).take(MARK_TEXT.len() as u64 + 1).read_to_end(&mut text);
            read.is_ok() && MARK_TEXT.starts_with(&text)
        }
        Err(Errno::NOENT) => host.names(Path::new(name)).is_ok_and(|names| names.is_empty()),
        Err(_) => false,
    }
}

/// The mark is the last to go, so that what is left by somebody who is killed at this is known as ours.
fn remove(host: &HostDir, name: &OsStr) {
    if let Ok(directory) = beneath(&host.fd, name, DIRECTORY) {
        let names = host.names(Path::new(name)).unwrap_or_default();
        for inside in names.iter().filter(|inside| *inside != MARK) {
            remove_tree(&directory, host.path.join(name), c_name(inside));
        }
    }
    remove_tree(&host.fd, host.path.clone(), c_name(name));
}

fn c_name(name: &OsStr) -> CString {
    CString::new(name.as_bytes()).unwrap_or_default()
}

impl<'a> Staging<'a> {
    pub(super) fn create(host: &'a HostDir) -> WorkspaceResult<Self> {
        let name = unique_name(PREFIX);
        let path = || host.path.join(&name);
        mkdirat(&host.fd, &name, Mode::RWXU).doing("create", path)?;
        let fd = beneath(&host.fd, Path::new(&name), DIRECTORY).doing("open", path)?;
        let staging = Self { host, name: c_name(OsStr::new(&name)), fd };
        let mark = create_file(staging.fd.as_fd(), OsStr::new(MARK));
        let marked = mark.map_err(Into::into).and_then(|file| (&file).write_all(MARK_TEXT));
        marked.doing("mark", path)?;
        Ok(staging)
    }

    /// Everything that the plan puts somewhere. A directory that is new is made here with all that is in it.
    pub(super) fn fill(&self, spec: &ApplySpec, plan: &Plan) -> WorkspaceResult<Vec<Staged>> {
        let mut filling =
            Filling { staging: self, spec, directories: HashMap::new(), staged: Vec::new() };
        for step in plan.steps.iter().filter(|step| step.is_put()) {
            let make = || self.host.path.join(&step.path);
            match filling.put(step) {
                Err(WorkspaceError::Io { operation, source, .. }) => {
                    return Err(WorkspaceError::Io { operation, path: make(), source });
                }
                Err(WorkspaceError::Layer(err)) if err.is_denied() => {
                    return Err(LayerError::Unreadable { path: make() }.into());
                }
                result => result?,
            }
        }
        filling.finish_directories(plan)?;
        Ok(filling.staged)
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        // What stays is removed by the next apply.
        remove(self.host, OsStr::from_bytes(self.name.as_bytes()));
    }
}

struct Filling<'a> {
    staging: &'a Staging<'a>,
    spec: &'a ApplySpec<'a>,
    /// Where directories are made, by where they go.
    directories: HashMap<PathBuf, PathBuf>,
    staged: Vec<Staged>,
}

impl Filling<'_> {
    fn put(&mut self, step: &Step) -> WorkspaceResult<()> {
        let name = step.path.file_name().unwrap_or_default();
        let parent = step.path.parent().and_then(|parent| self.directories.get(parent));
        let is_top = parent.is_none();
        let at = match parent {
            Some(parent) => parent.join(name),
            None => self.staged.len().to_string().into(),
        };
        let place = self.open(at.parent())?;
        let name = at.file_name().unwrap_or_default();
        let owner = self.owner(step)?;
        let stat = match &step.want {
            Want::File(facts) => self.put_file(place.as_fd(), name, step, facts, owner)?,
            Want::Link(facts) => self.put_link(place.as_fd(), name, step, facts, owner)?,
            _ => {
                let made = mkdirat(&place, name, Mode::RWXU)
                    .and_then(|()| statat(&place, name, AtFlags::SYMLINK_NOFOLLOW));
                self.directories.insert(step.path.clone(), at.clone());
                made.doing("create", || step.path.clone())?
            }
        };
        self.staged.push(Staged { path: step.path.clone(), at, is_top, stat });
        Ok(())
    }

    fn open(&self, at: Option<&Path>) -> WorkspaceResult<OwnedFd> {
        let at = at.filter(|at| !at.as_os_str().is_empty()).unwrap_or(Path::new("."));
        beneath(&self.staging.fd, at, DIRECTORY).doing("open", || at.to_owned())
    }

    /// Of what is there, or of the directory in which it will be; for root only, others own what they make.
    fn owner(&self, step: &Step) -> WorkspaceResult<Option<(u32, u32)>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        if let Some(there) = &step.host {
            return Ok(Some((there.st_uid, there.st_gid)));
        }
        let host = self.staging.host;
        for parent in step.path.ancestors().skip(1).filter(|way| !way.as_os_str().is_empty()) {
            if let Way::There(stat) = host.look(parent)?
                && is_dir(&stat)
            {
                return Ok(Some((stat.st_uid, stat.st_gid)));
            }
        }
        let root = fstat(&host.fd).doing("inspect", || host.path.clone())?;
        Ok(Some((root.st_uid, root.st_gid)))
    }

    fn put_file(
        &self,
        place: BorrowedFd,
        name: &OsStr,
        step: &Step,
        facts: &FileFacts,
        owner: Option<(u32, u32)>,
    ) -> WorkspaceResult<Stat> {
        let path = || step.path.clone();
        for _ in 0..TRIES {
            let source = self.spec.to.open_file(&step.path)?;
            let before = fstat(&source).doing("inspect", path)?;
            let target = create_file(place, name).doing("create", path)?;
            let copied = copy_bytes(&source, &target, before.st_size as _);
            let after = fstat(&source).doing("inspect", path)?;
            if !is_same(&before, &after) {
                unlinkat(place, name, AtFlags::empty()).doing("remove", path)?;
                continue;
            }
            copied.doing("write", path)?;
            if let Some((uid, gid)) = owner {
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                fchown(&target, uid, gid).doing("set the owner of", path)?;
            }
            let mode = Mode::from_raw_mode(step.file_mode(facts));
            fchmod(&target, mode).doing("set the mode of", path)?;
            futimens(&target, &times(facts.modified)).doing("set the time of", path)?;
            return fstat(&target).doing("inspect", path);
        }
        Err(WorkspaceError::Changed { path: self.spec.workspace.at.as_path().join(&step.path) })
    }

    fn put_link(
        &self,
        place: BorrowedFd,
        name: &OsStr,
        step: &Step,
        facts: &FileFacts,
        owner: Option<(u32, u32)>,
    ) -> WorkspaceResult<Stat> {
        let target = self.spec.to.read_link(&step.path)?;
        let make = || {
            symlinkat(&target, place, name)?;
            if let Some((uid, gid)) = owner {
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                chownat(place, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            utimensat(place, name, &times(facts.modified), AtFlags::SYMLINK_NOFOLLOW)?;
            statat(place, name, AtFlags::SYMLINK_NOFOLLOW)
        };
        make().doing("create", || step.path.clone())
    }

    /// Whoever is not root can move only a directory that they may write to, so that what forbids it is
    /// taken away when it is in its place.
    fn finish_directories(&self, plan: &Plan) -> WorkspaceResult<()> {
        for step in plan.steps.iter().rev() {
            let (Want::Directory(facts), Some(at)) = (&step.want, self.directories.get(&step.path))
            else {
                continue;
            };
            let directory = self.open(Some(at))?;
            let path = || self.staging.host.path.join(&step.path);
            if let Some((uid, gid)) = self.owner(step)? {
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                fchown(&directory, uid, gid).doing("set the owner of", path)?;
            }
            let mode = Mode::from_raw_mode(home_mode(facts, None) | 0o700);
            fchmod(&directory, mode).doing("set the mode of", path)?;
        }
        Ok(())
    }
}

fn create_file(place: BorrowedFd, name: &OsStr) -> rustix::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(place, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    let print = |stat: &Stat| {
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        (
            is_file,
            stat.st_size,
            stat.st_mtime,
            stat.st_mtime_nsec,
            stat.st_ctime,
            stat.st_ctime_nsec,
        )
    };
    print(one) == print(other)
}

fn times(modified: Timestamp) -> Timestamps {
    let at = modified.as_nanosecond();
    let (seconds, rest) = (at.div_euclid(1_000_000_000), at.rem_euclid(1_000_000_000));
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec {
            tv_sec: i64::try_from(seconds).unwrap_or_default(),
            tv_nsec: i64::try_from(rest).unwrap_or_default(),
        },
    }
}
