//! Programs that do their worst: captured, or refused with a reason in bounded time, and in any case they go on.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use forkpoint_checkpoint::{CaptureSpec, Error, Tree, capture, image::FileKind};

use crate::{
    locks::answers,
    place::{Place, now, try_capture, until},
};

const COUNT: &str = "
n = 0
while True:
    n += 1
    with open('/mnt/count.new', 'w') as f: f.write(str(n))
    os.rename('/mnt/count.new', '/mnt/count')
    time.sleep(0.002)
";

/// Each of them is gone before it is looked at.
#[test]
fn a_storm_of_forks_ends_in_time() {
    let place = Place::new();
    let program = format!(
        "
import os, time
for _ in range(12):
    if os.fork() == 0:
        while os.fork() == 0: pass
        os._exit(0)
{COUNT}"
    );
    let sandbox = place.python(&program);
    let before = place.grows("count", 3);
    let (tree, start) = (Tree::below(sandbox.init), now());
    let spec = CaptureSpec { patience: Duration::from_secs(2), ..CaptureSpec::default() };
    match capture(&tree, &spec, || Ok(())) {
        Ok(_) | Err(Error::Restless { .. } | Error::Ended { .. }) => {}
        Err(err) => panic!("{err}"),
    }
    assert!(now() - start < Duration::from_secs(20));
    place.grows("count", before);
}

#[test]
fn a_thousand_threads_go_on() {
    let mut place = Place::new();
    let program = format!(
        "
import os, threading, time
threading.stack_size(64 << 10)
stop = threading.Event(); ready = threading.Barrier(1001)
def wait(): ready.wait(); stop.wait()
for _ in range(1000): threading.Thread(target=wait, daemon=True).start()
ready.wait()
{COUNT}"
    );
    let sandbox = place.python(&program);
    place.grows("count", 1);
    let captured = place.capture(&sandbox);
    assert_eq!(captured.snapshot.processes[0].alive().unwrap().threads.len(), 1001);
    drop(sandbox);
    let _copy = place.restore();
    let before = place.number("count");
    place.grows("count", before + 2);
}

/// Ten thousand of all kinds. A user may have so many pages in pipes and then can ask for no more, and other tests that
/// run meanwhile are the same user: so each pipe has one page.
pub(crate) const DESCRIPTORS: &str = "
import fcntl, resource
def pipe():
    ends = os.pipe(); fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 4096)
    return ends
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
os.mkdir('/mnt/many')
files = [os.open(f'/mnt/many/{index}', os.O_RDWR | os.O_CREAT) for index in range(5000)]
pipes = [pipe() for _ in range(1500)]
pairs = [socket.socketpair() for _ in range(650)]
events = [os.eventfd(index + 1) for index in range(400)]
names = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(100)]
for index, name in enumerate(names): name.bind(f'\\0name {index}')
copies = [os.dup(file) for file in files[:300]]
for index, file in enumerate(files): os.write(file, str(index).encode()); os.lseek(file, 1, 0); os.set_inheritable(file, index % 3 == 0)
for index, (_, writer) in enumerate(pipes): os.write(writer, str(index).encode())
for index, (_, writer) in enumerate(pairs): writer.send(str(index).encode())
poll = select.epoll()
for reader, _ in pipes: poll.register(reader, select.EPOLLIN)
";

#[test]
fn ten_thousand_descriptors_come_back() {
    let told = "
assert len(os.listdir('/proc/self/fd')) > 10000
def told():
    yield all(os.pread(file, 10, 0) == str(index).encode() and os.lseek(file, 0, 1) == 1 for index, file in enumerate(files))
    yield all(os.get_inheritable(file) == (index % 3 == 0) for index, file in enumerate(files))
    os.lseek(copies[7], 5, 0)
    yield os.lseek(files[7], 0, 1), os.lseek(files[8], 0, 1)
    yield len(poll.poll(1, 5000)), all(os.read(reader, 10) == str(index).encode() for index, (reader, _) in enumerate(pipes))
    yield all(reader.recv(10) == str(index).encode() for index, (reader, _) in enumerate(pairs))
    yield all(os.eventfd_read(event) == index + 1 for index, event in enumerate(events))
    yield all(name.getsockname() == f'\\0name {index}'.encode() for index, name in enumerate(names))
    yield len(os.listdir('/proc/self/fd')) - 3 - len(files + events + names + copies) - 2 * len(pipes + pairs)
";
    answers(
        &format!("{DESCRIPTORS}{told}"),
        "True\nTrue\n(5, 1)\n(1500, True)\nTrue\nTrue\nTrue\n3",
    );
}

