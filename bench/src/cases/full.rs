//! Processes and memory: kept, brought back, forked and rolled back, through the whole product.
//!
//! Beside them runc with CRIU, for the same programs; and what others have published, each of its own machine.

use std::time::Duration;

use super::{
    Bench, Rival,
    snapshots::{data, files},
};
use crate::{
    figures::{Row, Samples, Target, Unit},
    product::{Limits, Product},
};

/// It rests without a process of its own: from a fifo to which nobody writes, nothing is read for a while.
const SHELL: &str = "mkfifo /root/rest; exec 3<>/root/rest; i=0; while :; do i=$((i+1)); \
                     echo $i > /root/count; read -t 0.01 -u 3 x; done";

/// Each line goes through all four; the last is the shell itself.
const PIPED: &str = "shopt -s lastpipe; i=0; mkfifo /root/rest; exec 3<>/root/rest; \
                     while :; do i=$((i+1)); echo $i; read -t 0.01 -u 3 x; done \
                     | while read x; do echo $x; done | while read x; do echo $x; done \
                     | while read x; do echo $x > /root/count; done";

/// Has a file open, and rests by a child of its own.
const APPENDS: &str = "exec bash -c 'exec >> /root/log; i=0; while :; do i=$((i+1)); echo $i; \
                       : > /root/count; sleep 0.05; done' 2> /dev/null < /dev/null";

/// Five threads and a heap; writes as many pages of it as it is told to.
const PYTHON: &str = "
import os, sys, threading, time
heap = bytearray(os.urandom(1 << 20)) * int(sys.argv[1])
def idle():
    while True: time.sleep(0.05)
for _ in range(4): threading.Thread(target=idle, daemon=True).start()
at = 0
while True:
    if os.path.exists('/root/want'):
        for _ in range(int(open('/root/want').read())):
            at = (at + 7 * 4096) % len(heap)
            heap[at] = 1
        os.remove('/root/want')
    open('/root/count', 'w').close()
    time.sleep(float(sys.argv[2]))
";

/// How long it rests after each round, in seconds.
const BUSY: &str = "0.001";
const AT_REST: &str = "0.1";

const NODE: &str = "
const http = require('http'), fs = require('fs');
let asked = 0;
http.createServer((_, answer) => answer.end(String(++asked))).listen(8000, '127.0.0.1');
setInterval(() => fs.writeFileSync('/root/count', String(asked)), 10);
";

/// What is wanted of a kind of program, in milliseconds.
struct Wanted {
    first: f64,
    later: f64,
    restore: f64,
    fork: f64,
    rollback: f64,
}

const SMALL: Wanted = Wanted { first: 5.0, later: 5.0, restore: 6.0, fork: 60.0, rollback: 3.0 };
const LARGE: Wanted = Wanted { first: 15.0, later: 6.0, restore: 10.0, fork: 80.0, rollback: 5.0 };

/// One that runs in a sandbox, and tells by `/root/count` that it does.
struct Running<'a> {
    bench: &'a Bench<'a>,
    product: Product<'a>,
    id: String,
    what: String,
}

impl<'a> Running<'a> {
    fn start(bench: &'a Bench<'a>, what: impl Into<String>, script: &str) -> Self {
        Self::start_in(bench, bench.product(), what.into(), script)
    }

    fn start_in(bench: &'a Bench<'a>, product: Product<'a>, what: String, script: &str) -> Self {
        let (_, id) = product.create(Limits::None);
        product.start(&id, script);
        let running = Self { bench, product, id, what };
        running.wait();
        running
    }

    fn python(bench: &'a Bench<'a>, megabytes: usize) -> Self {
        let what = format!("Python, {megabytes} MB, 5 threads");
        Self::start(bench, what, &python_script(megabytes, BUSY))
    }

    /// Wakes so rarely that many copies do not fill the machine's processors by themselves.
    fn resting(bench: &'a Bench<'a>, product: Product<'a>, what: &str) -> Self {
        let what = format!("Python, 64 MB, 5 threads, {what}");
        Self::start_in(bench, product, what, &python_script(64, AT_REST))
    }

    fn wait(&self) {
        self.product.script(&self.id, "until [ -e /root/count ]; do sleep 0.01; done");
    }

    /// Has Python write to so many of its pages.
    fn write(&self, pages: usize) {
        // Whoever looks in the wrong moment must not find an empty file.
        let script = format!(
            "echo {pages} > /root/next; mv /root/next /root/want; \
             while [ -e /root/want ]; do sleep 0.001; done"
        );
        self.product.script(&self.id, &script);
    }

    fn row(&self, text: &str, samples: Samples, most: Option<f64>) -> Row {
        let row = Row::new(format!("{}: {text}", self.what), Unit::Milliseconds, samples);
        Row { target: most.map(Target::AtMost), ..row }
    }

