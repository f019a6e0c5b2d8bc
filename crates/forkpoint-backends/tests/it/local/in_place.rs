//! Rollbacks to full snapshots in place: the same processes go on, with the files and the memory that they had.

use std::time::Duration;

use forkpoint_core::driver::{
    Artifact, Command, Driver as _, DriverError, ExitStatus, FileState, Sandbox,
};

use super::{
    full::seal_full,
    scene::{Scene, python, read_text, sh, spec, start},
};

/// Counts in memory alone, so that it changes no file that it was not told to change.
const QUIET: &str = "
import os, time
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)
os.setsid()
count = 0
kept = open('/root/kept', 'w+'); kept.write('0123456789'); kept.flush()
while True:
    count += 1
    if os.path.exists('/tmp/ask'):
        kept.seek(0)
        told = f'{count} {kept.read()}'
        os.remove('/tmp/ask')
        with open('/tmp/told.new', 'w') as file: file.write(told)
        os.rename('/tmp/told.new', '/tmp/told')
    time.sleep(0.001)
";

async fn quiet(scene: &Scene) -> std::sync::Arc<dyn Sandbox> {
    let sandbox = scene.create().await;
    python(&*sandbox, QUIET).await;
    sh(&*sandbox, "until [ -s /root/kept ]; do sleep 0.01; done").await;
    sandbox
}

/// What it counted, and what it reads from the file that it has open.
async fn ask(sandbox: &dyn Sandbox) -> (u64, String) {
    sh(sandbox, "rm -f /tmp/told; touch /tmp/ask; until [ -e /tmp/told ]; do sleep 0.01; done")
        .await;
    let told = read_text(sandbox, "/tmp/told").await;
    let (count, text) = told.split_once(' ').unwrap();
    (count.parse().unwrap(), text.to_owned())
}

/// Rolls back, and answers whether in place.
async fn back(scene: &Scene, sandbox: &dyn Sandbox, to: &Artifact) -> bool {
    let before = scene.init(sandbox.id());
    let back = scene.driver.rollback(sandbox.id(), &spec(), to).await.unwrap();
    scene.note(sandbox.id());
    let is_in_place = scene.init(sandbox.id()) == before;
    assert_eq!(back.made_anew().is_none(), is_in_place, "{:?}", back.made_anew());
    is_in_place
}

/// What differs between a snapshot and the sandbox as it is.
async fn changes(scene: &Scene, sandbox: &dyn Sandbox, to: &Artifact) -> Vec<String> {
    let (from, to) = (FileState::Snapshot(to.clone()), FileState::Sandbox(sandbox.id()));
    let found = scene.driver.diff(&from, &to, &[]).await.unwrap();
    found.changes.iter().map(|change| format!("{change:?}")).collect()
}

/// Everything below a directory, as the sandbox sees it.
async fn listed(sandbox: &dyn Sandbox) -> String {
    sh(
        sandbox,
        "cd /srv && find . -printf '%p %y %m %U:%G %s %T@ %l\\n' | sort; find . -type f -links +1; \
         find . -type f -exec md5sum {} + | sort",
    )
    .await
}

#[test]
fn processes_memory_and_files_go_back_together() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = quiet(&scene).await;
        let setup = "mkdir -p /srv/a/b; echo one > /srv/a/one; echo two > /srv/a/b/two; ln -s one /srv/a/link; \
                     mkfifo /srv/a/pipe; truncate -s 1M /srv/a/sparse; echo x >> /srv/a/sparse; \
                     chown 7:8 /srv/a/b/two; chmod 4711 /srv/a/one; touch -d @1000.5 /srv/a/one /srv/a/b";
        sh(&*sandbox, setup).await;
        let artifact = seal_full(&*sandbox).await;
        let before = listed(&*sandbox).await;
        let was = ask(&*sandbox).await;
        // Also as a thing of its own: nothing was written.
        let changes_all = "cd /srv; rm a/one; echo other > a/b/two; echo new > a/new; mkdir -p n/e/w; echo d > n/e/w/d; \
                           rm a/link; ln -s b a/link; chmod 700 a; chown 3 a/b; rm -f /etc/hostname; echo more > a/sparse; \
                           touch a/pipe; printf abc | dd of=/root/kept conv=notrunc bs=1 2>/dev/null";
        for round in 0..4 {
            sh(&*sandbox, changes_all).await;
            assert_eq!(read_text(&*sandbox, "/root/kept").await, "abc3456789");
            assert!(back(&scene, &*sandbox, &artifact).await, "round {round}: in place");
            assert_eq!(changes(&scene, &*sandbox, &artifact).await, [] as [String; 0]);
            assert_eq!(listed(&*sandbox).await, before, "round {round}");
            assert_eq!(read_text(&*sandbox, "/root/kept").await, "0123456789");
            let now = ask(&*sandbox).await;
            assert!(now.0 < was.0 + 2000 && now.1 == was.1, "{was:?} {now:?}");
            let usage = sh(&*sandbox, "du -k /srv/a/sparse | cut -f1").await;
            assert!(usage.trim().parse::<u64>().unwrap() < 64, "{usage}");
        }
        // What is captured next knows what is there.
        sh(&*sandbox, "rm -f /tmp/told").await;
        let next = seal_full(&*sandbox).await;
        let copy = scene.restore(&next).await;
        assert_eq!(listed(&*copy).await, before);
        assert_eq!(changes(&scene, &*sandbox, &next).await, [] as [String; 0]);
        assert!(back(&scene, &*sandbox, &next).await, "in place, to the next one");
        // Another than the last is made anew.
        assert!(!back(&scene, &*sandbox, &artifact).await);
        assert_eq!(listed(&*sandbox).await, before);
        // And from then on it is in place again.
        sh(&*sandbox, changes_all).await;
        assert!(back(&scene, &*sandbox, &artifact).await, "in place, after it was made anew");
        assert_eq!(listed(&*sandbox).await, before);
        assert_eq!(changes(&scene, &*sandbox, &artifact).await, [] as [String; 0]);
    });
}

