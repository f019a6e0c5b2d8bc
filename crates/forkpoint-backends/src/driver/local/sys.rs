//! The system calls that nobody else wraps. All `unsafe` of the launcher is here.

#![expect(unsafe_code, reason = "raw system calls; each says why it is sound")]

use std::{
    ffi::{CStr, CString, c_int},
    io, mem,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
    ptr,
};

use rustix::{process::Pid, thread::UnshareFlags};
use tokio::io::unix::AsyncFd;

pub(super) const NEW_USER: u64 = libc::CLONE_NEWUSER as u64;
pub(super) const NEW_NET: u64 = libc::CLONE_NEWNET as u64;
pub(super) const NEW_MOUNTS: u64 = libc::CLONE_NEWNS as u64;
pub(super) const NEW_REST: u64 =
    (libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS) as u64;

const INTO_CGROUP: u64 = 0x2_0000_0000;

const _: () = assert!(size_of::<libc::clone_args>() == 88, "the form of Linux 5.7 and later");

/// Copies this process: `None` is the copy. There must be one thread: the copy of a lock that another
/// thread holds is never released, and the first allocation may wait for one.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the processes that call this have one thread, so the child may do what it likes.
    let pid = check(unsafe { libc::fork() }.into())?;
    Ok(Pid::from_raw(pid as i32))
}

