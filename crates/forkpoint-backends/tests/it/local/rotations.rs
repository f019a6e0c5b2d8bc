//! Full snapshots of programs that have written much: what they wrote becomes the layer, and they go on with the same files of
//! another root.

use std::{
    collections::BTreeMap,
    fs,
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    sync::Arc,
};

use forkpoint_core::driver::{Artifact, Driver as _, Sandbox, SnapshotKind};
use rustix::{
    fs::{Mode, OFlags, open, openat},
    process::{chroot, fchdir},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

use super::{
    Machine,
    full::{count, counting, counts_on, seal_full, try_seal_full},
    scene::{Scene, new_snapshot, python, read_text, seal, sh, spec, start, with_causes},
};

/// Enough that it is not copied.
const MUCH: &str = "head -c 9000000 /dev/zero > /srv/much";

/// Two processes that share a log and have a lock, a place in a file and one that is gone; in a directory of their own.
const WORK: &str = "
import fcntl, os, time
os.makedirs('/srv/here')
os.chdir('/srv/here')
open('/srv/read', 'w').write('0123456789' * 1000)
open('/srv/gone', 'w').write('gone but read')
log = os.open('/srv/log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
lock = os.open('/srv/lock', os.O_WRONLY | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
mine = os.open('/srv/mine', os.O_WRONLY | os.O_CREAT)
read = os.open('/srv/read', os.O_RDONLY)
gone = os.open('/srv/gone', os.O_RDONLY)
os.remove('/srv/gone')
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)
os.setsid()
child = os.fork()
fcntl.lockf(mine if child else log, fcntl.LOCK_EX, 1, 0 if child else 5)
name = 'parent' if child else 'child'
count = 0
while True:
    count += 1
    os.write(log, f'{name} {count}\\n'.encode())
    text = os.read(read, 1).decode()
    os.lseek(gone, 0, 0)
    told = f'{count} {text} {os.read(gone, 100).decode()} {os.getcwd()}'
    with open(name + '.new', 'w') as file: file.write(told)
    os.rename(name + '.new', name)
    time.sleep(0.005)
";

async fn working(scene: &Scene) -> Arc<dyn Sandbox> {
    let sandbox = scene.create().await;
    sh(&*sandbox, MUCH).await;
    python(&*sandbox, WORK).await;
    works(&*sandbox).await;
    sandbox
}

/// Both go on, where they are, with what they had open.
async fn works(sandbox: &dyn Sandbox) {
    sh(
        sandbox,
        "for one in parent child; do cd /srv/here; until [ -e $one ]; do sleep 0.01; done; \
                 was=$(cat $one); until [ \"$(cat $one)\" != \"$was\" ]; do sleep 0.01; done; done",
    )
    .await;
    for name in ["parent", "child"] {
        let told = read_text(sandbox, &format!("/srv/here/{name}")).await;
        assert!(told.ends_with("gone but read /srv/here"), "{told}");
    }
    // Nobody's line is missing or there twice.
    let log = read_text(sandbox, "/srv/log").await;
    for name in ["parent ", "child "] {
        let numbers = log.lines().filter_map(|line| line.strip_prefix(name));
        for (number, found) in (1..).zip(numbers) {
            assert_eq!(found, number.to_string(), "{name}");
        }
    }
    assert_eq!(sh(sandbox, "flock -n /srv/lock true || echo locked").await, "locked\n");
    let locked = "
import fcntl, os
for name, at in (('/srv/mine', 0), ('/srv/log', 5)):
    try:
        fcntl.lockf(os.open(name, os.O_WRONLY), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)
        print(name, 'is free')
    except OSError: pass
";
    assert_eq!(python(sandbox, locked).await, "");
}

fn generation(scene: &Scene, sandbox: &dyn Sandbox) -> u64 {
    scene.record(sandbox.id())["generation"].as_u64().unwrap()
}

/// All that a snapshot's layer holds: times and inodes too.
fn layer(scene: &Scene, artifact: &Artifact) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let layer = artifact.data["layer"].as_str().unwrap();
    let mut open = vec![scene.root().join("store/layers").join(layer).join("tree")];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let stat = fs::symlink_metadata(&path).unwrap();
            let content = if stat.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let told = (stat.ino(), stat.mode(), stat.mtime_nsec(), stat.ctime_nsec());
            found.insert(path.display().to_string(), format!("{told:?} {content:?}"));
            if stat.is_dir() {
                open.push(path);
            }
        }
    }
    found
}

