//! Files in memory: `/dev/shm`, and who maps what is in it.

use forkpoint_checkpoint::{CaptureSpec, Chain, Tracker, Tree};

use crate::{
    locks::answers,
    place::{Place, until},
};

#[test]
fn files_in_memory_are_as_they_were() {
    answers(
        "
os.umask(0)
os.chdir('/dev/shm')
os.mkdir('dir', 0o750); os.mkdir('dir/empty', 0o1777)
plain = os.open('dir/plain', os.O_RDWR | os.O_CREAT, 0o640); os.write(plain, b'in memory'); os.chown('dir/plain', 3, 7)
os.setxattr('dir/plain', 'user.colour', b'green')
os.link('dir/plain', 'second'); os.symlink('/nowhere/else', 'link'); os.mkfifo('fifo', 0o604)
with open('sparse', 'wb') as file: file.truncate(50 << 20); file.seek(30 << 20); file.write(b'far'); 
with open('empty', 'wb') as file: pass
server = socket.socket(socket.AF_UNIX); server.bind('/dev/shm/socket'); server.listen(); os.chmod('socket', 0o606)
left = socket.socket(socket.AF_UNIX); left.bind('/dev/shm/left'); left.close()
os.utime('link', ns=(4, 5), follow_symlinks=False)
os.utime('dir/plain', ns=(1_000_000_007, 2_000_000_009)); os.utime('dir', ns=(3, 4))
os.chdir('/')
def told():
    s = os.stat('/dev/shm/dir/plain')
    yield oct(s.st_mode), s.st_uid, s.st_gid, s.st_nlink, s.st_atime_ns, s.st_mtime_ns, os.getxattr('/dev/shm/dir/plain', 'user.colour')
    yield os.stat('/dev/shm/dir').st_mtime_ns, oct(os.stat('/dev/shm/dir').st_mode), oct(os.stat('/dev/shm/dir/empty').st_mode), oct(os.stat('/dev/shm').st_mode)
    yield sorted(os.listdir('/dev/shm')), os.listdir('/dev/shm/dir/empty')
    yield os.pread(plain, 99, 0), os.path.sameopenfile(plain, os.open('/dev/shm/second', os.O_RDONLY))
    yield os.readlink('/dev/shm/link'), os.lstat('/dev/shm/link').st_mtime_ns, oct(os.stat('/dev/shm/fifo').st_mode)
    s = os.stat('/dev/shm/sparse'); yield s.st_size, s.st_blocks, os.pread(os.open('/dev/shm/sparse', os.O_RDONLY), 5, 30 << 20)
    client = socket.socket(socket.AF_UNIX); client.connect('/dev/shm/socket'); yield 'connected', oct(os.stat('/dev/shm/socket').st_mode), oct(os.stat('/dev/shm/left').st_mode)[:5]
",
        "('0o100640', 3, 7, 2, 1000000007, 2000000009, b'green')\n(4, '0o40750', '0o41777', '0o41777')\n\
         (['dir', 'empty', 'fifo', 'left', 'link', 'second', 'socket', 'sparse'], [])\n(b'in memory', True)\n\
         ('/nowhere/else', 5, '0o10604')\n(52428800, 8, b'far\\x00\\x00')\n('connected', '0o140606', '0o140')",
    );
}

/// Where there is nothing else, they are made while the processes take their places.
#[test]
fn links_in_memory_are_there_when_the_program_runs() {
    answers(
        "
os.symlink('/nowhere', '/dev/shm/one'); os.chmod('/dev/shm', 0o1700)
def told():
    yield os.readlink('/dev/shm/one'), oct(os.stat('/dev/shm').st_mode)
",
        "('/nowhere', '0o41700')",
    );
}

#[test]
fn a_socket_whose_name_leads_through_a_link_in_memory_listens_again() {
    answers(
        "
os.mkdir('/mnt/app'); os.symlink('/mnt/app', '/dev/shm/run')
server = socket.socket(socket.AF_UNIX); server.bind('/dev/shm/run/s'); server.listen()
def told():
    client = socket.socket(socket.AF_UNIX); client.connect('/mnt/app/s')
    yield server.accept()[0].getsockname()
",
        "/dev/shm/run/s",
    );
}

#[test]
fn named_segments_and_semaphores_are_shared_again() {
    answers(
        "
from multiprocessing import shared_memory, resource_tracker
resource_tracker.register = lambda *_: None
made = shared_memory.SharedMemory('segment', create=True, size=1 << 20); made.buf[0:5] = b'first'
own = mmap.mmap(os.open('/dev/shm/segment', os.O_RDONLY), 1 << 20, flags=mmap.MAP_PRIVATE, prot=3); own[4096:4099] = b'own'
libc.sem_open.restype = ctypes.c_void_p
libc.sem_open.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_uint]
for name in ('sem_wait', 'sem_post', 'sem_trywait'): getattr(libc, name).argtypes = [ctypes.c_void_p]
sem = libc.sem_open(b'/gate', os.O_CREAT, 0o600, 0)
assert sem
if os.fork() == 0:
    theirs = shared_memory.SharedMemory('segment')
    mine = libc.sem_open(b'/gate', 0, 0, 0)
    assert libc.sem_wait(mine) == 0
    assert bytes(theirs.buf[5:8]) == b'and'
    theirs.buf[8:13] = b'child'
    libc.sem_post(mine)
    time.sleep(1000)
while not b'segment' in b''.join(open(f'/proc/{pid}/maps', 'rb').read() for pid in os.listdir('/proc') if pid.isdigit() and int(pid) > os.getpid()): time.sleep(0.001)
def told():
    yield libc.sem_trywait(sem), bytes(own[4096:4099])
    made.buf[5:8] = b'and'
    libc.sem_post(sem)
    while bytes(made.buf[8:13]) != b'child': time.sleep(0.001)
    libc.sem_wait(sem); yield bytes(made.buf[0:13]), bytes(own[0:13])
    later = shared_memory.SharedMemory('segment'); yield bytes(later.buf[0:13])
",
        "(-1, b'own')\n(b'firstandchild', b'firstandchild')\nb'firstandchild'",
    );
}

