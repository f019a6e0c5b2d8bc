//! Where it is captured.

use std::io;

use super::Draft;
use crate::{arch, image::Machine, sys::read_text};

pub(super) fn of(drafts: &[Draft]) -> io::Result<Machine> {
    let first = drafts.first().and_then(|draft| draft.alive.threads.first());
    let features = first.map_or(0, |thread| arch::features(&thread.extended.0));
    Ok(Machine { features, ..this_machine()? })
}

/// The features are what programs may use here.
pub(crate) fn this_machine() -> io::Result<Machine> {
    let system = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    Ok(Machine {
        arch: arch::NAME.to_owned(),
        kernel: format!("{} {}", text(system.release()), text(system.version())),
        boot: read_text("/proc/sys/kernel/random/boot_id")?.trim().to_owned(),
        features: arch::own_features(),
    })
}
