//! What two states of files differ in.

use std::path::{Path, PathBuf};

use super::{
    Engine, Inner,
    look::{Look, Subject},
};
use crate::{
    catalog::{CatalogError, LineageScope},
    driver::{FileDiff, FileState},
    error::{Context as _, Error, Result},
    id::SnapshotId,
    path::SandboxPath,
};

#[derive(Clone, Debug)]
pub struct CompareRequest {
    /// Sandboxes or snapshots. With one alone, a snapshot is compared with the snapshot before it,
    /// and a sandbox with where it stands.
    pub from: String,
    pub to: Option<String>,
    /// From the root; none for everything.
    pub under: Vec<PathBuf>,
}

#[derive(Clone, Debug)]
pub struct Comparison {
    pub from: Look,
    pub to: Look,
    pub diff: FileDiff,
}

/// One of the two that are compared.
struct Side {
    state: FileState,
    title: String,
}

impl Engine {
    pub async fn compare(&self, request: &CompareRequest) -> Result<Comparison> {
        let first = self.inner.find_subject(&request.from).await?;
        let (from, to) = match &request.to {
            None => (self.inner.before(&first).await?, Side::of(&first)),
            Some(to) => {
                let to = self.inner.find_subject(to).await?;
                check(&first, &to)?;
                (Side::of(&first), Side::of(&to))
            }
        };
        self.compare_sides(first.driver(), from, to, &request.under).await
    }

    /// What a sandbox or a snapshot changed in all, over its template and its workspaces.
    pub async fn compare_with_beginning(
        &self,
        of: &Subject,
        under: &[PathBuf],
    ) -> Result<Comparison> {
        self.compare_sides(of.driver(), Side::beginning(of), Side::of(of), under).await
    }

    async fn compare_sides(
        &self,
        driver: &str,
        from: Side,
        to: Side,
        under: &[PathBuf],
    ) -> Result<Comparison> {
        let from_root = |path: &PathBuf| SandboxPath::new(Path::new("/").join(path));
        let under = under.iter().map(from_root).collect::<Result<Vec<_>>>()?;
        let driver = self.inner.driver(driver)?;
        let doing = || format!("failed to compare {} with {}", from.title, to.title);
        let diff = driver.diff(&from.state, &to.state, &under).await.context(doing)?;
        let from = Look::open(driver.as_ref(), &from.state, from.title).await?;
        let to = Look::open(driver.as_ref(), &to.state, to.title).await?;
        Ok(Comparison { from, to, diff })
    }
}

impl Side {
    fn of(subject: &Subject) -> Self {
        Self { state: subject.state(), title: subject.title() }
    }

    fn beginning(of: &Subject) -> Self {
        let spec = Box::new(of.spec().clone());
        let title = format!("its beginning, template `{}`", spec.template);
        Self { state: FileState::Beginning { of: Box::new(of.state()), spec }, title }
    }
}

fn check(from: &Subject, to: &Subject) -> Result<()> {
    let differ = |what: &str, a: &str, b: &str| {
        let (from, to) = (from.title(), to.title());
        Err(Error::invalid(format!(
            "{from} and {to} cannot be compared: their {what}s are `{a}` and `{b}`"
        )))
    };
    if from.driver() != to.driver() {
        return differ("driver", from.driver(), to.driver());
    }
    let (a, b) = (&from.spec().template, &to.spec().template);
    if a == b { Ok(()) } else { differ("template", a.as_str(), b.as_str()) }
}

impl Inner {
    /// What a subject grew from.
    async fn before(&self, subject: &Subject) -> Result<Side> {
        let parent = match subject {
            Subject::Sandbox(record) => record.head,
            Subject::Snapshot(record) => record.parent,
        };
        if let Some(parent) = parent
            && let Some(nearest) = self.nearest(parent).await?
        {
            return Ok(nearest);
        }
        Ok(Side::beginning(subject))
    }

    /// The snapshot, or if it was deleted the nearest that it came from and that is still there.
    async fn nearest(&self, snapshot: SnapshotId) -> Result<Option<Side>> {
        let record = match self.catalog.snapshot(snapshot).await {
            Err(CatalogError::SnapshotMissing { .. }) => {
                let line = self.catalog.lineage(&LineageScope::Ancestors(snapshot)).await?;
                match line.iter().rev().find(|node| !node.deleted) {
                    Some(node) => self.catalog.snapshot(node.id).await?,
                    None => return Ok(None),
                }
            }
            found => found?,
        };
        Ok(Some(Side::of(&Subject::Snapshot(Box::new(record)))))
    }
}
