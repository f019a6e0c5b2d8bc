//! What must move to other mounts, and what cannot.

use std::{
    collections::HashSet,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{
        AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat, StatxFlags, fstat, lstat, open, stat, statx,
    },
    io::Errno,
    process::{PidfdGetfdFlags, pidfd_getfd},
};

use super::{Exchange, Still};
use crate::{
    freeze::Held,
    image::{Alive, Descriptor, FileKind, MappingKind, OpenFile},
    restore::{look_up, open_again, watch_again},
};

/// A file or a directory in one of the mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Spot {
    mount: usize,
    /// From there.
    path: String,
}

/// What moves. Nothing was touched.
#[derive(Debug, Default)]
pub(super) struct Moves<'a> {
    /// Open files, and what they were.
    files: Vec<(usize, &'a OpenFile, Spot, Stat)>,
    /// What watches files of theirs.
    watches: Vec<(usize, &'a OpenFile)>,
    ids: Vec<u64>,
    /// Where names are looked up that are in no mount that is exchanged.
    root: Option<OwnedFd>,
    /// Files that are mapped and were changed in the sandbox: they stay, and must be the same under their names.
    mapped: Vec<(Spot, Stat)>,
    /// Numbers of mounts that something is mapped from, or that have a file without a name that is open.
    pub(super) in_use: HashSet<u64>,
    /// One for each process: its working directory in the new mounts, if it must change to it.
    pub(super) cwds: Vec<Option<OwnedFd>>,
}

/// Numbers of watches are made one by one while everything stands.
const NUMBER_MAX: i32 = 4096;

/// Why something cannot move.
#[derive(Debug)]
pub(super) struct Why(pub(super) String);

type Fixed<T> = Result<T, Why>;

impl From<String> for Why {
    fn from(why: String) -> Self {
        Self(why)
    }
}

impl From<&str> for Why {
    fn from(why: &str) -> Self {
        Self(why.to_owned())
    }
}

impl From<io::Error> for Why {
    fn from(err: io::Error) -> Self {
        Self(format!("what is open cannot be looked at ({err})"))
    }
}

impl From<Errno> for Why {
    fn from(err: Errno) -> Self {
        io::Error::from(err).into()
    }
}

/// The mounts that are exchanged, by their numbers.
struct Mounts<'a> {
    ids: Vec<u64>,
    all: &'a [Exchange<'a>],
}

impl Mounts<'_> {
    /// Where a name of the kernel's leads, which has no links in it. `None` is in no mount that is exchanged.
    fn spot(&self, id: u64, path: &str) -> Option<Spot> {
        let mount = self.ids.iter().position(|other| *other == id)?;
        let at = self.all[mount].at.to_str()?;
        let path = path.trim_start_matches('/').strip_prefix(at)?.trim_start_matches('/');
        Some(Spot { mount, path: path.to_owned() })
    }

    fn has(&self, id: u64) -> bool {
        self.ids.contains(&id)
    }
}

fn mount_id(directory: BorrowedFd<'_>, path: &str) -> io::Result<u64> {
    let flags = if path.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::empty() };
    Ok(statx(directory, path, flags, StatxFlags::MNT_ID)?.stx_mnt_id)
}

