//! A file system in memory gets back what it had: in a new sandbox, and in place.
//!
//! In place, files that are there stay the files that they are: somebody may have them mapped.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmod,
        chownat, fstat, linkat, listxattr, mkdirat, mknodat, open, openat, readlinkat, removexattr,
        setxattr, symlinkat, unlinkat, utimensat,
    },
    io::Errno,
};

use super::{look, open_in, open_mount, walk};
use crate::{
    coverage::Findings,
    dump::proc::Ids,
    image::{Chain, EntryKind, KeptEntry, KeptMount},
    restore::shared,
    sys::task::make_files_as,
};

/// Numbers of a user and a group inside, as whoever fills it must name them.
pub(crate) type Owners<'a> = &'a dyn Fn(u32, u32) -> Option<(u32, u32)>;

/// Makes all mounts of the image what they were. Nothing runs in the sandbox.
pub(crate) fn fill_all(
    root: &OwnedFd,
    mounts: &[KeptMount],
    chain: &Chain,
    owners: Owners<'_>,
) -> Result<(), (String, io::Error)> {
    for kept in mounts {
        let filled = match open_mount(root, &kept.path) {
            Ok(Some(mount)) => fill(&mount, kept, chain, owners),
            Ok(None) => Err(io::Error::other("no file system in memory is there")),
            Err(err) => Err(err),
        };
        filled.map_err(|err| (kept.path.clone(), err))?;
    }
    Ok(())
}

/// As [`fill_all`], by somebody who is nobody in the sandbox, whose names `uid_map` and `gid_map` of its process 1 tell.
pub(crate) fn fill_from_outside(
    init: i32,
    mounts: &[KeptMount],
    chain: &Chain,
) -> Result<(), (String, io::Error)> {
    let open = || -> io::Result<_> {
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(format!("/proc/{init}/root"), directory, Mode::empty())?;
        Ok((root, Ids::of(init, "uid_map")?, Ids::of(init, "gid_map")?))
    };
    if is_as_it_was(init, mounts) {
        return Ok(());
    }
    let (root, users, groups) = open().map_err(|err| ("/".to_owned(), err))?;
    let owners = |uid, gid| users.outside(uid).zip(groups.outside(gid));
    let fill = || -> Result<(), (String, io::Error)> {
        // Who makes a file there must be somebody there.
        let root_inside = owners(0, 0).ok_or(io::ErrorKind::NotFound.into());
        root_inside.and_then(make_files_as).map_err(|err| ("/".to_owned(), err))?;
        fill_all(&root, mounts, chain, &owners)
    };
    // Who one is for files belongs to a thread.
    std::thread::scope(|scope| scope.spawn(fill).join())
        .unwrap_or_else(|_| Err(("/".to_owned(), io::Error::other("it was not finished"))))
}

/// Whether there is nothing to do: nobody made anything there, then or since. What is in files is not looked at, so there
/// must be none.
fn is_as_it_was(init: i32, mounts: &[KeptMount]) -> bool {
    let paths: Vec<&str> = mounts.iter().map(|mount| mount.path.as_str()).collect();
    let is_file = |entry: &KeptEntry| matches!(entry.kind, EntryKind::File { .. });
    if mounts.iter().flat_map(|mount| &mount.entries).any(is_file) {
        return false;
    }
    let mut findings = Findings::default();
    let Ok(now) = look(init, &paths, &mut findings) else { return false };
    let same = |(one, other): (&KeptEntry, &KeptEntry)| {
        // To look at a link is to access it.
        one == &KeptEntry { times: [one.times[0], other.times[1]], ..other.clone() }
    };
    findings.verdict().is_ok()
        && now.len() == mounts.len()
        && now.iter().zip(mounts).all(|(now, kept)| {
            now.entries.len() == kept.entries.len()
                && now.entries.iter().zip(&kept.entries).all(same)
        })
}

fn fill(mount: &OwnedFd, kept: &KeptMount, chain: &Chain, owners: Owners<'_>) -> io::Result<()> {
    remove_others(mount, kept)?;
    // Room for all of them must be there before the first grows.
    for_files(mount, kept, |file, _, _| shared::empty(file))?;
    for entry in &kept.entries {
        make(mount, entry)?;
    }
    for_files(mount, kept, |file, len_bytes, stored| {
        shared::fill_file(file, len_bytes, stored, chain)
    })?;
    // Times last, for what is made in a directory changes its own.
    for entry in kept.entries.iter().rev() {
        dress(mount, entry, owners)?;
    }
    Ok(())
}

