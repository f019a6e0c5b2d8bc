//! Putting a sandbox back where a snapshot was taken, in place.

use super::{Engine, Inner, Wait, hooks::HookPoint};
use crate::{
    catalog::{Change, OperationKind, SandboxRecord, SnapshotQuery, SnapshotRecord},
    driver::DriverError,
    error::{Context as _, Error, ErrorKind, Result},
};

#[derive(Clone, Debug)]
pub struct RollbackRequest {
    pub sandbox: String,
    /// The sandbox's newest snapshot if there is none.
    pub to: Option<String>,
    pub wait: Wait,
}

impl RollbackRequest {
    pub fn new(sandbox: impl Into<String>) -> Self {
        Self { sandbox: sandbox.into(), to: None, wait: Wait::No }
    }
}

#[derive(Clone, Debug)]
pub struct RolledBack {
    pub to: SnapshotRecord,
    /// Why processes were made anew instead of going back in place, where they were.
    pub made_anew: Option<String>,
}

impl Engine {
    /// Goes back in place: id, name and labels stay. What was done since is lost.
    pub async fn rollback(&self, request: RollbackRequest) -> Result<RolledBack> {
        let wait = request.wait;
        self.operate(wait, move |inner| {
            let request = request.clone();
            async move { inner.rollback(&request).await }
        })
        .await
    }
}

impl Inner {
    async fn rollback(&self, request: &RollbackRequest) -> Result<RolledBack> {
        let found = self.look_up(&request.sandbox).await?;
        let sandbox = &found.record;
        let driver = self.driver(&sandbox.driver)?;
        if !driver.capabilities().rollback {
            let driver = driver.name();
            return Err(DriverError::Unsupported { driver, operation: "roll back in place" }.into());
        }
        let to = match &request.to {
            Some(reference) => self.find_snapshot(reference).await?,
            None => self.newest_snapshot(sandbox).await?,
        };
        if to.driver != sandbox.driver {
            let message = format!(
                "snapshot `{}` is of driver `{}`, and sandbox `{}` of `{}`",
                to.name, to.driver, request.sandbox, sandbox.driver
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let doing = || format!("failed to roll back sandbox `{}`", request.sandbox);

        let sandbox = self.enlist(found).await.context(doing)?;
        let kind = OperationKind::Rollback { sandbox: sandbox.id, to: to.id };
        let active = self.begin(driver.name(), kind).await.context(doing)?;
        let work = driver.rollback(sandbox.id, &sandbox.spec, &to.artifact).await;
        self.pass_on(driver.as_ref(), &sandbox);
        if let Ok(live) = &work {
            // What cannot be told the driver now is done by whoever comes next.
            let _ = self.set_end(driver.as_ref(), &sandbox).await;
            self.run_hook(HookPoint::AfterRollback, live.as_ref(), to.id).await.context(doing)?;
        }
        let at = self.environment.now();
        let change = Change::RolledBack { sandbox: sandbox.id, to: to.id, at };
        let work = work.map(|live| (change, live.made_anew())).map_err(Error::from);
        let made_anew = self.conclude(active, work).await.context(doing)?;
        Ok(RolledBack { to, made_anew: made_anew.flatten() })
    }

    /// The newest that was taken of it, else the one that it was restored from.
    async fn newest_snapshot(&self, sandbox: &SandboxRecord) -> Result<SnapshotRecord> {
        let query =
            SnapshotQuery { sandbox: Some(sandbox.id), limit: Some(1), ..SnapshotQuery::default() };
        if let Some(newest) = self.catalog.snapshots(&query).await?.items.pop() {
            return Ok(newest);
        }
        let shown =
            sandbox.name.as_ref().map_or_else(|| sandbox.id.to_string(), ToString::to_string);
        let none = || Error::not_found(format!("sandbox `{shown}` has no snapshot to go back to"));
        match sandbox.head {
            Some(head) => self.catalog.snapshot(head).await.map_err(|err| match err.is_refusal() {
                true => none(),
                false => err.into(),
            }),
            None => Err(none()),
        }
    }
}
