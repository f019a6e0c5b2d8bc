//! Looking into a snapshot or a sandbox without running anything.

use std::{
    collections::VecDeque,
    ffi::OsString,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use super::{Engine, Inner};
use crate::{
    catalog::{CatalogError, SandboxRecord, SnapshotRecord},
    driver::{Driver, FileFacts, FileKind, FileState, FileTree},
    error::{Context as _, Error, ErrorKind, Result},
    naming::Name,
    part::ByteStream,
    path::SandboxPath,
    spec::SandboxSpec,
};

/// As the kernel does.
const LINKS_MAX: usize = 40;

/// What a reference can name that has files.
#[derive(Clone, Debug)]
pub enum Subject {
    Sandbox(Box<SandboxRecord>),
    Snapshot(Box<SnapshotRecord>),
}

impl Subject {
    /// For messages.
    #[must_use]
    pub fn title(&self) -> String {
        match self {
            Self::Sandbox(record) => match &record.name {
                Some(name) => format!("sandbox `{name}`"),
                None => format!("sandbox `{}`", record.id),
            },
            Self::Snapshot(record) => format!("snapshot `{}`", record.name),
        }
    }

    pub(super) fn driver(&self) -> &str {
        match self {
            Self::Sandbox(record) => &record.driver,
            Self::Snapshot(record) => &record.driver,
        }
    }

    #[must_use]
    pub fn spec(&self) -> &SandboxSpec {
        match self {
            Self::Sandbox(record) => &record.spec,
            Self::Snapshot(record) => &record.spec,
        }
    }

    pub(super) fn state(&self) -> FileState {
        match self {
            Self::Sandbox(record) => FileState::Sandbox(record.id),
            Self::Snapshot(record) => FileState::Snapshot(record.artifact.clone()),
        }
    }
}

/// The files of a state, as somebody inside would find them: links are followed within.
#[derive(Clone, Debug)]
pub struct Look {
    title: String,
    tree: Arc<dyn FileTree>,
}

/// Where a path led.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Without links on the way.
    pub path: SandboxPath,
    pub facts: FileFacts,
}

impl Engine {
    /// What is called so, or has that id, sandboxes first; else the only thing whose id begins so.
    pub async fn subject(&self, reference: &str) -> Result<Subject> {
        self.inner.find_subject(reference).await
    }

    /// Opens what a reference names to be looked into. No operation: several may look at once.
    pub async fn look(&self, reference: &str) -> Result<Look> {
        let subject = self.inner.find_subject(reference).await?;
        self.look_into(&subject).await
    }

    pub async fn look_into(&self, subject: &Subject) -> Result<Look> {
        let driver = self.inner.driver(subject.driver())?;
        Look::open(driver.as_ref(), &subject.state(), subject.title()).await
    }
}

impl Inner {
    pub(super) async fn find_subject(&self, reference: &str) -> Result<Subject> {
        let snapshot = |record| Subject::Snapshot(Box::new(record));
        if reference.contains('@') {
            return self.find_snapshot(reference).await.map(snapshot);
        }
        if reference.contains(':') {
            return Ok(Subject::Sandbox(Box::new(self.find_sandbox(reference).await?)));
        }
        let sandbox = match self.find_sandbox(reference).await {
            Err(err) if err.kind() == ErrorKind::NotFound => None,
            found => Some(found),
        };
        let is_called = |name: Option<&Name>, id: String| {
            name.is_some_and(|name| name.as_str() == reference) || id == reference
        };
        if let Some(Ok(record)) = &sandbox
            && is_called(record.name.as_ref(), record.id.to_string())
        {
            return Ok(Subject::Sandbox(Box::new(record.clone())));
        }
        let found = match self.catalog.find_snapshot(reference).await {
            Err(CatalogError::SnapshotMissing { .. }) => None,
            found => Some(found?),
        };
        match (sandbox, found) {
            (_, Some(found)) if is_called(Some(&found.name), found.id.to_string()) => {
                Ok(snapshot(found))
            }
            (Some(Ok(sandbox)), Some(found)) => Err(Error::invalid(format!(
                "`{reference}` could be `{}` or `{}`: give more of it",
                sandbox.id, found.id
            ))),
            (Some(sandbox), None) => Ok(Subject::Sandbox(Box::new(sandbox?))),
            (Some(Err(err)), Some(_)) => Err(err),
            (None, Some(found)) => Ok(snapshot(found)),
            (None, None) => {
                Err(Error::not_found(format!("no sandbox and no snapshot matches `{reference}`")))
            }
        }
    }
}

