//! Random trees, made inside: what is restored is what was there.

use std::sync::Arc;

use forkpoint_core::driver::{Artifact, Driver as _, ExitStatus, Process, Sandbox};
use proptest::{collection::vec, prelude::*};

use crate::layer::is_root;

use super::{
    Machine,
    scene::{Scene, exec, python, seal, sh, spec, start},
};

const LIST: &str = include_str!("trees/list.py");
const CHANGE: &str = include_str!("trees/change.py");

/// New files, files of the template, and files of the template's `/usr`, which is an overlay of its
/// own.
pub(super) const ROOTS: [&str; 4] =
    ["/srv", "/etc", "/usr/share/base-files", "/usr/share/common-licenses"];

pub(super) async fn list(sandbox: &dyn Sandbox, roots: &[&str]) -> String {
    let mut argv = vec!["python3", "-c", LIST];
    argv.extend(roots);
    let (out, status) = exec(sandbox, &argv).await;
    assert_eq!(status, ExitStatus::Code(0), "{out}");
    out
}

pub(super) async fn change(sandbox: &dyn Sandbox, seed: u32, count: u32, roots: &[&str]) {
    let (seed, count) = (seed.to_string(), count.to_string());
    let mut argv = vec!["python3", "-c", CHANGE, &seed, &count];
    argv.extend(roots);
    let (out, status) = exec(sandbox, &argv).await;
    assert_eq!(status, ExitStatus::Code(0), "{out}");
}

pub(super) fn assert_same(expected: &str, found: &str, what: &str) {
    let differences: Vec<_> = diff(expected, found).into_iter().take(12).collect();
    assert!(differences.is_empty(), "{what}:\n{}", differences.join("\n"));
}

fn diff(expected: &str, found: &str) -> Vec<String> {
    use std::collections::BTreeSet;
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (expected, found) = (lines(expected), lines(found));
    let missing = expected.difference(&found).map(|line| format!("- {line}"));
    missing.chain(found.difference(&expected).map(|line| format!("+ {line}"))).collect()
}

/// What is done between two seals.
#[derive(Clone, Debug)]
struct Round {
    seed: u32,
    count: u32,
    busy: bool,
    /// Goes back to one of those that were taken, by its number.
    back: Option<u8>,
}

fn round() -> impl Strategy<Value = Round> {
    let back = prop::option::weighted(0.25, any::<u8>());
    (any::<u32>(), 5u32..120, any::<bool>(), back).prop_map(|(seed, count, busy, back)| Round {
        seed,
        count,
        busy,
        back,
    })
}

pub(super) async fn stop(busy: Option<Process>) {
    if let Some(busy) = busy {
        busy.control.signal(9).await.unwrap();
        busy.control.wait().await.unwrap();
    }
}

/// Everything that can be compared. Without root, a file that overlayfs has copied and that then got a second name is
/// told to be two as long as it is the same mount; that names of one file stay so is tested of layers.
async fn seen(sandbox: &dyn Sandbox) -> String {
    let listing = list(sandbox, &ROOTS).await;
    let is_told = |line: &&str| is_root() || !line.starts_with("linked ");
    listing.lines().filter(is_told).map(|line| format!("{line}\n")).collect()
}

async fn restored_is_what_was(scene: &Scene, rounds: &[Round]) {
    let sandbox = scene.create().await;
    sh(&*sandbox, "mkdir -p /srv").await;
    let mut taken: Vec<(String, Artifact)> = Vec::new();
    for (number, round) in rounds.iter().enumerate() {
        change(&*sandbox, round.seed, round.count, &ROOTS).await;
        let before = seen(&*sandbox).await;
        let busy = match round.busy {
            true => Some(start(&*sandbox, "echo on; exec sleep 1000").await),
            false => None,
        };
        let artifact = seal(&*sandbox).await;
        assert_same(&before, &seen(&*sandbox).await, &format!("after seal {number}"));
        taken.push((before, artifact));
        stop(busy).await;
        if let Some(back) = round.back {
            let (expected, to) = &taken[usize::from(back) % taken.len()];
            scene.driver.rollback(sandbox.id(), &spec(), to).await.unwrap();
            scene.note(sandbox.id());
            assert_same(expected, &seen(&*sandbox).await, &format!("rolled back in {number}"));
        }
    }
    for (number, (expected, from)) in taken.iter().enumerate() {
        let copy = scene.restore(from).await;
        assert_same(expected, &seen(&*copy).await, &format!("restored {number}"));
        scene.driver.destroy(copy.id()).await.unwrap();
    }
    scene.driver.destroy(sandbox.id()).await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 8,
        max_shrink_iters: 20,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_restored_is_what_was_there(rounds in vec(round(), 2..6), map_users: bool) {
        let scene = Scene::on(Machine::new(map_users));
        scene.run(restored_is_what_was(&scene, &rounds));
    }
}