/// What cannot go back in place is made anew, and looks the same.
#[test]
fn what_does_not_fit_is_made_anew() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = quiet(&scene).await;
        let setup = "mkdir -p /srv/a/b; echo one > /srv/one; ln /srv/one /srv/same; mkfifo /srv/pipe; \
                     echo x > /srv/x; python3 -c \"import os; os.setxattr('/srv/x', 'user.a', b'b')\"";
        sh(&*sandbox, setup).await;
        let artifact = seal_full(&*sandbox).await;
        let before = listed(&*sandbox).await;
        for change in [
            "rm -r /srv/a/b",
            "rm -r /srv/a; mkdir /srv/a",
            "echo more >> /srv/one",
            "rm /srv/same",
            "rm /srv/pipe",
            "rm /srv/x",
            "python3 -c \"import os; os.setxattr('/srv/x', 'user.a', b'c')\"",
            "i=0; while [ $i -lt 300 ]; do echo $i > /srv/f$i; i=$((i+1)); done",
            "head -c 9000000 /dev/zero > /srv/x",
            "pkill -f -9 [t]old.new",
        ] {
            sh(&*sandbox, change).await;
            let in_place = back(&scene, &*sandbox, &artifact).await;
            assert_eq!(listed(&*sandbox).await, before, "{change}");
            assert_eq!(changes(&scene, &*sandbox, &artifact).await, [] as [String; 0], "{change}");
            assert!(!in_place || change.contains("9000000"), "{change}");
            assert_eq!(ask(&*sandbox).await.1, "0123456789", "{change}");
        }
    });
}

/// A command that came later ends; the next one is accepted.
#[test]
fn commands_are_accepted_right_after() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = quiet(&scene).await;
        let artifact = seal_full(&*sandbox).await;
        let before = ask(&*sandbox).await.0;
        for _ in 0..30 {
            let later = start(&*sandbox, "echo on; sleep 100").await;
            assert!(back(&scene, &*sandbox, &artifact).await);
            assert!(ask(&*sandbox).await.0 < before + 2000);
            let status = tokio::time::timeout(Duration::from_secs(20), later.control.wait()).await;
            assert_eq!(status.expect("who came later has ended").unwrap(), ExitStatus::Signal(9));
        }
    });
}

/// Whoever dies on the way takes the processes along; what is left has the files of the snapshot.
#[test]
fn who_was_left_on_the_way_stands_with_the_files_of_the_snapshot() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = quiet(&scene).await;
        sh(&*sandbox, "echo one > /srv/one").await;
        let artifact = seal_full(&*sandbox).await;
        for _ in 0..2 {
            sh(&*sandbox, "echo half > /srv/one; echo new > /srv/new").await;
            let mut record = scene.record(sandbox.id());
            record["undoing"] = true.into();
            scene.write_record(sandbox.id(), &record);
            let err = sandbox.exec(&Command::new(["true"])).await.unwrap_err();
            assert!(matches!(err, DriverError::NotRunning { .. }), "{err}");
            assert_eq!(changes(&scene, &*sandbox, &artifact).await, [] as [String; 0]);
            scene.driver.start(sandbox.id(), &spec()).await.unwrap();
            scene.note(sandbox.id());
            assert_eq!(sh(&*sandbox, "cat /srv/*").await, "one\n");
            // Its processes come back with a rollback.
            assert!(!back(&scene, &*sandbox, &artifact).await);
            assert_eq!(ask(&*sandbox).await.1, "0123456789");
        }
    });
}

