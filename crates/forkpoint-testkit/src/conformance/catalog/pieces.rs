//! What platforms hold for us: until when, and how it is given back.

use forkpoint_core::{
    catalog::{CatalogError, Change, Chore, ChoreId, ChoreTask, SandboxRecord, SnapshotRecord},
    driver::{Piece, PieceName},
};

use super::scene::*;
use crate::CatalogOpener;

async fn pieces(hand: &Hand, driver: &str) -> Vec<String> {
    let pieces = hand.0.pieces(driver).await.unwrap();
    pieces.into_iter().map(|PieceName(name)| name).collect()
}

pub async fn chores_stay_until_they_are_done(fixture: &dyn CatalogOpener) {
    let (hand, other) = (Hand::open(fixture), Hand::open(fixture));
    hand.add(&sandbox(1)).await;
    hand.take(&with_pieces(snapshot(1, 1), &[("a", None)])).await;
    hand.take(&with_pieces(snapshot(2, 1), &[("b", None)])).await;
    let first = hand.delete(1).await;
    assert_eq!(discarded(&first), ["a"]);
    assert_eq!(first[0].driver, DRIVER);
    hand.delete(2).await;
    let second = hand.destroy(1).await;
    assert_eq!(discarded(&second), ["b"]);
    let both: Vec<Chore> = [first.clone(), second].concat();
    assert_eq!(other.0.chores().await.unwrap(), both);

    other.0.chore_done(first[0].id).await.unwrap();
    assert_eq!(hand.0.chores().await.unwrap(), both[1..]);
    other.0.chore_done(first[0].id).await.unwrap();
    other.0.chore_done(ChoreId(u64::MAX)).await.unwrap();
    assert_eq!(hand.0.chores().await.unwrap(), both[1..]);

    // A number is not given twice: striking off an old chore must not hit a new one.
    hand.0.chore_done(both[1].id).await.unwrap();
    hand.add(&sandbox(2)).await;
    hand.take(&with_pieces(snapshot(3, 2), &[("c", None)])).await;
    hand.delete(3).await;
    let third = hand.destroy(2).await;
    assert!(both.iter().all(|old| old.id < third[0].id));
}

pub async fn leftovers_become_chores(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    hand.take(&snapshot(1, 1)).await;
    let change = Change::SandboxesAdded {
        sandboxes: vec![sandbox(2)],
        from: Some(snapshot_id(1)),
        leftovers: vec![sandbox_id(4), sandbox_id(3)],
        at: at(0),
    };
    let chores = hand.run(&forking(1, &[sandbox(2), sandbox(3), sandbox(4)]), &change).await;
    let tasks: Vec<_> = chores.iter().map(|chore| chore.task.clone()).collect();
    let expected = [ChoreTask::Destroy(sandbox_id(4)), ChoreTask::Destroy(sandbox_id(3))];
    assert_eq!(tasks, expected);
    assert_eq!(hand.0.chores().await.unwrap(), chores);
    assert_eq!(hand.0.usage().await.unwrap().sandboxes, 2);
}

pub async fn a_commit_answers_with_its_own_chores_only(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    hand.take(&with_pieces(snapshot(1, 1), &[("a", None)])).await;
    hand.take(&with_pieces(snapshot(2, 1), &[("b", None)])).await;
    let later = hand.begin(&creation(&sandbox(2))).await;
    assert_eq!(discarded(&hand.delete(1).await), ["a"]);
    let chores = hand.0.commit(&later, &created(&sandbox(2))).await.unwrap();
    assert_eq!(discarded(&chores), [""; 0]);
}

