//! The end of a sandbox. Its snapshots stay.

use super::{Engine, Inner, Wait};
use crate::{
    catalog::{Change, OperationKind, SandboxRecord},
    error::{Context as _, Error, Result},
};

impl Engine {
    /// Destroys a sandbox that we made; forgets one that we adopted, and leaves it as it is.
    pub async fn destroy(&self, sandbox: &str, wait: Wait) -> Result<SandboxRecord> {
        let sandbox = sandbox.to_owned();
        self.operate(wait, move |inner| {
            let sandbox = sandbox.clone();
            async move { inner.destroy(&sandbox).await }
        })
        .await
    }
}

impl Inner {
    pub(super) async fn destroy(&self, reference: &str) -> Result<SandboxRecord> {
        let record = self.find_known(reference).await?;
        let driver = self.driver(&record.driver)?;
        let doing = || format!("failed to destroy sandbox `{reference}`");
        let (sandbox, adopted) = (record.id, record.adopted.is_some());

        let kind = OperationKind::Destroy { sandbox, adopted };
        let active = self.begin(driver.name(), kind).await.context(doing)?;
        let work = match adopted {
            true => Ok(()),
            false => driver.destroy(sandbox).await,
        };
        let work = work.map(|()| (Change::SandboxRemoved { sandbox }, ())).map_err(Error::from);
        self.conclude(active, work).await.context(doing)?;
        Ok(record)
    }
}
