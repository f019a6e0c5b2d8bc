//! Taking a snapshot of a live sandbox.

use std::fmt;

use bytes::Bytes;
use jiff::Timestamp;

use super::{Active, Engine, Inner, PruneReport, Wait, hooks::HookPoint};
use crate::{
    catalog::{CatalogError, Change, OperationKind, SandboxRecord, SnapshotRecord},
    driver::{Artifact, Driver, DriverError, DriverResult, PausedSandbox, Sandbox, SnapshotKind},
    error::{Context as _, Error, ErrorKind, Result},
    id::{SandboxId, SnapshotId},
    label::Labels,
    naming::{Name, NamingFacts},
    trigger::Trigger,
};

const MAX_TEXT_BYTES: usize = 64 * 1024;

#[derive(Clone, Debug)]
pub struct SnapshotRequest {
    /// An id, a name or a prefix.
    pub sandbox: String,
    pub kind: SnapshotKind,
    /// Whether files alone will do where more cannot be had: [`TakenSnapshot::files_alone`] tells why.
    pub or_files: bool,
    /// Whether files that are in memory alone are kept too, as in a `tmpfs`.
    pub volatile: bool,
    /// Whether processes with connections to somebody outside are kept, and find them reset in a copy. They are
    /// refused otherwise.
    pub close_connections: bool,
    pub trigger: Trigger,
    /// From the naming pattern if there is none.
    pub name: Option<Name>,
    pub description: Option<String>,
    pub context: Option<String>,
    pub run_id: Option<String>,
    pub step: Option<u64>,
    pub labels: Labels,
    pub agent_state: Option<Bytes>,
    pub expires: Option<Timestamp>,
    pub pinned: bool,
    /// Whether to have it survive a power cut before the call returns, where the platform can; the
    /// record tells whether it does. The sandbox runs meanwhile.
    pub sync: bool,
    /// Whether to take nothing when the sandbox is as its last snapshot holds it already, with the
    /// same state of the agent, and that one is all that is asked for here: as durable, pinned, and
    /// there as long. Whoever asks for a name gets one. Where the driver cannot tell, one is taken.
    pub skip_unchanged: bool,
    pub wait: Wait,
}

impl SnapshotRequest {
    pub fn new(sandbox: impl Into<String>) -> Self {
        Self {
            sandbox: sandbox.into(),
            kind: SnapshotKind::Files,
            or_files: false,
            volatile: false,
            close_connections: false,
            trigger: Trigger::Manual,
            name: None,
            description: None,
            context: None,
            run_id: None,
            step: None,
            labels: Labels::default(),
            agent_state: None,
            expires: None,
            pinned: false,
            sync: false,
            skip_unchanged: false,
            wait: Wait::No,
        }
    }
}

#[derive(Debug)]
pub enum SnapshotOutcome {
    Taken(Box<TakenSnapshot>),
    /// Nothing was taken, and nothing failed: an agent's run goes on.
    Skipped(SkipReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SkipReason {
    TriggerDisabled(Trigger),
    /// This snapshot holds the sandbox as it is.
    Unchanged(SnapshotId),
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TriggerDisabled(trigger) => write!(f, "trigger `{trigger}` is not enabled"),
            Self::Unchanged(snapshot) => write!(f, "nothing changed since `{snapshot}`"),
        }
    }
}

#[derive(Debug)]
pub struct TakenSnapshot {
    pub snapshot: SnapshotRecord,
    /// Why it holds less than was asked for.
    pub files_alone: Option<String>,
    /// What retention did afterwards, where limits are configured.
    pub pruned: Option<Result<PruneReport>>,
}

impl Engine {
    /// Takes a snapshot. The sandbox stands still only while its state is sealed.
    pub async fn snapshot(&self, request: SnapshotRequest) -> Result<SnapshotOutcome> {
        let wait = request.wait;
        self.operate(wait, move |inner| {
            let request = request.clone();
            async move { inner.snapshot(request).await }
        })
        .await
    }
}

