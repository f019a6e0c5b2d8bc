//! Podman, through the socket at which it speaks as Docker does.

use forkpoint_testkit::docker::{IMAGE, Podman};
use tempfile::TempDir;

use super::WAIT;
use crate::harness::Home;

#[test]
fn containers_of_podman_are_kept_restored_and_rolled_back() {
    let directory = TempDir::new().expect("a directory");
    let podman = Podman::start(directory.path());
    let _ = podman.docker(&[
        "run",
        "-d",
        "--name",
        "web",
        "-v",
        "site:/data",
        "--network",
        "none",
        IMAGE,
        "sh",
        "-c",
        WAIT,
    ]);
    let sh = |name: &str, script: &str| podman.docker(&["exec", name, "sh", "-c", script]);
    let look = |name: &str| sh(name, "cat /root/state /data/state");
    let set = |text: &str| {
        sh("web", &format!("echo {text} > /root/state; echo {text} > /data/state"));
    };
    let home = Home::with_env("DOCKER_HOST", podman.host());
    set("good");
    let good = home.ok(["snapshot", "docker:web"]).id().to_owned();
    set("bad");
    let second = home.ok(["snapshot", "docker:web"]).id().to_owned();

    let copy = home.ok(["restore", &good, "--name", "copy"]).id().to_owned();
    assert_eq!((look("copy").as_str(), look("web").as_str()), ("good\ngood", "bad\nbad"));
    home.ok(["rollback", "docker:web", &good]);
    assert_eq!(look("web"), "good\ngood");
    home.ok(["rollback", "docker:web", &second]);
    assert_eq!(look("web"), "bad\nbad");
    home.ok(["rollback", "docker:web", &good]);

    home.ok(["rm", "--force", &copy]);
    home.ok(["delete", "--force", &second]);
    let ours = podman.docker(&["images", "--format", "{{.Repository}}"]);
    let ours = ours.lines().filter(|name| name.contains("forkpoint/")).count();
    assert_eq!(ours, 1, "that which the container stands on");
    assert_eq!(podman.docker(&["volume", "ls", "-q"]), "site", "the copy's own is gone");
}
