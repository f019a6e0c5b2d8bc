//! Lists, their filters and their pages.

use forkpoint_core::{
    catalog::{
        CandidateQuery, CandidateScope, Cursor, LineageScope, Page, SandboxQuery, SandboxRecord,
        SnapshotQuery, SnapshotRecord, Usage,
    },
    driver::SnapshotKind,
    retention::RetentionPolicy,
    trigger::Trigger,
};

use super::scene::*;
use crate::CatalogOpener;

fn sandbox_numbers(page: &Page<SandboxRecord>) -> Vec<u64> {
    let number = |record: &SandboxRecord| (0..100).find(|&n| sandbox_id(n) == record.id).unwrap();
    page.items.iter().map(number).collect()
}

fn snapshot_numbers(page: &Page<SnapshotRecord>) -> Vec<u64> {
    let number = |record: &SnapshotRecord| (0..100).find(|&n| snapshot_id(n) == record.id).unwrap();
    page.items.iter().map(number).collect()
}

async fn page_of_snapshots(
    hand: &Hand,
    limit: usize,
    after: Option<Cursor>,
) -> Page<SnapshotRecord> {
    let query = SnapshotQuery { limit: Some(limit), after, ..SnapshotQuery::default() };
    hand.0.snapshots(&query).await.unwrap()
}

