//! Whoever owns a connection and does one job after another: a thread, or the one who asks.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, mpsc},
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
    // The thread's, and in between of whoever asks little.
    session: Arc<Mutex<Session>>,
}

fn locked(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
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
            Self::Here(session) => locked(session).transact(access, operation, job),
        }
    }

    /// For what takes a fraction of a millisecond: if nothing is in its way, it is done by whoever asks. To wake a thread and to
    /// be woken by it often takes longer.
    pub(super) async fn run_soon<T: Send + 'static>(
        &self,
        access: Access,
        operation: &'static str,
        job: impl FnOnce(&Transaction<'_>) -> Answer<T> + Send + 'static,
    ) -> CatalogResult<T> {
        let Self::Thread(helper) = self else { return self.run(access, operation, job).await };
        match helper.try_here(access, operation, job) {
            Ok(answer) => answer,
            Err(job) => helper.run(access, operation, job).await,
        }
    }
}

impl Helper {
    fn start(name: &str, session: Session) -> CatalogResult<Self> {
        let (jobs, waiting) = mpsc::channel::<Job>();
        let session = Arc::new(Mutex::new(session));
        let its = Arc::clone(&session);
        let work = move || {
            while let Some(job) = next(&waiting, &its) {
                job(&mut locked(&its));
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work).map_err(
            |source: io::Error| CatalogError::Database {
                operation: "start a thread",
                source: source.into(),
            },
        )?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), session })
    }

    /// Gives the job back where it would have to wait.
    fn try_here<T, J>(
        &self,
        access: Access,
        operation: &'static str,
        job: J,
    ) -> Result<CatalogResult<T>, J>
    where
        J: FnOnce(&Transaction<'_>) -> Answer<T>,
    {
        let mut session = match self.session.try_lock() {
            Ok(session) => session,
            Err(TryLockError::Poisoned(session)) => session.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(job),
        };
        let answer = session.transact_at_once(access, operation, job)?;
        if session.has_long_log() {
            // Whoever tidies up is asleep.
            self.tell(Box::new(|_| {}));
        }
        Ok(answer)
    }

    fn tell(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // If the thread is gone, so is the job, and nobody will answer.
            let _ = jobs.send(job);
        }
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
        self.tell(job);
        answered
            .await
            .unwrap_or_else(|_| Err(CatalogError::Database { operation, source: Stopped.into() }))
    }
}

/// The next job. Until there is one, there is time to tidy up.
fn next(waiting: &mpsc::Receiver<Job>, session: &Mutex<Session>) -> Option<Job> {
    let has_long_log = locked(session).has_long_log();
    if has_long_log {
        match waiting.recv_timeout(QUIET) {
            Err(mpsc::RecvTimeoutError::Timeout) => locked(session).shorten_log(),
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
