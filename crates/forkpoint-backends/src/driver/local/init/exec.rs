//! Starting a command.

use std::{
    collections::BTreeMap,
    ffi::{CString, OsString},
    fs::File,
    io::{self, Write as _},
    os::{fd::OwnedFd, unix::ffi::OsStringExt as _},
};

use forkpoint_core::driver::Leaves;
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, fstat, openat},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, chdir, setsid},
    pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt},
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout},
    termios::{Winsize, tcsetwinsize},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};
use serde::{Deserialize, Serialize};

use super::{
    super::{caps, sys, wire::Text},
    keep,
};

/// What is written to a pipe in one piece.
const PIPE_BUF: usize = 4096;

#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) struct ExecRequest {
    pub(in super::super) argv: Vec<Text>,
    pub(in super::super) env: Vec<(Text, Text)>,
    pub(in super::super) workdir: Text,
    /// Make the directory if there is none.
    pub(in super::super) make_workdir: bool,
    pub(in super::super) user: User,
    /// Rows and columns.
    pub(in super::super) terminal: Option<(u16, u16)>,
    #[serde(default)]
    pub(in super::super) leaves: Leaves,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct User {
    pub(in super::super) uid: u32,
    pub(in super::super) gid: u32,
    pub(in super::super) groups: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) enum ExecStage {
    Start,
    Terminal,
    Workdir,
    User,
    Command,
}

#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) struct ExecFailure {
    pub(in super::super) stage: ExecStage,
    pub(in super::super) errno: Option<i32>,
    pub(in super::super) text: String,
}

impl ExecFailure {
    pub(in super::super) fn to_io(&self) -> io::Error {
        match self.errno {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::other(self.text.clone()),
        }
    }
}

trait At<T> {
    fn at(self, stage: ExecStage) -> Result<T, ExecFailure>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, stage: ExecStage) -> Result<T, ExecFailure> {
        self.map_err(|err| {
            let err = err.into();
            ExecFailure { stage, errno: err.raw_os_error(), text: err.to_string() }
        })
    }
}

/// Does not wait until the command runs.
pub(super) fn start(
    request: &ExecRequest,
    fds: Vec<OwnedFd>,
    terminals: &OwnedFd,
) -> Result<Starting, ExecFailure> {
    let (master, streams) = match request.terminal {
        Some(size) => {
            let (master, slave) = open_terminal(terminals, size).at(ExecStage::Terminal)?;
            (Some(master), Streams::Terminal(slave))
        }
        None => (None, pipes(fds).at(ExecStage::Start)?),
    };
    let (outcome, told) = pipe_with(PipeFlags::CLOEXEC).at(ExecStage::Start)?;
    match sys::fork().at(ExecStage::Start)? {
        None => {
            drop(outcome);
            let kept = keep::stand_between(request.leaves).at(ExecStage::Start);
            let Err(failure) = kept.and_then(|()| run(request, streams));
            tell(told, &failure)
        }
        Some(pid) => Ok(Starting { pid, outcome, terminal: master }),
    }
}

/// A process that is about to become the command. It may be stopped or killed by others in the
/// sandbox before it does, so nobody must wait for it alone.
#[derive(Debug)]
pub(super) struct Starting {
    pub(super) pid: Pid,
    /// Can be read when it is known whether the command runs.
    pub(super) outcome: OwnedFd,
    pub(super) terminal: Option<OwnedFd>,
}

impl Starting {
    /// The pipe closes when the command starts; before, only a failure comes through it, at once.
    pub(super) fn hear(&self) -> Result<(), ExecFailure> {
        let mut bytes = [0; PIPE_BUF];
        let len = rustix::io::read(&self.outcome, &mut bytes).at(ExecStage::Start)?;
        match &bytes[..len] {
            [] => Ok(()),
            told => {
                Err(serde_json::from_slice(told).map_err(io::Error::from).at(ExecStage::Start)?)
            }
        }
    }
}

fn tell(told: OwnedFd, failure: &ExecFailure) -> ! {
    if let Ok(bytes) = serde_json::to_vec(failure) {
        let _ = File::from(told).write_all(&bytes);
    }
    std::process::exit(127);
}

enum Streams {
    /// Without a standard input it is the sandbox's `/dev/null`.
    Pipes(Option<OwnedFd>, [OwnedFd; 2]),
    Terminal(OwnedFd),
}

fn pipes(mut fds: Vec<OwnedFd>) -> io::Result<Streams> {
    let stdin = (fds.len() == 3).then(|| fds.remove(0));
    match <[OwnedFd; 2]>::try_from(fds) {
        Ok(fds) => Ok(Streams::Pipes(stdin, fds)),
        Err(_) => Err(io::Error::other("two or three descriptors are needed")),
    }
}

/// From the sandbox's own terminals. `terminals` are those of the root that it had at first.
fn open_terminal(terminals: &OwnedFd, size: (u16, u16)) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let now = open_terminals(terminals);
    let master = openat(now.as_ref().unwrap_or(terminals), "ptmx", flags, Mode::empty())?;
    unlockpt(&master)?;
    let (ws_row, ws_col) = size;
    tcsetwinsize(&master, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    Ok((master, slave))
}

