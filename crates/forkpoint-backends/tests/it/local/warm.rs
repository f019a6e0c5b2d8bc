//! Sandboxes that are ready before anybody wants them.

use std::{fs, path::PathBuf};

use forkpoint_backends::driver::local::{LocalDriver, WARM_MAX, Warmth};
use forkpoint_core::{
    driver::{Driver as _, ExitStatus},
    spec::{Network, Resources, SandboxSpec},
};

use super::{
    Machine,
    full::{count, counting, counts_on, is_open, seal_full},
    scene::{
        Scene, cgroups_of_ours, exec, is_alive, kill, pids, read_text, seal, sh, spec, until, write,
    },
};

/// Who is not root has none, and the suite passes without.
pub(super) fn machine(map_users: bool, warm: usize) -> Machine {
    let warm = if rustix::process::geteuid().is_root() { warm } else { 0 };
    let mut machine = Machine::new(map_users);
    machine.warm = warm;
    machine
}

pub(super) fn until_ready(driver: &LocalDriver, count: usize) {
    driver.warm_up();
    until("all are ready", || {
        let warmth = driver.warmth();
        (warmth.ready != count).then(|| format!("{warmth:?}")).into_iter().collect()
    });
}

fn scene(warm: usize) -> Option<Scene> {
    Scene::by_root(true, "nothing is kept ready")?;
    let scene = Scene::on(machine(true, warm));
    until_ready(&scene.driver, warm);
    Some(scene)
}

fn used(driver: &LocalDriver) -> (u64, u64) {
    let Warmth { used, missed, .. } = driver.warmth();
    (used, missed)
}

/// Everybody who was started for this scene, but the one who starts others.
fn made_for(scene: &Scene) -> Vec<i32> {
    let mark = format!("FORKPOINT_ROOT={}", scene.root().display());
    let is_its = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|word| word == mark.as_bytes()) && is_alive(*pid)
    };
    pids().into_iter().filter(is_its).filter(|pid| parent(*pid) != own_pid()).collect()
}

fn own_pid() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

fn parent(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').nth(1)).unwrap_or_default();
    fields.and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Of a blank: the one who keeps it, and its process 1.
fn keepers_and_inits(scene: &Scene) -> (Vec<i32>, Vec<i32>) {
    let all = made_for(scene);
    all.iter().partition(|pid| !all.contains(&parent(**pid)))
}

fn cgroups() -> Vec<PathBuf> {
    let start = format!("warm-{}-", own_pid());
    let is_ours = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&start);
    cgroups_of_ours().into_iter().filter(is_ours).collect()
}

/// Of a driver that is dead, with somebody in it who takes a while to end.
#[test]
fn a_cgroup_that_is_on_its_way_out_is_removed_too() {
    let Some(scene) = Scene::by_root(true, "nothing is kept ready") else { return };
    let left = scene.run(async {
        let id = scene.create().await.id().to_string();
        let own = cgroups_of_ours().into_iter().find(|path| path.to_str().unwrap().contains(&id));
        own.unwrap().with_file_name(format!("warm-{}-1-{}", i32::MAX, own_pid()))
    });
    fs::create_dir(&left).unwrap();
    let mut lives = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(left.join("cgroup.procs"), lives.id().to_string()).unwrap();
    let warm = Scene::on(machine(true, 1));
    until_ready(&warm.driver, 1);
    assert!(left.exists());
    lives.kill().unwrap();
    lives.wait().unwrap();
    until("it goes", || left.exists().then(|| left.display().to_string()).into_iter().collect());
}

