//! New sandboxes from a template, and sandboxes that were there before us.

use jiff::Timestamp;

use super::{Active, Engine, Inner, Wait};
use crate::{
    catalog::{CatalogError, Change, NewSandbox, OperationKind, SandboxRecord},
    driver::{Adopted, Driver, DriverError},
    error::{Context as _, Error, ErrorKind, Result},
    id::SandboxId,
    label::Labels,
    naming::Name,
    spec::SandboxSpec,
};

#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// The default driver if there is none.
    pub driver: Option<String>,
    pub spec: SandboxSpec,
    pub name: Option<Name>,
    pub labels: Labels,
    /// When it is to be destroyed.
    pub expires: Option<Timestamp>,
    pub wait: Wait,
}

impl CreateRequest {
    #[must_use]
    pub fn new(spec: SandboxSpec) -> Self {
        Self {
            driver: None,
            spec,
            name: None,
            labels: Labels::default(),
            expires: None,
            wait: Wait::No,
        }
    }
}

#[derive(Clone, Debug)]
pub struct AdoptRequest {
    pub driver: String,
    /// The platform's name or id of it.
    pub native_name: String,
    /// The platform's name of it if there is none, and nobody else here has that.
    pub name: Option<Name>,
    pub labels: Labels,
    pub wait: Wait,
}

impl Engine {
    pub async fn create(&self, request: CreateRequest) -> Result<SandboxRecord> {
        let wait = request.wait;
        self.operate(wait, move |inner| {
            let request = request.clone();
            async move { inner.create(request).await }
        })
        .await
    }

    /// Makes a sandbox of something that we did not start. It is never destroyed by us. Adopting
    /// what is adopted gives the record that is there.
    pub async fn adopt(&self, request: AdoptRequest) -> Result<SandboxRecord> {
        let wait = request.wait;
        self.operate(wait, move |inner| {
            let request = request.clone();
            async move { inner.adopt(request).await }
        })
        .await
    }
}

impl Inner {
    async fn create(&self, request: CreateRequest) -> Result<SandboxRecord> {
        let CreateRequest { driver, spec, name, labels, expires, .. } = request;
        let driver = self.driver(driver.as_deref().unwrap_or(&self.config.default_driver))?;
        let spec = attached(driver.as_ref(), spec, name.as_ref())?;
        spec.check()?;
        let id = self.new_sandbox_id();
        let shown = name.as_ref().map_or_else(|| id.to_string(), ToString::to_string);
        let doing = || format!("failed to create sandbox `{shown}`");
        let spec = driver.complete(&spec, self.environment.now()).await.context(doing)?;
        spec.check()?;

        driver.expect(&spec, None);
        let sandbox = NewSandbox { id, name: name.clone() };
        let active =
            self.begin(driver.name(), OperationKind::Create { sandbox }).await.context(doing)?;
        let at = self.environment.now();
        let record = SandboxRecord {
            id,
            name,
            driver: driver.name().to_owned(),
            spec,
            labels,
            adopted: None,
            head: None,
            created: at,
            expires,
        };
        let work = match driver.create(id, &record.spec).await {
            Ok(_) => self.set_end(driver.as_ref(), &record).await,
            Err(err) => Err(err),
        };
        let work = work.map(|()| (added(&record), ())).map_err(Error::from);
        self.conclude(active, work).await.context(doing)?;
        self.pass_on(driver.as_ref(), &record);
        Ok(record)
    }

    async fn adopt(&self, request: AdoptRequest) -> Result<SandboxRecord> {
        let AdoptRequest { driver, native_name, name: wanted, labels, .. } = request;
        let driver = self.driver(&driver)?;
        let doing = || format!("failed to adopt `{native_name}`");
        if !driver.capabilities().adopt {
            let driver = driver.name();
            return Err(DriverError::Unsupported { driver, operation: "adopt a sandbox" }.into());
        }
        let adopted = driver.adopt(&native_name).await.context(doing)?;
        if let Ok(known) = self.catalog.sandbox(adopted.id).await {
            return check_adopted(known);
        }
        check_adopted(self.take_in(driver.name(), adopted, wanted, labels).await?)
    }

    /// Puts into the catalog what was there before us.
    pub(super) async fn take_in(
        &self,
        driver: &str,
        adopted: Adopted,
        wanted: Option<Name>,
        labels: Labels,
    ) -> Result<SandboxRecord> {
        let doing = || format!("failed to adopt `{}`", adopted.native_name);
        let begun = match wanted {
            Some(name) => self.begin_adopt(driver, adopted.id, Some(name)).await,
            None => {
                let name = adopted.native_name.parse().ok();
                match self.begin_adopt(driver, adopted.id, name).await {
                    Err(err) if err.is_about_a_name() => {
                        self.begin_adopt(driver, adopted.id, None).await
                    }
                    begun => begun,
                }
            }
        };
        let (active, name) = match begun {
            // Another process adopted it a moment ago.
            Err(CatalogError::AlreadyKnown { .. }) => {
                return Ok(self.catalog.sandbox(adopted.id).await?);
            }
            begun => begun.context(doing)?,
        };
        let record = SandboxRecord {
            id: adopted.id,
            name,
            driver: driver.to_owned(),
            spec: adopted.spec.clone(),
            labels,
            adopted: Some(adopted.native_name.clone()),
            head: None,
            created: self.environment.now(),
            expires: None,
        };
        self.conclude(active, Ok((added(&record), ()))).await.context(doing)?;
        Ok(record)
    }
}

impl Inner {
    async fn begin_adopt(
        &self,
        driver: &str,
        id: SandboxId,
        name: Option<Name>,
    ) -> Result<(Active, Option<Name>), CatalogError> {
        let sandbox = NewSandbox { id, name: name.clone() };
        let active = self.begin(driver, OperationKind::Adopt { sandbox }).await?;
        Ok((active, name))
    }
}

/// Refuses attachments where the driver has none; elsewhere the platform is to know the sandbox by its
/// name.
pub(super) fn attached(
    driver: &dyn Driver,
    mut spec: SandboxSpec,
    name: Option<&Name>,
) -> Result<SandboxSpec, DriverError> {
    if driver.capabilities().attachments {
        let native = &mut spec.attachments.native_name;
        *native = native.take().or_else(|| name.map(ToString::to_string));
    } else if !spec.attachments.is_default() {
        let operation = "give a sandbox networks, volumes, ports or a name of the platform's";
        return Err(DriverError::Unsupported { driver: driver.name(), operation });
    }
    Ok(spec)
}

fn check_adopted(known: SandboxRecord) -> Result<SandboxRecord> {
    if known.adopted.is_some() {
        return Ok(known);
    }
    let message = format!("`{}` is a sandbox of ours: there is nothing to adopt", known.id);
    Err(Error::new(ErrorKind::Conflict, message))
}

fn added(record: &SandboxRecord) -> Change {
    Change::SandboxesAdded {
        sandboxes: vec![record.clone()],
        from: None,
        leftovers: Vec::new(),
        at: record.created,
    }
}
