//! Files of the sandbox, by a child of init: names are looked up inside, with the rights of its root.
//!
//! Nothing that a symbolic link points to can be outside, for there is no outside here.

use std::{
    ffi::OsString,
    fs::Permissions,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        CWD, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Uid, fchmod, fchown, fstat,
        openat2, renameat_with,
    },
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{
    super::wire::{self, Doing as _, Failure, Text},
    Reply, Request, unexpected,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) enum WriteHow {
    Create,
    Replace,
    Append,
}

#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) enum MadeEntry {
    Directory { mode: u32 },
    Symlink { target: Text },
    Mode(u32),
}

#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) struct Listed {
    pub(in super::super) path: Text,
    pub(in super::super) kind: ListedKind,
    pub(in super::super) len_bytes: u64,
    pub(in super::super) mode: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) enum ListedKind {
    File,
    Directory,
    Symlink(Text),
    Other,
}

pub(super) fn work(socket: &OwnedFd, request: Request) {
    let result = match request {
        Request::Read { path } => open(&path, OFlags::RDONLY).and_then(|file| give(socket, &file)),
        Request::Write { path, mode: WriteHow::Append } => append(socket, &path),
        Request::Write { path, mode } => write(socket, &path, mode),
        Request::Make { path, entry } => make(&path, &entry).map(|()| answer(socket, &Reply::Done)),
        Request::Entries { path, depth } => {
            list(&path, depth).map(|entries| answer(socket, &Reply::Entries(entries)))
        }
        _ => return answer(socket, &unexpected()),
    };
    if let Err(failure) = result {
        answer(socket, &Reply::Failed(failure));
    }
}

/// Nobody is left to be told when this fails.
fn answer(socket: &OwnedFd, reply: &Reply) {
    let _ = wire::send(socket, reply, &[]);
}

fn give(socket: &OwnedFd, file: &OwnedFd) -> Result<(), Failure> {
    wire::send(socket, &Reply::Opened, &[file.as_fd()]).doing("answer")
}

fn shown(path: &Text) -> String {
    OsString::from(path.clone()).to_string_lossy().into_owned()
}

fn as_path(path: &Text) -> PathBuf {
    PathBuf::from(OsString::from(path.clone()))
}

/// Only files: opening a fifo or a device can wait, or do something.
fn open(path: &Text, flags: OFlags) -> Result<OwnedFd, Failure> {
    let doing = || format!("open `{}`", shown(path));
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mode = if flags.contains(OFlags::CREATE) { 0o644 } else { 0 };
    // A magic link leads to what a process has open, not to a name.
    let resolve = ResolveFlags::NO_MAGICLINKS;
    let file = openat2(CWD, as_path(path), flags, Mode::from_raw_mode(mode), resolve);
    let file = file.doing(doing())?;
    let stat = fstat(&file).doing(doing())?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(file),
        FileType::Directory => Err(Failure::new(doing(), &Errno::ISDIR.into())),
        _ => Err(Failure::new(doing(), &io::Error::other("it is not a file"))),
    }
}

fn make_parent(path: &Text) -> Result<(), Failure> {
    let path = as_path(path);
    let parent = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(parent).doing(format!("create `{}`", parent.display()))
}

/// Stays until all is written: who looks whether anything runs here finds us.
fn append(socket: &OwnedFd, path: &Text) -> Result<(), Failure> {
    make_parent(path)?;
    let file = open(path, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)?;
    give(socket, &file)?;
    await_commit(socket)?;
    answer(socket, &Reply::Done);
    Ok(())
}

fn await_commit(socket: &OwnedFd) -> Result<(), Failure> {
    match wire::receive::<Request>(socket).doing("wait for the file's content")? {
        Some((Request::Commit, _)) => Ok(()),
        _ => Err(Failure::new("write", &io::Error::other("the writer went away"))),
    }
}

/// Beside the file, and moved in its place when it is complete: nobody sees half of it, and a full
/// disk costs nothing that was there.
fn write(socket: &OwnedFd, path: &Text, mode: WriteHow) -> Result<(), Failure> {
    let doing = || format!("write `{}`", shown(path));
    make_parent(path)?;
    let target = std::fs::canonicalize(as_path(path)).unwrap_or_else(|_| as_path(path));
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(Failure::new(doing(), &Errno::ISDIR.into()));
    };
    let there = std::fs::symlink_metadata(&target).ok();
    if mode == WriteHow::Create && there.is_some() {
        return Err(Failure::new(doing(), &Errno::EXIST.into()));
    }
    if there.as_ref().is_some_and(|there| !there.is_file()) {
        return Err(Failure::new(doing(), &Errno::ISDIR.into()));
    }
    let mut new_name = OsString::from(format!(".forkpoint-{}-", std::process::id()));
    // The name may be as long as names can be.
    new_name.push(name.to_string_lossy().chars().take(32).collect::<String>());
    let new = parent.join(new_name);
    forget_dead(&new);
    let result = fill(socket, &new, there.as_ref()).and_then(|()| {
        let flags = match mode {
            WriteHow::Create => RenameFlags::NOREPLACE,
            _ => RenameFlags::empty(),
        };
        renameat_with(CWD, &new, CWD, &target, flags).doing(doing())
    });
    match result {
        Ok(()) => answer(socket, &Reply::Done),
        Err(_) => drop(std::fs::remove_file(&new)),
    }
    result
}

