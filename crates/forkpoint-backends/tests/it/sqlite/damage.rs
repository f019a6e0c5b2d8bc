//! Whatever a disk does to the file: an answer or an error, never a panic, never a wrong turn.

use std::{fs, path::Path};

use forkpoint_backends::catalog::SqliteCatalog;
use forkpoint_core::{
    catalog::{
        CandidateQuery, CandidateScope, Catalog, CatalogError, CatalogResult, Change, LineageScope,
        SandboxQuery, SnapshotQuery, SnapshotRecord,
    },
    error::Chain,
    retention::RetentionPolicy,
};
use forkpoint_testkit::conformance::catalog::scene::{
    DRIVER, Hand, at, child_of, creation, deletion, destruction, labels, named_sandbox, sandbox,
    sandbox_id, snapshot, snapshot_id, snapshotting, taken, with_pieces,
};
use futures::executor::block_on;

use super::Directory;

const FLIPS: u64 = 100;
const CUTS: u64 = 40;

/// Something in every table.
async fn fill(hand: &Hand) {
    hand.add(&named_sandbox(1, "web")).await;
    hand.add(&sandbox(2)).await;
    for number in 1..=40 {
        let (name, below) = (format!("p{number}"), format!("p{}", number - 1));
        let over = (number > 1).then_some(below.as_str());
        let record = SnapshotRecord {
            labels: labels(&[("task", ["a", "b"][number as usize % 2])]),
            expires: (number % 5 == 0).then(|| at(50)),
            description: Some("x".repeat(500)),
            ..with_pieces(snapshot(number, 1), &[(&name, over)])
        };
        let record = if number > 1 { child_of(number - 1, record) } else { record };
        let agent_state = Some(vec![7; 1000].into());
        let change = Change::SnapshotTaken { snapshot: Box::new(record.clone()), agent_state };
        hand.run(&snapshotting(&record), &change).await;
    }
    hand.take(&with_pieces(snapshot(50, 2), &[("q", None)])).await;
    for number in [3, 7, 50] {
        hand.delete(number).await;
    }
    hand.destroy(2).await;
    hand.begin(&creation(&named_sandbox(9, "half-made"))).await;
}

/// Everything that can be asked and done; answers with the errors.
async fn exercise(catalog: &dyn Catalog) -> Vec<CatalogError> {
    let mut errors = Vec::new();
    read(catalog, &mut errors).await;
    let mut note = |result: CatalogResult<()>| errors.extend(result.err());
    let record = snapshot(60, 1);
    match catalog.begin(&snapshotting(&record)).await {
        Ok(claim) => note(catalog.commit(&claim, &taken(&record)).await.map(drop)),
        Err(err) => note(Err(err)),
    }
    match catalog.begin(&deletion(20)).await {
        Ok(claim) => {
            let change = Change::SnapshotDeleted { snapshot: snapshot_id(20) };
            note(catalog.commit(&claim, &change).await.map(drop));
        }
        Err(err) => note(Err(err)),
    }
    match catalog.begin(&destruction(1)).await {
        Ok(claim) => {
            let change = Change::SandboxRemoved { sandbox: sandbox_id(1) };
            note(catalog.commit(&claim, &change).await.map(drop));
        }
        Err(err) => note(Err(err)),
    }
    errors
}

async fn read(catalog: &dyn Catalog, errors: &mut Vec<CatalogError>) {
    let mut note = |result: CatalogResult<()>| errors.extend(result.err());
    match catalog.unfinished().await {
        Ok(open) => {
            for open in open {
                note(catalog.reclaim(&open.claim).await.map(drop));
            }
        }
        Err(err) => note(Err(err)),
    }
    note(catalog.chores().await.map(drop));
    note(catalog.sandbox(sandbox_id(1)).await.map(drop));
    note(catalog.find_sandbox(DRIVER, "web").await.map(drop));
    note(catalog.find_former_sandbox(DRIVER, "sbx").await.map(drop));
    note(catalog.sandboxes(&SandboxQuery::default()).await.map(drop));
    note(catalog.find_snapshot("snap-4").await.map(drop));
    note(catalog.find_snapshot("snp").await.map(drop));
    note(catalog.snapshots(&SnapshotQuery::default()).await.map(drop));
    let labelled = SnapshotQuery { labels: labels(&[("task", "a")]), ..SnapshotQuery::default() };
    note(catalog.snapshots(&labelled).await.map(drop));
    note(catalog.agent_state(snapshot_id(4)).await.map(drop));
    for scope in [
        LineageScope::Everything,
        LineageScope::Ancestors(snapshot_id(40)),
        LineageScope::Tree(snapshot_id(20)),
        LineageScope::Children(snapshot_id(3)),
    ] {
        note(catalog.lineage(&scope).await.map(drop));
    }
    note(catalog.usage().await.map(drop));
    note(catalog.pieces(DRIVER).await.map(drop));
    for scope in [CandidateScope::Due, CandidateScope::Oldest] {
        let policy = RetentionPolicy { max_per_sandbox: Some(5), ..RetentionPolicy::default() };
        let query = CandidateQuery { policy, now: at(60), scope, after: None, limit: 20 };
        note(catalog.candidates(&query).await.map(drop));
    }
}