impl<'a> Moves<'a> {
    pub(super) fn look(still: &Still<'a>, mounts: &[Exchange<'_>]) -> Fixed<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(format!("/proc/{}/root", still.tree.init), flags, Mode::empty())?;
        let id = |mount: &Exchange<'_>| {
            let at = mount.at.to_str().ok_or(io::ErrorKind::InvalidInput)?;
            mount_id(root.as_fd(), at)
        };
        let ids = mounts.iter().map(id).collect::<io::Result<Vec<_>>>()?;
        let mut moves = Self { root: Some(root), ids: ids.clone(), ..Self::default() };
        let mounts = Mounts { ids, all: mounts };
        let mut seen = HashSet::new();
        for (held, _, alive) in still.alive() {
            moves.look_at_mappings(held, alive, &mounts)?;
            for Descriptor { number, file, .. } in &alive.descriptors {
                if seen.insert(*file) {
                    let open = (*file, &still.snapshot.files[*file]);
                    moves.look_at_file((held, *number), open, &mounts)?;
                }
            }
            moves.cwds.push(look_at_cwd(held, alive, &mounts)?);
        }
        if still.frozen.bystanders.iter().any(|held| holds_any(held, &mounts)) {
            return Err("somebody reads or writes files of it from outside".into());
        }
        Ok(moves)
    }

    /// What is mapped stays where it is.
    fn look_at_mappings(&mut self, held: &Held, alive: &Alive, mounts: &Mounts<'_>) -> Fixed<()> {
        self.in_use.insert(mount_id(CWD, &format!("/proc/{}/exe", held.pid))?);
        for mapping in alive.mappings.iter().filter(|mapping| has_file(&mapping.kind)) {
            let link =
                format!("/proc/{}/map_files/{:x}-{:x}", held.pid, mapping.start, mapping.end);
            let id = mount_id(CWD, &link)?;
            self.in_use.insert(id);
            let written = look_at_mapping((&link, id), path_of(&mapping.kind), mounts)?;
            if written.is_some() && matches!(mapping.kind, MappingKind::Shared { .. }) {
                // It would see nothing any more of what others write.
                return Err("a file that was written is mapped together".into());
            }
            let new = |(spot, _): &(Spot, Stat)| self.mapped.iter().all(|(other, _)| other != spot);
            let new = written.filter(new);
            self.mapped.extend(new);
        }
        Ok(())
    }

    fn look_at_file(
        &mut self,
        (held, number): (&Held, i32),
        (index, file): (usize, &'a OpenFile),
        mounts: &Mounts<'_>,
    ) -> Fixed<()> {
        match &file.kind {
            FileKind::Watch { watches } => {
                if watches.iter().any(|(number, ..)| *number > NUMBER_MAX) {
                    return Err("much was watched".into());
                }
                self.watches.push((index, file));
                return Ok(());
            }
            FileKind::Deleted { .. } => {
                let link = format!("/proc/{}/fd/{number}", held.pid);
                self.in_use.insert(mount_id(CWD, &link)?);
            }
            _ => {}
        }
        let found = look_at_open(held, number, file, mounts)?;
        self.files.extend(found.map(|(spot, stat)| (index, file, spot, stat)));
        Ok(())
    }

    /// The same files of the new mounts, as they were opened. What is open for writing is copied by the file system for
    /// that.
    pub(super) fn open(&self, mounts: &[Exchange<'_>]) -> Fixed<Vec<(usize, OwnedFd)>> {
        for (spot, was) in &self.mapped {
            let now = find(mounts, spot, OFlags::PATH).and_then(|fd| Ok(fstat(fd)?));
            if !now.is_ok_and(|now| is_same(was, &now) && was.st_ino == now.st_ino) {
                return Err(format!("`{}` is mapped, and would be another file", spot.path).into());
            }
        }
        let again = |(index, file, spot, was): &(usize, &OpenFile, Spot, Stat)| {
            let look_up = |flags| find(mounts, spot, flags);
            let fd = open_again(file, look_up)
                .map_err(|err| format!("`{}` cannot be opened again ({err})", spot.path))?;
            match fstat(&fd) {
                Ok(now) if is_same(was, &now) => Ok((*index, fd)),
                _ => Err(format!("`{}` would be another file", spot.path).into()),
            }
        };
        let mut opened = self.files.iter().map(again).collect::<Fixed<Vec<_>>>()?;
        // Last, for who watches would hear of what we open.
        for (index, file) in &self.watches {
            let watched = watch_again(file, |path| self.watched(mounts, path));
            let watched = watched.map_err(|err| format!("files cannot be watched again ({err})"));
            opened.push((*index, watched?));
        }
        Ok(opened)
    }

    /// A name that was found in the sandbox, in the mounts that it will have.
    fn watched(&self, mounts: &[Exchange<'_>], path: &str) -> io::Result<OwnedFd> {
        let root = self.root.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let old = look_up(root, path, flags, ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS)?;
        let id = mount_id(old.as_fd(), "")?;
        let mounts = Mounts { ids: self.ids.clone(), all: mounts };
        match mounts.spot(id, path) {
            Some(spot) => find(mounts.all, &spot, flags),
            None => Ok(old),
        }
    }
}

/// The kernel's name of a file that is there; no link is followed, and nothing leads out.
fn find(mounts: &[Exchange<'_>], spot: &Spot, flags: OFlags) -> io::Result<OwnedFd> {
    let confined = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    look_up(mounts[spot.mount].new, &spot.path, flags, confined)
}

/// The inode need not be: of a file that was copied because somebody had it open, an overlay tells the number of the one before.
fn is_same(was: &Stat, now: &Stat) -> bool {
    let what = |stat: &Stat| (stat.st_size, stat.st_mode, stat.st_mtime, stat.st_mtime_nsec);
    what(was) == what(now)
}

fn has_file(kind: &MappingKind) -> bool {
    matches!(
        kind,
        MappingKind::Private { .. } | MappingKind::Shared { .. } | MappingKind::Memory { .. }
    )
}

fn path_of(kind: &MappingKind) -> Option<&str> {
    match kind {
        MappingKind::Private { path, .. } | MappingKind::Shared { path, .. } => Some(path),
        _ => None,
    }
}

/// It must not be open for writing. The answer is one that the sandbox has changed.
fn look_at_mapping(
    (link, id): (&str, u64),
    path: Option<&str>,
    mounts: &Mounts<'_>,
) -> Fixed<Option<(Spot, Stat)>> {
    const WRITE: u32 = 0o200;
    if !mounts.has(id) {
        return Ok(None);
    }
    // The link tells how the file was opened.
    if lstat(link)?.st_mode & WRITE != 0 {
        let what = path.unwrap_or("a file without a name");
        return Err(format!("`{what}` is mapped, and was opened for writing").into());
    }
    let Some(spot) = path.and_then(|path| mounts.spot(id, path)) else { return Ok(None) };
    match lstat(mounts.all[spot.mount].upper.join(&spot.path)) {
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(err) => Err(err.into()),
        Ok(_) => Ok(Some((spot, stat(link)?))),
    }
}

fn look_at_open(
    held: &Held,
    number: i32,
    file: &OpenFile,
    mounts: &Mounts<'_>,
) -> Fixed<Option<(Spot, Stat)>> {
    let pull = || pidfd_getfd(&held.pidfd, number, PidfdGetfdFlags::empty());
    let is_path = |family: i32, address: &[u8]| {
        family == libc::AF_UNIX && address.get(2).is_some_and(|first| *first != 0)
    };
    let why = match &file.kind {
        FileKind::Path { path, directory, .. } => {
            let fd = pull()?;
            let Some(spot) = mounts.spot(mount_id(fd.as_fd(), "")?, path) else {
                return Ok(None);
            };
            match (directory, file.flags & (libc::O_PATH | libc::O_ACCMODE)) {
                // Databases know a file by its device and inode, and open it again when they need it once more: which of
                // their locks are whose, they would not know any more.
                (false, libc::O_RDWR) => format!("`{path}` is open to be read and written"),
                (false, _) if file.identity.is_some() => format!("`{path}` is a database"),
                // Only the one name would be copied.
                (false, libc::O_WRONLY) if fstat(&fd)?.st_nlink > 1 => {
                    format!("`{path}` has several names, and is open for writing")
                }
                // Who goes through directories compares what he meets with what he came from.
                (true, libc::O_RDONLY) => format!("directory `{path}` is open"),
                _ => return Ok(Some((spot, fstat(&fd)?))),
            }
        }
        FileKind::Deleted { .. } | FileKind::Memory { .. }
            if file.flags & libc::O_ACCMODE != libc::O_RDONLY =>
        {
            if !mounts.has(mount_id(pull()?.as_fd(), "")?) {
                return Ok(None);
            }
            "a file without a name is open for writing".to_owned()
        }
        FileKind::Fifo { path, .. } => format!("`{path}` is a pipe that is open"),
        FileKind::Listener(socket) if is_path(socket.family, &socket.address.0) => {
            "a socket with a name is open".to_owned()
        }
        FileKind::Datagram(socket)
            if socket.address.as_ref().is_some_and(|name| is_path(socket.family, &name.0)) =>
        {
            "a socket with a name is open".to_owned()
        }
        _ => return Ok(None),
    };
    Err(why.into())
}

/// Whoever stands on the root itself is taken along by the kernel.
fn look_at_cwd(held: &Held, alive: &Alive, mounts: &Mounts<'_>) -> Fixed<Option<OwnedFd>> {
    let id = mount_id(CWD, &format!("/proc/{}/cwd", held.pid))?;
    let Some(spot) = mounts.spot(id, &alive.cwd).filter(|_| alive.cwd != "/") else {
        return Ok(None);
    };
    let found = find(mounts.all, &spot, OFlags::PATH | OFlags::DIRECTORY);
    let again = found.map_err(|err| format!("`{}` cannot be opened again ({err})", alive.cwd))?;
    Ok(Some(again))
}

/// Process 1 and its copies work for others outside. What cannot be looked at counts as held.
fn holds_any(held: &Held, mounts: &Mounts<'_>) -> bool {
    let fds = format!("/proc/{}/fd", held.pid);
    let Ok(entries) = std::fs::read_dir(&fds) else { return true };
    let mut names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.any(|name| mount_id(CWD, &format!("{fds}/{name}")).map_or(true, |id| mounts.has(id)))
}
