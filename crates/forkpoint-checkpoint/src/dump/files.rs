//! Open files of all processes: what they are, and who shares which.
//!
//! Descriptors are copied here (`pidfd_getfd`) and looked at; nothing is done with them that could wait.

use std::{
    cell::{Cell, OnceCell},
    cmp::Ordering,
    collections::{HashMap, HashSet},
    io,
    os::fd::OwnedFd,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fcntl_getfl, fstat, openat2},
    process::{PidfdGetfdFlags, pidfd_getfd},
};

use super::{
    Connections, anonymous, locks, pipe,
    proc::FdInfo,
    socket::{self, UnixSockets},
    task::Draft,
    terminal, watch,
};
use crate::{
    coverage::{DEVICES, Findings, Reason, Whose},
    freeze::{Held, Tree},
    image::{DATABASE_MARK, Descriptor, FileKind, Identity, MemoryId, OpenFile, Process},
    mounts::Names,
    sys::{self, Deadline},
};

const KEPT_FLAGS: i32 = !(libc::O_CLOEXEC | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC);

const USERFAULTFD: &str = "anon_inode:[userfaultfd]";
const TERMINAL: &str =
    "who looks at it is not captured; run it in `tmux`, or end that session first";

const ELSEWHERE: &str = "its name leads elsewhere now: it was renamed, replaced or deleted";
const NOT_YET: &str = "files are opened before the process is there that it tells of; \
                       close it first, or try again when who reads it is done";

/// Who has an open file under which number.
type Holder = (i32, i32);

#[derive(Debug)]
pub(super) struct Files {
    pub(super) files: Vec<OpenFile>,
    /// Device and inode, to find the same file faster than by comparing with all.
    index: HashMap<(u64, u64), Vec<usize>>,
    pub(super) holders: Vec<Holder>,
    inodes: Vec<u64>,
    /// Ends of pipes that somebody outside could still use.
    half_pipes: Vec<(usize, u64, bool, Whose)>,
    root: OwnedFd,
    sockets: UnixSockets,
    /// Groups of terminals are told by their numbers outside.
    pub(super) inside: HashMap<i32, i32>,
    /// Whether what leads outside is a client's.
    clients: bool,
    /// Files without a name that are mapped.
    mapped: HashSet<MemoryId>,
    names: Names,
    pub(super) connections: Connections,
    /// Until when it is looked for what is watched, since somebody was found who watches.
    search: OnceCell<Deadline>,
    /// How much there is of files without a name.
    pub(super) deleted_bytes: Cell<u64>,
}

impl Files {
    pub(super) fn new(
        tree: &Tree,
        inside: HashMap<i32, i32>,
        mapped: HashSet<MemoryId>,
        names: Names,
        connections: Connections,
    ) -> io::Result<Self> {
        let init = tree.init;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(format!("/proc/{init}/root"), flags, Mode::empty())?;
        Ok(Self {
            files: Vec::new(),
            index: HashMap::new(),
            holders: Vec::new(),
            inodes: Vec::new(),
            half_pipes: Vec::new(),
            root,
            sockets: UnixSockets::of(init),
            inside,
            clients: tree.clients,
            mapped,
            names,
            connections,
            search: OnceCell::new(),
            deleted_bytes: Cell::new(0),
        })
    }

    /// Adds what one process has open.
    pub(super) fn add(
        &mut self,
        held: &Held,
        draft: &mut Draft,
        findings: &mut Findings,
    ) -> io::Result<()> {
        let pid = held.pid;
        let mut numbers = draft.proc.numbers("fd")?;
        numbers.sort_unstable();
        for number in numbers {
            let name = format!("fd/{number}");
            let stat = draft.proc.stat(&name)?;
            if self.clients && is_nameless(&stat) && draft.proc.link(&name)? == USERFAULTFD {
                draft.left.push(number);
                continue;
            }
            let pull = || pidfd_getfd(&held.pidfd, number, PidfdGetfdFlags::empty());
            let info = FdInfo::of(&draft.proc, number)?;
            let close_on_exec = info.flags()? & libc::O_CLOEXEC != 0;
            let known = self.find(&stat, (pid, number))?;
            let file = match known {
                Ok(file) => Some(file),
                Err(place) => {
                    let (fd, name) = (pull()?, draft.proc.link(&name)?);
                    let flags = info.flags()? & KEPT_FLAGS;
                    let (fd, stat, info) = (&fd, &stat, &info);
                    let seen = Seen { fd, stat, info, name: &name, flags, number };
                    let file = self.open_file(&seen, pid, draft, findings)?;
                    if let Some(file) = file {
                        let same = self.index.entry((stat.st_dev, stat.st_ino)).or_default();
                        same.insert(place, file);
                    }
                    file
                }
            };
            draft.alive.locks.extend(locks::of_process(&info, number));
            if let Some(file) = file {
                if close_on_exec && is_device(&stat) && is_ambiguous(&pull()?)? {
                    draft.unsure.push(draft.alive.descriptors.len());
                }
                draft.alive.descriptors.push(Descriptor { number, file, close_on_exec });
            }
        }
        Ok(())
    }

