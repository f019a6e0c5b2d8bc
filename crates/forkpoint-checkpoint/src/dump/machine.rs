//! Where it is captured.

use std::{io, sync::OnceLock};

use super::Draft;
use crate::{arch, image::Machine, sys::read_text};

pub(super) fn of(drafts: &[Draft]) -> io::Result<Machine> {
    let first = drafts.first().and_then(|draft| draft.alive.threads.first());
    let features = first.map_or(0, |thread| arch::features(&thread.extended.0));
    Ok(Machine { features, ..this_machine()?.clone() })
}

/// The features are what programs may use here. Looked at once: it stays what it is, and where a hypervisor answers
/// for the processor, to ask takes a tenth of a millisecond.
pub(crate) fn this_machine() -> io::Result<&'static Machine> {
    static THIS: OnceLock<Machine> = OnceLock::new();
    match THIS.get() {
        Some(machine) => Ok(machine),
        None => look().map(|machine| THIS.get_or_init(|| machine)),
    }
}

fn look() -> io::Result<Machine> {
    let system = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    Ok(Machine {
        arch: arch::NAME.to_owned(),
        kernel: format!("{} {}", text(system.release()), text(system.version())),
        boot: read_text("/proc/sys/kernel/random/boot_id")?.trim().to_owned(),
        features: arch::own_features(),
    })
}