/// How many overlays there are in a sandbox, also below its root.
fn overlays(scene: &Scene, sandbox: &dyn Sandbox) -> usize {
    let init = scene.init(sandbox.id());
    let count = move || {
        let path = OFlags::PATH | OFlags::DIRECTORY;
        let proc = open("/proc", path, Mode::empty()).unwrap();
        let namespace = fs::File::open(format!("/proc/{init}/ns/mnt")).unwrap();
        // What lies below the root is the third that init was launched with.
        let floor = open(format!("/proc/{init}/fd/5"), path, Mode::empty()).unwrap();
        // SAFETY: nothing of this thread relies on where it stands.
        #[expect(unsafe_code, reason = "a thread that stands elsewhere than the others")]
        unsafe { unshare_unsafe(UnshareFlags::FS) }.unwrap();
        let kind = Some(LinkNameSpaceType::Mount);
        move_into_link_name_space(namespace.as_fd(), kind).unwrap();
        fchdir(&floor).and_then(|()| chroot(".")).unwrap();
        let table = openat(&proc, "thread-self/mountinfo", OFlags::RDONLY, Mode::empty()).unwrap();
        let text = std::io::read_to_string(fs::File::from(table)).unwrap();
        text.lines().filter(|line| line.contains(" - overlay ")).count()
    };
    std::thread::spawn(count).join().unwrap()
}

fn go_on_with_their_files(map_users: bool) {
    let Some(scene) = Scene::by_root(map_users, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = working(&scene).await;
        let mut taken = Vec::new();
        let dates = "stat -c %y / /usr /srv /srv/much";
        for round in 1..=3 {
            sh(&*sandbox, "touch /new$$ /usr/new$$").await;
            let was = sh(&*sandbox, dates).await;
            let artifact = seal_full(&*sandbox).await;
            assert_eq!(generation(&scene, &*sandbox), round, "it was not copied");
            assert_eq!(sh(&*sandbox, dates).await, was);
            let was = layer(&scene, &artifact);
            works(&*sandbox).await;
            assert_eq!(layer(&scene, &artifact), was, "what is sealed stays as it is");
            taken.push(artifact);
            sh(&*sandbox, MUCH).await;
        }
        // Programs are known by the names that they have.
        let names = sh(
            &*sandbox,
            "for pid in $(pgrep python3); do readlink /proc/$pid/exe; \
             awk '{print $6}' /proc/$pid/maps; done | grep ^/ | sort -u",
        )
        .await;
        assert!(names.lines().all(|name| name.starts_with("/usr/")), "{names}");
        assert!(names.contains("/usr/bin/python3") && names.contains("libc.so"), "{names}");
        assert_eq!(sh(&*sandbox, "ls -di / /.. | awk '{print $1}' | uniq | wc -l").await, "1\n");
        for artifact in &taken {
            let copy = scene.restore(artifact).await;
            works(&*copy).await;
            scene.driver.destroy(copy.id()).await.unwrap();
        }
        let last = taken.last().unwrap();
        for _ in 0..2 {
            scene.driver.rollback(sandbox.id(), &spec(), last).await.unwrap();
            scene.note(sandbox.id());
            works(&*sandbox).await;
        }
    });
}

#[test]
fn programs_go_on_with_their_files_of_another_root() {
    go_on_with_their_files(true);
}

#[test]
fn programs_go_on_with_their_files_of_another_root_without_mapping() {
    go_on_with_their_files(false);
}

