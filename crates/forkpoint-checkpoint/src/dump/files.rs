//! Open files of all processes: what they are, and who shares which.
//!
//! Descriptors are copied here (`pidfd_getfd`) and looked at; nothing is done with them that could wait.

use std::{
    collections::HashMap,
    fs, io,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::fs::FileExt as _,
    },
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2},
    pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, tee},
    process::{PidfdGetfdFlags, pidfd_getfd},
};

use super::{
    proc::{FdInfo, link},
    socket::{self, UnixSockets},
    task::{Draft, whole_timer},
    terminal,
};
use crate::{
    coverage::{self, DEVICES, Findings, Whose},
    freeze::{Held, Tree},
    image::{Bytes, Descriptor, FileKind, Lock, OpenFile},
    sys,
};

/// Of a file that has no name any more.
const DELETED_MAX: u64 = 64 << 20;
const KEPT_FLAGS: i32 = !(libc::O_CLOEXEC | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC);

const TERMINAL: &str =
    "who looks at it is not captured; run it in `tmux`, or end that session first";

/// Who has an open file under which number.
type Holder = (i32, i32);

#[derive(Debug)]
pub(super) struct Files {
    pub(super) files: Vec<OpenFile>,
    /// Device and inode, to find the same file faster than by comparing with all.
    index: HashMap<(u64, u64), Vec<usize>>,
    holders: Vec<Holder>,
    inodes: Vec<u64>,
    /// Ends of pipes that somebody outside could still use.
    half_pipes: Vec<(usize, u64, bool, Whose)>,
    root: OwnedFd,
    sockets: UnixSockets,
    /// Groups of terminals are told by their numbers outside.
    inside: HashMap<i32, i32>,
    /// Whether what leads outside is a client's.
    clients: bool,
}

impl Files {
    pub(super) fn new(tree: &Tree, inside: HashMap<i32, i32>) -> io::Result<Self> {
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
        let list = fs::read_dir(format!("/proc/{pid}/fd"))?;
        let numbers = list.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut numbers: Vec<i32> = numbers.collect();
        numbers.sort_unstable();
        for number in numbers {
            let fd = pidfd_getfd(&held.pidfd, number, PidfdGetfdFlags::empty())?;
            let stat = fstat(&fd)?;
            let info = FdInfo::of(pid, number)?;
            let close_on_exec = info.flags()? & libc::O_CLOEXEC != 0;
            let known = self.find(&stat, (pid, number))?;
            let file = match known {
                Some(file) => Some(file),
                None => self.open_file(&fd, &stat, &info, (pid, number), draft, findings)?,
            };
            if let Some(file) = file {
                draft.alive.descriptors.push(Descriptor { number, file, close_on_exec });
            }
        }
        self.check_polls(pid, draft, findings);
        Ok(())
    }

    fn find(&self, stat: &Stat, holder: Holder) -> io::Result<Option<usize>> {
        for file in self.index.get(&(stat.st_dev, stat.st_ino)).into_iter().flatten() {
            if sys::task::same_file(holder, self.holders[*file])? {
                return Ok(Some(*file));
            }
        }
        Ok(None)
    }

    fn open_file(
        &mut self,
        fd: &OwnedFd,
        stat: &Stat,
        info: &FdInfo,
        holder: Holder,
        draft: &Draft,
        findings: &mut Findings,
    ) -> io::Result<Option<usize>> {
        let (pid, number) = holder;
        let name = link(&format!("/proc/{pid}/fd/{number}"))?;
        let flags = info.flags()? & KEPT_FLAGS;
        if flags & libc::O_ASYNC != 0 {
            let thing = format!("descriptor {number} that signals");
            findings.refuse(&draft.whose, thing, "whom it signals is not captured");
        }
        let seen = Seen { fd, stat, info, name: &name, flags, number };
        let kind = match self.kind(&seen, draft) {
            Ok(kind) => kind,
            Err(reason) => {
                let thing = format!("`{name}` (descriptor {number})");
                findings.refuse(&draft.whose, thing, &reason);
                return Ok(None);
            }
        };
        let file = self.files.len();
        if let FileKind::Pipe { pipe, .. } = &kind {
            self.half_pipes.push((file, *pipe, is_writer(flags), draft.whose.clone()));
        }
        self.files.push(OpenFile { flags, kind });
        self.holders.push(holder);
        self.inodes.push(stat.st_ino);
        self.index.entry((stat.st_dev, stat.st_ino)).or_default().push(file);
        Ok(Some(file))
    }

