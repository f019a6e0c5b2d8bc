//! New sandboxes from a snapshot: one (restore) or many (fork).

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;

use super::{
    Engine, Inner, SnapshotOutcome, SnapshotRequest, Wait, create::attached, hooks::HookPoint,
};
use crate::{
    catalog::{CatalogError, Change, NewSandbox, OperationKind, SandboxRecord, SnapshotRecord},
    driver::{Driver, SnapshotKind},
    error::{Context as _, Error, ErrorKind, Result},
    id::{SandboxId, SnapshotId},
    label::Labels,
    naming::Name,
    spec::{Attachments, Publish, SandboxSpec},
};

#[derive(Clone, Debug)]
pub struct RestoreRequest {
    pub snapshot: String,
    pub name: Option<Name>,
    pub labels: Labels,
    /// Added to the environment that the snapshot's sandbox had.
    pub env: BTreeMap<String, String>,
    pub attachments: Attachments,
    /// When it is to be destroyed.
    pub expires: Option<Timestamp>,
    pub wait: Wait,
}

impl RestoreRequest {
    pub fn new(snapshot: impl Into<String>) -> Self {
        Self {
            snapshot: snapshot.into(),
            name: None,
            labels: Labels::default(),
            env: BTreeMap::new(),
            attachments: Attachments::default(),
            expires: None,
            wait: Wait::No,
        }
    }
}

#[derive(Clone, Debug)]
pub struct ForkRequest {
    pub source: ForkSource,
    pub count: usize,
    /// The copies are called `NAME-1`, `NAME-2`, …
    pub name: Option<Name>,
    pub labels: Labels,
    pub env: BTreeMap<String, String>,
    /// Of each copy.
    pub attachments: Attachments,
    /// When they are to be destroyed.
    pub expires: Option<Timestamp>,
    pub wait: Wait,
}

#[derive(Clone, Debug)]
pub enum ForkSource {
    /// Its state as of now: a snapshot of this kind is taken first.
    Sandbox(String, SnapshotKind),
    Snapshot(String),
}

impl ForkRequest {
    #[must_use]
    pub fn new(source: ForkSource, count: usize) -> Self {
        Self {
            source,
            count,
            name: None,
            labels: Labels::default(),
            env: BTreeMap::new(),
            attachments: Attachments::default(),
            expires: None,
            wait: Wait::No,
        }
    }
}

#[derive(Debug)]
pub struct Forked {
    /// What they all come from. It stays, also when copies failed.
    pub snapshot: SnapshotId,
    /// In the order of their numbers, each with its own fate.
    pub children: Vec<Child>,
}

#[derive(Debug)]
pub struct Child {
    pub id: SandboxId,
    pub name: Option<Name>,
    pub result: Result<SandboxRecord>,
}

impl Engine {
    /// A new sandbox from a snapshot. The source stays as it is.
    pub async fn restore(&self, request: RestoreRequest) -> Result<SandboxRecord> {
        let RestoreRequest { snapshot, name, labels, env, attachments, expires, wait } = request;
        let numbered = false;
        let children = Children { count: 1, name, numbered, labels, env, attachments, expires };
        let forked = self.make(ForkSource::Snapshot(snapshot), children, wait).await?;
        match forked.children.into_iter().next() {
            Some(child) => child.result,
            None => Err(Error::new(ErrorKind::Internal, "a restore gave no sandbox")),
        }
    }

    /// Copies of one state. A copy that fails is undone alone and reported alone; the call fails
    /// only when nothing could be tried, or when the results could not be recorded.
    pub async fn fork(&self, request: ForkRequest) -> Result<Forked> {
        let ForkRequest { source, count, name, labels, env, attachments, expires, wait } = request;
        let max = self.inner.config.max_forks;
        if count == 0 || count > max {
            return Err(Error::invalid(format!(
                "cannot fork {count} times: 1 to {max} is possible"
            )));
        }
        let numbered = true;
        let children = Children { count, name, numbered, labels, env, attachments, expires };
        self.make(source, children, wait).await
    }