/// What has something open that would be another thing elsewhere.
const FIXED: [&str; 10] = [
    "kept = os.open('/srv', os.O_RDONLY)",
    "kept = os.open('/srv/f', os.O_RDWR | os.O_CREAT)",
    "os.mkfifo('/srv/p'); kept = os.open('/srv/p', os.O_RDWR)",
    "import socket; kept = socket.socket(socket.AF_UNIX); kept.bind('/srv/s'); kept.listen()",
    "kept = os.open('/srv/f', os.O_WRONLY | os.O_CREAT); os.remove('/srv/f')",
    "kept = os.open('/srv/f', os.O_WRONLY | os.O_CREAT); os.link('/srv/f', '/srv/g')",
    "import mmap; kept = os.open('/srv/f', os.O_RDWR | os.O_CREAT); os.truncate(kept, 4096); \
     f = os.open('/srv/f', os.O_RDONLY); os.remove('/srv/f'); \
     m = mmap.mmap(f, 4096, prot=mmap.PROT_READ); os.close(f)",
    "import mmap; open('/srv/f', 'w').write('x' * 4096); f = os.open('/srv/f', os.O_RDONLY); \
     kept = mmap.mmap(f, 4096, prot=mmap.PROT_READ); os.close(f)",
    "import mmap; f = os.open('/srv/f', os.O_RDWR | os.O_CREAT); os.truncate(f, 4096); \
     kept = mmap.mmap(f, 4096); os.close(f)",
    "import mmap; f = os.open('/srv/f', os.O_RDWR | os.O_CREAT); os.truncate(f, 4096); \
     kept = mmap.mmap(f, 4096, flags=mmap.MAP_PRIVATE); os.close(f)",
];

#[test]
fn what_cannot_move_is_copied() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        for fixed in FIXED {
            let sandbox = counting(&scene).await;
            sh(&*sandbox, MUCH).await;
            let script = format!(
                "import os, time\n{fixed}\nif os.fork(): os._exit(0)\n\
                 for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)\n\
                 open('/tmp/there', 'w')\nwhile True: time.sleep(1)"
            );
            python(&*sandbox, &script).await;
            sh(&*sandbox, "until [ -e /tmp/there ]; do sleep 0.01; done").await;
            let artifact = seal_full(&*sandbox).await;
            assert_eq!(generation(&scene, &*sandbox), 0, "{fixed}");
            let copy = scene.restore(&artifact).await;
            for both in [&sandbox, &copy] {
                counts_on(&**both, 1).await;
                assert_eq!(sh(&**both, "wc -c < /srv/much").await.trim(), "9000000");
                scene.driver.destroy(both.id()).await.unwrap();
            }
        }
    });
}

#[test]
fn it_is_copied_where_that_is_chosen() {
    if crate::layer::needs_root("there are no full snapshots") {
        return;
    }
    let mut machine = Machine::new(true);
    machine.live_rotation = false;
    let scene = Scene::on(machine);
    scene.run(async {
        let sandbox = working(&scene).await;
        seal_full(&*sandbox).await;
        assert_eq!(generation(&scene, &*sandbox), 0);
        works(&*sandbox).await;
    });
}

/// Tells of each file that is made in a directory, under the number that it watches it by.
const WATCHER: &str = "
import ctypes, os, select, struct
libc = ctypes.CDLL(None)
os.makedirs('/srv/watched/more')
watch = libc.inotify_init1(os.O_CLOEXEC)
numbers = [libc.inotify_add_watch(watch, name, 0x100) for name in (b'/srv', b'/srv/watched', b'/srv/watched/more')]
libc.inotify_rm_watch(watch, numbers[0])
os.read(watch, 4096)
poll = select.epoll()
poll.register(watch, select.EPOLLIN)
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)
open('/tmp/there', 'w')
while True:
    poll.poll()
    for _ in [0]:
        number, mask, cookie, length = struct.unpack_from('iIII', told := os.read(watch, 4096))
        name = told[16:16 + length].rstrip(b'\\0').decode()
        with open('/tmp/heard', 'a') as file: file.write(f'{numbers.index(number)} {name}\\n')
";

async fn hears(sandbox: &dyn Sandbox, name: &str) {
    let script = format!(
        "touch /srv/watched/{name}; until grep -q '^1 {name}$' /tmp/heard; do sleep 0.01; done; \
         touch /srv/watched/more/{name}; until grep -q '^2 {name}$' /tmp/heard; do sleep 0.01; done; \
         wc -l < /tmp/heard"
    );
    sh(sandbox, &script).await;
}

