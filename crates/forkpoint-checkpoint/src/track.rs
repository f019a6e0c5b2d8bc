//! Which pages were written since the last image.
//!
//! A process makes a userfaultfd for us and forgets it; with it, the kernel notes writes without asking
//! anybody. What is no longer noted (memory that was mapped anew, another program) is captured in full.

use std::{collections::HashMap, fs::File, io, os::fd::OwnedFd};

use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

use crate::{
    dump::{
        memory::{Pages, populated, populated_of},
        proc::{Stat, Status},
    },
    freeze::Held,
    image::{Image, ImageId, Mapping, MappingKind, Stored},
    ranges::{self, Range},
    sys::{
        PAGE,
        memory::{self, Query, WRITTEN_SINCE, WRITTEN_SO_FAR},
    },
};

const WRITE: u32 = 2;
/// To ask once more takes the kernel as long as to walk over so many pages.
const PAGES_PER_QUESTION: u64 = 64;

/// Remembers a tree between captures. One that is dropped, or whose image was not noted, costs a
/// full capture the next time, and nothing else.
#[derive(Debug, Default)]
pub struct Tracker {
    base: Option<ImageId>,
    processes: HashMap<i32, Tracked>,
    /// Pages that were copied while the tree ran, before anything of it was captured.
    early: Option<Pages>,
}

#[derive(Debug)]
pub(crate) struct Tracked {
    /// The number of a process is used again.
    started: u64,
    pub(crate) uffd: OwnedFd,
    pub(crate) mappings: Vec<Mapping>,
}

/// By what the writes of one process are noted, for somebody else to keep meanwhile.
#[derive(Debug)]
pub struct Handle {
    /// As seen from here.
    pub pid: i32,
    /// In ticks since boot: the number of a process is used again.
    pub started: u64,
    pub uffd: OwnedFd,
}

impl Tracker {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether this kernel notes writes (Linux 6.7 and later do).
    #[must_use]
    pub fn is_supported() -> bool {
        memory::new_userfaultfd().and_then(memory::track_writes).is_ok()
    }

    /// Takes it apart, to be put together again in another process. Whoever closes a handle ends the
    /// tracking of its process.
    #[must_use]
    pub fn into_handles(self) -> Vec<Handle> {
        let handle = |(pid, Tracked { started, uffd, .. })| Handle { pid, started, uffd };
        self.processes.into_iter().map(handle).collect()
    }

    /// The other way: `base` is the image that was noted last.
    #[must_use]
    pub fn from_handles(base: &Image, handles: impl IntoIterator<Item = Handle>) -> Self {
        let processes = handles.into_iter().filter_map(|Handle { pid, started, uffd }| {
            let inside = Status::of(pid).ok()?.last("NSpid").ok()?;
            let was = base.snapshot.processes.iter().find(|process| process.pid == inside)?;
            let mappings = was.alive()?.mappings.clone();
            Some((pid, Tracked { started, uffd, mappings }))
        });
        Self { base: Some(base.id), processes: processes.collect(), early: None }
    }

    /// As [`from_handles`](Self::from_handles), for who goes back and does not capture: what was mapped when the image was
    /// made is not asked for.
    #[must_use]
    pub fn to_go_back(base: ImageId, handles: impl IntoIterator<Item = Handle>) -> Self {
        let tracked =
            |Handle { pid, started, uffd }| (pid, Tracked { started, uffd, mappings: Vec::new() });
        let processes = handles.into_iter().map(tracked).collect();
        Self { base: Some(base), processes, early: None }
    }

    /// The last capture was written as this image: the next may lie over it.
    pub fn note(&mut self, id: ImageId) {
        self.base = Some(id);
    }

    pub(crate) fn forget(&mut self) {
        self.base = None;
        self.early = None;
        self.processes.clear();
    }

    pub(crate) fn take_base(&mut self) -> Option<ImageId> {
        self.base.take()
    }

    pub(crate) fn take_early(&mut self) -> Option<Pages> {
        self.early.take()
    }

