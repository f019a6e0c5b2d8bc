//! What is written comes back as it was, and changes only as it should.

use std::{collections::BTreeMap, ffi::OsStr, os::unix::ffi::OsStrExt as _};

use bytes::Bytes;
use forkpoint_core::{
    Timestamp,
    catalog::{
        Change, DriverUsage, OperationKind, SandboxQuery, SandboxRecord, SnapshotQuery,
        SnapshotRecord, Usage,
    },
    driver::SnapshotKind,
    path::{HostPath, SandboxPath},
    spec::{Attachments, Network, Resources, SandboxSpec, VolumeChoice, Workspace, WorkspaceMode},
    trigger::Trigger,
};

use super::scene::*;
use crate::CatalogOpener;

/// Quotes, a zero byte, a line end, right-to-left marks, something outside the basic plane.
const ODD: &str = "it's \"odd\" \0 \r\n \u{202e}\u{5d0}\u{301} \u{1f980} \u{fffd} \\u0041 ?1 :x";

fn odd_spec() -> SandboxSpec {
    SandboxSpec {
        template: "dir:/srv/\u{e9} 'x'".parse().unwrap(),
        workdir: Some(SandboxPath::new("/srv/\u{1f980}").unwrap()),
        user: Some("1000:1000".to_owned()),
        env: BTreeMap::from([
            ("A".to_owned(), ODD.replace('\0', "")),
            ("B".to_owned(), String::new()),
        ]),
        network: Network::Host,
        resources: Resources {
            memory_bytes: Some(u64::MAX),
            cpu_millis: Some(1),
            pids: Some(u32::MAX),
        },
        workspaces: vec![Workspace {
            source: HostPath::new(OsStr::from_bytes(b"/srv/\xff 'x'")).unwrap(),
            at: SandboxPath::new(OsStr::from_bytes(b"/\xfe")).unwrap(),
            mode: WorkspaceMode::Copy,
            since: time("2026-08-15T09:50:55.123456789Z"),
        }],
        attachments: Attachments {
            native_name: Some("w\u{e9}b".to_owned()),
            networks: false,
            volumes: VolumeChoice::Share,
            publish: vec!["[::1]:8080:80/udp".parse().unwrap(), "127.0.0.1::80".parse().unwrap()],
        },
    }
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

pub async fn every_field_of_a_sandbox_survives(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    let plain = sandbox(1);
    hand.add(&plain).await;
    hand.take(&snapshot(1, 1)).await;
    let full = SandboxRecord {
        name: Some(name("Web.1_x-y")),
        spec: odd_spec(),
        labels: labels(&[("a/b.c-d_e", "caf\u{e9} \u{1f980}"), ("empty", "")]),
        adopted: Some(ODD.to_owned()),
        head: Some(snapshot_id(1)),
        created: time("2026-08-15T09:50:55.123456789Z"),
        expires: Some(time("2026-08-15T10:50:55.000000001Z")),
        ..sandbox(2)
    };
    let kind = OperationKind::Adopt { sandbox: new(&full) };
    hand.run(&operation(DRIVER, kind), &created(&full)).await;
    drop(hand);

    let catalog = Hand::open(fixture).0;
    assert_eq!(catalog.sandbox(full.id).await.unwrap(), full);
    assert_eq!(catalog.find_sandbox(DRIVER, "Web.1_x-y").await.unwrap(), full);
    let stands = SandboxRecord { head: Some(snapshot_id(1)), ..plain };
    let listed = catalog.sandboxes(&SandboxQuery::default()).await.unwrap().items;
    assert_eq!(listed, [stands, full]);
}

/// Every field with something that is easily lost.
fn odd_snapshot() -> SnapshotRecord {
    let mut record = SnapshotRecord {
        sandbox_name: Some(name("web")),
        parent: Some(snapshot_id(1)),
        kind: SnapshotKind::Full,
        trigger: Trigger::BeforeAction,
        description: Some(ODD.to_owned()),
        context: Some(String::new()),
        run_id: Some(ODD.to_owned()),
        step: Some(u64::MAX),
        labels: labels(&[("k", "\u{5d0}\u{1f980}'\"%_"), ("k2", "")]),
        agent_state_bytes: Some(3),
        spec: odd_spec(),
        own_bytes: i64::MAX.cast_unsigned() - 1,
        total_bytes: i64::MAX.cast_unsigned(),
        file_count: u64::MAX,
        created: time("2026-08-15T09:50:55.000000001Z"),
        expires: Some(time("9999-12-30T00:00:00.999999999Z")),
        pinned: true,
        last_restored: Some(time("1969-12-31T23:59:59.999999999Z")),
        restore_count: 7,
        durable: true,
        ..with_pieces(snapshot(2, 1), &[("p/1 \u{e9}", None), ("p/2", Some("p/1 \u{e9}"))])
    };
    record.artifact.version = u32::MAX;
    record.artifact.data =
        serde_json::json!({ "layers": [ODD, 1, u64::MAX, -1, null, {}], "\u{e9}": 0.5 });
    record.artifact.durable = true;
    record
}

pub async fn every_field_of_a_snapshot_survives(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&named_sandbox(1, "web")).await;
    let (plain, odd) = (snapshot(1, 1), odd_snapshot());
    hand.take(&plain).await;
    hand.take(&odd).await;
    drop(hand);

    let catalog = Hand::open(fixture).0;
    assert_eq!(catalog.snapshot(odd.id).await.unwrap(), odd);
    assert_eq!(catalog.find_snapshot("snap-2").await.unwrap(), odd);
    let by_run = SnapshotQuery { run_id: Some(ODD.to_owned()), ..SnapshotQuery::default() };
    let found = catalog.snapshots(&by_run).await.unwrap().items;
    assert_eq!(found, std::slice::from_ref(&odd));
    let listed = catalog.snapshots(&SnapshotQuery::default()).await.unwrap().items;
    assert_eq!(listed, [odd, plain]);
}

