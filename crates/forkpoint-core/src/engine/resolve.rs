//! From what a person types to a record.
//!
//! A sandbox is an id, an unambiguous prefix of one, or a name; `DRIVER:NAME` names one of another
//! driver than the default. A snapshot is an id, a prefix, a name, or `SANDBOX@latest`, `SANDBOX@2`
//! (the second newest).
//!
//! Where a driver can adopt, a name is the platform's own too, and means what has that name now: one
//! that was made anew under an old name is another sandbox. Looking it up changes nothing; what needs
//! it in the catalog adopts it then.

use std::time::Duration;

use super::{FIRST_PAUSE, Inner};
use crate::{
    catalog::{CatalogError, CatalogResult, SandboxRecord, SnapshotQuery, SnapshotRecord},
    driver::{Adopted, Driver, DriverError},
    error::{Error, ErrorKind, Result},
    id::SandboxId,
    label::Labels,
};

/// How long somebody else may take to adopt what we want to adopt.
const ADOPTION: Duration = Duration::from_secs(2);

/// What a reference led to.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) record: SandboxRecord,
    /// Whether the catalog has that record; else only the platform has the sandbox.
    known: bool,
    /// Why the platform could not be asked: enough to read, and nothing to begin with.
    away: Option<String>,
}

impl Found {
    fn known(record: SandboxRecord) -> Self {
        Self { record, known: true, away: None }
    }
}

impl Inner {
    /// A sandbox that is there, whether or not the catalog knows it: what is no operation needs no
    /// record.
    pub(super) async fn find_sandbox(&self, reference: &str) -> Result<SandboxRecord> {
        Ok(self.look_up(reference).await?.record)
    }

    /// Has the catalog know it from now on.
    pub(super) async fn enlist(&self, found: Found) -> Result<SandboxRecord> {
        let Found { record, known, away } = found;
        if let Some(reason) = away {
            return Err(Error::new(ErrorKind::Unavailable, reason));
        }
        if known {
            return Ok(record);
        }
        let driver = self.driver(&record.driver)?.name();
        let native_name = record.adopted.clone().unwrap_or_default();
        let adopted = Adopted { id: record.id, native_name, spec: record.spec };
        let (mut pause, mut waited) = (FIRST_PAUSE, Duration::ZERO);
        loop {
            let enlisted = self.take_in(driver, adopted.clone(), None, Labels::default()).await;
            // Another process adopts it right now: that is as good.
            let busy = matches!(&enlisted, Err(err) if err.busy_with().is_some());
            if !busy || waited >= ADOPTION {
                return enlisted;
            }
            self.environment.sleep(pause).await;
            waited += pause;
            pause *= 2;
        }
    }

    /// A sandbox that the catalog knows already.
    pub(super) async fn find_known(&self, reference: &str) -> Result<SandboxRecord> {
        let found = self.look_up(reference).await?;
        match found.known {
            true => Ok(found.record),
            false => Err(CatalogError::SandboxMissing { reference: reference.to_owned() }.into()),
        }
    }

    /// A sandbox that may be gone: its snapshots are still listed under it.
    pub(super) async fn find_sandbox_id(&self, reference: &str) -> Result<SandboxId> {
        let err = match self.look_up(reference).await {
            Ok(found) => return Ok(found.record.id),
            Err(err) => err,
        };
        let (driver, name) = self.split(reference)?;
        self.catalog.find_former_sandbox(driver, name).await?.ok_or(err)
    }

    pub(super) async fn look_up(&self, reference: &str) -> Result<Found> {
        let (driver, name) = self.split(reference)?;
        let known = self.catalog.find_sandbox(driver, name).await;
        let driver = self.driver(driver)?;
        let told = name.len() < reference.len();
        if !driver.capabilities().adopt || is_plain(&known, name, told) {
            return Ok(Found::known(known?));
        }
        match (native(driver.as_ref(), name).await, known) {
            (Ok(native), known) => self.choose(driver.name(), name, known, native).await,
            // What the catalog knows can still be read while the platform is away.
            (Err(err), Ok(record)) => {
                let away = Some(Error::from(err).chain().to_string());
                Ok(Found { record, known: true, away })
            }
            (Err(err), Err(_)) => Err(err.into()),
        }
    }

    /// Of what the catalog has under a name and what the platform has.
    async fn choose(
        &self,
        driver: &str,
        name: &str,
        known: CatalogResult<SandboxRecord>,
        native: Option<Adopted>,
    ) -> Result<Found> {
        // A prefix of the platform's ids is no reason to take one for another that has the name.
        let meant = |native: &Adopted| known.is_err() || native.native_name == name;
        match native.filter(meant) {
            Some(native) => self.of_native(driver, native).await,
            None => Ok(Found::known(known?)),
        }
    }

    async fn of_native(&self, driver: &str, native: Adopted) -> Result<Found> {
        match self.catalog.sandbox(native.id).await {
            Err(CatalogError::SandboxMissing { .. }) => {
                let record = self.stranger(driver, native);
                Ok(Found { record, known: false, away: None })
            }
            known => Ok(Found::known(known?)),
        }
    }

    fn stranger(&self, driver: &str, adopted: Adopted) -> SandboxRecord {
        SandboxRecord {
            id: adopted.id,
            name: adopted.native_name.parse().ok(),
            driver: driver.to_owned(),
            spec: adopted.spec,
            labels: Labels::default(),
            adopted: Some(adopted.native_name),
            head: None,
            created: self.environment.now(),
            expires: None,
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

/// Whether the platform need not be asked what is meant: an id of ours, or a name without a driver in
/// front that one of ours has.
fn is_plain(known: &CatalogResult<SandboxRecord>, name: &str, told: bool) -> bool {
    let Ok(record) = known else { return false };
    record.id.to_string().starts_with(name) || (record.adopted.is_none() && !told)
}

async fn native(driver: &dyn Driver, name: &str) -> Result<Option<Adopted>, DriverError> {
    match driver.adopt(name).await {
        Ok(native) => Ok(Some(native)),
        Err(DriverError::NativeMissing { .. }) => Ok(None),
        Err(err) => Err(err),
    }
}
