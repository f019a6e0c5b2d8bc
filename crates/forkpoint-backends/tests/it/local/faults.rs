//! Processes of ours that die, and machines that do.

use std::{
    fs,
    io::{self, BufRead as _},
    path::{Path, PathBuf},
    process::{self, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use forkpoint_core::{
    driver::{Artifact, Command, Driver as _, DriverError, SandboxState, TtySize},
    id::SandboxId,
};
use serde_json::{Value, json};

use crate::layer::is_root;

use super::{
    Machine,
    scene::{
        Scene, cgroups_of_ours, exec, finish, kill, new_snapshot, pids, read_text, seal, sh, spec,
        start, try_seal, until, write,
    },
    unique,
};

#[test]
fn a_killed_init_is_a_stopped_sandbox_that_comes_back() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let id = sandbox.id();
        write(&*sandbox, "/srv/kept", "kept").await.unwrap();
        let running = start(&*sandbox, "echo on; exec sleep 1000").await;
        kill(scene.init(id));
        let err = running.control.wait().await.unwrap_err();
        assert!(matches!(err, DriverError::Unreachable { .. }), "{err}");
        until("init ends", || {
            let alive = super::scene::is_alive(scene.init(id));
            alive.then(|| "init".to_owned()).into_iter().collect()
        });

        let state = scene.driver.status(id).await.unwrap().unwrap().state;
        assert_eq!(state, SandboxState::Stopped);
        let stopped = |err: DriverError| {
            let NotRunning { state, .. } = err else { panic!("{err}") };
            assert_eq!(state, SandboxState::Stopped);
        };
        use DriverError::NotRunning;
        let command = Command::new(["true"]);
        stopped(sandbox.exec(&command).await.unwrap_err());
        stopped(write(&*sandbox, "/srv/new", "new").await.unwrap_err());
        stopped(scene.driver.pause(id).await.unwrap_err());
        stopped(scene.driver.resume(id).await.unwrap_err());
        let snapshot = seal(&*sandbox).await;
        scene.driver.settle(id).await.unwrap();

        scene.driver.start(id, &spec()).await.unwrap();
        scene.note(id);
        assert_eq!(read_text(&*sandbox, "/srv/kept").await, "kept");
        assert_eq!(sh(&*sandbox, "pgrep -c sleep || true").await, "0\n");
        let copy = scene.restore(&snapshot).await;
        assert_eq!(read_text(&*copy, "/srv/kept").await, "kept");
    });
}

/// Traces a process, so that it is not gone before the tracer is: a moment after somebody asks for it, long
/// enough for who does not wait to be at the end of their patience.
const TRACER: &str = "import ctypes, sys, time
assert ctypes.CDLL(None, use_errno=True).ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0, ctypes.get_errno()
print('on', flush=True)
sys.stdin.read()
time.sleep(0.2)";

/// A process that is named so, as the machine sees it.
fn named(argv: &str) -> Option<i32> {
    let is_it = |pid: &i32| {
        let read = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        read.replace('\0', " ").trim_end() == argv
    };
    pids().into_iter().find(is_it)
}

fn is_deaf(socket: &Path) -> bool {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let kind = SocketType::SEQPACKET;
    let end = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let address = SocketAddrUnix::new(socket).unwrap();
    rustix::net::connect(end.unwrap(), &address).is_err()
}

