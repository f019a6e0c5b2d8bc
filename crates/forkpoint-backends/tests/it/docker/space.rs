//! What snapshots cost on the engine's disk, and what becomes of long lines of them.

use std::path::Path;

use forkpoint_core::driver::Driver as _;

use super::{
    runtime,
    scene::{Scene, new_id, shell},
    spec,
};

/// What is occupied below a directory.
fn occupied(path: &Path) -> u64 {
    let output = std::process::Command::new("du").args(["-s", "-B1"]).arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn ten_snapshots_of_a_container_that_changes_a_megabyte_each_time_take_what_changed() {
    runtime().block_on(async {
        let directory = tempfile::TempDir::new().unwrap();
        let scene = Scene::on(super::Machine::own(directory));
        let name = scene.start("source", &[]);
        let (sandbox, spec) = scene.adopt(&name).await;
        let mut line = vec![scene.seal(sandbox.as_ref()).await];
        let images = scene.machine.engine.data().join("overlay2");
        let before = occupied(&images);
        for number in 0..10 {
            let script = format!("dd if=/dev/urandom of=/file{number} bs=1M count=1 2>/dev/null");
            scene.sh(&name, &script);
            line.push(scene.seal(sandbox.as_ref()).await);
        }
        let own = 10 << 20;
        let more = occupied(&images) - before - own;
        assert!(more < 15 << 20, "{} KiB more", more >> 10);
        for (number, artifact) in line.iter().enumerate() {
            assert!(artifact.own_bytes < 2 << 20, "{number}: {}", artifact.own_bytes);
        }
        let copy = scene.driver.restore(new_id(), &spec, &line[7]).await.unwrap();
        assert_eq!(shell(copy.as_ref(), "ls / | grep -c file").await, "7\n");
    });
}

#[test]
fn a_long_line_of_copies_is_flattened_before_the_engine_refuses_it() {
    runtime().block_on(async {
        let mut scene = Scene::new();
        scene.driver = scene.machine.docker_with(|config| config.layers_max = 5);
        let mut sandbox = scene.driver.create(new_id(), &spec()).await.unwrap();
        let mut told = String::new();
        shell(sandbox.as_ref(), "mkdir /line; echo x > /line/gone").await;
        for number in 0..8 {
            let script = format!("echo {number} > /line/{number}; rm -f /line/gone");
            shell(sandbox.as_ref(), &script).await;
            let artifact = scene.seal(sandbox.as_ref()).await;
            told.push_str(&scene.driver.notices(sandbox.id()).join("\n"));
            let copy = scene.driver.restore(new_id(), &spec(), &artifact).await.unwrap();
            scene.driver.destroy(sandbox.id()).await.unwrap();
            scene.driver.discard(&artifact.pieces[0].name).await.ok();
            sandbox = copy;
        }
        assert!(told.contains("flattened"), "{told}");
        assert_eq!(shell(sandbox.as_ref(), "ls /line | wc -l").await, "8\n");
        scene.driver.destroy(sandbox.id()).await.unwrap();
    });
}
