//! What every case does again and again.

use std::{io, sync::Arc};

use bytes::{Bytes, BytesMut};
use forkpoint_core::{
    driver::{
        Artifact, Command, Driver, DriverError, ExitStatus, Process, Sandbox, SnapshotKind,
        WriteMode,
    },
    id::{SandboxId, SnapshotId},
    part::ByteStream,
    path::SandboxPath,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::DriverFixture;

pub(super) type Fixture<'a> = &'a dyn DriverFixture;

pub(super) fn new_sandbox(fixture: Fixture<'_>) -> SandboxId {
    SandboxId::from_u128(fixture.unique())
}

pub(super) fn new_snapshot(fixture: Fixture<'_>) -> SnapshotId {
    SnapshotId::from_u128(fixture.unique())
}

pub(super) fn path(text: &str) -> SandboxPath {
    SandboxPath::new(text).unwrap()
}

pub(super) async fn create(fixture: Fixture<'_>, driver: &Arc<dyn Driver>) -> Arc<dyn Sandbox> {
    driver.create(new_sandbox(fixture), &fixture.spec()).await.unwrap()
}

pub(super) async fn write(sandbox: &dyn Sandbox, at: &str, text: &str) {
    let bytes = Bytes::from(text.to_owned());
    let bytes = stream::iter([Ok::<_, io::Error>(bytes)]).boxed();
    sandbox.write(&path(at), bytes, WriteMode::Replace).await.unwrap();
}

pub(super) async fn collect(stream: ByteStream) -> String {
    let bytes: BytesMut = stream.try_collect().await.unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) async fn read(sandbox: &dyn Sandbox, at: &str) -> Option<String> {
    match sandbox.read(&path(at)).await {
        Ok(stream) => Some(collect(stream).await),
        Err(DriverError::PathMissing { .. }) => None,
        Err(err) => panic!("reading `{at}`: {err}"),
    }
}

pub(super) async fn run(sandbox: &dyn Sandbox, argv: &[&str]) -> (String, String, ExitStatus) {
    finish(sandbox.exec(&Command::new(argv)).await.unwrap()).await
}

/// What a script prints; it must succeed. Bytes that are no text are shown as such.
pub(super) async fn shell(sandbox: &dyn Sandbox, script: &str) -> String {
    let (out, err, status) = run(sandbox, &["sh", "-c", script]).await;
    assert_eq!(status, ExitStatus::Code(0), "{script}\nsays: {err}");
    out
}

pub(super) async fn finish(process: Process) -> (String, String, ExitStatus) {
    let Process { stdin, stdout, stderr, control } = process;
    drop(stdin);
    let (out, err) = futures::join!(collect(stdout), collect(stderr));
    (out, err, control.wait().await.unwrap())
}

pub(super) async fn seal(fixture: Fixture<'_>, sandbox: &dyn Sandbox) -> Artifact {
    let mut paused = sandbox.pause(SnapshotKind::Files).await.unwrap();
    let artifact = paused.seal(new_snapshot(fixture), SnapshotKind::Files).await.unwrap();
    paused.resume().await.unwrap();
    artifact
}

pub(super) async fn discard_all(driver: &Arc<dyn Driver>, artifact: &Artifact) {
    for piece in &artifact.pieces {
        driver.discard(&piece.name).await.unwrap();
        driver.discard(&piece.name).await.unwrap();
    }
}
