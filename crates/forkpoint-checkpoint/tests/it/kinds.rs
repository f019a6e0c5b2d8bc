//! Kinds of open files, signals and timers, in one program that looks at all of them afterwards.

use forkpoint_checkpoint::{CaptureSpec, Chain, Tracker, Tree};

use crate::place::{Place, until};

const KINDS: &str = "
import ctypes, fcntl, os, select, signal, socket, struct, time, threading, mmap
libc = ctypes.CDLL(None, use_errno=True)
eventfd = os.eventfd(41)
semaphore = os.eventfd(3, os.EFD_SEMAPHORE | os.EFD_NONBLOCK)
timerfd = libc.timerfd_create(1, 0)
libc.timerfd_settime(timerfd, 0, struct.pack('qqqq', 0, 20_000_000, 0, 20_000_000), None)
poll = select.epoll(); poll.register(timerfd, select.EPOLLIN)
reader, writer = os.pipe(); os.write(writer, b'in the pipe')
fcntl.fcntl(writer, 1031, 1 << 20)
shut_reader, w = os.pipe(); os.write(w, b'last words'); os.close(w)
r, shut_writer = os.pipe(); os.close(r)
a, b = socket.socketpair(); a.sendall(b'queued')
ghost = open('/mnt/ghost', 'w+'); ghost.write('without a name'); ghost.flush(); ghost.seek(8); os.unlink('/mnt/ghost')
same = os.dup(ghost.fileno())
other = os.open(f'/proc/self/fd/{ghost.fileno()}', os.O_RDONLY)
plain = open('/mnt/plain', 'w+'); plain.write('0123456789'); plain.flush(); plain.seek(4)
append = os.open('/mnt/append', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
directory = os.open('/mnt', os.O_RDONLY | os.O_DIRECTORY)
locked = os.open('/mnt/locked', os.O_RDWR | os.O_CREAT); fcntl.flock(locked, fcntl.LOCK_EX)
shared_file = open('/mnt/shared', 'wb+'); shared_file.truncate(8192)
shared = mmap.mmap(shared_file.fileno(), 8192); shared[0:5] = b'first'
heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append('usr1'))
signal.signal(signal.SIGALRM, lambda *_: heard.append('alarm'))
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGRTMIN, signal.SIGRTMIN + 1])
os.kill(os.getpid(), signal.SIGUSR1)
class Value(ctypes.Union): _fields_ = [('int', ctypes.c_int), ('ptr', ctypes.c_void_p)]
for n in (5, 6, 7): libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), Value(int=n))
signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
timer = ctypes.c_void_p()
event = struct.pack('QiiQQQQQQ', 99, int(signal.SIGRTMIN + 1), 0, 0, 0, 0, 0, 0, 0)
assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
libc.timer_settime(timer, 0, struct.pack('qqqq', 0, 10_000_000, 0, 10_000_000), None)
signalfd = libc.signalfd(-1, ctypes.byref(ctypes.c_uint64(1 << (int(signal.SIGRTMIN) - 1))), 0)
open('/mnt/ready', 'w').write('1')
while not os.path.exists('/mnt/go'): time.sleep(0.005)
def told():
    yield 'eventfd', struct.unpack('Q', os.read(eventfd, 8))[0]
    yield 'semaphore', [struct.unpack('Q', os.read(semaphore, 8))[0] for _ in range(3)]
    try: os.read(semaphore, 8)
    except BlockingIOError: yield 'semaphore', 'empty'
    yield 'timerfd', poll.poll(5)[0][0] == timerfd
    yield 'pipe', os.read(reader, 100), fcntl.fcntl(writer, 1032)
    os.write(writer, b'more'); yield 'pipe', os.read(reader, 100)
    yield 'shut', os.read(shut_reader, 100), os.read(shut_reader, 100)
    try: os.write(shut_writer, b'x')
    except BrokenPipeError: yield 'shut', 'broken'
    yield 'pair', b.recv(100)
    b.sendall(b'back'); yield 'pair', a.recv(100)
    yield 'ghost', ghost.read(), os.lseek(same, 0, 1), os.read(other, 100), os.fstat(same).st_nlink
    yield 'plain', plain.read()
    os.write(append, b'!'); yield 'append', open('/mnt/append').read(), os.lseek(append, 0, 1)
    yield 'directory', os.stat('plain', dir_fd=directory).st_size
    try: fcntl.flock(os.open('/mnt/locked', os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError: yield 'locked'
    yield 'shared', shared[0:5]; shared[0:5] = b'again'; yield open('/mnt/shared', 'rb').read(5)
    yield 'usr2', signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN
    before = 'usr1' in heard
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    yield 'usr1', before, heard.count('usr1')
    heard.clear()
    while 'alarm' not in heard: time.sleep(0.001)
    yield 'alarms', True
    infos = [struct.unpack_from('IiiIIiIIQQQQHiQ', os.read(signalfd, 128)) for _ in range(3)]
    yield 'queued', [info[13] if False else info for info in infos] and len(infos)
    info = signal.sigtimedwait([signal.SIGRTMIN + 1], 5)
    yield 'timer', info is not None and info.si_code
open('/mnt/answer.new', 'w').write('\\n'.join(map(str, told())))
os.rename('/mnt/answer.new', '/mnt/answer')
time.sleep(1000)
";

const ANSWER: &str = "\
('eventfd', 41)
('semaphore', [1, 1, 1])
('semaphore', 'empty')
('timerfd', True)
('pipe', b'in the pipe', 1048576)
('pipe', b'more')
('shut', b'last words', b'')
('shut', 'broken')
('pair', b'queued')
('pair', b'back')
('ghost', 'a name', 14, b'without a name', 0)
('plain', '456789')
('append', '!', 1)
('directory', 10)
locked
('shared', b'first')
b'again'
('usr2', True)
('usr1', False, 1)
('alarms', True)
('queued', 3)
('timer', -2)";

#[test]
fn every_kind_of_open_file_comes_back() {
    let mut place = Place::new();
    let sandbox = place.python(KINDS);
    until("ready", || Some(place.number("ready")).filter(|ready| *ready == 1));
    place.capture(&sandbox);
    drop(sandbox);
    let _copy = place.restore();
    place.put("go", "");
    let answer = until(&format!("an answer; log: {}", place.read("log")), || {
        Some(place.read("answer")).filter(|text| !text.is_empty())
    });
    assert_eq!(answer, ANSWER);
}

#[test]
fn the_original_notices_nothing() {
    let mut place = Place::new();
    let sandbox = place.python(KINDS);
    until("ready", || Some(place.number("ready")).filter(|ready| *ready == 1));
    for _ in 0..3 {
        place.capture(&sandbox);
    }
    place.put("go", "");
    let answer = until("an answer", || Some(place.read("answer")).filter(|text| !text.is_empty()));
    assert_eq!(answer, ANSWER);
}

/// A timer stands while its signal waits; it must not stand for ever.
#[test]
fn a_timer_whose_signal_waits_goes_on() {
    let mut place = Place::new();
    let sandbox = place.python(
        "
import os, signal, time
heard = []
signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
while signal.SIGALRM not in signal.sigpending(): time.sleep(0.001)
open('/mnt/ready', 'w').write('1')
while not os.path.exists('/mnt/go'): time.sleep(0.005)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
while len(heard) < 5: time.sleep(0.001)
open('/mnt/answer', 'w').write('1')
time.sleep(1000)
",
    );
    until("ready", || Some(place.number("ready")).filter(|ready| *ready == 1));
    place.capture(&sandbox);
    drop(sandbox);
    let _copy = place.restore();
    place.put("go", "");
    until("it rings", || (place.number("answer") == 1).then_some(()));
}

#[test]
fn scheduling_and_scores_come_back() {
    crate::locks::answers(
        "
import threading
os.setpriority(os.PRIO_PROCESS, 0, 11); os.sched_setaffinity(0, {1})
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
open('/proc/self/oom_score_adj', 'w').write('321')
libc.prctl(29, 123456)
signal.signal(signal.SIGVTALRM, lambda *_: None); signal.setitimer(signal.ITIMER_VIRTUAL, 1000, 500)
thread = {}
def work():
    thread['id'] = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread['id'], 13); os.sched_setaffinity(thread['id'], {0})
    while True: time.sleep(1)
threading.Thread(target=work, daemon=True).start()
while 'id' not in thread: time.sleep(0.001)
def told():
    yield os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0), os.sched_getscheduler(0) == os.SCHED_BATCH
    yield os.getpriority(os.PRIO_PROCESS, thread['id']), os.sched_getaffinity(thread['id'])
    yield open('/proc/self/oom_score_adj').read().strip(), libc.prctl(30)
    left, interval = signal.getitimer(signal.ITIMER_VIRTUAL); yield 900 < left < 1001, interval
",
        "(11, {1}, True)\n(13, {0})\n('321', 123456)\n(True, 500.0)",
    );
}