    /// Notes writes from now on, and says so in `mappings`: which pages there are.
    pub(crate) fn begin(&mut self, held: &Held, mappings: Vec<Mapping>) -> io::Result<()> {
        let pagemap = File::open(format!("/proc/{}/pagemap", held.pid))?;
        let Some(tracked) = self.processes.get_mut(&held.pid) else {
            return Err(io::Error::other("it is not tracked"));
        };
        for mapping in &mappings {
            tracked.begin(mapping, &pagemap)?;
        }
        tracked.mappings = mappings;
        Ok(())
    }

    /// Copies what there is while the tree runs. What is written meanwhile is copied once more later,
    /// and what is unmapped meanwhile is left out.
    pub(crate) fn copy_early(&mut self) {
        let mut early = Pages::default();
        for (pid, tracked) in &mut self.processes {
            let (Ok(pagemap), Ok(memory)) = (
                File::open(format!("/proc/{pid}/pagemap")),
                File::open(format!("/proc/{pid}/mem")),
            ) else {
                continue;
            };
            for mapping in tracked.mappings.iter_mut().filter(|mapping| is_trackable(mapping)) {
                let Ok(found) = populated(&pagemap, mapping, (mapping.start, mapping.end)) else {
                    continue;
                };
                if early.copy(*pid, &memory, mapping, &found).is_ok() {
                    mapping.pages = found;
                }
            }
        }
        self.early = Some(early);
    }

    pub(crate) fn base(&self) -> Option<ImageId> {
        self.base
    }

    /// Of a process that began then.
    pub(crate) fn tracked(&self, pid: i32, started: u64) -> Option<&Tracked> {
        let tracked = self.processes.get(&pid)?;
        let same = started == tracked.started && memory::has_memory(&tracked.uffd);
        same.then_some(tracked)
    }

    /// Takes the userfaultfd that the process made, and closes it there.
    pub(crate) fn adopt(&mut self, held: &mut Held, number: i32) -> io::Result<()> {
        let uffd = pidfd_getfd(&held.pidfd, number, PidfdGetfdFlags::empty())?;
        let mut script = held.script(0, 0);
        script.call(libc::SYS_close, &[number as u64]);
        held.run(0, &script)?.result(0)?;
        memory::track_writes(&uffd)?;
        let started = Stat::of(held.pid)?.started();
        self.processes.insert(held.pid, Tracked { started, uffd, mappings: Vec::new() });
        Ok(())
    }

    /// What is known of a process with this number is another's.
    pub(crate) fn leave(&mut self, pid: i32) {
        self.processes.remove(&pid);
    }

    /// Copies what changed since the base, or all where that is not known, and tracks it from now on.
    pub(crate) fn copy(
        &mut self,
        held: &Held,
        mappings: &mut [Mapping],
        lies_over: LiesOver,
        pagemap: &File,
        memory: &File,
        pages: &mut Pages,
    ) -> io::Result<()> {
        let pid = held.pid;
        let Some(tracked) = self.processes.get_mut(&pid) else {
            return pages.copy_all(pid, mappings, pagemap, memory);
        };
        for mapping in &mut *mappings {
            let known = tracked.known(mapping).filter(|_| lies_over != LiesOver::Nothing);
            let found = known
                .and_then(|known| Some((known, changed(pagemap, mapping, known).transpose()?)));
            let wanted = match found {
                Some((known, changed)) => match lies_over {
                    LiesOver::Early => keep_early(mapping, known, &changed?),
                    _ => changed?,
                },
                None => {
                    mapping.pages = populated(pagemap, mapping, (mapping.start, mapping.end))?;
                    tracked.begin(mapping, pagemap)?;
                    mapping.pages.clone()
                }
            };
            pages.copy(pid, memory, mapping, &wanted)?;
            mapping.stored.sort_unstable_by_key(|stored| stored.start);
        }
        tracked.mappings = mappings.to_vec();
        Ok(())
    }
}

/// What need not be captured again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LiesOver {
    Nothing,
    /// Pages that were copied while the tree ran.
    Early,
    Image,
}

