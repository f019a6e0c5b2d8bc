//! Again and again.

use forkpoint_checkpoint::{CaptureSpec, Chain, Tracker, Tree, bare::Bare};

use crate::place::{Place, until};

/// A tree that forks all the time, and checks itself.
const FORKING: &str = "
import os, sys, time
n = 0
while True:
    n += 1
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.write(writer, str(n).encode())
        os._exit(n % 100)
    os.close(writer)
    told = os.read(reader, 100)
    os.close(reader)
    done, status = os.waitpid(pid, 0)
    if told != str(n).encode() or done != pid or os.waitstatus_to_exitcode(status) != n % 100:
        open('/mnt/wrong', 'a').write(f'{n} {told} {done} {pid} {status}\\n')
    if n % 10 == 0:
        with open('/mnt/count.new', 'w') as f: f.write(str(n))
        os.rename('/mnt/count.new', '/mnt/count')
";

#[test]
fn two_hundred_rounds_of_capture_kill_and_restore() {
    let mut place = Place::new();
    let mut sandbox = place.python(FORKING);
    let mut before = place.grows("count", 20);
    for round in 0..200 {
        let captured = place.capture(&sandbox);
        assert!(!captured.snapshot.processes.is_empty(), "round {round}");
        drop(sandbox);
        place.put("count", "0");
        sandbox = place.restore();
        let after = place.grows("count", 0);
        assert!(after + 10 >= before, "round {round}: {after} after {before}");
        before = after;
        let old = place.images.pop().unwrap();
        std::fs::remove_dir_all(old).unwrap();
    }
    assert_eq!(place.read("wrong"), "");
}

/// `posix_spawn` and the like: the parent cannot be stopped before the child lets go of it.
#[test]
fn a_program_that_spawns_all_the_time_is_captured() {
    let mut place = Place::new();
    let mut sandbox = place.python(
        "import os, subprocess\nn = 0\n\
         while True:\n    n += 1\n    p = os.posix_spawn('/bin/true', ['true'], {})\n    assert os.waitpid(p, 0)[1] == 0\n\
         \x20   open('/mnt/count.new', 'w').write(str(n)); os.rename('/mnt/count.new', '/mnt/count')\n",
    );
    let mut before = place.grows("count", 5);
    for round in 0..40 {
        place.capture(&sandbox);
        if round % 10 == 0 {
            drop(sandbox);
            sandbox = place.restore();
        }
        before = place.grows("count", before.saturating_sub(5));
    }
    until("nothing went wrong", || place.read("log").is_empty().then_some(()));
}

/// What a process and the engine hold: descriptors, mappings, mounts, processes.
fn held(place: &Place, sandbox: &Bare) -> Vec<usize> {
    let outside = place.outside(sandbox, 2);
    let count = |path: String| std::fs::read_dir(path).unwrap().count();
    let lines = |path: String| std::fs::read_to_string(path).unwrap().lines().count();
    vec![
        count("/proc/self/fd".to_owned()),
        count("/proc/self/task".to_owned()),
        lines("/proc/self/mountinfo".to_owned()),
        lines(format!("/proc/{}/mountinfo", sandbox.init)),
        count(format!("/proc/{outside}/fd")),
        count(format!("/proc/{outside}/task")),
        lines(format!("/proc/{outside}/maps")),
        std::fs::read_dir(sandbox.path("/proc"))
            .unwrap()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().parse::<i32>().is_ok())
            .count(),
        count(place.dir.path().to_string_lossy().into_owned()),
    ]
}

fn resident(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// `just rounds` makes more.
fn rounds() -> u32 {
    std::env::var("FORKPOINT_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(150)
}

#[test]
fn rounds_of_capture_and_rollback_leave_nothing() {
    let mut place = Place::new();
    let sandbox = place.python(
        "
import mmap, os, time
m = mmap.mmap(-1, 4 << 20)
open('/dev/shm/file', 'w').write('here')
fd = os.open('/mnt/count', os.O_WRONLY | os.O_CREAT)
n = 0
while True:
    n += 1
    m[(n % 500) * 4096] = n % 256
    os.pwrite(fd, b'%08d' % n, 0)
    time.sleep(0.0005)
",
    );
    place.grows("count", 3);
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let mut tracker = Tracker::new();
    let forget = |place: &mut Place, tracker: &mut Tracker| {
        *tracker = Tracker::new();
        for old in place.images.drain(..) {
            std::fs::remove_dir_all(old).unwrap();
        }
    };
    let mut measured = None;
    for round in 0..rounds() {
        if round % 16 == 0 {
            forget(&mut place, &mut tracker);
        }
        if round == 48 {
            let its = resident(place.outside(&sandbox, 2));
            measured = Some((held(&place, &sandbox), resident(std::process::id() as i32), its));
        }
        let captured = tracker.capture(&tree, &spec, || Ok(())).unwrap();
        tracker.note(place.write(&captured));
        let chain = Chain::open(place.images.clone()).unwrap();
        let before = place.number("count");
        place.grows("count", before);
        tracker.rollback(&tree, &chain, &spec, || Ok(())).unwrap();
    }
    forget(&mut place, &mut tracker);
    let (before, own, its) = measured.unwrap();
    assert_eq!(held(&place, &sandbox), before);
    let now = resident(std::process::id() as i32);
    assert!(now < own + (8 << 10), "the engine had {own} KiB, and has {now}");
    let now = resident(place.outside(&sandbox, 2));
    assert!(now < its + (1 << 10), "the program had {its} KiB, and has {now}");
    let before = place.number("count");
    place.grows("count", before + 3);
}