pub async fn an_agent_leaves_its_state(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    let every_byte: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    for (number, state) in [(1, None), (2, Some(Bytes::new())), (3, Some(every_byte.into()))] {
        let record = snapshot(number, 1);
        let agent_state: Option<Bytes> = state.clone();
        let change = Change::SnapshotTaken { snapshot: Box::new(record.clone()), agent_state };
        hand.run(&snapshotting(&record), &change).await;
        assert_eq!(hand.0.agent_state(record.id).await.unwrap(), state);
    }
    hand.delete(3).await;
    assert!(hand.0.agent_state(snapshot_id(3)).await.is_err());
    assert_eq!(hand.0.agent_state(snapshot_id(2)).await.unwrap(), Some(Bytes::new()));
}

pub async fn an_edit_changes_what_it_may_and_nothing_else(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    let before = SnapshotRecord {
        labels: labels(&[("old", "1"), ("both", "1")]),
        description: Some("old".to_owned()),
        expires: Some(at(5)),
        ..snapshot(1, 1)
    };
    hand.take(&before).await;
    hand.take(&snapshot(2, 1)).await;
    let edited = SnapshotRecord {
        name: name("renamed"),
        description: None,
        labels: labels(&[("both", "2"), ("new", "1")]),
        expires: Some(time("2030-01-01T00:00:00.000000007Z")),
        pinned: true,
        ..before.clone()
    };
    // What else the record says is not an edit's to change.
    let asked = SnapshotRecord {
        own_bytes: 999,
        trigger: Trigger::Periodic,
        sandbox: sandbox_id(9),
        restore_count: 9,
        created: at(99),
        ..edited.clone()
    };
    hand.edit(&asked).await;
    assert_eq!(hand.0.snapshot(before.id).await.unwrap(), edited);
    assert_eq!(hand.0.find_snapshot("renamed").await.unwrap(), edited);
    assert!(hand.0.find_snapshot("snap-1").await.is_err());
    assert_eq!(hand.0.snapshot(snapshot_id(2)).await.unwrap(), snapshot(2, 1));
    for (label, found) in
        [(("old", "1"), 0), (("both", "1"), 0), (("both", "2"), 1), (("new", "1"), 1)]
    {
        let query = SnapshotQuery { labels: labels(&[label]), ..SnapshotQuery::default() };
        assert_eq!(hand.0.snapshots(&query).await.unwrap().items.len(), found, "{label:?}");
    }
    hand.edit(&SnapshotRecord { expires: None, pinned: false, ..edited.clone() }).await;
    let last = hand.0.snapshot(before.id).await.unwrap();
    assert_eq!((last.expires, last.pinned), (None, false));
}

