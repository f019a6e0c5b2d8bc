//! Memory that comes when it is asked for.
//!
//! A large process is let run before its pages are there: its anonymous memory is mapped and empty, and
//! whoever touches a page that is missing waits until it is brought from the image. All others are brought
//! meanwhile, those near the last fault first; then the pager ends, and nothing is different from a restore
//! of everything at once.
//!
//! ```text
//!   launcher                       process 1                     pager: a copy of the launcher
//!   Steps::lazily
//!     ──fork──────────────────────► Plan::build_lazily
//!   Plan::finish_lazily              keeps the Guard, polls it
//!     the program goes on
//!   Pager::spawn ───────────────────────────────────────────────► Pager::run: answers, copies
//!   answers its client               Memory::Whole: drops it ◄──  done, ends
//!                                    Memory::Lost: ends all  ◄──  died
//! ```
//!
//! For who writes a launcher, in this order:
//!
//! 1. [`Steps::lazily`](crate::restore::Steps::lazily) instead of `Steps::new`, before process 1 is made. Where the
//!    kernel cannot do it, or nothing is large, they bring everything at once and the rest is the same.
//! 2. In process 1, [`Plan::build_lazily`](crate::restore::Plan::build_lazily) instead of `build`. If it returns a
//!    [`Guard`], process 1 keeps it, waits for it to become readable beside whatever else it waits for, and
//!    does what [`Guard::look`] says: nothing, drop it, or [`Guard::end_all`] at once. Process 1 must not close
//!    descriptors that it does not know, and must not end by itself meanwhile: a program could see empty pages
//!    between the closing of its descriptors and its own death. Being killed while the pager lives is safe.
//! 3. In the launcher, [`Plan::finish_lazily`](crate::restore::Plan::finish_lazily) instead of `finish`. The program
//!    runs when it returns. If it returns a [`Pager`], call [`Pager::spawn`] next, and answer the client then:
//!    until there is a pager, the program may stand. The copy is a child of the launcher, to be waited for.
//! 4. A capture waits by itself until all memory is there.
//!
//! Whoever uses `build` or `finish` with such a plan gets a tree whose memory is all there.
//!
//! **If the pager dies, the program never sees an empty page instead of its own:** copies of its descriptors
//! are in the queue of a socket that process 1 has, so that who waits goes on waiting, until process 1
//! has ended everything. One moment is left: a copy that the program makes of itself (`fork`) while pages
//! are missing is known to the pager alone between two of its system calls.
//!
//! Who reads missing memory from outside waits for it too (`process_vm_readv`), or gets an error (`/proc/PID/mem`).

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::fs::FileExt as _,
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Resource, Rlimit, getrlimit, setrlimit},
    time::Timespec,
};

use crate::{
    image::Chain,
    sys::{
        self,
        fault::{self, Mapped},
        memory, task,
    },
};

mod divide;
mod guard;
mod space;
mod todo;

use self::space::{Forked, Space};
pub use self::{
    divide::LAZY_FROM,
    guard::{Guard, Memory},
};
pub(crate) use self::{
    divide::Lazy,
    guard::{Keeper, is_whole, pair, until_whole},
};

/// Nobody who waits for a page waits longer than it takes to copy so many bytes.
const AT_ONCE: u64 = 128 << 10;
/// Of each other address space, meanwhile.
const ASIDE: u64 = 16 << 10;
/// For so long only whoever waits gets pages: a program that begins to run, and others that are brought back at
/// the same time, need the processors more.
const GRACE: Duration = Duration::from_millis(100);
/// Until what could not be done is tried again.
const MOMENT: Duration = Duration::from_millis(1);
/// So many things are heard from one process before others are.
const HEARD_AT_ONCE: usize = 64;

/// For tests: pages that nobody waits for come so slowly that a program can do something meanwhile.
#[cfg(debug_assertions)]
pub(crate) static SLOW: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

