//! Threads that copy the files of a tree while another walks through it.
//!
//! Each works through a directory of its own, since only one thread at a time can make files in a
//! directory; when there are no more, they help each other, one file at a time. Whoever walks works
//! too, when there is nothing to walk. A directory that waits is held open, so few wait. After the
//! first failure nothing more is begun, and no thread outlives the walk.

use std::{
    num::NonZero,
    sync::{Arc, OnceLock, Weak},
    thread::{self, Scope, ScopedJoinHandle},
};

use super::{
    LayerResult, LayerSize,
    board::{Board, Closing, Wait},
    copy::Done,
    fill::{Folder, Hand},
    site::Site,
};

/// So much is copied before a thread has started: files, and bytes that take as long as one.
const ALONE_FILES: u64 = 64;
const FILE_BYTES: u64 = 32 << 10;

/// Two are worth it even on one processor, since one may wait for the disk; more than a few wait for
/// each other in the file system.
const THREADS_MIN: usize = 2;
const THREADS_MAX: usize = 4;

/// Directories that wait, each with two descriptors.
const QUEUE: usize = 32;

/// Runs `walk`, and waits until everything that it gave away is done. Answers with all who copied.
pub(super) fn with_crew<'a>(
    site: &'a Site,
    sealed: bool,
    walk: impl FnOnce(&mut Crew<'_, '_, 'a>) -> LayerResult<()>,
) -> LayerResult<Vec<Hand<'a>>> {
    let board = Board::default();
    let mut hands = thread::scope(|scope| {
        let hand = Hand::new(site, sealed);
        let closing = Closing(&board);
        let threads = Vec::new();
        let mut crew = Crew { scope, board: &board, closing, site, sealed, hand, threads };
        board.watch(walk(&mut crew));
        crew.end()
    });
    board.into_result()?;
    for bundle in hands.iter_mut().filter_map(|hand| hand.copier.bundle.as_mut()) {
        bundle.finish()?;
    }
    Ok(hands)
}

/// What the walk sees of the threads that copy for it.
#[derive(Debug)]
pub(super) struct Crew<'scope, 'env, 'a> {
    scope: &'scope Scope<'scope, 'env>,
    board: &'env Board<'a>,
    closing: Closing<'env, 'a>,
    site: &'a Site,
    sealed: bool,
    /// The walk's own.
    pub(super) hand: Hand<'a>,
    threads: Vec<ScopedJoinHandle<'scope, Hand<'a>>>,
}

impl<'a> Crew<'_, '_, 'a> {
    /// Whether so little was copied, and is known to come, that nobody else is worth asking.
    pub(super) fn is_alone(&self, coming: usize) -> bool {
        let Done { copied, linked, .. } = self.hand.copier.done;
        let files = copied.files + linked.files + copied.bytes / FILE_BYTES + coming as u64;
        self.threads.is_empty() && files < ALONE_FILES
    }

    pub(super) fn has_failed(&self) -> bool {
        self.board.has_failed()
    }

    /// While there is enough to do, the walk does some of it before it goes on.
    pub(super) fn give(&mut self, folder: Folder<'a>) -> Weak<Folder<'a>> {
        self.start();
        let folder = Arc::new(folder);
        let held = Arc::downgrade(&folder);
        self.board.put(folder);
        if self.board.waiting() >= QUEUE {
            let board = self.board;
            board.work(&mut self.hand, Wait::Never, || board.waiting() < QUEUE / 2);
        }
        held
    }

    /// As many threads as the machine lets us start, even if that is none.
    fn start(&mut self) {
        if !self.threads.is_empty() {
            return;
        }
        for _ in 1..processors().clamp(THREADS_MIN, THREADS_MAX) {
            let (board, mut hand) = (self.board, Hand::new(self.site, self.sealed));
            let work = move || {
                board.work(&mut hand, Wait::ForMore, || false);
                hand
            };
            let builder = thread::Builder::new().name("layer-copy".to_owned());
            match builder.spawn_scoped(self.scope, work) {
                Ok(thread) => self.threads.push(thread),
                Err(_) => break,
            }
        }
    }

    fn end(mut self) -> Vec<Hand<'a>> {
        drop(self.closing);
        self.board.work(&mut self.hand, Wait::Never, || false);
        let others = self
            .threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        others.chain([self.hand]).collect()
    }
}

/// Asked once: cgroups are looked through for it.
fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

/// What all of them did.
pub(super) fn sum(hands: &[Hand]) -> Done {
    let plus = |a: LayerSize, b: LayerSize| LayerSize {
        bytes: a.bytes + b.bytes,
        files: a.files + b.files,
    };
    let add = |a: Done, b: Done| Done {
        copied: plus(a.copied, b.copied),
        linked: plus(a.linked, b.linked),
        packed: a.packed + b.packed,
    };
    hands.iter().map(|hand| hand.copier.done).fold(Done::default(), add)
}
