//! Real file trees, with all that is odd in them.
//!
//! The tree is made and listed by commands in the sandbox, so that nobody has to trust what the
//! driver itself says of it. They are those of coreutils and findutils.

use forkpoint_core::driver::{Artifact, Command, ExitStatus, Sandbox};

use super::scene::*;

const FIRST: &str = include_str!("trees/first.sh");
const SECOND: &str = include_str!("trees/second.sh");
const THIRD: &str = include_str!("trees/third.sh");
const LIST: &str = include_str!("trees/list.sh");
const OWNERS: &str = include_str!("trees/owners.sh");

async fn list(sandbox: &dyn Sandbox) -> Vec<String> {
    let listed = shell(sandbox, LIST).await;
    assert!(listed.contains("one file"), "hard links came apart: {listed}");
    assert!(listed.contains("holes"), "the holes were filled: {listed}");
    listed.lines().map(str::to_owned).collect()
}

async fn assert_restores(fixture: Fixture<'_>, artifact: &Artifact, expected: &[String]) {
    let driver = fixture.driver();
    let copy = driver.restore(new_sandbox(fixture), &fixture.spec(), artifact).await.unwrap();
    assert_eq!(list(copy.as_ref()).await, expected);
    driver.destroy(copy.id()).await.unwrap();
}

pub async fn a_copy_has_the_same_tree(fixture: Fixture<'_>) {
    if !fixture.real() {
        return;
    }
    let driver = fixture.driver();
    let source = create(fixture, &driver).await;
    shell(source.as_ref(), FIRST).await;
    let before = list(source.as_ref()).await;
    let first = seal(fixture, source.as_ref()).await;
    assert_eq!(list(source.as_ref()).await, before, "sealing changes nothing");
    assert_restores(fixture, &first, &before).await;

    shell(source.as_ref(), SECOND).await;
    let after = list(source.as_ref()).await;
    assert_ne!(after, before);
    let sleep = source.exec(&Command::new(["sleep", "1000"])).await.unwrap();
    let second = seal(fixture, source.as_ref()).await;
    assert_eq!(list(source.as_ref()).await, after, "sealing changes nothing");
    sleep.control.signal(9).await.unwrap();
    let ended = sleep.control.wait().await.unwrap();
    assert_eq!(ended, ExitStatus::Signal(9), "it ran on after the seal");
    assert_restores(fixture, &second, &after).await;
    assert_restores(fixture, &first, &before).await;

    let third = seal(fixture, source.as_ref()).await;
    assert_restores(fixture, &third, &after).await;
    driver.destroy(source.id()).await.unwrap();
    assert_restores(fixture, &third, &after).await;
    for artifact in [&third, &second, &first] {
        discard_all(&driver, artifact).await;
    }
}

pub async fn a_copy_of_a_copy_has_the_same_tree(fixture: Fixture<'_>) {
    if !fixture.real() {
        return;
    }
    let driver = fixture.driver();
    let source = create(fixture, &driver).await;
    shell(source.as_ref(), FIRST).await;
    let first = seal(fixture, source.as_ref()).await;
    shell(source.as_ref(), SECOND).await;
    let second = seal(fixture, source.as_ref()).await;
    let after = list(source.as_ref()).await;
    driver.destroy(source.id()).await.unwrap();

    let copy = driver.restore(new_sandbox(fixture), &fixture.spec(), &second).await.unwrap();
    shell(copy.as_ref(), THIRD).await;
    let changed = list(copy.as_ref()).await;
    let third = seal(fixture, copy.as_ref()).await;
    assert_restores(fixture, &third, &changed).await;
    assert_restores(fixture, &second, &after).await;
    driver.destroy(copy.id()).await.unwrap();
    for artifact in [&third, &second, &first] {
        discard_all(&driver, artifact).await;
    }
}

pub async fn a_rollback_brings_the_same_tree_back(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    if !fixture.real() || !driver.capabilities().rollback {
        return;
    }
    let sandbox = create(fixture, &driver).await;
    shell(sandbox.as_ref(), FIRST).await;
    let before = list(sandbox.as_ref()).await;
    let first = seal(fixture, sandbox.as_ref()).await;
    shell(sandbox.as_ref(), SECOND).await;
    let after = list(sandbox.as_ref()).await;
    let second = seal(fixture, sandbox.as_ref()).await;
    for (artifact, tree) in [(&first, &before), (&second, &after), (&first, &before)] {
        let back = driver.rollback(sandbox.id(), &fixture.spec(), artifact).await.unwrap();
        assert_eq!(list(back.as_ref()).await, *tree);
    }
    driver.destroy(sandbox.id()).await.unwrap();
    discard_all(&driver, &second).await;
    discard_all(&driver, &first).await;
}

pub async fn owners_are_kept(fixture: Fixture<'_>) {
    if !fixture.real() || !fixture.privileged() {
        return;
    }
    const LIST: &str = "stat -c '%n %u:%g %f' /owned/*";
    let driver = fixture.driver();
    let source = create(fixture, &driver).await;
    shell(source.as_ref(), OWNERS).await;
    let owners = shell(source.as_ref(), LIST).await;
    assert_eq!(owners.matches("12:34").count(), 4, "{owners}");
    let artifact = seal(fixture, source.as_ref()).await;
    let copy = driver.restore(new_sandbox(fixture), &fixture.spec(), &artifact).await.unwrap();
    assert_eq!(shell(copy.as_ref(), LIST).await, owners);
    for id in [source.id(), copy.id()] {
        driver.destroy(id).await.unwrap();
    }
    discard_all(&driver, &artifact).await;
}