/// Copies this process into new namespaces, and into `cgroup` if there is one: `None` is the copy.
pub(super) fn clone(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Option<Pid>> {
    be_alone()?;
    copy(flags, libc::SIGCHLD, cgroup)
}

/// The same by one that was copied just now: the new one is its parent's child.
fn clone_beside(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Option<Pid>> {
    // It tells its end as its maker would.
    copy(flags | libc::CLONE_PARENT as u64, 0, cgroup)
}

fn copy(flags: u64, at_end: c_int, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Option<Pid>> {
    // SAFETY: all zero is a valid value for a struct of integers.
    let mut args: libc::clone_args = unsafe { mem::zeroed() };
    args.flags = flags;
    args.exit_signal = at_end as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: no memory is shared with the child and no stack is given, so this is fork(2). There is
    // one thread, so the child may do what it likes.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    Ok(Pid::from_raw(check(result)? as i32))
}

/// The same, where namespaces of users and of network, in this order, are there already and all others belong to these users.
pub(super) fn clone_inside(
    there: [OwnedFd; 2],
    flags: u64,
    cgroup: Option<BorrowedFd<'_>>,
) -> io::Result<Option<Pid>> {
    use rustix::pipe::{PipeFlags, pipe_with};
    be_alone()?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    // Whoever enters them has no rights of the host's any more. So a copy does, and makes the one that is wanted, which is
    // our own child.
    if fork()?.is_some() {
        drop(writer);
        let mut told = [0; 4];
        let len = rustix::io::read(&reader, &mut told)?;
        // That it is ours lets it end when we do.
        mem::forget(reader);
        return match i32::from_ne_bytes(told) {
            _ if len != told.len() => Err(io::Error::other("who was to make it ended")),
            error @ ..0 => Err(io::Error::from_raw_os_error(-error)),
            pid => Ok(Pid::from_raw(pid)),
        };
    }
    let made = enter(&there).and_then(|()| clone_beside(flags, cgroup));
    let told = match made {
        Ok(None) => return Ok(None),
        Ok(Some(pid)) => pid.as_raw_nonzero().get(),
        Err(err) => -err.raw_os_error().unwrap_or(libc::EIO),
    };
    end_later(&writer, told)
}

/// Tells a number, and ends when nobody is left who could read another: to end takes as long as to be made, and whoever was
/// told needs the processor now.
fn end_later(writer: &OwnedFd, told: i32) -> ! {
    use rustix::event::{PollFd, PollFlags, poll};
    let _ = rustix::stdio::dup2_stdin(writer);
    // Nothing of what we were copied with is kept from anybody.
    close_from(1);
    let writer = take_fd(0);
    let _ = rustix::io::write(&writer, &told.to_ne_bytes());
    let mut fds = [PollFd::new(&writer, PollFlags::empty())];
    while let Err(rustix::io::Errno::INTR) = poll(&mut fds, None) {}
    // SAFETY: ends this process without anything that the program registered for its end.
    unsafe { libc::_exit(0) }
}

fn enter([users, network]: &[OwnedFd; 2]) -> io::Result<()> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    move_into_link_name_space(users.as_fd(), Some(LinkNameSpaceType::User))?;
    Ok(move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?)
}

fn be_alone() -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    // As any directory it has two links, and one for each that is in it.
    match std::fs::metadata("/proc/self/task") {
        Ok(tasks) if tasks.nlink() != 2 + 1 => {
            Err(io::Error::other("a process with several threads must not be copied"))
        }
        _ => Ok(()),
    }
}

/// Leaves namespaces of the given kinds for new ones.
pub(super) fn unshare(kinds: UnshareFlags) -> io::Result<()> {
    // SAFETY: none of the kinds that are used here concerns memory or descriptors.
    Ok(unsafe { rustix::thread::unshare_unsafe(kinds) }?)
}

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

fn mount_setattr(mount: impl AsFd, attr: &MountAttr) -> io::Result<()> {
    // SAFETY: the path is a C string, and `attr` has the size that is told.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    check(result).map(drop)
}

/// Files of a detached mount appear with the owners that `namespace` maps theirs to.
pub(super) fn map_owners(mount: impl AsFd, namespace: impl AsFd) -> io::Result<()> {
    let user_namespace = namespace.as_fd().as_raw_fd() as u64;
    let attr = MountAttr { set: libc::MOUNT_ATTR_IDMAP, clear: 0, propagation: 0, user_namespace };
    mount_setattr(mount, &attr)
}

pub(super) fn set_mount_flags(mount: impl AsFd, set: u64) -> io::Result<()> {
    mount_setattr(mount, &MountAttr { set, clear: 0, propagation: 0, user_namespace: 0 })
}

/// Puts a read-only view of what has this name in the place of a descriptor: by a copy of this process, which has
/// the right to do so in namespaces of its own and is to be waited for. If it fails, `place` is what it was.
///
/// When this returns, it is done, and only the namespaces have to go.
pub(super) fn view_inside(path: &CStr, place: impl AsFd) -> io::Result<Pid> {
    let place = place.as_fd().as_raw_fd();
    // SAFETY: all zero is a valid value for a struct of integers.
    let mut args: libc::clone_args = unsafe { mem::zeroed() };
    args.flags =
        (libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_FILES | libc::CLONE_VFORK) as u64;
    // SAFETY: no memory is shared with the child and no stack is given, so this is fork(2). There may be other
    // threads: until it ends, the child does nothing but system calls, and allocates nothing.
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    if let Some(pid) = Pid::from_raw(check(result)? as i32) {
        return Ok(pid);
    }
    if let Ok(view) = open_tree(path)
        && set_mount_flags(&view, libc::MOUNT_ATTR_RDONLY).is_ok()
    {
        // SAFETY: the number stays that of an open descriptor, whose owner asked for this.
        unsafe { libc::dup3(view.as_raw_fd(), place, libc::O_CLOEXEC) };
    }
    // SAFETY: ends this process without anything that the program registered for its end.
    unsafe { libc::_exit(0) }
}

fn open_tree(path: &CStr) -> io::Result<OwnedFd> {
    use rustix::mount::{OpenTreeFlags, open_tree};
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(open_tree(rustix::fs::CWD, path, flags)?)
}

/// As whom this thread makes files from now on.
pub(super) fn set_file_owner(uid: u32, gid: u32) {
    // SAFETY: plain integers; glibc's wrappers are for this thread only. They report no errors.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
}

/// A descriptor that tells of children that ended. Blocks all signals for good.
pub(super) fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: the sets are initialised by sigfillset and sigemptyset before they are read.
    unsafe {
        let mut all = mem::zeroed();
        libc::sigfillset(&raw mut all);
        check(libc::sigprocmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut()).into())?;
        let mut children = mem::zeroed();
        libc::sigemptyset(&raw mut children);
        libc::sigaddset(&raw mut children, libc::SIGCHLD);
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        let fd = check(libc::signalfd(-1, &raw const children, flags).into())?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// As a program expects to find its signals: none blocked, none ignored.
pub(super) fn reset_signals() {
    // SAFETY: SIG_DFL is valid for every signal; what cannot be set (KILL, STOP) fails and is left.
    unsafe {
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none = mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// The same in a copy of a process whose signals were reset before: what its start and
/// [`forget_children`] changed since.
pub(super) fn restore_signals() {
    // SAFETY: SIG_DFL is valid for both.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none = mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// Children that end are gone at once, and nobody must wait for them.
pub(super) fn forget_children() {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// To one process, or with a negative number to its group; -1 is everybody but us.
pub(super) fn kill(target: i32, signal: c_int) -> io::Result<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::kill(target, signal) }.into()).map(drop)
}

/// Becomes another program. Returns only to fail, and unlike libc's relatives of it does not take
/// what is no program for a shell script.
pub(super) fn exec(path: &CStr, argv: &[CString], env: &[CString]) -> io::Error {
    let pointers = |words: &[CString]| -> Vec<*const libc::c_char> {
        words.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both end with a null pointer, and the words that they point to outlive the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// Closes every descriptor from `first` up.
pub(super) fn close_from(first: RawFd) {
    // SAFETY: the callers own no descriptor from there on that they use again.
    unsafe { libc::syscall(libc::SYS_close_range, first as u32, u32::MAX, 0) };
}

/// Descriptors from `first` up do not survive an exec.
pub(super) fn close_on_exec_from(first: RawFd) {
    // SAFETY: this closes nothing now.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first as u32,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC as c_int,
        )
    };
}

/// Moves `fds` to the numbers from 3 up, and closes everything else from there on.
pub(super) fn keep_only<const N: usize>(fds: [OwnedFd; N]) -> io::Result<[OwnedFd; N]> {
    const OUT_OF_THE_WAY: RawFd = 64;
    let mut placed = Vec::with_capacity(N);
    for fd in fds {
        placed.push(rustix::io::fcntl_dupfd_cloexec(&fd, OUT_OF_THE_WAY)?);
        // Its number may be one of those that are given out below.
        mem::forget(fd);
    }
    for (number, fd) in (3..).zip(&placed) {
        // SAFETY: whatever had this number is forgotten: the caller keeps only `fds`.
        check(unsafe { libc::dup3(fd.as_raw_fd(), number, libc::O_CLOEXEC) }.into())?;
    }
    mem::forget(placed);
    close_from(3 + N as RawFd);
    // SAFETY: just made, one for each number.
    Ok(std::array::from_fn(|index| unsafe { OwnedFd::from_raw_fd(3 + index as RawFd) }))
}

/// The descriptor with this number, which must be open and nobody else's.
pub(super) fn take_fd(number: RawFd) -> OwnedFd {
    // SAFETY: called once for a number that the parent process put there for us.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Makes the terminal the controlling one of this session.
pub(super) fn take_terminal(terminal: impl AsFd) -> io::Result<()> {
    // SAFETY: the request takes an integer.
    let result = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSCTTY, 0) };
    check(result.into()).map(drop)
}

/// Starts the loopback interface of this network namespace.
pub(super) fn loopback_up() -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    // SAFETY: the request reads an `ifreq`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    check(result.into()).map(drop)
}

/// Capabilities stay as they are when user ids change.
pub(super) fn keep_capabilities() -> io::Result<()> {
    const NO_SETUID_FIXUP: u64 = 1 << 2;
    // SAFETY: plain integers.
    let bits = check(unsafe { libc::prctl(libc::PR_GET_SECUREBITS) }.into())? as u64;
    // SAFETY: plain integers.
    let result = unsafe { libc::prctl(libc::PR_SET_SECUREBITS, bits | NO_SETUID_FIXUP) };
    check(result.into()).map(drop)
}

/// A descriptor that does not block, for tasks to wait on.
pub(super) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` has the same number from its beginning to its end, and is open as long.
    unsafe { AsyncFd::register(fd) }.map_err(io::Error::from)
}

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
