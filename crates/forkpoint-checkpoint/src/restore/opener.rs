//! One open file after the other, each as it was.

use std::{
    collections::{HashMap, hash_map::Entry},
    io::{self, Write as _},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
};

use rustix::{
    event::EventfdFlags,
    fs::{FileType, Mode, OFlags, fcntl_setfl, fstat},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType},
    pipe::{PipeFlags, fcntl_setpipe_size, pipe_with},
};

use super::{
    Plan,
    files::{inside, other_end},
    sockets,
    tcp::Connector,
    watches,
};
use crate::{
    coverage::DEVICES,
    image::{Bytes, FileKind, FileLock, Lock, OpenFile, Process, RangeLock},
    sys::socket,
};

pub(super) struct Opener<'a> {
    plan: &'a Plan<'a>,
    /// A file that was opened and is an end of it, by the pipe's number: from either, both can be had.
    pipes: HashMap<u64, usize>,
    /// The other end of a pair of which one was asked for, by its number.
    pairs: HashMap<u64, OwnedFd>,
    connections: Connector,
    /// Pipes with a name, both ends.
    fifos: HashMap<u64, OwnedFd>,
    /// A file that was opened and is the same, by its number.
    deleted: HashMap<u64, usize>,
}

impl<'a> Opener<'a> {
    pub(super) fn new(plan: &'a Plan<'a>) -> Self {
        Self {
            plan,
            pipes: HashMap::new(),
            pairs: HashMap::new(),
            connections: Connector::default(),
            fifos: HashMap::new(),
            deleted: HashMap::new(),
        }
    }

    /// Some process that has it.
    pub(super) fn holder(&self, file: usize) -> i32 {
        let has = |process: &&Process| {
            process.alive().is_some_and(|alive| alive.descriptors.iter().any(|d| d.file == file))
        };
        self.plan.snapshot().processes.iter().find(has).map_or(1, |process| process.pid)
    }

    /// The file with this index. What is opened is put at its number before the next.
    pub(super) fn open(&mut self, index: usize, file: &OpenFile) -> io::Result<OwnedFd> {
        let fd = self.open_kind(index, file)?;
        lock(&fd, file)?;
        Ok(fd)
    }

