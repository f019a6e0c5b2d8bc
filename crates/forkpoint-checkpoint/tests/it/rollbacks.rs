//! Back in place.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use forkpoint_checkpoint::{
    CaptureSpec, Captured, Chain, Error, Files, RolledBack, Tracker, Tree, bare::Bare, capture,
    image::Snapshot, rollback,
};

use crate::place::{Place, until};

/// Changes all that can go back in place when it is asked to, and tells what it sees; also that only when asked, since
/// while it looks, it has files of `/proc` open that cannot be captured.
const CHANGING: &str = "
import ctypes, fcntl, mmap, os, resource, signal, struct, threading, time, zlib
libc = ctypes.CDLL(None)
def answer(option):
    value = ctypes.c_int(); assert libc.prctl(option, ctypes.byref(value)) == 0
    return value.value
NAME, SLACK, DUMPABLE, SUBREAPER, DEATH = (15, 16), (29, 30), (4, 3), (36, 37), (1, 2)
def state(): return [
    [fcntl.fcntl(fd, fcntl.F_GETFD) for fd in (kept.fileno(), reader, writer)],
    [resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_STACK)],
    os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)),
    open('/proc/self/oom_score_adj').read(), open('/proc/self/comm').read(), libc.prctl(DUMPABLE[1]), libc.prctl(SLACK[1]),
    answer(SUBREAPER[1]), answer(DEATH[1]), fcntl.fcntl(reader, 1032)]
def change():
    os.set_inheritable(kept.fileno(), True); os.set_inheritable(reader, True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    os.setpriority(os.PRIO_PROCESS, 0, 7); os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    open('/proc/self/oom_score_adj', 'w').write('500')
    libc.prctl(NAME[0], b'another'); libc.prctl(DUMPABLE[0], 0); libc.prctl(SLACK[0], 777777)
    libc.prctl(SUBREAPER[0], 1); libc.prctl(DEATH[0], signal.SIGURG); fcntl.fcntl(writer, 1031, 1 << 18)
m = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, 8 << 20, 4096): m[at:at + 8] = at.to_bytes(8, 'little')
kept = open('/mnt/kept', 'w+'); kept.write('0123456789'); kept.flush(); kept.seek(3)
reader, writer = os.pipe(); os.write(writer, b'waiting')
event = os.eventfd(5)
heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append('first'))
ticks = [0]
def tick():
    while True: ticks[0] += 1; time.sleep(0.001)
threading.Thread(target=tick, daemon=True).start()
more = []
n = 0
def told(): return f'{n} {zlib.crc32(m)} {kept.tell()} {os.getcwd()} {len(more)} {len(os.listdir(\"/proc/self/fd\"))} {len(heard)} {state()}'
while True:
    try: wanted = int(open('/mnt/want').read() or 0)
    except (FileNotFoundError, ValueError): wanted = 0
    if wanted > n:
        n = wanted
        for at in range(0, 200 * 4096, 4096): m[at * 9 % (12 << 20)] = n & 255
        kept.read(2); os.read(reader, 3); os.read(event, 8); os.eventfd_write(event, 9)
        more.append(open('/mnt/more', 'w'))
        more.append(bytearray(5 << 20))
        os.chdir('/mnt/sub')
        change()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        if os.fork() == 0:
            while True: time.sleep(1)
        open('/mnt/answer.new', 'w').write(told() + '.')
        os.rename('/mnt/answer.new', '/mnt/answer')
    elif not os.path.exists('/mnt/now') or os.path.getsize('/mnt/now') == 0:
        open('/mnt/now.new', 'w').write(told() + '.')
        os.rename('/mnt/now.new', '/mnt/now')
    time.sleep(0.002)
";

fn ask(place: &Place, number: u32) -> String {
    place.put("answer", "");
    place.put("want", &number.to_string());
    let wanted = format!("{number} ");
    let answer = until("an answer", || {
        Some(place.read("answer")).filter(|text| text.starts_with(&wanted) && text.ends_with('.'))
    });
    place.put("want", "0");
    answer
}

fn processes(sandbox: &Bare) -> usize {
    let names = std::fs::read_dir(sandbox.path("/proc")).unwrap().flatten();
    names.filter(|entry| entry.file_name().to_string_lossy().parse::<i32>().is_ok()).count()
}