impl Inner {
    pub(super) async fn snapshot(&self, mut request: SnapshotRequest) -> Result<SnapshotOutcome> {
        let found = self.look_up(&request.sandbox).await?;
        let trigger = request.trigger;
        if !self.config.triggers.contains(trigger) {
            return Ok(SnapshotOutcome::Skipped(SkipReason::TriggerDisabled(trigger)));
        }
        let driver = self.driver(&found.record.driver)?;
        self.check_snapshot(&request, driver.as_ref())?;
        let named = request.sandbox.clone();
        let doing = || format!("failed to take a snapshot of sandbox `{named}`");
        let mut files_alone = None;
        match can_seal(driver.as_ref(), found.record.id, request.kind).await {
            Err(err) if request.or_files && is_about_the_kind(&err) => {
                files_alone = Some(err.to_string());
                request.kind = SnapshotKind::Files;
            }
            // That it is about a snapshot of this sandbox says the error itself.
            Err(err @ DriverError::Unsupported { .. }) => return Err(err.into()),
            result => result.context(doing)?,
        }
        let sandbox = self.enlist(found).await.context(doing)?;

        let id = self.new_snapshot_id();
        let at = self.environment.now();
        let (active, name) =
            self.begin_snapshot(&request, &sandbox, id, at).await.context(doing)?;
        let sealed = match self.seal(driver.as_ref(), &sandbox, id, &request).await {
            Ok(Work::Unchanged(head)) => {
                self.abandon(active).await;
                return Ok(SnapshotOutcome::Skipped(SkipReason::Unchanged(head)));
            }
            Ok(Work::Sealed(sealed)) => {
                let Sealed { sandbox, artifact, files_alone: why } = *sealed;
                files_alone = files_alone.or(why);
                Ok((sandbox, artifact))
            }
            Err(err) => Err(err),
        };
        self.pass_on(driver.as_ref(), &sandbox);
        let work = sealed.map(|(sandbox, artifact)| {
            let snapshot = snapshot_record(&request, sandbox, name, at, artifact);
            let agent_state = request.agent_state.clone();
            (Change::SnapshotTaken { snapshot: Box::new(snapshot.clone()), agent_state }, snapshot)
        });
        let Some(snapshot) = self.conclude(active, work).await.context(doing)? else {
            return Err(Error::new(
                ErrorKind::Internal,
                "a snapshot was finished without a record",
            ));
        };

        let retention = &self.config.retention;
        let pruned = match retention.is_empty() {
            true => None,
            false => Some(self.prune(retention, Some(id)).await),
        };
        Ok(SnapshotOutcome::Taken(Box::new(TakenSnapshot { snapshot, files_alone, pruned })))
    }

    fn check_snapshot(&self, request: &SnapshotRequest, driver: &dyn Driver) -> Result<()> {
        if request.volatile && !driver.keeps_volatile() {
            let operation = "keep what is in memory without its processes";
            return Err(DriverError::Unsupported { driver: driver.name(), operation }.into());
        }
        if request.close_connections {
            if request.kind == SnapshotKind::Files {
                return Err(Error::invalid("only a snapshot with processes has connections"));
            }
            if !driver.closes_connections() {
                let operation = "keep processes without their connections";
                return Err(DriverError::Unsupported { driver: driver.name(), operation }.into());
            }
        }
        let len = request.agent_state.as_ref().map_or(0, Bytes::len);
        let limit = self.config.max_agent_state_bytes;
        if len > limit {
            return Err(Error::invalid(format!(
                "the agent state has {len} bytes, more than the {limit} that a snapshot takes"
            )));
        }
        for (what, text) in [
            ("description", &request.description),
            ("context", &request.context),
            ("run id", &request.run_id),
        ] {
            if text.as_ref().is_some_and(|text| text.len() > MAX_TEXT_BYTES) {
                return Err(Error::invalid(format!(
                    "the {what} is longer than {MAX_TEXT_BYTES} bytes"
                )));
            }
        }
        Ok(())
    }

