//! A world with something in it, and every operation that changes something.
//!
//! An operation that is new joins [`OPS`], and so meets every fault.

use bytes::Bytes;
use forkpoint_core::{
    Engine, Error, ErrorKind, Result,
    catalog::SnapshotRecord,
    driver::{NativeState, SnapshotKind, WriteMode},
    engine::{
        AdoptRequest, ClaimRequest, CreateRequest, ForkRequest, ForkSource, Forked, RestoreRequest,
        RollbackRequest, SnapshotEdit, SnapshotOutcome, SnapshotRequest, Wait,
    },
    id::SnapshotId,
    label::Labels,
    path::SandboxPath,
    retention::RetentionPolicy,
    spec::SandboxSpec,
    trigger::Trigger,
};

use futures::{StreamExt as _, future::BoxFuture, stream};
use serde_json::Value;

use crate::{Files, World};

pub fn spec() -> SandboxSpec {
    SandboxSpec::new("tiny".parse().unwrap())
}

pub fn named(name: &str) -> CreateRequest {
    CreateRequest { name: Some(name.parse().unwrap()), ..CreateRequest::new(spec()) }
}

fn with_end(name: &str) -> CreateRequest {
    CreateRequest { expires: Some("2101-01-01T00:00:00Z".parse().unwrap()), ..named(name) }
}

pub async fn write(engine: &Engine, sandbox: &str, path: &str, text: &str) {
    let sandbox = engine.attach(sandbox).await.unwrap();
    let bytes = stream::iter([Ok(Bytes::from(text.to_owned()))]).boxed();
    let path = SandboxPath::new(path).unwrap();
    sandbox.write(&path, bytes, WriteMode::Replace).await.unwrap();
}

pub async fn snapshot(engine: &Engine, sandbox: &str, name: &str) -> SnapshotRecord {
    taken(engine.snapshot(snapshot_request(sandbox, name)).await.unwrap())
}

pub fn snapshot_request(sandbox: &str, name: &str) -> SnapshotRequest {
    SnapshotRequest { name: Some(name.parse().unwrap()), ..SnapshotRequest::new(sandbox) }
}

/// Takes nothing of a sandbox that is as its last snapshot holds it.
#[must_use]
pub fn if_changed(sandbox: &str) -> SnapshotRequest {
    SnapshotRequest { skip_unchanged: true, ..SnapshotRequest::new(sandbox) }
}

pub fn taken(outcome: SnapshotOutcome) -> SnapshotRecord {
    match outcome {
        SnapshotOutcome::Taken(taken) => taken.snapshot,
        SnapshotOutcome::Skipped(reason) => panic!("skipped: {reason}"),
    }
}

/// Two sandboxes, one grown from the other's first snapshot, one bare; a foreign one that is adopted
/// and one that is not; snapshots that outlived their sandbox, and a sandbox that outlived its snapshot.
/// That last one (`heir`) is stopped, and `copy` is paused.
pub fn fill(world: &World) {
    fill_small(world);
    world.run(|engine| async move {
        for (sandbox, taken) in [("last", "lone"), ("heir", "gone")] {
            engine.create(named(sandbox)).await.unwrap();
            write(&engine, sandbox, "/step", taken).await;
            snapshot(&engine, sandbox, taken).await;
        }
        engine.destroy("last", Wait::No).await.unwrap();
        engine.delete_snapshot("gone", Wait::No).await.unwrap();
        chain(&engine).await;
        engine.stop("heir", Wait::No).await.unwrap();
        engine.pause("copy", Wait::No).await.unwrap();
    });
}

/// A snapshot `chain-3` over two that are deleted, and nothing else that needs any of them.
async fn chain(engine: &Engine) {
    engine.create(named("link")).await.unwrap();
    for number in 1..=3 {
        write(engine, "link", "/step", &number.to_string()).await;
        snapshot(engine, "link", &format!("chain-{number}")).await;
    }
    engine.destroy("link", Wait::No).await.unwrap();
    for number in 1..=2 {
        engine.delete_snapshot(&format!("chain-{number}"), Wait::No).await.unwrap();
    }
}

