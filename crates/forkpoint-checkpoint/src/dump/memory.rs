//! Pages: which there are, which changed, and their contents.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use crate::{
    image::{Mapping, MappingKind, Stored},
    ranges::{self, Range},
    sys::memory::{self, ANONYMOUS, COPIED, Query},
};

const READ: u32 = 1;

/// Pages of a mapping that differ from what its kind alone would show.
pub(crate) fn populated(pagemap: &File, mapping: &Mapping, range: Range) -> io::Result<Vec<Range>> {
    look(pagemap, mapping, range, &[range])
}

/// Those of a few pages of a mapping, by asking once for all of it.
pub(crate) fn populated_of(
    pagemap: &File,
    mapping: &Mapping,
    pages: &[Range],
) -> io::Result<Vec<Range>> {
    let found = look(pagemap, mapping, (mapping.start, mapping.end), pages)?;
    Ok(ranges::both(&found, pages))
}

fn look(
    pagemap: &File,
    mapping: &Mapping,
    range: Range,
    among: &[Range],
) -> io::Result<Vec<Range>> {
    let mut found = Vec::new();
    if let Some(query) = query(mapping) {
        memory::scan_at_rest(pagemap, range, query, among, &mut found)?;
    }
    Ok(found)
}

/// `None`: the file has everything, or nobody counts on anything.
fn query(mapping: &Mapping) -> Option<&'static Query> {
    match mapping.kind {
        _ if mapping.droppable => None,
        MappingKind::Anonymous { .. } => Some(&ANONYMOUS),
        MappingKind::Private { .. } | MappingKind::Memory { private: true, .. } => Some(&COPIED),
        MappingKind::Shared { .. }
        | MappingKind::Segment { .. }
        | MappingKind::Memory { private: false, .. } => None,
    }
}

/// Pages on their way into an image.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pub(crate) blocks: Vec<Vec<u8>>,
    len: u64,
}

impl Pages {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Copies `wanted` of a stopped process, and notes in `mapping` where they are.
    pub(crate) fn copy(
        &mut self,
        pid: i32,
        memory: &File,
        mapping: &mut Mapping,
        wanted: &[Range],
    ) -> io::Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let mut block = vec![0; ranges::len(wanted) as usize];
        match mapping.access & READ {
            0 => read_forced(memory, wanted, &mut block)?,
            _ => memory::gather(pid, wanted, &mut block)?,
        }
        for (start, end) in wanted.iter().copied() {
            mapping.stored.push(Stored { start, end, at: self.len });
            self.len += end - start;
        }
        self.blocks.push(block);
        Ok(())
    }

    /// Copies all that there is of a stopped process.
    pub(crate) fn copy_all(
        &mut self,
        pid: i32,
        mappings: &mut [Mapping],
        pagemap: &File,
        memory: &File,
    ) -> io::Result<()> {
        for mapping in mappings {
            mapping.pages = populated(pagemap, mapping, (mapping.start, mapping.end))?;
            let wanted = mapping.pages.clone();
            self.copy(pid, memory, mapping, &wanted)?;
        }
        Ok(())
    }

    /// What was copied at once.
    pub(crate) fn stored(&self, stored: &Stored) -> Option<&[u8]> {
        let mut start = 0;
        let block = self.blocks.iter().find(|block| {
            let is_here = stored.at < start + block.len() as u64;
            start += if is_here { 0 } else { block.len() as u64 };
            is_here
        })?;
        let from = usize::try_from(stored.at - start).ok()?;
        block.get(from..from + usize::try_from(stored.end - stored.start).ok()?)
    }

    /// Keeps whole pages, and tells where they are.
    pub(crate) fn keep(&mut self, block: Vec<u8>) -> u64 {
        let at = self.len;
        self.len += block.len() as u64;
        self.blocks.push(block);
        at
    }
}

/// What the program itself must not read.
fn read_forced(memory: &File, wanted: &[Range], block: &mut [u8]) -> io::Result<()> {
    let mut rest = block;
    for (start, end) in wanted {
        let (now, later) = rest.split_at_mut((end - start) as usize);
        memory.read_exact_at(now, *start)?;
        rest = later;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        thread,
    };

    use super::*;
    use crate::sys::PAGE;

    /// Has the kernel move pages, to have large pieces free, as long as this lives.
    struct Moving(Arc<AtomicBool>);

    impl Moving {
        fn begin() -> Self {
            let ended = Arc::new(AtomicBool::new(false));
            let seen = ended.clone();
            thread::spawn(move || {
                while !seen.load(Ordering::Relaxed) {
                    fs::write("/proc/sys/vm/compact_memory", "1").unwrap();
                }
            });
            Self(ended)
        }
    }

    impl Drop for Moving {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_page_on_its_way_is_there() {
        const LEN: usize = 64 << 20;
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let _moving = Moving::begin();
        let mut kept = Vec::new();
        for round in 0..8 {
            // Pages with as much free between them are worth moving, once: these are kept from those that come later.
            let (mut ours, mut between) = (vec![0_u8; LEN], vec![0_u8; LEN]);
            for at in (0..LEN).step_by(PAGE as usize) {
                (ours[at], between[at]) = (1, 1);
            }
            drop(between);
            let start = (ours.as_ptr() as u64).next_multiple_of(PAGE);
            let range = (start, start + LEN as u64 - PAGE);
            let mapping = Mapping {
                start: range.0,
                end: range.1,
                access: 3,
                kind: MappingKind::Anonymous { grows_down: false },
                pages: Vec::new(),
                stored: Vec::new(),
                advice: Vec::new(),
                guards: Vec::new(),
                droppable: false,
            };
            let some = [(start, start + 64 * PAGE), (range.1 - 64 * PAGE, range.1)];
            for _ in 0..300 {
                assert_eq!(populated(&pagemap, &mapping, range).unwrap(), [range], "round {round}");
                assert_eq!(populated_of(&pagemap, &mapping, &some).unwrap(), some, "round {round}");
            }
            kept.push(ours);
        }
    }
}