/// Copies of process 1 are made with another policy than what they become has, and process 1 has its own again.
#[test]
fn who_had_no_policy_of_its_own_has_none() {
    crate::locks::answers(
        "
import threading
thread = {}
def work():
    thread['id'] = threading.get_native_id()
    while True: time.sleep(1)
threading.Thread(target=work, daemon=True).start()
while 'id' not in thread: time.sleep(0.001)
child = os.fork()
if child == 0:
    while True: time.sleep(1)
def told():
    for who in 1, 0, child, thread['id']: yield os.sched_getscheduler(who)
",
        "0\n0\n0\n0",
    );
}

/// Each is sent to a processor on its way back, and may run on all of them again; one that may not stays where it is.
#[test]
fn processes_may_run_where_they_could() {
    for own in ["", "if number == 2: os.sched_setaffinity(0, {0})"] {
        crate::locks::answers(
            &format!(
                "
def where(): return sorted(os.sched_getaffinity(0))
pipes = []
for number in range(5):
    (asked, ask), (heard, tell) = os.pipe(), os.pipe()
    pipes.append((ask, heard))
    if os.fork() == 0:
        {own}
        before = where()
        os.read(asked, 1)
        os.write(tell, b'1' if where() == before else b'0')
        time.sleep(1000)
all = where()
def told():
    for ask, heard in pipes:
        os.write(ask, b'?')
        yield os.read(heard, 1)
    yield where() == all
"
            ),
            "b'1'\nb'1'\nb'1'\nb'1'\nb'1'\nTrue",
        );
    }
}