#[test]
fn what_is_ready_is_used_and_made_anew() {
    let Some(scene) = scene(2) else { return };
    scene.run(async {
        let first = scene.create().await;
        let second = scene.create().await;
        assert_eq!(used(&scene.driver), (2, 0));
        write(&*first, "/srv/own", "first").await.unwrap();
        for sandbox in [&first, &second] {
            let id = sandbox.id().to_string();
            assert_eq!(sh(&**sandbox, "hostname").await.trim(), id);
            assert_eq!(sh(&**sandbox, "echo $$; ps -e | wc -l").await.lines().count(), 2);
            assert_eq!(sh(&**sandbox, "cat /proc/self/cgroup | grep -v ':/$' || true").await, "");
            sh(
                &**sandbox,
                "for at in /proc /sys /dev /dev/pts /dev/shm; do mountpoint -q $at; done",
            )
            .await;
            assert_eq!(
                sh(
                    &**sandbox,
                    "ls -d /stage /host 2>/dev/null; grep -c ' / / ' /proc/self/mountinfo"
                )
                .await,
                "1\n"
            );
        }
        assert_eq!(sh(&*second, "ls /srv").await, "");
        let told = |sandbox| async move {
            let boot = sh(sandbox, "cat /proc/sys/kernel/random/boot_id").await;
            (boot, read_text(sandbox, "/etc/machine-id").await)
        };
        let (first_told, second_told) = (told(&*first).await, told(&*second).await);
        assert_ne!(first_told.0, second_told.0);
        assert_ne!(first_told.1, second_told.1);

        until_ready(&scene.driver, 2);
        let artifact = seal(&*first).await;
        let copy = scene.restore(&artifact).await;
        assert_eq!(read_text(&*copy, "/srv/own").await, "first");
        let back = scene.driver.rollback(first.id(), &spec(), &artifact).await.unwrap();
        scene.note(first.id());
        assert_eq!(read_text(&*back, "/srv/own").await, "first");
        assert_eq!(used(&scene.driver), (4, 0));
        scene.driver.stop(second.id()).await.unwrap();
        until_ready(&scene.driver, 2);
        scene.driver.start(second.id(), &spec()).await.unwrap();
        scene.note(second.id());
        assert_eq!(used(&scene.driver), (5, 0));
    });
}

#[test]
fn processes_come_back_in_one_that_is_ready() {
    let Some(scene) = scene(1) else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let artifact = seal_full(&*sandbox).await;
        until_ready(&scene.driver, 1);
        // None knew of these processes yet; from then on one does.
        scene.restore(&artifact).await;
        assert_eq!(used(&scene.driver), (1, 1));
        for round in 2..5 {
            until_ready(&scene.driver, 1);
            let copy = scene.restore(&artifact).await;
            assert_eq!(used(&scene.driver), (round, 1));
            counts_on(&*copy, count(&*copy).await).await;
            assert_eq!(sh(&*copy, "hostname").await.trim(), copy.id().to_string());
        }
        until_ready(&scene.driver, 1);
        let memory = artifact.pieces.iter().find(|piece| piece.name.0.starts_with("memory-"));
        scene.driver.discard(&memory.unwrap().name).await.unwrap();
        let name = artifact.snapshot.to_string();
        until("nobody has it open", || is_open(&name).then(|| name.clone()).into_iter().collect());
        until_ready(&scene.driver, 1);
        scene.create().await;
        assert_eq!(used(&scene.driver), (5, 1));
    });
}

/// An image that somebody changed is not believed because it was read before.
#[test]
fn what_was_prepared_of_an_image_that_changed_is_not_used() {
    let Some(scene) = scene(1) else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let artifact = seal_full(&*sandbox).await;
        scene.restore(&artifact).await;
        until_ready(&scene.driver, 1);
        let pages = scene.root().join("memory").join(artifact.snapshot.to_string()).join("pages");
        let mut content = fs::read(&pages).unwrap();
        content[0] ^= 1;
        fs::write(&pages, content).unwrap();
        let refused = scene.driver.restore(scene.new_id(), &spec(), &artifact).await;
        assert!(refused.is_err());
    });
}

#[test]
fn limits_hold_in_one_that_was_ready() {
    let Some(scene) = scene(1) else { return };
    scene.run(async {
        let resources =
            Resources { memory_bytes: Some(64 << 20), cpu_millis: None, pids: Some(16) };
        let sandbox = scene.create_as(&SandboxSpec { resources, ..spec() }).await;
        let size = sh(&*sandbox, "df --output=size -B1 /dev/shm | tail -1").await;
        assert_eq!(size.trim(), (32 << 20).to_string());
        let forks = "for i in $(seq 40); do sleep 1000 < /dev/null > /dev/null 2>&1 & done";
        let (_, status) = exec(&*sandbox, &["sh", "-c", forks]).await;
        assert_ne!(status, ExitStatus::Code(0), "more than 16 run");
        let eats = "x = bytearray(100 << 20)";
        until_ready(&scene.driver, 1);
        let other = SandboxSpec { resources: Resources { pids: None, ..resources }, ..spec() };
        let sandbox = scene.create_as(&other).await;
        let (said, status) = exec(&*sandbox, &["python3", "-c", eats]).await;
        assert_ne!(status, ExitStatus::Code(0), "{said}");
        assert_eq!(used(&scene.driver), (2, 0));
    });
}

