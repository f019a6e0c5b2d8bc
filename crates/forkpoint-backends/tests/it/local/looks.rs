//! Looking into a sandbox while things happen to it.

use std::time::Duration;

use forkpoint_core::driver::{Driver as _, FileState};

use super::scene::{Scene, seal, sh, spec};

/// The large one keeps whoever compares it busy.
const MAKE: &str = "cd /srv; mkdir kept; cd kept; seq 100 | xargs touch; truncate -s 1G ../large";

/// What is in a sandbox before and after a rollback is seen by whoever compares it meanwhile, though
/// the files that were there before are deleted under their eyes.
#[test]
fn what_is_always_there_is_always_seen() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let (sandbox, other) = (scene.create().await, scene.create().await);
        sh(&*sandbox, MAKE).await;
        sh(&*other, MAKE).await;
        let first = seal(&*other).await;
        let (then, now) = (FileState::Snapshot(first.clone()), FileState::Sandbox(sandbox.id()));
        let driver = scene.another_driver();
        let comparing = tokio::spawn(async move { driver.diff(&then, &now, &[]).await });
        // Nobody tells when it has begun. If it has not, there is nothing to be seen either.
        tokio::time::sleep(Duration::from_millis(100)).await;
        scene.driver.rollback(sandbox.id(), &spec(), &first).await.unwrap();
        let found = comparing.await.unwrap().unwrap();
        assert_eq!(found.changes, []);
    });
}
