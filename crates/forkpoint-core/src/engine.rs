//! The operations of the product.
//!
//! Every operation has the same shape: decide, begin, work, commit. What can be refused is refused
//! before `begin`. Until the commit everything can be undone from what `begin` wrote down; what is
//! left to clean up after it is part of the commit, as chores.
//!
//! ```text
//!   request ─► resolve, check ─► catalog.begin ─► driver … ─► catalog.commit ─► chores
//!                 refuse here        claim           │              │ reply lost?
//!                                                    ▼              ▼
//!                                       conclude: reclaim, then close (undo or finish)
//! ```

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use futures::{FutureExt as _, channel::oneshot};
use jiff::SignedDuration;

use crate::{
    Environment,
    catalog::{
        Catalog, CatalogError, Change, Chore, ChoreTask, Claim, Operation, OperationKind, Reclaimed,
    },
    driver::Driver,
    error::{Error, ErrorKind, Result},
    id::{OperationId, SandboxId, SnapshotId},
    naming::NamingPattern,
    retention::RetentionPolicy,
    trigger::EnabledTriggers,
};

mod chores;
mod claim;
mod compare;
mod create;
mod delete;
mod destroy;
mod expire;
mod fork;
mod hooks;
mod look;
mod prune;
mod read;
mod recover;
mod resolve;
mod rollback;
mod running;
mod snapshot;
mod switch;
mod watch;
mod workspace;

pub use claim::{ClaimOutcome, ClaimRequest};
pub use compare::{CompareRequest, Comparison};
pub use create::{AdoptRequest, CreateRequest};
pub use delete::SnapshotEdit;
pub use expire::ExpiryReport;
pub use fork::{Child, ForkRequest, ForkSource, Forked, RestoreRequest};
pub use hooks::{Hooks, Notices, OnFailure};
pub use look::{Look, Spot, Subject};
pub use prune::PruneReport;
pub use read::{SandboxView, SnapshotView, Stats, Validation};
pub use recover::RecoveryReport;
pub use rollback::{RollbackRequest, RolledBack};
pub use snapshot::{SkipReason, SnapshotOutcome, SnapshotRequest, TakenSnapshot};
pub use watch::{Turn, Watch, WatchRequest};

use chores::{ChoreCount, Waiting, in_order};
use recover::{Asker, Closed};
use running::{Running, RunningGuard};

/// Abandoned operations that one `begin` clears out of its way before it gives up: more than a
/// process that died can have had under way at once.
const MAX_BLOCKERS: usize = 10_000;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The operations, on whatever drivers, catalog and environment it is given.
///
/// Cheap to clone: all clones are one engine.
///
/// ```
/// use forkpoint_core::engine::{CreateRequest, RollbackRequest, SnapshotRequest};
/// use forkpoint_core::spec::SandboxSpec;
/// use forkpoint_testkit::{Simulation, World};
///
/// // Fakes and a simulated process; a program brings a real driver, catalog and environment.
/// let world = World::new(Simulation::in_order());
/// world.run(|engine| async move {
///     let spec = SandboxSpec::new("tiny".parse()?);
///     let name = Some("web".parse()?);
///     engine.create(CreateRequest { name, ..CreateRequest::new(spec) }).await?;
///     engine.snapshot(SnapshotRequest::new("web")).await?;
///     let back = engine.rollback(RollbackRequest::new("web")).await?;
///     assert_eq!(engine.show("web@latest").await?.record.id, back.to.id);
///     Ok::<_, forkpoint_core::Error>(())
/// })?;
/// # Ok::<_, forkpoint_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Whose sandboxes a name without a driver in front means.
    pub default_driver: String,
    pub triggers: EnabledTriggers,
    pub naming: NamingPattern,
    /// Enforced after each snapshot.
    pub retention: RetentionPolicy,
    pub max_agent_state_bytes: usize,
    pub max_forks: usize,
    /// Copies that are restored at the same time.
    pub parallel_forks: usize,
    pub hooks: Hooks,
    pub notices: Notices,
}

impl EngineConfig {
    pub fn new(default_driver: impl Into<String>) -> Self {
        Self {
            default_driver: default_driver.into(),
            triggers: EnabledTriggers::default(),
            naming: NamingPattern::default(),
            retention: RetentionPolicy::default(),
            max_agent_state_bytes: 1 << 20,
            max_forks: 1000,
            parallel_forks: 4,
            hooks: Hooks::default(),
            notices: Notices::default(),
        }
    }
}

/// What to do when another operation holds what this one needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Fail at once with a conflict that names it.
    #[default]
    No,
    UpTo(Duration),
}

#[derive(Debug)]
struct Inner {
    drivers: BTreeMap<&'static str, Arc<dyn Driver>>,
    catalog: Arc<dyn Catalog>,
    environment: Arc<dyn Environment>,
    config: EngineConfig,
    running: Running,
}

/// An operation that has begun and is not closed.
#[derive(Debug)]
struct Active {
    operation: Operation,
    claim: Claim,
    /// Keeps `recover` of this process away.
    _running: RunningGuard,
}

impl Engine {
    pub fn new(
        drivers: impl IntoIterator<Item = Arc<dyn Driver>>,
        catalog: Arc<dyn Catalog>,
        environment: Arc<dyn Environment>,
        config: EngineConfig,
    ) -> Result<Self> {
        let drivers = drivers.into_iter().map(|driver| (driver.name(), driver)).collect();
        config.retention.check()?;
        let running = Running::default();
        Ok(Self { inner: Arc::new(Inner { drivers, catalog, environment, config, running }) })
    }

