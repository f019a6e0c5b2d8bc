//! What a sandbox's root may do and its owner outside may not; and what goes with a directory besides
//! its mode. The same as root and without.

use forkpoint_core::driver::Driver as _;

use super::{
    Machine,
    scene::{Scene, python, seal, sh, spec},
};

#[test]
fn a_directory_that_nobody_may_enter_stops_no_snapshot() {
    let scene = Scene::on(Machine::new(true));
    scene.run(async {
        let sandbox = scene.create().await;
        let shut = "mkdir -p /srv/shut/deep && echo 1 > /srv/shut/1 && chmod 000 /srv/shut";
        sh(&*sandbox, shut).await;
        let first = scene.driver.sync(&seal(&*sandbox).await).await.unwrap();
        assert!(first.counted);
        sh(&*sandbox, "chmod 400 /srv/shut && echo 2 > /srv/shut/1").await;
        let second = scene.driver.sync(&seal(&*sandbox).await).await.unwrap();
        assert!(second.counted);
        for (artifact, expected) in [(&first, "0\n1\n"), (&second, "400\n2\n")] {
            let copy = scene.restore(artifact).await;
            assert_eq!(sh(&*copy, "stat -c %a /srv/shut; cat /srv/shut/1").await, expected);
        }
    });
}

#[test]
fn a_root_that_nobody_may_enter_stops_no_snapshot_and_no_start() {
    let scene = Scene::on(Machine::new(true));
    scene.run(async {
        let sandbox = scene.create().await;
        sh(&*sandbox, "echo 1 > /srv/1; echo 2 > /usr/2; chmod 0 / /usr").await;
        scene.driver.stop(sandbox.id()).await.unwrap();
        scene.driver.start(sandbox.id(), &spec()).await.unwrap();
        sh(&*sandbox, "chmod 0 / /usr").await;
        let artifact = scene.driver.sync(&seal(&*sandbox).await).await.unwrap();
        let copy = scene.restore(&artifact).await;
        for sandbox in [&*sandbox, &*copy] {
            assert_eq!(sh(sandbox, "cat /srv/1 /usr/2").await, "1\n2\n");
        }
    });
}

#[test]
fn attributes_of_the_roots_outlive_a_snapshot() {
    let scene = Scene::on(Machine::new(true));
    scene.run(async {
        let sandbox = scene.create().await;
        python(&*sandbox, "import os; [os.setxattr(p, 'user.x', b'1') for p in ['/', '/usr']]")
            .await;
        let look = "import os; print([os.getxattr(p, 'user.x') for p in ['/', '/usr']])";
        let first = seal(&*sandbox).await;
        assert_eq!(python(&*sandbox, look).await, "[b'1', b'1']\n", "in the live one");
        seal(&*sandbox).await;
        assert_eq!(python(&*sandbox, look).await, "[b'1', b'1']\n", "after the next one");
        let copy = scene.restore(&first).await;
        assert_eq!(python(&*copy, look).await, "[b'1', b'1']\n", "in a copy");
    });
}