/// It closes its socket first, and is not gone before the last of its processes is.
#[test]
fn an_init_that_is_on_its_way_out_is_as_good_as_gone() {
    let Some(scene) = Scene::new(true) else { return };
    for operation in ["settle", "seal", "start"] {
        scene.run(async {
            let sandbox = scene.create().await;
            let id = sandbox.id();
            write(&*sandbox, "/srv/kept", "kept").await.unwrap();
            let argv = format!("sleep 1{:020}", unique());
            start(&*sandbox, &format!("echo on; exec {argv}")).await;
            until("it sleeps", || {
                named(&argv).is_none().then(|| argv.clone()).into_iter().collect()
            });
            let mut tracer = process::Command::new("python3")
                .args(["-c", TRACER, &named(&argv).unwrap().to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut said = String::new();
            let heard = tracer.stdout.take().unwrap();
            io::BufReader::new(heard).read_line(&mut said).unwrap();
            assert_eq!(said, "on\n");
            let socket = scene.place(id).join("s0");
            assert!(!is_deaf(&socket));
            kill(scene.init(id));
            until("it hears nobody", || {
                (!is_deaf(&socket)).then(|| "it does".to_owned()).into_iter().collect()
            });
            assert!(super::scene::is_alive(scene.init(id)));
            drop(tracer.stdin.take());
            match operation {
                "settle" => scene.driver.settle(id).await.unwrap(),
                "seal" => drop(seal(&*sandbox).await),
                _ => {}
            }
            scene.driver.start(id, &spec()).await.unwrap();
            scene.note(id);
            assert_eq!(read_text(&*sandbox, "/srv/kept").await, "kept");
            assert!(tracer.wait().unwrap().success());
        });
    }
}

/// What is left of the one before is cleared away in the background, and must not be taken for it.
#[test]
fn an_id_can_be_tried_again_at_once() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let id = scene.new_id();
        for _ in 0..30 {
            let sandbox = scene.driver.create(id, &spec()).await.unwrap();
            scene.note(id);
            start(&*sandbox, "echo on; exec sleep 1000").await;
            scene.driver.destroy(id).await.unwrap();
        }
    });
}

/// The launchers that this process has started and that live.
pub(super) fn spawners() -> Vec<i32> {
    children(i32::try_from(process::id()).unwrap())
}

pub(super) fn children(parent: i32) -> Vec<i32> {
    let is_one = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((name, rest)) = stat.rsplit_once(") ") else { return false };
        let mut fields = rest.split(' ');
        name.ends_with("forkpoint-spawn")
            && fields.next() != Some("Z")
            && fields.next() == Some(&parent.to_string())
    };
    pids().into_iter().filter(is_one).collect()
}

#[test]
fn a_killed_launcher_is_replaced() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        write(&*sandbox, "/srv/kept", "kept").await.unwrap();
        for round in 0..3 {
            let launchers = spawners();
            assert_eq!(launchers.len(), 1, "{launchers:?}");
            kill(launchers[0]);
            until("it ends", || spawners().iter().map(i32::to_string).collect());
            match round {
                0 => drop(seal(&*sandbox).await),
                1 => drop(scene.create().await),
                _ => scene.driver.destroy(scene.create().await.id()).await.unwrap(),
            }
        }
        assert_eq!(read_text(&*sandbox, "/srv/kept").await, "kept");
    });
}

/// It ends after the driver, and finds the way that it knows gone.
#[test]
fn a_launcher_that_ends_late_makes_no_directory_anew() {
    let machine = Machine::new(true);
    let root = machine.directory.path().join("local");
    let driver = machine.local();
    super::run(async {
        for _ in 0..2 {
            let id = SandboxId::from_u128(unique());
            driver.create(id, &spec()).await.unwrap();
            driver.destroy(id).await.unwrap();
        }
    });
    assert_eq!(spawners().len(), 1);
    until("the data directory goes", || {
        // The trash is being emptied.
        let _ = fs::remove_dir_all(&root);
        root.exists().then(|| "it is there".to_owned()).into_iter().collect()
    });
    drop(driver);
    until("it ends", || spawners().iter().map(i32::to_string).collect());
    assert!(!root.exists(), "{:?}", fs::read_dir(&root).map(Iterator::count));
}

