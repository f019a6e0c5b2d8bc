//! Old friends: a catalog of every format that was ever released opens, and means what it meant.

use std::fs;

use forkpoint_backends::catalog::SqliteReader;
use forkpoint_core::{
    catalog::{
        Catalog, Change, ChoreTask, LineageScope, OperationKind, OwnerState, Power, Reclaimed,
        SandboxQuery, SnapshotQuery,
    },
    id::OperationId,
    spec::VolumeChoice,
    trigger::Trigger,
};
use forkpoint_testkit::CatalogOpener as _;
use futures::executor::block_on;

use super::Directory;

fn old(dump: &str) -> Directory {
    let directory = Directory::new();
    directory.tamper(dump);
    directory
}

async fn read_all(catalog: &dyn Catalog) {
    let everything = catalog.find_snapshot("everything").await.unwrap();
    assert_eq!(everything.trigger, Trigger::AfterAction);
    assert_eq!(everything.description.as_deref(), Some("before the upgrade, ümlaut"));
    assert_eq!(everything.context.as_deref(), Some("apt-get dist-upgrade"));
    assert_eq!((everything.run_id.as_deref(), everything.step), (Some("run-7"), Some(12)));
    assert_eq!(everything.labels.get("task"), Some("upgrade"));
    assert_eq!(everything.expires.unwrap().to_string(), "2030-01-01T00:00:00.123456789Z");
    assert!(everything.pinned && everything.sandbox_name.is_some());
    assert_eq!(everything.artifact.snapshot, everything.id);
    let state = catalog.agent_state(everything.id).await.unwrap();
    assert_eq!(state.as_deref(), Some(b"\x00opaque\xff".as_slice()));

    let theirs = catalog.find_sandbox("fake", "theirs").await.unwrap();
    assert_eq!(theirs.adopted.as_deref(), Some("theirs"));
    let nodes = catalog.lineage(&LineageScope::Everything).await.unwrap();
    let names: Vec<_> = nodes.iter().map(|node| (node.name.as_str(), node.deleted)).collect();
    assert_eq!(
        names,
        [
            ("one", true),
            ("two", false),
            ("branch", false),
            ("of-theirs", false),
            ("lone", false),
            ("gone", true),
            ("chain-1", true),
            ("chain-2", true),
            ("chain-3", false),
            ("everything", false),
        ]
    );
    assert_eq!(catalog.usage().await.unwrap().snapshots, 6);
    assert_eq!(catalog.pieces("fake").await.unwrap().len(), 10);
}

/// It is no museum piece: work goes on in it.
async fn work_on(catalog: &dyn Catalog) {
    let open = catalog.unfinished().await.unwrap().pop().unwrap();
    assert_eq!(open.owner_state, OwnerState::Gone);
    let OperationKind::Snapshot { name, .. } = &open.operation.kind else {
        panic!("{:?}", open.operation.kind);
    };
    assert_eq!(name.as_str(), "half-done");
    let Reclaimed::Ours(claim) = catalog.reclaim(&open.claim).await.unwrap() else {
        panic!("it belongs to nobody");
    };
    catalog.abort(&claim).await.unwrap();

    let lone = catalog.find_snapshot("lone").await.unwrap();
    let mut operation = open.operation;
    operation.id = OperationId::from_u128(1);
    operation.kind = OperationKind::Delete { snapshot: lone.id };
    let claim = catalog.begin(&operation).await.unwrap();
    let change = Change::SnapshotDeleted { snapshot: lone.id };
    let chores = catalog.commit(&claim, &change).await.unwrap();
    assert_eq!(chores[0].task, ChoreTask::Discard(lone.artifact.pieces[0].clone()));
    assert_eq!(catalog.snapshots(&SnapshotQuery::default()).await.unwrap().items.len(), 5);
}

#[test]
fn format_1_is_read_and_goes_on() {
    let directory = old(include_str!("../../fixtures/catalog-v1.sql"));
    let catalog = directory.open();
    // A reader of format 1 would take an operation of format 2 for damage.
    let file = rusqlite::Connection::open(directory.file()).unwrap();
    let version = file.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0));
    assert_eq!(version.unwrap(), 4, "it is kept away from now on");
    drop(file);
    block_on(read_all(catalog.as_ref()));
    block_on(work_on(catalog.as_ref()));
}

