//! Snapshots that nobody asks for one by one: every so often, and when a sandbox ends.
//!
//! Waiting and acting are two calls: waiting may be left at any moment, and what is being taken is
//! taken to its end.

use std::{fmt, pin::pin, time::Duration};

use futures::{
    StreamExt as _,
    future::{Either, pending, select},
};
use jiff::{SignedDuration, Timestamp};

use super::{Engine, SnapshotOutcome, SnapshotRequest};
use crate::{
    driver::{DriverError, EventStream, SandboxEvent},
    error::{Context as _, Error, ErrorKind, Result},
    trigger::Trigger,
};

/// Between two tries to hear from a platform that is away.
const FIRST_TRY: Duration = Duration::from_millis(500);
const LAST_TRY: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct WatchRequest {
    /// How often, whatever happens.
    pub every: Option<Duration>,
    /// What each snapshot is asked to be; its trigger follows from what happened.
    pub snapshot: SnapshotRequest,
}

/// A sandbox that is watched.
pub struct Watch {
    engine: Engine,
    /// By its id: what is made anew under its name is another.
    reference: String,
    every: Option<Duration>,
    due: Option<Timestamp>,
    snapshot: SnapshotRequest,
    events: Events,
    gone: bool,
}

enum Events {
    /// The driver tells of none.
    Never,
    Open(EventStream),
    Away {
        pause: Duration,
    },
}

/// What is to be done or told next.
#[derive(Debug)]
pub enum Turn {
    /// A snapshot is due.
    Take(Trigger, Option<String>),
    Started,
    /// What happens cannot be heard of for now. Said once.
    Away(Error),
    /// It can again; what happened meanwhile is not known.
    Back,
    /// There is nothing left to watch.
    Gone,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("reference", &self.reference).finish_non_exhaustive()
    }
}

impl Engine {
    /// Begins to watch a sandbox. Refused when there is neither a time nor anything to hear of it.
    pub async fn watch(&self, request: WatchRequest) -> Result<Watch> {
        let WatchRequest { every, snapshot } = request;
        let record = self.inner.find_sandbox(&snapshot.sandbox).await?;
        let driver = self.inner.driver(&record.driver)?;
        let events = match driver.events(record.id).await {
            Ok(events) => Events::Open(events),
            Err(DriverError::Unsupported { .. }) if every.is_some() => Events::Never,
            Err(err) => {
                let doing = || format!("failed to watch sandbox `{}`", snapshot.sandbox);
                return Err(err).context(doing);
            }
        };
        let mut watch = Watch {
            engine: self.clone(),
            reference: format!("{}:{}", record.driver, record.id),
            every,
            due: None,
            snapshot,
            events,
            gone: false,
        };
        // A stranger has no record yet that its id could be found by.
        if record.adopted.is_some() && self.inner.catalog.sandbox(record.id).await.is_err() {
            self.inner.enlist(self.inner.look_up(&watch.snapshot.sandbox).await?).await?;
        }
        watch.schedule();
        Ok(watch)
    }
}

impl Watch {
    /// Whether what happens to the sandbox is heard of, and not the clock alone.
    #[must_use]
    pub fn listens(&self) -> bool {
        !matches!(self.events, Events::Never)
    }

    /// Waits for what comes next. Nothing is lost when the waiting is given up.
    pub async fn next(&mut self) -> Turn {
        if self.gone {
            return Turn::Gone;
        }
        loop {
            if let Some(turn) = self.step().await {
                return turn;
            }
        }
    }

    async fn step(&mut self) -> Option<Turn> {
        let environment = &self.engine.inner.environment;
        let due = self.due.map(|due| due.duration_since(environment.now()));
        let alarm = async {
            match due {
                Some(left) => environment.sleep(left.try_into().unwrap_or_default()).await,
                None => pending().await,
            }
        };
        let heard = {
            let heard = self.events.next(environment.as_ref());
            match select(pin!(alarm), pin!(heard)).await {
                Either::Left(_) => None,
                Either::Right((heard, _)) => Some(heard),
            }
        };
        match heard {
            Some(heard) => self.heard(heard).await,
            None => {
                self.schedule();
                Some(Turn::Take(Trigger::Periodic, None))
            }
        }
    }