    fn kind(&self, seen: &Seen<'_>, draft: &Draft) -> Result<FileKind, String> {
        match FileType::from_raw_mode(seen.stat.st_mode) {
            FileType::Fifo if seen.name.starts_with("pipe:") => pipe(seen),
            FileType::Socket => socket::kind(seen, &self.sockets),
            FileType::RegularFile | FileType::Directory => self.path(seen),
            FileType::CharacterDevice => terminal::kind(seen, draft, &self.inside),
            FileType::Fifo => Err("pipes with a name are not captured yet; use others".to_owned()),
            _ => match seen.name.strip_prefix("anon_inode:") {
                Some(kind) => anonymous(kind, seen),
                None => Err("this kind of file is not known to come back".to_owned()),
            },
        }
    }

    fn path(&self, seen: &Seen<'_>) -> Result<FileKind, String> {
        if seen.name.starts_with("/memfd:") {
            return Err(coverage::mapping(seen.name).to_owned());
        }
        let directory = FileType::from_raw_mode(seen.stat.st_mode) == FileType::Directory;
        if seen.stat.st_nlink == 0 && !directory {
            return deleted(seen);
        }
        if !self.leads_to(seen) {
            let why = "its name leads elsewhere now: it was renamed, replaced or deleted";
            return Err(format!("{why}; close it first"));
        }
        let lock = lock(seen.info)?;
        let (path, position) = (seen.name.to_owned(), seen.info.position());
        Ok(FileKind::Path { path, position, directory, lock })
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

    /// What a poll watches must be what its process has under that number.
    fn check_polls(&self, pid: i32, draft: &Draft, findings: &mut Findings) {
        for descriptor in &draft.alive.descriptors {
            let file = &self.files[descriptor.file];
            let FileKind::Poll { watched, .. } = &file.kind else { continue };
            if self.holders[descriptor.file] != (pid, descriptor.number) {
                continue;
            }
            for (number, ..) in watched {
                let has = draft.alive.descriptors.iter().any(|other| other.number == *number);
                if !has {
                    let thing = format!("a poll of descriptor {number}, which it has not");
                    findings.refuse(&draft.whose, thing, "somebody else's is not captured");
                }
            }
        }
    }

    /// Pipes must have both ends here, unless the other is closed or a client's.
    pub(super) fn check_pipes(&mut self, findings: &mut Findings) -> io::Result<()> {
        for (file, pipe, writer, whose) in &self.half_pipes {
            let is_other =
                |other: &(usize, u64, bool, Whose)| other.1 == *pipe && other.2 != *writer;
            if self.half_pipes.iter().any(is_other) {
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

    /// Whoever has the other side of a terminal is part of the tree, or nobody knows what comes of it.
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

    fn is_shut(&self, file: usize, writer: bool) -> io::Result<bool> {
        let (pid, number) = self.holders[file];
        let flags = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::PATH;
        let path = format!("/proc/{pid}/fd/{number}");
        let _ = rustix::fs::open(path, flags, Mode::empty())?;
        let pid = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        let fd = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty())?;
        let shut = if writer { PollFlags::ERR } else { PollFlags::HUP };
        let mut fds = [PollFd::new(&fd, PollFlags::empty())];
        poll(&mut fds, Some(&Timespec::default()))?;
        Ok(fds[0].revents().contains(shut))
    }
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

fn is_writer(flags: i32) -> bool {
    flags & libc::O_ACCMODE == libc::O_WRONLY
}

fn told(err: impl Into<io::Error>) -> String {
    format!("it cannot be read ({})", err.into())
}

fn pipe(seen: &Seen<'_>) -> Result<FileKind, String> {
    let capacity = fcntl_getpipe_size(seen.fd).map_err(told)? as u32;
    let content = match is_writer(seen.flags) {
        true => Vec::new(),
        false => pipe_content(seen.fd, capacity).map_err(told)?,
    };
    Ok(FileKind::Pipe { pipe: seen.stat.st_ino, capacity, content: Bytes(content) })
}

/// Without taking it out.
fn pipe_content(fd: &OwnedFd, capacity: u32) -> io::Result<Vec<u8>> {
    let waiting = rustix::io::ioctl_fionread(fd)? as usize;
    if waiting == 0 {
        return Ok(Vec::new());
    }
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // A copied page takes a place in the other pipe even if it holds one byte.
    fcntl_setpipe_size(&writer, (capacity as usize).max(1 << 20))?;
    tee(fd, &writer, waiting, SpliceFlags::NONBLOCK)?;
    let mut content = vec![0; waiting];
    let mut filled = 0;
    while filled < waiting {
        match rustix::io::read(&reader, &mut content[filled..]) {
            Ok(0) | Err(rustix::io::Errno::AGAIN) => break,
            Ok(len) => filled += len,
            Err(err) => return Err(err.into()),
        }
    }
    if filled == waiting { Ok(content) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn deleted(seen: &Seen<'_>) -> Result<FileKind, String> {
    let len = seen.stat.st_size as u64;
    if len > DELETED_MAX {
        return Err(format!("it has no name, and more than {} MiB", DELETED_MAX >> 20));
    }
    let mut content = vec![0; len as usize];
    // The program may have opened it for writing only.
    let path = format!("/proc/self/fd/{}", seen.fd.as_fd().as_raw_fd());
    let file = fs::File::open(path).map_err(told)?;
    file.read_exact_at(&mut content, 0).map_err(told)?;
    Ok(FileKind::Deleted {
        content: Bytes(content),
        position: seen.info.position(),
        mode: seen.stat.st_mode & 0o7777,
        inode: seen.stat.st_ino,
    })
}

fn lock(info: &FdInfo) -> Result<Option<Lock>, String> {
    let mut found = None;
    for line in info.lines("lock:") {
        let mut words = line.split_whitespace().skip(1);
        found = match (words.next(), words.next(), words.next()) {
            (Some("FLOCK"), _, Some("WRITE")) => Some(Lock::Exclusive),
            (Some("FLOCK"), _, Some("READ")) => Some(Lock::Shared),
            (kind, ..) => {
                let kind = kind.unwrap_or("unknown").to_lowercase();
                return Err(format!("a lock of kind {kind} is not captured yet; release it first"));
            }
        };
    }
    Ok(found)
}

fn anonymous(kind: &str, seen: &Seen<'_>) -> Result<FileKind, String> {
    let field = |key: &str| {
        let value = seen.info.field(key);
        value.ok_or_else(|| format!("`{key}` is not told by this kernel"))
    };
    let odd = || "what the kernel tells of it is not understood".to_owned();
    let hex = |text: &str| u64::from_str_radix(text, 16).map_err(|_| odd());
    match kind {
        "[eventfd]" => Ok(FileKind::Event {
            count: hex(field("eventfd-count:")?)?,
            semaphore: seen.info.field("eventfd-semaphore:") == Some("1"),
        }),
        "[timerfd]" => {
            let [value, rest] = pair(field("it_value:")?).ok_or_else(odd)?;
            let [interval, interval_rest] = pair(field("it_interval:")?).ok_or_else(odd)?;
            Ok(FileKind::Timer {
                clock: field("clockid:")?.parse().map_err(|_| odd())?,
                value: whole_timer([interval, interval_rest, value, rest]),
                ticks: field("ticks:")?.parse().map_err(|_| odd())?,
            })
        }
        "[signalfd]" => Ok(FileKind::Signal { mask: hex(field("sigmask:")?)? }),
        "[eventpoll]" => {
            let watched = seen.info.lines("tfd:").map(watched).collect::<Option<Vec<_>>>();
            Ok(FileKind::Poll { owner: seen.number, watched: watched.ok_or_else(odd)? })
        }
        kind => Err(coverage::anonymous(kind).to_owned()),
    }
}

/// `(1, 2)`
fn pair(text: &str) -> Option<[u64; 2]> {
    let (one, other) = text.trim_matches(['(', ')']).split_once(',')?;
    Some([one.trim().parse().ok()?, other.trim().parse().ok()?])
}

/// `5 events:       19 data:                5  pos:0 ino:2b sdev:f`
fn watched(line: &str) -> Option<(i32, u32, u64)> {
    let mut words = line.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let events = words.nth(1)?;
    let data = words.nth(1)?;
    Some((number, u32::from_str_radix(events, 16).ok()?, u64::from_str_radix(data, 16).ok()?))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_poll_watches_is_parsed() {
        let line = "5 events:       19 data:               1f  pos:0 ino:2b sdev:f";
        assert_eq!(watched(line), Some((5, 0x19, 0x1f)));
        assert_eq!(watched("x"), None);
        assert_eq!(pair("(1, 250)"), Some([1, 250]));
        assert_eq!(pair("1"), None);
    }

    #[test]
    fn a_pipe_is_read_without_taking_anything_out() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        for part in [b"one".as_slice(), b"two", b"three"] {
            rustix::io::write(&writer, part).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(pipe_content(&reader, 65536).unwrap(), b"onetwothree");
        }
        let mut buffer = [0; 32];
        assert_eq!(rustix::io::read(&reader, &mut buffer).unwrap(), 11);
        assert_eq!(pipe_content(&reader, 65536).unwrap(), b"");
    }
}
