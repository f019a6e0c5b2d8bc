//! Sandboxes from their beginning to their end.

use forkpoint_core::driver::{DriverError, SandboxState};

use super::scene::*;

pub async fn an_id_is_made_once_and_destroyed_twice(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    let id = sandbox.id();
    let again = driver.create(id, &fixture.spec()).await;
    assert!(matches!(again, Err(DriverError::SandboxExists { .. })));
    assert_eq!(driver.status(id).await.unwrap().unwrap().state, SandboxState::Running);
    driver.destroy(id).await.unwrap();
    driver.destroy(id).await.unwrap();
    driver.settle(id).await.unwrap();
    assert_eq!(driver.status(id).await.unwrap(), None);
    assert!(matches!(driver.attach(id).await, Err(DriverError::SandboxMissing { .. })));
}

pub async fn another_process_finds_it(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    write(sandbox.as_ref(), "/mark", "here").await;
    let id = sandbox.id();
    drop((sandbox, driver));

    let other = fixture.driver();
    assert!(other.list().await.unwrap().contains(&id));
    let found = other.attach(id).await.unwrap();
    assert_eq!(read(found.as_ref(), "/mark").await.as_deref(), Some("here"));
    other.destroy(id).await.unwrap();
    assert!(!other.list().await.unwrap().contains(&id));
}

pub async fn rolls_back_in_place_and_again(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    if !driver.capabilities().rollback {
        return;
    }
    let sandbox = create(fixture, &driver).await;
    write(sandbox.as_ref(), "/kept", "good").await;
    let good = seal(fixture, sandbox.as_ref()).await;
    write(sandbox.as_ref(), "/kept", "bad").await;
    write(sandbox.as_ref(), "/more", "bad").await;
    let bad = seal(fixture, sandbox.as_ref()).await;

    let id = sandbox.id();
    for _ in 0..2 {
        let back = driver.rollback(id, &fixture.spec(), &good).await.unwrap();
        assert_eq!(back.id(), id);
        assert_eq!(read(back.as_ref(), "/kept").await.as_deref(), Some("good"));
        assert_eq!(read(back.as_ref(), "/more").await, None);
        let status = driver.status(id).await.unwrap().unwrap();
        assert_eq!((status.state, status.base), (SandboxState::Running, Some(good.snapshot)));
    }
    let forth = driver.rollback(id, &fixture.spec(), &bad).await.unwrap();
    assert_eq!(read(forth.as_ref(), "/more").await.as_deref(), Some("bad"));

    driver.destroy(id).await.unwrap();
    let revived = driver.rollback(id, &fixture.spec(), &good).await.unwrap();
    assert_eq!(read(revived.as_ref(), "/kept").await.as_deref(), Some("good"), "after a loss");
    driver.destroy(id).await.unwrap();
    discard_all(&driver, &bad).await;
    discard_all(&driver, &good).await;
}

pub async fn adopts_and_never_destroys_what_is_not_ours(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let missing = driver.adopt("no-such-thing-anywhere").await;
    if !driver.capabilities().adopt {
        assert!(matches!(missing, Err(DriverError::Unsupported { .. })));
        return;
    }
    assert!(matches!(missing, Err(DriverError::NativeMissing { .. })));
    let name = fixture.foreign().await.unwrap();
    let adopted = driver.adopt(&name).await.unwrap();
    assert_eq!(fixture.driver().adopt(&name).await.unwrap(), adopted, "the same id again");
    assert!(!driver.list().await.unwrap().contains(&adopted.id), "it is not ours");
    let sandbox = driver.attach(adopted.id).await.unwrap();
    write(sandbox.as_ref(), "/kept", "theirs").await;
    let artifact = seal(fixture, sandbox.as_ref()).await;
    assert!(artifact.pieces.iter().all(|piece| piece.over.is_none()), "a copy, over nothing");
    assert!(matches!(driver.destroy(adopted.id).await, Err(DriverError::Foreign { .. })));
    assert_eq!(read(sandbox.as_ref(), "/kept").await.as_deref(), Some("theirs"));

    let copy = driver.restore(new_sandbox(fixture), &adopted.spec, &artifact).await.unwrap();
    assert_eq!(read(copy.as_ref(), "/kept").await.as_deref(), Some("theirs"));
    driver.destroy(copy.id()).await.unwrap();
    driver.unseal(artifact.snapshot).await.unwrap();
}
