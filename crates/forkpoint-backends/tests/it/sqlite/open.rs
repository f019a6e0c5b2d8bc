//! What is at the path, and who else is there.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    sync::Barrier,
    thread,
};

use forkpoint_backends::catalog::SqliteCatalog;
use forkpoint_core::catalog::{
    Catalog as _, CatalogError, OwnerState, SandboxQuery, SnapshotQuery,
};
use forkpoint_testkit::{
    CatalogOpener as _,
    conformance::catalog::scene::{Hand, creation, sandbox},
};
use futures::executor::block_on;

use super::Directory;

fn refusal(directory: &Directory) -> CatalogError {
    SqliteCatalog::open(directory.file()).unwrap_err()
}

#[test]
fn a_file_that_is_no_database_is_damaged() {
    for bytes in [&b"a note"[..], &[0x5a; 100], &[0; 4096], &[0xff; 20_000]] {
        let directory = Directory::new();
        fs::write(directory.file(), bytes).unwrap();
        match refusal(&directory) {
            CatalogError::Damaged { place, .. } => {
                assert_eq!(place, directory.file().display().to_string());
            }
            other => panic!("expected damage, got {other:?}"),
        }
        assert_eq!(fs::read(directory.file()).unwrap(), bytes, "left as it was");
    }
}

#[test]
fn another_programs_database_is_foreign_and_stays_as_it_is() {
    for sql in [
        "CREATE TABLE note (text)",
        "PRAGMA application_id = 7",
        "PRAGMA user_version = 1",
        "PRAGMA application_id = 7; CREATE TABLE snapshot (seq); PRAGMA user_version = 1",
    ] {
        let directory = Directory::new();
        directory.tamper(sql);
        let before = fs::read(directory.file()).unwrap();
        let err = refusal(&directory);
        assert!(matches!(err, CatalogError::Foreign { .. }), "{err:?}");
        assert_eq!(fs::read(directory.file()).unwrap(), before);
        assert!(!directory.owners().exists());
    }
}

#[test]
fn a_directory_is_no_catalog() {
    let directory = Directory::new();
    fs::create_dir(directory.file()).unwrap();
    let err = refusal(&directory);
    let path = directory.file();
    assert!(matches!(err, CatalogError::Foreign { .. }), "{err:?}");
    assert_eq!(err.to_string(), format!("`{}` is not a catalog of ours", path.display()));
}

#[test]
fn what_cannot_be_opened_is_not_damaged() {
    let directory = Directory::new();
    let path = directory.0.path().join("missing").join("catalog.db");
    let err = SqliteCatalog::open(path).unwrap_err();
    assert!(matches!(err, CatalogError::Database { operation: "open the file", .. }), "{err:?}");
}

fn assert_too_new(err: &CatalogError) {
    assert!(matches!(err, CatalogError::TooNew { found: 1000, known: 4, .. }), "{err:?}");
}

#[test]
fn a_newer_version_is_refused_at_once_and_under_way() {
    let directory = Directory::new();
    let hand = Hand::open(&directory);
    block_on(hand.add(&sandbox(1)));
    block_on(hand.0.usage()).unwrap();
    directory.tamper("PRAGMA user_version = 1000");
    assert_too_new(&refusal(&directory));
    assert_too_new(&block_on(hand.0.begin(&creation(&sandbox(2)))).unwrap_err());
    assert_too_new(&block_on(hand.0.usage()).unwrap_err());
    directory.tamper("PRAGMA user_version = 4");
    block_on(hand.add(&sandbox(2)));
}

#[test]
fn a_new_catalog_is_its_users_own() {
    let directory = Directory::new();
    let _hand = Hand::open(&directory);
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(directory.file()), 0o600);
    assert_eq!(mode(directory.0.path().join("catalog.db-wal")), 0o600);
    assert_eq!(mode(directory.owners()), 0o700);
}

#[test]
fn many_may_come_to_a_new_file_at_once() {
    for _ in 0..5 {
        let directory = Directory::new();
        let start = Barrier::new(8);
        thread::scope(|scope| {
            for number in 0..8 {
                let (directory, start) = (&directory, &start);
                scope.spawn(move || {
                    start.wait();
                    block_on(Hand::open(directory).add(&sandbox(number)));
                });
            }
        });
        let page = block_on(directory.open().sandboxes(&SandboxQuery::default())).unwrap();
        assert_eq!(page.items.len(), 8);
    }
}

#[test]
fn a_symbolic_link_leads_to_the_same_owners() {
    let directory = Directory::new();
    let hand = Hand::open(&directory);
    block_on(hand.begin(&creation(&sandbox(1))));
    let link = directory.0.path().join("link");
    symlink(directory.file(), &link).unwrap();
    let other = SqliteCatalog::open(link).unwrap();
    let seen = block_on(other.unfinished()).unwrap();
    assert_eq!(seen[0].owner_state, OwnerState::Alive);
}

#[test]
fn nothing_is_left_of_a_handle_that_was_dropped() {
    let directory = Directory::new();
    let hand = Hand::open(&directory);
    block_on(hand.add(&sandbox(1)));
    block_on(hand.0.snapshots(&SnapshotQuery::default())).unwrap();
    drop(hand);
    let left = fs::read_dir(directory.0.path()).unwrap().flatten();
    let mut left: Vec<_> = left.map(|entry| entry.file_name().into_string().unwrap()).collect();
    left.sort_unstable();
    // The log is not written back each time that somebody leaves: that would cost three syncs.
    assert_eq!(left, ["catalog.db", "catalog.db-shm", "catalog.db-wal", "catalog.db.owners"]);
    assert_eq!(fs::read_dir(directory.owners()).unwrap().count(), 0);
}

#[test]
fn what_a_dead_owner_left_is_swept_once_no_operation_names_it() {
    let directory = Directory::new();
    let dead = Hand::open(&directory);
    let owner = dead.0.owner().to_string();
    block_on(dead.begin(&creation(&sandbox(1))));
    drop(dead);
    // As after `kill -9`: the file is there, and nobody holds its lock.
    let file = directory.owners().join(owner);
    fs::write(&file, "").unwrap();
    fs::write(directory.owners().join("note"), "").unwrap();

    let hand = Hand::open(&directory);
    assert!(file.exists(), "an operation names it");
    let open = block_on(hand.0.unfinished()).unwrap().remove(0);
    assert_eq!(open.owner_state, OwnerState::Gone);
    block_on(hand.0.reclaim(&open.claim)).unwrap();
    let other = Hand::open(&directory);
    assert!(!file.exists());
    let left = fs::read_dir(directory.owners()).unwrap().count();
    assert_eq!(left, 3, "two who live, and what is not ours");
    drop((hand, other));
}