fn is_slow() -> bool {
    #[cfg(debug_assertions)]
    return SLOW.load(std::sync::atomic::Ordering::Relaxed);
    #[cfg(not(debug_assertions))]
    false
}

/// Brings the pages that are missing.
#[derive(Debug)]
pub struct Pager {
    spaces: Vec<Space>,
    sources: Vec<Mapped>,
    keeper: Keeper,
    /// Which of them asked last.
    focus: usize,
    /// Whose turn it was, of the others.
    aside: usize,
}

impl Pager {
    pub(crate) fn new(chain: &Chain, keeper: Keeper) -> io::Result<Self> {
        let sources = chain.images().iter();
        let sources = sources.map(|image| Mapped::new(&image.pages, image.pages_len_bytes));
        let sources = sources.collect::<io::Result<_>>()?;
        Ok(Self { spaces: Vec::new(), sources, keeper, focus: 0, aside: 0 })
    }

    /// Adds a process that stands and of which nothing ran yet. `soon` are addresses that it will touch.
    pub(crate) fn add(
        &mut self,
        pid: i32,
        uffd: OwnedFd,
        lazy: &Lazy,
        soon: &[u64],
    ) -> io::Result<()> {
        fault::begin(&uffd)?;
        for (start, end) in lazy.ranges.iter().copied() {
            fault::register(&uffd, start, end)?;
        }
        let mut space = Space::new(uffd, lazy.pieces.iter().copied());
        self.fill_what_is_there(pid, &mut space, lazy)?;
        for address in soon {
            space.expect(*address, &self.sources)?;
        }
        let others: Vec<BorrowedFd<'_>> =
            self.spaces.iter().map(|space| space.uffd.as_fd()).collect();
        self.keeper.keep(space.uffd.as_fd(), &others)?;
        self.spaces.push(space);
        Ok(())
    }