/// How many errors came of it. A panic of a catalog's thread shows as an error of its own.
fn survive(path: &Path) -> usize {
    let errors = match SqliteCatalog::open(path) {
        Ok(catalog) => block_on(exercise(&catalog)),
        Err(err) => vec![err],
    };
    for err in &errors {
        let shown = Chain(err).to_string();
        assert!(!shown.contains("has stopped"), "{shown}");
    }
    errors.len()
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

fn valid_bytes() -> Vec<u8> {
    let directory = Directory::new();
    let hand = Hand::open(&directory);
    block_on(fill(&hand));
    drop(hand);
    // Else most of it is in the log.
    directory.tamper("PRAGMA wal_checkpoint(TRUNCATE)");
    fs::read(directory.file()).unwrap()
}

#[test]
fn flipped_bytes_are_survived() {
    let (valid, mut dice) = (valid_bytes(), Dice(1));
    let mut noticed = 0;
    for _ in 0..FLIPS {
        let directory = Directory::new();
        let mut bytes = valid.clone();
        for _ in 0..=dice.below(20) {
            // Half of them where the pages have their structure.
            let at = dice.below(bytes.len());
            let at = if dice.below(2) == 0 { at } else { at / 4096 * 4096 + at % 64 };
            bytes[at] ^= 1 << dice.below(8);
        }
        fs::write(directory.file(), bytes).unwrap();
        noticed += usize::from(survive(&directory.file()) > 0);
    }
    assert!(noticed > FLIPS as usize / 4, "{noticed} of {FLIPS}");
}

#[test]
fn a_file_cut_short_is_survived() {
    let (valid, mut dice) = (valid_bytes(), Dice(2));
    for _ in 0..CUTS {
        let directory = Directory::new();
        let length = dice.below(valid.len());
        fs::write(directory.file(), &valid[..length]).unwrap();
        let errors = survive(&directory.file());
        assert!(errors > 0 || length == 0, "{length} of {} bytes", valid.len());
    }
}

#[test]
fn an_undamaged_file_gives_no_errors() {
    let directory = Directory::new();
    fs::write(directory.file(), valid_bytes()).unwrap();
    // One: `snp` could be any of the snapshots.
    assert_eq!(survive(&directory.file()), 1);
}

#[test]
fn a_row_that_does_not_decode_is_damage() {
    for sql in [
        "UPDATE snapshot SET artifact = '{' WHERE id LIKE '%1'",
        "UPDATE snapshot SET labels = '{\"a\":7}' WHERE id LIKE '%1'",
        "UPDATE snapshot SET created = 'yesterday' WHERE id LIKE '%1'",
        "UPDATE snapshot SET kind = 'most' WHERE id LIKE '%1'",
        "UPDATE snapshot SET trigger = 'boredom' WHERE id LIKE '%1'",
        "UPDATE snapshot SET parent = 'snp' WHERE id LIKE '%1'",
        "UPDATE snapshot SET name = '../x' WHERE id LIKE '%1'",
        "UPDATE snapshot SET description = CAST(x'ff' AS TEXT) WHERE id LIKE '%1'",
        "ALTER TABLE snapshot RENAME TO snapshots",
        "ALTER TABLE snapshot RENAME COLUMN step TO pace",
    ] {
        let directory = Directory::new();
        let hand = Hand::open(&directory);
        block_on(hand.add(&sandbox(1)));
        block_on(hand.take(&snapshot(1, 1)));
        directory.tamper(sql);
        match block_on(hand.0.snapshots(&SnapshotQuery::default())).unwrap_err() {
            CatalogError::Damaged { place, reason } => {
                assert!(place.ends_with("catalog.db") && !reason.is_empty(), "{sql}: {reason}");
            }
            other => panic!("expected damage after {sql}, got {other:?}"),
        }
    }
}