pub async fn sandboxes_come_in_order_and_by_page(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    for number in [5, 3, 4, 1] {
        hand.add(&sandbox(number)).await;
    }
    let everything = hand.0.sandboxes(&SandboxQuery::default()).await.unwrap();
    assert_eq!(sandbox_numbers(&everything), [5, 3, 4, 1]);
    assert_eq!(everything.next, None);
    for (limit, pages) in [
        (1, vec![vec![5], vec![3], vec![4], vec![1]]),
        (2, vec![vec![5, 3], vec![4, 1]]),
        (3, vec![vec![5, 3, 4], vec![1]]),
        (4, vec![vec![5, 3, 4, 1]]),
        (usize::MAX - 1, vec![vec![5, 3, 4, 1]]),
    ] {
        let (mut after, mut got) = (None, Vec::new());
        loop {
            let query = SandboxQuery { limit: Some(limit), after, ..SandboxQuery::default() };
            let page = hand.0.sandboxes(&query).await.unwrap();
            got.push(sandbox_numbers(&page));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(got, pages, "by {limit}");
    }
    let nothing = SandboxQuery { limit: Some(0), ..SandboxQuery::default() };
    let nothing = hand.0.sandboxes(&nothing).await.unwrap();
    assert_eq!((nothing.items, nothing.next), (vec![], None));
}

pub async fn sandboxes_are_filtered(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    let labelled = |number, driver: &str, pairs: &[(&str, &str)]| SandboxRecord {
        driver: driver.to_owned(),
        labels: labels(pairs),
        ..sandbox(number)
    };
    hand.add(&labelled(1, DRIVER, &[("team", "a"), ("tier", "web")])).await;
    hand.add(&labelled(2, "docker", &[("team", "a")])).await;
    hand.add(&labelled(3, DRIVER, &[("team", "b"), ("tier", "web")])).await;
    hand.add(&labelled(4, DRIVER, &[])).await;
    for (driver, pairs, expected) in [
        (Some(DRIVER), &[][..], vec![1, 3, 4]),
        (Some("ssh"), &[], vec![]),
        (None, &[("team", "a")], vec![1, 2]),
        (None, &[("team", "a"), ("tier", "web")], vec![1]),
        (Some("docker"), &[("team", "a")], vec![2]),
        (None, &[("team", "%")], vec![]),
        (None, &[("team", "")], vec![]),
        (None, &[("Team", "a")], vec![]),
    ] {
        let driver = driver.map(str::to_owned);
        let query = SandboxQuery { driver, labels: labels(pairs), ..SandboxQuery::default() };
        let page = hand.0.sandboxes(&query).await.unwrap();
        assert_eq!(sandbox_numbers(&page), expected, "{query:?}");
    }
}

pub async fn sandboxes_whose_time_is_over_are_found(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    for (number, expires) in [(1, None), (2, Some(at(50))), (3, Some(at(10))), (4, Some(at(51)))] {
        hand.add(&SandboxRecord { expires, ..sandbox(number) }).await;
    }
    for (moment, expected) in [(at(9), vec![]), (at(10), vec![3]), (at(50), vec![2, 3])] {
        let query = SandboxQuery { expired: Some(moment), ..SandboxQuery::default() };
        let page = hand.0.sandboxes(&query).await.unwrap();
        assert_eq!(sandbox_numbers(&page), expected, "{query:?}");
    }
}

/// Snapshots that differ in everything that a query can ask for.
async fn variety(hand: &Hand) {
    hand.add(&sandbox(1)).await;
    hand.add(&SandboxRecord { driver: "docker".to_owned(), ..sandbox(2) }).await;
    let run = |text: &str| Some(text.to_owned());
    for record in [
        SnapshotRecord { trigger: Trigger::RunStart, run_id: run("r1"), ..snapshot(1, 1) },
        SnapshotRecord { kind: SnapshotKind::Full, run_id: run("r2"), ..snapshot(2, 1) },
        SnapshotRecord {
            driver: "docker".to_owned(),
            labels: labels(&[("task", "x"), ("by", "caf\u{e9} \u{1f980}")]),
            ..snapshot(3, 2)
        },
        SnapshotRecord { labels: labels(&[("task", "x")]), run_id: run("r1"), ..snapshot(4, 1) },
        SnapshotRecord {
            driver: "docker".to_owned(),
            trigger: Trigger::RunStart,
            labels: labels(&[("task", "y")]),
            ..snapshot(5, 2)
        },
    ] {
        hand.take(&record).await;
    }
}

pub async fn snapshots_are_filtered(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    variety(&hand).await;
    let all = SnapshotQuery::default;
    let run = |text: &str| Some(text.to_owned());
    for (query, expected) in [
        (all(), vec![5, 4, 3, 2, 1]),
        (SnapshotQuery { sandbox: Some(sandbox_id(1)), ..all() }, vec![4, 2, 1]),
        (SnapshotQuery { sandbox: Some(sandbox_id(3)), ..all() }, vec![]),
        (SnapshotQuery { driver: run("docker"), ..all() }, vec![5, 3]),
        (SnapshotQuery { trigger: Some(Trigger::RunStart), ..all() }, vec![5, 1]),
        (SnapshotQuery { trigger: Some(Trigger::OnError), ..all() }, vec![]),
        (SnapshotQuery { kind: Some(SnapshotKind::Full), ..all() }, vec![2]),
        (SnapshotQuery { run_id: run("r1"), ..all() }, vec![4, 1]),
        (SnapshotQuery { run_id: run("r%"), ..all() }, vec![]),
        (SnapshotQuery { labels: labels(&[("task", "x")]), ..all() }, vec![4, 3]),
        (SnapshotQuery { labels: labels(&[("by", "caf\u{e9} \u{1f980}")]), ..all() }, vec![3]),
        (
            SnapshotQuery {
                labels: labels(&[("task", "x"), ("by", "caf\u{e9} \u{1f980}")]),
                ..all()
            },
            vec![3],
        ),
        (SnapshotQuery { labels: labels(&[("by", "caf\u{e9}")]), ..all() }, vec![]),
        (
            SnapshotQuery {
                sandbox: Some(sandbox_id(1)),
                run_id: run("r1"),
                labels: labels(&[("task", "x")]),
                ..all()
            },
            vec![4],
        ),
        (
            SnapshotQuery {
                driver: run("docker"),
                trigger: Some(Trigger::RunStart),
                kind: Some(SnapshotKind::Files),
                ..all()
            },
            vec![5],
        ),
    ] {
        let page = hand.0.snapshots(&query).await.unwrap();
        assert_eq!((snapshot_numbers(&page), page.next), (expected, None), "{query:?}");
        let first = SnapshotQuery { limit: Some(1), ..query };
        let mut paged = Vec::new();
        let mut after = None;
        loop {
            let page = hand.0.snapshots(&SnapshotQuery { after, ..first.clone() }).await.unwrap();
            paged.extend(snapshot_numbers(&page));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(
            paged,
            snapshot_numbers(
                &hand.0.snapshots(&SnapshotQuery { limit: None, ..first }).await.unwrap()
            )
        );
    }
}

pub async fn snapshots_come_newest_first_and_by_page(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    // Neither ids nor times decide, but the order of commits.
    for number in [7, 2, 9, 4, 1] {
        hand.take(&snapshot(number, 1)).await;
    }
    for (limit, pages) in [
        (1, vec![vec![1], vec![4], vec![9], vec![2], vec![7]]),
        (2, vec![vec![1, 4], vec![9, 2], vec![7]]),
        (4, vec![vec![1, 4, 9, 2], vec![7]]),
        (5, vec![vec![1, 4, 9, 2, 7]]),
    ] {
        let (mut after, mut got) = (None, Vec::new());
        loop {
            let page = page_of_snapshots(&hand, limit, after).await;
            got.push(snapshot_numbers(&page));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(got, pages, "by {limit}");
    }
    assert_eq!(page_of_snapshots(&hand, 0, None).await, Page { items: vec![], next: None });
    let from_the_end = page_of_snapshots(&hand, 9, Some(Cursor(u64::MAX))).await;
    assert_eq!(snapshot_numbers(&from_the_end), [1, 4, 9, 2, 7]);
    let beyond = page_of_snapshots(&hand, 9, Some(Cursor(0))).await;
    assert_eq!(beyond, Page { items: vec![], next: None });
}

pub async fn a_page_is_not_disturbed_by_what_is_committed_meanwhile(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    for number in 1..=6 {
        hand.take(&snapshot(number, 1)).await;
    }
    let first = page_of_snapshots(&hand, 2, None).await;
    assert_eq!(snapshot_numbers(&first), [6, 5]);
    hand.take(&snapshot(7, 1)).await;
    // The one that the cursor stands on goes, and one that is still to come.
    hand.delete(5).await;
    hand.delete(3).await;
    let second = page_of_snapshots(&hand, 2, first.next).await;
    assert_eq!(snapshot_numbers(&second), [4, 2]);
    hand.take(&snapshot(8, 1)).await;
    let third = page_of_snapshots(&hand, 2, second.next).await;
    assert_eq!((snapshot_numbers(&third), third.next), (vec![1], None));

    // A place is never given twice, even when the newest has gone.
    hand.delete(8).await;
    let before = page_of_snapshots(&hand, 1, None).await;
    hand.take(&snapshot(9, 1)).await;
    let after = page_of_snapshots(&hand, 1, None).await;
    assert!(after.next > before.next);
}

pub async fn an_empty_catalog_answers_everything(fixture: &dyn CatalogOpener) {
    let catalog = Hand::open(fixture).0;
    assert_eq!(catalog.unfinished().await.unwrap(), []);
    assert_eq!(catalog.chores().await.unwrap(), []);
    assert_eq!(catalog.sandboxes(&SandboxQuery::default()).await.unwrap().items, []);
    assert_eq!(catalog.snapshots(&SnapshotQuery::default()).await.unwrap().items, []);
    assert_eq!(catalog.lineage(&LineageScope::Everything).await.unwrap(), []);
    assert_eq!(catalog.usage().await.unwrap(), Usage::default());
    assert_eq!(catalog.pieces(DRIVER).await.unwrap(), []);
    assert_eq!(catalog.find_former_sandbox(DRIVER, "x").await.unwrap(), None);
    for scope in [CandidateScope::Due, CandidateScope::Oldest] {
        let policy = RetentionPolicy { max_per_sandbox: Some(1), ..RetentionPolicy::default() };
        let query = CandidateQuery { policy, now: at(0), scope, after: None, limit: 10 };
        assert_eq!(catalog.candidates(&query).await.unwrap(), []);
    }
}
