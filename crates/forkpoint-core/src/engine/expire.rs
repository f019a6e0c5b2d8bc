//! The end of sandboxes whose time is over.

use super::{Engine, Inner, Wait};
use crate::{
    catalog::{SandboxQuery, SandboxRecord},
    driver::{Driver, DriverResult},
    error::{Error, ErrorKind, Result},
};

/// How many go at once: whoever starts next goes on.
const AT_ONCE: usize = 100;

#[derive(Debug, Default)]
pub struct ExpiryReport {
    pub destroyed: Vec<SandboxRecord>,
    /// What has to wait for the next time, and why: somebody may be at work on it.
    pub failed: Vec<(SandboxRecord, Error)>,
}

impl Engine {
    /// Destroys sandboxes whose time is over. Runs at every start, and then from time to time; one
    /// look into an index where there is none.
    pub async fn expire(&self) -> Result<ExpiryReport> {
        self.operate(Wait::No, |inner| async move { inner.expire().await }).await
    }
}

impl Inner {
    /// Has a sandbox that was started just now end by itself: nobody may come by when its time is over.
    pub(super) async fn set_end(
        &self,
        driver: &dyn Driver,
        record: &SandboxRecord,
    ) -> DriverResult<()> {
        let Some(expires) = record.expires else { return Ok(()) };
        let left = expires.duration_since(self.environment.now());
        driver.end_in(record.id, left.try_into().unwrap_or_default()).await
    }

    async fn expire(&self) -> Result<ExpiryReport> {
        let expired = Some(self.environment.now());
        let query = SandboxQuery { expired, limit: Some(AT_ONCE), ..SandboxQuery::default() };
        let mut report = ExpiryReport::default();
        for record in self.catalog.sandboxes(&query).await?.items {
            let reference = format!("{}:{}", record.driver, record.id);
            match self.destroy(&reference).await {
                Ok(_) => report.destroyed.push(record),
                Err(err) if err.kind() == ErrorKind::NotFound => {}
                Err(err) => report.failed.push((record, err)),
            }
        }
        Ok(report)
    }
}
