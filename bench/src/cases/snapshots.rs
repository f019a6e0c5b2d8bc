//! Snapshots of sandboxes in which nothing runs, and of such in which something does.

use std::{thread, time::Duration};

use super::{Bench, Rival};
use crate::{
    figures::{Row, Samples, Unit},
    product::{Limits, Product},
};

/// For the machine to come to rest.
const QUIET: Duration = Duration::from_secs(1);

const TARGET_MS: f64 = 4.0;

/// Something that a sandbox did, and a hundredth of it done again.
struct Work {
    what: &'static str,
    first: String,
    again: String,
    rounds: usize,
    is_large: bool,
}

/// A shell script that makes so many files.
pub(super) fn files(count: u32) -> String {
    format!(
        "mkdir -p /root/f; cd /root/f; i=0; while [ $i -lt {count} ]; do \
         [ $((i % 1000)) -ne 0 ] || mkdir d$((i / 1000)); \
         echo $i > d$((i / 1000))/$i; i=$((i + 1)); done"
    )
}

/// Changes every hundredth of them.
fn files_again(count: u32) -> String {
    format!(
        "cd /root/f; i=0; while [ $i -lt {count} ]; do \
         echo changed >> d$((i / 1000))/$i; i=$((i + 100)); done"
    )
}

/// So many MB in 100 files.
pub(super) fn data(megabytes: u32) -> String {
    let kilobytes = megabytes * 10;
    format!(
        "mkdir -p /root/b; i=0; while [ $i -lt 100 ]; do \
         dd if=/dev/zero of=/root/b/$i bs=1000 count={kilobytes} 2>/dev/null; i=$((i + 1)); done"
    )
}

const DATA_AGAIN: &str = "echo changed >> /root/b/7";

fn works(bench: &Bench<'_>) -> Vec<Work> {
    let work = |what, first: String, again: String, rounds, is_large| Work {
        what,
        first,
        again,
        rounds: bench.rounds(rounds, 2),
        is_large,
    };
    let mut works = vec![
        work("nothing changed", "true".into(), "true".into(), 40, false),
        work("1,000 files", files(1_000), files_again(1_000), 15, false),
        work("100,000 files", files(100_000), files_again(100_000), 3, true),
        work("1 GB", data(1_000), DATA_AGAIN.into(), 3, true),
    ];
    works.retain(|work| !bench.options.quick || !work.is_large);
    works
}

pub(super) fn idle(bench: &Bench<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for work in works(bench) {
        let product = bench.product();
        let take = |sync| {
            let (_, id) = product.create(Limits::None);
            product.script(&id, &work.first);
            let (time, snapshot) = product.snapshot(&id, sync);
            product.clear(&id, &[snapshot]);
            time
        };
        let (mut ready, mut synced) = (Samples::default(), Samples::default());
        for _ in 0..work.rounds {
            ready.add(take(false));
            synced.add(take(true));
        }
        let row = Row::new(format!("snapshot, idle, {}", work.what), Unit::Milliseconds, ready);
        rows.push(row.at_most(TARGET_MS).with("synced", synced));
    }
    rows
}

/// One snapshot after the other of the same sandbox, a file changed between them.
pub(super) fn chain(bench: &Bench<'_>) -> Vec<Row> {
    let product = bench.product();
    let (_, id) = product.create(Limits::None);
    let take = |number| {
        product.script(&id, &format!("echo {number} > /root/{number}"));
        product.snapshot(&id, false).0
    };
    let samples: Samples = (0..bench.rounds(120, 10)).map(take).collect();
    let what = "snapshot, idle, one file, each on the last of one sandbox";
    vec![Row::new(what, Unit::Milliseconds, samples).at_most(TARGET_MS)]
}

/// A process that waits, and one that writes to an open file.
const RUNNING: [&str; 2] =
    ["exec sleep 100000", "exec >> /root/log; while :; do echo x; sleep 0.1; done"];

/// The first snapshot copies everything, the second what changed since.
fn take_two(product: &Product<'_>, work: &Work) -> (Duration, Duration) {
    let (_, id) = product.create(Limits::None);
    product.script(&id, &work.first);
    RUNNING.iter().for_each(|script| product.start(&id, script));
    let (first, one) = product.snapshot(&id, false);
    product.script(&id, &work.again);
    let (second, two) = product.snapshot(&id, false);
    product.clear(&id, &[two, one]);
    (first, second)
}

pub(super) fn busy(bench: &Bench<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for work in works(bench) {
        let product = bench.product();
        let rounds = work.rounds.min(15);
        let taken = (0..rounds).map(|_| take_two(&product, &work));
        let (first, second): (Vec<_>, Vec<_>) = taken.unzip();
        for (which, samples) in [("first", first), ("second, 1 % changed", second)] {
            let what = format!("snapshot, busy, {}, {which}", work.what);
            rows.push(Row::new(what, Unit::Milliseconds, samples.into_iter().collect()));
        }
    }
    rows
}

/// 100 MB and 10,000 files: ours and `docker commit` in turn.
pub(super) fn against_commit(bench: &Bench<'_>) -> Vec<Row> {
    let what = "100 MB + 10,000 files";
    let first = format!("{}; {}", data(100), files(10_000));
    let again = format!("{DATA_AGAIN}; {}", files_again(10_000));
    let rounds = bench.rounds(5, 1);
    let work = Work { what, first, again, rounds, is_large: false };
    let product = bench.product();
    let mut commit = Rival::new("docker commit", &bench.peers.docker);
    let mut commit_busy = Rival::new("docker commit", &bench.peers.docker);
    let [mut idle, mut copied, mut changed] = [const { Samples(Vec::new()) }; 3];
    for _ in 0..rounds {
        // What is left of the one before is being deleted, and that is not what is measured; of
        // neither.
        let rest = || thread::sleep(QUIET);
        // A few milliseconds each: one alone says more of what the machine did besides.
        for _ in 0..3 {
            rest();
            let (_, id) = product.create(Limits::None);
            product.script(&id, &work.first);
            let (time, snapshot) = product.snapshot(&id, false);
            idle.add(time);
            product.clear(&id, &[snapshot]);
        }
        rest();
        let (first, second) = take_two(&product, &work);
        copied.add(first);
        changed.add(second);
        if let Ok(docker) = &bench.peers.docker {
            rest();
            let (_, id) = docker.run(None);
            docker.script(&id, &work.first);
            let (time, image) = docker.commit(&id);
            commit.samples.add(time);
            docker.remove_image(&image);
            RUNNING.iter().for_each(|script| docker.start(&id, script));
            let (time, image) = docker.commit(&id);
            commit_busy.samples.add(time);
            docker.remove_image(&image);
            docker.remove(&id);
        }
    }
    let mut rows = Vec::new();
    for (which, ours, rival, least) in [
        ("idle", idle, &commit, 300.0),
        ("busy, first", copied, &commit_busy, 10.0),
        ("busy, second, 1 % changed", changed, &commit_busy, 10.0),
    ] {
        let what = format!("{}, {which}", work.what);
        match rival.missing {
            Some(why) => {
                let row = Row::new(format!("snapshot, {what}"), Unit::Milliseconds, ours);
                rows.push(row.beside_missing(rival.what, why));
            }
            None => {
                let times = ours.times_in(&rival.samples);
                let row = Row::new(format!("times `docker commit`: {what}"), Unit::Times, times);
                let row = row.at_least(least).with("ours", ours);
                rows.push(row.beside(rival.what, rival.samples.clone()));
            }
        }
    }
    rows
}