/// Half of it is over when it is captured; a copy sleeps the other half.
#[test]
fn a_sleep_goes_on_with_the_time_that_was_left() {
    let mut place = Place::new();
    let sandbox = place.python(
        "
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
def sleep(name, call):
    request, rest = (ctypes.c_long * 2)(6, 0), (ctypes.c_long * 2)(99, 99)
    start = time.monotonic()
    assert call(request, rest) == 0
    with open(f'/mnt/{name}.new', 'w') as file: file.write(str(int((time.monotonic() - start) * 1000)))
    os.rename(f'/mnt/{name}.new', f'/mnt/{name}')
one = threading.Thread(target=sleep, args=('one', lambda request, rest: libc.nanosleep(request, rest)))
two = threading.Thread(target=sleep, args=('two', lambda request, rest: libc.clock_nanosleep(1, 0, request, rest)))
one.start(); two.start()
time.sleep(3)
open('/mnt/ready', 'w').write('1')
one.join(); two.join(); time.sleep(1000)
",
    );
    until("half of it is over", || Some(place.number("ready")).filter(|ready| *ready == 1));
    place.capture(&sandbox);
    drop(sandbox);
    let _copy = place.restore();
    for name in ["one", "two"] {
        let took = until("it has slept", || Some(place.number(name)).filter(|took| *took > 0));
        // Begun anew, it would have slept for nine seconds in all.
        assert!((6000..9000).contains(&took), "{name} slept for {took} ms");
    }
}

/// What the kernel may take away at any time (`MAP_DROPPABLE`, as C libraries have it for random numbers) comes back empty,
/// and may be taken away again.
#[test]
fn droppable_memory_comes_back_empty() {
    let mut place = Place::new();
    let sandbox = place.python(
        "
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(None, ctypes.c_size_t(8192), 3, 0x28, -1, ctypes.c_long(0))
ctypes.memmove(at, b'random state', 12)
fd = os.open('/mnt/told', os.O_WRONLY | os.O_CREAT)
def tell(): os.pwrite(fd, f'{at:x} {ctypes.string_at(at, 12)}'.ljust(60).encode(), 0)
while True:
    if os.path.exists('/mnt/again'): ctypes.memmove(at, b'another one.', 12)
    tell()
    time.sleep(0.002)
",
    );
    let told = |place: &Place, what: &str| {
        until(what, || Some(place.read("told")).filter(|told| told.contains(what)))
    };
    let start = told(&place, "random state");
    let start = u64::from_str_radix(start.split(' ').next().unwrap(), 16).unwrap();
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    tracker.prepare(&tree, &spec).unwrap();
    let captured = tracker.capture(&tree, &spec, || place.keep_files()).unwrap();
    tracker.note(place.write(&captured));
    let mut mappings =
        captured.snapshot.processes.iter().flat_map(|p| &p.alive().unwrap().mappings);
    let it = mappings.find(|mapping| mapping.start == start).unwrap();
    assert!(it.droppable && it.pages.is_empty() && it.stored.is_empty(), "{it:?}");
    told(&place, "random state");
    // In place too: what is there by then is not what was there.
    place.put("again", "");
    told(&place, "another one.");
    std::fs::remove_file(place.work().join("again")).unwrap();
    let chain = Chain::open(place.images.clone()).unwrap();
    tracker.rollback(&tree, &chain, &spec, || Ok(())).unwrap();
    told(&place, r"\x00\x00");
    drop(sandbox);
    let copy = place.restore();
    told(&place, r"\x00\x00");
    let smaps = std::fs::read_to_string(copy.path("/proc/2/smaps")).unwrap();
    let its = smaps.split_once(&format!("\n{start:x}-")).unwrap().1;
    let flags = its.lines().find(|line| line.starts_with("VmFlags:")).unwrap();
    assert!(flags.contains(" dp"), "{flags}");
}
