//! Whether anything changed since the last snapshot: no change of a container or its volumes goes
//! unseen, and where there is none, no image is made.

use forkpoint_core::{
    driver::{Artifact, Driver as _, Sandbox},
    id::SnapshotId,
};

use super::{
    runtime,
    scene::{Scene, new_id},
};

const PREPARE: &str = "chmod 755 /; mkdir -p /srv/dir /data/dir && echo kept > /srv/kept \
    && echo in > /srv/dir/in && echo kept > /data/kept && echo in > /data/dir/in; sleep 0.05";

const READ: &str = "cat /srv/kept /data/kept; ls -lR /srv /etc /data >/dev/null";

/// Each a change of the container's own files.
const OWN: [&str; 14] = [
    "echo new > /srv/new",
    "echo more >> /srv/kept",
    "chmod 600 /srv/kept",
    "touch -d 2001-01-01 /srv/kept",
    "rm /srv/kept",
    "rm -r /srv/dir && mkdir /srv/dir",
    "mv /srv/kept /srv/moved",
    "ln /srv/kept /srv/linked",
    "xattr /srv/kept",
    "touch /etc/new",
    "rm /etc/group; cp /etc/passwd /etc/group",
    "chmod 700 /",
    "touch -d 2001-01-01 /",
    "xattr /",
];

/// Each a change of a volume.
const OF_A_VOLUME: [&str; 7] = [
    "echo new > /data/new",
    "echo more >> /data/kept",
    "chmod 600 /data/kept",
    "rm -r /data/dir && mkdir /data/dir",
    "xattr /data/kept",
    "chmod 700 /data",
    "touch -d 2001-01-01 /data",
];

async fn is_unchanged(sandbox: &dyn Sandbox, since: SnapshotId) -> bool {
    let mut paused = sandbox.pause(forkpoint_core::driver::SnapshotKind::Files).await.unwrap();
    let unchanged = paused.is_unchanged(&crate::artifact_of(since)).await;
    paused.resume().await.unwrap();
    unchanged.unwrap()
}

/// By a shell, or where that has no word for it, from outside.
fn make(scene: &Scene, name: &str, change: &str) {
    let Some(path) = change.strip_prefix("xattr ") else {
        scene.sh(name, change);
        return;
    };
    let pid = scene.inspect(name)["State"]["Pid"].as_u64().unwrap();
    let path = format!("/proc/{pid}/root{path}");
    rustix::fs::setxattr(path, "user.x", b"1", rustix::fs::XattrFlags::empty()).unwrap();
}

fn image(artifact: &Artifact) -> &str {
    artifact.data["image"].as_str().unwrap()
}

#[test]
fn every_change_is_seen_and_no_image_is_made_without_one() {
    runtime().block_on(async {
        let scene = Scene::new();
        let volume = format!("{}:/data", scene.name("data"));
        let name = scene.start("source", &["-v", &volume]);
        let (sandbox, _) = scene.adopt(&name).await;
        let all = OWN.iter().map(|change| (change, true));
        for (change, own) in all.chain(OF_A_VOLUME.iter().map(|change| (change, false))) {
            scene.sh(&name, PREPARE);
            let sealed = scene.seal(sandbox.as_ref()).await;
            let since = sealed.snapshot;
            scene.sh(&name, READ);
            assert!(
                is_unchanged(sandbox.as_ref(), since).await,
                "it was only read before: {change}"
            );
            make(&scene, &name, change);
            assert!(!is_unchanged(sandbox.as_ref(), since).await, "{change}");
            let after = scene.seal(sandbox.as_ref()).await;
            assert_eq!(image(&sealed) != image(&after), own, "an image of its own: {change}");
            for artifact in [sealed, after] {
                for piece in &artifact.pieces {
                    scene.driver.discard(&piece.name).await.unwrap();
                }
            }
        }
    });
}

#[test]
fn what_shares_an_image_is_found_restored_and_deleted_alone() {
    runtime().block_on(async {
        let scene = Scene::new();
        let volume = format!("{}:/data", scene.name("data"));
        let name = scene.start("source", &["-v", &volume]);
        let (sandbox, spec) = scene.adopt(&name).await;
        scene.sh(&name, PREPARE);
        let mut sealed = Vec::new();
        for number in 0..3 {
            scene.sh(&name, &format!("echo {number} > /data/kept; sleep 0.05"));
            sealed.push(scene.seal(sandbox.as_ref()).await);
            let base = scene.driver.status(sandbox.id()).await.unwrap().unwrap().base;
            assert_eq!(base, Some(sealed[number].snapshot), "the last one");
        }
        assert_eq!(image(&sealed[0]), image(&sealed[2]));
        let [first, middle, last] = &sealed[..] else { unreachable!() };

        scene.driver.unseal(last.snapshot).await.unwrap();
        let base = scene.driver.status(sandbox.id()).await.unwrap().unwrap().base;
        assert_eq!(base, Some(middle.snapshot));
        scene.driver.unseal(first.snapshot).await.unwrap();
        let copy = scene.driver.restore(new_id(), &spec, middle).await.unwrap();
        assert_eq!(super::scene::shell(copy.as_ref(), "cat /data/kept").await, "1\n");
        scene.driver.destroy(copy.id()).await.unwrap();
        scene.driver.unseal(middle.snapshot).await.unwrap();
        assert_eq!(scene.ours(), [] as [&str; 0]);
    });
}

#[test]
fn what_a_container_does_not_stand_on_says_nothing() {
    runtime().block_on(async {
        let scene = Scene::new();
        let name = scene.start("source", &[]);
        let (sandbox, spec) = scene.adopt(&name).await;
        scene.sh(&name, PREPARE);
        let first = scene.seal(sandbox.as_ref()).await;
        scene.sh(&name, "echo other > /srv/kept; sleep 0.05");
        let second = scene.seal(sandbox.as_ref()).await;
        assert!(!is_unchanged(sandbox.as_ref(), first.snapshot).await, "an earlier one");
        assert!(is_unchanged(sandbox.as_ref(), second.snapshot).await);
        scene.driver.unseal(second.snapshot).await.unwrap();
        assert!(!is_unchanged(sandbox.as_ref(), second.snapshot).await, "it never came to be");
        scene.driver.rollback(sandbox.id(), &spec, &first).await.unwrap();
        let third = scene.seal(sandbox.as_ref()).await;
        scene.sh(&name, "echo 10.0.0.7 elsewhere >> /etc/hosts");
        assert!(!is_unchanged(sandbox.as_ref(), third.snapshot).await, "what the engine makes");
    });
}
