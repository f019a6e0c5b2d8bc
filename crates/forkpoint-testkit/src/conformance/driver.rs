//! What every driver must do.
//!
//! The cases use only commands that every small Linux has: `true`, `sh`, `cat`, `echo`, `rm`,
//! `sleep`, `printenv`, `hostname`.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use forkpoint_core::{
    driver::{
        Artifact, Command, Driver, DriverError, ExitStatus, Process, Sandbox, SandboxState,
        SnapshotKind, WriteMode,
    },
    id::{SandboxId, SnapshotId},
    part::{ByteStream, Part, PartContent, PartFormat},
    path::SandboxPath,
    spec::SandboxSpec,
};
use futures::{SinkExt as _, StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};

/// A platform to try a driver on, empty of sandboxes of ours.
pub trait DriverFixture: Send + Sync {
    /// A driver as one more process would open it.
    fn driver(&self) -> Arc<dyn Driver>;

    /// What a small sandbox is made from.
    fn spec(&self) -> SandboxSpec;

    /// A number that was not given before.
    fn unique(&self) -> u128;

    /// Starts something that is not ours, where the driver can adopt.
    fn foreign(&self) -> BoxFuture<'_, Option<String>>;

    /// Runs a case, on the runtime that the driver needs.
    fn run(&self, case: BoxFuture<'_, ()>) {
        futures::executor::block_on(case);
    }
}

type Fixture<'a> = &'a dyn DriverFixture;

fn new_sandbox(fixture: Fixture<'_>) -> SandboxId {
    SandboxId::from_u128(fixture.unique())
}

fn new_snapshot(fixture: Fixture<'_>) -> SnapshotId {
    SnapshotId::from_u128(fixture.unique())
}

fn path(text: &str) -> SandboxPath {
    SandboxPath::new(text).unwrap()
}

async fn create(fixture: Fixture<'_>, driver: &Arc<dyn Driver>) -> Arc<dyn Sandbox> {
    driver.create(new_sandbox(fixture), &fixture.spec()).await.unwrap()
}

async fn write(sandbox: &dyn Sandbox, at: &str, text: &str) {
    let bytes = Bytes::from(text.to_owned());
    let bytes = stream::iter([Ok::<_, io::Error>(bytes)]).boxed();
    sandbox.write(&path(at), bytes, WriteMode::Replace).await.unwrap();
}

