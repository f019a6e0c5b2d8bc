//! Locks of files, watches, pipes with a name and connections by a name: what belongs to names in the sandbox.

use crate::place::{Place, until};

/// What the program says when it is asked, before and after.
pub(crate) fn answers(program: &str, answer: &str) {
    let mut place = Place::new();
    let program = format!(
        "
import ctypes, fcntl, mmap, os, select, signal, socket, stat, struct, time
libc = ctypes.CDLL(None, use_errno=True)
{program}
open('/mnt/ready', 'w').write('1')
while not os.path.exists('/mnt/go'): time.sleep(0.005)
open('/mnt/answer.new', 'w').write('\\n'.join(map(str, told())))
os.rename('/mnt/answer.new', '/mnt/answer')
time.sleep(1000)
"
    );
    let sandbox = place.python(&program);
    until("ready", || Some(place.number("ready")).filter(|ready| *ready == 1));
    place.capture(&sandbox);
    // The original notices nothing.
    assert_eq!(ask(&place), answer);
    drop(sandbox);
    let copy = place.restore();
    // A copy is as good as the original.
    place.capture(&copy);
    drop(copy);
    let _copy = place.restore();
    assert_eq!(place.read("answer"), "");
    assert_eq!(ask(&place), answer);
}

fn ask(place: &Place) -> String {
    place.put("go", "");
    until("an answer", || {
        assert_eq!(place.read("log"), "");
        Some(place.read("answer")).filter(|text| !text.is_empty())
    })
}

