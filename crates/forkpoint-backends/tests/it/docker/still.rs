//! Whose a pause is: ours, that of another data directory, or somebody's who asked the engine for it.

use std::{fs, path::PathBuf, time::Duration};

use forkpoint_core::driver::{Driver as _, SandboxState, SnapshotKind};

use super::{runtime, scene::Scene};

const TICK: &str = "while :; do echo x >> /data/ticks; done </dev/null >/dev/null 2>&1 &";

#[test]
fn a_note_of_ours_ends_no_pause_that_the_engine_was_asked_for() {
    runtime().block_on(async {
        let scene = Scene::new();
        let name = scene.start("source", &[]);
        let (sandbox, _) = scene.adopt(&name).await;
        let container = scene.inspect(&name)["Id"].as_str().unwrap().to_owned();
        let directory = PathBuf::from("/sys/fs/cgroup/freezer/docker").join(&container);
        assert!(directory.is_dir(), "an engine on cgroups of version 1");
        let note = serde_json::json!({ "directory": directory, "version": "v1", "shared": true });
        let notes = scene.machine.directory.path().join("docker/freezes");
        fs::create_dir_all(&notes).unwrap();
        let write = || fs::write(notes.join(&container), note.to_string()).unwrap();
        let state = async || scene.driver.status(sandbox.id()).await.unwrap().unwrap().state;

        write();
        fs::write(directory.join("freezer.state"), "FROZEN").unwrap();
        assert_eq!(state().await, SandboxState::Paused);
        scene.driver.settle(sandbox.id()).await.unwrap();
        assert_eq!(state().await, SandboxState::Running, "that was ours");

        write();
        scene.docker(&["pause", &name]);
        scene.driver.settle(sandbox.id()).await.unwrap();
        assert_eq!(state().await, SandboxState::Paused, "that was somebody else's");
        let frozen = fs::read_to_string(directory.join("freezer.state")).unwrap();
        assert_eq!(frozen.trim(), "FROZEN");
        assert!(!notes.join(&container).exists());
        scene.docker(&["unpause", &name]);
    });
}

/// What one of them seals does not move since the other is done.
#[test]
fn two_data_directories_take_turns() {
    runtime().block_on(async {
        let scene = Scene::new();
        let volume = format!("{}:/data", scene.name("data"));
        let name = scene.start("source", &["-v", &volume]);
        scene.sh(&name, TICK);
        let other = scene.machine.docker_with(|config| config.dir.set_file_name("other"));
        let (one, _) = scene.adopt(&name).await;
        let id = other.adopt(&name).await.unwrap().id;
        let two = other.attach(id).await.unwrap();

        let first = one.pause(SnapshotKind::Files).await.unwrap();
        let waiting = tokio::spawn(async move { two.pause(SnapshotKind::Files).await.map(drop) });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waiting.is_finished(), "it waits");
        first.resume().await.unwrap();
        waiting.await.unwrap().unwrap();
        let state = async || other.status(id).await.unwrap().unwrap().state;
        assert_eq!(state().await, SandboxState::Paused);
        let ticks = || fs::metadata(scene.volume(&name).join("ticks")).unwrap().len();
        let before = ticks();
        scene.driver.settle(one.id()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(ticks(), before, "whoever is done lets nobody else's go");
        other.settle(id).await.unwrap();
        assert_eq!(state().await, SandboxState::Running);
    });
}