async fn collect(stream: ByteStream) -> String {
    let bytes: BytesMut = stream.try_collect().await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn read(sandbox: &dyn Sandbox, at: &str) -> Option<String> {
    match sandbox.read(&path(at)).await {
        Ok(stream) => Some(collect(stream).await),
        Err(DriverError::PathMissing { .. }) => None,
        Err(err) => panic!("reading `{at}`: {err}"),
    }
}

async fn run(sandbox: &dyn Sandbox, argv: &[&str]) -> (String, String, ExitStatus) {
    finish(sandbox.exec(&Command::new(argv)).await.unwrap()).await
}

async fn finish(process: Process) -> (String, String, ExitStatus) {
    let Process { stdin, stdout, stderr, control } = process;
    drop(stdin);
    let (out, err) = futures::join!(collect(stdout), collect(stderr));
    (out, err, control.wait().await.unwrap())
}

async fn seal(fixture: Fixture<'_>, sandbox: &dyn Sandbox) -> Artifact {
    let mut paused = sandbox.pause().await.unwrap();
    let artifact = paused.seal(new_snapshot(fixture), SnapshotKind::Files).await.unwrap();
    paused.resume().await.unwrap();
    artifact
}

pub async fn runs_commands(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    assert_eq!(run(sandbox.as_ref(), &["true"]).await.2, ExitStatus::Code(0));
    assert_eq!(run(sandbox.as_ref(), &["sh", "-c", "exit 7"]).await.2, ExitStatus::Code(7));
    assert_eq!(run(sandbox.as_ref(), &["echo", "a", "b"]).await.0, "a b\n");
    let (out, err, status) = run(sandbox.as_ref(), &["cat", "/no/such/file"]).await;
    assert!(out.is_empty() && !err.is_empty() && status != ExitStatus::Code(0));
    assert!(sandbox.exec(&Command::default()).await.is_err(), "an empty command");
    driver.destroy(sandbox.id()).await.unwrap();
}

pub async fn feeds_standard_input_and_environment(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let mut spec = fixture.spec();
    spec.env.insert("FROM_SPEC".into(), "one".into());
    let sandbox = driver.create(new_sandbox(fixture), &spec).await.unwrap();
    assert_eq!(run(sandbox.as_ref(), &["printenv", "FROM_SPEC"]).await.0, "one\n");

    let mut command = Command::new(["printenv", "FROM_CALL"]);
    command.env.insert("FROM_CALL".into(), "two".into());
    assert_eq!(finish(sandbox.exec(&command).await.unwrap()).await.0, "two\n");

    let command = Command { stdin: true, ..Command::new(["cat"]) };
    let mut process = sandbox.exec(&command).await.unwrap();
    let stdin = process.stdin.as_mut().unwrap();
    stdin.send(Bytes::from_static(b"through the pipe")).await.unwrap();
    assert_eq!(finish(process).await.0, "through the pipe");
    driver.destroy(sandbox.id()).await.unwrap();
}

pub async fn signals_and_limits_end_a_command(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    let process = sandbox.exec(&Command::new(["sleep", "1000"])).await.unwrap();
    process.control.signal(9).await.unwrap();
    assert_eq!(process.control.wait().await.unwrap(), ExitStatus::Signal(9));
    assert_eq!(process.control.wait().await.unwrap(), ExitStatus::Signal(9), "asked again");
    let timeout = Some(Duration::from_millis(50));
    let command = Command { timeout, ..Command::new(["sleep", "1000"]) };
    let (_, _, status) = finish(sandbox.exec(&command).await.unwrap()).await;
    assert_eq!(status, ExitStatus::TimedOut);
    driver.destroy(sandbox.id()).await.unwrap();
}

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

pub async fn an_id_is_made_once_and_destroyed_twice(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    let id = sandbox.id();
    let again = driver.create(id, &fixture.spec()).await;
    assert!(matches!(again, Err(DriverError::SandboxExists { .. })));
    assert_eq!(driver.status(id).await.unwrap().unwrap().state, SandboxState::Running);
    driver.destroy(id).await.unwrap();
    driver.destroy(id).await.unwrap();
    driver.settle(id).await.unwrap();
    assert_eq!(driver.status(id).await.unwrap(), None);
    assert!(matches!(driver.attach(id).await, Err(DriverError::SandboxMissing { .. })));
}

pub async fn another_process_finds_it(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    write(sandbox.as_ref(), "/mark", "here").await;
    let id = sandbox.id();
    drop((sandbox, driver));

    let other = fixture.driver();
    assert!(other.list().await.unwrap().contains(&id));
    let found = other.attach(id).await.unwrap();
    assert_eq!(read(found.as_ref(), "/mark").await.as_deref(), Some("here"));
    other.destroy(id).await.unwrap();
    assert!(!other.list().await.unwrap().contains(&id));
}

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

async fn discard_all(driver: &Arc<dyn Driver>, artifact: &Artifact) {
    for piece in &artifact.pieces {
        driver.discard(&piece.name).await.unwrap();
        driver.discard(&piece.name).await.unwrap();
    }
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

pub async fn rolls_back_in_place_and_again(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    if !driver.capabilities().rollback {
        return;
    }
    let sandbox = create(fixture, &driver).await;
    write(sandbox.as_ref(), "/kept", "good").await;
    let good = seal(fixture, sandbox.as_ref()).await;
    write(sandbox.as_ref(), "/kept", "bad").await;
    write(sandbox.as_ref(), "/more", "bad").await;
    let bad = seal(fixture, sandbox.as_ref()).await;

    let id = sandbox.id();
    for _ in 0..2 {
        let back = driver.rollback(id, &fixture.spec(), &good).await.unwrap();
        assert_eq!(back.id(), id);
        assert_eq!(read(back.as_ref(), "/kept").await.as_deref(), Some("good"));
        assert_eq!(read(back.as_ref(), "/more").await, None);
        let status = driver.status(id).await.unwrap().unwrap();
        assert_eq!((status.state, status.base), (SandboxState::Running, Some(good.snapshot)));
    }
    let forth = driver.rollback(id, &fixture.spec(), &bad).await.unwrap();
    assert_eq!(read(forth.as_ref(), "/more").await.as_deref(), Some("bad"));

    driver.destroy(id).await.unwrap();
    let revived = driver.rollback(id, &fixture.spec(), &good).await.unwrap();
    assert_eq!(read(revived.as_ref(), "/kept").await.as_deref(), Some("good"), "after a loss");
    driver.destroy(id).await.unwrap();
    discard_all(&driver, &bad).await;
    discard_all(&driver, &good).await;
}

pub async fn settles_after_a_dropped_pause(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    let id = sandbox.id();
    drop(sandbox.pause().await.unwrap());
    assert_eq!(driver.status(id).await.unwrap().unwrap().state, SandboxState::Paused);
    let other = fixture.driver();
    other.settle(id).await.unwrap();
    other.settle(id).await.unwrap();
    assert_eq!(other.status(id).await.unwrap().unwrap().state, SandboxState::Running);
    assert_eq!(run(sandbox.as_ref(), &["true"]).await.2, ExitStatus::Code(0));
    driver.destroy(id).await.unwrap();
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

pub async fn adopts_and_never_destroys_what_is_not_ours(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let missing = driver.adopt("no-such-thing-anywhere").await;
    if !driver.capabilities().adopt {
        assert!(matches!(missing, Err(DriverError::Unsupported { .. })));
        return;
    }
    assert!(matches!(missing, Err(DriverError::NativeMissing { .. })));
    let name = fixture.foreign().await.unwrap();
    let adopted = driver.adopt(&name).await.unwrap();
    assert_eq!(fixture.driver().adopt(&name).await.unwrap(), adopted, "the same id again");
    assert!(!driver.list().await.unwrap().contains(&adopted.id), "it is not ours");
    let sandbox = driver.attach(adopted.id).await.unwrap();
    write(sandbox.as_ref(), "/kept", "theirs").await;
    let artifact = seal(fixture, sandbox.as_ref()).await;
    assert!(artifact.pieces.iter().all(|piece| piece.over.is_none()), "a copy, over nothing");
    assert!(matches!(driver.destroy(adopted.id).await, Err(DriverError::Foreign { .. })));
    assert_eq!(read(sandbox.as_ref(), "/kept").await.as_deref(), Some("theirs"));

    let copy = driver.restore(new_sandbox(fixture), &adopted.spec, &artifact).await.unwrap();
    assert_eq!(read(copy.as_ref(), "/kept").await.as_deref(), Some("theirs"));
    driver.destroy(copy.id()).await.unwrap();
    driver.unseal(artifact.snapshot).await.unwrap();
}

pub async fn refuses_to_discard_what_is_not_marked(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let foreign = forkpoint_core::driver::PieceName("somebody-elses-thing".to_owned());
    assert!(matches!(driver.discard(&foreign).await, Err(DriverError::Foreign { .. })));
}

pub async fn exports_and_imports(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let capabilities = driver.capabilities();
    let sandbox = create(fixture, &driver).await;
    write(sandbox.as_ref(), "/data/a", "travels").await;
    let artifact = seal(fixture, sandbox.as_ref()).await;
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

/// One test for each case, on a fixture that `$make` makes anew.
#[macro_export]
macro_rules! driver_conformance {
    ($make:expr) => {
        $crate::driver_conformance!(@cases $make;
            runs_commands, feeds_standard_input_and_environment, signals_and_limits_end_a_command,
            reads_writes_and_lists_files, an_id_is_made_once_and_destroyed_twice,
            another_process_finds_it, a_restored_copy_is_equal_and_apart,
            snapshots_survive_their_sandbox_and_each_other, rolls_back_in_place_and_again,
            settles_after_a_dropped_pause, unsealing_leaves_the_sandbox_where_it_stood,
            adopts_and_never_destroys_what_is_not_ours, refuses_to_discard_what_is_not_marked,
            exports_and_imports, tells_what_a_snapshot_would_miss);
    };
    (@cases $make:expr; $($case:ident),*) => {$(
        #[test]
        fn $case() {
            let fixture = $make;
            let case = $crate::conformance::driver::$case(&fixture);
            $crate::conformance::driver::DriverFixture::run(&fixture, Box::pin(case));
        }
    )*};
}
