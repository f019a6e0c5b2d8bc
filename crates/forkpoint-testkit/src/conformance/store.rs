//! What every blob store must do.

use bytes::Bytes;
use forkpoint_core::store::{BlobKind, BlobName, BlobStore, StoreError};
use futures::TryStreamExt as _;

fn blob(text: &str) -> (BlobName, Bytes) {
    named(BlobKind::Data, text)
}

fn named(kind: BlobKind, text: &str) -> (BlobName, Bytes) {
    let bytes = Bytes::from(text.to_owned());
    (BlobName::of(kind, &bytes), bytes)
}

async fn listed(store: &dyn BlobStore, kind: BlobKind) -> Vec<BlobName> {
    let mut names: Vec<BlobName> = store.list(kind).try_collect().await.unwrap();
    names.sort();
    names
}

pub async fn gives_back_what_was_put(store: &dyn BlobStore) {
    for text in ["", "a", &"long ".repeat(100_000)] {
        let (name, bytes) = blob(text);
        assert!(!store.contains(&name).await.unwrap());
        store.put(&name, bytes.clone()).await.unwrap();
        assert!(store.contains(&name).await.unwrap());
        assert_eq!(store.get(&name).await.unwrap(), bytes);
    }
}

pub async fn putting_again_is_a_success(store: &dyn BlobStore) {
    let (name, bytes) = blob("twice");
    store.put(&name, bytes.clone()).await.unwrap();
    store.put(&name, bytes.clone()).await.unwrap();
    assert_eq!(listed(store, BlobKind::Data).await, [name]);
    assert_eq!(store.get(&name).await.unwrap(), bytes);
}

pub async fn a_missing_blob_is_missing(store: &dyn BlobStore) {
    let (name, _) = blob("nowhere");
    assert!(matches!(store.get(&name).await, Err(StoreError::Missing { name: n }) if n == name));
    assert!(!store.contains(&name).await.unwrap());
}

pub async fn removing_is_final_and_may_be_repeated(store: &dyn BlobStore) {
    let (name, bytes) = blob("short-lived");
    let (other, other_bytes) = blob("stays");
    store.put(&name, bytes).await.unwrap();
    store.put(&other, other_bytes).await.unwrap();
    store.remove(&name).await.unwrap();
    store.remove(&name).await.unwrap();
    assert!(matches!(store.get(&name).await, Err(StoreError::Missing { .. })));
    assert_eq!(listed(store, BlobKind::Data).await, [other]);
}

pub async fn kinds_are_listed_apart(store: &dyn BlobStore) {
    let (data, bytes) = named(BlobKind::Data, "same");
    let (index, _) = named(BlobKind::Index, "same");
    store.put(&data, bytes.clone()).await.unwrap();
    store.put(&index, bytes).await.unwrap();
    assert_eq!(listed(store, BlobKind::Data).await, [data]);
    assert_eq!(listed(store, BlobKind::Index).await, [index]);
    store.remove(&data).await.unwrap();
    assert!(store.contains(&index).await.unwrap());
}

/// One test for each case, on a store that `$make` makes anew.
#[macro_export]
macro_rules! blob_store_conformance {
    ($make:expr) => {
        $crate::blob_store_conformance!(@cases $make;
            gives_back_what_was_put, putting_again_is_a_success, a_missing_blob_is_missing,
            removing_is_final_and_may_be_repeated, kinds_are_listed_apart);
    };
    (@cases $make:expr; $($case:ident),*) => {$(
        #[test]
        fn $case() {
            let store = $make;
            ::futures::executor::block_on($crate::conformance::store::$case(&store));
        }
    )*};
}
