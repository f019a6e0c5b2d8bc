//! What is sealed, and what becomes of it.

use std::collections::BTreeSet;

use forkpoint_core::{
    driver::{DriverError, PieceName, SnapshotKind},
    part::{Part, PartContent, PartFormat},
};
use futures::{StreamExt as _, stream};

use super::scene::*;

pub async fn a_restored_copy_is_equal_and_apart(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let source = create(fixture, &driver).await;
    write(source.as_ref(), "/kept", "as sealed").await;
    write(source.as_ref(), "/changed", "as sealed").await;
    write(source.as_ref(), "/removed", "before").await;
    run(source.as_ref(), &["rm", "/removed"]).await;
    let artifact = seal(fixture, source.as_ref()).await;
    write(source.as_ref(), "/changed", "later").await;
    write(source.as_ref(), "/new", "later").await;

    let mut copies = Vec::new();
    for _ in 0..3 {
        let id = new_sandbox(fixture);
        copies.push(driver.restore(id, &fixture.spec(), &artifact).await.unwrap());
    }
    write(copies[0].as_ref(), "/kept", "by copy 0").await;
    for copy in &copies[1..] {
        assert_eq!(read(copy.as_ref(), "/kept").await.as_deref(), Some("as sealed"));
        assert_eq!(read(copy.as_ref(), "/changed").await.as_deref(), Some("as sealed"));
        assert_eq!(read(copy.as_ref(), "/new").await, None);
        assert_eq!(read(copy.as_ref(), "/removed").await, None);
        let status = driver.status(copy.id()).await.unwrap().unwrap();
        assert_eq!(status.base, Some(artifact.snapshot));
    }
    assert_eq!(read(source.as_ref(), "/changed").await.as_deref(), Some("later"), "the source");
    assert_eq!(read(source.as_ref(), "/kept").await.as_deref(), Some("as sealed"), "the source");

    let mut names = BTreeSet::new();
    for sandbox in copies.iter().chain([&source]) {
        names.insert(run(sandbox.as_ref(), &["hostname"]).await.0);
    }
    assert_eq!(names.len(), 4, "each has a host name of its own");
    for sandbox in copies.iter().chain([&source]) {
        driver.destroy(sandbox.id()).await.unwrap();
    }
    discard_all(&driver, &artifact).await;
}

pub async fn snapshots_survive_their_sandbox_and_each_other(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    write(sandbox.as_ref(), "/step", "one").await;
    write(sandbox.as_ref(), "/first", "only in one").await;
    let one = seal(fixture, sandbox.as_ref()).await;
    write(sandbox.as_ref(), "/step", "two").await;
    run(sandbox.as_ref(), &["rm", "/first"]).await;
    let two = seal(fixture, sandbox.as_ref()).await;
    driver.destroy(sandbox.id()).await.unwrap();

    for (artifact, text) in [(&one, "one"), (&two, "two")] {
        let copy = driver.restore(new_sandbox(fixture), &fixture.spec(), artifact).await.unwrap();
        assert_eq!(read(copy.as_ref(), "/step").await.as_deref(), Some(text));
        assert_eq!(read(copy.as_ref(), "/first").await.is_some(), text == "one", "a deletion");
        driver.destroy(copy.id()).await.unwrap();
    }
    discard_all(&driver, &two).await;
    let copy = driver.restore(new_sandbox(fixture), &fixture.spec(), &one).await.unwrap();
    assert_eq!(read(copy.as_ref(), "/step").await.as_deref(), Some("one"));
    driver.destroy(copy.id()).await.unwrap();
    discard_all(&driver, &one).await;
    assert!(driver.restore(new_sandbox(fixture), &fixture.spec(), &one).await.is_err());
}

