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
