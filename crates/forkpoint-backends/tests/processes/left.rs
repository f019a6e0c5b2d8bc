//! What a parent leaves that fails while its child works: nothing.

use std::{
    collections::BTreeSet,
    fs,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    time::Duration,
};

use forkpoint_core::id::SandboxId;

use super::local::{Worker, World, is_root, run};

/// The guards of [`Worker`] and [`World`] are of use to nobody who passes.
pub(crate) fn fail_at_work() {
    if !is_root() {
        return;
    }
    let (mut made, mut at, mut worker_id) = (BTreeSet::new(), PathBuf::new(), 0);
    let failed = panic::catch_unwind(AssertUnwindSafe(|| {
        run(async {
            let mut world = World::new().await;
            world.directory.path().clone_into(&mut at);
            let task = serde_json::to_vec(&world.task).unwrap();
            fs::write(at.join("task"), task).unwrap();
            let mut worker = Worker::start(&at, 3);
            worker_id = worker.child.id();
            while world.others.len() < 3 {
                world.hear(worker.next().expect("a child ended by itself"));
            }
            made.extend(world.others.iter().copied().chain([world.task.sandbox]));
            panic!("as a test does");
        });
    }));
    assert!(failed.is_err() && !at.exists());
    assert!(!Path::new(&format!("/proc/{worker_id}")).exists(), "the child lives");
    run(nothing_is_left(&made));
}

pub(crate) async fn nothing_is_left(made: &BTreeSet<SandboxId>) {
    for _ in 0..3000 {
        if leftovers(made).is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", leftovers(made));
}

/// Cgroups of these sandboxes.
fn leftovers(made: &BTreeSet<SandboxId>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = pending.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        for entry in entries.flatten().filter(is_dir) {
            let name = entry.file_name().into_string().unwrap_or_default();
            if made.iter().any(|id| name.starts_with(&id.to_string())) {
                found.push(entry.path());
            }
            pending.push(entry.path());
        }
    }
    found
}
