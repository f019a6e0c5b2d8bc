//! What capturing running processes costs, and bringing them back: pause, restore, rollback.
//!
//! `cargo run --release -p forkpoint-bench --bin checkpoint [-- --quick]`, as root. The processes run in bare
//! sandboxes; files are not captured, so the figures are those of processes and memory alone. A restore is
//! counted from opening the image until the processes run; its checksums were compared when it was written.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use forkpoint_bench::{
    apart::{self, Ground},
    figures::{Row, Samples, Unit, table},
    options::Options,
    peers::Peers,
};
use forkpoint_checkpoint::{
    CaptureSpec, Chain, Tracker, Tree,
    bare::{self, Bare, BareSpec},
    capture,
};
use tempfile::TempDir;

const SMALL: [(&str, &str); 2] = [
    (
        "a shell loop",
        "i=0; while :; do i=$((i+1)); echo $i > /mnt/count; read -t 0.001 < /dev/full; done",
    ),
    (
        "four piped processes",
        "i=0; while :; do i=$((i+1)); echo $i; read -t 0.01 < /dev/full; done | while read l; do echo $l; done | \
         while read l; do echo $l > /mnt/count; done",
    ),
];

/// Five threads, a heap of the first argument's megabytes; writes what it is asked to.
const PYTHON: &str = "
import os, sys, threading, time
heap = bytearray(os.urandom(1 << 20)) * int(sys.argv[1])
def idle():
    while True: time.sleep(0.05)
for _ in range(4): threading.Thread(target=idle, daemon=True).start()
done = 0
at = 0
while True:
    try: number, wanted = map(int, open('/mnt/want').read().split())
    except (FileNotFoundError, ValueError): number, wanted = 0, 0
    if number > done:
        for _ in range(wanted // 4096):
            at = (at + 7 * 4096) % len(heap)
            heap[at] = number & 255
        done = number
    open('/mnt/count.new', 'w').write(str(done)); os.rename('/mnt/count.new', '/mnt/count')
    time.sleep(0.001)
";

fn main() -> ExitCode {
    bare::run_if_asked();
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(err) => {
            eprintln!("{err}");
            return ExitCode::from(2);
        }
    };
    println!("{}\n", apart::machine());
    let rounds = if options.quick { 5 } else { 20 };
    let mut rows = Vec::new();
    for (what, script) in SMALL {
        eprintln!("measuring {what}");
        rows.extend(small(what, script, rounds));
    }
    for megabytes in [64, 200] {
        eprintln!("measuring Python with {megabytes} MB");
        rows.extend(python(megabytes, rounds));
    }
    let ground = Ground::find(options.dir.as_deref(), false);
    rows.extend(criu(&Peers::find(&options, &ground), &ground, rounds));
    print!("{}", table(&rows));
    ExitCode::SUCCESS
}

struct Place {
    dir: TempDir,
    asked: std::cell::Cell<u64>,
}

impl Place {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        open_to_all(dir.path());
        fs::create_dir(dir.path().join("work")).unwrap();
        Self { dir, asked: 0.into() }
    }

    fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    fn start(&self, spec: BareSpec) -> Bare {
        let program = std::env::current_exe().unwrap();
        Bare::start(&program, &BareSpec { work: self.work(), ..spec }).unwrap()
    }

    fn run(&self, command: &[&str]) -> Bare {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let sandbox = self.start(BareSpec { command, ..BareSpec::default() });
        self.wait(|count| count.is_some());
        sandbox
    }

    fn wait(&self, mut ready: impl FnMut(Option<u64>) -> bool) {
        let count = || fs::read_to_string(self.work().join("count")).ok()?.trim().parse().ok();
        while !ready(count()) {
            std::thread::yield_now();
        }
    }

    /// Has the program write so many bytes of its memory.
    fn dirty(&self, bytes: u64) {
        let number = self.asked.get() + 1;
        self.asked.set(number);
        let path = self.work().join("want.new");
        fs::write(&path, format!("{number} {bytes}")).unwrap();
        fs::rename(path, self.work().join("want")).unwrap();
        self.wait(|count| count == Some(number));
    }

    fn image(&self) -> PathBuf {
        let path = self.dir.path().join(format!("image-{:?}", Instant::now()));
        PathBuf::from(path.to_string_lossy().replace([' ', '{', '}', ':', ','], "-"))
    }
}

fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

fn milliseconds(what: String, samples: Samples) -> Row {
    Row::new(what, Unit::Milliseconds, samples)
}

fn small(what: &str, script: &str, rounds: usize) -> Vec<Row> {
    let place = Place::new();
    let sandbox = place.run(&["/bin/bash", "-c", script]);
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let (mut pauses, mut writes, mut restores) =
        (Samples::default(), Samples::default(), Samples::default());
    let mut image = PathBuf::new();
    for _ in 0..rounds {
        let captured = capture(&tree, &spec, || Ok(())).unwrap();
        pauses.add(captured.pause);
        image = place.image();
        let start = Instant::now();
        captured.write(&image, false).unwrap();
        writes.add(start.elapsed());
    }
    let rollbacks = rollbacks(&place, &tree, rounds, || {});
    drop(sandbox);
    for _ in 0..rounds {
        let copy = place.start(BareSpec { images: vec![image.clone()], ..BareSpec::default() });
        restores.add(copy.took);
    }
    vec![
        milliseconds(format!("{what}: pause of a checkpoint"), pauses)
            .at_most(5.0)
            .with("written after", writes),
        milliseconds(format!("{what}: restore until it runs"), restores).at_most(6.0),
        rolled(format!("{what}: rollback in place"), rollbacks).at_most(3.0),
    ]
}

