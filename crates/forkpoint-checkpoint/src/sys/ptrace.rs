//! Stopping tasks of others, and reading and setting what they hold in registers.
//!
//! A tracer is a thread: all calls for a task are made by the one that seized it.

use std::{io, ptr};

use super::{check, step};

const GETREGSET: i64 = 0x4204;
const SETREGSET: i64 = 0x4205;
const SEIZE: i64 = 0x4206;
const SET_OPTIONS: i64 = 0x4200;
const INTERRUPT: i64 = 0x4207;
const PEEKSIGINFO: i64 = 0x4209;
const GETSIGMASK: i64 = 0x420a;
const SETSIGMASK: i64 = 0x420b;
const SECCOMP_GET_FILTER: i64 = 0x420c;
const GET_RSEQ: i64 = 0x420f;
const CONT: i64 = 7;
const DETACH: i64 = 17;
const EVENT_STOP: i32 = 128;
const SIGNALS_MAX: usize = 1024;

/// Calls that a filter forbids pass while somebody traces with it.
pub(crate) const SUSPEND_SECCOMP: u64 = 1 << 21;
/// What is traced dies with its tracer.
pub(crate) const EXIT_KILL: u64 = 1 << 20;

/// `data` must be what the request takes: an integer, or a pointer to memory of the right size that
/// lives until the call is done.
fn request(request: i64, tid: i32, address: u64, data: u64) -> io::Result<i64> {
    step();
    // SAFETY: the callers below pair each request with the data that it takes.
    check(unsafe { libc::syscall(libc::SYS_ptrace, request, i64::from(tid), address, data) })
}

pub(crate) fn seize(tid: i32, options: u64) -> io::Result<()> {
    request(SEIZE, tid, 0, options).map(drop)
}

/// Of a task that stands.
pub(crate) fn set_options(tid: i32, options: u64) -> io::Result<()> {
    request(SET_OPTIONS, tid, 0, options).map(drop)
}

pub(crate) fn interrupt(tid: i32) -> io::Result<()> {
    request(INTERRUPT, tid, 0, 0).map(drop)
}

pub(crate) fn go_on(tid: i32) -> io::Result<()> {
    request(CONT, tid, 0, 0).map(drop)
}

/// Goes on with a signal that its stop was about.
pub(crate) fn go_on_with(tid: i32, signal: i32) -> io::Result<()> {
    request(CONT, tid, 0, signal as u64).map(drop)
}

pub(crate) fn detach(tid: i32) -> io::Result<()> {
    request(DETACH, tid, 0, 0).map(drop)
}

/// What a traced task did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// It stands because it was asked to. With the signal of a job control stop, if it stood already.
    Interrupted(i32),
    /// It is about to take a signal.
    Signal(i32),
    Ended,
}

/// What the task did since it was asked last, if anything.
pub(crate) fn look(tid: i32) -> io::Result<Option<Event>> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let result = unsafe {
        libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG | libc::__WNOTHREAD)
    };
    if result < 0 {
        let err = io::Error::last_os_error();
        return match err.raw_os_error() {
            Some(libc::ECHILD) => Ok(Some(Event::Ended)),
            Some(libc::EINTR) => Ok(None),
            _ => Err(err),
        };
    }
    if result == 0 {
        return Ok(None);
    }
    if !libc::WIFSTOPPED(status) {
        return Ok(Some(Event::Ended));
    }
    let signal = libc::WSTOPSIG(status);
    Ok(Some(match status >> 16 {
        EVENT_STOP => Event::Interrupted(if signal == libc::SIGTRAP { 0 } else { signal }),
        _ => Event::Signal(signal),
    }))
}

/// Fills `buffer` with a set of registers, and says how much of it there was.
pub(crate) fn registers(tid: i32, set: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    request(GETREGSET, tid, set, ptr::from_mut(&mut vector) as u64)?;
    Ok(vector.iov_len)
}

pub(crate) fn set_registers(tid: i32, set: u64, bytes: &[u8]) -> io::Result<()> {
    let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    request(SETREGSET, tid, set, ptr::from_ref(&vector) as u64).map(drop)
}

pub(crate) fn mask(tid: i32) -> io::Result<u64> {
    let mut mask = 0u64;
    request(GETSIGMASK, tid, 8, ptr::from_mut(&mut mask) as u64)?;
    Ok(mask)
}

pub(crate) fn set_mask(tid: i32, mask: u64) -> io::Result<()> {
    request(SETSIGMASK, tid, 8, ptr::from_ref(&mask) as u64).map(drop)
}

/// A signal that waits, as the kernel tells it.
pub(crate) type SignalInfo = [u8; 128];

#[repr(C)]
struct PeekArgs {
    offset: u64,
    flags: u32,
    count: i32,
}

/// Signals that wait for the task, or for its whole process.
pub(crate) fn pending(tid: i32, of_process: bool) -> io::Result<Vec<SignalInfo>> {
    const AT_ONCE: usize = 32;
    let mut all = Vec::new();
    while all.len() < SIGNALS_MAX {
        let mut buffer = [[0u8; 128]; AT_ONCE];
        let args =
            PeekArgs { offset: all.len() as u64, flags: of_process.into(), count: AT_ONCE as i32 };
        let count =
            request(PEEKSIGINFO, tid, ptr::from_ref(&args) as u64, buffer.as_mut_ptr() as u64)?
                as usize;
        all.extend_from_slice(&buffer[..count.min(AT_ONCE)]);
        if count < AT_ONCE {
            return Ok(all);
        }
    }
    Err(io::Error::other("too many signals wait"))
}

/// Address, length and signature of a restartable sequence's area.
pub(crate) fn rseq(tid: i32) -> io::Result<Option<(u64, u32, u32)>> {
    #[repr(C)]
    #[derive(Default)]
    struct Config {
        address: u64,
        size: u32,
        signature: u32,
        flags: u32,
        pad: u32,
    }
    let mut config = Config::default();
    let size = size_of::<Config>() as u64;
    match request(GET_RSEQ, tid, size, ptr::from_mut(&mut config) as u64) {
        Ok(_) if config.address == 0 => Ok(None),
        Ok(_) => Ok(Some((config.address, config.size, config.signature))),
        // Kernels before 5.13 do not tell, and kernels without it have none.
        Err(err) if matches!(err.raw_os_error(), Some(libc::EIO | libc::EINVAL)) => Ok(None),
        Err(err) => Err(err),
    }
}

/// The filter that was installed last is number 0. `None` is past the first.
pub(crate) fn filter(tid: i32, number: u64) -> io::Result<Option<Vec<u64>>> {
    let count = match request(SECCOMP_GET_FILTER, tid, number, 0) {
        Ok(count) => count as usize,
        Err(err) if err.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(err) => return Err(err),
    };
    let mut program = vec![0u64; count];
    let got = request(SECCOMP_GET_FILTER, tid, number, program.as_mut_ptr() as u64)? as usize;
    if got != count {
        return Err(io::Error::other("the filter changed"));
    }
    Ok(Some(program))
}