/// Files of the image that are there.
fn for_files(
    mount: &OwnedFd,
    kept: &KeptMount,
    act: impl Fn(&File, u64, &[crate::image::Stored]) -> io::Result<()>,
) -> io::Result<()> {
    for KeptEntry { path, kind, .. } in &kept.entries {
        let EntryKind::File { len_bytes, stored } = kind else { continue };
        match open_in(mount, path, OFlags::RDWR | OFlags::NONBLOCK) {
            Ok(Some(file)) => act(&File::from(file), *len_bytes, stored)?,
            Ok(None) => return Err(io::Error::other(format!("`{path}` is covered"))),
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

/// Takes away what the image does not have, or not as this kind of file.
fn remove_others(mount: &OwnedFd, kept: &KeptMount) -> io::Result<()> {
    let wanted: HashMap<&str, &EntryKind> =
        kept.entries.iter().map(|entry| (entry.path.as_str(), &entry.kind)).collect();
    let mut inodes: HashMap<String, u64> = HashMap::new();
    let mut others = Vec::new();
    walk(mount, |path, file, stat| {
        let is = FileType::from_raw_mode(stat.st_mode);
        inodes.insert(path.to_owned(), stat.st_ino);
        let stays = match wanted.get(path) {
            Some(EntryKind::Directory) => is == FileType::Directory,
            Some(EntryKind::File { .. }) => is == FileType::RegularFile,
            Some(EntryKind::Socket) => is == FileType::Socket,
            Some(EntryKind::Fifo) => is == FileType::Fifo,
            Some(EntryKind::Link { target }) => {
                is == FileType::Symlink
                    && readlinkat(file, "", Vec::new())?.to_bytes() == target.as_bytes()
            }
            Some(EntryKind::Same { .. }) => true,
            None => false,
        };
        if !stays {
            others.push((path.to_owned(), is));
        }
        Ok(())
    })?;
    for (path, kind) in &wanted {
        if let EntryKind::Same { path: first } = kind
            && let Some(inode) = inodes.get(*path)
            && inodes.get(first) != Some(inode)
        {
            others.push(((*path).to_owned(), FileType::RegularFile));
        }
    }
    // What is in a directory goes before it.
    for (path, kind) in others.iter().rev() {
        let flags = match kind {
            FileType::Directory => AtFlags::REMOVEDIR,
            _ => AtFlags::empty(),
        };
        let (parent, name) = parent(mount, path)?;
        unlinkat(&parent, name, flags)?;
    }
    Ok(())
}

/// The directory that it is in, and its name there.
fn parent<'a>(mount: &OwnedFd, path: &'a str) -> io::Result<(OwnedFd, &'a str)> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = open_in(mount, parent, OFlags::PATH | OFlags::DIRECTORY)?;
    Ok((parent.ok_or(io::ErrorKind::NotFound)?, name))
}

/// It may be there.
fn make(mount: &OwnedFd, entry: &KeptEntry) -> io::Result<()> {
    if entry.path.is_empty() {
        return Ok(());
    }
    let private = Mode::from_raw_mode(0o600);
    let (parent, name) = parent(mount, &entry.path)?;
    let made = match &entry.kind {
        EntryKind::Directory => mkdirat(&parent, name, Mode::from_raw_mode(0o700)),
        EntryKind::File { .. } => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            openat(&parent, name, flags, private).map(drop)
        }
        EntryKind::Link { target } => symlinkat(target.as_str(), &parent, name),
        EntryKind::Socket => mknodat(&parent, name, FileType::Socket, private, 0),
        EntryKind::Fifo => mknodat(&parent, name, FileType::Fifo, private, 0),
        EntryKind::Same { path } => {
            let (first, first_name) = self::parent(mount, path)?;
            linkat(&first, first_name, &parent, name, AtFlags::empty())
        }
    };
    match made {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(err) => Err(err.into()),
    }
}

fn dress(mount: &OwnedFd, entry: &KeptEntry, owners: Owners<'_>) -> io::Result<()> {
    if matches!(entry.kind, EntryKind::Same { .. }) {
        return Ok(());
    }
    let file = open_in(mount, &entry.path, OFlags::PATH)?.ok_or(io::ErrorKind::NotFound)?;
    let (uid, gid) = owners(entry.uid, entry.gid)
        .ok_or_else(|| io::Error::other("its owner is nobody in the sandbox"))?;
    let stat = fstat(&file)?;
    if (stat.st_uid, stat.st_gid) != (uid, gid) {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        chownat(&file, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path = Path::new(&path);
    if !matches!(entry.kind, EntryKind::Link { .. }) {
        chmod(path, Mode::from_raw_mode(entry.mode))?;
    }
    if matches!(entry.kind, EntryKind::File { .. } | EntryKind::Directory) {
        attributes(path, entry)?;
    }
    let [accessed, changed] =
        entry.times.map(|(tv_sec, nanoseconds)| Timespec { tv_sec, tv_nsec: nanoseconds.into() });
    let times = Timestamps { last_access: accessed, last_modification: changed };
    Ok(utimensat(&file, "", &times, AtFlags::EMPTY_PATH)?)
}

fn attributes(path: &Path, entry: &KeptEntry) -> io::Result<()> {
    let mut list = vec![0; 1 << 16];
    let len = listxattr(path, &mut list).unwrap_or(0);
    for name in list[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        removexattr(path, name)?;
    }
    for (name, value) in &entry.attributes {
        setxattr(path, name.as_str(), &value.0, XattrFlags::empty())?;
    }
    Ok(())
}