    /// Begins under a name that nobody else has. A name that a person chose must be free; one from
    /// the pattern is made free.
    async fn begin_snapshot(
        &self,
        request: &SnapshotRequest,
        sandbox: &SandboxRecord,
        id: SnapshotId,
        at: Timestamp,
    ) -> Result<(Active, Name), CatalogError> {
        let begin = async |name: Name| {
            let kind =
                OperationKind::Snapshot { sandbox: sandbox.id, snapshot: id, name: name.clone() };
            self.begin(&sandbox.driver, kind).await.map(|active| (active, name))
        };
        if let Some(name) = &request.name {
            return begin(name.clone()).await;
        }
        let name = self.config.naming.render(&NamingFacts {
            sandbox: sandbox.id,
            sandbox_name: sandbox.name.as_ref(),
            snapshot: id,
            trigger: request.trigger,
            kind: request.kind,
            driver: &sandbox.driver,
            run_id: request.run_id.as_deref(),
            step: request.step,
            at,
        });
        match begin(name.clone()).await {
            Err(err) if err.is_about_a_name() => begin(name.made_unique(id)).await,
            begun => begun,
        }
    }

    /// Answers with the record as it is under the claim: until `begin`, the head could still move.
    async fn seal(
        &self,
        driver: &dyn Driver,
        sandbox: &SandboxRecord,
        id: SnapshotId,
        request: &SnapshotRequest,
    ) -> Result<Work> {
        let sandbox = self.catalog.sandbox(sandbox.id).await?;
        let since = match request.skip_unchanged {
            true => self.same_but_for_content(driver, &sandbox, request).await?,
            false => None,
        };
        let live = driver.attach(sandbox.id).await?;
        self.run_hook(HookPoint::BeforeSnapshot, live.as_ref(), id).await?;
        let sealed = seal(live.as_ref(), id, request, since.as_ref()).await;
        let (sealed, files_alone) = match sealed {
            Err(err) if request.or_files && is_about_the_kind(&err) => {
                let request = SnapshotRequest { kind: SnapshotKind::Files, ..request.clone() };
                (seal(live.as_ref(), id, &request, None).await?, Some(err.to_string()))
            }
            sealed => (sealed?, None),
        };
        let Some(mut artifact) = sealed else {
            // There is one whenever there is nothing to seal.
            return since.map(|since| Work::Unchanged(since.snapshot)).ok_or_else(|| {
                Error::new(ErrorKind::Internal, "nothing was sealed, and nothing was there")
            });
        };
        if request.sync {
            artifact = driver.sync(&artifact).await?;
        }
        Ok(Work::Sealed(Box::new(Sealed { sandbox, artifact, files_alone })))
    }

    /// The snapshot that the sandbox stands on, if it would do for this request unless something in it has
    /// changed. A deleted snapshot holds nothing.
    async fn same_but_for_content(
        &self,
        driver: &dyn Driver,
        sandbox: &SandboxRecord,
        request: &SnapshotRequest,
    ) -> Result<Option<Artifact>> {
        // Which connections were closed in it, or what was in memory alone, a snapshot does not tell.
        let plain = !request.volatile && !request.close_connections;
        let Some(head) = sandbox.head.filter(|_| plain) else { return Ok(None) };
        let found = match self.catalog.snapshot(head).await {
            Err(CatalogError::SnapshotMissing { .. }) => return Ok(None),
            found => found?,
        };
        if !would_do(&found, request) {
            return Ok(None);
        }
        // Where nothing survives a power cut, another one would not either.
        if request.sync && !found.durable && driver.sync(&found.artifact).await?.durable {
            return Ok(None);
        }
        let same = match &request.agent_state {
            None => true,
            state => self.catalog.agent_state(head).await? == *state,
        };
        Ok(same.then_some(found.artifact))
    }