    /// How long it stands still at each of several snapshots, and how long all of each takes.
    fn pauses(&self, rounds: usize, between: impl Fn()) -> (Samples, Samples, String) {
        let (mut pauses, mut totals) = (Samples::default(), Samples::default());
        let mut last = String::new();
        for _ in 0..rounds {
            between();
            let (total, pause, snapshot) = self.product.snapshot_full(&self.id);
            totals.add(total);
            pauses.add(pause);
            last = snapshot;
        }
        (pauses, totals, last)
    }

    fn all(&self, wanted: Option<&Wanted>, between: impl Fn()) -> (Vec<Row>, Whole) {
        let most = |of: fn(&Wanted) -> f64| wanted.map(of);
        let (first, first_total, _) = self.pauses(1, || {});
        let (later, total, snapshot) = self.pauses(self.bench.rounds(20, 3), between);
        let [mut forks, mut rollbacks] = [const { Samples(Vec::new()) }; 2];
        let restores = self.restores(&snapshot);
        let whole = Whole { snapshot: total.clone(), restore: restores.clone() };
        for _ in 0..self.bench.rounds(5, 1) {
            forks.add(self.forked(&snapshot, 10));
        }
        for _ in 0..self.bench.rounds(15, 2) {
            rollbacks.add(self.product.rollback(&self.id));
            self.wait();
        }
        let rows = vec![
            self.row("pause of the first full snapshot", first, most(|wanted| wanted.first))
                .with("all of it", first_total),
            self.row("pause of a later one", later, most(|wanted| wanted.later))
                .with("all of it", total)
                .with("published by DeltaBox, patched kernel", Samples(vec![10.83])),
            self.row("restore until it runs", restores, most(|wanted| wanted.restore))
                .with("published by DeltaBox, until a command is accepted", Samples(vec![7.6])),
            self.row("fork 10", forks, most(|wanted| wanted.fork)),
            self.row("rollback", rollbacks, most(|wanted| wanted.rollback)),
        ];
        (rows, whole)
    }

    fn restores(&self, snapshot: &str) -> Samples {
        (0..self.bench.rounds(20, 3)).map(|_| self.forked(snapshot, 1)).collect()
    }

    /// As many as others tell of. All of the memory is in each copy sooner or later, so it must not be large.
    fn many(&self, snapshot: &str) -> Row {
        let times = (0..self.bench.rounds(3, 1)).map(|_| self.forked(snapshot, 64));
        let row = self.row("fork 64", times.collect(), None);
        row.with("published by DeltaBox, 64 MB each", Samples(vec![271.0]))
    }

    fn forked(&self, snapshot: &str, count: usize) -> Duration {
        let (time, copies) = self.product.fork(snapshot, count);
        for copy in &copies {
            self.product.destroy(copy);
        }
        self.product.rest();
        time
    }
}

fn python_script(megabytes: usize, rest: &str) -> String {
    format!(
        "cat > /root/program.py <<'END'\n{PYTHON}\nEND\n\
         exec python3 /root/program.py {megabytes} {rest} > /dev/null 2>&1 < /dev/null"
    )
}

fn in_bash(script: &str) -> String {
    format!("exec bash -c '{script}' > /dev/null 2>&1 < /dev/null")
}

/// All of an operation, from the call to the answer.
struct Whole {
    snapshot: Samples,
    restore: Samples,
}

pub(super) fn small(bench: &Bench<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for (what, script, tells_of_many) in
        [("a shell loop", SHELL, true), ("four piped shells", PIPED, false)]
    {
        let running = Running::start(bench, what, &in_bash(script));
        let (own, whole) = running.all(Some(&SMALL), || {});
        rows.extend(own);
        rows.extend(tells_of_many.then(|| running.many(&running.pauses(1, || {}).2)));
        drop(running);
        let ready = restores_kept_ready(bench, what, script);
        let row = Row::new(
            format!("{what}: restore with {WARM} sandboxes kept ready"),
            Unit::Milliseconds,
            ready.clone(),
        );
        rows.push(row.at_most(SMALL.restore));
        let [checkpoint, restore] = by_runc(bench, script, false);
        rows.push(times(&checkpoint, what, &whole.snapshot, Some(30.0)));
        rows.push(times(&restore, what, &whole.restore, Some(30.0)));
        let what = format!("{what}, with sandboxes kept ready");
        rows.push(times(&restore, &what, &ready, Some(30.0)));
    }
    rows
}

const WARM: usize = 16;

fn restores_kept_ready(bench: &Bench<'_>, what: &str, script: &str) -> Samples {
    let product = bench.warm_product(WARM);
    let running = Running::start_in(bench, product, what.to_owned(), &in_bash(script));
    let snapshot = running.pauses(1, || {}).2;
    // The first tells what is wanted ready.
    running.forked(&snapshot, WARM);
    running.restores(&snapshot)
}

