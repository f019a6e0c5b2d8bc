//! Looking into the files of the fake platform.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use bytes::Bytes;
use forkpoint_core::{
    Timestamp,
    driver::{
        ChangeKind, DriverError, DriverResult, FileChange, FileDiff, FileFacts, FileKind, FileTree,
    },
    part::ByteStream,
    path::SandboxPath,
};
use futures::{StreamExt as _, stream};

use super::Files;

#[derive(Debug)]
pub(super) struct FakeTree(pub(super) Files);

#[async_trait]
impl FileTree for FakeTree {
    async fn entry(&self, path: &SandboxPath) -> DriverResult<Option<FileFacts>> {
        Ok(all(&self.0).get(path.as_path()).map(|bytes| facts(bytes.as_ref())))
    }

    async fn entries(&self, path: &SandboxPath) -> DriverResult<Vec<(OsString, FileFacts)>> {
        let all = all(&self.0);
        match all.get(path.as_path()) {
            Some(None) => {}
            Some(Some(_)) => return Err(odd("list", path, io::ErrorKind::NotADirectory)),
            None => return Err(odd("list", path, io::ErrorKind::NotFound)),
        }
        let own = all.iter().filter(|(file, _)| file.parent() == Some(path.as_path()));
        let entry = |(file, bytes): (&PathBuf, &Option<Bytes>)| {
            Some((file.file_name()?.to_owned(), facts(bytes.as_ref())))
        };
        Ok(own.filter_map(entry).collect())
    }

    async fn read(&self, path: &SandboxPath) -> DriverResult<ByteStream> {
        match self.0.get(path.as_path()) {
            Some(bytes) => Ok(stream::iter([Ok(bytes.clone())]).boxed()),
            None => Err(odd("read", path, io::ErrorKind::NotFound)),
        }
    }

    async fn read_link(&self, path: &SandboxPath) -> DriverResult<PathBuf> {
        Err(odd("read the link", path, io::ErrorKind::InvalidInput))
    }
}

fn odd(operation: &'static str, path: &SandboxPath, kind: io::ErrorKind) -> DriverError {
    DriverError::Io { operation, path: path.as_path().to_owned(), source: kind.into() }
}

fn facts(bytes: Option<&Bytes>) -> FileFacts {
    FileFacts {
        kind: if bytes.is_some() { FileKind::File } else { FileKind::Directory },
        mode: if bytes.is_some() { 0o644 } else { 0o755 },
        uid: 0,
        gid: 0,
        len_bytes: bytes.map_or(0, |bytes| bytes.len() as u64),
        modified: Timestamp::UNIX_EPOCH,
        device: 0,
    }
}

/// With the directories that are implied.
fn all(files: &Files) -> BTreeMap<PathBuf, Option<Bytes>> {
    let mut all = BTreeMap::from([(PathBuf::from("/"), None)]);
    for (path, bytes) in files {
        let above = path.ancestors().skip(1);
        all.extend(above.map(|directory| (directory.to_owned(), None)));
        all.insert(path.clone(), Some(bytes.clone()));
    }
    all
}

pub(super) fn diff(from: Files, to: Files, under: &[SandboxPath]) -> FileDiff {
    let (from, to) = (all(&from), all(&to));
    let paths: BTreeSet<&PathBuf> = from.keys().chain(to.keys()).collect();
    let is_wanted =
        |path: &Path| under.is_empty() || under.iter().any(|at| path.starts_with(at.as_path()));
    let change = |path: &PathBuf| {
        let (before, after) = (from.get(path), to.get(path));
        let kind = match (before, after) {
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Deleted,
            (Some(before), Some(after)) if before == after => return None,
            (Some(Some(_)), Some(Some(_))) => ChangeKind::Changed,
            _ => ChangeKind::Retyped,
        };
        let facts = |side: Option<&Option<Bytes>>| side.map(|bytes| facts(bytes.as_ref()));
        let (before, after) = (facts(before), facts(after));
        Some(FileChange { kind, path: path.clone(), before, after })
    };
    let wanted = paths.into_iter().filter(|path| is_wanted(path));
    FileDiff { changes: wanted.filter_map(change).collect(), too_deep: 0 }
}