/// `web` with snapshots `one` and `two`, a copy `copy` of `one` with a snapshot `branch`, a sandbox
/// `bare` without any, and a foreign `theirs` (adopted, with a snapshot) and `stranger` (not).
pub fn fill_small(world: &World) {
    for name in ["theirs", "stranger"] {
        let files = Files::from([("/etc/image".into(), Bytes::from(name))]);
        world.platform.add_foreign(name, files);
    }
    world.platform.add_image("legacy", Files::from([("/srv".into(), Bytes::from("kept"))]));
    world.run(|engine| async move {
        engine.create(named("web")).await.unwrap();
        write(&engine, "web", "/step", "one").await;
        snapshot(&engine, "web", "one").await;
        write(&engine, "web", "/step", "two").await;
        snapshot(&engine, "web", "two").await;
        write(&engine, "web", "/unsaved", "work").await;
        let name = Some("copy".parse().unwrap());
        engine.restore(RestoreRequest { name, ..RestoreRequest::new("one") }).await.unwrap();
        write(&engine, "copy", "/branch", "yes").await;
        snapshot(&engine, "copy", "branch").await;
        engine.create(named("bare")).await.unwrap();
        engine.adopt(adopt("theirs")).await.unwrap();
        snapshot(&engine, "theirs", "of-theirs").await;
    });
}

#[must_use]
pub fn adopt(native_name: &str) -> AdoptRequest {
    AdoptRequest {
        driver: "fake".into(),
        native_name: native_name.into(),
        name: None,
        labels: Labels::default(),
        wait: Wait::No,
    }
}

#[must_use]
pub fn claim(image: &str) -> ClaimRequest {
    ClaimRequest {
        driver: "fake".into(),
        what: NativeState { name: image.into(), of: Some("c0ffee".into()), told: Value::Null },
        id: SnapshotId::from_u128(4711),
        name: "kept".parse().unwrap(),
        sandbox_name: Some("webapp".parse().unwrap()),
        parent: None,
        trigger: Trigger::RunEnd,
        description: Some("of others".into()),
        context: None,
        run_id: None,
        labels: Labels::default(),
        created: "2025-08-15T09:50:55Z".parse().unwrap(),
        restore_count: 2,
        wait: Wait::No,
    }
}

/// An operation that changes something, by name.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub name: &'static str,
    pub run: fn(Engine) -> BoxFuture<'static, Result<()>>,
    /// Some of it may stay although it failed: it is more than one operation, or one that the
    /// catalog keeps nothing of.
    pub parts: bool,
    /// Changes nothing when it succeeds.
    pub quiet: bool,
}

impl Op {
    /// Whether "done" would not be true.
    #[must_use]
    pub fn is_untrue(&self, changed: bool) -> bool {
        changed == self.quiet
    }
}

macro_rules! op {
    ($name:literal, |$engine:ident| $work:expr) => {
        Op {
            name: $name,
            run: |$engine| Box::pin(async move { $work.await.map(drop) }),
            parts: false,
            quiet: false,
        }
    };
    (quiet $name:literal, |$engine:ident| $work:expr) => {
        Op { quiet: true, ..op!($name, |$engine| $work) }
    };
    (parts $name:literal, |$engine:ident| $work:expr) => {
        Op { parts: true, ..op!($name, |$engine| $work) }
    };
}

/// A fork counts as done when a copy was made.
fn any_child(forked: Forked) -> Result<()> {
    match forked.children.iter().any(|child| child.result.is_ok()) {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Unavailable, "no copy was made")),
    }
}

async fn fork(engine: Engine, source: ForkSource) -> Result<()> {
    let name = Some("kid".parse().unwrap());
    any_child(engine.fork(ForkRequest { name, ..ForkRequest::new(source, 3) }).await?)
}

async fn roll_back(engine: Engine, to: &str) -> Result<()> {
    let to = Some(to.to_owned());
    engine.rollback(RollbackRequest { to, ..RollbackRequest::new("web") }).await.map(drop)
}

async fn roll_back_heir(engine: Engine) -> Result<()> {
    let to = Some("lone".to_owned());
    engine.rollback(RollbackRequest { to, ..RollbackRequest::new("heir") }).await.map(drop)
}