/// Otherwise it removes the programs that it is run by, sooner or later.
#[test]
fn what_changes_trees_stays_in_them() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let script = "mkdir -p /outside/dir /srv && cd /outside && echo x | tee a b c dir/a dir/b";
        sh(&*sandbox, script).await;
        let look = "find /outside -printf '%p %y %m %u %s %T@ %C@\\n' | sort; ls -d /usr/bin /deep";
        let look = format!("{{ {look}; }} 2>&1");
        let before = exec(&*sandbox, &["sh", "-c", &look]).await;
        for seed in 0..6 {
            sh(&*sandbox, "cd /srv && rm -rf * && ln -s ../outside a && ln -s / b && mkdir dir && ln -s /outside/a dir/c").await;
            change(&*sandbox, seed, 400, &["/srv"]).await;
            assert_eq!(exec(&*sandbox, &["sh", "-c", &look]).await, before, "{seed}");
        }
    });
}

/// Changes a page that is written to already, which shows in no time stamp.
const MAPPED: &str = "
import mmap, os, sys, time
files = []
os.makedirs('/srv', exist_ok=True)
for name in [b'/srv/plain', b'/srv/a b', b'/srv/odd\\xff', b'/srv/new\\nline', b'/usr/local/lib/mapped']:
    file = os.open(name, os.O_RDWR | os.O_CREAT)
    os.truncate(file, 4096)
    files.append(mmap.mmap(file, 4096))
for round in range(1000):
    for map in files:
        map[0:4] = b'%04d' % round
    print(round, flush=True)
    if not sys.stdin.readline():
        break
";

#[test]
fn what_is_mapped_is_kept_as_it_is() {
    use bytes::Bytes;
    use futures::{SinkExt as _, StreamExt as _};
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let mut command = forkpoint_core::driver::Command::new(["python3", "-c", MAPPED]);
        command.stdin = true;
        let mut running = sandbox.exec(&command).await.unwrap();
        let mut stdin = running.stdin.take().unwrap();
        let mut taken = Vec::new();
        for _ in 0..4 {
            running.stdout.next().await.unwrap().unwrap();
            taken.push(seal(&*sandbox).await);
            stdin.send(Bytes::from("\n")).await.unwrap();
        }
        drop(stdin);
        for (number, artifact) in taken.iter().enumerate() {
            let copy = scene.restore(artifact).await;
            let look = "import glob\nfor f in sorted(glob.glob(b'/srv/*')) + [b'/usr/local/lib/mapped']: print(f, open(f, 'rb').read(4).decode())";
            for line in python(&*copy, look).await.lines() {
                assert!(line.ends_with(&format!(" {number:04}")), "{number}: {line}");
            }
        }
    });
}

/// More snapshots in a row than layers can lie on each other.
#[test]
fn a_long_row_of_snapshots_restores() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox: Arc<dyn Sandbox> = scene.create().await;
        let mut taken = Vec::new();
        for number in 0..95u32 {
            let remove = number.saturating_sub(7);
            sh(&*sandbox, &format!("mkdir -p /srv/d && cd /srv && echo {number} > f{number} && rm -rf f{remove} d && mkdir d && echo {number} > d/x")).await;
            let busy = match number % 5 {
                0 => Some(start(&*sandbox, "echo on; exec sleep 1000").await),
                _ => None,
            };
            let artifact = seal(&*sandbox).await;
            stop(busy).await;
            if number % 12 == 0 || number > 92 {
                let seen = sh(&*sandbox, "cd /srv && grep -r . | sort").await;
                taken.push((seen, artifact));
            }
        }
        for (expected, artifact) in &taken {
            let copy = scene.restore(artifact).await;
            assert_eq!(sh(&*copy, "cd /srv && grep -r . | sort").await, *expected);
            scene.driver.destroy(copy.id()).await.unwrap();
        }
    });
}
