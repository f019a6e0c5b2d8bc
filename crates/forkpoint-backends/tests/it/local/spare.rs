//! Users, a network and mounts that were there before the sandbox that has them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use forkpoint_core::{
    driver::Sandbox,
    spec::{Network, Resources, SandboxSpec},
};
use futures::future::join_all;

use super::scene::{Scene, pids, python, sh, spec, until};

/// Namespaces that the one who launches our sandboxes holds open.
fn held() -> BTreeSet<PathBuf> {
    let ours = std::process::id().to_string();
    let is_child = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.split(' ').nth(1) == Some(&*ours))
    };
    let open = |pid: i32| {
        let all = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        all.filter_map(|entry| fs::read_link(entry.path()).ok())
    };
    let is_namespace = |path: &PathBuf| {
        path.to_str().is_some_and(|name| name.starts_with("net:[") || name.starts_with("user:["))
    };
    pids().into_iter().filter(is_child).flat_map(open).filter(is_namespace).collect()
}

/// As soon as nobody asks for anything. The users of all layers are there besides.
fn wait_for_spare() -> BTreeSet<PathBuf> {
    until("there is one", || {
        let is_whole = held().len() == 3;
        (!is_whole).then(|| format!("{:?}", held())).into_iter().collect()
    });
    held()
}

fn namespace(scene: &Scene, sandbox: &dyn Sandbox, kind: &str) -> PathBuf {
    let path = format!("/proc/{}/ns/{kind}", scene.init(sandbox.id()));
    fs::read_link(path).unwrap()
}

/// What a sandbox shows of itself that is the same in all of them.
async fn look(sandbox: &dyn Sandbox) -> String {
    const MOUNTS: &str = "
for line in sorted(open('/proc/self/mountinfo')):
    before, after = line.split(' - ')
    words = before.split()
    print(words[4], words[5], words[6:], after.split()[0])
    if not words[4].startswith('/usr') and words[4] != '/': print(after.split()[2])
";
    let mut mounts: Vec<_> = python(sandbox, MOUNTS).await.lines().map(str::to_owned).collect();
    mounts.sort_unstable();
    let rest = "cat /proc/self/uid_map /proc/self/gid_map /proc/self/status | grep -v -i -E 'pid|gid:|sid:|ctxt|vm|rss|hugetlb|cpus_allowed|mems|sigq'
        ls -lan --time-style=+ /dev /dev/pts /dev/shm /sys /sys/class/net
        cat /sys/class/net/lo/operstate /sys/class/net/lo/flags; df /dev/shm | tail -n 1
        stat -c '%n %a %u %g %t %T' /dev/* /proc/kcore /proc/keys /sys/firmware; ls /sys/firmware /sys/fs/cgroup
        id; ulimit -a";
    let rest = sh(sandbox, &format!("{rest}; true")).await;
    format!("{}\n{rest}", mounts.join("\n"))
}

const ANSWERS: &str = "
import socket
server = socket.create_server(('127.0.0.1', 80))
client = socket.create_connection(('127.0.0.1', 80))
assert client.getsockname() == server.accept()[1]
";

#[test]
fn the_next_sandbox_has_what_was_made_for_it_and_looks_like_any_other() {
    let Some(scene) = Scene::by_root(true, "nothing is made before") else { return };
    scene.run(async {
        let first = scene.create().await;
        let spare = wait_for_spare();
        let second = scene.create().await;
        for kind in ["net", "user"] {
            assert!(spare.contains(&namespace(&scene, &*second, kind)), "{kind}, {spare:?}");
            assert!(!spare.contains(&namespace(&scene, &*first, kind)), "{kind}, {spare:?}");
        }
        python(&*second, ANSWERS).await;
        assert_eq!(look(&*second).await, look(&*first).await);
        // Nobody holds them any more who could give them to another.
        assert!(wait_for_spare().is_disjoint(&[namespace(&scene, &*second, "net")].into()));
    });
}

#[test]
fn nobody_shares_what_was_made_for_one() {
    let Some(scene) = Scene::by_root(true, "nothing is made before") else { return };
    scene.run(async {
        scene.create().await;
        wait_for_spare();
        let all = join_all((0..6).map(|_| scene.create())).await;
        for kind in ["net", "user", "mnt", "pid"] {
            let their: BTreeSet<_> =
                all.iter().map(|sandbox| namespace(&scene, &**sandbox, kind)).collect();
            assert_eq!(their.len(), all.len(), "{kind}: {their:?}");
        }
        for sandbox in &all {
            python(&**sandbox, ANSWERS).await;
        }
    });
}

#[test]
fn who_wants_something_else_has_that() {
    let Some(scene) = Scene::by_root(true, "nothing is made before") else { return };
    scene.run(async {
        scene.create().await;
        wait_for_spare();
        let host = scene.create_as(&SandboxSpec { network: Network::Host, ..spec() }).await;
        let outside = fs::read_link(Path::new("/proc/self/ns/net")).unwrap();
        assert_eq!(namespace(&scene, &*host, "net"), outside);
        wait_for_spare();
        let resources = Resources { memory_bytes: Some(64 << 20), ..Resources::default() };
        let small = scene.create_as(&SandboxSpec { resources, ..spec() }).await;
        let size = sh(&*small, "df --output=size -B 1 /dev/shm | tail -n 1").await;
        assert_eq!(size.trim(), (32 << 20).to_string());
    });
}
