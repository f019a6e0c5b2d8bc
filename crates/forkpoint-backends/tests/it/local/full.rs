//! Full snapshots: processes and memory go on where they were, in a copy and in place.

use std::{fs, time::Duration};

use forkpoint_core::{
    driver::{
        Artifact, Command, Driver as _, DriverError, DriverResult, Sandbox, Severity, SnapshotKind,
        TtySize,
    },
    spec::{Network, SandboxSpec},
};
use futures::StreamExt as _;

use super::{
    Machine,
    scene::{Scene, exec, new_snapshot, python, read_text, sh, spec, start, with_causes, write},
};

/// Counts in its memory, and tells how far it is. What it says is in two places, which must agree.
const COUNTER: &str = "
import os, sys, time
count = 0
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)
os.setsid()
while True:
    count += 1
    with open('/tmp/count.new', 'w') as file: file.write(str(count))
    os.rename('/tmp/count.new', '/tmp/count')
    time.sleep(0.002)
";

/// A server that knows how often it was asked.
const SERVER: &str = "
import http.server, os
asked = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        asked += 1
        self.send_response(200); self.end_headers()
        self.wfile.write(str(asked).encode())
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 8000), Handler)
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)
server.serve_forever()
";

const ASK: &str = "import urllib.request
print(urllib.request.urlopen('http://127.0.0.1:8000/').read().decode(), end='')";

pub(super) async fn try_seal_full(sandbox: &dyn Sandbox) -> DriverResult<Artifact> {
    let mut paused = sandbox.pause(SnapshotKind::Full).await?;
    let artifact = paused.seal(new_snapshot(), SnapshotKind::Full).await;
    paused.resume().await?;
    artifact
}

pub(super) async fn seal_full(sandbox: &dyn Sandbox) -> Artifact {
    try_seal_full(sandbox).await.unwrap_or_else(|err| panic!("{}", with_causes(&err)))
}

pub(super) async fn count(sandbox: &dyn Sandbox) -> u64 {
    read_text(sandbox, "/tmp/count").await.trim().parse().unwrap()
}

pub(super) async fn counts_on(sandbox: &dyn Sandbox, from: u64) -> u64 {
    loop {
        let now = count(sandbox).await;
        if now > from {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(super) async fn counting(scene: &Scene) -> std::sync::Arc<dyn Sandbox> {
    let sandbox = scene.create().await;
    python(&*sandbox, COUNTER).await;
    sh(&*sandbox, "while ! [ -e /tmp/count ]; do sleep 0.01; done").await;
    counts_on(&*sandbox, 10).await;
    sandbox
}

#[test]
fn a_counter_goes_on_in_copies_and_in_place() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let before = count(&*sandbox).await;
        let artifact = seal_full(&*sandbox).await;
        assert_eq!(artifact.kind, SnapshotKind::Full);
        let after = count(&*sandbox).await;
        let far = counts_on(&*sandbox, after + 300).await;
        for _ in 0..2 {
            let copy = scene.restore(&artifact).await;
            let first = count(&*copy).await;
            assert!((before..far).contains(&first), "{before} {first} {far}");
            counts_on(&*copy, first).await;
            // It says what its files say: both are of one moment.
            assert_eq!(sh(&*copy, "hostname").await.trim(), copy.id().to_string());
        }
        let back = scene.driver.rollback(sandbox.id(), &spec(), &artifact).await.unwrap();
        let first = count(&*back).await;
        assert!((before..far).contains(&first), "{before} {first} {far}");
        counts_on(&*back, first).await;
    });
}

#[test]
fn a_server_still_answers_and_knows_what_it_knew() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        python(&*sandbox, SERVER).await;
        assert_eq!(python(&*sandbox, ASK).await, "1");
        let artifact = seal_full(&*sandbox).await;
        assert_eq!(python(&*sandbox, ASK).await, "2");
        let copy = scene.restore(&artifact).await;
        assert_eq!(python(&*copy, ASK).await, "2");
        assert_eq!(python(&*copy, ASK).await, "3");
        sh(&*sandbox, "kill -9 -1 || true").await;
        let back = scene.driver.rollback(sandbox.id(), &spec(), &artifact).await.unwrap();
        assert_eq!(python(&*back, ASK).await, "2");
    });
}

/// Has forty megabytes, and writes to some pages of them for ever.
const WRITING: &str = "
import os, time
heap = bytearray(os.urandom(1 << 20)) * 40
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)
n = 0
while True:
    n += 1
    heap[4096 * (n % 50)] = n % 256
    with open('/tmp/count.new', 'w') as file: file.write(str(n))
    os.rename('/tmp/count.new', '/tmp/count')
    time.sleep(0.002)
