//! What cannot be captured is refused with the process, the thing and the reason, and goes on unharmed.

use forkpoint_checkpoint::{CaptureSpec, Error, Refusal, Tree, examine};

use crate::place::{Place, try_capture, until};

fn refused(thing: &str) -> Refusal {
    let mut found = refused_with(thing, 1);
    found.remove(0)
}

/// A program with something that is refused; it counts on.
fn refused_with(thing: &str, count: usize) -> Vec<Refusal> {
    let place = Place::new();
    let program = format!(
        "
import ctypes, mmap, os, socket, time, threading, fcntl, signal
libc = ctypes.CDLL(None, use_errno=True)
{thing}
n = 0
while True:
    n += 1
    with open('/mnt/count.new', 'w') as f: f.write(str(n))
    os.rename('/mnt/count.new', '/mnt/count')
    time.sleep(0.002)
"
    );
    let sandbox = place.python(&program);
    let before = place.grows("count", 2);
    let found = match try_capture(&sandbox) {
        Err(Error::Refused(refusals)) => refusals.0,
        other => panic!("not refused: {other:?}"),
    };
    let before = place.grows("count", before + 3);
    // Who asks beforehand is told the same.
    let told = examine(&Tree::below(sandbox.init), &CaptureSpec::default()).unwrap();
    assert_eq!(told.0, found);
    place.grows("count", before + 3);
    assert_eq!(found.len(), count, "{found:?}");
    for refusal in &found {
        assert!(
            matches!((refusal.pid, &*refusal.process), (2 | 3, "python3") | (1, "init")),
            "{refusal}"
        );
    }
    found
}

#[test]
fn io_uring_is_refused() {
    let found = refused("libc.syscall(425, 8, ctypes.create_string_buffer(120))");
    assert_eq!(found.thing, "`anon_inode:[io_uring]` (descriptor 3)");
    assert!(found.reason.contains("run the program without io_uring"), "{}", found.reason);
}

#[test]
fn a_connection_that_is_not_accepted_is_refused_for_now() {
    let thing = "s = socket.create_server(('127.0.0.1', 81)); c = socket.create_connection(('127.0.0.1', 81))";
    let found = refused_with(thing, 2);
    assert!(found[0].reason.contains("connections wait to be accepted; try again"), "{}", found[0]);
    assert!(found[1].reason.contains("its other end is not there"), "{}", found[1]);
}

#[test]
fn a_connection_to_somebody_outside_is_refused() {
    let thing = "libc.system(b'ip addr add 192.0.2.1/24 dev lo'); s = socket.create_server(('192.0.2.1', 81))\n\
                 c = socket.create_connection(('192.0.2.1', 81)); d, _ = s.accept(); s.close(); d.close()";
    let found = refused(thing);
    assert!(found.reason.contains("its other end is not captured"), "{}", found.reason);
}

#[test]
fn a_file_that_was_replaced_is_refused() {
    let thing = "kept = open('/mnt/a', 'w'); open('/mnt/b', 'w'); os.link('/mnt/a', '/mnt/c'); os.rename('/mnt/b', '/mnt/a')";
    let found = refused(thing);
    assert!(found.reason.contains("its name leads elsewhere"), "{}", found.reason);
}

/// As `ps` has for a moment.
#[test]
fn what_tells_of_a_process_is_refused() {
    let found = refused("kept = open('/proc/self/stat')");
    assert_eq!(found.thing, "`/proc/2/stat` (descriptor 3)");
    assert!(found.reason.contains("before the process is there"), "{}", found.reason);
}

#[test]
fn locked_memory_is_refused() {
    let found = refused("m = ctypes.create_string_buffer(65536); assert libc.mlock(m, 8192) == 0");
    assert_eq!(found.thing, "locked memory");
}

#[test]
fn a_nested_namespace_is_refused() {
    let found = refused("assert libc.unshare(0x04000000) == 0");
    assert_eq!(found.thing, "a uts namespace of its own");
}

#[test]
fn another_root_is_refused() {
    let found = refused(
        "os.mkdir('/mnt/root'); os.mkdir('/mnt/root/mnt'); d = '/mnt/root'\n\
                         pid = os.fork()\n\
                         if pid == 0: os.chroot(d); os.chdir('/')\n\
                         if pid == 0:\n    while True: time.sleep(1)\n\
                         time.sleep(0.2)",
    )
    .thing;
    assert_eq!(found, "another root directory");
}