const CHANGING: &str = "
import mmap, os, time
def put(name, text):
    with open(f'/dev/shm/{name}', 'w') as file: file.write(text)
put('kept', 'kept'); put('gone', 'to be deleted'); os.mkdir('/dev/shm/dir'); put('dir/file', 'below')
put('other', 'other'); os.truncate('/dev/shm/other', 1 << 20)
os.chmod('/dev/shm/kept', 0o640)
m = mmap.mmap(os.open('/dev/shm/other', os.O_RDWR), 1 << 20)
p = mmap.mmap(os.open('/dev/shm/other', os.O_RDWR), 1 << 20, flags=mmap.MAP_PRIVATE); p[8192:8195] = b'own'
def look():
    told = [f'{bytes(m[0:5])} {bytes(p[0:5])} {bytes(p[8192:8195])} {os.stat(\"/dev/shm/kept\").st_mode:o}']
    for at, _, names in sorted(os.walk('/dev/shm')):
        for name in sorted(names):
            with open(f'{at}/{name}', 'rb') as file: told.append(f'{at[8:]}/{name} {file.read(20)}')
    return ' '.join(told)
while True:
    fd = os.open('/mnt/now.new', os.O_WRONLY | os.O_CREAT | os.O_TRUNC); os.write(fd, (look() + '.').encode()); os.close(fd)
    os.rename('/mnt/now.new', '/mnt/now')
    if os.path.exists('/mnt/go') and m[0:5] == b'other':
        m[0:5] = b'OTHER'; p[8192:8195] = b'OWN'; put('kept', 'changed and longer'); os.chmod('/dev/shm/kept', 0o600)
        os.unlink('/dev/shm/gone'); os.mkdir('/dev/shm/gone'); put('gone/new', 'x')
        os.unlink('/dev/shm/dir/file'); os.rmdir('/dev/shm/dir'); put('dir', 'a file now'); put('full', 'x' * (60 << 20))
    time.sleep(0.001)
";

#[test]
fn files_in_memory_go_back_in_place() {
    let mut place = Place::new();
    let sandbox = place.python(CHANGING);
    let is = |place: &Place, what: &str| {
        until(&format!("{what} is {}", place.read("now")), || {
            Some(place.read("now")).filter(|now| now.contains(what) && now.ends_with('.'))
        })
    };
    let before = is(&place, "b'other'");
    assert!(before.contains("/gone b'to be deleted'") && before.contains("640"), "{before}");
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    // While it looks, it has a file open that it will not have for long.
    let captured = until("it is at rest", || {
        let captured = tracker.capture(&tree, &spec, || Ok(())).unwrap();
        let open = captured.snapshot.files.iter().map(|file| format!("{:?}", file.kind));
        let passing =
            ["/mnt/now.new", "/dev/shm/dir", "/dev/shm/gone", "/dev/shm/kept", "/dev/shm\""];
        let busy = open.into_iter().any(|name| passing.iter().any(|part| name.contains(part)));
        (!busy).then_some(captured)
    });
    tracker.note(place.write(&captured));
    let chain = Chain::open(place.images.clone()).unwrap();
    for _ in 0..3 {
        place.put("go", "");
        let after = is(&place, "/full b'xx");
        let wanted = ["b'OTHER'", "b'OWN'", "/gone/new b'x'", "/dir b'a file now'", "100600"];
        assert!(wanted.iter().all(|part| after.contains(part)), "{after}");
        std::fs::remove_file(place.work().join("go")).unwrap();
        tracker.rollback(&tree, &chain, &spec, || Ok(())).unwrap();
        assert_eq!(is(&place, "b'other'"), before);
    }
}

#[test]
fn a_file_in_memory_that_cannot_be_kept_is_refused_by_name() {
    let mut place = Place::new();
    let sandbox = place.shell("echo x > $'/dev/shm/\\xff'; echo 1 > /mnt/count; exec sleep 1000");
    place.grows("count", 0);
    let err = crate::place::try_capture(&sandbox).unwrap_err().to_string();
    assert!(err.contains("/dev/shm") && err.contains("not UTF-8"), "{err}");
    place.inside(&sandbox, &["/bin/bash", "-c", "rm /dev/shm/*"]);
    place.capture(&sandbox);
}