";

/// Until it has begun.
pub(super) async fn start_writing(sandbox: &dyn Sandbox) {
    python(sandbox, WRITING).await;
    sh(sandbox, "while ! [ -s /tmp/count ]; do sleep 0.01; done").await;
}

#[test]
fn the_next_snapshot_holds_what_was_written_since() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        start_writing(&*sandbox).await;
        let first = seal_full(&*sandbox).await;
        assert!(first.own_bytes > 40 << 20, "{}", first.own_bytes);
        // By another process of ours, as the command line is one each time.
        let driver = scene.another_driver();
        let same = driver.attach(sandbox.id()).await.unwrap();
        let mut last = seal_full(&*same).await;
        assert!(last.own_bytes < 8 << 20, "{}", last.own_bytes);
        assert!(last.total_bytes > 40 << 20, "{}", last.total_bytes);
        for _ in 0..3 {
            last = seal_full(&*same).await;
        }
        let copy = scene.restore(&last).await;
        let now = count(&*copy).await;
        counts_on(&*copy, now).await;
        // Nobody tracks the copy yet.
        let again = seal_full(&*copy).await;
        assert!(again.own_bytes > 40 << 20, "{}", again.own_bytes);
        // What is taken back is not built upon.
        let taken = seal_full(&*same).await;
        driver.unseal(taken.snapshot).await.unwrap();
        let whole = seal_full(&*same).await;
        assert!(whole.own_bytes > 40 << 20, "{}", whole.own_bytes);
        scene.restore(&whole).await;
    });
}

#[test]
fn who_wrote_to_a_client_that_is_gone_goes_on() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let script = "i=0; while :; do i=$((i+1)); echo $i > /tmp/c; mv /tmp/c /tmp/count; echo $i; sleep 0.01; done";
        let mut running = start(&*sandbox, script).await;
        let artifact = seal_full(&*sandbox).await;
        assert!(running.stdout.next().await.is_some(), "whoever listens hears the rest");
        let copy = scene.restore(&artifact).await;
        let now = count(&*copy).await;
        counts_on(&*copy, now + 10).await;
    });
}

#[test]
fn what_reads_from_a_client_reads_to_the_end() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let reader = Command::new(["sh", "-c", "echo on; cat > /tmp/read; echo over > /tmp/over"]);
        let mut running = sandbox.exec(&Command { stdin: true, ..reader }).await.unwrap();
        running.stdout.next().await;
        let artifact = seal_full(&*sandbox).await;
        let copy = scene.restore(&artifact).await;
        sh(&*copy, "while ! [ -s /tmp/over ]; do sleep 0.01; done").await;
        let there = exec(&*sandbox, &["ls", "/tmp/over"]).await;
        assert!(there.0.contains("No such file"), "the original still waits: {}", there.0);
    });
}

#[test]
fn what_cannot_be_kept_is_refused_by_name_and_goes_on() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let locked = "import ctypes, time
page = ctypes.create_string_buffer(4096)
assert ctypes.CDLL(None).mlock(page, 4096) == 0
print('on', flush=True)
time.sleep(1000)";
        let _running = start(&*sandbox, &format!("exec python3 -c \"{locked}\"")).await;
        let err = try_seal_full(&*sandbox).await.unwrap_err();
        assert!(matches!(err, DriverError::KindUnavailable { .. }), "{}", with_causes(&err));
        let text = err.to_string();
        assert!(text.contains("python3") && text.contains("locked memory"), "{text}");
        let found = scene.driver.validate(sandbox.id(), SnapshotKind::Full).await.unwrap();
        assert!(found.iter().any(|finding| finding.severity == Severity::Blocks), "{found:?}");
        let now = count(&*sandbox).await;
        counts_on(&*sandbox, now).await;
        assert!(!scene.root().join("memory").exists(), "nothing was kept");
    });
}

/// What does not stand still is in the way as well, and is told by who only asks.
#[test]
fn who_is_traced_by_another_is_in_the_way() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let traced = "import ctypes, os, time
libc = ctypes.CDLL(None)
pid = os.fork()
if pid == 0:
    while True: time.sleep(1)
assert libc.ptrace(0x4206, pid, 0, 0) == 0
print('on', flush=True)
time.sleep(1000)";
        let _running = start(&*sandbox, &format!("exec python3 -c \"{traced}\"")).await;
        let err = try_seal_full(&*sandbox).await.unwrap_err();
        assert!(matches!(err, DriverError::KindUnavailable { .. }), "{}", with_causes(&err));
        let why = "(`python3`) does not stand still: somebody else traces it";
        assert!(err.to_string().contains(why), "{err}");
        let found = scene.driver.validate(sandbox.id(), SnapshotKind::Full).await.unwrap();
        assert!(found.iter().any(|finding| finding.message.contains(why)), "{found:?}");
        let now = count(&*sandbox).await;
        counts_on(&*sandbox, now).await;
    });
}

