//! Directories of which files are to be copied, for all threads that copy.

use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use super::{
    LayerError, LayerResult,
    fill::{Folder, Hand},
};

#[derive(Debug, Default)]
pub(super) struct Board<'a> {
    state: Mutex<State<'a>>,
    news: Condvar,
    /// Folders that nobody works through.
    waiting: AtomicUsize,
    failed: AtomicBool,
}

#[derive(Debug, Default)]
struct State<'a> {
    /// Those with tasks that nobody has, and some without.
    open: Vec<Arc<Folder<'a>>>,
    /// Nothing more will come.
    closed: bool,
    /// The first failure of all threads, which stops them all.
    failure: Option<LayerError>,
}

/// What to do when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Never,
    /// Until there is, or the board is closed.
    ForMore,
}

impl<'a> Board<'a> {
    fn state(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn put(&self, folder: Arc<Folder<'a>>) {
        let mut state = self.state();
        state.open.push(folder);
        self.recount(&state);
        self.news.notify_one();
    }

    fn recount(&self, state: &State) {
        let waiting = state.open.iter().filter(|folder| !folder.taken.load(Ordering::Relaxed));
        self.waiting.store(waiting.count(), Ordering::Relaxed);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub(super) fn watch(&self, result: LayerResult<()>) {
        if let Err(err) = result {
            self.state().failure.get_or_insert(err);
            self.failed.store(true, Ordering::Relaxed);
            self.news.notify_all();
        }
    }

    pub(super) fn into_result(self) -> LayerResult<()> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.failure.map_or(Ok(()), Err)
    }

    /// Does what there is to do, as long as `enough` does not say otherwise.
    pub(super) fn work(&self, hand: &mut Hand, wait: Wait, enough: impl Fn() -> bool) {
        while !enough()
            && let Some((folder, own)) = self.pick(wait)
        {
            let stop = || match own {
                true => enough(),
                // Whoever helps takes one of his own as soon as there is one.
                false => enough() || self.waiting() > 0,
            };
            self.watch(self.work_through(hand, folder, own, stop));
        }
    }

    /// Also whether nobody else works through it.
    fn pick(&self, wait: Wait) -> Option<(Arc<Folder<'a>>, bool)> {
        let mut state = self.state();
        loop {
            if self.has_failed() {
                return None;
            }
            let fresh = state.open.iter().find(|folder| !folder.taken.load(Ordering::Relaxed));
            if let Some(fresh) = fresh {
                fresh.taken.store(true, Ordering::Relaxed);
                let fresh = Arc::clone(fresh);
                self.recount(&state);
                return Some((fresh, true));
            }
            if let Some(largest) = state.open.iter().max_by_key(|folder| folder.remaining()) {
                return Some((Arc::clone(largest), false));
            }
            if wait == Wait::Never || state.closed {
                return None;
            }
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work_through(
        &self,
        hand: &mut Hand,
        folder: Arc<Folder<'a>>,
        own: bool,
        stop: impl Fn() -> bool,
    ) -> LayerResult<()> {
        loop {
            if self.has_failed() {
                return Ok(());
            }
            if stop() {
                self.hand_back(&folder, own);
                break;
            }
            let Some(task) = folder.take() else {
                self.remove(&folder);
                break;
            };
            hand.work(&folder, task)?;
        }
        hand.release(folder)
    }

    fn hand_back(&self, folder: &Folder<'a>, own: bool) {
        if own {
            let state = self.state();
            folder.taken.store(false, Ordering::Relaxed);
            self.recount(&state);
            self.news.notify_one();
        }
    }

    /// Before its own reference goes, so that the board never has the last one.
    fn remove(&self, folder: &Arc<Folder<'a>>) {
        let mut state = self.state();
        state.open.retain(|open| !Arc::ptr_eq(open, folder));
        self.recount(&state);
    }
}

/// Nobody may wait for more when the walk is over, however it ended.
#[derive(Debug)]
pub(super) struct Closing<'env, 'a>(pub(super) &'env Board<'a>);

impl Drop for Closing<'_, '_> {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.news.notify_all();
    }
}
