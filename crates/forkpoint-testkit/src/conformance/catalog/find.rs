//! References: ids, names and the beginnings of ids.

use forkpoint_core::{
    catalog::{CatalogError, CatalogResult, SandboxRecord, SnapshotRecord},
    id::{SandboxId, SnapshotId},
};

use super::scene::*;
use crate::CatalogOpener;

/// An id that begins with one of 32 digits.
fn beginning_with(digit: u128) -> u128 {
    digit << 120
}

fn assert_sandbox_missing<T: std::fmt::Debug>(result: CatalogResult<T>, wanted: &str) {
    match result {
        Err(CatalogError::SandboxMissing { reference }) => assert_eq!(reference, wanted),
        other => panic!("expected no sandbox {wanted:?}, got {other:?}"),
    }
}

fn assert_snapshot_missing<T: std::fmt::Debug>(result: CatalogResult<T>, wanted: &str) {
    match result {
        Err(CatalogError::SnapshotMissing { reference }) => assert_eq!(reference, wanted),
        other => panic!("expected no snapshot {wanted:?}, got {other:?}"),
    }
}

pub async fn a_sandbox_is_found_by_id_name_and_prefix(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    let web =
        SandboxRecord { id: SandboxId::from_u128(beginning_with(1)), ..named_sandbox(0, "web") };
    let there = SandboxRecord {
        id: SandboxId::from_u128(beginning_with(2)),
        driver: "docker".to_owned(),
        ..named_sandbox(0, "web")
    };
    hand.add(&web).await;
    hand.add(&there).await;
    let (id, long) = (web.id.to_string(), there.id.to_string());
    for (driver, reference, expected) in [
        (DRIVER, "web", &web),
        ("docker", "web", &there),
        (DRIVER, &id, &web),
        // An id says all; the driver is the default of whoever asks.
        ("docker", &id, &web),
        (DRIVER, &long[..5], &there),
        (DRIVER, &long[..28], &there),
    ] {
        let found = hand.0.find_sandbox(driver, reference).await.unwrap();
        assert_eq!(found, *expected, "{driver}:{reference}");
    }
    let longer = format!("{id}0");
    for reference in ["", "we", "webb", "WEB", &longer, &id.to_uppercase(), "snp0", "x"] {
        assert_sandbox_missing(hand.0.find_sandbox(DRIVER, reference).await, reference);
    }
    assert_sandbox_missing(hand.0.find_sandbox("ssh", "web").await, "web");
    let nobody = sandbox_id(77);
    assert_sandbox_missing(hand.0.sandbox(nobody).await, &nobody.to_string());
}

pub async fn a_snapshot_is_found_by_id_name_and_prefix(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    let first = SnapshotRecord { id: SnapshotId::from_u128(beginning_with(3)), ..snapshot(0, 1) };
    // The name looks like the beginning of the other's id, and is this one's all the same.
    let second = SnapshotRecord {
        id: SnapshotId::from_u128(beginning_with(4)),
        name: name(&first.id.to_string()[..6]),
        ..snapshot(0, 1)
    };
    hand.take(&first).await;
    hand.take(&second).await;
    let id = first.id.to_string();
    for (reference, expected) in [
        (id.as_str(), &first),
        ("snap-0", &first),
        (&id[..5], &first),
        (&id[..7], &first),
        (&id[..6], &second),
        (&second.id.to_string(), &second),
    ] {
        let found = hand.0.find_snapshot(reference).await.unwrap();
        assert_eq!(found.id, expected.id, "{reference}");
    }
    for reference in ["", "snap-", "snap-00", "sbx0", "SNAP-0"] {
        assert_snapshot_missing(hand.0.find_snapshot(reference).await, reference);
    }
    let nobody = snapshot_id(77);
    assert_snapshot_missing(hand.0.snapshot(nobody).await, &nobody.to_string());
    assert_snapshot_missing(hand.0.agent_state(nobody).await, &nobody.to_string());
}

