//! Open files of the image, opened once for all processes: by process 1, inside.
//!
//! Each gets one of the plan's [`Numbers`]; copies of the process inherit them, so that what was shared is shared
//! again. Names are looked up in the sandbox's own root.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, AsRawFd as _, IntoRawFd as _, OwnedFd, RawFd},
};

use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use super::{
    Numbers, Plan,
    opener::{Opener, duplicate},
    shared, sockets, tcp, watches,
};
use crate::{
    error::{Doing as _, Error, Result},
    image::{Connection, EntryKind, FileKind, KeptEntry, MappingKind, OpenFile, OtherEnd, Process},
    mounts,
};

/// Opens everything at its number.
pub(super) fn open_all(plan: &Plan<'_>) -> Result<()> {
    raise_limit(plan.steps.numbers.end).system("raise the limit of descriptors")?;
    for (from, to) in plan.steps.numbers.of_chain(plan.chain) {
        copy_to(from, to).system("keep the pages open")?;
    }
    if !fills_later(plan) {
        fill_mounts(plan)?;
    }
    mapped_files(plan)?;
    for memory in &plan.snapshot().memories {
        let fd = shared::make(memory, plan.chain).system("make shared memory")?;
        let number = plan.steps.numbers.memory(&memory.id).system("make shared memory")?;
        place(fd, number).system("place a descriptor")?;
    }
    let mut opener = Opener::new(plan);
    let files = || plan.snapshot().files.iter().enumerate();
    // A terminal is there when its master is.
    let is_master = |file: &OpenFile| matches!(file.kind, FileKind::Master { .. });
    let masters = files().filter(|(_, file)| is_master(file));
    for (index, file) in masters.chain(files().filter(|(_, file)| !is_master(file))) {
        let fd = opener.open(index, file).map_err(|source| {
            let step = format!("open file {index} ({})", told(&file.kind));
            Error::Step { pid: opener.holder(index), step, source }
        })?;
        place(fd, plan.steps.numbers.file(index)).system("place a descriptor")?;
    }
    send_what_was_on_its_way(plan)?;
    finish_all(plan, &opener)
}

/// Whether nobody has opened, mapped or watches anything that is only there when they are filled. Then that can be
/// done while the processes take their places.
pub(super) fn fills_later(plan: &Plan<'_>) -> bool {
    let snapshot = plan.snapshot();
    let is_nothing = |entry: &KeptEntry| match &entry.kind {
        EntryKind::Link { .. } => true,
        EntryKind::Directory => entry.path.is_empty(),
        _ => false,
    };
    snapshot.mounts.iter().flat_map(|mount| &mount.entries).all(is_nothing)
        && !snapshot.files.iter().any(may_need_links)
}

/// What is watched can be a link, and an address may lead through one: it is what the program said. All other names are the
/// kernel's.
fn may_need_links(file: &OpenFile) -> bool {
    match &file.kind {
        FileKind::Watch { .. } => true,
        FileKind::Listener(listener) => listener.family == libc::AF_UNIX,
        FileKind::Datagram(datagram) => datagram.family == libc::AF_UNIX,
        FileKind::Pair { address, .. } => !address.0.is_empty(),
        _ => false,
    }
}

/// Names are looked up there too.
pub(super) fn fill_mounts(plan: &Plan<'_>) -> Result<()> {
    let mounts = &plan.snapshot().mounts;
    if mounts.is_empty() {
        return Ok(());
    }
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open("/", directory, Mode::empty()).file("open", "/")?;
    let filled = mounts::fill_all(&root, mounts, plan.chain, &|uid, gid| Some((uid, gid)));
    filled.map_err(|(path, source)| Error::File { doing: "fill", path, source })
}

pub(super) fn other_end<'a>(plan: &Plan<'a>, end: &Connection) -> Option<&'a Connection> {
    plan.snapshot().files.iter().find_map(|file| match &file.kind {
        FileKind::Connection(other) if tcp::belong(end, other) => Some(other),
        _ => None,
    })
}

fn send_what_was_on_its_way(plan: &Plan<'_>) -> Result<()> {
    let ends =
        plan.snapshot().files.iter().enumerate().filter_map(|(index, file)| match &file.kind {
            FileKind::Connection(end) if end.other_end == OtherEnd::Inside => Some((index, end)),
            _ => None,
        });
    for (index, end) in ends {
        let other = other_end(plan, end).ok_or_else(|| Error::System {
            doing: "find the other end of a connection",
            source: io::ErrorKind::NotFound.into(),
        })?;
        let fd = duplicate(plan.steps.numbers.file(index)).system("send what was on its way")?;
        tcp::fill(&fd, other).system("send what was on its way")?;
    }
    Ok(())
}