    fn open_kind(&mut self, index: usize, file: &OpenFile) -> io::Result<OwnedFd> {
        let flags = OFlags::from_bits_retain(file.flags as u32);
        match &file.kind {
            FileKind::Path { path, .. } => open_named(file, |flags| inside(path, flags)),
            FileKind::Deleted { content, position, mode, inode } => {
                let fd = self.deleted(index, content, *mode, *inode, flags)?;
                rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(*position))?;
                Ok(fd)
            }
            FileKind::Memory { memory, position } => {
                let number = self.plan.steps.numbers.memory(memory)?;
                let fd = reopen(number, flags.difference(OFlags::TMPFILE | OFlags::NOFOLLOW))?;
                rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(*position))?;
                Ok(fd)
            }
            FileKind::Client { .. } if flags.contains(OFlags::WRONLY) => {
                open_path("/dev/null", flags, false, |flags| inside("/dev/null", flags))
            }
            FileKind::Pipe { pipe, capacity, content }
            | FileKind::Client { pipe, capacity, content } => {
                self.pipe(index, *pipe, *capacity, content, flags)
            }
            FileKind::Event { count, semaphore } => event(*count, *semaphore, flags),
            FileKind::Timer { clock, value, ticks } => timer(*clock, value, *ticks, flags),
            FileKind::Signal { mask } => signals(*mask, flags),
            FileKind::Poll { .. } => {
                use rustix::event::epoll::{CreateFlags, create};
                Ok(create(CreateFlags::CLOEXEC)?)
            }
            FileKind::Pair { socket, peer, kind, queued, options, .. } => {
                let fd = self.pair(*socket, *peer, *kind, queued, flags)?;
                sockets::options(&fd, options)?;
                Ok(fd)
            }
            FileKind::Listener(listener) => sockets::listener(listener, flags),
            FileKind::Datagram(socket) => sockets::datagram(socket, flags),
            // Whoever has it opens it when the process is there.
            FileKind::Process { .. } => {
                Ok(rustix::fs::open("/dev/null", OFlags::CLOEXEC, Mode::empty())?)
            }
            FileKind::Connection(end) => {
                self.connections.open(end, other_end(self.plan, end), flags)
            }
            FileKind::Watch { .. } => watches::open(flags),
            FileKind::Fifo { path, pipe, capacity, content } => {
                self.fifo(path, *pipe, *capacity, content, flags)
            }
            FileKind::Master { terminal, settings, size, locked, .. } => {
                master(*terminal, &settings.0, *size, *locked, flags)
            }
            FileKind::Terminal { terminal } => Ok(rustix::fs::open(
                format!("/dev/pts/{terminal}"),
                flags | OFlags::CLOEXEC | OFlags::NOCTTY,
                Mode::empty(),
            )?),
        }
    }

    fn deleted(
        &mut self,
        index: usize,
        content: &Bytes,
        mode: u32,
        inode: u64,
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        let flags = flags.difference(OFlags::TMPFILE | OFlags::NOFOLLOW);
        if let Some(same) = self.deleted.get(&inode) {
            return reopen(self.plan.steps.numbers.file(*same), flags);
        }
        let new = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        let fd =
            rustix::fs::open("/tmp", new, mode).or_else(|_| rustix::fs::open("/", new, mode))?;
        let mut file = std::fs::File::from(fd);
        file.write_all(&content.0)?;
        self.deleted.insert(inode, index);
        reopen(file.as_raw_fd(), flags)
    }

    /// Each open file of the image is an open file of its own, also where several are one end.
    fn pipe(
        &mut self,
        index: usize,
        pipe: u64,
        capacity: u32,
        content: &Bytes,
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        let fd = match self.pipes.get(&pipe) {
            Some(end) => reopen(self.plan.steps.numbers.file(*end), flags)?,
            None => {
                let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
                set_capacity(&writer, capacity)?;
                self.pipes.insert(pipe, index);
                let is_writer = flags.contains(OFlags::WRONLY);
                reopen(if is_writer { writer } else { reader }.as_raw_fd(), flags)?
            }
        };
        if !content.0.is_empty() {
            // Nobody may write where nobody could read.
            let both = reopen(fd.as_raw_fd(), OFlags::RDWR)?;
            fill_pipe(&both, &content.0)?;
        }
        Ok(fd)
    }

    /// Opened at both ends first, so that nobody waits for the other.
    fn fifo(
        &mut self,
        path: &str,
        pipe: u64,
        capacity: u32,
        content: &Bytes,
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        if let Entry::Vacant(place) = self.fifos.entry(pipe) {
            let both = inside(path, OFlags::RDWR | OFlags::NONBLOCK)?;
            if FileType::from_raw_mode(fstat(&both)?.st_mode) != FileType::Fifo {
                return Err(io::Error::other("it is of another kind than it was"));
            }
            set_capacity(&both, capacity)?;
            place.insert(both);
        }
        if !content.0.is_empty() {
            fill_pipe(&self.fifos[&pipe], &content.0)?;
        }
        let fd = inside(path, flags | OFlags::NONBLOCK)?;
        fcntl_setfl(&fd, flags & OFlags::NONBLOCK)?;
        Ok(fd)
    }

    fn pair(
        &mut self,
        socket: u64,
        peer: u64,
        kind: i32,
        queued: &[Bytes],
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        let (ours, theirs) = match self.pairs.remove(&socket) {
            Some(ours) => {
                let index = self.plan.snapshot().files.iter().position(
                    |file| matches!(&file.kind, FileKind::Pair { socket, .. } if *socket == peer),
                );
                let index = index.ok_or_else(|| io::Error::other("its other end is missing"))?;
                (ours, duplicate(self.plan.steps.numbers.file(index))?)
            }
            None => {
                let kind = SocketType::from_raw(kind as u32);
                let flags = SocketFlags::CLOEXEC;
                let (ours, theirs) =
                    rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
                // One that is closed will be.
                if peer != 0 {
                    self.pairs.insert(peer, theirs.try_clone()?);
                }
                (ours, theirs)
            }
        };
        for message in queued {
            write_now(&theirs, &message.0)?;
        }
        fcntl_setfl(&ours, flags & OFlags::NONBLOCK)?;
        Ok(ours)
    }
}

#[expect(unsafe_code, reason = "a descriptor is known by its number")]
pub(super) fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the number is one of ours, and the copy is nobody else's.
    let fd = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// All at once: what was there fits again.
fn write_now(fd: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    fcntl_setfl(fd, OFlags::NONBLOCK)?;
    while !bytes.is_empty() {
        let len = rustix::io::write(fd, bytes)?;
        bytes = &bytes[len..];
    }
    Ok(fcntl_setfl(fd, OFlags::empty())?)
}

/// A user who has very many pipes gets small ones only: better such a one than none.
fn set_capacity(pipe: &OwnedFd, capacity: u32) -> io::Result<()> {
    match fcntl_setpipe_size(pipe, capacity as usize) {
        Ok(_) | Err(Errno::PERM) => Ok(()),
        Err(err) => Err(err.into()),
    }
}

