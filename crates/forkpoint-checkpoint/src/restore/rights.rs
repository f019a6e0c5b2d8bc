//! Users, groups and capabilities, given up in the order in which that is possible.

use std::{io, sync::OnceLock};

use crate::{image::Credentials, script::Script, sys::read_text};

const NO_SETUID_FIXUP: u64 = 1 << 2;
const CAPABILITIES: u64 = 64;

/// Users change while capabilities stay, then capabilities go, then nothing can come back.
pub(super) fn credentials(script: &mut Script, its: &Credentials) -> io::Result<()> {
    let prctl = |script: &mut Script, args: &[u64]| script.call(libc::SYS_prctl, args);
    let securebits = libc::PR_SET_SECUREBITS as u64;
    prctl(script, &[securebits, u64::from(its.securebits) | NO_SETUID_FIXUP]);
    let groups: Vec<u8> = its.groups.iter().flat_map(|id| id.to_le_bytes()).collect();
    let at = script.put(&groups)?;
    script.call(libc::SYS_setgroups, &[its.groups.len() as u64, at]);
    let [real, effective, saved, of_files] = its.gids.map(u64::from);
    script.call(libc::SYS_setresgid, &[real, effective, saved]);
    if of_files != effective {
        script.call(libc::SYS_setfsgid, &[of_files]);
    }
    let [real, effective, saved, of_files] = its.uids.map(u64::from);
    script.call(libc::SYS_setresuid, &[real, effective, saved]);
    if of_files != effective {
        script.call(libc::SYS_setfsuid, &[of_files]);
    }
    let drop = libc::PR_CAPBSET_DROP as u64;
    for bit in
        (0..CAPABILITIES.min(last_capability() + 1)).filter(|bit| its.bounding >> bit & 1 == 0)
    {
        prctl(script, &[drop, bit]);
    }
    prctl(script, &[securebits, its.securebits.into()]);
    let halves = |half: u32| {
        [its.effective, its.permitted, its.inheritable].map(|set| (set >> (32 * half)) as u32)
    };
    let words = [halves(0), halves(1)].concat();
    let sets: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    const VERSION_3: u64 = 0x2008_0522;
    let header = script.put_words(&[VERSION_3])?;
    let sets = script.put(&sets)?;
    script.call(libc::SYS_capset, &[header, sets]);
    for bit in (0..CAPABILITIES).filter(|bit| its.ambient >> bit & 1 != 0) {
        let (ambient, raise) = (libc::PR_CAP_AMBIENT as u64, libc::PR_CAP_AMBIENT_RAISE as u64);
        prctl(script, &[ambient, raise, bit, 0, 0]);
    }
    Ok(())
}

/// The same for as long as the machine runs, and asked for by every thread.
fn last_capability() -> u64 {
    static LAST: OnceLock<u64> = OnceLock::new();
    *LAST.get_or_init(|| {
        let text = read_text("/proc/sys/kernel/cap_last_cap").unwrap_or_default();
        text.trim().parse().unwrap_or(40)
    })
}
