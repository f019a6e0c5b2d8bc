//! The end of a snapshot, and changes to what is written on one.

use jiff::Timestamp;

use super::{Engine, Inner, Wait};
use crate::{
    catalog::{Change, OperationKind, SnapshotRecord},
    error::{Context as _, Error, ErrorKind, Result},
    id::SnapshotId,
    label::Labels,
    naming::Name,
};

/// What to change on a snapshot; `None` leaves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotEdit {
    pub name: Option<Name>,
    pub description: Option<Option<String>>,
    /// In place of all that are there.
    pub labels: Option<Labels>,
    /// Added to those, or in place of their values.
    pub add_labels: Labels,
    /// Keys that go.
    pub remove_labels: Vec<String>,
    pub expires: Option<Option<Timestamp>>,
    pub pinned: Option<bool>,
}

impl Engine {
    /// Deletes a snapshot. What others grew from it keeps working, and the lineage remembers it
    /// while something hangs on it.
    pub async fn delete_snapshot(&self, snapshot: &str, wait: Wait) -> Result<SnapshotRecord> {
        let snapshot = snapshot.to_owned();
        self.operate(wait, move |inner| {
            let snapshot = snapshot.clone();
            async move {
                let record = inner.find_snapshot(&snapshot).await?;
                inner.delete(&record.driver, record.id, |_| true).await?;
                Ok(record)
            }
        })
        .await
    }

    pub async fn edit_snapshot(
        &self,
        snapshot: &str,
        edit: SnapshotEdit,
        wait: Wait,
    ) -> Result<SnapshotRecord> {
        let snapshot = snapshot.to_owned();
        self.operate(wait, move |inner| {
            let (snapshot, edit) = (snapshot.clone(), edit.clone());
            async move { inner.edit(&snapshot, edit).await }
        })
        .await
    }
}

impl Inner {
    /// The record goes first; then what it occupied, as chores that survive a crash. Whether it
    /// `may_go` is asked under the claim, when nobody can change it any more; `false` if it stays.
    pub(super) async fn delete(
        &self,
        driver: &str,
        snapshot: SnapshotId,
        may_go: impl Fn(&SnapshotRecord) -> bool,
    ) -> Result<bool> {
        let doing = || format!("failed to delete snapshot `{snapshot}`");
        let kind = OperationKind::Delete { snapshot };
        let active = self.begin(driver, kind).await.context(doing)?;
        match self.catalog.snapshot(snapshot).await {
            Ok(record) if !may_go(&record) => {
                let stays = Error::new(ErrorKind::Conflict, "it is not to go any more");
                // Nothing was done: closing it cannot do more than that.
                let _ = self.conclude::<()>(active, Err(stays)).await;
                Ok(false)
            }
            record => {
                let change = Change::SnapshotDeleted { snapshot };
                let work = record.map(|_| (change, ())).map_err(Error::from);
                self.conclude(active, work).await.context(doing)?;
                Ok(true)
            }
        }
    }

    async fn edit(&self, reference: &str, edit: SnapshotEdit) -> Result<SnapshotRecord> {
        let record = self.find_snapshot(reference).await?;
        let doing = || format!("failed to change snapshot `{reference}`");
        let new_name = edit.name.clone().filter(|name| *name != record.name);
        let kind = OperationKind::Edit { snapshot: record.id, new_name };
        let active = self.begin(&record.driver, kind).await.context(doing)?;
        // Read again: until `begin`, somebody else could still edit it.
        let found = self.catalog.snapshot(record.id).await.map_err(Error::from);
        let work = found
            .and_then(|record| edit.apply(record))
            .map(|edited| (Change::SnapshotEdited { snapshot: Box::new(edited.clone()) }, edited));
        let edited = self.conclude(active, work).await.context(doing)?;
        Ok(edited.unwrap_or(record))
    }
}

impl SnapshotEdit {
    fn apply(self, mut record: SnapshotRecord) -> Result<SnapshotRecord> {
        record.name = self.name.unwrap_or(record.name);
        record.description = self.description.unwrap_or(record.description);
        let labels = self.labels.unwrap_or(record.labels);
        let kept =
            labels.iter().filter(|(key, _)| !self.remove_labels.iter().any(|gone| gone == key));
        record.labels = Labels::new(kept.chain(self.add_labels.iter()))?;
        record.expires = self.expires.unwrap_or(record.expires);
        record.pinned = self.pinned.unwrap_or(record.pinned);
        Ok(record)
    }
}
