//! Memory that processes share.

use forkpoint_checkpoint::{CaptureSpec, Chain, Tracker, Tree};

use crate::{
    locks::answers,
    place::{Place, until},
};

#[test]
fn shared_memory_is_shared_again() {
    answers(
        "
import multiprocessing
m = mmap.mmap(-1, 1 << 20); m[0:5] = b'first'; m[500000:500003] = b'far'
fd = os.memfd_create('named', os.MFD_ALLOW_SEALING); os.write(fd, b'in a memfd'); os.lseek(fd, 3, 0)
second = os.open(f'/proc/self/fd/{fd}', os.O_RDONLY)
view = mmap.mmap(fd, 10); own = mmap.mmap(fd, 10, flags=mmap.MAP_PRIVATE); own[0:2] = b'IN'
sealed = os.memfd_create('sealed', os.MFD_ALLOW_SEALING); os.write(sealed, b'for ever'); fcntl.fcntl(sealed, 1033, 15)
plain = os.memfd_create('plain'); os.ftruncate(plain, 5000)
ghost = open('/mnt/ghost', 'w+b'); ghost.write(b'without a name'); ghost.flush()
mapped = mmap.mmap(ghost.fileno(), 14); os.unlink('/mnt/ghost')
lock = multiprocessing.Lock(); lock.acquire()
counter = multiprocessing.Value('i', 7)
done, release = os.pipe()
if os.fork() == 0:
    while not os.path.exists('/mnt/go'): time.sleep(0.005)
    assert bytes(m[0:5]) == b'first'
    while m[5] != 1: time.sleep(0.001)
    m[6] = 2
    lock.release()
    os._exit(0)
def told():
    yield bytes(m[0:5]), bytes(m[500000:500003]), len(m)
    m[5] = 1
    while m[6] != 2: time.sleep(0.001)
    lock.acquire(); yield 'both see it', counter.value
    yield os.read(fd, 100), os.read(second, 100), bytes(view), bytes(own)
    view[0:2] = b'XX'; yield os.pread(fd, 10, 0), bytes(own)
    yield os.readlink(f'/proc/self/fd/{fd}'), fcntl.fcntl(fd, 1034)
    yield os.pread(sealed, 10, 0), fcntl.fcntl(sealed, 1034)
    try: os.pwrite(sealed, b'x', 0)
    except PermissionError: yield 'sealed'
    yield os.fstat(plain).st_size, fcntl.fcntl(plain, 1034)
    mapped[0:7] = b'through'; ghost.seek(0); yield ghost.read(), os.fstat(ghost.fileno()).st_nlink
",
        "(b'first', b'far', 1048576)\n('both see it', 7)\n\
         (b'in a memfd'[3:], b'in a memfd', b'in a memfd', b'IN a memfd')\n(b'XX a memfd', b'IN a memfd')\n\
         ('/memfd:named (deleted)', 0)\n(b'for ever', 15)\nsealed\n(5000, 1)\n(b'through a name', 0)"
            .replace("b'in a memfd'[3:]", "b'a memfd'")
            .as_str(),
    );
}

const CHANGING: &str = "
import mmap, os, time
m = mmap.mmap(-1, 8 << 20)
for at in range(0, 4 << 20, 4096): m[at:at + 4] = b'kept'
fd = os.memfd_create('x'); os.write(fd, b'0123456789')
own = mmap.mmap(fd, 10, flags=mmap.MAP_PRIVATE); own[0:1] = b'a'
if os.fork() == 0:
    while True:
        if m[100] == 1: m[4096:4104] = b'by child'; m[100] = 2
        time.sleep(0.001)
while True:
    told = f'{bytes(m[0:4])} {bytes(m[4096:4104])} {m[5 << 20]} {os.pread(fd, 20, 0)} {bytes(own)}.'
    fd2 = os.open('/mnt/now.new', os.O_WRONLY | os.O_CREAT | os.O_TRUNC); os.write(fd2, told.encode()); os.close(fd2)
    os.rename('/mnt/now.new', '/mnt/now')
    if os.path.exists('/mnt/go') and m[100] == 0:
        m[0:4] = b'lost'; m[5 << 20] = 9; os.pwrite(fd, b'changed and longer', 0); own[1:2] = b'b'; m[100] = 1
    time.sleep(0.001)