pub async fn unsealing_leaves_the_sandbox_where_it_stood(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    write(sandbox.as_ref(), "/step", "one").await;
    let one = seal(fixture, sandbox.as_ref()).await;
    write(sandbox.as_ref(), "/step", "two").await;
    let two = seal(fixture, sandbox.as_ref()).await;

    let id = sandbox.id();
    driver.unseal(two.snapshot).await.unwrap();
    driver.unseal(two.snapshot).await.unwrap();
    driver.unseal(new_snapshot(fixture)).await.unwrap();
    assert_eq!(driver.status(id).await.unwrap().unwrap().base, Some(one.snapshot));
    assert_eq!(read(sandbox.as_ref(), "/step").await.as_deref(), Some("two"), "nothing is lost");
    let three = seal(fixture, sandbox.as_ref()).await;
    let copy = driver.restore(new_sandbox(fixture), &fixture.spec(), &three).await.unwrap();
    assert_eq!(read(copy.as_ref(), "/step").await.as_deref(), Some("two"));
    for id in [id, copy.id()] {
        driver.destroy(id).await.unwrap();
    }
    discard_all(&driver, &three).await;
    discard_all(&driver, &one).await;
}

pub async fn refuses_to_discard_what_is_not_marked(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let foreign = PieceName("somebody-elses-thing".to_owned());
    assert!(matches!(driver.discard(&foreign).await, Err(DriverError::Foreign { .. })));
}

pub async fn exports_and_imports(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let capabilities = driver.capabilities();
    let sandbox = create(fixture, &driver).await;
    write(sandbox.as_ref(), "/data/a", "travels").await;
    let artifact = seal(fixture, sandbox.as_ref()).await;
    if capabilities.exports.is_empty() {
        let refused = driver.export(&artifact).await.map(drop);
        assert!(matches!(refused, Err(DriverError::Unsupported { .. })), "{refused:?}");
        driver.destroy(sandbox.id()).await.unwrap();
        return discard_all(&driver, &artifact).await;
    }
    let parts = driver.export(&artifact).await.unwrap();
    assert!(parts.iter().all(|part| capabilities.exports.contains(&part.format)));

    let imported = driver.import(new_snapshot(fixture), parts).await.unwrap();
    let copy = driver.restore(new_sandbox(fixture), &fixture.spec(), &imported).await.unwrap();
    assert_eq!(read(copy.as_ref(), "/data/a").await.as_deref(), Some("travels"));

    let format = PartFormat { name: "from-the-future".to_owned(), version: 9 };
    let odd = Part { format, content: PartContent::Bytes(stream::empty().boxed()) };
    assert!(driver.import(new_snapshot(fixture), vec![odd]).await.is_err());
    for id in [sandbox.id(), copy.id()] {
        driver.destroy(id).await.unwrap();
    }
    discard_all(&driver, &imported).await;
    discard_all(&driver, &artifact).await;
}

pub async fn tells_what_a_snapshot_would_miss(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    for kind in driver.capabilities().kinds {
        driver.validate(sandbox.id(), kind).await.unwrap();
    }
    driver.destroy(sandbox.id()).await.unwrap();
    let missing = driver.validate(sandbox.id(), SnapshotKind::Files).await;
    assert!(matches!(missing, Err(DriverError::SandboxMissing { .. })));
}

/// Nobody here can cut the power; but what was synced is still there, and the answer stays the same.
pub async fn a_synced_one_restores_and_says_so_again(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    write(sandbox.as_ref(), "/step", "one").await;
    let one = seal(fixture, sandbox.as_ref()).await;
    write(sandbox.as_ref(), "/step", "two").await;
    let two = seal(fixture, sandbox.as_ref()).await;
    let synced = driver.sync(&two).await.unwrap();
    assert!(synced.counted && synced.own_bytes > 0 && synced.total_bytes >= synced.own_bytes);
    assert_eq!(fixture.driver().sync(&two).await.unwrap(), synced, "again, by another process");
    let below = driver.sync(&one).await.unwrap();
    assert_eq!(below.durable, synced.durable, "what it lies over");
    assert_eq!(read(sandbox.as_ref(), "/step").await.as_deref(), Some("two"));
    for (artifact, text) in [(&one, "one"), (&two, "two")] {
        let copy = driver.restore(new_sandbox(fixture), &fixture.spec(), artifact).await.unwrap();
        assert_eq!(read(copy.as_ref(), "/step").await.as_deref(), Some(text));
        driver.destroy(copy.id()).await.unwrap();
    }
    driver.destroy(sandbox.id()).await.unwrap();
    discard_all(&driver, &two).await;
    discard_all(&driver, &one).await;
}