fn assert_ambiguous<T: std::fmt::Debug>(result: CatalogResult<T>, wanted: &str, of: &[String]) {
    match result {
        Err(CatalogError::Ambiguous { reference, matches }) => {
            assert_eq!((reference.as_str(), matches.as_slice()), (wanted, of));
        }
        other => panic!("expected {wanted} to be ambiguous, got {other:?}"),
    }
}

pub async fn an_ambiguous_prefix_lists_some_matches(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    for number in [4, 2, 5, 3] {
        hand.add(&sandbox(number)).await;
        hand.take(&snapshot(number, number)).await;
    }
    let sandboxes = [2, 3, 4].map(|number| sandbox_id(number).to_string());
    let snapshots = [2, 3, 4].map(|number| snapshot_id(number).to_string());
    for length in [1, 3, 10, 28] {
        let prefix = &sandboxes[0][..length];
        assert_ambiguous(hand.0.find_sandbox(DRIVER, prefix).await, prefix, &sandboxes);
        assert_ambiguous(hand.0.find_former_sandbox(DRIVER, prefix).await, prefix, &sandboxes);
        let prefix = &snapshots[0][..length];
        assert_ambiguous(hand.0.find_snapshot(prefix).await, prefix, &snapshots);
    }
    // With two left there are two to list.
    for number in [2, 3] {
        hand.delete(number).await;
    }
    let left = [4, 5].map(|number| snapshot_id(number).to_string());
    assert_ambiguous(hand.0.find_snapshot("snp").await, "snp", &left);
}

pub async fn nothing_in_a_reference_is_a_wildcard(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&named_sandbox(1, "web")).await;
    let named = SnapshotRecord { sandbox_name: Some(name("web")), ..snapshot(1, 1) };
    hand.take(&named).await;
    let odd = ["%", "_", "*", "sbx%", "snp%", "sbx_", "snp*", "sbx?", "w%", "we_", "[a-z]", "\\"];
    let odder = ["sbx0' OR 1=1 --", "sbx0\0", "\0", "sbx\u{10ffff}", "~", "web ", " web", "\u{e9}"];
    for reference in odd.into_iter().chain(odder) {
        assert_sandbox_missing(hand.0.find_sandbox(DRIVER, reference).await, reference);
        assert_snapshot_missing(hand.0.find_snapshot(reference).await, reference);
        assert_eq!(hand.0.find_former_sandbox(DRIVER, reference).await.unwrap(), None);
    }
}

pub async fn a_former_sandbox_is_found_by_its_snapshots(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    let find = async |driver: &str, reference: &str| {
        hand.0.find_former_sandbox(driver, reference).await.unwrap()
    };
    for number in [3, 2] {
        hand.add(&named_sandbox(number, "web")).await;
        let named = SnapshotRecord { sandbox_name: Some(name("web")), ..snapshot(number, number) };
        hand.take(&named).await;
        hand.destroy(number).await;
    }
    let (earlier, latest) = (sandbox_id(3), sandbox_id(2));
    assert_eq!(find(DRIVER, "web").await, Some(latest), "the latest wins");
    assert_eq!(find("docker", "web").await, None);
    assert_eq!(find(DRIVER, &earlier.to_string()).await, Some(earlier));
    assert_eq!(find("docker", &earlier.to_string()).await, Some(earlier));
    for unknown in ["", "we", "webb", &sandbox_id(9).to_string()] {
        assert_eq!(find(DRIVER, unknown).await, None, "{unknown:?}");
    }
    hand.delete(2).await;
    assert_eq!(find(DRIVER, "web").await, Some(earlier));
    assert_eq!(find(DRIVER, "sbx").await, Some(earlier));
    hand.delete(3).await;
    assert_eq!(find(DRIVER, "web").await, None);
    assert_eq!(find(DRIVER, "sbx").await, None);
}
