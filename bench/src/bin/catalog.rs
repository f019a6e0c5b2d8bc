//! What the SQLite catalog costs when it holds little and when it holds much.
//!
//! `cargo run --release -p forkpoint-bench --bin catalog` takes about a minute.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use forkpoint_backends::catalog::SqliteCatalog;
use forkpoint_bench::seed::{SANDBOXES, fill, take};
use forkpoint_core::{
    catalog::{Catalog, SnapshotQuery},
    retention::RetentionPolicy,
};
use forkpoint_testkit::{
    CatalogOpener, Simulation, World,
    conformance::catalog::scene::{Hand, at, sandbox, snapshot},
};
use futures::executor::block_on;
use tempfile::TempDir;

const FEW: u64 = 1_000;
const MANY: u64 = 100_000;
const ROUNDS: u64 = 200;

#[derive(Debug)]
struct Place(TempDir);

impl CatalogOpener for Place {
    fn open(&self) -> Arc<dyn Catalog> {
        Arc::new(SqliteCatalog::open(self.0.path().join("catalog.db")).unwrap())
    }
}

type Row = (&'static str, Duration);

fn main() {
    let (few, many) = (measure(FEW), measure(MANY));
    println!("\nmedian of {ROUNDS} calls, SQLite catalog, {SANDBOXES} sandboxes\n");
    println!("| call | {FEW} snapshots | {MANY} snapshots | ratio |\n|---|---|---|---|");
    for ((call, few), (_, many)) in few.into_iter().zip(many) {
        let ratio = many.as_secs_f64() / few.as_secs_f64();
        println!("| {call} | {} | {} | {ratio:.1} |", shown(few), shown(many));
    }
}

fn shown(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}

fn measure(size: u64) -> Vec<Row> {
    let place = Arc::new(Place(TempDir::new().unwrap()));
    let hand = Hand::open(place.as_ref());
    fill(&hand, size);
    let mut rows = calls(&hand, size);
    rows.extend(plans(&place, size));
    rows
}

fn calls(hand: &Hand, size: u64) -> Vec<Row> {
    let catalog = &hand.0;
    let page = SnapshotQuery { limit: Some(50), ..SnapshotQuery::default() };
    let of_one = SnapshotQuery { sandbox: Some(sandbox(7).id), ..page.clone() };
    let prefix = |number: u64| {
        let id = snapshot(number, 0).id.to_string();
        id[..28].to_owned()
    };
    vec![
        ("begin and commit a snapshot", median(|round| block_on(take(hand, size + round)))),
        ("a page of 50 of the list", median(|_| drop(block_on(catalog.snapshots(&page)).unwrap()))),
        (
            "a page of 50 of one sandbox",
            median(|_| {
                drop(block_on(catalog.snapshots(&of_one)).unwrap());
            }),
        ),
        (
            "find by prefix of an id",
            median(|round| {
                // With the last digit cut off it may be ambiguous: that is an answer too.
                let _ = block_on(catalog.find_snapshot(&prefix(round * 5 % size)));
            }),
        ),
        ("the sums behind `stats`", median(|_| drop(block_on(catalog.usage()).unwrap()))),
    ]
}

/// Plans that choose a hundred snapshots, whatever else there is.
fn plans(place: &Arc<Place>, size: u64) -> Vec<Row> {
    let world = World::with_catalog(Simulation::in_order(), Arc::clone(place) as _);
    let total = size + ROUNDS;
    let too_many = RetentionPolicy { max_total: Some(total - 100), ..RetentionPolicy::default() };
    let last = at(total.cast_signed());
    let behind = last.duration_since(world.simulation.now()).unsigned_abs();
    world.simulation.advance(behind);
    let max_age = Some(last.duration_since(at(100)));
    let too_old = RetentionPolicy { max_age, ..RetentionPolicy::default() };
    [("a retention plan, too many in total", too_many), ("a retention plan, too old", too_old)]
        .into_iter()
        .map(|(call, policy)| {
            let plan = |_| {
                let policy = policy.clone();
                let plan = world.run(|engine| async move { engine.retention_plan(&policy).await });
                assert!(plan.unwrap().deletions.len() >= 100);
            };
            (call, median(plan))
        })
        .collect()
}

fn median(mut call: impl FnMut(u64)) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|round| {
            let start = Instant::now();
            call(round);
            start.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}
