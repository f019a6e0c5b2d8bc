//! Memory that is a file without a name: what processes share, `memfd`, deleted files that are mapped.
//!
//! It is captured in full every time: who writes to it is not noted.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _},
};

use rustix::{
    fs::{SeekFrom, fcntl_get_seals, fstatfs, seek},
    io::Errno,
};

use super::{Draft, memory::Pages};
use crate::{
    coverage::{Findings, Whose},
    freeze::Frozen,
    image::{FileKind, MappingKind, Memory, MemoryId, OpenFile, Stored},
    sys::PAGE,
};

const WRITE: u32 = 2;
const SEAL_FUTURE_WRITE: u32 = 0x10;
pub(crate) const HUGE_PAGES: i64 = 0x9584_58f6;
/// Copied so much at a time.
const CHUNK: u64 = 4 << 20;

/// How to get at one.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    pub(crate) path: String,
    name: String,
    whose: Whose,
    /// Somebody may write to it through a mapping.
    mapped_writable: bool,
}

/// Which are mapped.
pub(crate) fn mapped(drafts: &[Draft]) -> HashSet<MemoryId> {
    let mappings = drafts.iter().flat_map(|draft| &draft.alive.mappings);
    let memory = |kind: &MappingKind| match kind {
        MappingKind::Memory { memory, .. } => Some(*memory),
        _ => None,
    };
    mappings.filter_map(|mapping| memory(&mapping.kind)).collect()
}

/// A way to each that is mapped or open.
pub(crate) fn doors(
    frozen: &Frozen,
    drafts: &[Draft],
    files: &[OpenFile],
) -> BTreeMap<MemoryId, Door> {
    let mut doors: BTreeMap<MemoryId, Door> = BTreeMap::new();
    for (held, draft) in frozen.processes.iter().zip(drafts) {
        let mut add = |id: MemoryId, path: String, writable: bool| {
            let door = doors.entry(id).or_insert_with(|| Door {
                name: std::fs::read_link(&path).map_or_else(|_| String::new(), |name| memfd(&name)),
                path,
                whose: draft.whose.clone(),
                mapped_writable: false,
            });
            door.mapped_writable |= writable;
        };
        for mapping in &draft.alive.mappings {
            if let MappingKind::Memory { memory, private, .. } = mapping.kind {
                let path =
                    format!("/proc/{}/map_files/{:x}-{:x}", held.pid, mapping.start, mapping.end);
                add(memory, path, !private && mapping.access & WRITE != 0);
            }
        }
        for descriptor in &draft.alive.descriptors {
            if let FileKind::Memory { memory, .. } = files[descriptor.file].kind {
                add(memory, format!("/proc/{}/fd/{}", held.pid, descriptor.number), false);
            }
        }
    }
    doors
}

/// `/memfd:NAME (deleted)`; others have no name.
fn memfd(link: &std::path::Path) -> String {
    let link = link.to_string_lossy();
    let name = link.strip_prefix("/memfd:").map(|name| name.trim_end_matches(" (deleted)"));
    name.unwrap_or_default().to_owned()
}

pub(super) fn look(
    doors: &BTreeMap<MemoryId, Door>,
    findings: &mut Findings,
) -> io::Result<Vec<(Memory, File)>> {
    let mut all = Vec::new();
    for (id, door) in doors {
        let file = File::open(&door.path)?;
        let metadata = file.metadata()?;
        let seals = fcntl_get_seals(&file).map_or(0, |seals| seals.bits());
        let told = format!("shared memory `{}`", door.name);
        if fstatfs(&file)?.f_type == HUGE_PAGES {
            findings.refuse(&door.whose, told, "huge pages are the machine's; use ordinary memory");
        } else if seals & SEAL_FUTURE_WRITE != 0 && door.mapped_writable {
            let why =
                "it is sealed against who it is mapped by; unmap it, or map it only for reading";
            findings.refuse(&door.whose, told, why);
        }
        let (name, len_bytes) = (door.name.clone(), metadata.len());
        let mode = metadata.mode() & 0o7777;
        all.push((Memory { id: *id, name, len_bytes, mode, seals, stored: Vec::new() }, file));
    }
    Ok(all)
}

/// What is not empty of a file in memory.
pub(crate) fn copy_file(file: &File, len: u64, pages: &mut Pages) -> io::Result<Vec<Stored>> {
    let (mut all, mut at) = (Vec::new(), 0);
    while let Some((start, end)) = next_data(file, at, len)? {
        let mut from = start / PAGE * PAGE;
        while from < end {
            let to = end.min(from + CHUNK);
            let mut block = vec![0; (to.next_multiple_of(PAGE) - from) as usize];
            file.read_exact_at(&mut block[..(to - from) as usize], from)?;
            let stored =
                Stored { start: from, end: to.next_multiple_of(PAGE), at: pages.keep(block) };
            from = stored.end;
            all.push(stored);
        }
        at = from;
    }
    Ok(all)
}

/// Where the next part is that is no hole, from `at` on.
pub(super) fn next_data(file: &File, at: u64, len: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= len {
        return Ok(None);
    }
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => Ok(Some((start, seek(file, SeekFrom::Hole(start))?.min(len)))),
        Err(Errno::NXIO) => Ok(None),
        Err(err) => Err(err.into()),
    }
}
