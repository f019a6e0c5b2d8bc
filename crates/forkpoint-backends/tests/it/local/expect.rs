//! What is about to be made: whoever will make it gets ready, and nothing is left where it is not made.

use std::{fs, time::Duration};

use forkpoint_core::driver::{Artifact, Driver as _, DriverError};
use tokio::time::{sleep, timeout};

use super::{
    faults::{cgroups_of, children, spawners},
    full::{count, counting, counts_on, seal_full},
    scene::{Scene, is_alive, kill, read_text, seal, spec, until, write},
};

/// Until those whose work is done have ended, and then who stands by.
fn expect(scene: &Scene, from: Option<&Artifact>) -> i32 {
    let spawner = spawners()[0];
    until("nobody else is there", || children(spawner).iter().map(ToString::to_string).collect());
    scene.driver.expect(&spec(), from);
    until("somebody stands by", || match children(spawner).len() {
        1 => Vec::new(),
        others => vec![others.to_string()],
    });
    children(spawner)[0]
}

/// Sooner than one to whom nothing is told.
async fn ends(pid: i32) {
    let ends = async {
        while is_alive(pid) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(4), ends).await.expect("it does not end");
}

#[test]
fn who_is_expected_does_the_work() {
    let Some(scene) = Scene::by_root(true, "nothing full is kept") else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let full = seal_full(&*sandbox).await;
        let pid = expect(&scene, Some(&full));
        let copy = scene.restore(&full).await;
        counts_on(&*copy, count(&*copy).await).await;
        ends(pid).await;

        let pid = expect(&scene, None);
        let new = scene.create().await;
        write(&*new, "/srv/text", "new").await.unwrap();
        ends(pid).await;
    });
}

#[test]
fn who_is_expected_for_something_else_is_left_alone() {
    let Some(scene) = Scene::by_root(true, "nothing full is kept") else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        write(&*sandbox, "/srv/text", "kept").await.unwrap();
        let (files, full) = (seal(&*sandbox).await, seal_full(&*sandbox).await);
        let pid = expect(&scene, Some(&files));
        let copy = scene.restore(&full).await;
        counts_on(&*copy, count(&*copy).await).await;
        assert!(is_alive(pid));
        let copy = scene.restore(&files).await;
        assert_eq!(read_text(&*copy, "/srv/text").await, "kept");
        ends(pid).await;
    });
}

#[test]
fn who_is_expected_and_gone_is_replaced() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        write(&*sandbox, "/srv/text", "kept").await.unwrap();
        let files = seal(&*sandbox).await;
        let pid = expect(&scene, Some(&files));
        kill(pid);
        ends(pid).await;
        let copy = scene.restore(&files).await;
        assert_eq!(read_text(&*copy, "/srv/text").await, "kept");

        // As long as it stands by, but for so long that it may be about to go.
        let pid = expect(&scene, Some(&files));
        sleep(Duration::from_millis(600)).await;
        let copy = scene.restore(&files).await;
        assert_eq!(read_text(&*copy, "/srv/text").await, "kept");
        ends(pid).await;
    });
}

#[test]
fn who_is_expected_for_nothing_ends() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        drop(scene.create().await);
        let first = expect(&scene, None);
        // There is no need of two.
        scene.driver.expect(&spec(), None);
        ends(first).await;
        let second = children(spawners()[0])[0];
        sleep(Duration::from_secs(6)).await;
        assert!(!is_alive(second));
    });
}

/// Its first process was born before it was seen that there is nothing to make it of.
#[test]
fn what_cannot_be_made_leaves_nothing() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        write(&*sandbox, "/srv/text", "kept").await.unwrap();
        let files = seal(&*sandbox).await;
        let layer = files.data["layer"].as_str().unwrap();
        let place = scene.root().join("store/layers").join(layer);
        fs::rename(&place, scene.root().join("elsewhere")).unwrap();
        let id = scene.new_id();
        let failed = scene.driver.restore(id, &spec(), &files).await;
        assert!(matches!(failed, Err(DriverError::Damaged { .. })), "{failed:?}");
        let spawner = spawners()[0];
        until("all of it goes", || {
            let processes = children(spawner).into_iter().map(|pid| pid.to_string());
            processes.chain(cgroups_of(id)).collect()
        });
        assert!(!scene.place(id).exists() && !scene.driver.list().await.unwrap().contains(&id));
        fs::rename(scene.root().join("elsewhere"), &place).unwrap();
        let copy = scene.restore(&files).await;
        assert_eq!(read_text(&*copy, "/srv/text").await, "kept");
    });
}
