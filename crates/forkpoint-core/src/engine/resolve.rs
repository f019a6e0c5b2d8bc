//! From what a person types to a record.
//!
//! A sandbox is an id, an unambiguous prefix of one, or a name; `DRIVER:NAME` names one of another
//! driver than the default. A snapshot is an id, a prefix, a name, or `SANDBOX@latest`, `SANDBOX@2`
//! (the second newest).

use super::Inner;
use crate::{
    catalog::{CatalogError, SandboxRecord, SnapshotQuery, SnapshotRecord},
    error::{Error, Result},
    id::SandboxId,
};

impl Inner {
    pub(super) async fn find_sandbox(&self, reference: &str) -> Result<SandboxRecord> {
        let (driver, name) = self.split(reference)?;
        Ok(self.catalog.find_sandbox(driver, name).await?)
    }

    /// A sandbox that may be gone: its snapshots are still listed under it.
    pub(super) async fn find_sandbox_id(&self, reference: &str) -> Result<SandboxId> {
        let (driver, name) = self.split(reference)?;
        match self.catalog.find_sandbox(driver, name).await {
            Ok(record) => Ok(record.id),
            Err(err @ CatalogError::SandboxMissing { .. }) => {
                self.catalog.find_former_sandbox(driver, name).await?.ok_or_else(|| err.into())
            }
            Err(err) => Err(err.into()),
        }
    }

    pub(super) async fn find_snapshot(&self, reference: &str) -> Result<SnapshotRecord> {
        let Some((sandbox, which)) = reference.rsplit_once('@') else {
            return Ok(self.catalog.find_snapshot(reference).await?);
        };
        let nth = match which {
            "latest" => 1,
            number => number.parse().ok().filter(|&n: &usize| n > 0 && n <= 100_000).ok_or_else(|| {
                Error::invalid(format!(
                    "`{reference}` names no snapshot: after `@` comes `latest` or a number from 1"
                ))
            })?,
        };
        let id = self.find_sandbox_id(sandbox).await?;
        let query =
            SnapshotQuery { sandbox: Some(id), limit: Some(nth), ..SnapshotQuery::default() };
        let mut page = self.catalog.snapshots(&query).await?;
        match page.items.pop() {
            Some(found) if page.items.len() + 1 == nth => Ok(found),
            found => Err(Error::not_found(format!(
                "no snapshot matches `{reference}`: sandbox `{sandbox}` has {}",
                page.items.len() + usize::from(found.is_some())
            ))),
        }
    }

    fn split<'a>(&'a self, reference: &'a str) -> Result<(&'a str, &'a str)> {
        match reference.split_once(':') {
            Some((driver, name)) => Ok((self.driver(driver)?.name(), name)),
            None => Ok((&self.config.default_driver, reference)),
        }
    }
}
