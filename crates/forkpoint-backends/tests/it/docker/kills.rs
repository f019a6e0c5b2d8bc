//! Whatever dies, and wherever: what was there is there, or what was wanted; and nothing else.

use std::sync::Arc;

use forkpoint_core::{
    driver::{Artifact, Driver, Sandbox, SandboxState, SnapshotKind},
    id::{SandboxId, SnapshotId},
    spec::SandboxSpec,
};

use forkpoint_testkit::docker::{Cut, Proxy};

use super::{
    runtime,
    scene::{Scene, new_id, seal_paused, shell, told, try_seal},
    spec, unique,
};

/// No operation asks an engine to change more than this often.
const REQUESTS_MAX: usize = 60;

struct Attack {
    scene: Scene,
    sandbox: Arc<dyn Sandbox>,
    spec: SandboxSpec,
    sealed: Artifact,
}

impl Attack {
    /// A container of somebody else with a volume, sealed as `good`, and `bad` now.
    async fn new() -> Self {
        let scene = Scene::new();
        let volume = format!("{}:/data", scene.name("data"));
        let name = scene.start("source", &["-v", &volume]);
        scene.sh(&name, "echo good > /root/state; echo good > /data/state");
        let (sandbox, spec) = scene.adopt(&name).await;
        let sealed = scene.seal(sandbox.as_ref()).await;
        scene.sh(&name, "echo bad > /root/state; echo bad > /data/state");
        Self { scene, sandbox, spec, sealed }
    }

    /// Tries an operation again and again, cut off at one request after the other, until it gets through.
    async fn each<F: AsyncFn(&dyn Driver) -> bool>(
        &self,
        cut: Cut,
        run: F,
        after: impl AsyncFn(bool),
    ) {
        let directory = tempfile::TempDir::new().unwrap();
        for count in 0..REQUESTS_MAX {
            let engine = self.scene.machine.engine.socket();
            let proxy = Proxy::cutting(directory.path(), engine, count, cut);
            let driver = self.scene.machine.docker_through(&proxy.path);
            let succeeded = run(&driver).await;
            after(succeeded).await;
            if !proxy.was_cut() {
                assert!(succeeded, "nothing was in its way");
                assert!(proxy.seen() > 0, "it changes something");
                return;
            }
        }
        panic!("it never gets through");
    }

    fn ours(&self) -> Vec<String> {
        let mut ours = self.scene.ours();
        let image = format!("image forkpoint/{} ", self.sealed.snapshot);
        ours.retain(|one| !one.starts_with(&image));
        ours
    }
}

async fn look(sandbox: &dyn Sandbox) -> String {
    shell(sandbox, "cat /root/state /data/state").await
}

fn restores(cut: Cut) {
    runtime().block_on(async {
        let attack = Attack::new().await;
        let id = std::cell::Cell::new(new_id());
        let run = async |driver: &dyn Driver| {
            id.set(new_id());
            driver.restore(id.get(), &attack.spec, &attack.sealed).await.is_ok()
        };
        let after = async |succeeded: bool| {
            let driver = &attack.scene.driver;
            if succeeded {
                assert_eq!(
                    look(driver.attach(id.get()).await.unwrap().as_ref()).await,
                    "good\ngood\n"
                );
            }
            driver.destroy(id.get()).await.unwrap();
            assert_eq!(attack.ours(), [] as [&str; 0]);
            assert_eq!(look(attack.sandbox.as_ref()).await, "bad\nbad\n", "the source");
        };
        attack.each(cut, run, after).await;
    });
}

#[test]
fn a_restore_that_is_cut_off_before_any_request_leaves_nothing() {
    restores(Cut::Before);
}

#[test]
fn a_restore_that_is_cut_off_after_any_request_leaves_nothing() {
    restores(Cut::After);
}

/// With a pause of the kind that this one needs: for `Files` ours, for `Full` the engine's.
fn seals(cut: Cut, pause: SnapshotKind) {
    runtime().block_on(async {
        let attack = Attack::new().await;
        let id = attack.sandbox.id();
        let snapshot = std::cell::Cell::new(SnapshotId::from_u128(unique()));
        let run = async |driver: &dyn Driver| {
            snapshot.set(SnapshotId::from_u128(unique()));
            let sandbox = driver.attach(id).await.unwrap();
            seal_paused(sandbox.as_ref(), snapshot.get(), pause).await.is_ok()
        };
        let after = async |_| {
            let driver = &attack.scene.driver;
            driver.settle(id).await.unwrap();
            driver.unseal(snapshot.get()).await.unwrap();
            assert_eq!(attack.ours(), [] as [&str; 0]);
            let status = driver.status(id).await.unwrap().unwrap();
            assert_eq!(
                (status.state, status.base),
                (SandboxState::Running, Some(attack.sealed.snapshot))
            );
            assert_eq!(look(attack.sandbox.as_ref()).await, "bad\nbad\n");
        };
        attack.each(cut, run, after).await;
    });
}

