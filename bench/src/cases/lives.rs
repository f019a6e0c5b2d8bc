//! Sandboxes that come, work, go back and go.

use std::time::Duration;

use super::{Bench, Rival};
use crate::{
    figures::{Row, Samples, Unit},
    product::{Limits, Product},
};

/// A peer takes its turn in one of so many rounds.
const PEER_EVERY: usize = 5;

pub(super) fn exec(bench: &Bench<'_>) -> Vec<Row> {
    let (product, peers) = (bench.product(), bench.peers);
    let (_, id) = product.create(Limits::None);
    let docker = peers.docker.as_ref().map(|docker| (docker, docker.run(None).1));
    let runc = peers.runc.as_ref().map(|runc| (runc, runc.run().1));
    let mut by_docker = Rival::new("docker exec", &peers.docker);
    let mut by_runc = Rival::new("runc exec", &peers.runc);
    let mut ours = Samples::default();
    for round in 0..bench.rounds(200, 20) {
        ours.add(product.exec(&id));
        if round % PEER_EVERY == 0 {
            docker.iter().for_each(|(docker, id)| by_docker.samples.add(docker.exec(id)));
            runc.iter().for_each(|(runc, id)| by_runc.samples.add(runc.exec(id)));
        }
    }
    if let Ok((docker, id)) = docker {
        docker.remove(&id);
    }
    if let Ok((runc, id)) = runc {
        runc.remove(&id);
    }
    let row = Row::new("exec round trip (`true`)", Unit::Milliseconds, ours).at_most(2.0);
    vec![by_runc.stand_beside(by_docker.stand_beside(row))]
}

pub(super) fn create(bench: &Bench<'_>) -> Vec<Row> {
    let (product, peers) = (bench.product(), bench.peers);
    let mut by_docker = Rival::new("docker run -d + exec", &peers.docker);
    let mut by_runc = Rival::new("runc run -d + exec", &peers.runc);
    let [mut alone, mut ours, mut limited] = [const { Samples(Vec::new()) }; 3];
    for round in 0..bench.rounds(60, 5) {
        let (time, id) = product.create(Limits::None);
        alone.add(time);
        product.destroy(&id);
        for (limits, samples) in [(Limits::None, &mut ours), (Limits::All, &mut limited)] {
            let (time, id) = product.create_and_exec(limits);
            samples.add(time);
            product.destroy(&id);
        }
        if round % PEER_EVERY == 0 {
            if let Ok(docker) = &peers.docker {
                let (time, id) = docker.run(None);
                by_docker.samples.add(time + docker.exec(&id));
                docker.remove(&id);
            }
            if let Ok(runc) = &peers.runc {
                let (time, id) = runc.run();
                by_runc.samples.add(time + runc.exec(&id));
                runc.remove(&id);
            }
        }
    }
    let row = Row::new("create → first command done", Unit::Milliseconds, ours).at_most(8.0);
    let what = "the same with limits on memory, cpu, pids";
    vec![
        Row::new("create alone", Unit::Milliseconds, alone),
        by_runc.stand_beside(by_docker.stand_beside(row)),
        Row::new(what, Unit::Milliseconds, limited).at_most(8.0),
    ]
}

/// Joining a cgroup can be slow when nobody has for a while; a tight loop hides it.
pub(super) fn create_after_quiet(bench: &Bench<'_>) -> Vec<Row> {
    let product = bench.product();
    let mut samples = Samples::default();
    for _ in 0..bench.rounds(15, 2) {
        product.rest();
        std::thread::sleep(Duration::from_secs(1));
        let (time, id) = product.create_and_exec(Limits::All);
        samples.add(time);
        product.destroy(&id);
    }
    let what = "the same with limits, after a quiet second";
    vec![Row::new(what, Unit::Milliseconds, samples).at_most(8.0)]
}

pub(super) fn fork(bench: &Bench<'_>) -> Vec<Row> {
    let (product, peers) = (bench.product(), bench.peers);
    let (_, id) = product.create(Limits::None);
    product.script(&id, "echo hello > /root/hello");
    let (_, snapshot) = product.snapshot(&id, false);
    let mut by_docker = Rival::new("docker run -d of a committed image", &peers.docker);
    let committed = peers.docker.as_ref().map(|docker| {
        let (_, id) = docker.run(None);
        docker.script(&id, "echo hello > /root/hello");
        let (_, image) = docker.commit(&id);
        docker.remove(&id);
        image
    });
    let counts = [(1, 60, 5, Some(4.0)), (10, 20, 2, None), (100, 8, 0, Some(300.0))];
    let mut rows = Vec::new();
    for (count, full, quick, target) in counts {
        let mut samples = Samples::default();
        for round in 0..bench.rounds(full, quick) {
            let (time, children) = product.fork(&snapshot, count);
            samples.add(time);
            for child in &children {
                product.destroy(child);
            }
            product.rest();
            if let (1, 0, Ok(docker), Ok(image)) =
                (count, round % PEER_EVERY, &peers.docker, &committed)
            {
                let (time, id) = docker.run(Some(image));
                by_docker.samples.add(time);
                docker.remove(&id);
            }
        }
        let row = Row::new(format!("fork {count}"), Unit::Milliseconds, samples);
        rows.push(Row { target: target.map(crate::figures::Target::AtMost), ..row });
    }
    let first = rows.remove(0);
    rows.insert(0, by_docker.stand_beside(first));
    rows.retain(|row| !row.samples.0.is_empty());
    rows
}

pub(super) fn rollback(bench: &Bench<'_>) -> Vec<Row> {
    let product = bench.product();
    let (_, id) = product.create(Limits::None);
    product.script(&id, "echo before > /root/state");
    product.snapshot(&id, false);
    let mut samples = Samples::default();
    for _ in 0..bench.rounds(40, 5) {
        product.script(&id, "echo after > /root/state");
        samples.add(product.rollback(&id));
        product.script(&id, "read state < /root/state; [ $state = before ]");
    }
    vec![Row::new("rollback, idle", Unit::Milliseconds, samples).at_most(5.0)]
}

pub(super) fn destroy(bench: &Bench<'_>) -> Vec<Row> {
    let (product, peers) = (bench.product(), bench.peers);
    let mut by_docker = Rival::new("docker rm -f", &peers.docker);
    let mut by_runc = Rival::new("runc delete -f", &peers.runc);
    let mut empty = Samples::default();
    for round in 0..bench.rounds(60, 5) {
        let (_, id) = product.create(Limits::None);
        empty.add(product.destroy(&id));
        if round % PEER_EVERY == 0 {
            let docker = peers.docker.iter();
            docker.for_each(|docker| by_docker.samples.add(docker.remove(&docker.run(None).1)));
            let runc = peers.runc.iter();
            runc.for_each(|runc| by_runc.samples.add(runc.remove(&runc.run().1)));
        }
    }
    let full = destroy_full(&product, bench.rounds(10, 1));
    let row = Row::new("destroy, empty", Unit::Milliseconds, empty).at_most(3.0);
    vec![
        by_runc.stand_beside(by_docker.stand_beside(row)),
        Row::new("destroy, after 10,000 files", Unit::Milliseconds, full).at_most(3.0),
    ]
}

fn destroy_full(product: &Product<'_>, rounds: usize) -> Samples {
    let round = |_| {
        let (_, id) = product.create(Limits::None);
        product.script(&id, &super::snapshots::files(10_000));
        let time = product.destroy(&id);
        product.rest();
        time
    };
    (0..rounds).map(round).collect()
}