fn rolled(what: String, samples: Option<Samples>) -> Row {
    match samples {
        Some(samples) => milliseconds(what, samples),
        None => Row::missing(what, "the tree did not fit in place"),
    }
}

/// `None` where the tree changes all the time and has to be restored instead.
fn rollbacks(
    place: &Place,
    tree: &Tree,
    rounds: usize,
    mut between: impl FnMut(),
) -> Option<Samples> {
    let spec = CaptureSpec::default();
    let mut tracker = Tracker::new();
    let image = place.image();
    // A file that is open for a moment is not there any more when one goes back.
    let moments = ["/mnt/count", "/mnt/want"];
    let captured = loop {
        let captured = tracker.capture(tree, &spec, || Ok(())).unwrap();
        let told = format!("{:?}", captured.snapshot.files);
        if !moments.iter().any(|name| told.contains(name)) {
            break captured;
        }
    };
    tracker.note(captured.write(&image, false).unwrap());
    let chain = Chain::open([image]).unwrap();
    let mut samples = Samples::default();
    for _ in 0..rounds {
        between();
        samples.add(tracker.rollback(tree, &chain, &spec, || Ok(())).ok()?.pause);
    }
    Some(samples)
}

fn python(megabytes: u64, rounds: usize) -> Vec<Row> {
    let what = format!("Python, {megabytes} MB, 5 threads");
    let place = Place::new();
    fs::write(place.work().join("program.py"), PYTHON).unwrap();
    let size = megabytes.to_string();
    let sandbox = place.run(&["/usr/bin/python3", "/mnt/program.py", &size]);
    let (tree, spec) = (Tree::below(sandbox.init), CaptureSpec::default());
    let (mut first, mut begin) = (Samples::default(), Samples::default());
    let mut tracker = Tracker::new();
    for _ in 0..rounds.min(5) {
        begin.add(tracker.prepare(&tree, &spec).unwrap());
        place.dirty(1 << 20);
        first.add(tracker.capture(&tree, &spec, || Ok(())).unwrap().pause);
    }
    let mut rows = vec![
        milliseconds(format!("{what}: first checkpoint, 1 MB dirty"), first)
            .at_most(15.0)
            .with("before, to begin tracking", begin),
    ];
    let image = place.image();
    let captured = tracker.capture(&tree, &spec, || Ok(())).unwrap();
    tracker.note(captured.write(&image, false).unwrap());
    let mut images = vec![image];
    for (dirty, told) in [(300 << 10, "0.3 MB"), (1 << 20, "1 MB"), (10 << 20, "10 MB")] {
        let mut pauses = Samples::default();
        for _ in 0..rounds {
            place.dirty(dirty);
            let captured = tracker.capture(&tree, &spec, || Ok(())).unwrap();
            pauses.add(captured.pause);
            images.push(place.image());
            tracker.note(captured.write(images.last().unwrap(), false).unwrap());
        }
        let row = milliseconds(format!("{what}: later checkpoint, {told} dirty"), pauses);
        rows.push(if dirty == 1 << 20 { row.at_most(6.0) } else { row });
    }
    drop(tracker);
    for (dirty, told) in [(300 << 10, "0.3 MB"), (1 << 20, "1 MB"), (10 << 20, "10 MB")] {
        let asked = place.asked.get();
        let samples = rollbacks(&place, &tree, rounds, || {
            // It goes back to where it was asked last.
            place.asked.set(asked);
            place.dirty(dirty);
        });
        let row = rolled(format!("{what}: rollback in place, {told} dirty"), samples);
        rows.push(if dirty == 1 << 20 { row.at_most(5.0) } else { row });
    }
    drop(sandbox);
    let mut restores = Samples::default();
    for _ in 0..rounds.min(5) {
        let images = images[..1].to_vec();
        restores.add(place.start(BareSpec { images, ..BareSpec::default() }).took);
    }
    rows.push(
        milliseconds(format!("{what}: restore until it runs, all memory at once"), restores)
            .at_most(10.0),
    );
    rows
}

/// The same machine, the same run: runc with CRIU, where both are there.
fn criu(peers: &Peers, ground: &Ground, rounds: usize) -> Vec<Row> {
    let (what, script) = ("runc with CRIU, a shell loop", SMALL[0].1.replace("/mnt/", "/root/"));
    let missing = |why: String| vec![Row::missing(what, why)];
    let runc = match &peers.runc {
        Ok(runc) => runc,
        Err(why) => return missing(why.clone()),
    };
    let (mut dumps, mut restores) = (Samples::default(), Samples::default());
    for _ in 0..rounds.min(10) {
        let dir = ground.directory();
        match runc.checkpoint_and_restore(&script, false, dir.path()) {
            Ok((dump, restore)) => {
                dumps.add(dump);
                restores.add(restore);
            }
            Err(err) => return missing(err.to_string()),
        }
    }
    vec![
        milliseconds(format!("{what}: checkpoint"), dumps),
        milliseconds(format!("{what}: restore"), restores),
    ]
}
