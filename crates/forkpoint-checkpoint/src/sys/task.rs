//! Making and asking about tasks.

use std::{cmp::Ordering, io, mem, ptr};

use super::check;

/// Copies this process, which must have one thread; the copy has the number `pid` in its namespace.
/// `None` is the copy.
pub(crate) fn fork_as(pid: i32) -> io::Result<Option<i32>> {
    let numbers = [pid];
    // SAFETY: all zero is a valid value for a struct of integers.
    let mut args: libc::clone_args = unsafe { mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    args.set_tid = numbers.as_ptr() as u64;
    args.set_tid_size = 1;
    // SAFETY: no memory is shared with the child and no stack is given, so this is fork(2). There is
    // one thread, so the child may do what it likes.
    let result =
        check(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) })?;
    Ok((result != 0).then_some(result as i32))
}

/// Copies this process, which must have one thread, into new namespaces. `None` is the copy.
pub(crate) fn fork_into(namespaces: u64) -> io::Result<Option<i32>> {
    // SAFETY: all zero is a valid value for a struct of integers.
    let mut args: libc::clone_args = unsafe { mem::zeroed() };
    args.flags = namespaces;
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: no memory is shared with the child and no stack is given, so this is fork(2). There is
    // one thread, so the child may do what it likes.
    let result =
        check(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) })?;
    Ok((result != 0).then_some(result as i32))
}

/// From now on, this thread makes files as this user and group, and keeps its rights over all others.
pub(crate) fn make_files_as((uid, gid): (u32, u32)) -> io::Result<()> {
    use rustix::thread::{capabilities, set_capabilities};
    let rights = capabilities(None)?;
    // SAFETY: these take numbers and change this thread only.
    unsafe { libc::syscall(libc::SYS_setfsgid, gid) };
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_setfsuid, uid) };
    // Whoever stops being root for files loses rights, which are still his to take again.
    Ok(set_capabilities(None, rights)?)
}

/// Starts the loopback interface of this network namespace.
pub(crate) fn loopback_up() -> io::Result<()> {
    use std::os::fd::AsRawFd as _;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    let fd = socket.as_raw_fd();
    // SAFETY: the request reads an `ifreq`.
    check(unsafe { libc::ioctl(fd, libc::SIOCSIFFLAGS, &raw const request) }.into()).map(drop)
}

/// Open files have an order, so that one is found among many without comparing with all.
pub(crate) fn compare_files(one: (i32, i32), other: (i32, i32)) -> io::Result<Ordering> {
    const FILE: i32 = 0;
    match kcmp_order(one.0, other.0, FILE, one.1, other.1)? {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        _ => Ok(Ordering::Greater),
    }
}

/// Whether two processes share something else than threads do: memory, descriptors, directories.
pub(crate) fn shares(one: i32, other: i32) -> io::Result<Option<&'static str>> {
    for (kind, what) in [(1, "memory"), (2, "descriptors"), (3, "its working directory")] {
        if kcmp(one, other, kind, 0, 0)? {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

/// What two threads of a process do not share, of that which they need not.
pub(crate) fn keeps_to_itself(leader: i32, thread: i32) -> io::Result<Option<&'static str>> {
    for (kind, what) in [(2, "descriptors"), (3, "a working directory")] {
        if !kcmp(leader, thread, kind, 0, 0)? {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

/// Whether a descriptor is what a poll watches under the number `watched`; of several, the one with this
/// index.
pub(crate) fn is_polled(
    descriptor: (i32, i32),
    poll: (i32, i32),
    watched: i32,
    index: u32,
) -> io::Result<bool> {
    const POLLED: i64 = 7;
    let slot = [poll.1 as u32, watched as u32, index];
    // SAFETY: the last argument points to three numbers, as the kernel wants it.
    let result = check(unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            i64::from(descriptor.0),
            i64::from(poll.0),
            POLLED,
            descriptor.1 as u64,
            slot.as_ptr(),
        )
    })?;
    Ok(result == 0)
}

fn kcmp(one: i32, other: i32, kind: i32, first: i32, second: i32) -> io::Result<bool> {
    kcmp_order(one, other, kind, first, second).map(|order| order == 0)
}

/// 0 if they are the same, 1 or 2 if one comes before or after the other.
fn kcmp_order(one: i32, other: i32, kind: i32, first: i32, second: i32) -> io::Result<i64> {
    // SAFETY: plain integers.
    check(unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            i64::from(one),
            i64::from(other),
            i64::from(kind),
            first as u64,
            second as u64,
        )
    })
}

pub(crate) const LIMITS: u32 = 16;

pub(crate) fn limits(pid: i32) -> io::Result<Vec<(u64, u64)>> {
    (0..LIMITS)
        .map(|kind| {
            let mut limit = [0u64; 2];
            // SAFETY: `limit` is a pair of numbers, as the kernel writes it.
            check(unsafe {
                libc::syscall(libc::SYS_prlimit64, i64::from(pid), kind, 0, limit.as_mut_ptr())
            })?;
            Ok((limit[0], limit[1]))
        })
        .collect()
}