/// Of the pages that were copied early, those count that nobody wrote since. Returns what is missing.
fn keep_early(mapping: &mut Mapping, known: &Mapping, changed: &[Range]) -> Vec<Range> {
    let early: Vec<Range> = known.stored.iter().map(|stored| (stored.start, stored.end)).collect();
    let good = ranges::both(&ranges::without(&early, changed), &mapping.pages);
    let mut first = 0;
    for (start, end) in good.iter().copied() {
        while known.stored.get(first).is_some_and(|stored| stored.end <= start) {
            first += 1;
        }
        for stored in known.stored[first..].iter().take_while(|stored| stored.start < end) {
            let (from, to) = (start.max(stored.start), end.min(stored.end));
            mapping.stored.push(Stored {
                start: from,
                end: to,
                at: stored.at + (from - stored.start),
            });
        }
    }
    ranges::without(&mapping.pages, &good)
}

/// What is written to through a mapping: the rest is cheap to capture in full.
pub(crate) fn is_trackable(mapping: &Mapping) -> bool {
    match mapping.kind {
        _ if mapping.droppable => false,
        MappingKind::Anonymous { .. } => mapping.access != 0,
        MappingKind::Private { .. } | MappingKind::Memory { private: true, .. } => {
            mapping.access & WRITE != 0
        }
        MappingKind::Shared { .. }
        | MappingKind::Segment { .. }
        | MappingKind::Memory { private: false, .. } => false,
    }
}

/// A private view of a file. What is thrown away of it shows the file again, and the kernel does not note that.
pub(crate) fn is_view(mapping: &Mapping) -> bool {
    matches!(mapping.kind, MappingKind::Private { .. } | MappingKind::Memory { private: true, .. })
}

impl Tracked {
    fn known(&self, mapping: &Mapping) -> Option<&Mapping> {
        let index = self.mappings.binary_search_by_key(&mapping.start, |known| known.start).ok()?;
        let known = &self.mappings[index];
        let same = known.end == mapping.end && known.kind == mapping.kind && is_trackable(mapping);
        (same && is_trackable(known)).then_some(known)
    }

    /// From now on, writes are noted.
    pub(crate) fn begin(&self, mapping: &Mapping, pagemap: &File) -> io::Result<()> {
        if !is_trackable(mapping) {
            return Ok(());
        }
        let begun = memory::track_range(&self.uffd, mapping.start, mapping.end);
        begun.map_err(|err| match err.raw_os_error() {
            // Two would take each other's notes.
            Some(libc::EBUSY) => {
                io::Error::other("another tracker has this process; drop it first")
            }
            _ => err,
        })?;
        let mut all = Vec::new();
        memory::scan(pagemap, (mapping.start, mapping.end), &WRITTEN_SINCE, &mut all)
    }
}

/// Ranges of a mapping that were written or thrown away since, and are noted from now on again. `None`: that
/// is not known any more.
pub(crate) fn written(pagemap: &File, range: Range) -> io::Result<Option<Vec<Range>>> {
    ask(pagemap, range, &WRITTEN_SINCE)
}

/// The same, without noting anything.
pub(crate) fn written_so_far(pagemap: &File, range: Range) -> io::Result<Option<Vec<Range>>> {
    ask(pagemap, range, &WRITTEN_SO_FAR)
}

fn ask(pagemap: &File, range: Range, query: &Query) -> io::Result<Option<Vec<Range>>> {
    let mut written = Vec::new();
    match memory::scan(pagemap, range, query, &mut written) {
        Ok(()) => Ok(Some(written)),
        Err(err) if err.raw_os_error() == Some(libc::EPERM) => Ok(None),
        Err(err) => Err(err),
    }
}

/// Sets the pages of a mapping, and returns which of them changed.
fn changed(
    pagemap: &File,
    mapping: &mut Mapping,
    known: &Mapping,
) -> io::Result<Option<Vec<Range>>> {
    let range = (mapping.start, mapping.end);
    let Some(written) = written(pagemap, range)? else { return Ok(None) };
    if is_view(mapping) {
        mapping.pages = populated(pagemap, mapping, range)?;
        return Ok(Some(ranges::both(&mapping.pages, &written)));
    }
    let changed = if written.len() as u64 * PAGES_PER_QUESTION > mapping.len() / PAGE {
        populated_of(pagemap, mapping, &written)?
    } else {
        let mut changed = Vec::new();
        for range in &written {
            changed.extend(populated(pagemap, mapping, *range)?);
        }
        changed
    };
    mapping.pages = ranges::either(&ranges::without(&known.pages, &written), &changed);
    Ok(Some(changed))
}
