//! Pauses, ours and the user's, and stops.

use std::sync::Arc;

use forkpoint_core::driver::{
    Command, Driver, DriverError, ExitStatus, Sandbox, SandboxState, SnapshotKind,
};

use super::scene::*;

pub async fn settles_after_a_dropped_pause(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    let id = sandbox.id();
    drop(sandbox.pause(SnapshotKind::Files).await.unwrap());
    assert_eq!(driver.status(id).await.unwrap().unwrap().state, SandboxState::Paused);
    let other = fixture.driver();
    other.settle(id).await.unwrap();
    other.settle(id).await.unwrap();
    assert_eq!(other.status(id).await.unwrap().unwrap().state, SandboxState::Running);
    assert_eq!(run(sandbox.as_ref(), &["true"]).await.2, ExitStatus::Code(0));
    driver.destroy(id).await.unwrap();
}

async fn state(driver: &dyn Driver, sandbox: &dyn Sandbox) -> SandboxState {
    driver.status(sandbox.id()).await.unwrap().unwrap().state
}

fn assert_not_running(answer: Result<(), DriverError>, is: SandboxState) {
    let right = matches!(&answer, Err(DriverError::NotRunning { state, .. }) if *state == is);
    assert!(right, "it is {is}, and the answer is {answer:?}");
}

async fn assert_exec_refused(sandbox: &dyn Sandbox, is: SandboxState) {
    assert_not_running(sandbox.exec(&Command::new(["true"])).await.map(drop), is);
}

/// A driver that can; one that cannot says so.
async fn driver_that_stops(fixture: Fixture<'_>) -> Option<Arc<dyn Driver>> {
    let driver = fixture.driver();
    if driver.capabilities().stop {
        return Some(driver);
    }
    let refused = driver.stop(new_sandbox(fixture)).await;
    assert!(matches!(refused, Err(DriverError::Unsupported { .. })), "{refused:?}");
    None
}

pub async fn what_is_stopped_keeps_its_files_and_comes_back(fixture: Fixture<'_>) {
    let Some(driver) = driver_that_stops(fixture).await else { return };
    let sandbox = create(fixture, &driver).await;
    let id = sandbox.id();
    write(sandbox.as_ref(), "/kept", "over the night").await;
    let sleep = sandbox.exec(&Command::new(["sleep", "1000"])).await.unwrap();
    driver.stop(id).await.unwrap();
    driver.stop(id).await.unwrap();
    assert_ne!(sleep.control.wait().await.ok(), Some(ExitStatus::Code(0)), "it was ended");
    driver.settle(id).await.unwrap();
    assert_exec_refused(sandbox.as_ref(), SandboxState::Stopped).await;

    let other = fixture.driver();
    assert!(other.list().await.unwrap().contains(&id));
    assert_eq!(state(other.as_ref(), sandbox.as_ref()).await, SandboxState::Stopped);
    let found = other.attach(id).await.unwrap();
    assert_exec_refused(found.as_ref(), SandboxState::Stopped).await;
    other.start(id, &fixture.spec()).await.unwrap();
    other.start(id, &fixture.spec()).await.unwrap();
    for driver in [&driver, &other] {
        assert_eq!(state(driver.as_ref(), sandbox.as_ref()).await, SandboxState::Running);
        let sandbox = driver.attach(id).await.unwrap();
        assert_eq!(read(sandbox.as_ref(), "/kept").await.as_deref(), Some("over the night"));
        assert_eq!(run(sandbox.as_ref(), &["true"]).await.2, ExitStatus::Code(0));
    }
    driver.destroy(id).await.unwrap();
}

pub async fn what_is_stopped_can_be_sealed_rolled_back_and_destroyed(fixture: Fixture<'_>) {
    let Some(driver) = driver_that_stops(fixture).await else { return };
    let sandbox = create(fixture, &driver).await;
    let id = sandbox.id();
    write(sandbox.as_ref(), "/kept", "as sealed").await;
    driver.stop(id).await.unwrap();
    let found = driver.attach(id).await.unwrap();
    let artifact = seal(fixture, found.as_ref()).await;
    let status = driver.status(id).await.unwrap().unwrap();
    assert_eq!((status.state, status.base), (SandboxState::Stopped, Some(artifact.snapshot)));
    drop(found.pause(SnapshotKind::Files).await.unwrap());
    driver.settle(id).await.unwrap();
    assert_eq!(state(driver.as_ref(), found.as_ref()).await, SandboxState::Stopped);

    let copy = driver.restore(new_sandbox(fixture), &fixture.spec(), &artifact).await.unwrap();
    assert_eq!(state(driver.as_ref(), copy.as_ref()).await, SandboxState::Running);
    assert_eq!(read(copy.as_ref(), "/kept").await.as_deref(), Some("as sealed"));
    driver.start(id, &fixture.spec()).await.unwrap();
    assert_eq!(read(found.as_ref(), "/kept").await.as_deref(), Some("as sealed"));
    write(found.as_ref(), "/kept", "later").await;
    driver.stop(id).await.unwrap();
    if driver.capabilities().rollback {
        let back = driver.rollback(id, &fixture.spec(), &artifact).await.unwrap();
        assert_eq!(state(driver.as_ref(), back.as_ref()).await, SandboxState::Running);
        assert_eq!(read(back.as_ref(), "/kept").await.as_deref(), Some("as sealed"));
        driver.stop(id).await.unwrap();
    }
    for id in [id, copy.id()] {
        driver.destroy(id).await.unwrap();
        assert_eq!(driver.status(id).await.unwrap(), None);
    }
    discard_all(&driver, &artifact).await;
}