async fn prune(engine: Engine) -> Result<()> {
    let policy = RetentionPolicy { max_total: Some(2), ..RetentionPolicy::default() };
    let report = engine.prune(&policy).await?;
    match report.failed.into_iter().next() {
        Some((_, err)) => Err(err),
        None => Ok(()),
    }
}

/// Every operation that changes something.
pub const OPS: [Op; 37] = [
    op!("create", |engine| engine.create(named("new"))),
    op!("create with an end", |engine| engine.create(with_end("new"))),
    op!("adopt", |engine| engine.adopt(adopt("stranger"))),
    op!(parts "snapshot of what is adopted for it", |engine| {
        engine.snapshot(SnapshotRequest::new("fake:stranger"))
    }),
    op!(parts "stop of what is adopted for it", |engine| engine.stop("fake:stranger", Wait::No)),
    op!(parts "rollback of what is adopted for it", |engine| {
        let to = Some("one".to_owned());
        engine.rollback(RollbackRequest { to, ..RollbackRequest::new("fake:stranger") })
    }),
    op!("snapshot", |engine| engine.snapshot(snapshot_request("web", "three"))),
    op!("snapshot of a bare sandbox", |engine| engine.snapshot(SnapshotRequest::new("bare"))),
    op!("snapshot of an adopted one", |engine| engine.snapshot(SnapshotRequest::new("theirs"))),
    op!("snapshot of a stopped one", |engine| engine.snapshot(SnapshotRequest::new("heir"))),
    op!("snapshot of a paused one", |engine| engine.snapshot(SnapshotRequest::new("copy"))),
    op!("snapshot with sync", |engine| {
        engine.snapshot(SnapshotRequest { sync: true, ..SnapshotRequest::new("web") })
    }),
    op!("snapshot of what changed", |engine| engine.snapshot(if_changed("web"))),
    op!(quiet "snapshot of what did not change", |engine| engine.snapshot(if_changed("copy"))),
    op!(parts "stop", |engine| engine.stop("web", Wait::No)),
    op!(parts "start", |engine| engine.start("heir", Wait::No)),
    op!(parts "pause", |engine| engine.pause("web", Wait::No)),
    op!(parts "resume", |engine| engine.resume("copy", Wait::No)),
    op!("restore", |engine| engine.restore(RestoreRequest::new("two"))),
    op!("restore of what nobody else needs", |engine| engine.restore(RestoreRequest::new("lone"))),
    op!("fork of a snapshot", |engine| fork(engine, ForkSource::Snapshot("one".into()))),
    op!(parts "fork of a sandbox", |engine| {
        fork(engine, ForkSource::Sandbox("web".into(), SnapshotKind::Files))
    }),
    op!("rollback to an ancestor", |engine| roll_back(engine, "one")),
    op!("rollback to the newest", |engine| roll_back(engine, "two")),
    op!("rollback to a cousin", |engine| roll_back(engine, "branch")),
    op!("delete of a leaf", |engine| engine.delete_snapshot("two", Wait::No)),
    op!("delete of a parent", |engine| engine.delete_snapshot("one", Wait::No)),
    op!("delete of what nobody else needs", |engine| engine.delete_snapshot("lone", Wait::No)),
    op!("delete that frees a chain", |engine| engine.delete_snapshot("chain-3", Wait::No)),
    op!("edit", |engine| engine.edit_snapshot("one", edit(), Wait::No)),
    op!("destroy", |engine| engine.destroy("copy", Wait::No)),
    op!("destroy of the last holder", |engine| engine.destroy("heir", Wait::No)),
    op!("rollback of the last holder", |engine| roll_back_heir(engine)),
    op!("rollback of an adopted one", |engine| {
        engine
            .rollback(RollbackRequest { to: Some("one".into()), ..RollbackRequest::new("theirs") })
    }),
    op!("forget an adopted one", |engine| engine.destroy("theirs", Wait::No)),
    op!("claim", |engine| engine.claim(claim("legacy"))),
    op!(parts "prune", |engine| prune(engine)),
];

fn edit() -> SnapshotEdit {
    SnapshotEdit {
        name: Some("renamed".parse().unwrap()),
        pinned: Some(true),
        ..SnapshotEdit::default()
    }
}
