//! Who holds an operation, and whether they live.

use forkpoint_core::catalog::{CatalogError, OwnerState, Reclaimed};

use super::scene::*;
use crate::CatalogOpener;

pub async fn every_handle_is_an_owner_of_its_own(fixture: &dyn CatalogOpener) {
    let (one, two) = (Hand::open(fixture), Hand::open(fixture));
    assert_ne!(one.0.owner(), two.0.owner());
    let gone = one.0.owner();
    drop(one);
    assert_ne!(Hand::open(fixture).0.owner(), gone);
}

async fn states(hand: &Hand) -> Vec<OwnerState> {
    hand.0.unfinished().await.unwrap().iter().map(|open| open.owner_state).collect()
}

pub async fn an_owner_is_us_alive_or_gone(fixture: &dyn CatalogOpener) {
    use OwnerState::{Alive, Gone, Us};
    let (one, two, three) = (Hand::open(fixture), Hand::open(fixture), Hand::open(fixture));
    one.begin(&creation(&sandbox(1))).await;
    two.begin(&creation(&sandbox(2))).await;
    assert_eq!(states(&one).await, [Us, Alive]);
    assert_eq!(states(&two).await, [Alive, Us]);
    assert_eq!(states(&three).await, [Alive, Alive]);
    drop(one);
    assert_eq!(states(&two).await, [Gone, Us]);
    drop(two);
    assert_eq!(states(&three).await, [Gone, Gone]);
    assert_eq!(states(&Hand::open(fixture)).await, [Gone, Gone]);
}

pub async fn what_a_gone_owner_left_can_be_taken_over(fixture: &dyn CatalogOpener) {
    let (dying, hand, other) = (Hand::open(fixture), Hand::open(fixture), Hand::open(fixture));
    let operation = creation(&sandbox(1));
    dying.begin(&operation).await;
    drop(dying);
    let by = match hand.refusal(&creation(&sandbox(1))).await {
        CatalogError::Busy { by, .. } => by,
        other => panic!("expected a busy sandbox, got {other:?}"),
    };
    assert_eq!((by.owner_state, &by.operation), (OwnerState::Gone, &operation));
    let Reclaimed::Ours(claim) = hand.0.reclaim(&by.claim).await.unwrap() else { panic!() };
    assert_eq!(other.0.reclaim(&by.claim).await.unwrap(), Reclaimed::Lost);
    assert_eq!(states(&hand).await, [OwnerState::Us]);
    assert_eq!(states(&other).await, [OwnerState::Alive]);
    hand.0.abort(&claim).await.unwrap();
    hand.add(&sandbox(1)).await;
}