async fn close_the_switch(catalog: &dyn Catalog) {
    let open = catalog.unfinished().await.unwrap().pop().unwrap();
    let web = catalog.find_sandbox("fake", "web").await.unwrap();
    assert_eq!(open.operation.kind, OperationKind::Switch { sandbox: web.id, to: Power::Stop });
    let Reclaimed::Ours(claim) = catalog.reclaim(&open.claim).await.unwrap() else {
        panic!("it belongs to nobody");
    };
    assert!(catalog.commit(&claim, &Change::Switched).await.unwrap().is_empty());
    assert_eq!(catalog.find_sandbox("fake", "web").await.unwrap(), web);
}

#[test]
fn format_2_is_read_and_goes_on() {
    let directory = old(include_str!("../../fixtures/catalog-v2.sql"));
    let catalog = directory.open();
    block_on(read_all(catalog.as_ref()));
    block_on(close_the_switch(catalog.as_ref()));
    block_on(work_on(catalog.as_ref()));
}

#[test]
fn format_3_is_read_and_goes_on() {
    let directory = old(include_str!("../../fixtures/catalog-v3.sql"));
    let catalog = directory.open();
    block_on(read_all(catalog.as_ref()));
    let web = block_on(catalog.find_sandbox("fake", "web")).unwrap();
    assert_eq!(web.expires.unwrap().to_string(), "2030-01-01T00:00:00.123456789Z");
    let query = SandboxQuery { expired: web.expires, ..SandboxQuery::default() };
    assert_eq!(block_on(catalog.sandboxes(&query)).unwrap().items, [web]);
    block_on(close_the_switch(catalog.as_ref()));
    block_on(work_on(catalog.as_ref()));
}

#[test]
fn format_4_is_read_and_goes_on() {
    let directory = old(include_str!("../../fixtures/catalog-v4.sql"));
    let catalog = directory.open();
    block_on(read_all(catalog.as_ref()));
    let bare = block_on(catalog.find_sandbox("fake", "bare")).unwrap().spec.attachments;
    assert_eq!((bare.native_name.as_deref(), bare.networks), (Some("bare"), false));
    assert_eq!(bare.volumes, VolumeChoice::Share);
    assert_eq!(bare.publish, ["127.0.0.1:8080:80".parse().unwrap()]);
    let open = block_on(catalog.unfinished()).unwrap().pop().unwrap();
    let OperationKind::Import { name, .. } = &open.operation.kind else { panic!("{open:?}") };
    assert_eq!(name.as_str(), "of-others");
    let Reclaimed::Ours(claim) = block_on(catalog.reclaim(&open.claim)).unwrap() else {
        panic!("it belongs to nobody");
    };
    block_on(catalog.abort(&claim)).unwrap();
    block_on(close_the_switch(catalog.as_ref()));
    block_on(work_on(catalog.as_ref()));
}

#[test]
fn a_reader_changes_nothing_in_an_old_one() {
    let dumps = [
        include_str!("../../fixtures/catalog-v1.sql"),
        include_str!("../../fixtures/catalog-v2.sql"),
        include_str!("../../fixtures/catalog-v3.sql"),
        include_str!("../../fixtures/catalog-v4.sql"),
    ];
    for (number, dump) in (1..).zip(dumps) {
        let directory = old(dump);
        let before = fs::read(directory.file()).unwrap();
        let reader = SqliteReader::new(directory.file()).unwrap();
        // Of an older form it may not know enough: then it says so.
        let found = block_on(reader.sandboxes(&SandboxQuery::default()));
        assert!(number < 3 || found.unwrap().items.len() > 1, "{number}");
        drop(reader);
        assert_eq!(fs::read(directory.file()).unwrap(), before, "{number}");
        assert!(!directory.owners().exists(), "{number}: nobody signed in");
    }
}
