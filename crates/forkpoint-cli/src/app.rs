//! What every command has at hand: the engine, the output, and whether somebody pressed Ctrl-C.

use std::{
    future::Future,
    path::PathBuf,
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use forkpoint_backends::{
    driver::local::Templates, environment::SystemEnvironment, image::Progress,
};
use forkpoint_core::{Engine, Environment as _, Error, ErrorKind, Timestamp};
use futures::future::{Either, select};
use tokio::runtime::Handle;

use crate::{
    config::Config,
    fail::INTERRUPTED,
    output::{
        Output,
        progress::{Spinner, TICK_MS, far},
        say,
    },
    signal::Signals,
    wire::Opened,
};

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) templates: Templates,
    pub(crate) out: Output,
    pub(crate) config: Config,
    /// Where everything is kept.
    pub(crate) data: PathBuf,
    interrupted: AtomicBool,
}

impl App {
    pub(crate) fn new(opened: Opened, out: Output, config: Config, data: PathBuf) -> Self {
        let Opened { engine, templates } = opened;
        Self { engine, templates, out, config, data, interrupted: AtomicBool::new(false) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        now()
    }

    /// Whether to begin nothing more.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// The same, for whom that is no failure.
    pub(crate) fn take_interrupt(&self) -> bool {
        self.interrupted.swap(false, Ordering::Relaxed)
    }

    /// Remembers a Ctrl-C. Answers whether it was the first.
    pub(crate) fn interrupt(&self) -> bool {
        !self.interrupted.swap(true, Ordering::Relaxed)
    }

    /// Waits for work that must not be left half-done. The first Ctrl-C lets it finish, which takes
    /// milliseconds; the second leaves at once, and the next start clears up.
    pub(crate) async fn finish<T>(
        &self,
        doing: &str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut signals = listen()?;
        let mut spinner = Spinner::new(&self.out, doing);
        let mut work = pin!(work);
        loop {
            let tick = pin!(tokio::time::sleep(Duration::from_millis(TICK_MS)));
            let signal = pin!(signals.next());
            match select(&mut work, select(signal, tick)).await {
                Either::Left((result, _)) => return result,
                Either::Right((Either::Right(_), _)) => spinner.tick(),
                Either::Right((Either::Left(_), _)) => {
                    spinner.clear();
                    if !self.interrupt() {
                        std::process::exit(INTERRUPTED.into());
                    }
                    say(&format!("{doing}: finishing… (again to leave at once)"));
                }
            }
        }
    }

    /// Work that may be left at any moment: the first Ctrl-C drops it, and the answer is `None`.
    /// What is being done is told unless the work itself prints.
    pub(crate) async fn until_interrupted<T>(
        &self,
        doing: Option<&str>,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, Error> {
        self.told_until_interrupted(doing, String::new, work).await
    }

    /// The same for bytes that are on their way.
    pub(crate) async fn copy_until_interrupted<T>(
        &self,
        doing: &str,
        progress: &Progress,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, Error> {
        self.told_until_interrupted(Some(doing), || far(progress), work).await
    }

    async fn told_until_interrupted<T>(
        &self,
        doing: Option<&str>,
        far: impl Fn() -> String,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, Error> {
        let mut signals = listen()?;
        let out = Output { progress: self.out.progress && doing.is_some(), ..self.out };
        let mut spinner = Spinner::new(&out, doing.unwrap_or_default());
        let mut work = pin!(work);
        loop {
            let tick = pin!(tokio::time::sleep(Duration::from_millis(TICK_MS)));
            let signal = pin!(signals.next());
            match select(&mut work, select(signal, tick)).await {
                Either::Left((result, _)) => return Ok(Some(result)),
                Either::Right((Either::Right(_), _)) => spinner.tick_at(&far()),
                Either::Right((Either::Left(_), _)) => return Ok(None),
            }
        }
    }
}

pub(crate) fn listen() -> Result<Signals, Error> {
    Signals::that_end().map_err(|err| {
        Error::new(ErrorKind::Unavailable, "failed to listen for signals").with_source(err)
    })
}

pub(crate) fn now() -> Timestamp {
    SystemEnvironment::new(Handle::current()).now()
}