    /// The kernel may have made more pages than it was asked for, huge ones; nobody will ask for those.
    fn fill_what_is_there(&self, pid: i32, space: &mut Space, lazy: &Lazy) -> io::Result<()> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        let memory = File::options().write(true).open(format!("/proc/{pid}/mem"))?;
        let mut there = Vec::new();
        for range in &lazy.ranges {
            memory::scan_at_rest(&pagemap, *range, &memory::THERE, &[*range], &mut there)?;
        }
        for piece in there.into_iter().flat_map(|range| space.forget(range)) {
            let source = self.sources.get(piece.image).ok_or(io::ErrorKind::NotFound)?;
            let bytes = source.slice(piece.at, piece.end - piece.start)?;
            memory.write_all_at(bytes, piece.start)?;
        }
        Ok(())
    }

    /// Whether somebody would hear of our death.
    pub(crate) fn is_guarded(&self) -> bool {
        self.keeper.is_guarded()
    }

    /// Runs in a copy of this process, which must have one thread, and returns its number. The copy has none
    /// of our descriptors, and ends by itself.
    pub fn spawn(self) -> io::Result<i32> {
        if let Some(pid) = task::fork_into(0)? {
            return Ok(pid);
        }
        let spaces = self.spaces.iter().map(|space| space.uffd.as_raw_fd());
        let keeper = self.keeper.descriptors().map(|fd| fd.as_raw_fd());
        let kept: Vec<i32> = spaces.chain(keeper).collect();
        fault::close_all_but(&kept);
        let failed = self.run().is_err();
        task::end_as(i32::from(failed) << 8)
    }

    /// Answers whoever waits, brings everything else, and returns when all of it is there.
    pub fn run(self) -> io::Result<()> {
        raise_limit();
        self.work(GRACE)
    }

    /// Brings everything while nothing runs.
    pub(crate) fn fill(self) -> io::Result<()> {
        self.work(Duration::ZERO)
    }

    fn work(mut self, grace: Duration) -> io::Result<()> {
        let slow = is_slow();
        let (mut wait, begin) = (Duration::ZERO, sys::now() + grace);
        while !self.spaces.iter().all(Space::is_whole) {
            let grace = begin.saturating_sub(sys::now());
            let ended = self.hear(wait.max(grace))?;
            if !ended && begin > sys::now() {
                continue;
            }
            let progress = self.go_on(if slow { ASIDE } else { AT_ONCE })?;
            wait = if progress && !slow { Duration::ZERO } else { MOMENT };
            self.spaces.retain(|space| !space.is_gone());
        }
        let Self { spaces, keeper, .. } = self;
        drop(spaces);
        keeper.finish()
    }

    /// Hears and answers what there is, and waits so long if there is nothing. `true`: process 1 has ended.
    fn hear(&mut self, wait: Duration) -> io::Result<bool> {
        let mut forks = Vec::new();
        let (ready, ended) = self.ready(wait)?;
        for index in ready {
            let space = &mut self.spaces[index];
            self.focus = index;
            for _ in 0..HEARD_AT_ONCE {
                match space.hear(&self.sources, &mut forks) {
                    Ok(true) => {}
                    Ok(false) => break,
                    // Who forks waits until others have ended.
                    Err(err) if err.raw_os_error() == Some(libc::EMFILE) => break,
                    Err(err) => return Err(err),
                }
            }
        }
        for space in self.spaces.iter_mut().filter(|space| space.has_waiting()) {
            space.answer_waiting(&self.sources)?;
        }
        forks.into_iter().filter(Forked::needs_pages).try_for_each(|fork| self.adopt(fork))?;
        Ok(ended)
    }

    fn adopt(&mut self, fork: Forked) -> io::Result<()> {
        let others: Vec<BorrowedFd<'_>> =
            self.spaces.iter().map(|space| space.uffd.as_fd()).collect();
        self.keeper.keep(fork.uffd(), &others)?;
        self.spaces.push(fork.into_space());
        Ok(())
    }

    /// Which have something to tell, and whether process 1 has ended.
    fn ready(&self, wait: Duration) -> io::Result<(Vec<usize>, bool)> {
        let uffds = self.spaces.iter().map(|space| PollFd::new(&space.uffd, PollFlags::IN));
        let news = PollFd::from_borrowed_fd(self.keeper.news(), PollFlags::empty());
        let mut all: Vec<PollFd<'_>> = uffds.chain([news]).collect();
        // Who could not be answered is tried again soon.
        let waiting = self.spaces.iter().any(Space::has_waiting);
        let wait = if waiting { wait.min(MOMENT) } else { wait };
        match poll(&mut all, Timespec::try_from(wait).ok().as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
        let ended = all.pop().is_some_and(|news| news.revents().contains(PollFlags::ERR));
        let ready = all.iter().enumerate();
        let ready = ready.filter(|(_, uffd)| uffd.revents().contains(PollFlags::IN));
        Ok((ready.map(|(index, _)| index).collect(), ended))
    }

    /// Copies some of what nobody waits for. `false`: nothing could be.
    fn go_on(&mut self, len: u64) -> io::Result<bool> {
        let focus = self.spaces.get(self.focus).filter(|space| !space.is_whole());
        let focus = match focus {
            Some(_) => Some(self.focus),
            None => self.spaces.iter().position(|space| !space.is_whole()),
        };
        let mut progress = false;
        if let Some(index) = focus {
            progress |= self.spaces[index].go_on(len, &self.sources)?;
        }
        // Also a way to hear of those that ended.
        if let Some(index) = self.next_aside(focus) {
            progress |= self.spaces[index].go_on(ASIDE, &self.sources)?;
        }
        Ok(progress)
    }

    fn next_aside(&mut self, focus: Option<usize>) -> Option<usize> {
        let count = self.spaces.len();
        let next = (self.aside + 1..self.aside + 1 + count).map(|index| index % count.max(1));
        let wanted = |index: &usize| Some(*index) != focus && !self.spaces[*index].is_whole();
        let found = next.into_iter().find(wanted)?;
        self.aside = found;
        Some(found)
    }
}

/// Each copy that a process makes of itself costs a descriptor.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Without it there is only less room.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