    /// Taking the snapshot and making the copies is one task: it is done to the end, or not begun.
    async fn make(&self, source: ForkSource, children: Children, wait: Wait) -> Result<Forked> {
        // When the copies have to wait, the snapshot that they come from is not taken again.
        let taken = Arc::new(OnceLock::new());
        self.operate(wait, move |inner| {
            let (source, children) = (source.clone(), children.clone());
            let taken = Arc::clone(&taken);
            async move {
                let snapshot = inner.source(&source, &children, &taken).await?;
                let doing = || match &source {
                    ForkSource::Sandbox(sandbox, _) => {
                        format!("failed to fork sandbox `{sandbox}`")
                    }
                    ForkSource::Snapshot(from) => format!("failed to restore snapshot `{from}`"),
                };
                inner.fork(&snapshot, &children).await.context(doing)
            }
        })
        .await
    }
}

/// What the copies are asked to be.
#[derive(Clone, Debug)]
struct Children {
    count: usize,
    name: Option<Name>,
    numbered: bool,
    labels: Labels,
    env: BTreeMap<String, String>,
    attachments: Attachments,
    expires: Option<Timestamp>,
}

impl Children {
    fn names(&self) -> Result<Vec<Option<Name>>> {
        (1..=self.count)
            .map(|number| match &self.name {
                Some(name) if self.numbered => name.numbered(number).map(Some),
                name => Ok(name.clone()),
            })
            .collect()
    }

    fn spec(&self, source: &SandboxSpec) -> SandboxSpec {
        let mut spec = source.clone();
        spec.env.extend(self.env.clone());
        spec.attachments = self.attachments.clone();
        spec
    }

    fn check(&self, driver: &dyn Driver, source: &SandboxSpec) -> Result<()> {
        let numbered = self.count > 1;
        let fixed = |port: &&Publish| port.host_port.is_some();
        match self.attachments.publish.iter().find(fixed).filter(|_| numbered) {
            Some(port) => Err(Error::invalid(format!(
                "{} copies cannot all have port `{port}` of the host: `{}` gives each one that is free",
                self.count,
                Publish { host_port: None, ..*port }
            ))),
            None => attached(driver, self.spec(source), None)?.check(),
        }
    }

    fn record(
        &self,
        driver: &dyn Driver,
        child: &NewSandbox,
        from: &SnapshotRecord,
        at: Timestamp,
    ) -> Result<SandboxRecord> {
        Ok(SandboxRecord {
            id: child.id,
            name: child.name.clone(),
            driver: from.driver.clone(),
            spec: attached(driver, self.spec(&from.spec), child.name.as_ref())?,
            labels: self.labels.clone(),
            adopted: None,
            head: Some(from.id),
            created: at,
            expires: self.expires,
        })
    }
}

/// How one copy ended; `left` when it could not be undone yet.
struct Attempt {
    child: Child,
    left: bool,
}

impl Inner {
    /// What the copies are made of. What would keep them from being made is found out before a
    /// sandbox is stopped for its snapshot.
    async fn source(
        &self,
        source: &ForkSource,
        children: &Children,
        taken: &OnceLock<SnapshotId>,
    ) -> Result<SnapshotRecord> {
        let (sandbox, kind) = match source {
            ForkSource::Snapshot(reference) => return self.find_snapshot(reference).await,
            ForkSource::Sandbox(sandbox, kind) => (sandbox, *kind),
        };
        if let Some(taken) = taken.get() {
            return Ok(self.catalog.snapshot(*taken).await?);
        }
        self.check_children(sandbox, children).await?;
        let description = Some("the state that was forked".to_owned());
        let request = SnapshotRequest { kind, description, ..SnapshotRequest::new(sandbox) };
        match self.snapshot(request).await? {
            SnapshotOutcome::Taken(new) => {
                let id = *taken.get_or_init(|| new.snapshot.id);
                Ok(SnapshotRecord { id, ..new.snapshot })
            }
            SnapshotOutcome::Skipped(reason) => {
                Err(Error::new(ErrorKind::Internal, format!("no snapshot to fork: {reason}")))
            }
        }
    }

