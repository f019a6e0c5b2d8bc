//! Random operations, some of them with a fault, against a model that a reader can check by eye.
//!
//! After each step the engine's world must be what the model says. After a step with a fault and a
//! recovery it must be the world before the step or the one after it, and nothing between; only a
//! fork and a prune may be done in part.

use std::collections::BTreeMap;

use bytes::Bytes;
use forkpoint_core::{
    Engine, Result,
    catalog::{Power, SandboxQuery},
    driver::SandboxState,
    engine::{
        ForkRequest, ForkSource, RestoreRequest, RollbackRequest, SnapshotEdit, SnapshotRequest,
        Wait,
    },
    retention::RetentionPolicy,
};
use forkpoint_testkit::{
    Simulation, World,
    faults::{Fault, FaultPlan},
    harness::ops::{named, snapshot_request, write},
};
use proptest::{collection::vec, option, prelude::*, sample::select};

type Content = BTreeMap<String, String>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    sandboxes: BTreeMap<String, ModelSandbox>,
    snapshots: BTreeMap<String, ModelSnapshot>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ModelSandbox {
    content: Content,
    head: Option<String>,
    state: SandboxState,
}

impl ModelSandbox {
    fn running(content: Content, head: Option<String>) -> Self {
        Self { content, head, state: SandboxState::Running }
    }