#[test]
fn who_watches_files_goes_on_to_do_so() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        sh(&*sandbox, MUCH).await;
        python(&*sandbox, WATCHER).await;
        sh(&*sandbox, "until [ -e /tmp/there ]; do sleep 0.01; done").await;
        hears(&*sandbox, "a").await;
        for round in 1..=2 {
            let artifact = seal_full(&*sandbox).await;
            assert_eq!(generation(&scene, &*sandbox), round, "it was not copied");
            hears(&*sandbox, &format!("b{round}")).await;
            let copy = scene.restore(&artifact).await;
            hears(&*copy, "c").await;
            sh(&*sandbox, MUCH).await;
        }
        // Of what we did, nobody heard.
        let heard = read_text(&*sandbox, "/tmp/heard").await;
        assert_eq!(heard, "1 a\n2 a\n1 b1\n2 b1\n1 b2\n2 b2\n");
    });
}

/// Has a file mapped, and tells what it sees there.
const MAPPED: &str = "
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
file = os.open('/srv/library', os.O_RDONLY)
seen = libc.mmap(None, ctypes.c_size_t(4096), 1, 2, file, ctypes.c_long(0))
os.close(file)
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)
while True:
    with open('/tmp/seen.new', 'wb') as file: file.write(ctypes.string_at(seen, 3))
    os.rename('/tmp/seen.new', '/tmp/seen')
    time.sleep(0.01)
";

#[test]
fn what_is_mapped_stays_what_it_was_whatever_becomes_of_its_name() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        for change in [
            "true",
            "rm /srv/library",
            "yes new | head -c 4096 > /srv/other; mv /srv/other /srv/library",
            "yes new | head -c 4096 > /srv/library",
        ] {
            let sandbox = scene.create().await;
            sh(&*sandbox, &format!("{MUCH}; yes old | head -c 4096 > /srv/library")).await;
            python(&*sandbox, MAPPED).await;
            let fresh =
                "rm -f /tmp/seen; until [ -e /tmp/seen ]; do sleep 0.01; done; cat /tmp/seen";
            assert_eq!(sh(&*sandbox, fresh).await, "old");
            let first = seal_full(&*sandbox).await;
            assert_eq!(generation(&scene, &*sandbox), 1, "it was not copied");
            sh(&*sandbox, change).await;
            let artifact = seal_full(&*sandbox).await;
            assert_eq!(sh(&*sandbox, fresh).await, "old", "{change}");
            for artifact in [&first, &artifact] {
                let copy = scene.restore(artifact).await;
                assert_eq!(sh(&*copy, fresh).await, "old", "{change}");
                scene.driver.destroy(copy.id()).await.unwrap();
            }
            scene.driver.destroy(sandbox.id()).await.unwrap();
        }
    });
}

#[test]
fn what_is_refused_leaves_nothing_of_the_next_root() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        sh(&*sandbox, MUCH).await;
        let script = "mkdir /srv/gone; cd /srv/gone; rmdir /srv/gone; echo on; exec sleep 1000";
        let _waits = start(&*sandbox, script).await;
        let err = try_seal_full(&*sandbox).await.unwrap_err().to_string();
        assert!(err.contains("a working directory that is deleted"), "{err}");
        assert!(!scene.place(sandbox.id()).join("g1").exists());
        assert_eq!(generation(&scene, &*sandbox), 0);
    });
}

#[test]
fn old_roots_do_not_pile_up() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let at_first = overlays(&scene, &*sandbox);
        for round in 1..=6 {
            sh(&*sandbox, MUCH).await;
            seal_full(&*sandbox).await;
            assert_eq!(generation(&scene, &*sandbox), round, "it was not copied");
            // That of the programs that run, and the one that is written to.
            assert_eq!(overlays(&scene, &*sandbox), 2 * at_first, "after {round}");
        }
        counts_on(&*sandbox, 1).await;
    });
}