/// What is kept ready follows what is asked for.
#[test]
fn another_network_is_another_shape() {
    let Some(scene) = scene(3) else { return };
    scene.run(async {
        let reaching = SandboxSpec { network: Network::Host, ..spec() };
        let here = sh(&*scene.create_as(&reaching).await, "readlink /proc/self/ns/net").await;
        let host = fs::read_link("/proc/self/ns/net").unwrap().display().to_string();
        assert_eq!(here.trim(), host);
        assert_eq!(used(&scene.driver), (0, 1));
        until_ready(&scene.driver, 3);
        for spec in [&reaching, &spec()] {
            let inside = sh(&*scene.create_as(spec).await, "readlink /proc/self/ns/net").await;
            assert_eq!(inside.trim() == host, spec.network == Network::Host);
        }
        assert_eq!(used(&scene.driver), (2, 1));
    });
}

#[test]
fn one_that_died_is_replaced_and_nobody_notices() {
    let Some(scene) = scene(2) else { return };
    scene.run(async {
        for which in 0..3 {
            until_ready(&scene.driver, 2);
            let lost = scene.driver.warmth().lost;
            // Who cleared up before may still be there.
            until("only they are there", || {
                let (keepers, inits) = keepers_and_inits(&scene);
                let there = (keepers.len(), inits.len());
                (there != (2, 2)).then(|| format!("{there:?}")).into_iter().collect()
            });
            let (keepers, inits) = keepers_and_inits(&scene);
            match which {
                0 => keepers.iter().for_each(|pid| kill(*pid)),
                1 => inits.iter().for_each(|pid| kill(*pid)),
                _ => made_for(&scene).into_iter().for_each(kill),
            }
            // At once: they may be on their way out.
            let sandbox = scene.create().await;
            assert_eq!(sh(&*sandbox, "echo works").await, "works\n");
            scene.driver.destroy(sandbox.id()).await.unwrap();
            until_ready(&scene.driver, 2);
            assert!(scene.driver.warmth().lost >= lost, "{:?}", scene.driver.warmth());
            until("only two are there", || {
                let there = (made_for(&scene).len(), cgroups().len());
                (there != (4, 2)).then(|| format!("{there:?}")).into_iter().collect()
            });
        }
    });
}

#[test]
fn there_are_never_more_than_was_said() {
    let Some(scene) = scene(3) else { return };
    scene.run(async {
        for _ in 0..8 {
            let sandbox = scene.create().await;
            until_ready(&scene.driver, 3);
            // The sandbox's own is one of them.
            assert!(cgroups().len() <= 4, "{:?}", cgroups());
            scene.driver.destroy(sandbox.id()).await.unwrap();
            until("its cgroup goes", || {
                cgroups().into_iter().skip(3).map(|path| path.display().to_string()).collect()
            });
        }
        until("only three are there", || {
            let there = (made_for(&scene).len(), cgroups().len());
            (there != (6, 3)).then(|| format!("{there:?}")).into_iter().collect()
        });
    });
}

#[test]
fn there_are_never_more_than_can_be_said() {
    let Some(scene) = Scene::by_root(true, "nothing is kept ready") else { return };
    drop(scene);
    let scene = Scene::on(machine(true, 1000));
    until_ready(&scene.driver, WARM_MAX);
    assert_eq!(keepers_and_inits(&scene).0.len(), WARM_MAX);
}

/// As many drivers do that are opened for a moment.
#[test]
fn they_end_with_the_driver() {
    let Some(scene) = scene(2) else { return };
    let another = machine_beside(&scene);
    until_ready(&another, 2);
    assert_eq!(made_for(&scene).len(), 8);
    drop(another);
    until("those of the other driver end", || {
        let there = (made_for(&scene).len(), cgroups().len());
        (there != (4, 2)).then(|| format!("{there:?}")).into_iter().collect()
    });
}

fn machine_beside(scene: &Scene) -> LocalDriver {
    use forkpoint_backends::driver::local::LocalConfig;
    let helper = Some(super::helper());
    LocalDriver::open(LocalConfig { helper, warm: 2, ..LocalConfig::new(scene.root()) }).unwrap()
}
