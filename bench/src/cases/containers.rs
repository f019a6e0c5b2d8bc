//! Snapshots of containers, and copies of them, beside what Docker itself does.

use std::{thread, time::Duration};

use rustix::fs::statvfs;

use super::{
    Bench,
    snapshots::{data, files},
};
use crate::{
    containers::Containers,
    figures::{Row, Samples, Unit},
    peers::Docker,
};

/// For the machine to come to rest.
const QUIET: Duration = Duration::from_millis(500);

/// Of what a commit takes.
const SNAPSHOT_TIMES: f64 = 1.2;
const SECOND_PART: f64 = 0.1;
const TEN_KIB: f64 = 15e6 / 1024.0;

const VOLUME: &str = "/vol";

/// 500 MB in 100 files.
fn volume_data() -> String {
    data(500).replace("/root/b", VOLUME)
}

/// The daemon, and the product on it; or why not.
fn sides<'a>(bench: &'a Bench<'_>) -> Result<(&'a Docker, Containers<'a>), Vec<Row>> {
    let missing = |why: &str| vec![Row::missing("containers", why)];
    let docker = bench.peers.docker.as_ref().map_err(|why| missing(why))?;
    let socket = docker.socket().ok_or_else(|| missing("the daemon is not on this machine"))?;
    Ok((docker, Containers::open(bench.runtime, &socket, bench.ground.directory())))
}

pub(super) fn beside_commit(bench: &Bench<'_>) -> Vec<Row> {
    let (docker, product) = match sides(bench) {
        Ok(sides) => sides,
        Err(rows) => return rows,
    };
    let works = [
        ("nothing written", String::new()),
        ("100 MB", data(100)),
        ("100 MB + 10,000 files", format!("{}; {}", data(100), files(10_000))),
    ];
    let rows = works.iter().map(|(what, script)| one(bench, docker, &product, what, script));
    rows.flatten().collect()
}

fn one(
    bench: &Bench<'_>,
    docker: &Docker,
    product: &Containers<'_>,
    what: &str,
    script: &str,
) -> Vec<Row> {
    let [mut ours, mut theirs, mut restored, mut run] = [const { Samples(Vec::new()) }; 4];
    for _ in 0..bench.rounds(5, 1) {
        let (_, container) = docker.run(None);
        docker.script(&container, script);
        let (time, image) = docker.commit(&container);
        theirs.add(time);
        let (time, copy) = docker.run(Some(&image));
        run.add(time);
        docker.remove(&copy);
        docker.remove_image(&image);
        thread::sleep(QUIET);
        let (time, snapshot) = product.snapshot(&product.adopt(&container));
        ours.add(time);
        let (time, copy) = product.restore(&snapshot);
        restored.add(time);
        product.destroy(&copy);
        product.delete(&snapshot);
        docker.remove(&container);
        thread::sleep(QUIET);
    }
    let most = SNAPSHOT_TIMES * theirs.median();
    let snapshot = format!("container, snapshot, {what}");
    let restore = format!("container, restore, {what}");
    vec![
        Row::new(snapshot, Unit::Milliseconds, ours).at_most(most).beside("docker commit", theirs),
        Row::new(restore, Unit::Milliseconds, restored).beside("docker run", run),
    ]
}

/// What Docker has no answer to.
pub(super) fn volume(bench: &Bench<'_>) -> Vec<Row> {
    let (docker, product) = match sides(bench) {
        Ok(sides) => sides,
        Err(rows) => return rows,
    };
    let [mut first, mut second, mut restored] = [const { Samples(Vec::new()) }; 3];
    for _ in 0..bench.rounds(3, 1) {
        let container = docker.run_with_volume(VOLUME);
        docker.script(&container, &volume_data());
        let id = product.adopt(&container);
        thread::sleep(QUIET);
        let (time, one) = product.snapshot(&id);
        first.add(time);
        docker.script(&container, &format!("echo changed >> {VOLUME}/7"));
        thread::sleep(QUIET);
        let (time, two) = product.snapshot(&id);
        second.add(time);
        let (time, copy) = product.restore(&two);
        restored.add(time);
        product.destroy(&copy);
        product.delete(&one);
        product.delete(&two);
        docker.remove_with_volumes(&container);
        thread::sleep(QUIET);
    }
    let most = SECOND_PART * first.median();
    let what = "container, snapshot, 500 MB volume";
    vec![
        Row::new(format!("{what}, first"), Unit::Milliseconds, first),
        Row::new(format!("{what}, second, small change"), Unit::Milliseconds, second).at_most(most),
        Row::new("container, restore, 500 MB volume", Unit::Milliseconds, restored),
    ]
}

pub(super) fn space(bench: &Bench<'_>) -> Vec<Row> {
    let (docker, product) = match sides(bench) {
        Ok(sides) => sides,
        Err(rows) => return rows,
    };
    let (_, container) = docker.run(None);
    docker.script(&container, &data(100));
    let id = product.adopt(&container);
    let mut snapshots = vec![product.snapshot(&id).1];
    let before = used_kib(bench);
    for number in 0..10 {
        let script =
            format!("dd if=/dev/urandom of=/root/b/{number} bs=1000 count=1000 2>/dev/null");
        docker.script(&container, &script);
        snapshots.push(product.snapshot(&id).1);
    }
    let more = used_kib(bench) - before;
    for snapshot in &snapshots {
        product.delete(snapshot);
    }
    docker.remove(&container);
    let what = "container, space of ten snapshots that change 1 MB each";
    vec![Row::new(what, Unit::Kibibytes, Samples(vec![more])).at_most(TEN_KIB)]
}

/// Of the file system that everything is on.
fn used_kib(bench: &Bench<'_>) -> f64 {
    let directory = std::fs::File::open(bench.ground.path()).unwrap();
    rustix::fs::syncfs(&directory).unwrap();
    let stat = statvfs(bench.ground.path()).unwrap();
    (stat.f_blocks - stat.f_bfree) as f64 * stat.f_frsize as f64 / 1024.0
}