    async fn heard(&mut self, heard: Heard) -> Option<Turn> {
        match heard {
            Heard::Event(SandboxEvent::Started) => Some(Turn::Started),
            Heard::Event(SandboxEvent::Ended { code, asked }) => Some(ended(code, asked)),
            Heard::Event(SandboxEvent::Removed) => {
                self.gone = true;
                Some(Turn::Gone)
            }
            Heard::Lost(err) => {
                self.events = Events::Away { pause: FIRST_TRY };
                Some(Turn::Away(err))
            }
            Heard::TryAgain => self.reopen().await,
        }
    }

    async fn reopen(&mut self) -> Option<Turn> {
        let opened = async {
            let record = self.engine.inner.find_sandbox(&self.reference).await?;
            let driver = self.engine.inner.driver(&record.driver)?;
            match driver.status(record.id).await? {
                Some(_) => Ok(Some(driver.events(record.id).await?)),
                None => Ok(None),
            }
        };
        let opened: Result<Option<EventStream>> = opened.await;
        match opened {
            Ok(Some(events)) => {
                self.events = Events::Open(events);
                Some(Turn::Back)
            }
            Ok(None) => {
                self.gone = true;
                Some(Turn::Gone)
            }
            Err(_) => {
                if let Events::Away { pause } = &mut self.events {
                    *pause = (*pause * 2).min(LAST_TRY);
                }
                None
            }
        }
    }

    /// When what is taken from now on may go.
    pub fn expire_in(&mut self, at: Option<Timestamp>) {
        self.snapshot.expires = at;
    }

    /// Takes the snapshot that is due. A sandbox that is gone ends the watch.
    pub async fn take(&mut self, why: Trigger, context: Option<String>) -> Result<SnapshotOutcome> {
        let request = SnapshotRequest {
            sandbox: self.reference.clone(),
            trigger: why,
            context: context.or_else(|| self.snapshot.context.clone()),
            // What ended has something to show for it even if it wrote nothing.
            skip_unchanged: self.snapshot.skip_unchanged && why == Trigger::Periodic,
            ..self.snapshot.clone()
        };
        let outcome = self.engine.snapshot(request).await;
        if outcome.as_ref().is_err_and(|err| err.kind() == ErrorKind::NotFound) {
            self.gone = true;
        }
        outcome
    }

    /// From now on: what was missed is not made up for.
    fn schedule(&mut self) {
        let now = self.engine.inner.environment.now();
        self.due = self.every.map(|every| {
            let every = SignedDuration::try_from(every).unwrap_or(SignedDuration::MAX);
            now.checked_add(every).unwrap_or(Timestamp::MAX)
        });
    }
}

fn ended(code: i64, asked: bool) -> Turn {
    match (code, asked) {
        (0, _) => Turn::Take(Trigger::RunEnd, Some("it ended by itself".to_owned())),
        (_, true) => Turn::Take(Trigger::RunEnd, Some("it was stopped".to_owned())),
        (code, false) => Turn::Take(Trigger::OnError, Some(format!("it ended with code {code}"))),
    }
}

enum Heard {
    Event(SandboxEvent),
    Lost(Error),
    TryAgain,
}

impl Events {
    async fn next(&mut self, environment: &dyn crate::Environment) -> Heard {
        match self {
            Self::Never => pending().await,
            Self::Away { pause } => {
                environment.sleep(*pause).await;
                Heard::TryAgain
            }
            Self::Open(events) => match events.next().await {
                Some(Ok(event)) => Heard::Event(event),
                Some(Err(err)) => Heard::Lost(err.into()),
                None => {
                    let message = "the platform tells no more of it";
                    Heard::Lost(Error::new(ErrorKind::Unavailable, message))
                }
            },
        }
    }
}
