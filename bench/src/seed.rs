//! Catalogs that hold as much as is asked for.

use forkpoint_testkit::conformance::catalog::scene::{
    Hand, at, child_of, sandbox, snapshot, with_pieces,
};
use futures::executor::block_on;

pub const SANDBOXES: u64 = 100;

pub fn fill(hand: &Hand, size: u64) {
    eprintln!("filling a catalog with {size} snapshots");
    block_on(async {
        for number in 0..SANDBOXES {
            hand.add(&sandbox(number)).await;
        }
        for number in 0..size {
            take(hand, number).await;
        }
    });
}

/// One more snapshot of its sandbox, one piece over the last.
pub async fn take(hand: &Hand, number: u64) {
    let mut taken = snapshot(number, number % SANDBOXES);
    taken.created = at(number.cast_signed());
    taken.own_bytes = 4096;
    let (own, below) = (format!("p{number}"), number.checked_sub(SANDBOXES));
    let over = below.map(|below| format!("p{below}"));
    let mut taken = with_pieces(taken, &[(&own, over.as_deref())]);
    if let Some(below) = below {
        taken = child_of(below, taken);
    }
    hand.take(&taken).await;
}