impl Look {
    pub(super) async fn open(
        driver: &dyn Driver,
        state: &FileState,
        title: String,
    ) -> Result<Self> {
        let tree = driver.tree(state).await.context(|| format!("failed to look into {title}"))?;
        Ok(Self { title, tree })
    }

    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Follows a path from the root, with its links, also the last; `None` where it leads nowhere.
    pub async fn follow(&self, path: &Path) -> Result<Option<Spot>> {
        self.walk(path, true).await
    }

    /// The same, but what the path names may be a link itself.
    pub async fn find(&self, path: &Path) -> Result<Option<Spot>> {
        self.walk(path, false).await
    }

    /// As [`Look::follow`], for what must be there.
    pub async fn expect(&self, path: &Path) -> Result<Spot> {
        self.follow(path).await?.ok_or_else(|| self.missing(path))
    }

    #[must_use]
    pub fn missing(&self, path: &Path) -> Error {
        Error::not_found(format!("there is no `{}` in {}", path.display(), self.title))
    }

    /// A directory's own entries, in order of name. The path is one that was found.
    pub async fn entries(&self, path: &SandboxPath) -> Result<Vec<(OsString, FileFacts)>> {
        self.tree.entries(path).await.context(|| self.failed("list", path))
    }

    /// The content of a file. The path is one that was found.
    pub async fn read(&self, path: &SandboxPath) -> Result<ByteStream> {
        self.tree.read(path).await.context(|| self.failed("read", path))
    }

    pub async fn read_link(&self, path: &SandboxPath) -> Result<PathBuf> {
        self.tree.read_link(path).await.context(|| self.failed("read", path))
    }

    fn failed(&self, what: &str, path: &SandboxPath) -> String {
        format!("failed to {what} `{path}` of {}", self.title)
    }

    async fn walk(&self, path: &Path, follow_last: bool) -> Result<Option<Spot>> {
        let mut ahead: VecDeque<OsString> = names(path);
        let mut at = PathBuf::from("/");
        let mut links = 0;
        let mut facts = self.entry(&SandboxPath::new(&at)?).await?;
        while let Some(name) = ahead.pop_front() {
            if !facts.is_some_and(|facts| facts.kind == FileKind::Directory) {
                return Ok(None);
            }
            if name == ".." {
                at.pop();
                facts = self.entry(&SandboxPath::new(&at)?).await?;
                continue;
            }
            let next = SandboxPath::new(at.join(&name))?;
            let Some(found) = self.entry(&next).await? else { return Ok(None) };
            if found.kind != FileKind::Symlink || (ahead.is_empty() && !follow_last) {
                (at, facts) = (next.as_path().to_owned(), Some(found));
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                let what = path.display();
                return Err(Error::invalid(format!("`{what}` goes through too many links")));
            }
            let target = self.read_link(&next).await?;
            if target.is_absolute() {
                at = PathBuf::from("/");
                facts = self.entry(&SandboxPath::new(&at)?).await?;
            }
            for name in names(&target).into_iter().rev() {
                ahead.push_front(name);
            }
        }
        let path = SandboxPath::new(at)?;
        Ok(facts.map(|facts| Spot { path, facts }))
    }

    async fn entry(&self, path: &SandboxPath) -> Result<Option<FileFacts>> {
        self.tree.entry(path).await.context(|| self.failed("look at", path))
    }
}

fn names(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    parts.collect()
}
