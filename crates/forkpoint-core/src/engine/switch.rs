//! Stopping, starting, pausing and resuming a sandbox for its user.
//!
//! The catalog keeps none of it: these are operations only so that nothing else works on the sandbox
//! meanwhile. One that failed may have been done all the same, and [`Engine::sandbox`] tells;
//! repeating it does no harm. Adopted sandboxes are switched too, by the platform's own means.

use super::{Engine, Inner, Wait};
use crate::{
    catalog::{Change, OperationKind, Power, SandboxRecord},
    driver::{Driver, DriverError, DriverResult},
    error::{Context as _, Error, Result},
};

impl Engine {
    /// Ends every process of a sandbox. Its files stay, and [`Engine::start`] brings it back.
    pub async fn stop(&self, sandbox: &str, wait: Wait) -> Result<SandboxRecord> {
        self.switch(sandbox, Power::Stop, wait).await
    }

    /// Brings a stopped sandbox back, also one whose processes a reboot took. One that is paused is
    /// refused: it is resumed.
    pub async fn start(&self, sandbox: &str, wait: Wait) -> Result<SandboxRecord> {
        self.switch(sandbox, Power::Start, wait).await
    }

    /// Makes a sandbox stand still until [`Engine::resume`]. Snapshots of it can be taken meanwhile.
    pub async fn pause(&self, sandbox: &str, wait: Wait) -> Result<SandboxRecord> {
        self.switch(sandbox, Power::Pause, wait).await
    }

    pub async fn resume(&self, sandbox: &str, wait: Wait) -> Result<SandboxRecord> {
        self.switch(sandbox, Power::Resume, wait).await
    }

    async fn switch(&self, sandbox: &str, to: Power, wait: Wait) -> Result<SandboxRecord> {
        let sandbox = sandbox.to_owned();
        self.operate(wait, move |inner| {
            let sandbox = sandbox.clone();
            async move { inner.switch(&sandbox, to).await }
        })
        .await
    }
}

impl Inner {
    async fn switch(&self, reference: &str, to: Power) -> Result<SandboxRecord> {
        let found = self.look_up(reference).await?;
        let driver = self.driver(&found.record.driver)?;
        check(driver.as_ref(), to)?;
        let doing = || format!("failed to {} sandbox `{reference}`", to.as_str());

        let record = self.enlist(found).await.context(doing)?;
        let kind = OperationKind::Switch { sandbox: record.id, to };
        let active = self.begin(driver.name(), kind).await.context(doing)?;
        let mut work = switch(driver.as_ref(), &record, to).await;
        if work.is_ok() && to == Power::Start {
            work = self.set_end(driver.as_ref(), &record).await;
        }
        let work = work.map(|()| (Change::Switched, ())).map_err(Error::from);
        self.conclude(active, work).await.context(doing)?;
        Ok(record)
    }
}

fn check(driver: &dyn Driver, to: Power) -> DriverResult<()> {
    let can = driver.capabilities();
    let (able, operation) = match to {
        Power::Stop => (can.stop, "stop a sandbox"),
        Power::Start => (can.stop, "start a sandbox"),
        Power::Pause => (can.pause, "pause a sandbox"),
        Power::Resume => (can.pause, "resume a sandbox"),
    };
    match able {
        true => Ok(()),
        false => Err(DriverError::Unsupported { driver: driver.name(), operation }),
    }
}

async fn switch(driver: &dyn Driver, sandbox: &SandboxRecord, to: Power) -> DriverResult<()> {
    match to {
        Power::Stop => driver.stop(sandbox.id).await,
        Power::Start => driver.start(sandbox.id, &sandbox.spec).await,
        Power::Pause => driver.pause(sandbox.id).await,
        Power::Resume => driver.resume(sandbox.id).await,
    }
}