/// The same as they are mounted now, for the reason that [`open_null`] has. A path could lead anywhere: what it leads to must be the
/// same file system.
fn open_terminals(terminals: &OwnedFd) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let now = openat(CWD, "/dev/pts", flags, Mode::empty()).ok()?;
    let (now_stat, then) = (fstat(&now).ok()?, fstat(terminals).ok()?);
    (now_stat.st_dev == then.st_dev && now_stat.st_ino == then.st_ino).then_some(now)
}

fn run(request: &ExecRequest, streams: Streams) -> Result<std::convert::Infallible, ExecFailure> {
    sys::restore_signals();
    setsid().at(ExecStage::Start)?;
    let (stdin, [stdout, stderr]) = match streams {
        Streams::Pipes(stdin, fds) => (stdin.or_else(open_null), fds),
        Streams::Terminal(slave) => {
            sys::take_terminal(&slave).at(ExecStage::Terminal)?;
            // The group of a terminal may not exist inside.
            let _ = rustix::fs::fchown(
                &slave,
                rustix::fs::Uid::from_raw(request.user.uid).into(),
                None,
            );
            let copy = || slave.try_clone().at(ExecStage::Terminal);
            (Some(copy()?), [copy()?, slave])
        }
    };
    if request.make_workdir {
        make_workdir(request).at(ExecStage::Workdir)?;
    }
    become_user(&request.user).at(ExecStage::User)?;
    enter_workdir(request).at(ExecStage::Workdir)?;
    let place = stdin.map_or(Ok(()), dup2_stdin);
    let place = place.and_then(|()| dup2_stdout(&stdout)).and_then(|()| dup2_stderr(&stderr));
    place.at(ExecStage::Start)?;
    let argv: Vec<CString> =
        request.argv.iter().map(to_c).collect::<io::Result<_>>().at(ExecStage::Command)?;
    let env = environment(&request.env).at(ExecStage::Command)?;
    let mut refused = io::Error::from_raw_os_error(libc::ENOENT);
    for path in candidates(&argv, &request.env) {
        let err = sys::exec(&path, &argv, &env);
        // As a shell does: what cannot be executed is remembered, and the search goes on.
        if !matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) {
            refused = err;
        }
    }
    Err(refused).at(ExecStage::Command)
}

/// As it is now: what init has open is of the root that the sandbox had at first, and a seal puts another in its
/// place. From outside, nobody could tell what such a descriptor is. If somebody inside moved it away, init's will do.
fn open_null() -> Option<OwnedFd> {
    let flags =
        OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let null = openat(CWD, "/dev/null", flags, Mode::empty()).ok()?;
    let stat = fstat(&null).ok()?;
    let is_null = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && stat.st_rdev == rustix::fs::makedev(1, 3);
    rustix::fs::fcntl_setfl(&null, OFlags::RDWR).ok()?;
    is_null.then_some(null)
}

fn to_c(text: &Text) -> io::Result<CString> {
    Ok(CString::new(OsString::from(text.clone()).into_vec())?)
}

/// The last of several values counts.
fn environment(env: &[(Text, Text)]) -> io::Result<Vec<CString>> {
    let mut words = BTreeMap::new();
    for (key, value) in env {
        let mut word = OsString::from(key.clone());
        word.push("=");
        word.push(OsString::from(value.clone()));
        words.insert(OsString::from(key.clone()), CString::new(word.into_vec())?);
    }
    Ok(words.into_values().collect())
}

/// Where the program may be: where it says, or in one of the directories of `PATH`.
fn candidates(argv: &[CString], env: &[(Text, Text)]) -> Vec<CString> {
    let Some(program) = argv.first().map(CString::as_bytes).filter(|word| !word.is_empty()) else {
        return Vec::new();
    };
    if program.contains(&b'/') {
        return argv[..1].to_vec();
    }
    let path = env.iter().rev().find(|(key, _)| *key == Text::Utf8("PATH".to_owned()));
    let path = path.map(|(_, value)| OsString::from(value.clone()).into_vec()).unwrap_or_default();
    let directories = path.split(|byte| *byte == b':').filter(|directory| !directory.is_empty());
    let join = |directory: &[u8]| CString::new([directory, b"/", program].concat()).ok();
    directories.filter_map(join).collect()
}

fn become_user(user: &User) -> io::Result<()> {
    use rustix::fs::{Gid, Uid};
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    let groups: Vec<Gid> = user.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    match set_thread_groups(&groups) {
        // Where only one user exists inside, groups cannot be changed and need not be.
        Err(rustix::io::Errno::PERM) if user.uid == 0 && user.gid == 0 => {}
        result => result?,
    }
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

/// For root, as container runtimes do, whoever the command runs as.
fn make_workdir(request: &ExecRequest) -> io::Result<()> {
    let path = OsString::from(request.workdir.clone());
    match rustix::fs::stat(&path) {
        Err(rustix::io::Errno::NOENT) => {
            // Links of the sandbox may be on the way: they must lead nowhere that its root cannot go.
            caps::limit_to_bounding()?;
            std::fs::create_dir_all(&path)
        }
        _ => Ok(()),
    }
}

fn enter_workdir(request: &ExecRequest) -> io::Result<()> {
    Ok(chdir(OsString::from(request.workdir.clone()))?)
}