    /// Closes an operation that has changed nothing, and is not to.
    async fn abandon(&self, active: Active) {
        if let Err(err) = self.catalog.abort(&active.claim).await {
            // Closing it finds out whether that was all that was lost, or leaves it to recovery.
            let _ = self.conclude::<()>(active, Err(err.into())).await;
        }
    }
}

/// Whether a snapshot with the same content is what was asked for, but for its durability.
fn would_do(there: &SnapshotRecord, request: &SnapshotRequest) -> bool {
    let lasts = match (there.expires, request.expires) {
        (None, _) => true,
        (Some(_), None) => there.pinned,
        (Some(end), Some(wanted)) => there.pinned || end >= wanted,
    };
    // One with processes has the files too.
    let keeps = there.kind == request.kind || there.kind == SnapshotKind::Full;
    keeps && request.name.is_none() && (there.pinned || !request.pinned) && lasts
}

/// What became of a sandbox that was looked at.
enum Work {
    Sealed(Box<Sealed>),
    Unchanged(SnapshotId),
}

struct Sealed {
    sandbox: SandboxRecord,
    artifact: Artifact,
    files_alone: Option<String>,
}

/// Before anything happens.
async fn can_seal(driver: &dyn Driver, id: SandboxId, kind: SnapshotKind) -> DriverResult<()> {
    if driver.capabilities().kinds.contains(&kind) {
        return driver.can_seal(id, kind).await;
    }
    let operation = match kind {
        SnapshotKind::Files => "take a snapshot of files",
        SnapshotKind::Full => "take a snapshot with processes and memory",
    };
    Err(DriverError::Unsupported { driver: driver.name(), operation })
}

fn is_about_the_kind(err: &DriverError) -> bool {
    matches!(err, DriverError::KindUnavailable { .. } | DriverError::Unsupported { .. })
}

/// Pauses, seals and resumes. The sandbox is as it was before even when sealing failed. `None` when
/// nothing has changed since `since`.
async fn seal(
    sandbox: &dyn Sandbox,
    id: SnapshotId,
    request: &SnapshotRequest,
    since: Option<&Artifact>,
) -> DriverResult<Option<Artifact>> {
    let mut paused = sandbox.pause(request.kind).await?;
    let unchanged = match since {
        Some(since) => paused.is_unchanged(since).await,
        None => Ok(false),
    };
    let sealed = match unchanged {
        Ok(true) => Ok(None),
        Ok(false) => seal_paused(paused.as_mut(), id, request).await.map(Some),
        Err(err) => Err(err),
    };
    paused.resume().await?;
    sealed
}

async fn seal_paused(
    paused: &mut dyn PausedSandbox,
    id: SnapshotId,
    request: &SnapshotRequest,
) -> DriverResult<Artifact> {
    if request.volatile {
        paused.include_volatile().await?;
    }
    if request.close_connections && request.kind == SnapshotKind::Full {
        paused.close_connections().await?;
    }
    paused.seal(id, request.kind).await
}

fn snapshot_record(
    request: &SnapshotRequest,
    sandbox: SandboxRecord,
    name: Name,
    created: Timestamp,
    artifact: Artifact,
) -> SnapshotRecord {
    SnapshotRecord {
        id: artifact.snapshot,
        name,
        sandbox: sandbox.id,
        sandbox_name: sandbox.name,
        parent: sandbox.head,
        driver: sandbox.driver,
        kind: artifact.kind,
        trigger: request.trigger,
        description: request.description.clone(),
        context: request.context.clone(),
        run_id: request.run_id.clone(),
        step: request.step,
        labels: request.labels.clone(),
        agent_state_bytes: request.agent_state.as_ref().map(|state| state.len() as u64),
        spec: sandbox.spec,
        own_bytes: artifact.own_bytes,
        total_bytes: artifact.total_bytes,
        file_count: artifact.file_count,
        created,
        expires: request.expires,
        pinned: request.pinned,
        last_restored: None,
        restore_count: 0,
        durable: artifact.durable,
        artifact,
    }
}
