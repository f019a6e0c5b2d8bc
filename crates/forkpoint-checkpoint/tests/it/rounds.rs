//! Again and again.

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