/// A launcher that dies at work, or the copy of it that does the work: what was asked fails or is
/// done, and the next one works.
#[test]
fn a_launcher_that_is_killed_at_work_leaves_nothing_half_done() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let (mut round, mut failures, mut text) = (0, 0, String::new());
        // When both happened often enough, however the machine's other work falls in between.
        while round < ROUNDS || failures == 0 || failures == round {
            assert!(round < 10 * ROUNDS, "{failures} of {round} were cut short");
            text = format!("round {round}");
            write(&*sandbox, "/srv/text", &text).await.unwrap();
            let is_over = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&is_over);
            let delay = round % ROUNDS;
            let killer = thread::spawn(move || kill_later(delay, &seen));
            let made = (round % 4 == 3).then(|| scene.new_id());
            let failed = match made {
                Some(id) => scene.driver.create(id, &spec()).await.is_err(),
                None => try_seal(&*sandbox).await.is_err(),
            };
            failures += u32::from(failed);
            round += 1;
            is_over.store(true, Ordering::Relaxed);
            killer.join().unwrap();
            if let Some(id) = made {
                scene.driver.destroy(id).await.unwrap();
                // Whoever sweeps up is not to be killed: it would leave a cgroup, an empty one.
                until("its cgroups go", || cgroups_of(id));
            }
            assert_eq!(read_text(&*sandbox, "/srv/text").await, text);
            assert_eq!(
                sh(&*sandbox, "test -e /proc/self/exe -a -e /dev/null && echo yes").await,
                "yes\n"
            );
        }
        eprintln!("{failures} of {round} operations were cut short");
        let copy = scene.restore(&seal(&*sandbox).await).await;
        assert_eq!(read_text(&*copy, "/srv/text").await, text);
    });
}

/// Asks init for its namespaces, and covers its root in them.
const COVER: &str = "import array, ctypes, os, socket, sys
init = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
init.connect(sys.argv[1])
init.send(b'\\0\"Namespaces\"')
_, fds, _, _ = socket.recv_fds(init, 1000, 8)
libc = ctypes.CDLL(None, use_errno=True)
def must(result): assert result == 0, os.strerror(ctypes.get_errno())
must(libc.setns(fds[0], 0x10000000))
must(libc.setns(fds[1], 0x20000))
must(libc.mount(b'none', b'/', b'tmpfs', 0, None))";

/// As by a launcher that was killed after it had put the new root on top of the old one, and before anybody
/// stood on it.
#[test]
fn what_lies_over_a_root_is_not_taken_for_it() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let socket = scene.place(sandbox.id()).join("s0");
        for text in ["one", "two"] {
            let cover = process::Command::new("python3").args(["-c", COVER]).arg(&socket).status();
            assert!(cover.unwrap().success());
            write(&*sandbox, "/srv/text", text).await.unwrap();
            let snapshot = seal(&*sandbox).await;
            write(&*sandbox, "/srv/text", "later").await.unwrap();
            let copy = scene.restore(&snapshot).await;
            assert_eq!(read_text(&*copy, "/srv/text").await, text);
            assert_eq!(read_text(&*sandbox, "/srv/text").await, "later");
        }
    });
}

pub(super) fn cgroups_of(id: SandboxId) -> Vec<String> {
    let all = cgroups_of_ours().into_iter().map(|path| path.display().to_string());
    all.filter(|path| path.contains(&id.to_string())).collect()
}

const ROUNDS: u32 = 100;

/// Later and later, so that it dies before, during and after.
fn kill_later(delay: u32, is_over: &AtomicBool) {
    let Some(spawner) = spawners().first().copied() else { return };
    if delay.is_multiple_of(3) {
        return kill(spawner);
    }
    while !is_over.load(Ordering::Relaxed) {
        if let Some(copy) = children(spawner).first() {
            (0..delay * 1000).for_each(|turn| {
                std::hint::black_box(turn);
            });
            return kill(*copy);
        }
    }
}

