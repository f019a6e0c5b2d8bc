//! Devices: pseudo-terminals, and those that hold no state.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use super::{
    files::{Seen, device},
    task::Draft,
};
use crate::{
    coverage::Reason,
    image::{Bytes, FileKind},
    sys::socket::{
        terminal_group, terminal_is_locked, terminal_number, terminal_settings, terminal_size,
    },
};

pub(super) fn kind(
    seen: &Seen<'_>,
    draft: &Draft,
    inside: &HashMap<i32, i32>,
) -> Result<FileKind, Reason> {
    if let Some(kind) = device(seen) {
        return Ok(kind);
    }
    if seen.name == "/dev/tty" {
        let terminal = draft.alive.terminal;
        return terminal
            .map(|terminal| FileKind::Terminal { terminal })
            .ok_or_else(|| "it has no terminal of the sandbox".into());
    }
    if let Some(number) = seen.name.strip_prefix("/dev/pts/").and_then(|number| number.parse().ok())
    {
        return slave(seen, number);
    }
    if seen.name == "/dev/ptmx" || seen.name == "/dev/pts/ptmx" {
        return master(seen, inside).map_err(|err| format!("it cannot be read ({err})"))?;
    }
    Err("devices are the machine's, and are not captured; close it first".into())
}

fn slave(seen: &Seen<'_>, terminal: u32) -> Result<FileKind, Reason> {
    match rustix::io::ioctl_fionread(seen.fd) {
        Ok(0) | Err(_) => Ok(FileKind::Terminal { terminal }),
        Ok(_) => Err(Reason::passing("somebody typed what was not read yet; try again")),
    }
}

/// The other side of a slave.
pub(super) fn master_of(slave: &OwnedFd, terminal: u32, foreground: i32) -> io::Result<FileKind> {
    let fd = slave.as_raw_fd();
    Ok(FileKind::Master {
        terminal,
        settings: Bytes(terminal_settings(fd)?),
        size: terminal_size(fd)?,
        foreground,
        locked: false,
    })
}

fn master(seen: &Seen<'_>, inside: &HashMap<i32, i32>) -> io::Result<Result<FileKind, Reason>> {
    if rustix::io::ioctl_fionread(seen.fd).is_ok_and(|waiting| waiting > 0) {
        return Ok(Err(Reason::passing("its output was not read yet; try again")));
    }
    let fd = seen.fd.as_raw_fd();
    let foreground = inside.get(&terminal_group(fd)?).copied().unwrap_or(0);
    Ok(Ok(FileKind::Master {
        terminal: terminal_number(fd)?,
        settings: Bytes(terminal_settings(fd)?),
        size: terminal_size(fd)?,
        foreground,
        locked: terminal_is_locked(fd)?,
    }))
}