    async fn check_children(&self, sandbox: &str, children: &Children) -> Result<()> {
        let sandbox = self.find_sandbox(sandbox).await?;
        children.check(self.driver(&sandbox.driver)?.as_ref(), &sandbox.spec)?;
        for name in children.names()?.into_iter().flatten() {
            let found = self.catalog.find_sandbox(&sandbox.driver, name.as_str()).await;
            if let Ok(taken) = found
                && taken.name.as_ref() == Some(&name)
            {
                return Err(CatalogError::NameTaken { name, by: taken.id.to_string() }.into());
            }
        }
        Ok(())
    }

    async fn fork(&self, snapshot: &SnapshotRecord, wanted: &Children) -> Result<Forked> {
        let driver = self.driver(&snapshot.driver)?;
        wanted.check(driver.as_ref(), &snapshot.spec)?;
        let children: Vec<NewSandbox> = wanted
            .names()?
            .into_iter()
            .map(|name| NewSandbox { id: self.new_sandbox_id(), name })
            .collect();
        let at = self.environment.now();
        let records: Vec<_> = children
            .iter()
            .map(|child| wanted.record(driver.as_ref(), child, snapshot, at))
            .collect::<Result<_>>()?;

        driver.expect(&snapshot.spec, Some(&snapshot.artifact));
        let kind = OperationKind::Fork { snapshot: snapshot.id, children };
        let active = self.begin(driver.name(), kind).await?;
        let attempts: Vec<Attempt> = stream::iter(records)
            .map(|record| self.restore_child(driver, record, snapshot))
            .buffered(self.config.parallel_forks.max(1))
            .collect()
            .await;

        let sandboxes: Vec<_> =
            attempts.iter().filter_map(|each| each.child.result.as_ref().ok().cloned()).collect();
        let leftovers =
            attempts.iter().filter(|each| each.left).map(|each| each.child.id).collect();
        let children = attempts.into_iter().map(|each| each.child).collect();
        if sandboxes.is_empty() {
            // Closing destroys once more what could not be undone, or leaves that to `recover`.
            // Each child tells its own reason.
            let none = Error::new(ErrorKind::Unavailable, "no copy could be made");
            let _ = self.conclude::<()>(active, Err(none)).await;
        } else {
            let from = Some(snapshot.id);
            let change = Change::SandboxesAdded { sandboxes, from, leftovers, at };
            self.conclude(active, Ok((change, ()))).await?;
        }
        Ok(Forked { snapshot: snapshot.id, children })
    }

    /// Restores one copy, or undoes what there is of it.
    async fn restore_child(
        &self,
        driver: &Arc<dyn Driver>,
        record: SandboxRecord,
        from: &SnapshotRecord,
    ) -> Attempt {
        let (id, name) = (record.id, record.name.clone());
        let made = match driver.restore(id, &record.spec, &from.artifact).await {
            Ok(live) => match self.set_end(driver.as_ref(), &record).await {
                Ok(()) => self.run_hook(HookPoint::AfterRestore, live.as_ref(), from.id).await,
                Err(err) => Err(err.into()),
            },
            Err(err) => Err(err.into()),
        };
        self.pass_on(driver.as_ref(), &record);
        let Err(err) = made else {
            return Attempt { child: Child { id, name, result: Ok(record) }, left: false };
        };
        let left = driver.destroy(id).await.is_err();
        let message = format!("failed to restore snapshot `{}` into sandbox `{id}`", from.name);
        let result = Err(err.context(message));
        Attempt { child: Child { id, name, result }, left }
    }
}
