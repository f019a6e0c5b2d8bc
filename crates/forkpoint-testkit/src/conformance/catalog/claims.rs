//! What an open operation keeps from others, and what it needs to begin.

use forkpoint_core::catalog::{
    CatalogError, Change, OpenOperation, Operation, OwnerState, Power, Resource, SandboxRecord,
    SnapshotRecord,
};

use super::scene::*;
use crate::CatalogOpener;

async fn assert_busy(hand: &Hand, operation: &Operation, resource: Resource, by: &Operation) {
    match hand.refusal(operation).await {
        CatalogError::Busy { resource: of, by: open } => {
            assert_eq!((of, open.operation), (resource, by.clone()));
        }
        other => panic!("expected {resource} to be busy, got {other:?}"),
    }
}

pub async fn busy_names_what_is_in_the_way(fixture: &dyn CatalogOpener) {
    let (hand, other) = (Hand::open(fixture), Hand::open(fixture));
    hand.add(&sandbox(1)).await;
    let first = snapshotting(&snapshot(1, 1));
    let claim = hand.begin(&first).await;
    for (who, owner_state) in [(&hand, OwnerState::Us), (&other, OwnerState::Alive)] {
        match who.refusal(&destruction(1)).await {
            CatalogError::Busy { resource, by } => {
                assert_eq!(resource, Resource::Sandbox(sandbox_id(1)));
                let owner = hand.0.owner();
                let open = OpenOperation { operation: first.clone(), claim, owner, owner_state };
                assert_eq!(*by, open);
            }
            other => panic!("expected a busy sandbox, got {other:?}"),
        }
    }
    // Something new is busy before it is known.
    let made = creation(&sandbox(2));
    let claim_of_made = hand.begin(&made).await;
    assert_busy(&other, &creation(&sandbox(2)), Resource::Sandbox(sandbox_id(2)), &made).await;
    assert_busy(&other, &destruction(2), Resource::Sandbox(sandbox_id(2)), &made).await;
    let same = SnapshotRecord { name: name("another"), ..snapshot(1, 1) };
    other.add(&sandbox(3)).await;
    let same = snapshotting(&SnapshotRecord { sandbox: sandbox_id(3), ..same });
    assert_busy(&other, &same, Resource::Snapshot(snapshot_id(1)), &first).await;

    hand.0.abort(&claim).await.unwrap();
    hand.0.abort(&claim_of_made).await.unwrap();
    other.take(&snapshot(1, 1)).await;
    other.destroy(1).await;
}

pub async fn forks_share_a_snapshot_that_nobody_may_delete_meanwhile(fixture: &dyn CatalogOpener) {
    let (hand, other) = (Hand::open(fixture), Hand::open(fixture));
    let shared = Resource::Snapshot(snapshot_id(1));
    hand.add(&sandbox(1)).await;
    hand.take(&snapshot(1, 1)).await;
    let forks = [forking(1, &[sandbox(2)]), forking(1, &[sandbox(3)])];
    let claims = [hand.begin(&forks[0]).await, other.begin(&forks[1]).await];
    for exclusive in [deletion(1), renaming(1, None)] {
        assert_busy(&other, &exclusive, shared.clone(), &forks[0]).await;
    }
    hand.0.commit(&claims[0], &added(&[sandbox(2)], Some(1))).await.unwrap();
    assert_busy(&other, &deletion(1), shared.clone(), &forks[1]).await;
    other.0.abort(&claims[1]).await.unwrap();

    let delete = deletion(1);
    let claim = hand.begin(&delete).await;
    assert_busy(&other, &forking(1, &[sandbox(3)]), shared.clone(), &delete).await;
    assert_busy(&other, &deletion(1), shared, &delete).await;
    let change = Change::SnapshotDeleted { snapshot: snapshot_id(1) };
    hand.0.commit(&claim, &change).await.unwrap();
    let missing = other.refusal(&deletion(1)).await;
    assert!(matches!(missing, CatalogError::SnapshotMissing { .. }), "{missing:?}");
}

pub async fn rollbacks_share_a_snapshot_but_not_a_sandbox(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    hand.take(&snapshot(1, 1)).await;
    hand.fork(1, &[sandbox(2)]).await;
    let first = rolling_back(1, 1);
    hand.begin(&first).await;
    assert_busy(&hand, &rolling_back(1, 1), Resource::Sandbox(sandbox_id(1)), &first).await;
    assert_busy(&hand, &deletion(1), Resource::Snapshot(snapshot_id(1)), &first).await;
    hand.begin(&rolling_back(2, 1)).await;
}

pub async fn a_switch_has_its_sandbox_alone_and_changes_nothing(fixture: &dyn CatalogOpener) {
    let (hand, other) = (Hand::open(fixture), Hand::open(fixture));
    hand.add(&sandbox(1)).await;
    hand.take(&snapshot(1, 1)).await;
    let before = (hand.0.sandbox(sandbox_id(1)).await.unwrap(), hand.0.usage().await.unwrap());
    for to in [Power::Stop, Power::Start, Power::Pause, Power::Resume] {
        let operation = switching(1, to);
        let claim = hand.begin(&operation).await;
        let same = Resource::Sandbox(sandbox_id(1));
        for wanted in [switching(1, Power::Stop), snapshotting(&snapshot(2, 1)), destruction(1)] {
            assert_busy(&other, &wanted, same.clone(), &operation).await;
        }
        assert_eq!(other.0.unfinished().await.unwrap()[0].operation, operation);
        let chores = hand.0.commit(&claim, &Change::Switched).await.unwrap();
        assert!(chores.is_empty());
    }
    let after = (other.0.sandbox(sandbox_id(1)).await.unwrap(), other.0.usage().await.unwrap());
    assert_eq!(after, before);
}