/// As after a power failure: no process, no cgroup, another boot; the files as they were.
fn reboot(scene: &Scene, id: SandboxId) {
    let mut record = scene.record(id);
    if record["init"].is_object() {
        kill(scene.init(id));
        let pid = scene.init(id);
        until("it ends", || {
            super::scene::is_alive(pid).then(|| pid.to_string()).into_iter().collect()
        });
        record["init"]["boot"] = json!("another");
    }
    until("its cgroups go", || {
        let is_its = |path: &PathBuf| path.to_str().unwrap().contains(&id.to_string());
        let left: Vec<_> = cgroups_of_ours().into_iter().filter(is_its).collect();
        left.into_iter()
            .filter(|path| fs::remove_dir(path).is_err())
            .map(|path| path.display().to_string())
            .collect()
    });
    scene.write_record(id, &record);
}

#[test]
fn after_a_reboot_everything_comes_back() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let id = sandbox.id();
        let mut snapshots: Vec<(String, Artifact)> = Vec::new();
        // Without root, the host's directories stay those of the host's root.
        let (doc, new) = match is_root() {
            true => ("/usr/share/doc", "/usr/lib/new"),
            false => ("/etc/default", "/etc/new"),
        };
        for number in 0..6 {
            let text = format!("text {number}");
            write(&*sandbox, "/srv/text", &text).await.unwrap();
            let change = format!("rm -rf /srv/dir {doc}; mkdir -p /srv/dir; echo {number} > {new}");
            sh(&*sandbox, &change).await;
            let busy = match number % 2 {
                0 => None,
                _ => Some(start(&*sandbox, "echo on; exec sleep 1000").await),
            };
            snapshots.push((text, seal(&*sandbox).await));
            if let Some(busy) = busy {
                busy.control.signal(9).await.unwrap();
                busy.control.wait().await.unwrap();
            }
        }
        write(&*sandbox, "/srv/text", "last").await.unwrap();
        reboot(&scene, id);

        let driver = scene.another_driver();
        let status = driver.status(id).await.unwrap().unwrap();
        assert_eq!(status.state, SandboxState::Stopped);
        assert_eq!(status.base, Some(snapshots[5].1.snapshot));
        driver.settle(id).await.unwrap();
        driver.start(id, &spec()).await.unwrap();
        scene.note(id);
        assert_eq!(read_text(&*sandbox, "/srv/text").await, "last");
        for (text, snapshot) in &snapshots {
            let copy = scene.restore(snapshot).await;
            assert_eq!(read_text(&*copy, "/srv/text").await, *text);
            driver.destroy(copy.id()).await.unwrap();
        }
        driver.rollback(id, &spec(), &snapshots[2].1).await.unwrap();
        scene.note(id);
        assert_eq!(read_text(&*sandbox, "/srv/text").await, "text 2");
        reboot(&scene, id);
        driver.rollback(id, &spec(), &snapshots[4].1).await.unwrap();
        scene.note(id);
        assert_eq!(read_text(&*sandbox, "/srv/text").await, "text 4");
        reboot(&scene, id);
        driver.destroy(id).await.unwrap();
    });
}

/// The machine fails when a seal has moved what was written, and not told yet: the record is still
/// that of before.
async fn crash_in_a_seal(scene: &Scene, stopped: bool) {
    let sandbox = scene.create().await;
    let id = sandbox.id();
    write(&*sandbox, "/srv/one", "one").await.unwrap();
    seal(&*sandbox).await;
    write(&*sandbox, "/srv/two", "two").await.unwrap();
    if stopped {
        scene.driver.stop(id).await.unwrap();
    }
    let before = scene.record(id);
    let snapshot = new_snapshot();
    let mut paused = sandbox.pause(forkpoint_core::driver::SnapshotKind::Files).await.unwrap();
    paused.seal(snapshot, forkpoint_core::driver::SnapshotKind::Files).await.unwrap();
    paused.resume().await.unwrap();
    let mut between = before;
    between["sealing"] = json!({ "snapshot": snapshot.to_string(), "root_device": 0 });
    between["init"] = scene.record(id)["init"].clone();
    scene.write_record(id, &between);
    reboot(scene, id);

    // What recovery does with a snapshot that was never committed.
    let driver = scene.another_driver();
    driver.settle(id).await.unwrap();
    driver.unseal(snapshot).await.unwrap();
    driver.start(id, &spec()).await.unwrap();
    scene.note(id);
    assert_eq!(read_text(&*sandbox, "/srv/one").await, "one");
    assert_eq!(read_text(&*sandbox, "/srv/two").await, "two");
    // And it goes on from there.
    let copy = scene.restore(&seal(&*sandbox).await).await;
    assert_eq!(read_text(&*copy, "/srv/two").await, "two");
}