/// Says more than a terminal holds, and what its terminal is like.
const TALKER: &str = "
stty -echo
i=0
(read line < /dev/tty; echo \"$line\" > /tmp/heard) &
while :; do
    i=$((i+1))
    seq -s ' ' 3000
    echo \"$(tty) $(stty size) $$\" > /tmp/t; mv /tmp/t /tmp/terminal
    echo $i > /tmp/c; mv /tmp/c /tmp/count
done";

#[test]
fn a_session_at_a_terminal_of_somebody_outside_goes_on() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let shell = Command::new(["bash", "-c", TALKER]);
        let shell = Command { tty: Some(TtySize { rows: 31, columns: 87 }), ..shell };
        let running = sandbox.exec(&shell).await.unwrap();
        let mut heard = running.stdout;
        let listening = tokio::spawn(async move { while heard.next().await.is_some() {} });
        sh(&*sandbox, "while ! [ -s /tmp/count ]; do sleep 0.01; done").await;
        let before = read_text(&*sandbox, "/tmp/terminal").await;
        assert!(before.starts_with("/dev/pts/0 31 87 "), "{before}");
        let groups = "ps -o tpgid=,pgid= -p $(cut -d ' ' -f 4 /tmp/terminal)";
        let in_front = sh(&*sandbox, groups).await;
        let artifact = seal_full(&*sandbox).await;
        let now = count(&*sandbox).await;
        counts_on(&*sandbox, now + 3).await;
        for _ in 0..2 {
            let copy = scene.restore(&artifact).await;
            let now = count(&*copy).await;
            // More than any buffer holds: somebody reads it.
            counts_on(&*copy, now + 20).await;
            assert_eq!(read_text(&*copy, "/tmp/terminal").await, before);
            assert_eq!(sh(&*copy, groups).await, in_front);
            // A copy of a copy is as good.
            let again = scene.restore(&seal_full(&*copy).await).await;
            let now = count(&*again).await;
            counts_on(&*again, now + 20).await;
            assert_eq!(
                sh(&*again, "cat /tmp/heard 2> /dev/null || echo nothing").await,
                "nothing\n"
            );
            // Who keeps the terminal goes with the session.
            sh(&*again, "pkill -9 bash; while pgrep -x bash; do sleep 0.01; done > /dev/null")
                .await;
            sh(&*again, "while [ $(ls -d /proc/[0-9]* | wc -l) -gt 4 ]; do sleep 0.01; done").await;
            assert_eq!(sh(&*again, "ls /dev/pts").await, "ptmx\n");
        }
        drop(running.stdin);
        listening.abort();
    });
}

/// Connected to somebody outside, and says when that is over.
const CALLER: &str = "
import os, socket, sys
call = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)
try: heard = call.recv(100).decode()
except OSError as err: heard = type(err).__name__
with open('/tmp/heard.new', 'w') as file: file.write(heard)
os.rename('/tmp/heard.new', '/tmp/heard')
import time; time.sleep(1000)
";

#[test]
fn a_connection_to_somebody_outside_is_refused_or_reset_in_copies() {
    use std::io::Write as _;
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let outside = SandboxSpec { network: Network::Host, ..spec() };
        let sandbox = scene.create_as(&outside).await;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        write(&*sandbox, "/tmp/caller.py", CALLER).await.unwrap();
        exec(&*sandbox, &["python3", "/tmp/caller.py", &port]).await;
        let (mut call, _) = listener.accept().unwrap();
        let err = try_seal_full(&*sandbox).await.unwrap_err();
        assert!(err.to_string().contains("--tcp close"), "{}", with_causes(&err));
        // It is told beforehand too.
        let found = scene.driver.validate(sandbox.id(), SnapshotKind::Full).await.unwrap();
        assert!(found.iter().any(|finding| finding.message.contains("--tcp close")), "{found:?}");
        let mut paused = sandbox.pause(SnapshotKind::Full).await.unwrap();
        paused.close_connections().await.unwrap();
        let artifact = paused.seal(new_snapshot(), SnapshotKind::Full).await.unwrap();
        paused.resume().await.unwrap();
        let id = scene.new_id();
        let copy = scene.driver.restore(id, &outside, &artifact).await.unwrap();
        scene.note(id);
        let heard = "while ! [ -e /tmp/heard ]; do sleep 0.01; done; cat /tmp/heard";
        assert_eq!(sh(&*copy, heard).await, "ConnectionResetError");
        assert!(exec(&*sandbox, &["ls", "/tmp/heard"]).await.0.contains("No such file"));
        call.write_all(b"still here").unwrap();
        assert_eq!(sh(&*sandbox, heard).await, "still here");
    });
}