/// A process that left its parent and its terminal is a process all the same.
pub async fn a_stop_ends_what_nobody_waits_for(fixture: Fixture<'_>) {
    let Some(driver) = driver_that_stops(fixture).await.filter(|_| fixture.real()) else { return };
    let sandbox = create(fixture, &driver).await;
    let beat = "while :; do echo x >> /beat; sleep 0.05; done";
    let beat = format!("( {beat} ) > /dev/null 2>&1 < /dev/null &");
    shell(sandbox.as_ref(), &beat).await;
    shell(sandbox.as_ref(), "until test -s /beat; do sleep 0.05; done").await;
    driver.stop(sandbox.id()).await.unwrap();
    driver.start(sandbox.id(), &fixture.spec()).await.unwrap();
    let sandbox = driver.attach(sandbox.id()).await.unwrap();
    let beats = shell(sandbox.as_ref(), "wc -c < /beat; sleep 0.5; wc -c < /beat").await;
    let beats: Vec<&str> = beats.lines().collect();
    assert_eq!(beats[0], beats[1], "it goes on");
    driver.destroy(sandbox.id()).await.unwrap();
}

pub async fn what_its_user_paused_stays_paused(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    if !driver.capabilities().pause {
        let refused = driver.pause(new_sandbox(fixture)).await;
        assert!(matches!(refused, Err(DriverError::Unsupported { .. })), "{refused:?}");
        return;
    }
    let sandbox = create(fixture, &driver).await;
    let id = sandbox.id();
    write(sandbox.as_ref(), "/kept", "as sealed").await;
    let sleep = sandbox.exec(&Command::new(["sleep", "1000"])).await.unwrap();
    driver.pause(id).await.unwrap();
    driver.pause(id).await.unwrap();
    assert_exec_refused(sandbox.as_ref(), SandboxState::Paused).await;
    if driver.capabilities().stop {
        assert_not_running(driver.start(id, &fixture.spec()).await, SandboxState::Paused);
    }
    let artifact = seal(fixture, sandbox.as_ref()).await;
    assert_eq!(state(driver.as_ref(), sandbox.as_ref()).await, SandboxState::Paused, "sealed");
    drop(sandbox.pause(SnapshotKind::Files).await.unwrap());
    let other = fixture.driver();
    other.settle(id).await.unwrap();
    assert_eq!(state(other.as_ref(), sandbox.as_ref()).await, SandboxState::Paused, "settled");
    let copy = other.restore(new_sandbox(fixture), &fixture.spec(), &artifact).await.unwrap();
    assert_eq!(state(other.as_ref(), copy.as_ref()).await, SandboxState::Running);
    assert_eq!(read(copy.as_ref(), "/kept").await.as_deref(), Some("as sealed"));

    other.resume(id).await.unwrap();
    other.resume(id).await.unwrap();
    assert_eq!(state(driver.as_ref(), sandbox.as_ref()).await, SandboxState::Running);
    assert_eq!(run(sandbox.as_ref(), &["true"]).await.2, ExitStatus::Code(0));
    sleep.control.signal(9).await.unwrap();
    assert_eq!(sleep.control.wait().await.unwrap(), ExitStatus::Signal(9), "it was there still");
    driver.pause(id).await.unwrap();
    for id in [id, copy.id()] {
        driver.destroy(id).await.unwrap();
    }
    discard_all(&driver, &artifact).await;
}

pub async fn what_is_stopped_is_not_paused(fixture: Fixture<'_>) {
    let Some(driver) = driver_that_stops(fixture).await else { return };
    if !driver.capabilities().pause {
        return;
    }
    let sandbox = create(fixture, &driver).await;
    let id = sandbox.id();
    driver.pause(id).await.unwrap();
    driver.stop(id).await.unwrap();
    assert_eq!(state(driver.as_ref(), sandbox.as_ref()).await, SandboxState::Stopped);
    assert_not_running(driver.pause(id).await, SandboxState::Stopped);
    assert_not_running(driver.resume(id).await, SandboxState::Stopped);
    driver.start(id, &fixture.spec()).await.unwrap();
    assert_eq!(state(driver.as_ref(), sandbox.as_ref()).await, SandboxState::Running);
    driver.destroy(id).await.unwrap();
}

pub async fn what_is_missing_cannot_be_switched(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let (id, can) = (new_sandbox(fixture), driver.capabilities());
    let mut answers = Vec::new();
    if can.stop {
        answers.extend([driver.stop(id).await, driver.start(id, &fixture.spec()).await]);
    }
    if can.pause {
        answers.extend([driver.pause(id).await, driver.resume(id).await]);
    }
    for answer in answers {
        assert!(matches!(answer, Err(DriverError::SandboxMissing { .. })), "{answer:?}");
    }
}