pub async fn a_name_is_claimed_from_the_beginning(fixture: &dyn CatalogOpener) {
    let (hand, other) = (Hand::open(fixture), Hand::open(fixture));
    let first = creation(&named_sandbox(1, "web"));
    hand.begin(&first).await;
    let web = Resource::SandboxName { driver: DRIVER.to_owned(), name: name("web") };
    assert_busy(&other, &creation(&named_sandbox(2, "web")), web, &first).await;
    let elsewhere = SandboxRecord { driver: "docker".to_owned(), ..named_sandbox(3, "web") };
    other.add(&elsewhere).await;
    other.add(&named_sandbox(4, "web2")).await;

    let first = snapshotting(&SnapshotRecord { name: name("web"), ..snapshot(1, 4) });
    hand.begin(&first).await;
    let taken = Resource::SnapshotName(name("web"));
    let elsewhere =
        SnapshotRecord { name: name("web"), driver: "docker".to_owned(), ..snapshot(2, 3) };
    assert_busy(&other, &snapshotting(&elsewhere), taken.clone(), &first).await;
    other.take(&snapshot(2, 3)).await;
    assert_busy(&other, &renaming(2, Some("web")), taken, &first).await;

    let edit = renaming(2, Some("new"));
    other.begin(&edit).await;
    let third = SnapshotRecord { name: name("new"), ..snapshot(3, 3) };
    assert_busy(&hand, &snapshotting(&third), Resource::SnapshotName(name("new")), &edit).await;
}

pub async fn what_is_missing_cannot_be_worked_on(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    let (gone, lost) = (sandbox_id(9).to_string(), snapshot_id(9).to_string());
    for operation in [
        snapshotting(&snapshot(1, 9)),
        destruction(9),
        switching(9, Power::Stop),
        rolling_back(9, 9),
    ] {
        match hand.refusal(&operation).await {
            CatalogError::SandboxMissing { reference } => assert_eq!(reference, gone),
            other => panic!("expected a missing sandbox, got {other:?}"),
        }
    }
    hand.add(&sandbox(1)).await;
    let forking = forking(9, &[sandbox(2)]);
    for operation in [forking, rolling_back(1, 9), deletion(9), renaming(9, None)] {
        match hand.refusal(&operation).await {
            CatalogError::SnapshotMissing { reference } => assert_eq!(reference, lost),
            other => panic!("expected a missing snapshot, got {other:?}"),
        }
    }
}

pub async fn what_is_known_cannot_be_made_again(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&sandbox(1)).await;
    hand.take(&snapshot(1, 1)).await;
    let renamed = SnapshotRecord { name: name("another"), ..snapshot(1, 1) };
    for (operation, known) in [
        (creation(&sandbox(1)), sandbox_id(1).to_string()),
        (forking(1, &[sandbox(2), sandbox(1)]), sandbox_id(1).to_string()),
        (snapshotting(&renamed), snapshot_id(1).to_string()),
    ] {
        match hand.refusal(&operation).await {
            CatalogError::AlreadyKnown { id } => assert_eq!(id, known),
            other => panic!("expected `{known}` to be known, got {other:?}"),
        }
    }
}

async fn assert_taken(hand: &Hand, operation: &Operation, wanted: &str, holder: impl ToString) {
    match hand.refusal(operation).await {
        CatalogError::NameTaken { name, by } => {
            assert_eq!((name.as_str(), by), (wanted, holder.to_string()));
        }
        other => panic!("expected `{wanted}` to be taken, got {other:?}"),
    }
}

pub async fn a_name_is_given_once(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&named_sandbox(1, "web")).await;
    assert_taken(&hand, &creation(&named_sandbox(2, "web")), "web", sandbox_id(1)).await;
    let elsewhere = SandboxRecord { driver: "docker".to_owned(), ..named_sandbox(3, "web") };
    hand.add(&elsewhere).await;
    hand.add(&named_sandbox(4, "Web")).await;

    hand.take(&SnapshotRecord { name: name("v1"), ..snapshot(1, 1) }).await;
    let on_docker =
        SnapshotRecord { name: name("v1"), driver: "docker".to_owned(), ..snapshot(2, 3) };
    assert_taken(&hand, &snapshotting(&on_docker), "v1", snapshot_id(1)).await;
    hand.take(&snapshot(2, 3)).await;
    assert_taken(&hand, &renaming(2, Some("v1")), "v1", snapshot_id(1)).await;

    // A name is free again when its bearer is gone or called otherwise.
    hand.edit(&SnapshotRecord { name: name("v0"), ..snapshot(1, 1) }).await;
    hand.edit(&SnapshotRecord { name: name("v1"), ..snapshot(2, 3) }).await;
    hand.delete(2).await;
    hand.take(&SnapshotRecord { name: name("v1"), ..snapshot(3, 1) }).await;
    hand.destroy(1).await;
    hand.add(&named_sandbox(2, "web")).await;
}

pub async fn a_refused_operation_claims_nothing(fixture: &dyn CatalogOpener) {
    let hand = Hand::open(fixture);
    hand.add(&named_sandbox(1, "web")).await;
    hand.take(&snapshot(1, 1)).await;
    let forks = forking(1, &[named_sandbox(2, "free"), named_sandbox(3, "web")]);
    assert_taken(&hand, &forks, "web", sandbox_id(1)).await;
    assert_eq!(hand.0.unfinished().await.unwrap(), []);
    hand.add(&named_sandbox(2, "free")).await;
    hand.delete(1).await;
}
