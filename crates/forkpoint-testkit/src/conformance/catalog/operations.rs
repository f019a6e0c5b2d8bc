//! Operations from their beginning to their end.

use forkpoint_core::catalog::{
    CatalogError, Claim, LineageScope, Reclaimed, SandboxQuery, SnapshotQuery, Usage,
};

use super::scene::*;
use crate::CatalogOpener;

pub async fn nothing_is_visible_before_its_commit(fixture: &dyn CatalogOpener) {
    let (hand, other) = (Hand::open(fixture), Hand::open(fixture));
    let web = named_sandbox(1, "web");
    let claim = hand.begin(&creation(&web)).await;
    for catalog in [&hand.0, &other.0] {
        let missing = catalog.sandbox(web.id).await.unwrap_err();
        assert!(matches!(missing, CatalogError::SandboxMissing { .. }), "{missing:?}");
        let missing = catalog.find_sandbox(DRIVER, "web").await.unwrap_err();
        assert!(matches!(missing, CatalogError::SandboxMissing { .. }), "{missing:?}");
        assert_eq!(catalog.sandboxes(&SandboxQuery::default()).await.unwrap().items, []);
        assert_eq!(catalog.usage().await.unwrap(), Usage::default());
    }
    assert_eq!(hand.0.commit(&claim, &created(&web)).await.unwrap(), []);
    for catalog in [&hand.0, &other.0] {
        assert_eq!(catalog.sandbox(web.id).await.unwrap(), web);
        assert_eq!(catalog.unfinished().await.unwrap(), []);
    }

    let first = with_pieces(snapshot(1, 1), &[("a", None)]);
    let claim = hand.begin(&snapshotting(&first)).await;
    for catalog in [&hand.0, &other.0] {
        let missing = catalog.snapshot(first.id).await.unwrap_err();
        assert!(matches!(missing, CatalogError::SnapshotMissing { .. }), "{missing:?}");
        assert_eq!(catalog.snapshots(&SnapshotQuery::default()).await.unwrap().items, []);
        assert_eq!(catalog.lineage(&LineageScope::Everything).await.unwrap(), []);
        assert_eq!(catalog.pieces(DRIVER).await.unwrap(), []);
        assert_eq!(catalog.sandbox(web.id).await.unwrap().head, None);
    }
    hand.0.commit(&claim, &taken(&first)).await.unwrap();
    for catalog in [&hand.0, &other.0] {
        assert_eq!(catalog.snapshot(first.id).await.unwrap(), first);
        assert_eq!(catalog.sandbox(web.id).await.unwrap().head, Some(first.id));
    }
}

pub async fn an_aborted_operation_leaves_nothing(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    let web = named_sandbox(1, "web");
    let claim = hand.begin(&creation(&web)).await;
    hand.0.abort(&claim).await.unwrap();
    assert_eq!(hand.0.unfinished().await.unwrap(), []);
    assert_eq!(hand.0.usage().await.unwrap(), Usage::default());
    hand.add(&web).await;
    assert_eq!(hand.0.sandbox(web.id).await.unwrap(), web);
}

pub async fn an_operation_is_closed_once(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    let (web, operation) = (sandbox(1), creation(&sandbox(1)));
    let claim = hand.begin(&operation).await;
    hand.0.commit(&claim, &created(&web)).await.unwrap();
    let again = hand.0.commit(&claim, &created(&sandbox(2))).await;
    assert_lost(again, &operation);
    assert_lost(hand.0.abort(&claim).await, &operation);
    assert_eq!(hand.0.sandboxes(&SandboxQuery::default()).await.unwrap().items, [web]);

    let operation = creation(&sandbox(3));
    let claim = hand.begin(&operation).await;
    hand.0.abort(&claim).await.unwrap();
    assert_lost(hand.0.abort(&claim).await, &operation);
    assert_lost(hand.0.commit(&claim, &created(&sandbox(3))).await, &operation);
    assert_eq!(hand.0.usage().await.unwrap().sandboxes, 1);

    let never = creation(&sandbox(4));
    assert_lost(hand.0.abort(&Claim::first(never.id)).await, &never);
}

pub async fn another_owner_cannot_close_an_operation(fixture: &dyn CatalogOpener) {
    let (hand, other) = (Hand::open(fixture), Hand::open(fixture));
    let (web, operation) = (sandbox(1), creation(&sandbox(1)));
    let claim = hand.begin(&operation).await;
    assert_lost(other.0.commit(&claim, &created(&web)).await, &operation);
    assert_lost(other.0.abort(&claim).await, &operation);
    assert_eq!(other.0.usage().await.unwrap().sandboxes, 0);
    assert_eq!(hand.0.unfinished().await.unwrap().len(), 1);
    hand.0.commit(&claim, &created(&web)).await.unwrap();
    assert_eq!(other.0.usage().await.unwrap().sandboxes, 1);
}

