//! Processes and memory: kept, brought back, forked and rolled back, through the whole product.
//!
//! Beside them runc with CRIU, for one process that sleeps: the least that it can be asked.

use std::time::Duration;

use super::{Bench, Rival};
use crate::{
    figures::{Row, Samples, Target, Unit},
    product::{Limits, Product},
};

/// It rests without a process of its own: from a fifo to which nobody writes, nothing is read for a while.
const SHELL: &str = "mkfifo /root/rest; exec 3<>/root/rest; i=0; while :; do i=$((i+1)); \
                     echo $i > /root/count; read -t 0.01 -u 3 x; done";

/// Five threads and a heap; writes 1 MB of it when it is told to.
const PYTHON: &str = "
import os, threading, time
heap = bytearray(os.urandom(1 << 20)) * 200
def idle():
    while True: time.sleep(0.05)
for _ in range(4): threading.Thread(target=idle, daemon=True).start()
at = 0
while True:
    if os.path.exists('/root/want'):
        for _ in range(256):
            at = (at + 7 * 4096) % len(heap)
            heap[at] = 1
        os.remove('/root/want')
    open('/root/count', 'w').close()
    time.sleep(0.001)
";

/// What is wanted of a kind of program, in milliseconds.
struct Wanted {
    first: f64,
    later: f64,
    restore: f64,
    fork: f64,
    rollback: f64,
}

pub(super) fn small(bench: &Bench<'_>) -> Vec<Row> {
    let product = bench.product();
    let (_, id) = product.create(Limits::None);
    product.start(&id, &format!("exec bash -c '{SHELL}' > /dev/null 2>&1 < /dev/null"));
    let wanted = Wanted { first: 5.0, later: 5.0, restore: 6.0, fork: 60.0, rollback: 3.0 };
    let mut rows = measure(bench, &product, &id, "a shell loop", &wanted, || {});
    let mut by_runc = [
        Rival::new("runc checkpoint, one sleeping process", &bench.peers.runc),
        Rival::new("runc restore", &bench.peers.runc),
    ];
    if let Ok(runc) = &bench.peers.runc {
        for _ in 0..bench.rounds(5, 1) {
            match runc.checkpoint_and_restore(bench.ground.directory().path()) {
                Ok((dump, restore)) => {
                    by_runc[0].samples.add(dump);
                    by_runc[1].samples.add(restore);
                }
                Err(err) => {
                    eprintln!("runc: {err}");
                    break;
                }
            }
        }
    }
    for (index, rival) in [1, 2].into_iter().zip(by_runc) {
        if rival.missing.is_some() || !rival.samples.0.is_empty() {
            let row = rows.remove(index);
            rows.insert(index, rival.stand_beside(row));
        }
    }
    rows
}

pub(super) fn python(bench: &Bench<'_>) -> Vec<Row> {
    let product = bench.product();
    let (_, id) = product.create(Limits::None);
    product.script(&id, &format!("cat > /root/program.py <<'END'\n{PYTHON}\nEND"));
    product.start(&id, "exec python3 /root/program.py > /dev/null 2>&1 < /dev/null");
    let wanted = Wanted { first: 15.0, later: 6.0, restore: 10.0, fork: 80.0, rollback: 5.0 };
    let dirty = || {
        product.script(&id, "touch /root/want; while [ -e /root/want ]; do sleep 0.001; done");
    };
    measure(bench, &product, &id, "Python, 200 MB, 5 threads", &wanted, dirty)
}

fn measure(
    bench: &Bench<'_>,
    product: &Product<'_>,
    id: &str,
    what: &str,
    wanted: &Wanted,
    between: impl Fn(),
) -> Vec<Row> {
    product.script(id, "until [ -e /root/count ]; do sleep 0.01; done");
    let (first_total, first, mut snapshot) = product.snapshot_full(id);
    let [mut pauses, mut totals, mut restores, mut forks, mut rollbacks] =
        [const { Samples(Vec::new()) }; 5];
    for _ in 0..bench.rounds(20, 3) {
        between();
        let (total, pause, taken) = product.snapshot_full(id);
        totals.add(total);
        pauses.add(pause);
        snapshot = taken;
    }
    for _ in 0..bench.rounds(20, 3) {
        restores.add(forked(product, &snapshot, 1));
    }
    for _ in 0..bench.rounds(5, 1) {
        forks.add(forked(product, &snapshot, 10));
    }
    for _ in 0..bench.rounds(15, 2) {
        rollbacks.add(product.rollback(id));
        product.script(id, "until [ -e /root/count ]; do sleep 0.01; done");
    }
    let row = |text: &str, samples: Samples, most: f64| {
        let row = Row::new(format!("{what}: {text}"), Unit::Milliseconds, samples);
        Row { target: Some(Target::AtMost(most)), ..row }
    };
    let one = |time: Duration| [time].into_iter().collect::<Samples>();
    vec![
        row("pause of the first full snapshot", one(first), wanted.first)
            .with("all of it", one(first_total)),
        row("pause of a later one", pauses, wanted.later).with("all of it", totals),
        row("restore until it runs", restores, wanted.restore),
        row("fork 10", forks, wanted.fork),
        row("rollback", rollbacks, wanted.rollback),
    ]
}

fn forked(product: &Product<'_>, snapshot: &str, count: usize) -> Duration {
    let (time, copies) = product.fork(snapshot, count);
    for copy in &copies {
        product.destroy(copy);
    }
    product.rest();
    time
}