/// A file at a number of its own, at the same of two processes, at others of each, and at a number that is
/// another's in another process.
#[test]
fn files_that_have_many_numbers_have_them_again() {
    answers(
        "
files = [os.open(f'/mnt/{index}', os.O_RDWR | os.O_CREAT) for index in range(20)]
for index, file in enumerate(files): os.write(file, str(index).encode())
asked, asks = os.pipe(); heard, says = os.pipe()
def place(*numbers):
    for number, file in numbers: os.dup2(files[file], number, inheritable=number % 2 == 0)
place((300, 0), (301, 1), (302, 1), (400, 2), (500, 3))
def all_told():
    numbers = (300, 301, 302, 303, 304, 400, 401, 500, 600)
    def at(number):
        try: return (os.pread(number, 10, 0).decode(), os.get_inheritable(number))
        except OSError: return None
    return str([at(number) for number in numbers])
if os.fork() == 0:
    os.close(302)
    # Another file, the same at another number, two that change places, and one of its own.
    place((300, 4), (401, 0), (303, 2), (304, 5), (400, 3), (500, 2), (600, 6))
    while True:
        os.read(asked, 1); os.write(says, all_told().encode())
def told():
    yield all_told()
    os.write(asks, b'?')
    yield os.read(heard, 10000).decode()
",
        "[('0', True), ('1', False), ('1', True), None, None, ('2', True), None, ('3', True), None]\n\
         [('4', True), ('1', False), None, ('2', False), ('5', True), ('3', True), ('0', False), ('2', True), ('6', True)]",
    );
}

#[test]
fn four_gigabytes_of_which_little_is_used_cost_little() {
    let mut place = Place::new();
    let program = format!(
        "
import mmap, os, time
m = mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
for at in range(0, 4 << 30, 256 << 20): m[at] = 7
shared = mmap.mmap(-1, 4 << 30); shared[3 << 30] = 9
def check(): return all(m[at] == 7 for at in range(0, 4 << 30, 256 << 20)) and shared[3 << 30] == 9 and m[4096] == 0
assert check()
while not check(): pass
{}",
        COUNT.replace("    n += 1", "    n += check()")
    );
    let sandbox = place.python(&program);
    place.grows("count", 1);
    let captured = place.capture(&sandbox);
    assert!(captured.pages_len_bytes() < 64 << 20, "{}", captured.pages_len_bytes());
    drop(sandbox);
    let _copy = place.restore();
    let before = place.number("count");
    place.grows("count", before + 2);
}

/// The parent waits in the kernel for the child, which we hold.
#[test]
fn a_held_vfork_is_told_in_time() {
    let place = Place::new();
    let program = format!(
        "
import ctypes, os, time
libc = ctypes.CDLL(None)
VFORK = 0x4000
if libc.syscall(56, VFORK | 17, 0, 0, 0, 0) == 0:
{}
",
        COUNT.replace('\n', "\n    ")
    );
    let sandbox = place.python(&program);
    let before = place.grows("count", 1);
    let start = now();
    let spec = CaptureSpec { patience: Duration::from_millis(500), ..CaptureSpec::default() };
    let err = capture(&Tree::below(sandbox.init), &spec, || Ok(())).unwrap_err();
    assert!(matches!(err, Error::Restless { .. }), "{err}");
    assert!(now() - start < Duration::from_secs(10));
    place.grows("count", before + 2);
}