#[test]
fn a_machine_that_fails_in_a_seal_loses_no_file() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(crash_in_a_seal(&scene, false));
}

#[test]
fn a_machine_that_fails_in_the_seal_of_a_stopped_sandbox_loses_no_file() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(crash_in_a_seal(&scene, true));
}

#[test]
fn a_record_that_cannot_be_read_keeps_nobody_from_destroying() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let id = sandbox.id();
        let _running = start(&*sandbox, "echo on; exec sleep 1000").await;
        scene.write_record(id, &Value::Null);
        assert!(scene.driver.status(id).await.is_err());
        assert_eq!(scene.driver.list().await.unwrap(), [id]);
        scene.driver.destroy(id).await.unwrap();
        assert_eq!(scene.driver.list().await.unwrap(), []);
    });
}

#[test]
fn a_creation_that_was_cut_short_leaves_nothing_after_its_destruction() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let id = scene.new_id();
        let sandbox = scene.driver.create(id, &spec()).await.unwrap();
        scene.note(id);
        let (out, _) = exec(&*sandbox, &["true"]).await;
        assert_eq!(out, "");
        // Whoever made it died before the record was written.
        fs::remove_file(scene.place(id).join("record.json")).unwrap();
        let driver = scene.another_driver();
        assert_eq!(driver.status(id).await.unwrap(), None);
        driver.settle(id).await.unwrap();
        driver.destroy(id).await.unwrap();
        assert_eq!(driver.list().await.unwrap(), []);
    });
}

/// A seal puts another root under a sandbox, and nothing else changes there.
async fn mounts_stay(scene: &Scene) {
    let sandbox = scene.create().await;
    let look = "cat /etc/machine-id /proc/sys/kernel/random/boot_id; \
                cut -d ' ' -f 5,6 /proc/self/mountinfo | sort; touch /dev/shm/kept; \
                ls -A /dev /dev/shm";
    let before = sh(&*sandbox, look).await;
    let host = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert!(!before.contains(&host), "{before}");
    assert!(before.contains("\n/etc/machine-id "), "{before}");
    let other = sh(&*scene.create().await, look).await;
    assert_ne!(before.lines().next(), other.lines().next());
    scene.driver.stop(sandbox.id()).await.unwrap();
    scene.driver.start(sandbox.id(), &spec()).await.unwrap();
    scene.note(sandbox.id());
    let again = sh(&*sandbox, look).await;
    assert_eq!(before.lines().next(), again.lines().next(), "the machine");
    assert_ne!(before.lines().nth(1), again.lines().nth(1), "the boot");
    let before = again;
    let mut command = Command::new(["tty"]);
    command.tty = Some(TtySize { rows: 5, columns: 20 });
    for _ in 0..3 {
        seal(&*sandbox).await;
        assert_eq!(sh(&*sandbox, look).await, before);
        let (tty, _) = finish(sandbox.exec(&command).await.unwrap()).await;
        assert!(tty.starts_with("/dev/pts/"), "{tty}");
    }
    let id = sandbox.id();
    let namespace = format!("/proc/{}/mountinfo", scene.init(id));
    assert!(fs::read_to_string(namespace).unwrap().lines().count() <= before.lines().count());
}

#[test]
fn what_is_mounted_stays_over_a_seal() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(mounts_stay(&scene));
}

#[test]
fn what_is_mounted_stays_over_a_seal_without_mapped_users() {
    let Some(scene) = Scene::new(false) else { return };
    scene.run(mounts_stay(&scene));
}
