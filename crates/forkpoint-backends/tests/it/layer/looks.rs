//! Views of layers without a mount, and what two of them differ in.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use forkpoint_backends::layer::{
    DiffSpec, LayerError, LayerView, Marks, ViewChange, ViewLevel, ViewMount, diff,
};
use forkpoint_core::driver::{ChangeKind, FileKind};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};

use super::Scene;

pub(super) mod against;

/// Directories that are put on each other.
struct Levels {
    scene: Scene,
}

impl Levels {
    fn new() -> Self {
        Self { scene: Scene::new() }
    }

    fn marks(&self) -> Marks {
        self.scene.store.marks()
    }

    /// A file at `LEVEL/PATH`, with the directories on the way.
    fn file(&self, path: &str, content: &str) -> PathBuf {
        let path = self.scene.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn directory(&self, path: &str) -> PathBuf {
        let path = self.scene.path(path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn whiteout(&self, path: &str) {
        let path = self.scene.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    }

    fn opaque(&self, path: &str) {
        let name = format!("{}.overlay.opaque", self.marks().as_str());
        setxattr(self.directory(path), name, b"y", XattrFlags::empty()).unwrap();
    }

    fn mount(&self, at: &str, levels: &[&str]) -> ViewMount {
        let paths: Vec<PathBuf> = levels.iter().map(|level| self.directory(level)).collect();
        ViewMount::new(Path::new(at), &[], &paths)
    }

    fn view(&self, levels: &[&str]) -> LayerView {
        LayerView::open(&[self.mount("", levels)], self.marks()).unwrap()
    }

    /// From the levels to those with `top` on them.
    fn changes(&self, from: &[&str], to: &[&str]) -> Vec<String> {
        told(&self.view(from), &self.view(to), &[])
    }
}

fn told(from: &LayerView, to: &LayerView, under: &[PathBuf]) -> Vec<String> {
    let found = diff(&DiffSpec { from, to, under }).unwrap();
    found.changes.iter().map(tell).collect()
}

fn tell(change: &ViewChange) -> String {
    let path = change.path.display();
    match &change.kind {
        ChangeKind::Added => format!("A {path}"),
        ChangeKind::Deleted => format!("D {path}"),
        ChangeKind::Changed => format!("M {path}"),
        ChangeKind::Retyped => format!("T {path}"),
        ChangeKind::Attributes => format!("m {path}"),
        ChangeKind::Renamed { from } => format!("R {} -> {path}", from.display()),
    }
}

fn names(view: &LayerView, path: &str) -> Vec<String> {
    let entries = view.entries(Path::new(path)).unwrap();
    entries.into_iter().map(|(name, _)| name.into_string().unwrap()).collect()
}

fn read(view: &LayerView, path: &str) -> String {
    std::io::read_to_string(view.open_file(Path::new(path)).unwrap()).unwrap()
}

#[test]
fn upper_levels_hide_lower_ones() {
    let levels = Levels::new();
    levels.file("low/dir/a", "low");
    levels.file("low/dir/b", "low");
    levels.file("low/gone/x", "low");
    levels.file("low/new/old", "low");
    levels.file("top/dir/a", "top");
    levels.whiteout("top/dir/b");
    levels.whiteout("top/gone");
    levels.opaque("top/new");
    levels.file("top/new/fresh", "top");
    let view = levels.view(&["top", "low"]);
    assert_eq!(names(&view, ""), ["dir", "new"]);
    assert_eq!(names(&view, "/dir"), ["a"]);
    assert_eq!(names(&view, "new"), ["fresh"]);
    assert_eq!(read(&view, "dir/a"), "top");
    assert_eq!(view.entry(Path::new("gone/x")).unwrap(), None);
    assert_eq!(view.entry(Path::new("dir/b")).unwrap(), None);
    let facts = view.entry(Path::new("/dir/a")).unwrap().unwrap();
    assert_eq!((facts.facts.kind, facts.facts.len_bytes, facts.level), (FileKind::File, 3, 0));
    assert_eq!(view.entry(Path::new("/")).unwrap().unwrap().facts.kind, FileKind::Directory);
}

#[test]
fn a_mount_hides_what_lies_at_its_place() {
    let levels = Levels::new();
    levels.file("root/usr/hidden", "");
    levels.file("root/home/site/hidden", "");
    levels.file("root/home/other", "");
    levels.file("usr/bin/tool", "tool");
    levels.file("work/main.rs", "main");
    levels.file("top/home/site/made", "made");
    let mut work = levels.mount("home/site", &["work"]);
    work.levels.insert(0, ViewLevel { root: levels.directory("top"), below: "home/site".into() });
    let mounts = [levels.mount("", &["top", "root"]), levels.mount("usr", &["usr"]), work.clone()];
    let view = LayerView::open(&mounts, levels.marks()).unwrap();
    assert_eq!(names(&view, ""), ["home", "usr"]);
    assert_eq!(names(&view, "usr"), ["bin"]);
    assert_eq!(names(&view, "home"), ["other", "site"]);
    assert_eq!(names(&view, "home/site"), ["made", "main.rs"]);
    assert_eq!(read(&view, "home/site/main.rs"), "main");

    work.levels.remove(0);
    let mounts = [levels.mount("", &["root"]), levels.mount("usr", &["usr"]), work];
    let before = LayerView::open(&mounts, levels.marks()).unwrap();
    assert_eq!(told(&before, &view, &[]), ["A home/site/made"]);
    assert_eq!(told(&view, &before, &["/home".into()]), ["D home/site/made"]);
    assert_eq!(told(&view, &before, &["usr".into()]), [] as [&str; 0]);
}

#[test]
fn no_link_leads_a_view_outside() {
    let levels = Levels::new();
    let outside = levels.directory("outside/inner");
    levels.file("outside/inner/secret", "secret");
    levels.directory("top");
    levels.file("low/dir/secret", "plain");
    symlink(&outside, levels.scene.path("top/dir")).unwrap();
    symlink(levels.scene.path("outside"), levels.scene.path("top/up")).unwrap();
    let view = levels.view(&["top", "low"]);
    assert_eq!(view.entry(Path::new("dir/secret")).unwrap(), None);
    assert_eq!(view.read_link(Path::new("dir")).unwrap(), outside);
    assert!(view.open_file(Path::new("dir/secret")).is_err());
    assert!(view.entries(Path::new("dir")).is_err());
    assert!(view.entry(Path::new("../outside")).is_err());
    // Nor does the way to a mount.
    let root = levels.directory("top");
    let level = ViewLevel { root, below: "up/inner".into() };
    let mount = ViewMount { at: "at".into(), levels: vec![level] };
    let view = LayerView::open(&[levels.mount("", &["top"]), mount], levels.marks()).unwrap();
    assert!(view.entries(Path::new("at")).unwrap_or_default().is_empty());
}

#[test]
fn nobody_waits_for_a_fifo() {
    let levels = Levels::new();
    for level in ["low", "top"] {
        let fifo = levels.directory(level).join("fifo");
        mknodat(CWD, fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
    }
    let view = levels.view(&["top"]);
    assert!(matches!(view.open_file(Path::new("fifo")), Err(LayerError::Io { .. })));
    assert_eq!(levels.changes(&["low"], &["top"]), [] as [&str; 0]);
}

#[test]
fn a_difference_tells_what_happened_to_each_file() {
    let levels = Levels::new();
    for name in ["same", "content", "length", "mode", "gone", "tree/x", "tree/y/z", "kind"] {
        levels.file(&format!("low/{name}"), "old one");
    }
    levels.file("low/was/here", "the content that moves");
    levels.file("top/same", "old one");
    levels.file("top/content", "new one");
    levels.file("top/length", "longer than it was");
    let mode = levels.file("top/mode", "old one");
    fs::set_permissions(mode, fs::Permissions::from_mode(0o755)).unwrap();
    levels.whiteout("top/gone");
    levels.whiteout("top/tree");
    levels.directory("top/kind");
    levels.file("top/kind/inside", "inside");
    levels.whiteout("top/was/here");
    levels.file("top/is/there", "the content that moves");
    let expected = [
        "M content",
        "D gone",
        "A is",
        "R was/here -> is/there",
        "T kind",
        "A kind/inside",
        "M length",
        "m mode",
        "D tree",
        "D tree/x",
        "D tree/y",
        "D tree/y/z",
    ];
    assert_eq!(levels.changes(&["low"], &["top", "low"]), expected);
    assert_eq!(levels.changes(&["low"], &["low"]), [] as [&str; 0]);
}

#[test]
fn a_directory_that_was_replaced_is_compared_with_what_it_replaced() {
    let levels = Levels::new();
    levels.file("low/dir/stays", "stays");
    levels.file("low/dir/goes", "goes");
    levels.file("low/dir/sub/deep", "deep");
    levels.opaque("top/dir");
    levels.file("top/dir/stays", "stays");
    levels.file("top/dir/comes", "comes too");
    let expected = ["A dir/comes", "D dir/goes", "D dir/sub", "D dir/sub/deep"];
    assert_eq!(levels.changes(&["low"], &["top", "low"]), expected);
}

#[test]
fn what_both_lie_on_is_not_read() {
    let levels = Levels::new();
    levels.file("low/dir/a", "a");
    make_deep(&levels.directory("low/large"), 2100);
    levels.file("top/dir/new", "new");
    let (from, to) = (levels.view(&["low"]), levels.view(&["top", "low"]));
    let found = diff(&DiffSpec { from: &from, to: &to, under: &[] }).unwrap();
    // Whoever went down there would have found it too deep.
    assert_eq!(found.too_deep, 0);
    assert_eq!(found.changes.iter().map(tell).collect::<Vec<_>>(), ["A dir/new"]);
    let nothing = levels.view(&["empty"]);
    assert_eq!(diff(&DiffSpec { from: &from, to: &nothing, under: &[] }).unwrap().too_deep, 1);
}

#[test]
fn any_depth_can_be_looked_at() {
    const DEPTH: usize = 10_000;
    let levels = Levels::new();
    make_deep(&levels.directory("top"), DEPTH);
    let view = levels.view(&["top", "low"]);
    let deep: PathBuf = std::iter::repeat_n("d", DEPTH).collect();
    assert!(view.entry(&deep).unwrap().is_some());
    assert!(view.entry(&deep.join("more")).unwrap().is_none());
    let (from, to) = (levels.view(&["low"]), &view);
    let found = diff(&DiffSpec { from: &from, to, under: &[] }).unwrap();
    assert_eq!(found.too_deep, 1);
    assert!(found.changes.len() > 1000, "{}", found.changes.len());
}

fn make_deep(root: &Path, depth: usize) {
    let flags = rustix::fs::OFlags::DIRECTORY;
    let mut at = rustix::fs::open(root, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, "d", flags, Mode::empty()).unwrap();
    }
}