#[test]
fn who_catches_and_blocks_every_signal_is_refused() {
    let place = Place::new();
    let program = format!(
        "
import os, signal, time
for number in set(signal.valid_signals()) - {{9, 19}}: signal.signal(number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
{COUNT}"
    );
    let sandbox = place.python(&program);
    let before = place.grows("count", 1);
    let err = try_capture(&sandbox).unwrap_err();
    assert!(err.to_string().contains("a handler for every signal"), "{err}");
    place.grows("count", before + 2);
}

/// What Python's asyncio and Go wait for their children with.
#[test]
fn descriptors_of_children_come_back() {
    answers(
        "
child = os.fork()
if child == 0:
    while not os.path.exists('/mnt/go'): time.sleep(0.005)
    os._exit(42)
gone = os.fork()
if gone == 0: os._exit(7)
own, of_child, of_gone = os.pidfd_open(os.getpid()), os.pidfd_open(child), os.pidfd_open(gone)
os.waitid(os.P_PIDFD, of_gone, os.WEXITED | os.WNOWAIT)
poll = select.epoll(); poll.register(of_child, select.EPOLLIN)
def told():
    yield [number == of_child for number, _ in poll.poll(20)]
    yield os.waitid(os.P_PIDFD, of_child, os.WEXITED).si_status, os.waitid(os.P_PIDFD, of_gone, os.WEXITED).si_status
    signal.signal(signal.SIGUSR1, lambda *_: None); signal.pidfd_send_signal(own, signal.SIGUSR1)
    yield 'own'
",
        "[True]\n(42, 7)\nown",
    );
}

#[test]
fn descriptors_of_the_kernel_are_refused_by_name() {
    for (thing, name) in [
        ("libc.syscall(323, 1)", "userfaultfd"),
        ("libc.syscall(300, 0x200, 0)", "fanotify"),
        ("os.pidfd_open(1)", "process 1 as descriptor"),
    ] {
        let place = Place::new();
        let program = format!(
            "import ctypes, os, time\nlibc = ctypes.CDLL(None, use_errno=True)\nfd = {thing}\nassert fd >= 0, ctypes.get_errno()\n{COUNT}"
        );
        let sandbox = place.python(&program);
        let before = place.grows("count", 1);
        let err = try_capture(&sandbox).unwrap_err();
        assert!(matches!(err, Error::Refused(_)) && err.to_string().contains(name), "{err}");
        place.grows("count", before + 1);
    }
}

/// A disk that takes nothing for a while: who writes to it waits in the kernel, and no signal helps.
#[test]
fn who_waits_in_the_kernel_is_told_in_time_and_captured_later() {
    let run = |command: &str, args: &[&str]| {
        let status = Command::new(command).args(args).status().unwrap();
        assert!(status.success(), "{command} {args:?}");
    };
    let mut place = Place::new();
    let (file, at) = (place.dir.path().join("disk"), place.work());
    std::fs::File::create(&file).unwrap().set_len(16 << 20).unwrap();
    let (file, at) = (file.to_str().unwrap(), at.to_str().unwrap());
    run("mkfs.ext4", &["-q", file]);
    run("mount", &["-o", "loop", file, at]);
    let mounted = Mounted(at.to_owned());
    let counter = "i=0; while :; do i=$((i+1)); echo $i > /mnt/count; sleep 0.01; done";
    let sandbox = place.shell(counter);
    place.grows("count", 2);
    run("fsfreeze", &["-f", at]);
    until("it waits in the kernel", || {
        let stat = |tid| place.state(&sandbox, tid);
        let pid = place.outside(&sandbox, 2);
        let waits = std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        (stat(2) == Some('D') && waits.contains("percpu_rwsem")).then_some(())
    });
    let spec = CaptureSpec { patience: Duration::from_millis(500), ..CaptureSpec::default() };
    let start = now();
    let err = capture(&Tree::below(sandbox.init), &spec, || Ok(())).unwrap_err();
    let took = now() - start;
    run("fsfreeze", &["-u", at]);
    assert!(
        matches!(&err, Error::Restless { why, .. } if why.contains("waits in the kernel")),
        "{err}"
    );
    assert!(took < Duration::from_secs(5), "{took:?}");
    let now = place.number("count");
    place.grows("count", now + 2);
    place.capture(&sandbox);
    drop(sandbox);
    drop(mounted);
}

struct Mounted(String);

impl Drop for Mounted {
    fn drop(&mut self) {
        // Whoever is to unmount it must not wait for it.
        let _ = Command::new("fsfreeze").args(["-u", &self.0]).stderr(Stdio::null()).status();
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Nothing of it is ever found, and everything stands while it is looked for.
#[test]
fn many_who_watch_what_is_gone_are_told_in_time() {
    let place = Place::new();
    let program = format!(
        "
import ctypes, os, time
libc = ctypes.CDLL(None)
for n in range(12):
    f = libc.inotify_init(); kept = os.open('/mnt/x', os.O_CREAT)
    libc.inotify_add_watch(f, b'/mnt/x', 2); os.unlink('/mnt/x')
{COUNT}"
    );
    let sandbox = place.python(&program);
    let before = place.grows("count", 1);
    let start = now();
    let err = capture(&Tree::below(sandbox.init), &CaptureSpec::default(), || Ok(())).unwrap_err();
    assert!(matches!(&err, Error::Refused(refusals) if refusals.0.len() == 12), "{err}");
    assert!(now() - start < Duration::from_secs(12));
    place.grows("count", before + 2);
}

/// Holes cost nothing but take up as much room when they are read.
#[test]
fn files_without_a_name_are_kept_up_to_a_bound() {
    let place = Place::new();
    let program = format!(
        "
import os, time
kept = []
def more():
    kept.append(os.open('/mnt/x', os.O_RDWR | os.O_CREAT)); os.unlink('/mnt/x')
    os.ftruncate(kept[-1], 20 << 20); os.pwrite(kept[-1], b'end', (20 << 20) - 3)
for _ in range(3): more()
while not os.path.exists('/mnt/go'): time.sleep(0.01)
for _ in range(40): more()
{COUNT}"
    );
    let sandbox = place.python(&program);
    until("it has some", || {
        let open = std::fs::read_dir(sandbox.path("/proc/2/fd")).unwrap().count();
        (open >= 6).then_some(())
    });
    let captured = capture(&Tree::below(sandbox.init), &CaptureSpec::default(), || Ok(())).unwrap();
    let content = captured.snapshot.files.iter().filter_map(|file| match &file.kind {
        FileKind::Deleted { content, .. } => Some(&content.0),
        _ => None,
    });
    let ends: Vec<_> = content.map(|content| (content.len(), &content[(20 << 20) - 3..])).collect();
    assert_eq!(ends, [(20 << 20, &b"end"[..]); 3]);
    place.put("go", "");
    let before = place.grows("count", 1);
    let err = capture(&Tree::below(sandbox.init), &CaptureSpec::default(), || Ok(())).unwrap_err();
    assert!(err.to_string().contains("up to 64 MiB are kept; close it first"), "{err}");
    assert!(matches!(&err, Error::Refused(refusals) if refusals.0.len() == 40), "{err}");
    place.grows("count", before + 2);
}