";

#[test]
fn shared_memory_goes_back_in_place() {
    let mut place = Place::new();
    let sandbox = place.python(CHANGING);
    let is = |place: &Place, what: &str| {
        until(&format!("{what} is {}", place.read("now")), || {
            (place.read("now") == what).then_some(())
        });
    };
    let before = "b'kept' b'kept\\x00\\x00\\x00\\x00' 0 b'0123456789' b'a123456789'.";
    let after = "b'lost' b'by child' 9 b'changed and longer' b'abanged an'.";
    is(&place, before);
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    // While it writes, it has a file open that it will not have for long.
    let captured = until("it is at rest", || {
        let captured = tracker.capture(&tree, &spec, || Ok(())).unwrap();
        let names = captured.snapshot.files.iter().map(|file| format!("{:?}", file.kind));
        (!names.into_iter().any(|name| name.contains("/mnt/now.new"))).then_some(captured)
    });
    tracker.note(place.write(&captured));
    let chain = Chain::open(place.images.clone()).unwrap();
    for _ in 0..5 {
        place.put("go", "");
        let text = until("it changed", || {
            Some(place.read("now")).filter(|text| text.contains("by child") && text.ends_with('.'))
        });
        assert!(text.starts_with("b'lost' b'by child' 9"), "{text}; wanted {after}");
        std::fs::remove_file(place.work().join("go")).unwrap();
        tracker.rollback(&tree, &chain, &spec, || Ok(())).unwrap();
        is(&place, before);
    }
}

#[test]
fn what_was_told_about_memory_is_told_again() {
    answers(
        "
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def new(advice, len=8192):
    # What is next to it must not be joined with it.
    start = libc.mmap(None, 16384, 0, 0x22, -1, 0) + 4096
    assert libc.mmap(start, 8192, 3, 0x32, -1, 0) == start
    ctypes.memset(start, 7, 8192)
    assert libc.madvise(start, len, advice) == 0
    return start
gone, wiped, guarded, more = new(10), new(18), new(102, 4096), [new(advice) for advice in (16, 14, 15, 12, 1, 2)]
byte = lambda at: ctypes.c_ubyte.from_address(at).value
def in_child(at):
    pid = os.fork()
    if pid == 0: os._exit(byte(at))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def flags(at):
    found = False
    for line in open('/proc/self/smaps'):
        found = found or line.startswith(f'{at:x}-')
        if found and line.startswith('VmFlags'): return set(line.split()) & {'dc', 'wf', 'gu', 'dd', 'hg', 'nh', 'mg', 'rr', 'sr'}
def told():
    yield [byte(gone), byte(wiped), byte(guarded + 4096)]
    yield [in_child(gone), in_child(wiped), in_child(guarded), in_child(guarded + 4096), in_child(more[0])]
    yield [flags(at) for at in (gone, wiped, guarded, *more)]
",
        "[7, 7, 7]\n[-11, 0, -11, 7, 7]\n[{'dc'}, {'wf'}, {'gu'}, {'dd'}, {'hg'}, {'nh'}, {'mg'}, {'rr'}, {'sr'}]",
    );
}

/// A poll knows files by the number that they had, in a process that may have closed them.
#[test]
fn a_poll_that_processes_share_watches_the_same() {
    answers(
        "
poll = select.epoll()
reader, writer = os.pipe(); other, other_writer = os.pipe()
poll.register(reader, select.EPOLLIN); poll.register(other, select.EPOLLIN)
answer, answering = os.pipe()
if os.fork() == 0:
    while not os.path.exists('/mnt/go'): time.sleep(0.005)
    os.write(writer, b'x')
    found = [(number == reader, events) for number, events in poll.poll(5)]
    poll.unregister(reader)
    os.write(answering, f'{found} {poll.poll(0)}'.encode())
    os._exit(0)
os.close(reader); assert os.open('/dev/null', os.O_RDONLY) == reader
def told():
    yield os.read(answer, 100).decode()
    os.write(other_writer, b'x'); yield [number == other for number, _ in poll.poll(5)]
",
        "[(True, 1)] []\n[True]",
    );
}