#[test]
fn a_sandbox_in_which_nothing_runs_can_be_kept_whole() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        write(&*sandbox, "/tmp/file", "content").await.unwrap();
        let artifact = seal_full(&*sandbox).await;
        let copy = scene.restore(&artifact).await;
        assert_eq!(read_text(&*copy, "/tmp/file").await, "content");
        scene.driver.pause(sandbox.id()).await.unwrap();
        let refused = scene.driver.can_seal(sandbox.id(), SnapshotKind::Full).await.unwrap_err();
        assert!(refused.to_string().contains("resume it first"), "{refused}");
        scene.driver.stop(sandbox.id()).await.unwrap();
        let refused = scene.driver.can_seal(sandbox.id(), SnapshotKind::Full).await.unwrap_err();
        assert!(refused.to_string().contains("nothing runs"), "{refused}");
    });
}

#[test]
fn a_damaged_image_is_refused_and_nothing_is_made() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let artifact = seal_full(&*sandbox).await;
        let directory = scene.root().join("memory").join(artifact.snapshot.to_string());
        for name in ["image.json", "pages"] {
            // Whoever launches has read it, and must see that it is another now.
            scene.restore(&artifact).await;
            let path = directory.join(name);
            let good = fs::read(&path).unwrap();
            let mut bad = good.clone();
            let middle = bad.len() / 2;
            bad[middle] ^= 1;
            fs::write(&path, &bad).unwrap();
            let id = scene.new_id();
            let err = scene.driver.restore(id, &spec(), &artifact).await.unwrap_err();
            let text = with_causes(&err);
            assert!(text.contains("damaged") || text.contains("not what was written"), "{text}");
            assert!(scene.driver.status(id).await.unwrap().is_none());
            fs::write(&path, &good).unwrap();
        }
        scene.restore(&artifact).await;
    });
}

#[test]
fn what_nobody_needs_any_more_goes() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let images = || fs::read_dir(scene.root().join("memory")).unwrap().count();
        let taken = seal_full(&*sandbox).await;
        assert_eq!(images(), 1);
        scene.driver.unseal(taken.snapshot).await.unwrap();
        assert_eq!(images(), 0);
        let kept = seal_full(&*sandbox).await;
        assert_eq!(images(), 1);
        scene.driver.sync(&kept).await.unwrap();
        scene.restore(&kept).await;
        let memory = kept.pieces.iter().find(|piece| piece.name.0.starts_with("memory-")).unwrap();
        for _ in 0..2 {
            scene.driver.discard(&memory.name).await.unwrap();
            assert_eq!(images(), 0);
        }
        // Nor does it take room because somebody has it open.
        let name = kept.snapshot.to_string();
        for _ in 0..500 {
            if !is_open(&name) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("somebody has `{name}` open");
    });
}

/// Whether any process has a file open whose path has `name` in it.
pub(super) fn is_open(name: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let files = processes.filter_map(|process| fs::read_dir(process.path().join("fd")).ok());
    let links = files.flatten().flatten().filter_map(|file| fs::read_link(file.path()).ok());
    links.map(|link| link.display().to_string()).any(|link| link.contains(name))
}

/// A program with so many megabytes, no two pages of which are the same. Asked by `/tmp/tell`, it tells whether
/// all of them are as they were.
pub(super) fn with_heap(megabytes: usize) -> String {
    format!(
        "
import os, time, zlib
heap = bytearray(os.urandom(1 << 20)) * {megabytes}
for at in range(0, len(heap), 4096): heap[at:at + 8] = at.to_bytes(8, 'little')
before = zlib.crc32(heap)
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)
while not os.path.exists('/tmp/tell'): time.sleep(0.001)
same = before == zlib.crc32(heap)
with open('/tmp/told.new', 'w') as file: file.write(str(same))
os.rename('/tmp/told.new', '/tmp/told')
time.sleep(1000)
"
    )
}

/// Asks it.
pub(super) async fn heap_is_whole(sandbox: &dyn Sandbox) {
    write(sandbox, "/tmp/tell", "").await.unwrap();
    sh(sandbox, "while ! [ -e /tmp/told ]; do sleep 0.01; done").await;
    assert_eq!(read_text(sandbox, "/tmp/told").await, "True");
}