/// While it writes, it has a file open that it will not have for long.
fn at_rest(mut capture: impl FnMut() -> Captured) -> Captured {
    until("it is at rest", || {
        let captured = capture();
        let names = captured.snapshot.files.iter().map(|file| format!("{:?}", file.kind));
        let is_busy = |name: String| {
            ["/mnt/now", "/mnt/want", "/mnt/count"].iter().any(|busy| name.contains(busy))
        };
        (!names.into_iter().any(is_busy)).then_some(captured)
    })
}

#[test]
fn a_process_goes_back_again_and_again() {
    let mut place = Place::new();
    std::fs::create_dir(place.work().join("sub")).unwrap();
    let sandbox = place.python(CHANGING);
    until("it runs", || Some(place.read("now")).filter(|text| text.ends_with('.')));
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    let captured = at_rest(|| tracker.capture(&tree, &spec, || Ok(())).unwrap());
    let id = place.write(&captured);
    tracker.note(id);
    let before = place.read("now");
    let chain = Chain::open(place.images.clone()).unwrap();
    let first = ask(&place, 1);
    for round in 0..20 {
        assert_eq!(processes(&sandbox), 3, "round {round}");
        let done = tracker.rollback(&tree, &chain, &spec, || Ok(())).unwrap();
        assert_eq!(done.ended, 1);
        assert!((100 * 4096..48 << 20).contains(&done.memory_bytes), "{done:?}");
        place.put("now", "");
        let now = until("it runs", || Some(place.read("now")).filter(|text| text.ends_with('.')));
        assert_eq!(now, before, "round {round}");
        assert_eq!(processes(&sandbox), 2);
        assert_eq!(ask(&place, 1), first, "round {round}");
    }
    // What is captured next lies over the same image.
    let captured = tracker.capture(&tree, &spec, || place.keep_files()).unwrap();
    assert_eq!(captured.parent(), Some(id));
    place.write(&captured);
    drop(sandbox);
    let _copy = place.restore();
    place.put("now", "");
    until("the copy runs", || place.read("now").starts_with("1 ").then_some(()));
}

/// Whoever sets what is done at a signal takes it away from all threads: a thread that tells us by one that it is done
/// must not be missed.
#[test]
#[expect(clippy::disallowed_methods, reason = "how far the program gets meanwhile is what varies")]
fn threads_that_make_their_steps_at_once_are_all_heard() {
    // The more pages it has touched, the longer the first thread is at it before it sets anything.
    const SLEEPING: &str = "
import mmap, threading, time
m = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def rest():
    while True: time.sleep(0.02)
for _ in range(15): threading.Thread(target=rest, daemon=True).start()
open('/mnt/now', 'w').write('runs')
while True:
    for at in range(0, 64 << 20, 8192):
        m[at] = 1
        for _ in range(40): pass
    open('/mnt/now', 'w').write('runs')
";
    let mut place = Place::new();
    let sandbox = place.python(SLEEPING);
    until("it runs", || place.read("now").contains("runs").then_some(()));
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    let captured = at_rest(|| tracker.capture(&tree, &spec, || Ok(())).unwrap());
    tracker.note(place.write(&captured));
    let chain = Chain::open(place.images.clone()).unwrap();
    for round in 0..300 {
        std::thread::sleep(Duration::from_micros(round % 10 * 200));
        let done = tracker.rollback(&tree, &chain, &spec, || Ok(()));
        assert!(done.is_ok(), "round {round}: {done:?}");
    }
    place.put("now", "");
    until("it runs", || place.read("now").contains("runs").then_some(()));
}

/// All of its memory is written, since nobody knows what changed.
#[test]
fn a_process_that_nobody_tracks_goes_back_too() {
    let mut place = Place::new();
    std::fs::create_dir(place.work().join("sub")).unwrap();
    let sandbox = place.python(CHANGING);
    until("it runs", || Some(place.read("now")).filter(|text| text.ends_with('.')));
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let captured = at_rest(|| capture(&tree, &spec, || Ok(())).unwrap());
    place.write(&captured);
    let before = place.read("now");
    let chain = Chain::open(place.images.clone()).unwrap();
    let first = ask(&place, 1);
    for round in 0..5 {
        let done = rollback(&tree, &chain, &spec, || Ok(())).unwrap();
        assert!(done.ended == 1 && done.memory_bytes > 8 << 20, "{done:?}");
        place.put("now", "");
        let now = until("it runs", || Some(place.read("now")).filter(|text| text.ends_with('.')));
        assert_eq!(now, before, "round {round}");
        assert_eq!(ask(&place, 1), first, "round {round}");
    }
}