#[test]
fn who_is_traced_is_refused() {
    let place = Place::new();
    // The child traces its parent.
    let sandbox = place.python(
        "import ctypes, os, time\nlibc = ctypes.CDLL(None)\nlibc.prctl(0x59616d61, -1, 0, 0, 0)\nn = 0\n\
         if os.fork() == 0:\n    libc.ptrace(0x4206, os.getppid(), 0, 0); open('/mnt/ready', 'w').write('1')\n    time.sleep(1000)\n\
         while True:\n    n += 1; open('/mnt/count.new', 'w').write(str(n)); os.rename('/mnt/count.new', '/mnt/count'); time.sleep(0.002)\n",
    );
    until("it is traced", || Some(place.number("ready")).filter(|ready| *ready == 1));
    let before = place.grows("count", 2);
    let err = try_capture(&sandbox).unwrap_err();
    assert!(matches!(err, Error::Restless { pid: 2, .. }), "{err}");
    let told = "process 2 (`python3`) does not stand still: somebody else traces it";
    assert!(err.to_string().starts_with(told), "{err}");
    place.grows("count", before + 2);
}

#[test]
fn what_is_shared_with_another_process_is_refused() {
    let thing = "if libc.syscall(56, 0x400 | 17, 0, 0, 0, 0) == 0:\n    while True: time.sleep(1)";
    let found = refused(thing);
    assert_eq!((found.pid, &*found.thing), (3, "descriptors in common with its parent"));
}

#[test]
fn sealed_memory_is_refused() {
    let found = refused(
        "f = os.memfd_create('kept', os.MFD_ALLOW_SEALING); os.ftruncate(f, 4096)\n\
         m = mmap.mmap(f, 4096); m[0] = 1; fcntl.fcntl(f, fcntl.F_ADD_SEALS, 0x10)",
    );
    assert_eq!(found.thing, "shared memory `kept`");
    let found = refused(
        "m = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
         at = ctypes.addressof(ctypes.c_char.from_buffer(m))\n\
         assert libc.syscall(462, ctypes.c_void_p(at), ctypes.c_size_t(4096), 0) == 0",
    );
    assert_eq!(found.thing, "sealed memory");
}

#[test]
fn what_only_a_process_knows_is_refused() {
    let found = refused("assert libc.prctl(41, 1, 0, 0, 0) == 0");
    assert_eq!(found.thing, "huge pages switched off");
    let found = refused("assert libc.prctl(65, 1, 0, 0, 0) == 0");
    assert_eq!(found.thing, "memory that denies being executable");
}

#[test]
fn names_that_are_not_text_are_refused() {
    for thing in [
        "kept = os.open(b'/mnt/\\xff', os.O_RDWR | os.O_CREAT)",
        "os.mkdir(b'/mnt/\\xff'); os.chdir(b'/mnt/\\xff')",
        "f = os.open(b'/mnt/\\xff', os.O_RDWR | os.O_CREAT); os.write(f, b'x'); m = mmap.mmap(f, 1); os.close(f)",
    ] {
        assert_eq!(refused(thing).thing, "a name that is not text");
    }
    let place = Place::new();
    let sandbox = place.python(
        "import ctypes, time\nctypes.CDLL(None).prctl(15, b'\\xff\\n)\\xfe')\n\
         open('/mnt/count', 'w').write('1')\nwhile True: time.sleep(1)",
    );
    place.grows("count", 0);
    let found = examine(&Tree::below(sandbox.init), &CaptureSpec::default()).unwrap();
    assert!(
        found.to_string().contains("has a name that is not text: only names in UTF-8"),
        "{found}"
    );
}

/// Where there is nothing to refuse, who only asks leaves everything as it is.
#[test]
fn who_is_looked_at_goes_on_as_before() {
    let mut place = Place::new();
    let sandbox = place.python(crate::killed::WATCHFUL);
    let mut before = place.grows("count", 2);
    for _ in 0..5 {
        let found = examine(&Tree::below(sandbox.init), &CaptureSpec::default()).unwrap();
        assert!(found.0.is_empty(), "{found}");
        before = place.grows("count", before + 2);
        assert_eq!(place.read("wrong"), "");
    }
    place.capture(&sandbox);
}

#[test]
fn nothing_is_left_of_a_look() {
    let place = Place::new();
    let sandbox = place.shell("echo 1 > /mnt/count; exec sleep 1000");
    until("it sleeps", || {
        let name = std::fs::read_to_string(sandbox.path("/proc/2/comm")).unwrap();
        (name == "sleep\n" && place.state(&sandbox, 2) == Some('S')).then_some(())
    });
    let maps = || std::fs::read_to_string(sandbox.path("/proc/2/maps")).unwrap();
    let before = maps();
    let found = examine(&Tree::below(sandbox.init), &CaptureSpec::default()).unwrap();
    assert!(found.0.is_empty(), "{found}");
    assert_eq!(maps(), before);
}