#[test]
fn a_large_process_finds_all_of_its_memory() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        python(&*sandbox, &with_heap(96)).await;
        let artifact = seal_full(&*sandbox).await;
        let copies = [scene.restore(&artifact).await, scene.restore(&artifact).await];
        for copy in &copies {
            heap_is_whole(&**copy).await;
        }
        // Also when it is on its way.
        let copy = scene.restore(&artifact).await;
        let again = scene.restore(&seal_full(&*copy).await).await;
        heap_is_whole(&*again).await;
    });
}

/// Copies that share see what was there, write for themselves, and can be kept as any other.
#[test]
fn copies_can_share_the_memory_that_they_do_not_write() {
    if Scene::by_root(true, "there are no full snapshots").is_none() {
        return;
    }
    let mut machine = Machine::new(true);
    machine.share_memory = true;
    let scene = Scene::on(machine);
    scene.run(async {
        let sandbox = scene.create().await;
        python(&*sandbox, &with_heap(96)).await;
        let artifact = seal_full(&*sandbox).await;
        for _ in 0..3 {
            let copy = scene.restore(&artifact).await;
            let own = sh(&*copy, "cat /proc/[0-9]*/smaps_rollup | grep Anonymous").await;
            let own: u64 = own.split_whitespace().filter_map(|word| word.parse::<u64>().ok()).sum();
            assert!(own < 32 << 10, "{own} kB");
            heap_is_whole(&*copy).await;
        }
        let copy = scene.restore(&artifact).await;
        let again = scene.restore(&seal_full(&*copy).await).await;
        heap_is_whole(&*again).await;
        let back = scene.driver.rollback(copy.id(), &spec(), &artifact).await.unwrap();
        heap_is_whole(&*back).await;
    });
}

/// One writes to a segment with a name, and another waits at a semaphore with a name.
const SEGMENT: &str = "
import ctypes, os, time
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = lambda *_: None
libc = ctypes.CDLL(None)
libc.sem_open.restype = ctypes.c_void_p
libc.sem_open.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_uint]
for name in ('sem_wait', 'sem_post'): getattr(libc, name).argtypes = [ctypes.c_void_p]
segment = shared_memory.SharedMemory('numbers', create=True, size=4096)
gate = libc.sem_open(b'/gate', os.O_CREAT, 0o600, 0)
os.mkdir('/dev/more'); os.symlink('shm', '/dev/more/link')
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)
if os.fork() == 0:
    segment = shared_memory.SharedMemory('numbers')
    gate = libc.sem_open(b'/gate', 0, 0, 0)
    while True:
        libc.sem_wait(gate)
        segment.buf[0] += 1
while True: time.sleep(1)
";

const STEP: &str = "
import ctypes, os, time
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = lambda *_: None
libc = ctypes.CDLL(None)
libc.sem_open.restype = ctypes.c_void_p
libc.sem_open.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_uint]
libc.sem_post.argtypes = [ctypes.c_void_p]
segment = shared_memory.SharedMemory('numbers')
before = segment.buf[0]
libc.sem_post(libc.sem_open(b'/gate', 0, 0, 0))
while segment.buf[0] == before: time.sleep(0.001)
print(segment.buf[0], os.readlink('/dev/more/link'), sorted(os.listdir('/dev/shm')))
";

#[test]
fn shared_memory_with_a_name_is_shared_again() {
    let Some(scene) = Scene::by_root(true, "there are no full snapshots") else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        python(&*sandbox, SEGMENT).await;
        sh(&*sandbox, "while ! [ -e /dev/shm/sem.gate ]; do sleep 0.01; done").await;
        let told = |count: u32| format!("{count} shm ['numbers', 'sem.gate']\n");
        assert_eq!(python(&*sandbox, STEP).await, told(1));
        assert!(scene.driver.validate(sandbox.id(), SnapshotKind::Full).await.unwrap().is_empty());
        let artifact = seal_full(&*sandbox).await;
        assert_eq!(python(&*sandbox, STEP).await, told(2));
        for _ in 0..2 {
            let copy = scene.restore(&artifact).await;
            assert_eq!(python(&*copy, STEP).await, told(2));
            assert_eq!(python(&*copy, STEP).await, told(3));
        }
        sh(&*sandbox, "rm /dev/shm/numbers; echo > /dev/shm/new").await;
        let back = scene.driver.rollback(sandbox.id(), &spec(), &artifact).await.unwrap();
        assert_eq!(python(&*back, STEP).await, told(2));
        assert_eq!(
            sh(&*back, "readlink /dev/stdin; echo x > /dev/null; ls /dev/shm | wc -l").await,
            "/proc/self/fd/0\n2\n"
        );
    });
}
