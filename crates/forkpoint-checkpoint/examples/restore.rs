//! What bringing a large process back costs, with all its memory at once and with memory that comes later.
//!
//! `cargo run --release -p forkpoint-checkpoint --example restore [ROUNDS [MEGABYTES…]]`, as root. Times are medians in
//! milliseconds, from opening the images until the processes run, until the program has done something, and until
//! all memory is there.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on stops")]
#![expect(clippy::disallowed_methods, reason = "a measurement takes real time")]

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use forkpoint_checkpoint::{
    CaptureSpec, Tree,
    bare::{self, Bare, BareSpec},
    capture,
};
use tempfile::TempDir;

/// Five threads, a heap of the first argument's megabytes; counts.
const PYTHON: &str = "
import os, sys, threading, time
heap = bytearray(os.urandom(1 << 20)) * int(sys.argv[1])
def idle():
    while True: time.sleep(0.05)
for _ in range(4): threading.Thread(target=idle, daemon=True).start()
n = 0
while True:
    n += 1
    open('/mnt/count.new', 'w').write(str(n)); os.rename('/mnt/count.new', '/mnt/count')
    time.sleep(0.001)
";
const LOOP: &str =
    "i=0; while :; do i=$((i+1)); echo $i > /mnt/count; read -t 0.001 < /dev/full; done";

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        fs::create_dir(dir.path().join("work")).unwrap();
        fs::write(dir.path().join("work/program.py"), PYTHON).unwrap();
        Self(dir)
    }

    fn start(&self, spec: BareSpec) -> Bare {
        let work = self.0.path().join("work");
        Bare::start(&std::env::current_exe().unwrap(), &BareSpec { work, ..spec }).unwrap()
    }

    fn count(&self) -> Option<u64> {
        fs::read_to_string(self.0.path().join("work/count")).ok()?.trim().parse().ok()
    }

    fn until(&self, mut holds: impl FnMut(Option<u64>) -> bool) {
        while !holds(self.count()) {
            std::thread::yield_now();
        }
    }

    fn image(&self, command: &[&str]) -> PathBuf {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let sandbox = self.start(BareSpec { command, ..BareSpec::default() });
        self.until(|count| count > Some(3));
        let captured =
            capture(&Tree::below(sandbox.init), &CaptureSpec::default(), || Ok(())).unwrap();
        let path = self.0.path().join("image");
        captured.write(&path, false).unwrap();
        path
    }
}

fn median(mut all: Vec<Duration>) -> f64 {
    all.sort_unstable();
    all.get(all.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
}

fn measure(what: &str, place: &Place, image: &Path, rounds: usize) {
    for lazy in [false, true] {
        let spec = || BareSpec { images: vec![image.to_path_buf()], lazy, ..BareSpec::default() };
        let (mut runs, mut acts, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let _ = fs::remove_file(place.0.path().join("work/count"));
            let start = Instant::now();
            let sandbox = place.start(spec());
            let before = start.elapsed() - sandbox.took;
            runs.push(sandbox.took);
            place.until(|count| count.is_some());
            acts.push(start.elapsed() - before);
            while !sandbox.is_whole() {
                std::thread::sleep(Duration::from_micros(300));
            }
            whole.push(start.elapsed() - before);
        }
        let start = Instant::now();
        let ten: Vec<Bare> = (0..10).map(|_| place.start(spec())).collect();
        let ten_took = start.elapsed();
        drop(ten);
        let how = if lazy { "lazy" } else { "at once" };
        println!(
            "{what}, {how}: runs {:.1}, acts {:.1}, whole {:.1}, ten of them run {:.0}",
            median(runs),
            median(acts),
            median(whole),
            median(vec![ten_took])
        );
    }
}

fn main() {
    bare::run_if_asked();
    let mut numbers = std::env::args().skip(1).filter_map(|word| word.parse::<usize>().ok());
    let rounds = numbers.next().unwrap_or(9);
    let sizes: Vec<usize> = numbers.collect();
    let place = Place::new();
    let image = place.image(&["/bin/bash", "-c", LOOP]);
    measure("a shell loop", &place, &image, rounds);
    for size in if sizes.is_empty() { vec![64, 200, 1000] } else { sizes } {
        let place = Place::new();
        let image = place.image(&["/usr/bin/python3", "/mnt/program.py", &size.to_string()]);
        measure(&format!("Python, {size} MB, 5 threads"), &place, &image, rounds);
    }
}