pub async fn restores_are_counted(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    hand.take(&snapshot(1, 1)).await;
    hand.take(&snapshot(2, 1)).await;
    let restored = time("2026-08-15T09:50:55.000000009Z");
    let children = [sandbox(2), sandbox(3), sandbox(4)];
    let change = Change::SandboxesAdded {
        sandboxes: children.to_vec(),
        from: Some(snapshot_id(1)),
        leftovers: vec![],
        at: restored,
    };
    hand.run(&forking(1, &children), &change).await;
    let first = hand.0.snapshot(snapshot_id(1)).await.unwrap();
    assert_eq!((first.restore_count, first.last_restored), (3, Some(restored)));
    hand.roll_back(1, 1).await;
    let first = hand.0.snapshot(snapshot_id(1)).await.unwrap();
    assert_eq!((first.restore_count, first.last_restored), (4, Some(at(0))));
    let second = hand.0.snapshot(snapshot_id(2)).await.unwrap();
    assert_eq!((second.restore_count, second.last_restored), (0, None));
}

pub async fn usage_follows_every_change(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    let docker = "docker".to_owned();
    hand.add(&sandbox(1)).await;
    hand.add(&SandboxRecord { driver: docker.clone(), ..sandbox(2) }).await;
    hand.take(&SnapshotRecord { created: at(50), ..snapshot(1, 1) }).await;
    hand.take(&SnapshotRecord { pinned: true, own_bytes: 7, created: at(10), ..snapshot(2, 1) })
        .await;
    let third = SnapshotRecord { driver: docker.clone(), total_bytes: 1, ..snapshot(3, 2) };
    hand.take(&third).await;
    let of = |driver: &str, snapshots, own_bytes| DriverUsage {
        driver: driver.to_owned(),
        snapshots,
        own_bytes,
    };
    let mut expected = Usage {
        sandboxes: 2,
        snapshots: 3,
        pinned: 1,
        own_bytes: 27,
        total_bytes: 201,
        stored_bytes: 0,
        oldest: Some(at(3)),
        newest: Some(at(50)),
        drivers: vec![of("docker", 1, 10), of(DRIVER, 2, 17)],
    };
    assert_eq!(hand.0.usage().await.unwrap(), expected);

    hand.edit(&SnapshotRecord { pinned: true, ..third.clone() }).await;
    expected.pinned = 2;
    assert_eq!(hand.0.usage().await.unwrap(), expected);
    hand.edit(&third).await;
    hand.edit(&third).await;
    expected.pinned = 1;
    assert_eq!(hand.0.usage().await.unwrap(), expected);

    hand.delete(3).await;
    hand.destroy(2).await;
    let expected = Usage {
        sandboxes: 1,
        snapshots: 2,
        pinned: 1,
        own_bytes: 17,
        total_bytes: 200,
        stored_bytes: 0,
        oldest: Some(at(10)),
        newest: Some(at(50)),
        drivers: vec![of(DRIVER, 2, 17)],
    };
    assert_eq!(hand.0.usage().await.unwrap(), expected);
    hand.delete(2).await;
    hand.delete(1).await;
    let expected = Usage { sandboxes: 1, ..Usage::default() };
    assert_eq!(hand.0.usage().await.unwrap(), expected);
}

pub async fn sizes_beyond_the_signed_range_add_up(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    let half = i64::MAX.cast_unsigned();
    let sized = |number, own_bytes| SnapshotRecord {
        own_bytes,
        total_bytes: own_bytes,
        ..snapshot(number, 1)
    };
    hand.take(&sized(1, half)).await;
    hand.take(&sized(2, half)).await;
    hand.take(&sized(3, 1)).await;
    let usage = hand.0.usage().await.unwrap();
    assert_eq!((usage.own_bytes, usage.total_bytes), (u64::MAX, u64::MAX));
    assert_eq!(usage.drivers[0].own_bytes, u64::MAX);
    hand.delete(1).await;
    hand.delete(2).await;
    assert_eq!(hand.0.usage().await.unwrap().own_bytes, 1);
    hand.delete(3).await;
    let all = sized(4, u64::MAX);
    hand.take(&all).await;
    assert_eq!(hand.0.snapshot(all.id).await.unwrap(), all);
    assert_eq!(hand.0.usage().await.unwrap().own_bytes, u64::MAX);
}