fn tells(place: &Place, text: &[u8; 9]) {
    place.put("ask", "");
    let name: String = text.iter().map(|byte| format!("{byte:02x}")).collect();
    until("it tells", || place.work().join(&name).exists().then_some(()));
    // A directory, which the program never has open.
    std::fs::remove_dir(place.work().join(name)).unwrap();
}

/// Somebody at one moment, and the way back there: with notes of what was written since, or without.
struct Moment {
    tree: Tree,
    tracker: Option<Tracker>,
    chain: Chain,
}

impl Moment {
    fn of(place: &mut Place, sandbox: &Bare, is_tracked: bool) -> Self {
        let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
        let mut tracker = is_tracked.then(Tracker::new);
        let captured = at_rest(|| match &mut tracker {
            Some(tracker) => tracker.capture(&tree, &spec, || Ok(())).unwrap(),
            None => capture(&tree, &spec, || Ok(())).unwrap(),
        });
        let id = place.write(&captured);
        if let Some(tracker) = &mut tracker {
            tracker.note(id);
        }
        Self { tree, tracker, chain: Chain::open(place.images.clone()).unwrap() }
    }

    fn back(&mut self) -> Result<RolledBack, Error> {
        let Self { tree, tracker, chain } = self;
        let spec = CaptureSpec::default();
        match tracker {
            Some(tracker) => tracker.rollback(tree, chain, &spec, || Ok(())),
            None => rollback(tree, chain, &spec, || Ok(())),
        }
    }
}

/// As a library's tables are, which only its loader writes to.
#[test]
fn what_may_only_be_read_then_and_now_goes_back() {
    const PROTECTED: &str = "
import ctypes, mmap, os, time
libc = ctypes.CDLL(None)
m = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(m))
def may(access): assert libc.mprotect(ctypes.c_void_p(address), 8192, access) == 0
m[0:5] = b'first'; may(0)
while True:
    if os.path.exists('/mnt/go'):
        may(3); m[0:5] = b'other'; m[4096:4100] = b'more'; may(0)
        os.remove('/mnt/go')
    if os.path.exists('/mnt/ask'):
        os.remove('/mnt/ask')
        may(1); told = m[0:5] + m[4096:4100]; may(0)
        os.mkdir('/mnt/' + told.hex())
    time.sleep(0.001)
";
    for tracked in [true, false] {
        let mut place = Place::new();
        let sandbox = place.python(PROTECTED);
        tells(&place, b"first\0\0\0\0");
        let mut moment = Moment::of(&mut place, &sandbox, tracked);
        place.put("go", "");
        until("it is written", || (!place.work().join("go").exists()).then_some(()));
        tells(&place, b"othermore");
        moment.back().unwrap();
        tells(&place, b"first\0\0\0\0");
    }
}

/// A heap that ends where other memory begins, and later takes its place.
const HEAP: &str = "
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.sbrk.restype = libc.mmap.restype = ctypes.c_void_p
libc.sbrk.argtypes = [ctypes.c_long]
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LEN = 64 << 10
libc.sbrk(-libc.sbrk(0) % 4096)
at = libc.mmap(libc.sbrk(0), LEN, 3, 0x100022, -1, 0)
ctypes.memset(at, ord('a'), LEN)
def told():
    there = ctypes.string_at(at, LEN)
    return f'{chr(there[0])} {there.count(there[0])} {libc.sbrk(0) - at}.'
while True:
    if os.path.exists('/mnt/want'):
        os.remove('/mnt/want')
        libc.munmap(at, LEN)
        assert libc.sbrk(0) == at and libc.sbrk(LEN) == at
        ctypes.memset(at, ord('b'), LEN)
    open('/mnt/now.new', 'w').write(told())
    os.rename('/mnt/now.new', '/mnt/now')
    time.sleep(0.002)
";