#[test]
fn locks_are_taken_again() {
    answers(
        "
kept = os.open('/mnt/lock', os.O_RDWR | os.O_CREAT)
again = os.dup(kept)
fcntl.lockf(kept, fcntl.LOCK_EX, 10, 5)
fcntl.lockf(kept, fcntl.LOCK_SH, 0, 100)
flock = lambda kind, start, len: struct.pack('hhllhh', kind, 0, start, len, 0, 0)
own = os.open('/mnt/lock', os.O_RDWR)
fcntl.fcntl(own, 37, flock(1, 50, 7))
ghost = os.open('/mnt/ghost', os.O_RDWR | os.O_CREAT)
same = os.open('/mnt/ghost', os.O_RDWR); os.unlink('/mnt/ghost')
fcntl.flock(ghost, fcntl.LOCK_EX)
def told():
    reader, writer = os.pipe()
    if os.fork() == 0:
        other = os.open('/mnt/lock', os.O_RDWR)
        def holder(kind, start, len):
            found = struct.unpack('hhllhh', fcntl.fcntl(other, fcntl.F_GETLK, flock(kind, start, len)))
            return (found[0], found[2], found[3], found[4])
        for asked in ((0, 0, 40), (1, 0, 5), (1, 90, 0), (0, 100, 5), (1, 45, 10)): os.write(writer, f'{holder(*asked)}'.encode())
        os._exit(0)
    os.wait()
    yield os.read(reader, 1000).decode()
    try: fcntl.flock(same, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError: yield 'ghost is locked'
    # The locks of a process go with any descriptor of the file, those of an open file do not.
    os.close(again)
    if os.fork() == 0:
        other = os.open('/mnt/lock', os.O_RDWR)
        fcntl.fcntl(other, fcntl.F_SETLK, flock(1, 0, 50))
        try: fcntl.fcntl(other, fcntl.F_SETLK, flock(1, 0, 60))
        except BlockingIOError: os.write(writer, b'only its own')
        os._exit(0)
    os.wait()
    yield os.read(reader, 1000).decode()
",
        "(1, 5, 10, 2)(2, 0, 5, 0)(0, 100, 0, 2)(2, 100, 5, 0)(1, 50, 7, -1)\nghost is locked\nonly its own",
    );
}

#[test]
fn what_is_watched_is_watched_again() {
    answers(
        "
os.makedirs('/mnt/deep/er'); open('/mnt/deep/er/file', 'w').close(); os.mkdir('/mnt/other')
watch = libc.inotify_init1(os.O_NONBLOCK)
add = lambda path, mask: libc.inotify_add_watch(watch, path, mask)
assert [add(b'/mnt/other', 2), add(b'/mnt/deep', 256), add(b'/mnt/deep/er/file', 2)] == [1, 2, 3]
libc.inotify_rm_watch(watch, 1); os.read(watch, 4096)
assert add(b'/mnt/other', 0x200) == 4
poll = select.epoll(); poll.register(watch, select.EPOLLIN)
def told():
    yield poll.poll(0)
    os.close(os.open('/mnt/deep/new', os.O_CREAT))
    with open('/mnt/deep/er/file', 'w') as f: f.write('x')
    os.close(os.open('/mnt/other/a', os.O_CREAT)); os.unlink('/mnt/other/a')
    yield [event for _, event in poll.poll(0)]
    events = os.read(watch, 4096)
    while events:
        number, mask, _, len = struct.unpack_from('iIII', events)
        yield number, mask, events[16:16 + len].rstrip(b'\\0')
        events = events[16 + len:]
    yield add(b'/mnt', 2)
",
        "[]\n[1]\n(2, 256, b'new')\n(3, 2, b'')\n(4, 512, b'a')\n5",
    );
}

#[test]
fn what_is_open_only_as_a_path_comes_back() {
    answers(
        "
os.mkdir('/mnt/d'); open('/mnt/d/f', 'w').write('x')
directory, file = os.open('/mnt/d', os.O_PATH), os.open('/mnt/d/f', os.O_PATH | os.O_NOFOLLOW)
def told():
    yield os.stat('f', dir_fd=directory).st_size, os.fstat(file).st_size
    try: os.read(file, 1)
    except OSError as err: yield err.errno
",
        "(1, 1)\n9",
    );
}

#[test]
fn pipes_with_a_name_keep_what_is_in_them() {
    answers(
        "
os.mkfifo('/mnt/fifo'); os.mkfifo('/mnt/lonely')
reader = os.open('/mnt/fifo', os.O_RDONLY | os.O_NONBLOCK)
writer = os.open('/mnt/fifo', os.O_WRONLY)
fcntl.fcntl(writer, 1031, 1 << 18)
os.write(writer, b'waiting')
both = os.open('/mnt/lonely', os.O_RDWR); os.write(both, b'alone')
def told():
    yield os.read(reader, 100), fcntl.fcntl(reader, 1032)
    os.write(writer, b'more'); yield os.read(reader, 100)
    try: os.read(reader, 1)
    except BlockingIOError: yield 'empty'
    os.close(writer); yield os.read(reader, 1)
    yield os.read(both, 100), fcntl.fcntl(both, fcntl.F_GETFL) & os.O_NONBLOCK
",
        "(b'waiting', 262144)\nb'more'\nempty\nb''\n(b'alone', 0)",
    );
}

#[test]
fn connections_by_a_name_go_on() {
    answers(
        "
unix = lambda kind=socket.SOCK_STREAM: socket.socket(socket.AF_UNIX, kind)
os.chdir('/mnt')
listener = unix(); listener.bind('relative'); listener.listen(3); os.chmod('relative', 0o640); os.chown('relative', 7, 8)
client = unix(); client.connect('/mnt/relative'); server, _ = listener.accept()
client.sendall(b'to the server'); server.sendall(b'to the client')
half = unix(); half.connect('relative'); half_server, _ = listener.accept()
half.sendall(b'last words'); half.shutdown(socket.SHUT_WR)
hidden = unix(); hidden.bind('\\0hidden'); hidden.listen()
hidden_client = unix(); hidden_client.connect('\\0hidden'); hidden_server, _ = hidden.accept()
gone, other = socket.socketpair(); other.sendall(b'farewell'); other.close()
packets, packets_other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
log = unix(socket.SOCK_DGRAM); log.bind('/mnt/log.socket')
sender = unix(socket.SOCK_DGRAM); sender.connect('/mnt/log.socket')
ghost = unix(); ghost.bind('/mnt/ghost.socket'); ghost.listen(); os.unlink('/mnt/ghost.socket')
udp = lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
a, b = udp(), udp()
a.bind(('127.0.0.1', 1111)); b.bind(('127.0.0.1', 2222)); a.connect(('127.0.0.1', 2222)); b.connect(('127.0.0.1', 1111))
def told():
    yield server.recv(100), client.recv(100)
    # A relative name comes back as an absolute one.
    yield [os.path.basename(name) for name in (client.getpeername(), server.getsockname(), listener.getsockname())]
    now = os.stat('/mnt/relative'); yield oct(now.st_mode & 0o777), now.st_uid, now.st_gid
    client.close(); yield server.recv(100)
    yield half_server.recv(100), half_server.recv(100)
    half_server.sendall(b'still open'); yield half.recv(100)
    try: half.send(b'x')
    except BrokenPipeError: yield 'shut'
    yield hidden_server.send(b'x'), hidden_client.recv(9)
    late = unix(); late.connect('\\0hidden'); yield hidden.accept()[0].send(b'late'), late.recv(9)
    yield gone.recv(100), gone.recv(100)
    packets.send(b'one'); packets.send(b'two'); yield packets_other.recv(9), packets_other.recv(9)
    sender.send(b'logged'); yield log.recv(100)
    yield os.path.exists('/mnt/ghost.socket')
    a.send(b'udp'); yield b.recv(9), a.getpeername(), b.getsockname()
",
        "(b'to the server', b'to the client')\n['relative', 'relative', 'relative']\n('0o640', 7, 8)\nb''\n\
         (b'last words', b'')\nb'still open'\nshut\n(1, b'x')\n(4, b'late')\n(b'farewell', b'')\n(b'one', b'two')\nb'logged'\nFalse\n\
         (b'udp', ('127.0.0.1', 2222), ('127.0.0.1', 2222))",
    );
}
