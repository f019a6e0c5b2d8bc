//! Files of a live sandbox.

use bytes::Bytes;
use forkpoint_core::driver::WriteMode;
use futures::{StreamExt as _, stream};

use super::scene::*;

pub async fn reads_writes_and_lists_files(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    let sandbox = sandbox.as_ref();
    assert_eq!(read(sandbox, "/data/a").await, None);
    write(sandbox, "/data/a", "first").await;
    write(sandbox, "/data/a", "second").await;
    write(sandbox, "/data/deep/b", "").await;
    let more = stream::iter([Ok(Bytes::from_static(b" third"))]).boxed();
    sandbox.write(&path("/data/a"), more, WriteMode::Append).await.unwrap();
    assert_eq!(read(sandbox, "/data/a").await.as_deref(), Some("second third"));
    let again = stream::iter([Ok(Bytes::new())]).boxed();
    assert!(sandbox.write(&path("/data/a"), again, WriteMode::Create).await.is_err());
    assert_eq!(run(sandbox, &["cat", "/data/a"]).await.0, "second third");

    let list = async |depth| -> Vec<String> {
        let entries = sandbox.entries(&path("/data"), depth).await.unwrap();
        entries.iter().map(|entry| entry.path.to_string()).collect()
    };
    assert_eq!(list(1).await, ["/data/a", "/data/deep"]);
    assert_eq!(list(9).await, ["/data/a", "/data/deep", "/data/deep/b"]);
    assert!(sandbox.entries(&path("/nowhere"), 1).await.is_err());
    driver.destroy(sandbox.id()).await.unwrap();
}
