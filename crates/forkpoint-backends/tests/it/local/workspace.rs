//! Sandboxes that work in a directory of the host, and what they bring home.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use forkpoint_backends::environment::next_tick;
use forkpoint_core::{
    driver::{
        ApplyReport, ApplyRequest, ApplyStep, Artifact, Driver as _, DriverResult, FileState,
        Sandbox,
    },
    path::{HostPath, SandboxPath},
    spec::{SandboxSpec, Workspace, WorkspaceMode},
};
use tempfile::TempDir;

use super::{
    Machine,
    scene::{Scene, spec, with_causes},
};

mod applies;
mod conflicts;
mod copies;
mod hostile;
mod live;
mod property;
mod room;
mod unreadable;

pub(super) const MODES: [WorkspaceMode; 2] = [WorkspaceMode::Live, WorkspaceMode::Copy];

/// A project of somebody's, and sandboxes to work on it.
struct Desk {
    home: TempDir,
    scene: Scene,
}

impl Desk {
    fn new() -> Self {
        let scene = Scene::on(Machine::new(true));
        Self { home: TempDir::new().unwrap(), scene }
    }

    /// With a few files.
    fn with_files() -> Self {
        let desk = Self::new();
        desk.write("a.txt", "a");
        desk.write("b.txt", "b");
        desk.write("src/main.rs", "main");
        desk.write("src/deep/er/file", "deep");
        desk
    }

    fn dir(&self) -> PathBuf {
        fs::canonicalize(self.home.path()).unwrap()
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    async fn spec(&self, mode: WorkspaceMode) -> SandboxSpec {
        self.spec_at(mode, "/workspace").await
    }

    async fn spec_at(&self, mode: WorkspaceMode, at: &str) -> SandboxSpec {
        let at = SandboxPath::new(at).unwrap();
        let source = HostPath::new(self.dir()).unwrap();
        let workspace = Workspace { source, at: at.clone(), mode, since: next_tick().await };
        SandboxSpec { workdir: Some(at), workspaces: vec![workspace], ..spec() }
    }

    async fn enter(&self, mode: WorkspaceMode) -> Arc<dyn Sandbox> {
        self.scene.create_as(&self.spec(mode).await).await
    }

    async fn restore(&self, spec: &SandboxSpec, from: &Artifact) -> Arc<dyn Sandbox> {
        let id = self.scene.new_id();
        let restored = self.scene.driver.restore(id, spec, from).await;
        let restored = restored.unwrap_or_else(|err| panic!("{}", with_causes(&err)));
        self.scene.note(id);
        restored
    }

    /// The beginning of a sandbox that cannot be.
    async fn refused(&self, spec: &SandboxSpec) -> String {
        let id = self.scene.new_id();
        let err = self.scene.driver.create(id, spec).await.map(drop).unwrap_err();
        assert!(!self.scene.place(id).exists(), "something is left");
        with_causes(&err)
    }

    async fn try_apply(&self, of: &dyn Sandbox, how: &ApplyRequest) -> DriverResult<ApplyReport> {
        self.scene.driver.apply(&FileState::Sandbox(of.id()), how).await
    }

    async fn apply_as(&self, of: &dyn Sandbox, how: &ApplyRequest) -> ApplyReport {
        let report = self.try_apply(of, how).await;
        report.unwrap_or_else(|err| panic!("{}", with_causes(&err)))
    }

    /// An apply that has to succeed.
    async fn apply(&self, of: &dyn Sandbox) -> ApplyReport {
        let report = self.apply_as(of, &ApplyRequest::default()).await;
        assert!(report.done && report.conflicts.is_empty(), "{report:?}");
        report
    }

    /// An apply that must change nothing, and the paths that keep it from it.
    async fn conflicts(&self, of: &dyn Sandbox) -> Vec<(String, &'static str)> {
        let before = tree(&self.dir());
        let report = self.apply_as(of, &ApplyRequest::default()).await;
        assert!(!report.done && !report.conflicts.is_empty(), "{report:?}");
        assert_eq!(tree(&self.dir()), before, "something changed");
        let conflicts = report.conflicts.into_iter();
        conflicts.map(|each| (each.path.display().to_string(), each.reason)).collect()
    }

    /// Whether nothing of an apply is left.
    fn is_clean(&self) -> bool {
        let names = fs::read_dir(self.dir()).unwrap().map(|entry| entry.unwrap().file_name());
        names.into_iter().all(|name| !name.to_string_lossy().starts_with(".forkpoint-apply"))
    }
}

fn forced() -> ApplyRequest {
    ApplyRequest { force: true, ..ApplyRequest::default() }
}

fn only(paths: &[&str]) -> ApplyRequest {
    ApplyRequest { paths: paths.iter().map(PathBuf::from).collect(), ..ApplyRequest::default() }
}

fn steps(report: &ApplyReport) -> Vec<(String, ApplyStep)> {
    report.steps.iter().map(|step| (step.path.display().to_string(), step.step)).collect()
}

/// What somebody sees of an entry: its mode, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    File(u32, Vec<u8>),
    Directory(u32),
    Link(PathBuf),
    Other,
}

fn tree(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let mode = metadata.mode() & 0o7777;
            let seen = if metadata.is_dir() {
                pending.push(path.clone());
                Seen::Directory(mode)
            } else if metadata.is_symlink() {
                Seen::Link(fs::read_link(&path).unwrap())
            } else if metadata.is_file() {
                Seen::File(mode, fs::read(&path).unwrap_or_default())
            } else {
                Seen::Other
            };
            found.insert(path.strip_prefix(root).unwrap().to_owned(), seen);
        }
    }
    found
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
