//! Which snapshot came from which, with those that were deleted.

use forkpoint_core::{
    catalog::{LineageScope, SnapshotRecord},
    lineage::LineageNode,
};

use super::scene::*;
use crate::CatalogOpener;

/// The numbers of the snapshots, deleted ones as negative.
async fn numbers(hand: &Hand, scope: LineageScope) -> Vec<i64> {
    let number = |node: LineageNode| {
        let number = (0..100).find(|&number| snapshot_id(number) == node.id).unwrap().cast_signed();
        if node.deleted { -number } else { number }
    };
    hand.0.lineage(&scope).await.unwrap().into_iter().map(number).collect()
}

/// Snapshots of sandbox 1, each with its parent, in this order.
async fn grow(hand: &Hand, tree: &[(u64, Option<u64>)]) {
    hand.add(&sandbox(1)).await;
    for &(number, parent) in tree {
        let parent = parent.map(snapshot_id);
        hand.take(&SnapshotRecord { parent, ..snapshot(number, 1) }).await;
    }
}

pub async fn scopes_answer_in_the_order_of_commits(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    // Ids do not follow the order of commits.
    grow(&hand, &[(9, None), (5, Some(9)), (7, None), (2, Some(9)), (6, Some(2)), (1, Some(5))])
        .await;
    assert_eq!(numbers(&hand, LineageScope::Everything).await, [9, 5, 7, 2, 6, 1]);
    for (scope, expected) in [
        (LineageScope::Ancestors(snapshot_id(6)), vec![9, 2, 6]),
        (LineageScope::Ancestors(snapshot_id(9)), vec![9]),
        (LineageScope::Tree(snapshot_id(6)), vec![9, 5, 2, 6, 1]),
        (LineageScope::Tree(snapshot_id(9)), vec![9, 5, 2, 6, 1]),
        (LineageScope::Tree(snapshot_id(7)), vec![7]),
        (LineageScope::Children(snapshot_id(9)), vec![5, 2]),
        (LineageScope::Children(snapshot_id(6)), vec![]),
        (LineageScope::Ancestors(snapshot_id(42)), vec![]),
        (LineageScope::Tree(snapshot_id(42)), vec![]),
        (LineageScope::Children(snapshot_id(42)), vec![]),
    ] {
        assert_eq!(numbers(&hand, scope).await, expected, "{scope:?}");
    }
    // The deleted ones keep their places in every scope.
    hand.delete(9).await;
    hand.delete(2).await;
    for (scope, expected) in [
        (LineageScope::Everything, vec![-9, 5, 7, -2, 6, 1]),
        (LineageScope::Ancestors(snapshot_id(6)), vec![-9, -2, 6]),
        (LineageScope::Ancestors(snapshot_id(2)), vec![-9, -2]),
        (LineageScope::Tree(snapshot_id(1)), vec![-9, 5, -2, 6, 1]),
        (LineageScope::Tree(snapshot_id(2)), vec![-9, 5, -2, 6, 1]),
        (LineageScope::Children(snapshot_id(9)), vec![5, -2]),
        (LineageScope::Children(snapshot_id(2)), vec![6]),
    ] {
        assert_eq!(numbers(&hand, scope).await, expected, "{scope:?}");
    }
}

pub async fn a_deleted_parent_is_remembered_while_a_child_lives(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&named_sandbox(1, "web")).await;
    let first = SnapshotRecord {
        sandbox_name: Some(name("web")),
        description: Some("before the storm".to_owned()),
        ..snapshot(1, 1)
    };
    hand.take(&first).await;
    let node = hand.0.lineage(&LineageScope::Everything).await.unwrap().remove(0);
    let SnapshotRecord { id, name, sandbox, sandbox_name, kind, trigger, .. } = first.clone();
    let SnapshotRecord { parent, description, own_bytes, created, .. } = first;
    let expected = LineageNode {
        id,
        parent,
        name,
        sandbox,
        sandbox_name,
        kind,
        trigger,
        description,
        own_bytes,
        created,
        deleted: false,
    };
    assert_eq!(node, expected);

    hand.take(&child_of(1, snapshot(2, 1))).await;
    hand.destroy(1).await;
    hand.delete(1).await;
    let nodes = hand.0.lineage(&LineageScope::Everything).await.unwrap();
    assert_eq!(nodes[0], LineageNode { deleted: true, ..expected });
    assert_eq!(nodes.len(), 2);
    hand.delete(2).await;
    assert_eq!(hand.0.lineage(&LineageScope::Everything).await.unwrap(), []);
}

pub async fn a_deleted_head_is_remembered_while_its_sandbox_stands_there(
    fixture: &dyn CatalogOpener,
) {
    let hand = Hand::open(fixture);
    grow(&hand, &[(1, None), (2, None)]).await;
    hand.delete(2).await;
    assert_eq!(numbers(&hand, LineageScope::Everything).await, [1, -2]);
    hand.roll_back(1, 1).await;
    assert_eq!(numbers(&hand, LineageScope::Everything).await, [1], "it moved");

    hand.delete(1).await;
    assert_eq!(numbers(&hand, LineageScope::Everything).await, [-1]);
    hand.take(&child_of(1, snapshot(3, 1))).await;
    assert_eq!(numbers(&hand, LineageScope::Everything).await, [-1, 3], "it grew");
    hand.delete(3).await;
    assert_eq!(numbers(&hand, LineageScope::Everything).await, [-1, -3]);
    hand.destroy(1).await;
    assert_eq!(numbers(&hand, LineageScope::Everything).await, [0; 0], "it is gone");
}

pub async fn forgetting_goes_up_to_the_next_that_is_needed(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    grow(&hand, &[(1, None), (2, Some(1)), (3, Some(2)), (4, Some(3)), (5, Some(2))]).await;
    hand.destroy(1).await;
    for (delete, left) in [
        (1, vec![-1, 2, 3, 4, 5]),
        (3, vec![-1, 2, -3, 4, 5]),
        (2, vec![-1, -2, -3, 4, 5]),
        (4, vec![-1, -2, 5]),
        (5, vec![]),
    ] {
        hand.delete(delete).await;
        assert_eq!(numbers(&hand, LineageScope::Everything).await, left, "after {delete}");
    }
}