    /// Runs one operation to its end even if the caller goes away. While something else holds what
    /// it needs, the waiting between tries is the caller's, and ends with it.
    async fn operate<T, W>(&self, wait: Wait, work: impl Fn(Arc<Inner>) -> W) -> Result<T>
    where
        T: Send + 'static,
        W: Future<Output = Result<T>> + Send + 'static,
    {
        let environment = &self.inner.environment;
        let deadline = match wait {
            Wait::No => environment.now(),
            Wait::UpTo(time) => {
                let time = SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
                environment.now().checked_add(time).unwrap_or(jiff::Timestamp::MAX)
            }
        };
        let mut pause = FIRST_PAUSE;
        loop {
            let result = self.detached(work(Arc::clone(&self.inner))).await;
            let busy = matches!(&result, Err(err) if err.busy_with().is_some());
            if !busy || environment.now() >= deadline {
                return result;
            }
            environment.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let task = async move {
            // Nobody listens any more when the caller has gone: the work is done all the same.
            let _ = answer.send(work.await);
        };
        self.inner.environment.spawn(task.boxed());
        answered.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Internal, "the operation stopped without an answer"))
        })
    }
}

impl Inner {
    fn driver(&self, name: &str) -> Result<&Arc<dyn Driver>> {
        self.drivers.get(name).ok_or_else(|| {
            let known: Vec<_> = self.drivers.keys().map(|name| format!("`{name}`")).collect();
            let message = format!("there is no driver `{name}` here, only {}", known.join(", "));
            Error::new(ErrorKind::Unsupported, message)
        })
    }

    fn new_sandbox_id(&self) -> SandboxId {
        SandboxId::new(self.environment.now(), self.environment.random())
    }

    fn new_snapshot_id(&self) -> SnapshotId {
        SnapshotId::new(self.environment.now(), self.environment.random())
    }

    /// Writes down what is about to be done. What a dead process left in the way is closed first.
    async fn begin(&self, driver: &str, kind: OperationKind) -> Result<Active, CatalogError> {
        let started = self.environment.now();
        let id = OperationId::new(started, self.environment.random());
        let operation = Operation { id, driver: driver.to_owned(), kind, started };
        let running = self.running.enter(id);
        let mut blockers = 0;
        loop {
            let err = match self.catalog.begin(&operation).await {
                Ok(claim) => return Ok(Active { operation, claim, _running: running }),
                Err(err) => err,
            };
            let cleared = match &err {
                CatalogError::Busy { by, .. } if blockers < MAX_BLOCKERS => self.clear(by).await,
                _ => false,
            };
            if !cleared {
                // Without a clear no, it may have begun all the same.
                if !err.is_refusal() {
                    self.void(Claim::first(id)).await;
                }
                return Err(err);
            }
            blockers += 1;
        }
    }

    /// Aborts an operation of ours that may have begun, but whose work never did.
    async fn void(&self, claim: Claim) {
        if let Ok(Reclaimed::Ours(claim)) = self.catalog.reclaim(&claim).await {
            // Left to `recover` if this fails as well: the claim is ours, and nobody runs it.
            let _ = self.catalog.abort(&claim).await;
        }
    }

    /// Makes the result of an operation's work visible, or closes it after a failure. `None` when
    /// the work failed and closing finished it all the same.
    ///
    /// When the work or the commit failed, the outcome is asked for and not assumed: the reply may
    /// be all that was lost. If closing fails too, the operation stays open, and `recover` tries
    /// again.
    async fn conclude<T>(&self, active: Active, work: Result<(Change, T)>) -> Result<Option<T>> {
        let (err, result) = match work {
            Ok((change, result)) => match self.catalog.commit(&active.claim, &change).await {
                Ok(chores) => {
                    self.do_chores(chores).await;
                    return Ok(Some(result));
                }
                Err(err) => (Error::from(err), Some(result)),
            },
            Err(err) => (err, None),
        };
        let closed = match self.catalog.reclaim(&active.claim).await {
            Ok(Reclaimed::Committed) => Ok(Closed::Finished),
            Ok(Reclaimed::Ours(claim)) => self.close(&active.operation, &claim, Asker::Waits).await,
            Ok(Reclaimed::Lost) => Ok(Closed::Undone),
            Err(unknown) => Err(unknown.into()),
        };
        match closed {
            Ok(Closed::Finished) => Ok(result),
            Ok(Closed::Undone) => Err(err),
            Err(unknown) => {
                let Operation { id, kind, .. } = &active.operation;
                tracing::warn!(operation = %id, error = %unknown.chain(), "left to recovery");
                let (what, end) = (kind.as_str(), kind.when_left_open());
                Err(err
                    .context(format!("{what} `{id}` is left open, and will be {end} by recovery")))
            }
        }
    }

    /// Does what commits left to be cleaned up. A failure leaves the chore for `recover`, and with
    /// it what must wait for it.
    async fn do_chores(&self, chores: Vec<Chore>) -> ChoreCount {
        let mut count = ChoreCount::default();
        let mut waiting = Waiting::default();
        for chore in in_order(chores) {
            if waiting.holds_back(&chore) {
                waiting.add(&chore);
                count.waiting += 1;
            } else if let Err(err) = self.do_chore(&chore).await {
                tracing::warn!(chore = ?chore.task, error = %err.chain(), "left to recovery");
                waiting.add(&chore);
                count.waiting += 1;
            } else {
                count.done += 1;
            }
        }
        count
    }

    async fn do_chore(&self, chore: &Chore) -> Result<()> {
        let driver = self.driver(&chore.driver)?;
        match &chore.task {
            ChoreTask::Destroy(sandbox) => driver.destroy(*sandbox).await?,
            ChoreTask::Discard(piece) => driver.discard(&piece.name).await?,
        }
        Ok(self.catalog.chore_done(chore.id).await?)
    }
}
