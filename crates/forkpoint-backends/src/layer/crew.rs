//! Threads that copy the files of a tree while another walks through it.
//!
//! A job holds its two directories open and waits in a short queue, so few descriptors are open at
//! a time. After the first failure nothing more is begun, and no thread outlives the walk.

use std::{
    iter,
    num::NonZero,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, Scope, ScopedJoinHandle},
};

use super::{
    LayerError, LayerResult, LayerSize,
    copy::Done,
    fill::{Hand, Job, Pair, Task},
    tree::Entry,
};

/// Fewer files are copied before a thread has started.
const FILES_MIN: usize = 64;

/// Two are worth it even on one processor, since one may wait for the disk; more than a few wait for
/// each other in the file system.
const THREADS_MIN: usize = 2;
const THREADS_MAX: usize = 4;

/// Jobs that wait, each with two descriptors.
const QUEUE: usize = 32;

/// Files and bytes at which a job is large enough. Only one thread at a time can make files in a
/// directory, so most directories should be one job.
const BATCH_FILES: usize = 1024;
const BATCH_BYTES: u64 = 128 << 20;

/// From here on a file is a job of its own, and comes first, so that others are copied meanwhile.
const LARGE: u64 = 1 << 20;

/// What the walk sees of the threads that copy for it. They end when it is dropped.
#[derive(Debug)]
pub(super) struct Crew<'a, 'b> {
    queue: Option<SyncSender<Job<'a>>>,
    alarm: &'b Alarm,
}

/// Runs `walk`, and waits until everything that it gave away is done. For few files there is a crew
/// of nobody. Answers what the threads copied.
pub(super) fn with_crew<'a>(
    files: usize,
    hire: impl Fn() -> LayerResult<Hand<'a>>,
    walk: impl FnOnce(Crew<'a, '_>) -> LayerResult<()>,
) -> LayerResult<Done> {
    let alarm = Alarm::default();
    let done = thread::scope(|scope| {
        let (queue, threads) =
            if files < FILES_MIN { (None, Vec::new()) } else { start(scope, &alarm, hire)? };
        alarm.watch(walk(Crew { queue, alarm: &alarm }));
        Ok(threads.into_iter().map(join).fold(Done::default(), sum))
    })?;
    alarm.into_result().map(|()| done)
}

impl<'a> Crew<'a, '_> {
    /// Names of one inode are linked to each other by one thread alone.
    pub(super) fn takes(&self, entry: &Entry) -> bool {
        self.queue.is_some() && !entry.linked
    }

    pub(super) fn has_failed(&self) -> bool {
        self.alarm.is_rung()
    }

    /// Waits while there is enough to do.
    pub(super) fn give(&self, pair: &Arc<Pair>, tasks: Vec<Task<'a>>) {
        let (large, small): (Vec<_>, Vec<_>) =
            tasks.into_iter().partition(|task| task.bytes() >= LARGE);
        for tasks in large.into_iter().map(|task| vec![task]).chain(batches(small)) {
            let job = Job { pair: Arc::clone(pair), tasks };
            if let Some(queue) = &self.queue {
                // Nobody is left to receive it only after a panic, which `join` passes on.
                let _ = queue.send(job);
            }
        }
    }
}

fn batches(tasks: Vec<Task>) -> impl Iterator<Item = Vec<Task>> {
    let mut tasks = tasks.into_iter();
    iter::from_fn(move || {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_FILES
            && bytes < BATCH_BYTES
            && let Some(task) = tasks.next()
        {
            batch.push(task);
            bytes += task.bytes();
        }
        (!batch.is_empty()).then_some(batch)
    })
}

type Threads<'scope> = Vec<ScopedJoinHandle<'scope, Done>>;

/// As many threads as the machine lets us start, even if that is none.
fn start<'scope, 'a: 'scope>(
    scope: &'scope Scope<'scope, '_>,
    alarm: &'scope Alarm,
    hire: impl Fn() -> LayerResult<Hand<'a>>,
) -> LayerResult<(Option<SyncSender<Job<'a>>>, Threads<'scope>)> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let (queue, jobs) = sync_channel(QUEUE);
    let jobs = Arc::new(Mutex::new(jobs));
    let mut threads = Vec::new();
    for _ in 0..processors.clamp(THREADS_MIN, THREADS_MAX) {
        let (hand, jobs) = (hire()?, Arc::clone(&jobs));
        let builder = thread::Builder::new().name("layer-copy".to_owned());
        match builder.spawn_scoped(scope, move || work(hand, &jobs, alarm)) {
            Ok(thread) => threads.push(thread),
            Err(_) => break,
        }
    }
    Ok(((!threads.is_empty()).then_some(queue), threads))
}

fn work<'a>(mut hand: Hand<'a>, jobs: &Mutex<Receiver<Job<'a>>>, alarm: &Alarm) -> Done {
    while let Some(job) = next(jobs) {
        // The walk may wait for room in the queue, so it is emptied all the same.
        if !alarm.is_rung() {
            alarm.watch(hand.work(job, alarm));
        }
    }
    hand.copier.done
}

fn next<'a>(jobs: &Mutex<Receiver<Job<'a>>>) -> Option<Job<'a>> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

fn join(thread: ScopedJoinHandle<Done>) -> Done {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

pub(super) fn sum(a: Done, b: Done) -> Done {
    let plus = |a: LayerSize, b: LayerSize| LayerSize {
        bytes: a.bytes + b.bytes,
        files: a.files + b.files,
    };
    Done { copied: plus(a.copied, b.copied), linked: plus(a.linked, b.linked) }
}

/// The first failure of all threads, which stops them all.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    rung: AtomicBool,
    first: Mutex<Option<LayerError>>,
}

impl Alarm {
    pub(super) fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed)
    }

    fn watch(&self, result: LayerResult<()>) {
        if let Err(err) = result {
            self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(err);
            self.rung.store(true, Ordering::Relaxed);
        }
    }

    fn into_result(self) -> LayerResult<()> {
        self.first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
