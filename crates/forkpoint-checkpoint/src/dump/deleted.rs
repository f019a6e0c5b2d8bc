//! Files that are open and have no name any more.

use std::{
    fs, io,
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::fs::FileExt as _,
    },
};

use super::{
    files::{Files, Seen, told},
    shared::next_data,
};
use crate::{
    coverage::Reason,
    image::{Bytes, FileKind},
};

/// Of all files together that have no name any more: they are read while everything stands.
const DELETED_MAX: u64 = 64 << 20;

impl Files {
    pub(super) fn deleted(&self, seen: &Seen<'_>) -> Result<FileKind, Reason> {
        let len = seen.stat.st_size as u64;
        self.deleted_bytes.set(self.deleted_bytes.get().saturating_add(len));
        if self.deleted_bytes.get() > DELETED_MAX {
            return Err(format!(
                "it has no name, and of such files up to {} MiB are kept; close it first, or give it a name",
                DELETED_MAX >> 20
            )
            .into());
        }
        Ok(FileKind::Deleted {
            content: Bytes(content_of(seen, len).map_err(told)?),
            position: seen.info.position(),
            mode: seen.stat.st_mode & 0o7777,
            inode: seen.stat.st_ino,
        })
    }
}

/// What is no hole is read.
fn content_of(seen: &Seen<'_>, len: u64) -> io::Result<Vec<u8>> {
    let mut content = vec![0; len as usize];
    // The program may have opened it for writing only, and its place in it must stay.
    let path = format!("/proc/self/fd/{}", seen.fd.as_fd().as_raw_fd());
    let file = fs::File::open(path)?;
    let mut at = 0;
    while let Some((start, end)) = next_data(&file, at, len)? {
        file.read_exact_at(&mut content[start as usize..end as usize], start)?;
        at = end;
    }
    Ok(content)
}