#[test]
fn other_seals_follow_as_after_any() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = working(&scene).await;
        let full = seal_full(&*sandbox).await;
        // Nobody's snapshot: what was written is the sandbox's own.
        scene.driver.unseal(full.snapshot).await.unwrap();
        works(&*sandbox).await;
        let busy = seal(&*sandbox).await;
        let again = seal_full(&*sandbox).await;
        sh(&*sandbox, "pkill python3; while pgrep python3; do sleep 0.01; done; echo > /srv/late")
            .await;
        let idle = seal(&*sandbox).await;
        scene.driver.stop(sandbox.id()).await.unwrap();
        scene.driver.start(sandbox.id(), &spec()).await.unwrap();
        scene.note(sandbox.id());
        assert_eq!(sh(&*sandbox, "wc -c < /srv/much; cat /srv/late").await, "9000000\n\n");
        for (artifact, is_late) in [(&busy, "1"), (&again, "1"), (&idle, "0")] {
            let copy = scene.restore(artifact).await;
            let told = sh(&*copy, "wc -c < /srv/much; test -e /srv/late; echo $?").await;
            assert_eq!(told, format!("9000000\n{is_late}\n"));
        }
        works(&*scene.restore(&again).await).await;
    });
}

#[test]
fn what_did_not_change_since_is_known() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        sh(&*sandbox, MUCH).await;
        let script = "cd /srv; exec 9</srv/much; echo on; exec sleep 1000";
        let _waits = start(&*sandbox, script).await;
        let full = seal_full(&*sandbox).await;
        assert_eq!(generation(&scene, &*sandbox), 1, "it was not copied");
        let unchanged = async || {
            let mut paused = sandbox.pause(SnapshotKind::Files).await.unwrap();
            let unchanged = paused.is_unchanged(&crate::artifact_of(full.snapshot)).await;
            paused.resume().await.unwrap();
            unchanged.unwrap()
        };
        assert!(unchanged().await, "nothing was done since");
        sh(&*sandbox, "echo b > /srv/log").await;
        assert!(!unchanged().await);
    });
}

/// Changes the mode of the root again and again, and looks whether it is what it was changed to. It has each of the two about as
/// long, so that a look may find either.
const CHANGING: &str = "
import os
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)
os.setsid()
count = 0
while True:
    for mode in (0o755, 0o751):
        os.chmod('/', mode)
        count += 1
        with open('/tmp/count.new', 'w') as file: file.write(str(count))
        os.rename('/tmp/count.new', '/tmp/count')
        if os.stat('/').st_mode & 0o777 != mode: open('/srv/wrong', 'w')
";

#[test]
fn a_root_that_changes_meanwhile_is_what_it_was_changed_to() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        python(&*sandbox, CHANGING).await;
        let is_right = async |sandbox: &dyn Sandbox| {
            sh(sandbox, "while ! [ -e /tmp/count ]; do sleep 0.01; done").await;
            counts_on(sandbox, count(sandbox).await + 3).await;
            assert_eq!(sh(sandbox, "wc -c < /srv/much; ls /srv").await, "9000000\nmuch\n");
        };
        let (mut copied, mut moved) = (0, 0);
        while copied < 2 || moved < 2 {
            sh(&*sandbox, MUCH).await;
            let before = generation(&scene, &*sandbox);
            let artifact = seal_full(&*sandbox).await;
            match generation(&scene, &*sandbox) == before {
                true => copied += 1,
                false => moved += 1,
            }
            is_right(&*sandbox).await;
            let copy = scene.restore(&artifact).await;
            is_right(&*copy).await;
            scene.driver.destroy(copy.id()).await.unwrap();
            assert!(copied + moved < 200, "{copied} copied, {moved} moved");
        }
    });
}

#[test]
fn a_record_that_cannot_be_written_leaves_the_root_as_it_was() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = working(&scene).await;
        let mut paused = sandbox.pause(SnapshotKind::Full).await.unwrap();
        // In the way of the record's next version.
        let spare = scene.place(sandbox.id()).join("record.new");
        fs::create_dir(&spare).unwrap();
        let sealed = paused.seal(new_snapshot(), SnapshotKind::Full).await;
        fs::remove_dir(&spare).unwrap();
        let err = with_causes(&sealed.unwrap_err());
        paused.resume().await.unwrap();
        assert!(err.contains("record"), "{err}");
        assert_eq!(generation(&scene, &*sandbox), 0);
        works(&*sandbox).await;
        seal_full(&*sandbox).await;
        assert_eq!(generation(&scene, &*sandbox), 1, "it was not copied");
        works(&*sandbox).await;
    });
}
