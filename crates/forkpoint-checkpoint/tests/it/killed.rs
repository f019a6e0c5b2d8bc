//! An engine that dies at any step leaves the tree running as before.

use std::{process::Command, time::Duration};

use forkpoint_checkpoint::bare::Bare;

use crate::place::{PROGRAM, Place, now, until};

/// Threads, a child, signals that are caught, numbers in registers: it notices what changes.
pub(crate) const WATCHFUL: &str = "
import os, signal, threading, time
caught = [0]
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.signal(signal.SIGURG, lambda *_: caught.__setitem__(0, caught[0] + 1))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
counts = [0, 0]
def work(n):
    while True:
        if sum(i * i for i in range(300)) != 8955050: open('/mnt/wrong', 'a').write('sum\\n')
        counts[n] += 1
        time.sleep(0.0005)
for n in range(2): threading.Thread(target=work, args=(n,), daemon=True).start()
n = 0
while True:
    n += 1
    if signal.pthread_sigmask(signal.SIG_BLOCK, []) != {signal.SIGUSR2}: open('/mnt/wrong', 'a').write('mask\\n')
    if caught[0]: open('/mnt/wrong', 'a').write('signal\\n')
    if sum(i * i for i in range(300)) != 8955050: open('/mnt/wrong', 'a').write('sum\\n')
    with open('/mnt/count.new', 'w') as f: f.write(str(min(n, *counts)))
    os.rename('/mnt/count.new', '/mnt/count')
    time.sleep(0.0005)
";

#[test]
fn an_engine_that_dies_at_any_step_harms_nobody() {
    let place = Place::new();
    let sandbox = place.python(WATCHFUL);
    let mut before = place.grows("count", 3);
    let mut steps = 0;
    // Until a capture needs fewer steps than it is given.
    loop {
        let init = sandbox.init.to_string();
        let output = Command::new(PROGRAM)
            .args(["forkpoint-bare-capture", &init, &steps.to_string()])
            .output()
            .unwrap();
        before = goes_on(&place, &sandbox, before, steps);
        assert_eq!(place.read("wrong"), "", "after {steps} steps");
        if output.status.success() {
            break;
        }
        steps += 1;
    }
    // Steps are only counted where debug assertions are on.
    assert!(steps > 50 || !cfg!(debug_assertions), "it died {steps} times");
    // It can still be captured, and the copy is well.
    let mut place = place;
    until("a last capture", || crate::place::try_capture(&sandbox).ok());
    place.capture(&sandbox);
    drop(sandbox);
    place.put("count", "0");
    let _copy = place.restore();
    place.grows("count", before.saturating_sub(1));
    assert_eq!(place.read("wrong"), "");
}

fn goes_on(place: &Place, sandbox: &Bare, before: u64, steps: u32) -> u64 {
    let end = now() + Duration::from_secs(20);
    loop {
        match place.number("count") {
            count if count > before => return count,
            _ if now() > end => panic!("after {steps} steps: {}", place.states(sandbox, 2)),
            _ => std::hint::spin_loop(),
        }
    }
}
