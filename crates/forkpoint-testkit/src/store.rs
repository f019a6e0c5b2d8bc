//! Blobs in memory.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use forkpoint_core::store::{BlobKind, BlobName, BlobStore, StoreError, StoreResult};
use futures::stream::{self, BoxStream, StreamExt as _};

/// Stricter than a disk: refuses bytes that are not what their name says.
#[derive(Debug, Default)]
pub struct MemoryBlobStore {
    blobs: Mutex<BTreeMap<BlobName, Bytes>>,
}

impl MemoryBlobStore {
    fn blobs(&self) -> MutexGuard<'_, BTreeMap<BlobName, Bytes>> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl BlobStore for MemoryBlobStore {
    async fn put(&self, name: &BlobName, bytes: Bytes) -> StoreResult<()> {
        if !name.fits(&bytes) {
            return Err(StoreError::Mismatch { name: *name });
        }
        self.blobs().insert(*name, bytes);
        Ok(())
    }

    async fn get(&self, name: &BlobName) -> StoreResult<Bytes> {
        self.blobs().get(name).cloned().ok_or(StoreError::Missing { name: *name })
    }

    async fn contains(&self, name: &BlobName) -> StoreResult<bool> {
        Ok(self.blobs().contains_key(name))
    }

    fn list(&self, kind: BlobKind) -> BoxStream<'_, StoreResult<BlobName>> {
        let names: Vec<_> =
            self.blobs().keys().filter(|n| n.kind() == kind).map(|n| Ok(*n)).collect();
        stream::iter(names).boxed()
    }

    async fn remove(&self, name: &BlobName) -> StoreResult<()> {
        self.blobs().remove(name);
        Ok(())
    }
}