pub async fn a_piece_goes_with_its_last_holder(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    hand.take(&with_pieces(snapshot(1, 1), &[("b", None), ("a", None)])).await;
    assert_eq!(pieces(&hand, DRIVER).await, ["a", "b"]);
    assert_eq!(hand.delete(1).await, [], "the sandbox stands on it");
    assert_eq!(pieces(&hand, DRIVER).await, ["a", "b"]);
    assert_eq!(discarded(&hand.destroy(1).await), ["b", "a"]);
    assert_eq!(pieces(&hand, DRIVER).await, [""; 0]);
    assert_eq!(hand.0.chores().await.unwrap().len(), 2);

    hand.add(&sandbox(2)).await;
    hand.take(&with_pieces(snapshot(2, 2), &[("c", None)])).await;
    assert_eq!(hand.destroy(2).await, [], "the snapshot needs it");
    assert_eq!(discarded(&hand.delete(2).await), ["c"]);
}

pub async fn a_copy_holds_what_it_was_made_from(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    hand.take(&with_pieces(snapshot(1, 1), &[("a", None)])).await;
    hand.fork(1, &[sandbox(2), sandbox(3)]).await;
    assert_eq!(hand.delete(1).await, []);
    assert_eq!(hand.destroy(1).await, []);
    assert_eq!(hand.destroy(3).await, []);
    assert_eq!(pieces(&hand, DRIVER).await, ["a"]);
    assert_eq!(discarded(&hand.destroy(2).await), ["a"]);
}

pub async fn a_sandbox_holds_only_what_it_stands_on(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    hand.take(&with_pieces(snapshot(1, 1), &[("a", None)])).await;
    assert_eq!(hand.delete(1).await, []);
    // It moves on to pieces of its own, and nobody needs the old one.
    let freed = hand.take(&with_pieces(child_of(1, snapshot(2, 1)), &[("b", None)])).await;
    assert_eq!(discarded(&freed), ["a"]);
    // It moves on, but the new piece lies over the old one.
    hand.delete(2).await;
    let third = with_pieces(child_of(2, snapshot(3, 1)), &[("c", Some("b"))]);
    assert_eq!(hand.take(&third).await, []);
    assert_eq!(pieces(&hand, DRIVER).await, ["b", "c"]);
}

pub async fn a_rollback_moves_what_a_sandbox_holds(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    hand.take(&with_pieces(snapshot(1, 1), &[("a", None)])).await;
    hand.take(&with_pieces(child_of(1, snapshot(2, 1)), &[("b", None)])).await;
    hand.delete(2).await;
    assert_eq!(discarded(&hand.roll_back(1, 1).await), ["b"]);
    assert_eq!(hand.0.sandbox(sandbox_id(1)).await.unwrap().head, Some(snapshot_id(1)));
    assert_eq!(hand.roll_back(1, 1).await, [], "to where it stands");
    assert_eq!(hand.delete(1).await, [], "the sandbox stands on it");
    assert_eq!(discarded(&hand.destroy(1).await), ["a"]);
}

pub async fn what_lies_below_another_piece_stays(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    // The order of names is not the order of layers.
    hand.take(&with_pieces(snapshot(1, 1), &[("m", None)])).await;
    hand.take(&with_pieces(child_of(1, snapshot(2, 1)), &[("z", Some("m"))])).await;
    hand.take(&with_pieces(child_of(2, snapshot(3, 1)), &[("a", Some("z"))])).await;
    assert_eq!(hand.delete(1).await, []);
    assert_eq!(hand.destroy(1).await, []);
    assert_eq!(hand.delete(2).await, []);
    assert_eq!(pieces(&hand, DRIVER).await, ["a", "m", "z"]);
    assert_eq!(discarded(&hand.delete(3).await), ["a", "z", "m"], "from the top down");
    assert_eq!(pieces(&hand, DRIVER).await, [""; 0]);

    // Two over one: it goes with the second.
    hand.add(&sandbox(2)).await;
    hand.take(&with_pieces(snapshot(4, 2), &[("base", None)])).await;
    hand.take(&with_pieces(child_of(4, snapshot(5, 2)), &[("left", Some("base"))])).await;
    hand.take(&with_pieces(child_of(4, snapshot(6, 2)), &[("right", Some("base"))])).await;
    hand.destroy(2).await;
    assert_eq!(hand.delete(4).await, []);
    assert_eq!(discarded(&hand.delete(5).await), ["left"]);
    assert_eq!(discarded(&hand.delete(6).await), ["right", "base"]);

    // All of a chain in one artifact.
    hand.add(&sandbox(3)).await;
    let chain = [("x", None), ("y", Some("x")), ("w", Some("y"))];
    hand.take(&with_pieces(snapshot(7, 3), &chain)).await;
    hand.destroy(3).await;
    assert_eq!(discarded(&hand.delete(7).await), ["w", "y", "x"]);
}

