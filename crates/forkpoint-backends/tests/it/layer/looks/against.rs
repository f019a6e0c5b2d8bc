//! A view held against what the kernel shows, and a difference against a walk through everything.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read as _,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use forkpoint_backends::layer::{DiffSpec, Layer, LayerView, ViewFacts, ViewMount, diff};
use forkpoint_core::driver::{ChangeKind, FileKind};

use crate::layer::{
    Scene,
    view::{self, Node, View},
};

/// What a sandbox showed at a moment, and how we see it.
pub(crate) struct State {
    shown: View,
    view: LayerView,
}

impl State {
    pub(crate) fn captured(scene: &Scene, base: &Path, root: &Path) -> Self {
        let chain = if scene.captured == 0 { Vec::new() } else { scene.chain() };
        let trees: Vec<PathBuf> = chain.iter().map(Layer::tree_path).collect();
        Self::new(scene, &trees, base, root)
    }

    /// True until the sandbox changes something.
    pub(crate) fn live(scene: &Scene, base: &Path, root: &Path) -> Self {
        Self::new(scene, &[scene.upper()], base, root)
    }

    fn new(scene: &Scene, trees: &[PathBuf], base: &Path, root: &Path) -> Self {
        let mount = ViewMount::new(Path::new(""), trees, &[base.to_owned()]);
        let view = LayerView::open(&[mount], scene.store.marks()).unwrap();
        let state = Self { shown: view::read(root, ""), view };
        state.assert_same();
        state
    }

    fn assert_same(&self) {
        let seen = walk(&self.view);
        let paths = |paths: BTreeSet<&PathBuf>| paths.into_iter().cloned().collect::<Vec<_>>();
        assert_eq!(paths(seen.keys().collect()), paths(self.shown.keys().collect()));
        for (path, facts) in &seen {
            let node = &self.shown[path];
            let modified = facts.facts.modified;
            let mtime = (modified.as_second(), i64::from(modified.subsec_nanosecond()));
            assert_eq!(facts.facts.mode, node.mode & 0o7777, "{path:?}");
            assert_eq!((facts.facts.uid, facts.facts.gid), node.owner, "{path:?}");
            assert_eq!(mtime, node.mtime, "{path:?}");
            assert_eq!(facts.facts.device, node.rdev, "{path:?}");
            assert_eq!(self.content(path, facts), node.content, "{path:?}");
        }
    }

    fn content(&self, path: &Path, facts: &ViewFacts) -> Vec<u8> {
        let mut content = Vec::new();
        match facts.facts.kind {
            FileKind::File => {
                self.view.open_file(path).unwrap().read_to_end(&mut content).unwrap();
            }
            FileKind::Symlink => {
                content = self.view.read_link(path).unwrap().into_os_string().into_vec();
            }
            _ => {}
        }
        content
    }
}

/// All of a view.
fn walk(view: &LayerView) -> BTreeMap<PathBuf, ViewFacts> {
    let root = view.entry(Path::new("")).unwrap().unwrap();
    let mut all = BTreeMap::from([(PathBuf::new(), root)]);
    let mut pending = vec![PathBuf::new()];
    while let Some(directory) = pending.pop() {
        for (name, facts) in view.entries(&directory).unwrap() {
            let path = directory.join(name);
            assert_eq!(view.entry(&path).unwrap(), Some(facts), "{path:?}");
            if facts.facts.kind == FileKind::Directory {
                pending.push(path.clone());
            }
            all.insert(path, facts);
        }
    }
    all
}

/// Every one with every other, both ways.
pub(crate) fn assert_differences(states: &[State]) {
    for from in states {
        for to in states {
            let found = diff(&DiffSpec { from: &from.view, to: &to.view, under: &[] }).unwrap();
            let mut told = BTreeMap::new();
            for change in found.changes {
                match change.kind {
                    ChangeKind::Renamed { from: old } => {
                        assert_eq!(from.shown[&old].content, to.shown[&change.path].content);
                        told.insert(old, ChangeKind::Deleted);
                        told.insert(change.path, ChangeKind::Added);
                    }
                    kind => assert_eq!(told.insert(change.path, kind), None),
                }
            }
            assert_eq!(told, naive(&from.shown, &to.shown));
        }
    }
}

fn naive(from: &View, to: &View) -> BTreeMap<PathBuf, ChangeKind> {
    let paths: BTreeSet<&PathBuf> = from.keys().chain(to.keys()).collect();
    let kind = |path: &PathBuf| match (from.get(path), to.get(path)) {
        (Some(a), Some(b)) => changed(a, b),
        (Some(_), None) => Some(ChangeKind::Deleted),
        _ => Some(ChangeKind::Added),
    };
    paths.into_iter().filter_map(|path| Some((path.clone(), kind(path)?))).collect()
}

fn changed(a: &Node, b: &Node) -> Option<ChangeKind> {
    if a.mode & 0o170_000 != b.mode & 0o170_000 {
        Some(ChangeKind::Retyped)
    } else if (&a.content, a.rdev) != (&b.content, b.rdev) {
        Some(ChangeKind::Changed)
    } else if (a.mode, a.owner) != (b.mode, b.owner) {
        Some(ChangeKind::Attributes)
    } else {
        None
    }
}
