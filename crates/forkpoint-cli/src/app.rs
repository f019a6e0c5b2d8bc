//! What every command has at hand: the engine, the output, and whether somebody pressed Ctrl-C.

use std::{
    future::Future,
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use forkpoint_backends::environment::SystemEnvironment;
use forkpoint_core::{Engine, Environment as _, Error, ErrorKind, Timestamp};
use futures::future::{Either, select};
use tokio::runtime::Handle;

use crate::{
    fail::INTERRUPTED,
    output::{
        Output,
        progress::{Spinner, TICK_MS},
        say,
    },
    signal::Signals,
};

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) out: Output,
    interrupted: AtomicBool,
}

impl App {
    pub(crate) fn new(engine: Engine, out: Output) -> Self {
        Self { engine, out, interrupted: AtomicBool::new(false) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        now()
    }

    /// Whether to begin nothing more.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Waits for work that must not be left half-done. The first Ctrl-C lets it finish, which takes
    /// milliseconds; the second leaves at once, and the next start clears up.
    pub(crate) async fn finish<T>(
        &self,
        doing: &str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut signals = Signals::that_end().map_err(|err| {
            Error::new(ErrorKind::Unavailable, "failed to listen for signals").with_source(err)
        })?;
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
                    if self.interrupted.swap(true, Ordering::Relaxed) {
                        std::process::exit(INTERRUPTED.into());
                    }
                    say(&format!("{doing}: finishing… (again to leave at once)"));
                }
            }
        }
    }
}

pub(crate) fn now() -> Timestamp {
    SystemEnvironment::new(Handle::current()).now()
}