pub async fn reclaiming_voids_the_older_claim(fixture: &dyn CatalogOpener) {
    let (hand, other) = (Hand::open(fixture), Hand::open(fixture));
    let (web, operation) = (sandbox(1), creation(&sandbox(1)));
    let first = hand.begin(&operation).await;
    assert_eq!(first, Claim { operation: operation.id, attempt: 1 });

    // By ourselves, as after a lost reply.
    let second = Claim { attempt: 2, ..first };
    assert_eq!(hand.0.reclaim(&first).await.unwrap(), Reclaimed::Ours(second));
    assert_lost(hand.0.commit(&first, &created(&web)).await, &operation);
    assert_lost(hand.0.abort(&first).await, &operation);

    // By another, as after our death; that we live is not the catalog's business.
    let third = Claim { attempt: 3, ..first };
    assert_eq!(other.0.reclaim(&second).await.unwrap(), Reclaimed::Ours(third));
    for stale in [first, second, third] {
        assert_lost(hand.0.commit(&stale, &created(&web)).await, &operation);
    }
    assert_eq!(other.0.usage().await.unwrap().sandboxes, 0);
    other.0.commit(&third, &created(&web)).await.unwrap();
    assert_eq!(other.0.usage().await.unwrap().sandboxes, 1);
}

pub async fn reclaiming_says_what_became_of_an_operation(fixture: &dyn CatalogOpener) {
    let (hand, other) = (Hand::open(fixture), Hand::open(fixture));
    let unknown = Claim::first(creation(&sandbox(9)).id);
    assert_eq!(hand.0.reclaim(&unknown).await.unwrap(), Reclaimed::Lost);

    let committed = hand.begin(&creation(&sandbox(1))).await;
    hand.0.commit(&committed, &created(&sandbox(1))).await.unwrap();
    for catalog in [&hand.0, &other.0] {
        assert_eq!(catalog.reclaim(&committed).await.unwrap(), Reclaimed::Committed);
        let later = Claim { attempt: 7, ..committed };
        assert_eq!(catalog.reclaim(&later).await.unwrap(), Reclaimed::Committed);
    }

    let aborted = hand.begin(&creation(&sandbox(2))).await;
    hand.0.abort(&aborted).await.unwrap();
    assert_eq!(hand.0.reclaim(&aborted).await.unwrap(), Reclaimed::Lost);

    let open = hand.begin(&creation(&sandbox(3))).await;
    let early = Claim { attempt: 2, ..open };
    assert_eq!(hand.0.reclaim(&early).await.unwrap(), Reclaimed::Lost);
    let Reclaimed::Ours(ours) = other.0.reclaim(&open).await.unwrap() else { panic!() };
    assert_eq!(hand.0.reclaim(&open).await.unwrap(), Reclaimed::Lost, "an older attempt");
    other.0.abort(&ours).await.unwrap();
}

pub async fn a_commit_is_remembered_for_a_while(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    let claim = hand.begin(&creation(&sandbox(1))).await;
    hand.0.commit(&claim, &created(&sandbox(1))).await.unwrap();
    for _ in 0..100 {
        hand.run(&destruction(1), &added(&[], None)).await;
    }
    assert_eq!(hand.0.reclaim(&claim).await.unwrap(), Reclaimed::Committed);
}

pub async fn unfinished_operations_come_oldest_first(fixture: &dyn CatalogOpener) {
    let (hand, other) = (Hand::open(fixture), Hand::open(fixture));
    let mut begun = Vec::new();
    for number in [3, 1, 2] {
        let operation = creation(&sandbox(number));
        let by = if number == 1 { &other } else { &hand };
        let claim = by.begin(&operation).await;
        begun.push((operation, claim, by.0.owner()));
    }
    // Taking over does not change the place.
    let Reclaimed::Ours(claim) = other.0.reclaim(&begun[0].1).await.unwrap() else { panic!() };
    (begun[0].1, begun[0].2) = (claim, other.0.owner());
    let unfinished = hand.0.unfinished().await.unwrap();
    let unfinished: Vec<_> =
        unfinished.into_iter().map(|open| (open.operation, open.claim, open.owner)).collect();
    assert_eq!(unfinished, begun);
}