#[test]
fn a_seal_that_is_cut_off_before_any_request_leaves_nothing() {
    seals(Cut::Before, SnapshotKind::Files);
    seals(Cut::Before, SnapshotKind::Full);
}

#[test]
fn a_seal_that_is_cut_off_after_any_request_leaves_nothing() {
    seals(Cut::After, SnapshotKind::Files);
    seals(Cut::After, SnapshotKind::Full);
}

fn rollbacks(cut: Cut) {
    runtime().block_on(async {
        let attack = Attack::new().await;
        let id = attack.sandbox.id();
        let run = async |driver: &dyn Driver| {
            driver.rollback(id, &attack.spec, &attack.sealed).await.is_ok()
        };
        let after = async |succeeded: bool| stands(&attack, id, succeeded).await;
        attack.each(cut, run, after).await;
    });
}

/// Either where it stood, or where it was to go; and it runs.
async fn stands(attack: &Attack, id: SandboxId, succeeded: bool) {
    let driver = &attack.scene.driver;
    driver.settle(id).await.unwrap_or_else(|err| panic!("{}", told(&err)));
    let status = driver.status(id).await.unwrap().unwrap();
    assert_eq!(status.state, SandboxState::Running);
    let seen = look(attack.sandbox.as_ref()).await;
    assert!(seen == "good\ngood\n" || !succeeded && seen == "bad\nbad\n", "{succeeded}: {seen}");
    let name = attack.scene.name("source");
    let all = attack.scene.docker(&["ps", "-a", "--format", "{{.Names}}"]);
    let of_it = |other: &&str| *other == name || other.contains(&id.to_string());
    assert_eq!(all.lines().filter(of_it).collect::<Vec<_>>(), [name.as_str()]);
    attack.scene.sh(&name, "echo bad > /root/state; echo bad > /data/state");
}

#[test]
fn a_rollback_that_is_cut_off_before_any_request_stands_here_or_there() {
    rollbacks(Cut::Before);
}

#[test]
fn a_rollback_that_is_cut_off_after_any_request_stands_here_or_there() {
    rollbacks(Cut::After);
}

/// The daemon itself goes away in the middle of things, and comes back.
#[test]
fn an_engine_that_is_killed_loses_nothing_that_was_sealed() {
    runtime().block_on(async {
        let scene = Scene::on(super::Machine::own(tempfile::TempDir::new().unwrap()));
        let sandbox = scene.driver.create(new_id(), &spec()).await.unwrap();
        shell(
            sandbox.as_ref(),
            "dd if=/dev/urandom of=/big bs=1M count=40 2>/dev/null; echo good > /state",
        )
        .await;
        let sealed = scene.seal(sandbox.as_ref()).await;
        let id = sandbox.id();
        shell(sandbox.as_ref(), "dd if=/dev/urandom of=/more bs=1M count=40 2>/dev/null").await;

        let snapshot = SnapshotId::from_u128(unique());
        let kill = async {
            await_pause(&scene, &sandbox).await;
            scene.machine.engine.kill();
        };
        let (tried, ()) = futures::join!(try_seal(sandbox.as_ref(), snapshot), kill);
        scene.machine.engine.await_answer();
        drop(tried);
        scene.driver.settle(id).await.unwrap();
        scene.driver.unseal(snapshot).await.unwrap();
        assert_eq!(scene.ours().iter().filter(|one| one.starts_with("image")).count(), 1);

        let back = scene
            .driver
            .rollback(id, &spec(), &sealed)
            .await
            .unwrap_or_else(|err| panic!("{}", told(&err)));
        assert_eq!(
            shell(back.as_ref(), "cat /state; ls /more 2>/dev/null || echo none").await,
            "good\nnone\n"
        );
        let copy = scene.driver.restore(new_id(), &spec(), &sealed).await.unwrap();
        for id in [copy.id(), id] {
            scene.driver.destroy(id).await.unwrap();
        }
        scene.driver.discard(&sealed.pieces[0].name).await.unwrap();
        assert_eq!(scene.ours(), [] as [&str; 0]);
    });
}

/// Until the sandbox stands still, so that somebody is at work on it.
async fn await_pause(scene: &Scene, sandbox: &Arc<dyn Sandbox>) {
    loop {
        let status = scene.driver.status(sandbox.id()).await;
        if status
            .is_ok_and(|status| status.is_some_and(|status| status.state == SandboxState::Paused))
        {
            return;
        }
        tokio::task::yield_now().await;
    }
}