/// What programs look at to notice that time went back.
#[test]
fn a_rollback_is_noticed() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = quiet(&scene).await;
        let boot_id = || read_text(&*sandbox, "/proc/sys/kernel/random/boot_id");
        let artifact = seal_full(&*sandbox).await;
        let mut seen = vec![boot_id().await];
        for _ in 0..3 {
            assert!(back(&scene, &*sandbox, &artifact).await);
            seen.push(boot_id().await);
        }
        assert!(seen.iter().all(|id| id.len() == 37 && id.ends_with('\n')), "{seen:?}");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 4, "{seen:?}");
    });
}

/// A snapshot that was gone back to and is deleted takes no room, also while its driver lives.
#[test]
fn what_is_deleted_is_let_go_of() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = quiet(&scene).await;
        let artifact = seal_full(&*sandbox).await;
        assert!(back(&scene, &*sandbox, &artifact).await);
        // Wherever they are by now.
        let open = || {
            let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            let paths = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
            paths.filter(|path| path.to_string_lossy().contains("/pages")).count()
        };
        assert!(open() > 0, "it is kept open for the next time");
        for piece in &artifact.pieces {
            scene.driver.discard(&piece.name).await.unwrap();
        }
        assert_eq!(open(), 0);
    });
}

/// Ten thousand files, pipes, sockets and counters; when it is asked, it tells what it finds, and changes all of it.
const MANY: &str = "
import itertools, os, resource, socket, time
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)
os.setsid()
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
def some():
    for directory, _, names in os.walk('/usr'):
        for path in (os.path.join(directory, name) for name in names):
            if os.path.isfile(path) and not os.path.islink(path): yield path
files = [(os.open(path, os.O_RDONLY), path) for path in itertools.islice(some(), 6000)]
pipes = [os.pipe() for _ in range(1000)]
pairs = [socket.socketpair() for _ in range(800)]
events = [os.eventfd(index + 1) for index in range(500)]
for index, (file, _) in enumerate(files): os.lseek(file, index, 0)
for index, (_, writer) in enumerate(pipes): os.write(writer, b'%05d' % index)
assert len(os.listdir('/proc/self/fd')) > 10000
open('/tmp/ready', 'w').close()
def told():
    yield all(os.lseek(file, 0, 1) == index and os.readlink(f'/proc/self/fd/{file}') == path for index, (file, path) in enumerate(files))
    yield all(os.read(reader, 9) == b'%05d' % index for index, (reader, _) in enumerate(pipes))
    yield all(os.eventfd_read(event) == index + 1 for index, event in enumerate(events))
    for one, other in pairs: one.send(b'hello')
    yield all(other.recv(9) == b'hello' for _, other in pairs)
    yield len(os.listdir('/proc/self/fd'))
asked = 0
while True:
    if os.path.exists('/tmp/ask'):
        asked += 1
        text = ' '.join(map(str, told()))
        for file, _ in files: os.lseek(file, 1, 0)
        for _, writer in pipes: os.write(writer, b'other')
        for event in events: os.eventfd_write(event, 9999)
        more = open('/root/more', 'w')
        os.remove('/tmp/ask')
        with open('/tmp/told.new', 'w') as file: file.write(f'{asked} {text}')
        os.rename('/tmp/told.new', '/tmp/told')
    time.sleep(0.001)
";

#[test]
fn ten_thousand_descriptors_go_back_in_place_and_into_copies() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        python(&*sandbox, MANY).await;
        sh(&*sandbox, "until [ -e /tmp/ready ]; do sleep 0.01; done").await;
        let artifact = seal_full(&*sandbox).await;
        let first = ask(&*sandbox).await;
        assert!(first.0 == 1 && first.1.starts_with("True True True True "), "{first:?}");
        assert!(ask(&*sandbox).await.1.starts_with("False False False "), "it changed them");
        for round in 0..2 {
            assert!(back(&scene, &*sandbox, &artifact).await, "round {round}: in place");
            assert_eq!(ask(&*sandbox).await, first, "round {round}");
        }
        for _ in 0..2 {
            let copy = scene.restore(&artifact).await;
            assert_eq!(ask(&*copy).await, first);
        }
        // Made anew, since it stands on another.
        seal_full(&*sandbox).await;
        assert!(!back(&scene, &*sandbox, &artifact).await);
        assert_eq!(ask(&*sandbox).await, first);
    });
}
