//! Whoever owns a connection and does one job after another: a thread, or the one who asks.

use std::{
    io,
    sync::{Mutex, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use forkpoint_core::catalog::{CatalogError, CatalogResult};
use futures::channel::oneshot;
use rusqlite::Transaction;

use super::{
    place::Answer,
    session::{Access, Session},
};

/// Nobody who asked one thing is about to ask the next.
const QUIET: Duration = Duration::from_millis(10);

type Job = Box<dyn FnOnce(&mut Session) + Send>;

/// Dropping it waits until all that was asked for is done, and the file is closed.
pub(super) enum Worker {
    Thread(Helper),
    /// Jobs take a fraction of a millisecond, and waking a thread for each takes as long again.
    Here(Mutex<Session>),
}

pub(super) struct Helper {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, thiserror::Error)]
#[error("the thread that works on it has stopped")]
struct Stopped;

impl Worker {
    pub(super) fn start(name: &str, session: Session) -> CatalogResult<Self> {
        Helper::start(name, session).map(Self::Thread)
    }

    /// The job is done even when the caller stops waiting for it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        access: Access,
        operation: &'static str,
        job: impl FnOnce(&Transaction<'_>) -> Answer<T> + Send + 'static,
    ) -> CatalogResult<T> {
        match self {
            Self::Thread(helper) => helper.run(access, operation, job).await,
            Self::Here(session) => session
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .transact(access, operation, job),
        }
    }
}

impl Helper {
    fn start(name: &str, mut session: Session) -> CatalogResult<Self> {
        let (jobs, waiting) = mpsc::channel::<Job>();
        let work = move || {
            while let Some(job) = next(&waiting, &mut session) {
                job(&mut session);
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work).map_err(
            |source: io::Error| CatalogError::Database {
                operation: "start a thread",
                source: source.into(),
            },
        )?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    async fn run<T: Send + 'static>(
        &self,
        access: Access,
        operation: &'static str,
        job: impl FnOnce(&Transaction<'_>) -> Answer<T> + Send + 'static,
    ) -> CatalogResult<T> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |session| {
            let _ = answer.send(session.transact(access, operation, job));
        });
        if let Some(jobs) = &self.jobs {
            // If the thread is gone, so is the job, and nobody will answer.
            let _ = jobs.send(job);
        }
        answered
            .await
            .unwrap_or_else(|_| Err(CatalogError::Database { operation, source: Stopped.into() }))
    }
}

/// The next job. Until there is one, there is time to tidy up.
fn next(waiting: &mpsc::Receiver<Job>, session: &mut Session) -> Option<Job> {
    if session.has_long_log() {
        match waiting.recv_timeout(QUIET) {
            Err(mpsc::RecvTimeoutError::Timeout) => session.shorten_log(),
            job => return job.ok(),
        }
    }
    waiting.recv().ok()
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.jobs = None;
        // The answer to a job may wake whoever drops the last handle on the worker's own thread.
        let other = |thread: &JoinHandle<()>| thread.thread().id() != thread::current().id();
        if let Some(thread) = self.thread.take().filter(other) {
            // A panic was shown when it happened, and the callers got their error.
            let _ = thread.join();
        }
    }
}