#[test]
fn a_heap_that_took_the_place_of_other_memory_goes_back() {
    for is_tracked in [true, false] {
        let mut place = Place::new();
        let sandbox = place.python(HEAP);
        until("it runs", || (place.read("now") == "a 65536 0.").then_some(()));
        let mut moment = Moment::of(&mut place, &sandbox, is_tracked);
        for round in 0..3 {
            place.put("want", "");
            until("it grew", || (place.read("now") == "b 65536 65536.").then_some(()));
            moment.back().unwrap();
            place.put("now", "");
            let now =
                until("it runs", || Some(place.read("now")).filter(|text| text.ends_with('.')));
            assert_eq!(now, "a 65536 0.", "round {round}, tracked: {is_tracked}");
        }
    }
}

/// Gives memory away, and with it the place where the kernel puts what is mapped next, or maps other memory there.
const AWAY: &str = "
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LEN = LENGTH << 10
at = libc.mmap(None, LEN, 3, 0x22, -1, 0)
ctypes.memset(at, ord('a'), LEN)
while True:
    if os.path.exists('/mnt/go'):
        libc.munmap(at, LEN)
        if AGAIN:
            assert libc.mmap(at, LEN, 3, 0x100022, -1, 0) == at
            ctypes.memset(at, ord('b'), LEN // 2)
        os.remove('/mnt/go')
    if os.path.exists('/mnt/ask'):
        os.remove('/mnt/ask')
        there = ctypes.string_at(at, LEN)
        open('/mnt/now.new', 'w').write(f'{chr(there[0])} {there.count(there[0])}.')
        os.rename('/mnt/now.new', '/mnt/now')
    time.sleep(0.001)
";

fn gives_away(kib: u64, is_again: bool, is_tracked: bool) {
    let what = format!("{kib} KiB, mapped again: {is_again}, tracked: {is_tracked}");
    let mut place = Place::new();
    let again = if is_again { "True" } else { "False" };
    let program = AWAY.replace("LENGTH", &kib.to_string()).replace("AGAIN", again);
    let sandbox = place.python(&program);
    let ask = |place: &Place| {
        place.put("now", "");
        place.put("ask", "");
        until("it tells", || Some(place.read("now")).filter(|text| text.ends_with('.')))
    };
    let whole = format!("a {}.", kib << 10);
    assert_eq!(ask(&place), whole);
    let mut moment = Moment::of(&mut place, &sandbox, is_tracked);
    for round in 0..3 {
        place.put("go", "");
        until("it is given away", || (!place.work().join("go").exists()).then_some(()));
        let done = moment.back();
        assert!(done.is_ok(), "{what}, round {round}: {done:?}");
        assert_eq!(ask(&place), whole, "{what}, round {round}");
    }
}

/// What we have the process do is not where its own memory goes back to.
#[test]
fn memory_that_was_given_away_goes_back() {
    // Of the first, what is ours could take a part, and of the last all.
    for kib in [64, 1 << 10, 4 << 10, 4200, 32 << 10] {
        for is_tracked in [true, false] {
            gives_away(kib, false, is_tracked);
        }
    }
}

/// As an allocator does. It looks as before, and nobody noted what was written to it.
#[test]
fn memory_in_the_place_of_other_goes_back() {
    for kib in [64, 4 << 10] {
        for is_tracked in [true, false] {
            gives_away(kib, true, is_tracked);
        }
    }
}

/// What was written since is still known when nothing came of it.
#[test]
fn a_rollback_that_was_refused_takes_no_notes() {
    struct Unfit;
    impl Files for Unfit {
        fn look(&mut self, _: &Snapshot) -> io::Result<Option<String>> {
            Ok(Some("there are too many of them".to_owned()))
        }

        fn put_back(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut place = Place::new();
    std::fs::create_dir(place.work().join("sub")).unwrap();
    let sandbox = place.python(CHANGING);
    until("it runs", || Some(place.read("now")).filter(|text| text.ends_with('.')));
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    let captured = at_rest(|| tracker.capture(&tree, &spec, || Ok(())).unwrap());
    let id = place.write(&captured);
    tracker.note(id);
    let chain = Chain::open(place.images.clone()).unwrap();
    ask(&place, 1);
    let err = tracker.rollback(&tree, &chain, &spec, Unfit).unwrap_err();
    assert!(err.to_string().contains("too many of them"), "{err}");
    let captured = tracker.capture(&tree, &spec, || place.keep_files()).unwrap();
    assert_eq!(captured.parent(), Some(id));
    place.write(&captured);
    place.put("now", "");
    let told = |place: &Place| Some(place.read("now")).filter(|text| text.ends_with('.'));
    let before = until("it tells", || told(&place));
    drop(sandbox);
    let _copy = place.restore();
    // What is there was told before.
    place.put("now", "");
    assert_eq!(until("the copy tells", || told(&place)), before);
}

/// Files that could go back, or could not, and whether anything was begun with them.
struct Looked<'a> {
    why_not: Option<&'static str>,
    touched: &'a AtomicBool,
}

impl Files for Looked<'_> {
    fn look(&mut self, _: &Snapshot) -> io::Result<Option<String>> {
        Ok(self.why_not.map(str::to_owned))
    }

    fn begin(&mut self) -> io::Result<()> {
        self.touched.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn put_back(&mut self) -> io::Result<()> {
        self.begin()
    }
}

/// Files that do not fit keep everything as it is.
#[test]
fn files_are_looked_at_before_anything_is_touched() {
    let mut place = Place::new();
    let sandbox = place.python(CHANGING);
    until("it runs", || Some(place.read("now")).filter(|text| text.ends_with('.')));
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let captured = at_rest(|| capture(&tree, &spec, || Ok(())).unwrap());
    place.write(&captured);
    let chain = Chain::open(place.images.clone()).unwrap();
    let touched = AtomicBool::new(false);
    let files = Looked { why_not: Some("there are too many of them"), touched: &touched };
    let err = rollback(&tree, &chain, &spec, files).unwrap_err();
    assert!(err.to_string().contains("too many of them"), "{err}");
    assert!(!touched.load(Ordering::Relaxed));
    place.put("now", "");
    until("it goes on", || Some(place.read("now")).filter(|text| text.ends_with('.')));
}

#[test]
fn a_tree_that_no_longer_fits_is_left_as_it_is() {
    let mut place = Place::new();
    let sandbox = place.shell(crate::shells::COUNTER);
    place.grows("count", 3);
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    // While it sleeps, there is a child that will be gone; one that has just ended has told its parent so.
    let captured = until("it has a child", || {
        let captured = tracker.capture(&tree, &spec, || Ok(())).unwrap();
        let processes = &captured.snapshot.processes;
        let lives =
            processes.iter().all(|each| each.alive().is_some_and(|it| it.pending.is_empty()));
        (processes.len() == 2 && lives).then_some(captured)
    });
    tracker.note(place.write(&captured));
    let chain = Chain::open(place.images.clone()).unwrap();
    let before = place.number("count");
    let before = place.grows("count", before + 3);
    // Whatever the files are: they are looked at while the processes are.
    let touched = AtomicBool::new(false);
    let files = Looked { why_not: None, touched: &touched };
    let err = tracker.rollback(&tree, &chain, &spec, files).unwrap_err();
    assert!(matches!(&err, Error::NotInPlace { why } if why.contains("is gone")), "{err}");
    assert!(!touched.load(Ordering::Relaxed));
    place.grows("count", before + 3);
    // Another image than the last is not gone back to in place.
    let other = tracker.capture(&tree, &spec, || Ok(())).unwrap();
    let mut elsewhere = Place::new();
    elsewhere.images = place.images.clone();
    let id = elsewhere.write(&other);
    tracker.note(id);
    let err = tracker.rollback(&tree, &chain, &spec, || Ok(())).unwrap_err();
    assert!(err.to_string().contains("restore it instead"), "{err}");
}

/// The same number, but another file: nothing is touched.
#[test]
fn a_descriptor_that_became_another_is_noticed() {
    let mut place = Place::new();
    let sandbox = place.python(
        "
import os, time
fd = os.open('/mnt/one', os.O_RDWR | os.O_CREAT)
n = 0
while True:
    n += 1
    if os.path.exists('/mnt/go') and not os.path.exists('/mnt/gone'):
        os.close(fd); assert os.open('/mnt/two', os.O_RDWR | os.O_CREAT) == fd
        os.close(os.open('/mnt/gone', os.O_CREAT))
    with open('/mnt/count.new', 'w') as f: f.write(str(n))
    os.rename('/mnt/count.new', '/mnt/count')
    time.sleep(0.001)
",
    );
    place.grows("count", 2);
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    let captured = tracker.capture(&tree, &spec, || Ok(())).unwrap();
    tracker.note(place.write(&captured));
    let chain = Chain::open(place.images.clone()).unwrap();
    place.put("go", "");
    until("it is another", || place.work().join("gone").exists().then_some(()));
    let before = place.number("count");
    let err = tracker.rollback(&tree, &chain, &spec, || Ok(())).unwrap_err();
    assert!(err.to_string().contains("something else as descriptor 3"), "{err}");
    place.grows("count", before + 2);
}

/// What is a copy of another descriptor moves with it. That cannot be had back in place.
#[test]
fn descriptors_that_are_shared_otherwise_are_noticed() {
    let mut place = Place::new();
    let sandbox = place.python(
        "
import os, time
one = os.open('/mnt/one', os.O_RDWR | os.O_CREAT); two = os.open('/mnt/one', os.O_RDWR)
n = 0
while True:
    n += 1
    if os.path.exists('/mnt/go') and not os.path.exists('/mnt/gone'):
        os.dup2(one, two)
        os.close(os.open('/mnt/gone', os.O_CREAT))
    with open('/mnt/count.new', 'w') as f: f.write(str(n))
    os.rename('/mnt/count.new', '/mnt/count')
    time.sleep(0.001)
",
    );
    place.grows("count", 2);
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    let captured = at_rest(|| tracker.capture(&tree, &spec, || Ok(())).unwrap());
    tracker.note(place.write(&captured));
    let chain = Chain::open(place.images.clone()).unwrap();
    place.put("go", "");
    until("they are one", || place.work().join("gone").exists().then_some(()));
    let before = place.number("count");
    let err = tracker.rollback(&tree, &chain, &spec, || Ok(())).unwrap_err();
    assert!(err.to_string().contains("shares descriptor 4 with others"), "{err}");
    place.grows("count", before + 2);
}

/// What it could have had is given up for good, unless it is made anew.
#[test]
fn a_process_that_gave_up_limits_is_noticed() {
    let mut place = Place::new();
    let sandbox = place.python(
        "
import os, resource, time
count = os.open('/mnt/count', os.O_WRONLY | os.O_CREAT)
n = 0
while True:
    n += 1
    if os.path.exists('/mnt/go'): resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
    os.pwrite(count, str(n).encode(), 0)
    time.sleep(0.001)
",
    );
    place.grows("count", 2);
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    let captured = tracker.capture(&tree, &spec, || Ok(())).unwrap();
    tracker.note(place.write(&captured));
    let chain = Chain::open(place.images.clone()).unwrap();
    place.put("go", "");
    let limits = sandbox.path("/proc/2/limits");
    until("it gave up", || {
        let limits = std::fs::read_to_string(&limits).unwrap();
        limits
            .lines()
            .any(|line| line.starts_with("Max open files") && line.contains(" 200 "))
            .then_some(())
    });
    let before = place.number("count");
    let err = tracker.rollback(&tree, &chain, &spec, || Ok(())).unwrap_err();
    assert!(err.to_string().contains("process 2 (`python3`) has given up limits"), "{err}");
    place.grows("count", before + 2);
}

/// Whoever is traced and dead is there until somebody asks for it; process 1 would wait for ever.
#[test]
fn a_rollback_that_fails_half_way_ends_the_processes_and_nobody_hangs() {
    let mut place = Place::new();
    let sandbox = place.python(CHANGING);
    until("it runs", || Some(place.read("now")).filter(|text| text.ends_with('.')));
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    let captured = at_rest(|| tracker.capture(&tree, &spec, || Ok(())).unwrap());
    tracker.note(place.write(&captured));
    let chain = Chain::open(place.images.clone()).unwrap();
    let failing = || Err(io::Error::other("no files today"));
    let err = tracker.rollback(&tree, &chain, &spec, failing).unwrap_err();
    assert!(
        err.to_string().contains("ended: failed to put the files back: no files today"),
        "{err}"
    );
    until("they are gone", || (processes(&sandbox) == 1).then_some(()));
    drop(sandbox);
    place.restore();
}