    /// The open file, or its place among those of the same inode, which are in order.
    fn find(&self, stat: &Stat, holder: Holder) -> io::Result<Result<usize, usize>> {
        let same = self.index.get(&(stat.st_dev, stat.st_ino)).map_or(&[][..], Vec::as_slice);
        let (mut low, mut high) = (0, same.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            match sys::task::compare_files(holder, self.holders[same[middle]])? {
                Ordering::Equal => return Ok(Ok(same[middle])),
                Ordering::Less => high = middle,
                Ordering::Greater => low = middle + 1,
            }
        }
        Ok(Err(low))
    }

    fn open_file(
        &mut self,
        seen: &Seen<'_>,
        pid: i32,
        draft: &Draft,
        findings: &mut Findings,
    ) -> io::Result<Option<usize>> {
        let Seen { stat, info, name, flags, number, .. } = *seen;
        if flags & libc::O_ASYNC != 0 {
            let thing = format!("descriptor {number} that signals");
            findings.refuse(&draft.whose, thing, "whom it signals is not captured");
        }
        let kind = self.kind(seen, draft).and_then(|kind| Ok((kind, locks::of_file(info)?)));
        let (mut kind, mut locks) = match kind {
            Ok(kind) => kind,
            Err(reason) => {
                let thing = format!("`{name}` (descriptor {number})");
                findings.refuse(&draft.whose, thing, reason);
                return Ok(None);
            }
        };
        if let FileKind::Path { lock, .. } = &mut kind {
            *lock = locks::take_whole(&mut locks);
        }
        let file = self.files.len();
        if let FileKind::Pipe { pipe, .. } = &kind {
            self.half_pipes.push((file, *pipe, is_writer(flags), draft.whose.clone()));
        }
        let identity = identity(seen, &kind);
        self.files.push(OpenFile { flags, kind, locks, identity });
        self.holders.push((pid, number));
        self.inodes.push(stat.st_ino);
        Ok(Some(file))
    }

    fn kind(&self, seen: &Seen<'_>, draft: &Draft) -> Result<FileKind, Reason> {
        match FileType::from_raw_mode(seen.stat.st_mode) {
            FileType::Fifo if seen.name.starts_with("pipe:") => pipe::kind(seen),
            FileType::Fifo if self.leads_to(seen) => pipe::named(seen),
            FileType::Fifo => Err(format!("{ELSEWHERE}; close it first").into()),
            FileType::Socket => {
                socket::kind(seen, &self.sockets, &draft.alive.cwd, self.connections)
            }
            FileType::RegularFile | FileType::Directory => self.path(seen),
            FileType::CharacterDevice => terminal::kind(seen, draft, &self.inside),
            _ => match seen.name.strip_prefix("anon_inode:") {
                Some("inotify") => {
                    let waiting = rustix::io::ioctl_fionread(seen.fd).map_err(told)?;
                    let limit = *self.search.get_or_init(|| Deadline::after(watch::SEARCH));
                    watch::kind(seen.info, waiting, (&self.root, &draft.alive.cwd), limit)
                }
                Some(kind) => anonymous::kind(kind, seen),
                None => Err("this kind of file is not known to come back".into()),
            },
        }
    }

    fn path(&self, seen: &Seen<'_>) -> Result<FileKind, Reason> {
        let memory = (seen.stat.st_dev, seen.stat.st_ino);
        if seen.name.starts_with("/memfd:") || self.mapped.contains(&memory) {
            return Ok(FileKind::Memory { memory, position: seen.info.position() });
        }
        let directory = FileType::from_raw_mode(seen.stat.st_mode) == FileType::Directory;
        if seen.stat.st_nlink == 0 && !directory {
            return self.deleted(seen);
        }
        let path = match self.leads_to(seen) {
            true => seen.name.to_owned(),
            false => match self.names.get(&memory) {
                Some(other) => other.clone(),
                None => return Err(format!("{ELSEWHERE}; close it first").into()),
            },
        };
        if tells_of_a_process(&path) {
            return Err(Reason::passing(NOT_YET));
        }
        let position = seen.info.position();
        Ok(FileKind::Path { path, position, directory, lock: None })
    }