    /// `None` where it is refused.
    fn switched(&self, to: Power) -> Option<SandboxState> {
        match (to, self.state) {
            (Power::Stop, _) => Some(SandboxState::Stopped),
            (Power::Start, SandboxState::Paused) => None,
            (Power::Pause | Power::Resume, SandboxState::Stopped) => None,
            (Power::Start | Power::Resume, _) => Some(SandboxState::Running),
            (Power::Pause, _) => Some(SandboxState::Paused),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ModelSnapshot {
    content: Content,
    parent: Option<String>,
    pinned: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Create(String),
    Write(String, u8, u8),
    Snapshot(String),
    Restore(String, String),
    Fork(String, usize),
    Rollback(String, String),
    Delete(String),
    Switch(String, Power),
    Destroy(String),
    Pin(String, bool),
    Prune(u64),
}

/// Few names, so that steps meet; new snapshots and forks are numbered by the step.
fn steps() -> impl Strategy<Value = Vec<(Step, Option<(usize, Fault)>)>> {
    let sandbox = || select(vec!["a", "b", "c"]).prop_map(str::to_owned);
    let snapshot = || (0..12usize).prop_map(|number| format!("s{number:02}"));
    let power = select(vec![Power::Stop, Power::Start, Power::Pause, Power::Resume]);
    let step = prop_oneof![
        2 => sandbox().prop_map(Step::Create),
        4 => (sandbox(), 0..3u8, any::<u8>()).prop_map(|(name, key, value)| Step::Write(name, key, value)),
        5 => sandbox().prop_map(Step::Snapshot),
        2 => (snapshot(), sandbox()).prop_map(|(from, name)| Step::Restore(from, name)),
        2 => (snapshot(), 1..4usize).prop_map(|(from, count)| Step::Fork(from, count)),
        3 => (sandbox(), snapshot()).prop_map(|(name, to)| Step::Rollback(name, to)),
        3 => snapshot().prop_map(Step::Delete),
        3 => (sandbox(), power).prop_map(|(name, to)| Step::Switch(name, to)),
        2 => sandbox().prop_map(Step::Destroy),
        1 => (snapshot(), any::<bool>()).prop_map(|(name, pinned)| Step::Pin(name, pinned)),
        1 => (1..6u64).prop_map(Step::Prune),
    ];
    vec((step, option::weighted(0.3, (1..12usize, select(Fault::ALL.to_vec())))), 1..40)
}

impl Model {
    /// The world after a step; `None` where the engine must refuse.
    fn after(&self, step: &Step, number: usize) -> Option<Self> {
        let mut next = self.clone();
        match step {
            Step::Create(name) => {
                let content = Content::from([("/etc/template".into(), "tiny".into())]);
                next.add(name, ModelSandbox::running(content, None))?;
            }
            Step::Write(name, key, value) => {
                let sandbox = next.sandboxes.get_mut(name)?;
                sandbox.content.insert(format!("/{key}"), value.to_string());
            }
            Step::Snapshot(name) => {
                let taken = snapshot_name(number);
                let sandbox = next.sandboxes.get_mut(name)?;
                let parent = sandbox.head.replace(taken.clone());
                let content = sandbox.content.clone();
                next.snapshots.insert(taken, ModelSnapshot { content, parent, pinned: false });
            }
            Step::Restore(from, name) => next.add(name, self.copy(from)?)?,
            Step::Fork(from, count) => {
                for child in 1..=*count {
                    next.add(&format!("f{number:02}-{child}"), self.copy(from)?)?;
                }
            }
            Step::Rollback(name, to) => {
                *next.sandboxes.get_mut(name)? = self.copy(to)?;
            }
            Step::Delete(name) => drop(next.snapshots.remove(name)?),
            Step::Switch(name, to) => {
                let sandbox = next.sandboxes.get_mut(name)?;
                sandbox.state = sandbox.switched(*to)?;
            }
            Step::Destroy(name) => drop(next.sandboxes.remove(name)?),
            Step::Pin(name, pinned) => next.snapshots.get_mut(name)?.pinned = *pinned,
            Step::Prune(max) => next.prune(*max),
        }
        Some(next)
    }

    fn add(&mut self, name: &str, sandbox: ModelSandbox) -> Option<()> {
        self.sandboxes.insert(name.to_owned(), sandbox).is_none().then_some(())
    }

    fn copy(&self, from: &str) -> Option<ModelSandbox> {
        let content = self.snapshots.get(from)?.content.clone();
        Some(ModelSandbox::running(content, Some(from.to_owned())))
    }

    /// Snapshots are named in the order in which they were taken: the first is the oldest.
    fn prune(&mut self, max: u64) {
        while self.snapshots.len() as u64 > max {
            let oldest = self.snapshots.iter().find(|(_, each)| !each.pinned);
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else { return };
            self.snapshots.remove(&oldest);
        }
    }

    /// Whether this is `before` with some of what `after` changes.
    fn is_between(&self, before: &Self, after: &Self) -> bool {
        fn between<T: PartialEq>(
            now: &BTreeMap<String, T>,
            before: &BTreeMap<String, T>,
            after: &BTreeMap<String, T>,
        ) -> bool {
            let names = now.keys().chain(before.keys()).chain(after.keys());
            names.into_iter().all(|name| {
                let now = now.get(name);
                now == before.get(name) || now == after.get(name)
            })
        }
        between(&self.sandboxes, &before.sandboxes, &after.sandboxes)
            && between(&self.snapshots, &before.snapshots, &after.snapshots)
    }
}

impl Step {
    fn may_be_done_in_part(&self) -> bool {
        matches!(self, Self::Fork(..) | Self::Prune(_))
    }

    async fn run(self, engine: Engine, number: usize) -> Result<()> {
        match self {
            Self::Create(name) => engine.create(named(&name)).await.map(drop),
            Self::Write(name, key, value) => {
                engine.sandbox(&name).await?;
                write(&engine, &name, &format!("/{key}"), &value.to_string()).await;
                Ok(())
            }
            Self::Snapshot(name) => {
                let request: SnapshotRequest = snapshot_request(&name, &snapshot_name(number));
                engine.snapshot(request).await.map(drop)
            }
            Self::Restore(from, name) => {
                let name = name.parse().ok();
                engine.restore(RestoreRequest { name, ..RestoreRequest::new(from) }).await.map(drop)
            }
            Self::Fork(from, count) => {
                let name = format!("f{number:02}").parse().ok();
                let request = ForkRequest::new(ForkSource::Snapshot(from), count);
                engine.fork(ForkRequest { name, ..request }).await.map(drop)
            }
            Self::Rollback(name, to) => {
                let request = RollbackRequest { to: Some(to), ..RollbackRequest::new(name) };
                engine.rollback(request).await.map(drop)
            }
            Self::Delete(name) => engine.delete_snapshot(&name, Wait::No).await.map(drop),
            Self::Switch(name, Power::Stop) => engine.stop(&name, Wait::No).await.map(drop),
            Self::Switch(name, Power::Start) => engine.start(&name, Wait::No).await.map(drop),
            Self::Switch(name, Power::Pause) => engine.pause(&name, Wait::No).await.map(drop),
            Self::Switch(name, Power::Resume) => engine.resume(&name, Wait::No).await.map(drop),
            Self::Destroy(name) => engine.destroy(&name, Wait::No).await.map(drop),
            Self::Pin(name, pinned) => {
                let edit = SnapshotEdit { pinned: Some(pinned), ..SnapshotEdit::default() };
                engine.edit_snapshot(&name, edit, Wait::No).await.map(drop)
            }
            Self::Prune(max) => {
                let policy = RetentionPolicy { max_total: Some(max), ..RetentionPolicy::default() };
                engine.prune(&policy).await.map(drop)
            }
        }
    }
}

fn snapshot_name(number: usize) -> String {
    format!("s{number:02}")
}

fn text(files: BTreeMap<std::path::PathBuf, Bytes>) -> Content {
    let text = |bytes: Bytes| String::from_utf8_lossy(&bytes).into_owned();
    files.into_iter().map(|(path, bytes)| (path.display().to_string(), text(bytes))).collect()
}

/// The engine's world, in the model's words.
fn observe(world: &World) -> Model {
    let (sandboxes, log) = world.run(|engine| async move {
        let sandboxes = engine.sandboxes(&SandboxQuery::default()).await.unwrap().items;
        (sandboxes, engine.log(None).await.unwrap())
    });
    let name_of =
        |id| log.iter().find(|row| row.node.id == id).map(|row| row.node.name.to_string());
    let snapshots = world.visible().snapshots.into_iter().map(|record| {
        let content = text(world.platform.truth(record.id).unwrap());
        let parent = record.parent.map(|id| name_of(id).expect("a parent is in the lineage"));
        (record.name.to_string(), ModelSnapshot { content, parent, pinned: record.pinned })
    });
    let sandboxes = sandboxes.into_iter().map(|view| {
        let content = text(world.platform.files(view.record.id).unwrap());
        let head = view.record.head.map(|id| name_of(id).expect("a head is in the lineage"));
        let state = view.status.unwrap().unwrap().state;
        (view.record.name.unwrap().to_string(), ModelSandbox { content, head, state })
    });
    Model { sandboxes: sandboxes.collect(), snapshots: snapshots.collect() }
}

fn check(steps: Vec<(Step, Option<(usize, Fault)>)>, seed: u64) -> Result<(), TestCaseError> {
    let world = World::new(Simulation::shuffled(seed));
    let mut model = Model::default();
    for (number, (step, fault)) in steps.into_iter().enumerate() {
        // Writing is the sandbox's business: nobody recovers it.
        let fault = fault.filter(|_| !matches!(step, Step::Write(..)));
        if let Some((at, fault)) = fault {
            world.faults.arm(FaultPlan::new(world.next_process(), at, fault));
        }
        let next = model.after(&step, number);
        let result = world.try_run(|engine| step.clone().run(engine, number));
        world.faults.disarm();
        if fault.is_some() {
            let report = world.run(|engine| async move { engine.recover().await });
            prop_assert!(report.unwrap().failed.is_empty());
        }
        let now = observe(&world);
        let after = next.as_ref().unwrap_or(&model);
        if fault.is_none() {
            prop_assert_eq!(result.unwrap().is_ok(), next.is_some(), "{:?}", step);
            prop_assert_eq!(&now, after, "{:?}", step);
        } else if step.may_be_done_in_part() {
            prop_assert!(now.is_between(&model, after), "{:?}: {:?}", step, now);
        } else {
            prop_assert!(now == model || now == *after, "{:?} {:?}: {:?}", step, fault, now);
        }
        model = now;
    }
    prop_assert_eq!(world.broken_invariants(), Vec::<String>::new());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_does_what_the_model_does(steps in steps(), seed in any::<u64>()) {
        check(steps, seed)?;
    }
}
