//! What root may do in a sandbox.
//!
//! Container runtimes leave root these capabilities too, and three more: `MKNOD`, which reaches
//! the machine's devices, `NET_RAW`, which forges packets, and `AUDIT_WRITE`.

use std::io;

use rustix::{
    io::Errno,
    thread::{
        CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities,
    },
};

const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SETFCAP);

/// Takes from all that the calling thread will ever start what a sandbox does not get, and makes
/// nothing be inherited. The thread itself keeps what it has. It needs `SETPCAP`.
pub(super) fn drop_bounding() -> io::Result<()> {
    clear_ambient_capability_set()?;
    let sets = capabilities(None)?;
    set_capabilities(None, CapabilitySets { inheritable: CapabilitySet::empty(), ..sets })?;
    // Past the last capability that it knows, the kernel says `EINVAL`. It may know more than we.
    for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        if KEPT.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(Errno::INVAL) => break,
            Err(err) => return Err(err.into()),
        }
    }
    Ok(())
}

/// Takes from the calling thread itself what a sandbox does not get. What it has not got already
/// it does not get here.
///
/// Nothing is inheritable: a program that root starts gets the bounding set anyway, and one that
/// another user starts should get nothing.
pub(super) fn limit_to_bounding() -> io::Result<()> {
    let kept = capabilities(None)?.permitted & KEPT;
    let inheritable = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?)
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use super::*;

    /// A set of the calling thread, as the kernel tells it.
    fn set(name: &str) -> u64 {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
    }

    #[test]
    fn little_is_left_of_root() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("`little_is_left_of_root` needs root");
            return;
        }
        // Capabilities are a thread's own.
        thread::spawn(|| {
            let (bounding, permitted) = (set("CapBnd"), set("CapPrm"));
            drop_bounding().unwrap();
            assert_eq!(set("CapBnd"), bounding & KEPT.bits());
            assert_eq!([set("CapInh"), set("CapAmb")], [0, 0]);
            assert_eq!(set("CapPrm"), permitted, "the thread itself keeps what it has");
            drop_bounding().unwrap();

            limit_to_bounding().unwrap();
            for name in ["CapPrm", "CapEff"] {
                assert_eq!(set(name), permitted & KEPT.bits(), "{name}");
            }
            assert_eq!(set("CapInh"), 0);
            limit_to_bounding().unwrap();
            assert_eq!(KEPT.bits(), 0x8004_05fb_u64);
        })
        .join()
        .unwrap();
    }
}