const SYSTEM_V: &str = "
for name in ('shmget', 'shmat', 'shmdt', 'shmctl'): getattr(libc, name).restype = ctypes.c_long
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]; libc.shmdt.argtypes = [ctypes.c_void_p]
def new(key, size, mode=0o1600):
    id = libc.shmget(key, size, mode); assert id >= 0
    return id, libc.shmat(id, None, 0)
byte = lambda at: ctypes.c_ubyte.from_address(at)
# Numbers that a new namespace would not give out first.
for n in range(300): libc.shmctl(libc.shmget(0, 100, 0o1600), 0, None)
low = libc.shmget(0, 100, 0o1600)
first, at = new(77, 3 << 20); byte(at).value = 5; byte(at + (2 << 20)).value = 6
libc.shmctl(low, 0, None)
gone, gone_at = new(0, 9000); libc.shmctl(gone, 0, None); byte(gone_at).value = 8
os.seteuid(33); alone = libc.shmget(88, 5000, 0o1640); os.seteuid(0)
read = libc.shmat(first, None, 0o10000)
";

#[test]
fn segments_of_system_v_keep_their_numbers_and_are_shared_again() {
    let program = format!(
        "{SYSTEM_V}
if os.fork() == 0:
    while byte(gone_at).value != 9: time.sleep(0.001)
    byte(at).value += 1
    time.sleep(1000)
def table(): return sorted((int(w[0]), int(w[1]) == {{77: first, 88: alone, 0: gone}}[int(w[0])], w[2], int(w[3]), w[6], w[7:11]) for w in map(str.split, list(open('/proc/sysvipc/shm'))[1:]))
def told():
    yield byte(at).value, byte(read).value, byte(at + (2 << 20)).value, byte(gone_at).value
    byte(gone_at).value = 9
    while byte(read).value != 6: time.sleep(0.001)
    yield 'both see it', libc.shmget(77, 0, 0) == first, libc.shmget(88, 0, 0) == alone
    yield from table()
    libc.shmdt(gone_at); yield 'detached'
    pid = os.fork()
    if pid == 0: byte(read).value = 1
    yield os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"
    );
    answers(
        &program,
        "(5, 5, 6, 8)\n('both see it', True, True)\n(0, True, '1600', 9000, '2', ['0', '0', '0', '0'])\n\
         (77, True, '600', 3145728, '4', ['0', '0', '0', '0'])\n(88, True, '640', 5000, '0', ['33', '0', '33', '0'])\n\
         detached\n-11",
    );
}

#[test]
fn segments_of_system_v_go_back_in_place() {
    let mut place = Place::new();
    let sandbox = place.python(&format!(
        "
import ctypes, os, time
libc = ctypes.CDLL(None)
{SYSTEM_V}
while True:
    new_ones = len(list(open('/proc/sysvipc/shm'))) - 4
    now = f'{{byte(at).value}} {{byte(at + 4096).value}} {{byte(gone_at).value}} {{new_ones}}.'
    fd = os.open('/mnt/now.new', os.O_WRONLY | os.O_CREAT | os.O_TRUNC); os.write(fd, now.encode()); os.close(fd)
    os.rename('/mnt/now.new', '/mnt/now')
    if os.path.exists('/mnt/go') and byte(at).value == 5:
        byte(at).value = 50; byte(at + 4096).value = 51; byte(gone_at).value = 52; libc.shmget(0, 100, 0o1600)
    time.sleep(0.001)
"
    ));
    let is = |place: &Place, what: &str| {
        until(&format!("{what} is {}", place.read("now")), || {
            (place.read("now") == what).then_some(())
        });
    };
    is(&place, "5 0 8 0.");
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    let captured = until("it is at rest", || {
        let captured = tracker.capture(&tree, &spec, || Ok(())).unwrap();
        let open = captured.snapshot.files.iter().map(|file| format!("{:?}", file.kind));
        let busy =
            open.into_iter().any(|name| name.contains("now.new") || name.contains("sysvipc"));
        (!busy).then_some(captured)
    });
    tracker.note(place.write(&captured));
    let chain = Chain::open(place.images.clone()).unwrap();
    for _ in 0..3 {
        place.put("go", "");
        is(&place, "50 51 52 1.");
        std::fs::remove_file(place.work().join("go")).unwrap();
        tracker.rollback(&tree, &chain, &spec, || Ok(())).unwrap();
        is(&place, "5 0 8 0.");
    }
}
