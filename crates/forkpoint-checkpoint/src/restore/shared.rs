//! Memory that processes share, made anew with what was in it.

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::fs::FileExt as _},
};

use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, SealFlags, fallocate, fchmod, fcntl_add_seals, memfd_create,
};

use crate::image::{Chain, Memory, Stored};

const SEALS_SEAL: u32 = 1;
const SEAL_WRITE: u32 = 8;

/// Sealed before anybody maps it, as the kernel wants it.
pub(super) fn make(memory: &Memory, chain: &Chain) -> io::Result<OwnedFd> {
    let mut flags = MemfdFlags::CLOEXEC;
    // A new one without leave to be sealed has the first seal.
    flags.set(MemfdFlags::ALLOW_SEALING, memory.seals != SEALS_SEAL);
    let file = File::from(memfd_create(memory.name.as_str(), flags)?);
    fchmod(&file, Mode::from_raw_mode(memory.mode))?;
    fill(&file, memory, chain)?;
    if memory.seals & !SEALS_SEAL != 0 || flags.contains(MemfdFlags::ALLOW_SEALING) {
        fcntl_add_seals(&file, SealFlags::from_bits_retain(memory.seals))?;
    }
    Ok(file.into())
}

/// As it was when it was captured. What is sealed against writing is.
pub(crate) fn fill(file: &File, memory: &Memory, chain: &Chain) -> io::Result<()> {
    if memory.seals & SEAL_WRITE != 0
        && file.metadata()?.len() == memory.len_bytes
        && memory.len_bytes > 0
    {
        return Ok(());
    }
    empty(file)?;
    fill_file(file, memory.len_bytes, &memory.stored, chain)
}

/// Its length stays, so that nobody's private copies of its pages go.
pub(crate) fn empty(file: &File) -> io::Result<()> {
    let len = file.metadata()?.len();
    if len > 0 {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(file, hole, 0, len)?;
    }
    Ok(())
}

/// A file that has nothing in it.
pub(crate) fn fill_file(
    file: &File,
    len_bytes: u64,
    stored: &[Stored],
    chain: &Chain,
) -> io::Result<()> {
    if file.metadata()?.len() != len_bytes {
        file.set_len(len_bytes)?;
    }
    let mut buffer = Vec::new();
    for stored in stored {
        buffer.resize((stored.end - stored.start) as usize, 0);
        chain.top().pages.read_exact_at(&mut buffer, stored.at)?;
        let end = stored.end.min(len_bytes);
        file.write_all_at(&buffer[..(end - stored.start) as usize], stored.start)?;
    }
    Ok(())
}