/// A checkpoint and a restore of the same script.
fn by_runc<'a>(bench: &'a Bench<'_>, script: &str, with_usr: bool) -> [Rival<'a>; 2] {
    let mut rivals =
        ["runc checkpoint", "runc restore"].map(|what| Rival::new(what, &bench.peers.runc));
    if let Ok(runc) = &bench.peers.runc {
        for _ in 0..bench.rounds(9, 1) {
            let images = bench.ground.directory();
            match runc.checkpoint_and_restore(script, with_usr, images.path()) {
                Ok((dump, restore)) => {
                    rivals[0].samples.add(dump);
                    rivals[1].samples.add(restore);
                }
                Err(err) => {
                    eprintln!("runc: {err}");
                    break;
                }
            }
        }
    }
    rivals
}

fn times(rival: &Rival<'_>, what: &str, ours: &Samples, least: Option<f64>) -> Row {
    let name = format!("times `{}`: {what}", rival.what);
    match rival.missing {
        Some(why) => Row::missing(name, why),
        None if rival.samples.0.is_empty() => Row::missing(name, "it failed"),
        None => {
            let times = ours.times_in(&rival.samples);
            let row = Row::new(name, Unit::Times, times);
            let row = Row { target: least.map(Target::AtLeast), ..row };
            row.with("ours", ours.clone()).with(rival.what, rival.samples.clone())
        }
    }
}

pub(super) fn python(bench: &Bench<'_>) -> Vec<Row> {
    let running = Running::python(bench, 200);
    let (mut rows, whole) = running.all(Some(&LARGE), || running.write(256));
    let what = running.what.clone();
    drop(running);
    let [checkpoint, restore] = by_runc(bench, &python_script(200, BUSY), true);
    rows.push(times(&checkpoint, &what, &whole.snapshot, None));
    rows.push(times(&restore, &what, &whole.restore, None));
    for megabytes in [64, 200] {
        let running = Running::python(bench, megabytes);
        running.pauses(1, || {});
        for (pages, text) in [(75, "0.3 MB"), (256, "1 MB"), (2560, "10 MB")] {
            let (pauses, totals, _) = running.pauses(bench.rounds(10, 2), || running.write(pages));
            let what = format!("pause with {text} written since the last");
            rows.push(running.row(&what, pauses, None).with("all of it", totals));
        }
    }
    rows
}

/// Copies of what waits: with memory of their own, and with memory that they share.
pub(super) fn many(bench: &Bench<'_>) -> Vec<Row> {
    let products = [(bench.product(), "at rest"), (bench.sharing_product(), "shared")];
    let row = |(product, what)| {
        let running = Running::resting(bench, product, what);
        running.many(&running.pauses(1, || {}).2)
    };
    products.into_iter().map(row).collect()
}

/// The more memory there is that nobody writes to, the longer takes the first, and no later one.
pub(super) fn clean(bench: &Bench<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for megabytes in [64, 256, 1024] {
        let running = Running::python(bench, megabytes);
        let (first, first_total, _) = running.pauses(1, || {});
        rows.push(running.row("pause of the first", first, None).with("all of it", first_total));
        let (later, total, _) = running.pauses(bench.rounds(10, 2), || running.write(256));
        rows.push(running.row("pause with 1 MB written", later, None).with("all of it", total));
    }
    rows
}

/// Somebody who writes to a file that is open, in a sandbox that has written much: with its root exchanged, and copied.
pub(super) fn written(bench: &Bench<'_>) -> Vec<Row> {
    let works = [
        ("nothing", "true".to_owned()),
        ("10,000 files", files(10_000)),
        ("100,000 files", files(100_000)),
        ("1 GB", data(1_000)),
    ];
    let mut rows = Vec::new();
    for (what, work) in works.iter().take(bench.rounds(4, 2)) {
        let [moved, copied] = [bench.product(), bench.copying_product()].map(|product| {
            let what = format!("a shell with a log, {what} written");
            let running = Running::start_in(bench, product, what, APPENDS);
            running.product.script(&running.id, work);
            let (first, first_total, _) = running.pauses(1, || {});
            let (later, total, _) = running.pauses(bench.rounds(5, 1), || {
                running.product.script(&running.id, "echo changed >> /root/other");
            });
            (running, first, first_total, later, total)
        });
        let (running, first, first_total, later, total) = moved;
        let (_, copied_first, _, copied_later, _) = copied;
        rows.push(
            running
                .row("pause of the first full snapshot", first, None)
                .with("all of it", first_total)
                .with("copied", copied_first),
        );
        rows.push(
            running
                .row("pause of a later one", later, None)
                .with("all of it", total)
                .with("copied", copied_later),
        );
    }
    rows
}

pub(super) fn node(bench: &Bench<'_>) -> Vec<Row> {
    const MISSING: &str = "`node` is not there";
    let is_there = ["/usr/bin/node", "/usr/local/bin/node"].iter().any(|path| exists(path));
    if !is_there {
        return vec![Row::missing("a Node server".to_owned(), MISSING)];
    }
    let script = format!(
        "cat > /root/server.js <<'END'\n{NODE}\nEND\n\
         exec node /root/server.js > /dev/null 2>&1 < /dev/null"
    );
    Running::start(bench, "a Node server", &script).all(None, || {}).0
}

fn exists(path: &str) -> bool {
    std::path::Path::new(path).exists()
}
