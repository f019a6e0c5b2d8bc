//! Which system calls a sandbox may make.
//!
//! A list of what is allowed, in the spirit of the container runtimes' default profiles: what
//! ordinary programs use passes, what only an administrator of the machine uses is refused with
//! `EPERM`, and what the list does not know does not exist (`ENOSYS`), so that a C library falls
//! back to what it used before.
//!
//! The program is made when this is compiled. The kernel runs it once for every call number when
//! it is installed, to learn which calls always pass, so it searches the numbers by halves: a
//! linear list takes twenty times as long to install.

#![expect(unsafe_code, reason = "no safe interface installs a filter")]

use std::io;

use self::{assemble::Program, table::RULES};

mod assemble;
mod table;
#[cfg(test)]
mod tests;

static FILTER: Filter = Filter(Program::of(&RULES));

#[derive(Debug)]
pub(super) struct Filter(Program);

pub(super) fn filter() -> &'static Filter {
    &FILTER
}

/// Puts the calling thread, and all that it starts, under the filter for good. The thread must
/// have `no_new_privs` set. Allocates nothing.
pub(super) fn install(filter: &Filter) -> io::Result<()> {
    let code = filter.0.code();
    let program = libc::sock_fprog {
        len: u16::try_from(code.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: code.as_ptr().cast_mut(),
    };
    // Before 5.16 the kernel slows every thread under a filter down, against attacks on what the
    // same process holds (`spec_store_bypass_disable`). A sandbox has nothing to hide from itself.
    let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: `program` points to `code`, of the length it says, and both live until the call is
    // done; the kernel copies and does not write.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            std::ptr::from_ref(&program),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