    /// Whether the sandbox would find the same file under its name.
    fn leads_to(&self, seen: &Seen<'_>) -> bool {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let name = seen.name.trim_start_matches('/');
        let name = if name.is_empty() { "." } else { name };
        let found = openat2(&self.root, name, flags, Mode::empty(), confined).and_then(fstat);
        let wanted = (seen.stat.st_dev, seen.stat.st_ino);
        found.is_ok_and(|found| (found.st_dev, found.st_ino) == wanted)
    }

    /// Pipes must have both ends here, unless the other is closed or a client's.
    pub(super) fn check_pipes(&mut self, findings: &mut Findings) -> io::Result<()> {
        let ends: HashSet<(u64, bool)> =
            self.half_pipes.iter().map(|(_, pipe, writer, _)| (*pipe, *writer)).collect();
        for (file, pipe, writer, whose) in &self.half_pipes {
            if ends.contains(&(*pipe, !writer)) {
                continue;
            }
            if self.clients {
                let kind = &mut self.files[*file].kind;
                if let FileKind::Pipe { pipe, capacity, content } = kind {
                    let content = std::mem::take(content);
                    *kind = FileKind::Client { pipe: *pipe, capacity: *capacity, content };
                }
                continue;
            }
            if self.is_shut(*file, *writer)? {
                continue;
            }
            let (_, number) = self.holders[*file];
            let thing = format!("a pipe to somebody outside (descriptor {number})");
            findings.refuse(whose, thing, "the other end is not captured; redirect it to a file");
        }
        Ok(())
    }

    /// A terminal whose other side a client has: what that is set to is asked at this side.
    pub(super) fn add_masters(&mut self, drafts: &[Draft]) -> io::Result<()> {
        if !self.clients {
            return Ok(());
        }
        for file in 0..self.files.len() {
            let FileKind::Terminal { terminal } = self.files[file].kind else { continue };
            let is_it = |file: &OpenFile| matches!(file.kind, FileKind::Master { terminal: other, .. } if other == terminal);
            if self.files.iter().any(is_it) {
                continue;
            }
            let controls = drafts.iter().find(|draft| draft.alive.terminal == Some(terminal));
            let foreground = controls.and_then(|draft| self.inside.get(&draft.foreground_outside));
            let foreground = foreground.copied().unwrap_or(0);
            let kind = terminal::master_of(&self.pull(file)?, terminal, foreground)?;
            let (flags, locks, identity) = (libc::O_RDWR, Vec::new(), None);
            self.files.push(OpenFile { flags, kind, locks, identity });
            self.holders.push(self.holders[file]);
            self.inodes.push(0);
        }
        Ok(())
    }

    /// Whoever has the other side of a terminal is part of the tree or a client, or nobody knows what comes of it.
    pub(super) fn check_terminals(&self, drafts: &[Draft], findings: &mut Findings) {
        let is_here = |wanted: u32| {
            let is_it = |file: &OpenFile| matches!(file.kind, FileKind::Master { terminal, .. } if terminal == wanted);
            self.files.iter().any(is_it)
        };
        for draft in drafts {
            let open = draft.alive.descriptors.iter().find_map(|descriptor| {
                match self.files[descriptor.file].kind {
                    FileKind::Terminal { terminal } if !is_here(terminal) => {
                        Some(descriptor.number)
                    }
                    _ => None,
                }
            });
            if let Some(number) = open {
                let thing = format!("a terminal of somebody outside (descriptor {number})");
                findings.refuse(&draft.whose, thing, TERMINAL);
            }
        }
    }

    /// The other end of a connection must be here, and must know this one, unless it is closed.
    pub(super) fn check_pairs(&self, drafts: &[Draft], findings: &mut Findings) {
        let ends = self.files.iter().filter_map(|file| match &file.kind {
            FileKind::Pair { socket, peer, .. } => Some((*socket, *peer)),
            _ => None,
        });
        let ends: HashMap<u64, u64> = ends.collect();
        for draft in drafts {
            for Descriptor { number, file, .. } in &draft.alive.descriptors {
                let FileKind::Pair { socket, peer, .. } = &self.files[*file].kind else { continue };
                if *peer != 0 && ends.get(peer) != Some(socket) {
                    let thing = format!("a connection to somebody outside (descriptor {number})");
                    findings.refuse(&draft.whose, thing, "the other end is not captured; close it");
                }
            }
        }
    }