/// What needs others to be there, in this order: names of connections, listeners who have the same,
/// who is connected to a name, what is shut; and watches when nothing is opened any more.
fn finish_all(plan: &Plan<'_>, opener: &Opener<'_>) -> Result<()> {
    let steps: [Step; 6] = [
        sockets::name_connection,
        sockets::listen,
        sockets::connect,
        sockets::shut,
        tcp::settle,
        watches::watch,
    ];
    for step in steps {
        for (index, file) in plan.snapshot().files.iter().enumerate() {
            step(plan.steps.numbers.file(index), &file.kind).map_err(|source| {
                let step = format!("open file {index} ({})", told(&file.kind));
                Error::Step { pid: opener.holder(index), step, source }
            })?;
        }
    }
    Ok(())
}

type Step = fn(RawFd, &FileKind) -> io::Result<()>;

pub(super) fn close_all(numbers: &Numbers) {
    // SAFETY: nobody else in this process uses these numbers: they were found free.
    #[expect(unsafe_code, reason = "a whole range is closed")]
    unsafe {
        libc::syscall(libc::SYS_close_range, numbers.free, numbers.end - 1, 0)
    };
}

fn raise_limit(end: RawFd) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = end as u64 + 64;
    if limit.current.is_some_and(|current| current < wanted) {
        let current = Some(limit.maximum.unwrap_or(wanted).max(wanted));
        setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum })?;
    }
    Ok(())
}

#[expect(unsafe_code, reason = "descriptors are placed by number")]
fn copy_to(from: RawFd, to: RawFd) -> io::Result<()> {
    // SAFETY: numbers from the base up are ours.
    if unsafe { libc::dup3(from, to, libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn place(fd: OwnedFd, to: RawFd) -> io::Result<()> {
    if fd.as_raw_fd() == to {
        let _ = fd.into_raw_fd();
        return Ok(());
    }
    copy_to(fd.as_raw_fd(), to)
}

fn told(kind: &FileKind) -> String {
    match kind {
        FileKind::Path { path, .. } | FileKind::Fifo { path, .. } => format!("`{path}`"),
        FileKind::Listener(_) => "a listening socket".to_owned(),
        FileKind::Terminal { terminal } | FileKind::Master { terminal, .. } => {
            format!("pseudo-terminal {terminal}")
        }
        kind => format!("{kind:?}").chars().take(24).collect(),
    }
}

/// Mapped files must be what they were; of those that are only seen privately, the size tells.
fn mapped_files(plan: &Plan<'_>) -> Result<()> {
    let mut sizes: HashMap<&str, u64> = HashMap::new();
    for alive in plan.snapshot().processes.iter().filter_map(Process::alive) {
        for mapping in &alive.mappings {
            if let MappingKind::Private { path, len_bytes, .. } = &mapping.kind {
                sizes.insert(path, *len_bytes);
            }
        }
    }
    for (path, (number, writable)) in &plan.steps.numbers.mapped {
        let flags = if *writable { OFlags::RDWR } else { OFlags::RDONLY };
        let fd = inside(path, flags).file("open", path)?;
        let stat = fstat(&fd).file("look at", path)?;
        let fits = sizes.get(path.as_str()).is_none_or(|size| *size == stat.st_size as u64);
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !fits {
            let source = io::Error::other("it is not what it was when the snapshot was taken");
            return Err(Error::File { doing: "use", path: path.clone(), source });
        }
        place(fd, *number).system("place a descriptor")?;
    }
    Ok(())
}

/// Opens a name in this root; a link in it cannot lead out, and nothing is waited for.
pub(super) fn inside(path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open("/", directory, Mode::empty())?;
    look_up(root, path, flags, confined)
}

pub(crate) fn look_up(
    root: impl AsFd,
    path: &str,
    flags: OFlags,
    confined: ResolveFlags,
) -> io::Result<OwnedFd> {
    // With `O_PATH` no other flag is allowed.
    let flags = match flags.contains(OFlags::PATH) {
        true => flags & (OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW),
        false => flags | OFlags::NOCTTY,
    };
    let flags = flags | OFlags::CLOEXEC;
    let name = path.trim_start_matches('/');
    let name = if name.is_empty() { "." } else { name };
    Ok(openat2(root, name, flags, Mode::empty(), confined)?)
}
