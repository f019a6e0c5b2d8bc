use std::fs;

use forkpoint_core::{
    Timestamp,
    driver::{FileFacts, FileKind},
    path::HostPath,
};
use tempfile::TempDir;

use super::*;

/// A plan for one path of a directory that holds `there`, made before the host goes on working.
struct Scene {
    home: TempDir,
    host: HostDir,
    ledger: Ledger,
    plan: Plan,
}

const FACTS: FileFacts = FileFacts {
    kind: FileKind::File,
    mode: 0o644,
    uid: 0,
    gid: 0,
    len_bytes: 3,
    modified: Timestamp::UNIX_EPOCH,
    device: 0,
};

impl Scene {
    fn new(path: &str, want: Want) -> Self {
        let home = TempDir::new().unwrap();
        fs::write(home.path().join("there"), "old").unwrap();
        let host = HostDir::open(home.path()).unwrap();
        let source = HostPath::new(home.path()).unwrap();
        let none = home.path().join("none");
        let ledger = Ledger::read_from(&none, &source, Timestamp::UNIX_EPOCH).unwrap();
        let there = match host.look(Path::new(path)).unwrap() {
            Way::There(stat) => Some(stat),
            _ => None,
        };
        let step = Step { path: path.into(), want, host: there, before: None, is_as_begun: false };
        Self { home, host, ledger, plan: Plan { steps: vec![step], ..Plan::default() } }
    }

    /// What the host does meanwhile: a file of another inode, as editors write it.
    fn save(&self, name: &str) {
        let new = self.home.path().join("new");
        fs::write(&new, "mine").unwrap();
        fs::rename(new, self.home.path().join(name)).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.home.path().join(name)).unwrap()
    }

    fn staged(&self, staging: &Staging) -> Vec<Staged> {
        let at = PathBuf::from("0");
        let entries = fs::read_dir(self.home.path()).unwrap().map(|entry| entry.unwrap().path());
        let ours = entries.into_iter().find(|path| path.is_dir()).unwrap();
        fs::write(ours.join(&at), "new").unwrap();
        let stat = statat(&staging.fd, &at, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        vec![Staged { path: self.plan.steps[0].path.clone(), at, is_top: true, stat }]
    }

    fn write(&mut self) -> WorkspaceResult<Vec<ApplySkip>> {
        let staging = Staging::create(&self.host).unwrap();
        let staged = match self.plan.steps[0].is_put() {
            true => self.staged(&staging),
            false => Vec::new(),
        };
        write(&self.host, &staging, &self.plan, &staged, &mut self.ledger)
    }
}

#[test]
fn what_the_host_saves_at_the_last_moment_stays() {
    let cases = [
        ("there", Want::File(FACTS)),
        ("added", Want::File(FACTS)),
        ("there", Want::Nothing),
        ("there", Want::Mode(0o600)),
    ];
    for (path, want) in cases {
        let mut scene = Scene::new(path, want);
        scene.save(path);
        let result = scene.write();
        assert!(matches!(result, Err(WorkspaceError::Changed { .. })), "{want:?}: {result:?}");
        assert_eq!(scene.read(path), "mine");
        let mode = fs::metadata(scene.home.path().join(path)).unwrap();
        assert_ne!(std::os::unix::fs::MetadataExt::mode(&mode) & 0o777, 0o600, "{want:?}");
    }
}

#[test]
fn without_anybody_else_it_is_done() {
    let mut scene = Scene::new("there", Want::File(FACTS));
    scene.write().unwrap();
    assert_eq!(scene.read("there"), "new");
    let mut scene = Scene::new("there", Want::Nothing);
    scene.write().unwrap();
    assert_eq!(fs::read_dir(scene.home.path()).unwrap().count(), 0);
}

/// Between the last look and the rename.
#[test]
fn what_was_swapped_out_by_surprise_is_put_back() {
    let mut scene = Scene::new("there", Want::File(FACTS));
    scene.save("there");
    let staging = Staging::create(&scene.host).unwrap();
    let staged = scene.staged(&staging);
    let (host, plan) = (&scene.host, &scene.plan);
    let mut writer = Writer {
        host,
        staging: &staging,
        ledger: &mut scene.ledger,
        removed: BTreeSet::new(),
        stayed: Vec::new(),
        set: HashSet::new(),
        done: 0,
    };
    let step = &plan.steps[0];
    let (directory, name) = host.parent(&step.path).unwrap();
    let then = step.host.as_ref().unwrap();
    let swapped = writer.swap((&directory, &name), step, then, &staged[0]);
    assert!(matches!(swapped, Err(WorkspaceError::Changed { .. })), "{swapped:?}");
    assert_eq!(fs::read_to_string(scene.home.path().join("there")).unwrap(), "mine");
}

#[test]
fn what_stops_half_way_tells_how_far_it_came() {
    let mut scene = Scene::new("there", Want::Mode(0o600));
    let gone = Step { path: "other".into(), want: Want::Nothing, ..scene.plan.steps[0].clone() };
    scene.plan.steps.insert(0, gone);
    fs::write(scene.home.path().join("other"), "mine").unwrap();
    let told = scene.write().unwrap_err();
    assert_eq!(told.to_string(), "1 of 2 changes were made, and applying again goes on");
    assert_eq!(scene.read("other"), "mine");
}