pub(crate) fn set_limit(pid: i32, kind: usize, (soft, hard): (u64, u64)) -> io::Result<()> {
    let limit = [soft, hard];
    // SAFETY: `limit` is a pair of numbers, as the kernel reads it.
    check(unsafe {
        libc::syscall(libc::SYS_prlimit64, i64::from(pid), kind, limit.as_ptr(), ptr::null::<u64>())
    })
    .map(drop)
}

/// Address and length of the list of locks that the kernel releases for a dead thread.
pub(crate) fn robust_list(tid: i32) -> io::Result<(u64, u64)> {
    let mut list = [0u64; 2];
    // SAFETY: both point into `list`.
    check(unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            i64::from(tid),
            ptr::from_mut(&mut list[0]),
            ptr::from_mut(&mut list[1]),
        )
    })?;
    Ok((list[0], list[1]))
}

/// Policy, priority, niceness.
pub(crate) fn scheduling(tid: i32) -> io::Result<[i64; 3]> {
    // SAFETY: plain integers, and a struct that outlives the call.
    unsafe {
        let policy = check(libc::sched_getscheduler(tid).into())?;
        let mut param: libc::sched_param = mem::zeroed();
        check(libc::sched_getparam(tid, &raw mut param).into())?;
        // The raw call, unlike libc's, cannot be mistaken for an error: it says 20 less the niceness.
        let nice = check(libc::syscall(libc::SYS_getpriority, i64::from(libc::PRIO_PROCESS), tid))?;
        Ok([policy, param.sched_priority.into(), 20 - nice])
    }
}

pub(crate) fn set_scheduling(tid: i32, [policy, priority, nice]: [i64; 3]) -> io::Result<()> {
    // SAFETY: plain integers, and a struct that outlives the call.
    unsafe {
        let mut param: libc::sched_param = mem::zeroed();
        param.sched_priority = priority as i32;
        check(libc::sched_setscheduler(tid, policy as i32, &raw const param).into())?;
        let whose = i64::from(libc::PRIO_PROCESS);
        check(libc::syscall(libc::SYS_setpriority, whose, i64::from(tid), nice)).map(drop)
    }
}

/// A policy to go back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy(i32);

/// From now on, this thread and the copies that it makes do not interrupt each other as soon as they are woken. `None` where
/// it has a policy of its own.
pub(crate) fn give_way() -> Option<Policy> {
    // SAFETY: plain integers.
    let policy = unsafe { libc::sched_getscheduler(0) };
    let usual = policy == libc::SCHED_OTHER;
    (usual && set_policy(libc::SCHED_BATCH).is_ok()).then_some(Policy(policy))
}

pub(crate) fn take_way(Policy(policy): Policy) {
    // To go back to what nobody had to ask for cannot fail.
    let _ = set_policy(policy);
}

fn set_policy(policy: i32) -> io::Result<()> {
    // SAFETY: a struct of integers, for which zero is valid, and which outlives the call.
    unsafe {
        let param: libc::sched_param = mem::zeroed();
        check(libc::sched_setscheduler(0, policy, &raw const param).into()).map(drop)
    }
}

pub(crate) fn set_affinity(tid: i32, bits: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads at most as many bytes as it is told.
    check(unsafe {
        libc::syscall(libc::SYS_sched_setaffinity, i64::from(tid), bits.len(), bits.as_ptr())
    })
    .map(drop)
}

/// Has this thread run elsewhere than on one processor, where it may. It is only about time, so nothing is said if it fails.
pub(crate) fn keep_off(processor: usize) {
    let Ok(mut bits) = affinity(0) else { return };
    if let Some(byte) = bits.get_mut(processor / 8) {
        *byte &= !(1 << (processor % 8));
    }
    if bits.iter().any(|byte| *byte != 0) {
        let _ = set_affinity(0, &bits);
    }
}

/// Processors that a task may run on, a bit for each.
pub(crate) fn affinity(tid: i32) -> io::Result<Vec<u8>> {
    let mut bits = vec![0u8; 1024];
    // SAFETY: the kernel writes at most as many bytes as it is told.
    let len = check(unsafe {
        libc::syscall(libc::SYS_sched_getaffinity, i64::from(tid), bits.len(), bits.as_mut_ptr())
    })?;
    bits.truncate(len as usize);
    Ok(bits)
}

pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::kill(pid, signal) }.into()).map(drop)
}

pub(crate) fn threads_here() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}

/// Blocks every signal in this thread, and tells what was blocked before.
pub(crate) fn block_signals() -> u64 {
    let (all, mut before) = (u64::MAX, 0u64);
    // SAFETY: both are sets of 64 signals and outlive the call.
    unsafe {
        let (all, before) = (&raw const all, &raw mut before);
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, all, before, 8);
    }
    before
}

pub(crate) fn set_signals(mask: u64) {
    // SAFETY: a set of 64 signals that outlives the call.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8);
    }
}

/// Ends this process as another ended.
pub(crate) fn end_as(status: i32) -> ! {
    let signal = status & 0x7f;
    // SAFETY: plain integers; the process ends here, and nobody else uses its memory.
    unsafe {
        if signal != 0 {
            // A dump of its core was made when it died for the first time.
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            libc::signal(signal, libc::SIG_DFL);
            libc::kill(libc::getpid(), signal);
            let nothing = 0u64;
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const nothing, 0, 8);
        }
        libc::_exit((status >> 8) & 0xff)
    }
}
