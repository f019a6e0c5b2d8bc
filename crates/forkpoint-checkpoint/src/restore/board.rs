//! A page that all processes of a restore share: how many threads are ready, and what went wrong.

#![expect(unsafe_code, reason = "memory that other processes write to")]

use std::{
    error::Error as _,
    fmt::Write as _,
    io, ptr, slice,
    sync::atomic::{AtomicI32, AtomicU8, AtomicU32, Ordering},
    time::Duration,
};

use rustix::{io::Errno, thread::futex, time::Timespec};

use crate::{error::Error, script::Call, sys::PAGE};

const TEXT: usize = 2048;

#[repr(C)]
struct Page {
    ready: AtomicU32,
    /// Never changes: who waits for it waits until somebody comes.
    never: AtomicU32,
    failed: AtomicI32,
    text_len: AtomicU32,
    text: [AtomicU8; TEXT],
}

#[derive(Debug)]
pub(super) struct Board(u64);

impl Board {
    pub(super) fn new() -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping of no file, at a place that the kernel chooses.
        let page = unsafe { libc::mmap(ptr::null_mut(), PAGE as usize, access, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self(page as u64))
        }
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped until this is dropped, on a page, large enough, and all zero is valid. Others
        // write to it through atomics and the kernel's atomic operations only.
        unsafe { &*(self.0 as *const Page) }
    }

    pub(super) fn ready(&self) -> u32 {
        self.page().ready.load(Ordering::SeqCst)
    }

    /// Process 1 has done all that is its own, which counts as one more.
    pub(super) fn arrive(&self) {
        self.page().ready.fetch_add(1, Ordering::SeqCst);
        // Whoever waits and does not hear it looks again soon.
        let _ = futex::wake(&self.page().ready, futex::Flags::empty(), 1);
    }

    /// Waits until more than `seen` are ready, somebody has failed, or for a while. `false` if nothing was heard.
    pub(super) fn wait(&self, seen: u32, time: Duration) -> bool {
        let time = Timespec::try_from(time).ok();
        let heard = futex::wait(&self.page().ready, futex::Flags::empty(), seen, time.as_ref());
        heard != Err(Errno::TIMEDOUT)
    }

    /// The first failure stays.
    pub(super) fn fail(&self, pid: i32, err: &Error) {
        let page = self.page();
        let order = Ordering::SeqCst;
        if page.text_len.compare_exchange(0, u32::MAX, order, order).is_err() {
            return;
        }
        let mut text = err.to_string();
        let mut cause = err.source();
        while let Some(err) = cause {
            let _ = write!(text, ": {err}");
            cause = err.source();
        }
        let len = text.len().min(TEXT);
        for (place, byte) in page.text.iter().zip(text.bytes()) {
            place.store(byte, Ordering::Relaxed);
        }
        page.text_len.store(len as u32, Ordering::SeqCst);
        page.failed.store(pid, Ordering::SeqCst);
        // Whoever waits and does not hear it looks again soon.
        let _ = futex::wake(&page.ready, futex::Flags::empty(), 1);
    }

    pub(super) fn failure(&self) -> Option<(i32, String)> {
        let page = self.page();
        let pid = page.failed.load(Ordering::SeqCst);
        if pid == 0 {
            return None;
        }
        let len = (page.text_len.load(Ordering::SeqCst) as usize).min(TEXT);
        let bytes: Vec<u8> =
            page.text[..len].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        Some((pid, String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Puts the page at `to` in this process, for good.
    pub(super) fn move_to(&self, to: u64) -> io::Result<()> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (from, len) = (self.0 as *mut libc::c_void, PAGE as usize);
        // SAFETY: the page is ours; `to` is in room that was made for it. Nobody here uses it again: this
        // process is about to become another.
        let result = unsafe { libc::mremap(from, len, len, flags, to as *mut libc::c_void) };
        if result == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, and goes with its only owner in this process.
        unsafe { libc::munmap(self.0 as *mut libc::c_void, PAGE as usize) };
    }
}

/// One thread more is ready, where the page is at `board`.
pub(super) fn tell_ready(board: u64) -> Call {
    const WAKE_OP: u64 = 5;
    // Adds 1, atomically; the comparison is always true and only decides about waking.
    const ADD_ONE: u64 = (1 << 28) | (5 << 24) | (1 << 12);
    Call::new(libc::SYS_futex, &[board, WAKE_OP, 1, 1, board, ADD_ONE])
}

/// Waits until somebody comes.
pub(super) fn park(board: u64) -> Call {
    Call::new(libc::SYS_futex, &[board + 4, 0, 0, 0])
}

/// Room for a process's scripts: code, the shared page, data.
pub(super) struct Room {
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Room {
    pub(super) const CODE: u64 = 0;
    pub(super) const BOARD: u64 = PAGE;
    pub(super) const DATA: u64 = 2 * PAGE;

    /// Makes it in this process, with `code` and `data` in it.
    pub(super) fn make(&self, code: &[u8], data: &[u8], board: &Board) -> io::Result<()> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // All of it is about to be written: at once costs a fraction of a page at a time.
        let flags = libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_FIXED_NOREPLACE
            | libc::MAP_POPULATE;
        let at = self.start as *mut libc::c_void;
        // SAFETY: nothing is replaced: where something is mapped, this fails.
        let made = unsafe { libc::mmap(at, self.len as usize, access, flags, -1, 0) };
        if made == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if made != at || Self::DATA + data.len() as u64 > self.len || code.len() as u64 > PAGE {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        // SAFETY: just mapped, writable, ours alone, and long enough as was checked.
        let room = unsafe { slice::from_raw_parts_mut(at.cast::<u8>(), self.len as usize) };
        room[..code.len()].copy_from_slice(code);
        room[Self::DATA as usize..][..data.len()].copy_from_slice(data);
        let executable = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: a page of the mapping that was just made, and no reference to it is left.
        if unsafe { libc::mprotect(at, PAGE as usize, executable) } != 0 {
            return Err(io::Error::last_os_error());
        }
        board.move_to(self.start + Self::BOARD)
    }
}