    /// Who has a descriptor of a process must be made after it: be one of its ancestors, or itself.
    pub(super) fn check_processes(
        &self,
        drafts: &[Draft],
        dead: &[Process],
        findings: &mut Findings,
    ) {
        let parent_of: HashMap<i32, i32> = drafts
            .iter()
            .map(|draft| {
                let parent = self.inside.get(&draft.parent_outside).copied().unwrap_or(1);
                (draft.whose.pid, parent)
            })
            .chain(dead.iter().map(|process| (process.pid, process.parent)))
            .collect();
        for draft in drafts {
            for Descriptor { number, file, .. } in &draft.alive.descriptors {
                let FileKind::Process { pid } = self.files[*file].kind else { continue };
                let mut ancestors =
                    std::iter::successors(Some(pid), |pid| parent_of.get(pid).copied());
                if !ancestors.any(|ancestor| ancestor == draft.whose.pid) {
                    let thing = format!("process {pid} as descriptor {number}");
                    findings.refuse(&draft.whose, thing, "it is not its child; close it first");
                }
            }
        }
    }

    /// A copy of somebody's descriptor of an open file.
    pub(super) fn pull(&self, file: usize) -> io::Result<OwnedFd> {
        let (pid, number) = self.holders[file];
        let pid = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        Ok(pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty())?)
    }

    fn is_shut(&self, file: usize, writer: bool) -> io::Result<bool> {
        let fd = self.pull(file)?;
        let shut = if writer { PollFlags::ERR } else { PollFlags::HUP };
        let mut fds = [PollFd::new(&fd, PollFlags::empty())];
        poll(&mut fds, Some(&Timespec::default()))?;
        Ok(fds[0].revents().contains(shut))
    }
}

/// A terminal may have been opened with the flag as one of the file (`TIOCGPTPEER`), and then it is told of
/// every descriptor.
fn is_ambiguous(fd: &OwnedFd) -> io::Result<bool> {
    Ok(fcntl_getfl(fd)?.contains(OFlags::CLOEXEC))
}

fn is_device(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
}

/// Whether it may be one of the kernel's own things, which have no kind, or that of a file.
fn is_nameless(stat: &Stat) -> bool {
    use FileType::{BlockDevice, CharacterDevice, Directory, Fifo, Socket};
    let kind = FileType::from_raw_mode(stat.st_mode);
    !matches!(kind, BlockDevice | CharacterDevice | Directory | Fifo | Socket)
}

/// A descriptor, and what was found out about it.
pub(super) struct Seen<'a> {
    pub(super) fd: &'a OwnedFd,
    pub(super) stat: &'a Stat,
    pub(super) info: &'a FdInfo,
    pub(super) name: &'a str,
    pub(super) flags: i32,
    pub(super) number: i32,
}

/// Of a database: a library that has it open knows it by that.
fn identity(seen: &Seen<'_>, kind: &FileKind) -> Option<Identity> {
    let is_readable = seen.flags & libc::O_PATH == 0 && !is_writer(seen.flags);
    let FileKind::Path { directory: false, .. } = kind else { return None };
    if !is_readable || seen.stat.st_size < DATABASE_MARK.len() as i64 {
        return None;
    }
    let mut start = [0; DATABASE_MARK.len()];
    // What cannot be looked at is none of ours.
    sys::memory::peek(seen.fd, &mut start).ok()?;
    let (device, inode) = (seen.stat.st_dev, seen.stat.st_ino);
    (start == *DATABASE_MARK).then_some(Identity { device, inode })
}

pub(super) fn is_writer(flags: i32) -> bool {
    flags & libc::O_ACCMODE == libc::O_WRONLY
}

pub(super) fn told(err: impl Into<io::Error>) -> String {
    format!("it cannot be read ({})", err.into())
}

/// A device that is the same everywhere.
pub(super) fn device(seen: &Seen<'_>) -> Option<FileKind> {
    DEVICES.contains(&seen.name).then(|| FileKind::Path {
        path: seen.name.to_owned(),
        position: 0,
        directory: false,
        lock: None,
    })
}

/// Of any process but the first, which is always there.
fn tells_of_a_process(path: &str) -> bool {
    let number = path.strip_prefix("/proc/").and_then(|rest| rest.split('/').next());
    number.and_then(|number| number.parse::<u32>().ok()).is_some_and(|number| number != 1)
}