pub async fn a_piece_of_two_snapshots_stays_with_the_second(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    hand.take(&with_pieces(snapshot(1, 1), &[("a", None), ("b", None)])).await;
    hand.take(&with_pieces(child_of(1, snapshot(2, 1)), &[("b", None), ("c", None)])).await;
    hand.destroy(1).await;
    assert_eq!(discarded(&hand.delete(1).await), ["a"]);
    assert_eq!(discarded(&hand.delete(2).await), ["c", "b"]);
}

pub async fn drivers_do_not_share_pieces(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    let docker = "docker".to_owned();
    hand.add(&sandbox(1)).await;
    hand.add(&SandboxRecord { driver: docker.clone(), ..sandbox(2) }).await;
    hand.take(&with_pieces(snapshot(1, 1), &[("a", None)])).await;
    let there = with_pieces(snapshot(2, 2), &[("a", None), ("b", Some("a"))]);
    hand.take(&SnapshotRecord { driver: docker.clone(), ..there }).await;
    assert_eq!(pieces(&hand, DRIVER).await, ["a"]);
    assert_eq!(pieces(&hand, &docker).await, ["a", "b"]);
    assert_eq!(pieces(&hand, "ssh").await, [""; 0]);
    hand.destroy(1).await;
    assert_eq!(discarded(&hand.delete(1).await), ["a"], "what lies over it is another's");
    assert_eq!(pieces(&hand, &docker).await, ["a", "b"]);
    hand.delete(2).await;
    let chores = hand.destroy(2).await;
    assert_eq!(discarded(&chores), ["b", "a"]);
    assert!(chores.iter().all(|chore| chore.driver == docker));
}

pub async fn what_is_stored_is_what_the_pieces_occupy(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    let stored = async || hand.0.usage().await.unwrap().stored_bytes;
    hand.add(&sandbox(1)).await;
    hand.take(&with_pieces(snapshot(1, 1), &[("a", None)])).await;
    let mut large = with_pieces(snapshot(2, 1), &[("b", Some("a"))]);
    large.artifact.pieces[0].bytes = u64::from(u32::MAX) + 7;
    hand.take(&large).await;
    assert_eq!(stored().await, 10 + u64::from(u32::MAX) + 7);
    hand.delete(1).await;
    assert_eq!(stored().await, 10 + u64::from(u32::MAX) + 7, "the second lies over it");
    hand.delete(2).await;
    let chores = hand.destroy(1).await;
    assert_eq!(stored().await, 0);
    let pieces: Vec<_> = chores.into_iter().map(|chore| chore.task).collect();
    let below = Piece { name: PieceName("a".into()), over: None, bytes: 10 };
    let top = large.artifact.pieces[0].clone();
    assert_eq!(pieces, [ChoreTask::Discard(top), ChoreTask::Discard(below)], "from the top down");
}

pub async fn a_piece_over_an_unknown_one_is_refused(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    let dangling = with_pieces(snapshot(1, 1), &[("b", Some("nowhere"))]);
    let operation = snapshotting(&dangling);
    let claim = hand.begin(&operation).await;
    let refused = hand.0.commit(&claim, &taken(&dangling)).await;
    assert!(matches!(refused, Err(CatalogError::PieceUnknown { .. })), "{refused:?}");
    assert!(pieces(&hand, DRIVER).await.is_empty());
    assert!(hand.0.snapshot(snapshot_id(1)).await.is_err());
    hand.0.abort(&claim).await.unwrap();

    let both = with_pieces(snapshot(2, 1), &[("top", Some("base")), ("base", None)]);
    hand.take(&both).await;
}
