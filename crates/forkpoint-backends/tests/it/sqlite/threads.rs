//! Several handles at work at the same time.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use forkpoint_core::catalog::{CatalogError, Change, SnapshotQuery};
use forkpoint_testkit::conformance::catalog::scene::{
    Hand, deletion, sandbox, snapshot, snapshot_id, snapshotting, taken,
};
use futures::executor::block_on;

use super::Directory;

const THREADS: u64 = 4;
const ROUNDS: u64 = 60;
const SANDBOXES: u64 = 2;

/// Takes and deletes snapshots of sandboxes that the others want as well.
async fn hammer(hand: &Hand, thread: u64, inside: &[AtomicBool], taken_in_all: &AtomicU64) {
    for round in 0..ROUNDS {
        let number = 1000 * (thread + 1) + round;
        let of = (thread + round) % SANDBOXES;
        let record = snapshot(number, of);
        let claim = loop {
            match hand.0.begin(&snapshotting(&record)).await {
                Ok(claim) => break claim,
                Err(CatalogError::Busy { .. }) => thread::yield_now(),
                Err(err) => panic!("{err:?}"),
            }
        };
        assert!(!inside[of as usize].swap(true, Ordering::SeqCst), "two in one sandbox");
        hand.0.snapshots(&SnapshotQuery::default()).await.unwrap();
        inside[of as usize].store(false, Ordering::SeqCst);
        if round % 3 == 0 {
            hand.0.abort(&claim).await.unwrap();
            continue;
        }
        hand.0.commit(&claim, &taken(&record)).await.unwrap();
        taken_in_all.fetch_add(1, Ordering::SeqCst);
        if round % 3 == 1 {
            let claim = hand.begin(&deletion(number)).await;
            let change = Change::SnapshotDeleted { snapshot: snapshot_id(number) };
            hand.0.commit(&claim, &change).await.unwrap();
            taken_in_all.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn handles_exclude_each_other_and_lose_nothing() {
    let directory = Directory::new();
    let hand = Hand::open(&directory);
    for number in 0..SANDBOXES {
        block_on(hand.add(&sandbox(number)));
    }
    let inside = [const { AtomicBool::new(false) }; SANDBOXES as usize];
    let taken_in_all = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (directory, inside, taken) = (&directory, &inside, &taken_in_all);
            scope.spawn(move || block_on(hammer(&Hand::open(directory), thread, inside, taken)));
        }
    });
    assert_eq!(block_on(hand.0.usage()).unwrap().snapshots, taken_in_all.into_inner());
    assert_eq!(block_on(hand.0.unfinished()).unwrap(), []);
    let page = block_on(hand.0.snapshots(&SnapshotQuery::default())).unwrap();
    assert_eq!(page.items.len(), (THREADS * ROUNDS / 3) as usize);
}