/// The first look finds something that waits, and a later one does not.
#[test]
fn what_passes_by_itself_is_waited_for() {
    let place = Place::new();
    let sandbox = place.python(
        "
import os, socket, time
a = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); a.bind(('127.0.0.1', 99))
while True:
    a.sendto(b'x', ('127.0.0.1', 99))
    open('/mnt/sent', 'w').write('1')
    while not os.path.exists('/mnt/go'): time.sleep(0.01)
    time.sleep(0.3)
    a.recv(10)
    open('/mnt/ready', 'w').write('1')
    while os.path.exists('/mnt/go'): time.sleep(0.01)
",
    );
    let tree = Tree::below(sandbox.init);
    for look in 0..2 {
        until("something waits", || Some(place.number("sent")).filter(|sent| *sent == 1));
        let err = try_capture(&sandbox).unwrap_err();
        assert!(matches!(&err, Error::Refused(refusals) if refusals.pass()), "{err}");
        place.put("go", "");
        if look == 0 {
            try_capture(&sandbox).unwrap();
        } else {
            let found = examine(&tree, &CaptureSpec::default()).unwrap();
            assert!(found.0.is_empty(), "{found}");
        }
        until("it has taken it", || Some(place.number("ready")).filter(|ready| *ready == 1));
        place.put("sent", "0");
        place.put("ready", "0");
        std::fs::remove_file(place.work().join("go")).unwrap();
    }
}

#[test]
fn events_of_watched_files_that_were_not_read_are_refused() {
    let found = refused("f = libc.inotify_init(); libc.inotify_add_watch(f, b'/mnt', 2)");
    assert_eq!(found.thing, "`anon_inode:inotify` (descriptor 3)");
    assert!(found.reason.contains("events that were not read yet"), "{}", found.reason);
}

#[test]
fn what_is_watched_and_gone_is_refused() {
    let thing = "f = libc.inotify_init(); kept = open('/mnt/x', 'w')\n\
                 libc.inotify_add_watch(f, b'/mnt/x', 2); os.unlink('/mnt/x')";
    let found = refused(thing);
    assert!(found.reason.contains("has no name any more"), "{}", found.reason);
}

#[test]
fn datagrams_that_wait_are_refused() {
    let thing = "a = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); a.bind(('127.0.0.1', 99)); a.sendto(b'', ('127.0.0.1', 99))";
    let found = refused(thing);
    assert!(found.reason.contains("something came that was not read yet"), "{}", found.reason);
}

#[test]
fn semaphores_and_parts_of_segments_of_system_v_are_refused() {
    let found = refused("assert libc.semget(5, 1, 0o1600) >= 0");
    assert!(found.thing == "semaphores" && found.reason.contains("ipcrm"), "{found}");
    let found = refused("assert libc.msgget(5, 0o1600) >= 0");
    assert!(found.thing == "a message queue", "{found}");
    let part = "libc.shmat.restype = ctypes.c_void_p; libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
at = libc.shmat(libc.shmget(0, 8192, 0o1600), None, 0); assert libc.munmap(at + 4096, 4096) == 0";
    let found = refused(part);
    assert!(found.thing == "a part of segment 0 of System V", "{found}");
}

/// Each part of where it was captured, changed: nothing is made.
#[test]
fn an_image_of_another_machine_is_refused() {
    use forkpoint_checkpoint::{image::Machine, restore::check_machine};
    let mut place = Place::new();
    let sandbox = place.shell("echo 1 > /mnt/count; exec sleep 1000");
    place.grows("count", 0);
    let snapshot = place.capture(&sandbox).snapshot;
    let machine = snapshot.machine;
    check_machine(&machine).unwrap();
    assert!(machine.features & 3 == 3, "{:#x}", machine.features);
    let others = [
        (Machine { boot: "another".to_owned(), ..machine.clone() }, "boot `another`"),
        (Machine { kernel: "7.0 #1".to_owned(), ..machine.clone() }, "kernel `7.0 #1`"),
        (Machine { arch: "aarch64".to_owned(), ..machine.clone() }, "processor `aarch64`"),
        (
            Machine { features: machine.features | 1 << 40, ..machine },
            "a processor with registers 0x1",
        ),
    ];
    for (other, told) in others {
        let err = check_machine(&other).unwrap_err();
        assert!(
            matches!(err, Error::OtherMachine { .. }) && err.to_string().contains(told),
            "{err}"
        );
    }
}

#[test]
fn a_thread_with_descriptors_or_a_directory_of_its_own_is_refused() {
    for (flag, what) in [(0x400, "descriptors"), (0x200, "a working directory")] {
        let thing = format!(
            "alone = threading.Event()\n\
             def apart(): libc.unshare({flag:#x}); alone.set(); time.sleep(1000)\n\
             threading.Thread(target=apart, daemon=True).start()\n\
             alone.wait()"
        );
        let found = refused(&thing);
        assert_eq!(found.thing, format!("a thread with {what} of its own"));
        assert_eq!(found.reason, "threads share what they have");
    }
}
