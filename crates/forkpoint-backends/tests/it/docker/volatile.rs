//! What is in memory alone, without the processes.

use forkpoint_core::{
    driver::{Artifact, Driver as _, Sandbox, Severity, SnapshotKind},
    id::SnapshotId,
};

use super::{
    runtime,
    scene::{Scene, new_id, shell},
    unique,
};

const LOOK: &str = "cat /scratch/a /scratch/dir/b /dev/shm/c /mounted/d; stat -c %a /scratch/a";
const GOOD: &str = "1\n2\n3\n4\n640\n";

async fn seal_all(sandbox: &dyn Sandbox) -> Artifact {
    let mut paused = sandbox.pause(SnapshotKind::Files).await.unwrap();
    paused.include_volatile().await.unwrap();
    let artifact = paused.seal(SnapshotId::from_u128(unique()), SnapshotKind::Files).await;
    paused.resume().await.unwrap();
    artifact.unwrap()
}

#[test]
fn what_is_in_memory_comes_back_if_it_was_asked_for() {
    runtime().block_on(async {
        let scene = Scene::new();
        let name = scene
            .start("source", &["--tmpfs", "/scratch", "--mount", "type=tmpfs,target=/mounted"]);
        let fill = "umask 022; echo 1 > /scratch/a; chmod 640 /scratch/a; mkdir /scratch/dir; \
            echo 2 > /scratch/dir/b; echo 3 > /dev/shm/c; echo 4 > /mounted/d";
        scene.sh(&name, fill);
        let (sandbox, spec) = scene.adopt(&name).await;
        let plain = scene.seal(sandbox.as_ref()).await;
        assert!(plain.data.get("volatile").is_none());
        let sealed = seal_all(sandbox.as_ref()).await;
        scene.sh(&name, "rm -r /scratch/a /scratch/dir /dev/shm/c; echo new > /mounted/d");

        let copy = scene.driver.restore(new_id(), &spec, &sealed).await.unwrap();
        assert_eq!(shell(copy.as_ref(), LOOK).await, GOOD);
        let bare = scene.driver.restore(new_id(), &spec, &plain).await.unwrap();
        assert_eq!(shell(bare.as_ref(), "ls /scratch /dev/shm").await, "/dev/shm:\n\n/scratch:\n");
        scene.driver.rollback(sandbox.id(), &spec, &sealed).await.unwrap();
        assert_eq!(shell(sandbox.as_ref(), LOOK).await, GOOD, "rolled back");

        let parts = scene.driver.export(&sealed).await.unwrap();
        let imported = SnapshotId::from_u128(unique());
        let imported = scene.driver.import(imported, parts).await.unwrap();
        let there = scene.driver.restore(new_id(), &spec, &imported).await.unwrap();
        assert_eq!(shell(there.as_ref(), LOOK).await, GOOD, "from elsewhere");
        for id in [copy.id(), bare.id(), there.id()] {
            scene.driver.destroy(id).await.unwrap();
        }
        for artifact in [&sealed, &imported] {
            assert_eq!(super::scene::things(artifact), 4, "the image and three mounts");
            scene.driver.unseal(artifact.snapshot).await.unwrap();
        }
    });
}

#[test]
fn what_is_mounted_below_is_no_part_of_it() {
    runtime().block_on(async {
        let scene = Scene::new();
        let host = tempfile::TempDir::new().unwrap();
        std::fs::write(host.path().join("theirs"), "theirs").unwrap();
        let bind = format!("{}:/scratch/bind", host.path().display());
        let name = scene.start("source", &["--tmpfs", "/scratch", "-v", &bind]);
        scene.sh(&name, "echo 1 > /scratch/a; echo 3 > /dev/shm/c");
        let (sandbox, spec) = scene.adopt(&name).await;
        let findings = scene.driver.validate(sandbox.id(), SnapshotKind::Files).await.unwrap();
        let left_out = findings.iter().filter(|one| one.severity == Severity::LeftOut);
        let left_out: Vec<&str> = left_out.map(|one| one.message.as_str()).collect();
        assert_eq!(
            left_out,
            [
                "`/dev/shm` is in memory (tmpfs): what is in it is kept only with `--tmpfs`",
                "`/scratch` is in memory (tmpfs): what is in it is not kept: something else is mounted below it",
            ]
        );
        let sealed = seal_all(sandbox.as_ref()).await;
        let notices = scene.driver.notices(sandbox.id());
        assert!(notices.iter().any(|text| text.contains("`/scratch` is not kept")), "{notices:?}");
        scene.driver.rollback(sandbox.id(), &spec, &sealed).await.unwrap();
        assert_eq!(shell(sandbox.as_ref(), "cat /dev/shm/c; cat /scratch/bind/theirs").await, "3\ntheirs");
        assert_eq!(std::fs::read_to_string(host.path().join("theirs")).unwrap(), "theirs");
    });
}