fn fill_pipe(pipe: &OwnedFd, content: &[u8]) -> io::Result<()> {
    write_now(pipe, content).map_err(|err| match err.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::other("more was in it than the many pipes of this user may hold now")
        }
        _ => err,
    })
}

/// The same file, opened once more.
fn reopen(number: RawFd, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{number}");
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// A file with a name, looked up in its own way, with its place and its locks.
pub(crate) fn open_again(
    file: &OpenFile,
    look_up: impl Fn(OFlags) -> io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    let fd = open_named(file, look_up)?;
    lock(&fd, file)?;
    Ok(fd)
}

fn open_named(
    file: &OpenFile,
    look_up: impl Fn(OFlags) -> io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    let FileKind::Path { path, position, directory, lock } = &file.kind else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::from_bits_retain(file.flags as u32);
    let fd = open_path(path, flags, *directory, look_up)?;
    if *position != 0 && !flags.contains(OFlags::PATH) {
        rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(*position))?;
    }
    lock.map_or(Ok(()), |lock| lock_whole(&fd, lock))?;
    Ok(fd)
}

/// Locks of it besides that of a file with a name as a whole.
fn lock(fd: &OwnedFd, file: &OpenFile) -> io::Result<()> {
    for lock in &file.locks {
        match lock {
            FileLock::Whole(lock) => lock_whole(fd, *lock)?,
            FileLock::Part(RangeLock { lock, start, end }) => {
                let record = socket::record(*lock == Lock::Exclusive, *start, *end);
                socket::lock_part(fd.as_raw_fd(), &record)?;
            }
        }
    }
    Ok(())
}

fn lock_whole(fd: &OwnedFd, lock: Lock) -> io::Result<()> {
    socket::lock_file(fd.as_raw_fd(), lock == Lock::Exclusive)
}

fn open_path(
    path: &str,
    flags: OFlags,
    directory: bool,
    look_up: impl Fn(OFlags) -> io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    let flags = if directory { flags | OFlags::DIRECTORY } else { flags };
    // A fifo that took the name would be waited for.
    let plain = flags.difference(OFlags::TMPFILE) | (flags & OFlags::DIRECTORY);
    let fd = look_up(plain | OFlags::NONBLOCK)?;
    let wanted = match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
        FileType::Directory => directory,
        FileType::RegularFile => !directory,
        FileType::CharacterDevice => DEVICES.contains(&path),
        _ => false,
    };
    if !wanted {
        return Err(io::Error::other("it is of another kind than it was"));
    }
    if !flags.contains(OFlags::PATH) && !flags.contains(OFlags::NONBLOCK) {
        fcntl_setfl(&fd, flags & (OFlags::APPEND | OFlags::DIRECT | OFlags::NOATIME))?;
    }
    Ok(fd)
}

fn event(count: u64, semaphore: bool, flags: OFlags) -> io::Result<OwnedFd> {
    let mut how = EventfdFlags::CLOEXEC;
    how.set(EventfdFlags::SEMAPHORE, semaphore);
    let fd = rustix::event::eventfd(0, how)?;
    if count > 0 {
        rustix::io::write(&fd, &count.to_ne_bytes())?;
    }
    fcntl_setfl(&fd, flags & OFlags::NONBLOCK)?;
    Ok(fd)
}

fn timer(clock: i32, value: &[u64; 4], ticks: u64, flags: OFlags) -> io::Result<OwnedFd> {
    let fd = socket::timer(clock, value, ticks)?;
    fcntl_setfl(&fd, flags & OFlags::NONBLOCK)?;
    Ok(fd)
}

fn signals(mask: u64, flags: OFlags) -> io::Result<OwnedFd> {
    let fd = socket::signals(mask)?;
    fcntl_setfl(&fd, flags & OFlags::NONBLOCK)?;
    Ok(fd)
}

fn master(
    terminal: u32,
    settings: &[u8],
    size: [u16; 4],
    locked: bool,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mut others = Vec::new();
    // Numbers are given out from the lowest; what is too low is held until the right one comes.
    let fd = loop {
        let fd = rustix::fs::open("/dev/ptmx", flags, Mode::empty())?;
        match socket::terminal_number(fd.as_raw_fd())? {
            number if number == terminal => break fd,
            number if number > terminal => {
                return Err(io::Error::other("its number is taken by another terminal"));
            }
            _ => others.push(fd),
        }
    };
    socket::lock_terminal(fd.as_raw_fd(), locked)?;
    socket::set_terminal_settings(fd.as_raw_fd(), settings)?;
    socket::set_terminal_size(fd.as_raw_fd(), size)?;
    Ok(fd)
}
