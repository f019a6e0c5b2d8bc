//! Files that are looked at through layers, whichever driver they are of.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use forkpoint_core::{
    driver::{ChangeKind, DriverError, DriverResult, FileChange, FileFacts, FileTree},
    part::ByteStream,
    path::SandboxPath,
};

use super::local::sandbox::read_file;
use crate::layer::{LayerError, LayerResult, LayerView, ViewChange};

/// As whoever asked names it.
pub(super) fn change(change: ViewChange) -> FileChange {
    let absolute = |path: PathBuf| Path::new("/").join(path);
    let kind = match change.kind {
        ChangeKind::Renamed { from } => ChangeKind::Renamed { from: absolute(from) },
        kind => kind,
    };
    FileChange {
        kind,
        path: absolute(change.path),
        before: change.before.map(|facts| facts.facts),
        after: change.after.map(|facts| facts.facts),
    }
}

#[derive(Debug)]
pub(super) struct ViewTree {
    driver: &'static str,
    view: Arc<LayerView>,
}

impl ViewTree {
    pub(super) fn new(driver: &'static str, view: LayerView) -> Self {
        Self { driver, view: Arc::new(view) }
    }

    async fn look<T: Send + 'static>(
        &self,
        path: &SandboxPath,
        work: impl FnOnce(&LayerView, &Path) -> LayerResult<T> + Send + 'static,
    ) -> DriverResult<T> {
        let (view, asked) = (Arc::clone(&self.view), path.clone());
        let looked = tokio::task::spawn_blocking(move || work(&view, asked.as_path())).await;
        let looked = looked.map_err(|err| self.failed(err.into()))?;
        looked.map_err(|err| self.told(err, path))
    }

    /// Where a file really lies is no business of whoever asks.
    fn told(&self, err: LayerError, path: &SandboxPath) -> DriverError {
        let path = path.as_path().to_owned();
        match err {
            err if err.is_denied() => DriverError::Unreadable { path },
            LayerError::Io { operation, source, .. } => DriverError::Io { operation, path, source },
            LayerError::Changed { .. } => {
                let source = io::Error::other("it changed meanwhile");
                DriverError::Io { operation: "read", path, source }
            }
            err => self.failed(err.into()),
        }
    }

    fn failed(&self, source: Box<dyn std::error::Error + Send + Sync>) -> DriverError {
        DriverError::Failed { driver: self.driver, operation: "look at files", source }
    }
}

#[async_trait]
impl FileTree for ViewTree {
    async fn entry(&self, path: &SandboxPath) -> DriverResult<Option<FileFacts>> {
        self.look(path, |view, path| Ok(view.entry(path)?.map(|facts| facts.facts))).await
    }

    async fn entries(&self, path: &SandboxPath) -> DriverResult<Vec<(OsString, FileFacts)>> {
        let entries = self.look(path, LayerView::entries).await?;
        Ok(entries.into_iter().map(|(name, facts)| (name, facts.facts)).collect())
    }

    async fn read(&self, path: &SandboxPath) -> DriverResult<ByteStream> {
        self.look(path, LayerView::open_file).await.map(read_file)
    }

    async fn read_link(&self, path: &SandboxPath) -> DriverResult<PathBuf> {
        self.look(path, LayerView::read_link).await
    }
}