/// Our own number is in the name, so nobody alive uses it: one had the same number who was killed at work,
/// before the sandbox was started again or copied.
fn forget_dead(new: &Path) {
    let _ = std::fs::remove_file(new);
}

/// Returns when the other side says that all is written.
fn fill(socket: &OwnedFd, new: &Path, like: Option<&std::fs::Metadata>) -> Result<(), Failure> {
    let doing = || format!("create `{}`", new.display());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_MAGICLINKS;
    let file = openat2(CWD, new, flags, Mode::from_raw_mode(0o644), resolve).doing(doing())?;
    let mode = like.map(|like| Mode::from_raw_mode(like.mode() & 0o7777));
    if let Some((like, mode)) = like.zip(mode) {
        // Owner first: changing it clears the set-user-id bit.
        let _ = fchown(&file, Some(Uid::from_raw(like.uid())), Some(Gid::from_raw(like.gid())));
        fchmod(&file, mode).doing(doing())?;
    }
    give(socket, &file)?;
    await_commit(socket)?;
    // So does writing, by somebody who is not root.
    match mode.filter(|mode| mode.intersects(Mode::SUID | Mode::SGID)) {
        Some(mode) => fchmod(&file, mode).doing(doing()),
        None => Ok(()),
    }
}

fn make(path: &Text, entry: &MadeEntry) -> Result<(), Failure> {
    let doing = || format!("make `{}`", shown(path));
    let at = &as_path(path);
    let there = std::fs::symlink_metadata(at).ok();
    match entry {
        MadeEntry::Directory { .. } if there.as_ref().is_some_and(std::fs::Metadata::is_dir) => {}
        MadeEntry::Directory { mode } => {
            make_parent(path)?;
            std::fs::create_dir(at).doing(doing())?;
            std::fs::set_permissions(at, Permissions::from_mode(*mode)).doing(doing())?;
        }
        MadeEntry::Symlink { target } => {
            make_parent(path)?;
            let new = at.with_file_name(format!(".forkpoint-{}-link", std::process::id()));
            forget_dead(&new);
            symlink(as_path(target), &new).doing(doing())?;
            let placed = std::fs::rename(&new, at);
            if placed.is_err() {
                let _ = std::fs::remove_file(&new);
            }
            placed.doing(doing())?;
        }
        // What a link points to was not asked for.
        MadeEntry::Mode(_) if there.as_ref().is_some_and(std::fs::Metadata::is_symlink) => {
            return Err(Failure::new(doing(), &Errno::LOOP.into()));
        }
        MadeEntry::Mode(mode) => {
            std::fs::set_permissions(at, Permissions::from_mode(*mode)).doing(doing())?;
        }
    }
    Ok(())
}

fn list(path: &Text, depth: u32) -> Result<Vec<Listed>, Failure> {
    let mut found = Vec::new();
    list_into(&as_path(path), depth, &mut found).doing(format!("list `{}`", shown(path)))?;
    Ok(found)
}

fn list_into(directory: &Path, depth: u32, found: &mut Vec<Listed>) -> io::Result<()> {
    if depth == 0 {
        return Ok(());
    }
    let mut names: Vec<PathBuf> = std::fs::read_dir(directory)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    names.sort_unstable();
    for path in names {
        // What goes away meanwhile was not there.
        let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
        let kind = kind_of(&path, &metadata);
        found.push(Listed {
            path: path.as_os_str().into(),
            kind,
            len_bytes: metadata.len(),
            mode: metadata.mode() & 0o7777,
        });
        if metadata.is_dir() {
            match list_into(&path, depth - 1, found) {
                Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
                _ => {}
            }
        }
    }
    Ok(())
}

fn kind_of(path: &Path, metadata: &std::fs::Metadata) -> ListedKind {
    let kind = metadata.file_type();
    if kind.is_file() {
        ListedKind::File
    } else if kind.is_dir() {
        ListedKind::Directory
    } else if kind.is_symlink() {
        let target = std::fs::read_link(path).unwrap_or_default();
        ListedKind::Symlink(target.as_os_str().into())
    } else {
        ListedKind::Other
    }
}
