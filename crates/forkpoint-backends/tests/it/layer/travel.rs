//! Trees that go elsewhere and come from there: the same on both sides, and nothing of a stranger's leads outside.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs, io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _, symlink},
    },
    path::Path,
};

use bytes::Bytes;
use forkpoint_backends::layer::{
    Departure, Layer, LayerError, LayerName, LayerResult, LayerStore, Marks,
};
use forkpoint_core::{
    Timestamp,
    part::{EntryMeta, Extent, TreeEntry, TreeNode},
    path::SandboxPath,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use proptest::{collection::vec, prelude::*};

use super::{Scene, is_root, mount, name, needs_root, view};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap()
}

/// What is said of a chain, all of it.
pub(super) fn leave(layers: &[Layer]) -> Vec<TreeEntry> {
    let departure = Departure::new(layers).unwrap();
    runtime().block_on(async { departure.stream().try_collect().await.unwrap() })
}

pub(super) fn arrive(
    store: &LayerStore,
    name: LayerName,
    entries: impl IntoIterator<Item = TreeEntry>,
) -> LayerResult<Layer> {
    let mut stage = store.stage(name, None)?;
    let mut arrival = stage.arrive()?;
    let runtime = runtime();
    for entry in entries {
        arrival.add(entry, &mut |data| runtime.block_on(data.try_next()))?;
    }
    stage.set_size(arrival.finish()?);
    stage.commit(false)
}

fn path(text: impl AsRef<OsStr>) -> SandboxPath {
    SandboxPath::new(Path::new(text.as_ref())).unwrap()
}

fn meta() -> EntryMeta {
    let (modified, xattrs) = (Timestamp::new(1_000, 5).unwrap(), BTreeMap::new());
    EntryMeta { mode: 0o644, uid: 0, gid: 0, modified, xattrs }
}

fn entry(at: &str, node: TreeNode) -> TreeEntry {
    entry_at(path(at), node)
}

/// Whoever is not root can go into a directory.
fn entry_at(path: SandboxPath, node: TreeNode) -> TreeEntry {
    let mode = if matches!(node, TreeNode::Directory { .. }) { 0o755 } else { 0o644 };
    TreeEntry { path, meta: EntryMeta { mode, ..meta() }, node }
}

/// With its end.
fn file(len_bytes: u64, extents: &[(u64, &str)]) -> TreeNode {
    let end = [(len_bytes, "")];
    let is_ended = extents.iter().any(|(offset, text)| {
        offset.checked_add(text.len() as u64).is_none_or(|end| end >= len_bytes)
    });
    let extents = [extents, if is_ended { &[] } else { &end }].concat();
    data_of(len_bytes, &extents)
}

fn data_of(len_bytes: u64, extents: &[(u64, &str)]) -> TreeNode {
    let extent = |(offset, text): &(u64, &str)| {
        Ok(Extent { offset: *offset, bytes: Bytes::from((*text).to_owned()) })
    };
    let data = stream::iter(extents.iter().map(extent).collect::<Vec<_>>()).boxed();
    TreeNode::File { len_bytes, data }
}

fn dir() -> TreeNode {
    TreeNode::Directory { opaque: false }
}

fn link(to: &str) -> TreeNode {
    TreeNode::HardLink { to: path(to) }
}

fn leads(to: &str) -> TreeNode {
    TreeNode::Symlink { target: to.into() }
}

#[test]
fn what_a_stranger_sends_is_refused_by_name_and_leaves_nothing() {
    let scene = Scene::new();
    let outside = scene.path("outside");
    fs::create_dir(&outside).unwrap();
    let out = outside.to_str().unwrap();
    let long = format!("/{}", "x".repeat(256));
    let odd = |change: &dyn Fn(&mut EntryMeta)| {
        let mut odd = entry("/a", file(0, &[]));
        change(&mut odd.meta);
        vec![odd]
    };
    let with = |name: &'static str| {
        move |meta: &mut EntryMeta| {
            meta.xattrs.insert(name.into(), Bytes::from_static(b"y"));
        }
    };
    let cases: Vec<(&str, Vec<TreeEntry>)> = vec![
        ("on the way", vec![entry("/a", leads(out)), entry("/a/b", file(0, &[]))]),
        ("on the way", vec![entry("/a", leads("/")), entry("/a/b/c", dir())]),
        ("on the way", vec![entry("/a", leads(".")), entry("/a/b", TreeNode::Whiteout)]),
        ("on the way", vec![entry("/a", file(0, &[])), entry("/a/b", file(0, &[]))]),
        ("on the way", vec![entry("/a", TreeNode::Whiteout), entry("/a/b", file(0, &[]))]),
        ("came before", vec![entry("/a", file(0, &[])), entry("/a", file(0, &[]))]),
        ("came before", vec![entry("/a", dir()), entry("/a", dir())]),
        ("came before", vec![entry("/a", leads("b")), entry("/a", file(0, &[]))]),
        ("came before", vec![entry("/a", dir()), entry("/a", TreeNode::Whiteout)]),
        ("came before", vec![entry("/a", TreeNode::Whiteout), entry("/a", TreeNode::Whiteout)]),
        ("came before", vec![entry("/a", TreeNode::Whiteout), entry("/a", file(0, &[]))]),
        ("came before", vec![entry("/a", file(0, &[])), entry("/a", link("/a"))]),
        ("came before", vec![entry("/", dir()), entry("/", dir())]),
        ("comes after", vec![entry("/a/b", file(0, &[])), entry("/a", dir())]),
        ("did not come", vec![entry("/a", link("/b"))]),
        ("did not come", vec![entry("/a", link("/a"))]),
        ("did not come", vec![entry("/a", link("/b/c"))]),
        ("did not come", vec![entry("/a", link("/"))]),
        ("on the way", vec![entry("/l", leads(out)), entry("/a", link("/l/secret"))]),
        ("no file", vec![entry("/d", dir()), entry("/a", link("/d"))]),
        ("no file", vec![entry("/w", TreeNode::Whiteout), entry("/a", link("/w"))]),
        ("out of order", vec![entry("/a", file(9, &[(4, "data"), (0, "late")]))]),
        ("out of order", vec![entry("/a", file(9, &[(0, "data"), (3, "over")]))]),
        ("beyond its end", vec![entry("/a", file(3, &[(0, "data")]))]),
        ("beyond its end", vec![entry("/a", file(3, &[(u64::MAX, "data")]))]),
        ("cut after 0 of 1 bytes", vec![entry("/a", data_of(1, &[]))]),
        ("cut after 4 of 9 bytes", vec![entry("/a", data_of(9, &[(0, "data")]))]),
        ("cut after 8 of 9 bytes", vec![entry("/a", data_of(9, &[(0, "data"), (8, "")]))]),
        ("255 bytes", vec![entry(&long, file(0, &[]))]),
        ("255 bytes", vec![entry(&format!("{long}/a"), file(0, &[]))]),
        ("hides all", vec![entry("/", TreeNode::Directory { opaque: true })]),
        ("no directory", vec![entry("/", file(0, &[]))]),
        ("no directory", vec![entry("/", TreeNode::Whiteout)]),
        ("no name", vec![entry("/a", leads(""))]),
        ("no name", vec![entry("/a", leads("a\0b"))]),
        ("is gone", vec![entry("/a", TreeNode::Device { block: false, major: 0, minor: 0 })]),
        ("its mode", odd(&|meta| meta.mode = 0o100_644)),
        ("its owner", odd(&|meta| meta.uid = u32::MAX)),
        ("its owner", odd(&|meta| meta.gid = u32::MAX)),
        ("none that can be", odd(&with("nowhere.x"))),
        ("NUL", odd(&with("user.a\0b"))),
    ];
    for (number, (why, entries)) in cases.into_iter().enumerate() {
        let what = format!("{number}: {entries:?}");
        match arrive(&scene.store, name(1), entries) {
            Err(err @ LayerError::Refused { .. }) => {
                assert!(err.to_string().contains(why), "{what}: {err}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    assert_eq!(super::entries(&outside), [] as [String; 0]);
    assert_eq!(scene.store.list().unwrap(), []);
    scene.assert_clean();
}

#[test]
fn no_attribute_that_comes_is_a_mark_of_overlayfs() {
    let scene = Scene::new();
    let prefix = match scene.store.marks() {
        Marks::Trusted => "trusted.overlay.",
        Marks::User | Marks::Plain => "user.overlay.",
    };
    let mut directory = entry("/d", dir());
    for name in ["opaque", "redirect", "origin"] {
        directory.meta.xattrs.insert(format!("{prefix}{name}").into(), Bytes::from_static(b"y"));
    }
    let wanted = directory.meta.xattrs.clone();
    let came = arrive(&scene.store, name(1), [entry("/", dir()), directory]).unwrap();
    let mut list = vec![0; 4096];
    let len = rustix::fs::llistxattr(came.tree_path().join("d"), &mut list).unwrap();
    let names: Vec<_> =
        list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    assert_eq!(names.len(), 3);
    let inner = format!("{prefix}overlay.");
    assert!(names.iter().all(|name| name.starts_with(inner.as_bytes())), "{names:?}");
    let back = leave(&[came]);
    assert_eq!(back[1].meta.xattrs, wanted, "and inside they are what they were");
}

#[test]
fn a_stream_that_fails_on_the_way_leaves_nothing() {
    let scene = Scene::new();
    let broken = stream::iter([
        Ok(Extent { offset: 0, bytes: Bytes::from_static(b"half") }),
        Err(io::Error::other("the line is cut")),
    ]);
    let node = TreeNode::File { len_bytes: 1000, data: broken.boxed() };
    let entries = [entry("/", dir()), entry("/whole", file(4, &[(0, "good")])), entry("/a", node)];
    match arrive(&scene.store, name(1), entries) {
        Err(LayerError::Io { operation: "receive", path, source }) => {
            assert_eq!(
                (path.as_path(), source.to_string().as_str()),
                (Path::new("/a"), "the line is cut")
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(scene.store.list().unwrap(), []);
    scene.assert_clean();
}

#[test]
fn a_tree_that_finds_no_room_leaves_nothing() {
    if needs_root("a small file system must be mounted") {
        return;
    }
    let disk = mount::tmpfs("4m");
    let store = LayerStore::open(&disk.path().join("store")).unwrap();
    let free = || rustix::fs::statvfs(disk.path().join("store")).unwrap().f_bfree;
    let before = free();
    let text = "x".repeat(1 << 20);
    let data = |at: u64| Ok(Extent { offset: at << 20, bytes: Bytes::from(text.clone()) });
    let node = TreeNode::File {
        len_bytes: 9 << 20,
        data: stream::iter((0..9).map(data).collect::<Vec<_>>()).boxed(),
    };
    let err = arrive(&store, name(1), [entry("/a", node)]).unwrap_err();
    let LayerError::Io { operation: "write", source, .. } = &err else { panic!("{err:?}") };
    assert_eq!(source.kind(), io::ErrorKind::StorageFull);
    assert_eq!(store.list().unwrap(), []);
    assert!(store.reap().unwrap().leftovers.is_empty());
    assert_eq!(free(), before);
}

#[test]
fn more_files_than_there_can_be_leave_nothing() {
    if needs_root("a small file system must be mounted") {
        return;
    }
    let disk = mount::tmpfs_of("500");
    let store = LayerStore::open(&disk.path().join("store")).unwrap();
    let free = || rustix::fs::statvfs(disk.path().join("store")).unwrap().f_ffree;
    let before = free();
    let many = (0..1_000_000).map(|number| entry(&format!("/{number}"), file(0, &[])));
    let err = arrive(&store, name(1), many).unwrap_err();
    let LayerError::Io { operation: "create", source, .. } = &err else { panic!("{err:?}") };
    assert_eq!(source.kind(), io::ErrorKind::StorageFull);
    assert_eq!(store.list().unwrap(), []);
    assert!(store.reap().unwrap().leftovers.is_empty());
    assert_eq!(free(), before);
}

/// Of a default access list, everything that is made below a directory inherits.
#[test]
fn what_a_directory_gives_its_children_is_not_given_to_those_that_come() {
    let scene = Scene::new();
    let upper = scene.upper();
    fs::create_dir(upper.join("d")).unwrap();
    fs::write(upper.join("d/before"), "x").unwrap();
    let list: Vec<u8> = [&2u32.to_le_bytes()[..]]
        .into_iter()
        .map(<[u8]>::to_vec)
        .chain([(1u16, 7u16, !0u32), (2, 5, 1000), (4, 4, !0), (0x10, 5, !0), (0x20, 0, !0)].map(
            |(tag, perm, id)| {
                [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
            },
        ))
        .flatten()
        .collect();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(upper.join("d"), "system.posix_acl_default", &list, flags).unwrap();
    let mut scene = scene;
    scene.capture();
    let came = arrive(&scene.store, name(9), leave(&scene.chain())).unwrap();
    view::assert_same(&view::read(&upper, ""), &view::read(&came.tree_path(), ""), "came");
}

#[test]
fn a_tree_of_another_driver_may_leave_out_directories() {
    let scene = Scene::new();
    let came = arrive(&scene.store, name(1), [entry("/a/b/c", file(4, &[(0, "text")]))]).unwrap();
    assert_eq!(fs::read(came.tree_path().join("a/b/c")).unwrap(), b"text");
    for at in ["", "a", "a/b"] {
        let meta = fs::metadata(came.tree_path().join(at)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o7777, 0o755, "{at:?}");
    }
}

/// More than one chunk, holes at both ends, a time before 1970, and a path that no part can hold.
#[test]
fn large_and_odd_files_travel_and_what_cannot_is_told() {
    use std::os::unix::fs::FileExt as _;
    let mut scene = Scene::new();
    let large = fs::File::create(scene.upper().join("large")).unwrap();
    large.set_len(40 << 20).unwrap();
    let text: Vec<u8> = (0..3_000_001u32).map(|number| (number % 251) as u8).collect();
    large.write_all_at(&text, 5 << 20).unwrap();
    large.write_all_at(b"end", 30 << 20).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH - std::time::Duration::from_nanos(1_500_000_001);
    large.set_modified(old).unwrap();
    scene.capture();
    let came = arrive(&scene.store, name(9), leave(&scene.chain())).unwrap();
    view::assert_same(&view::read(&scene.upper(), ""), &view::read(&came.tree_path(), ""), "came");
    let meta = fs::metadata(came.tree_path().join("large")).unwrap();
    assert!(meta.blocks() * 512 < 8 << 20, "the holes are holes: {}", meta.blocks());
    assert_eq!(meta.modified().unwrap(), old);
    assert_eq!(came.record().size.unwrap().files, 1);
    assert!(came.record().size.unwrap().bytes >= 3_000_001);

    let mut deep = scene.upper();
    for _ in 0..15 {
        deep.push("d".repeat(255));
        fs::create_dir(&deep).unwrap();
    }
    fs::rename(scene.upper().join("d".repeat(255)), scene.path("aside")).unwrap();
    let mut way = scene.upper();
    for _ in 0..6 {
        way.push("e".repeat(255));
        fs::create_dir(&way).unwrap();
    }
    fs::rename(scene.path("aside"), way.join("d".repeat(255))).unwrap();
    scene.capture();
    let departure = Departure::new(&scene.chain()).unwrap();
    let err = runtime().block_on(async {
        departure.stream().try_for_each(|_| async { Ok(()) }).await.unwrap_err()
    });
    assert!(err.to_string().contains("4096 bytes"), "{err}");
    // What is too deep for a path is too deep for whoever removes it by one.
    fs::rename(way.join("d".repeat(255)), scene.upper().join("d")).unwrap();
}

/// An entry of somebody who makes it up: where, what, where to, how long, and data.
type Made = (Vec<usize>, u8, Vec<usize>, u64, Vec<(u64, Vec<u8>)>);

fn stranger() -> impl Strategy<Value = Vec<Made>> {
    let at = || vec(0usize..4, 0..4);
    let data = vec((0u64..60, vec(any::<u8>(), 0..9)), 0..3);
    vec((at(), 0u8..10, at(), 0u64..50, data), 0..12)
}

fn at(names: &[usize]) -> SandboxPath {
    let name = |index: &usize| OsStr::from_bytes([&b"a"[..], b"b", b"\xff", b"..."][*index]);
    path(names.iter().fold(Path::new("/").to_owned(), |path, index| path.join(name(index))))
}

/// In words, with what is in files.
fn shown(entries: Vec<TreeEntry>) -> Vec<String> {
    let show = |entry: TreeEntry| {
        let TreeEntry { path, meta, node } = entry;
        let mut text = format!("{path:?} {node:?} {:o} {:?}", meta.mode, meta.modified);
        if let TreeNode::File { len_bytes, data } = node {
            let mut content = vec![0; usize::try_from(len_bytes).unwrap()];
            for extent in runtime().block_on(async { data.try_collect::<Vec<_>>().await.unwrap() })
            {
                let start = usize::try_from(extent.offset).unwrap();
                content[start..start + extent.bytes.len()].copy_from_slice(&extent.bytes);
            }
            text += &format!("{content:?}");
        }
        text
    };
    entries.into_iter().map(show).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is taken comes out again as it came in, and whatever is not leaves nothing anywhere.
    #[test]
    fn whatever_comes_is_kept_or_refused(entries in stranger()) {
        let scene = Scene::new();
        let outside = scene.path("outside");
        fs::create_dir(&outside).unwrap();
        symlink(&outside, scene.path("way-out")).unwrap();
        let mut sent = vec![entry("/", dir())];
        for (place, kind, other, len_bytes, data) in entries {
            let end = (kind == 2).then(|| (len_bytes, Vec::new()));
            let data: Vec<_> = data.into_iter().chain(end).map(|(offset, bytes)| Ok(Extent { offset, bytes: bytes.into() })).collect();
            let node = match kind {
                0 | 1 => TreeNode::Directory { opaque: kind == 1 },
                2 | 3 => TreeNode::File { len_bytes, data: stream::iter(data).boxed() },
                4 => TreeNode::HardLink { to: at(&other) },
                5 => TreeNode::Symlink { target: if len_bytes % 2 == 0 { outside.clone() } else { at(&other).as_path().to_owned() } },
                6 => TreeNode::Fifo,
                7 => TreeNode::Socket,
                8 => TreeNode::Device { block: len_bytes % 2 == 0, major: 1, minor: 7 },
                _ => TreeNode::Whiteout,
            };
            sent.push(entry_at(at(&place), node));
        }
        match arrive(&scene.store, name(1), sent) {
            Ok(layer) => {
                let first = leave(std::slice::from_ref(&layer));
                let again = arrive(&scene.store, name(2), first).unwrap();
                prop_assert_eq!(shown(leave(&[layer])), shown(leave(&[again])));
            }
            Err(LayerError::Refused { .. }) => {
                prop_assert_eq!(scene.store.list().unwrap(), []);
            }
            Err(other) => panic!("{other:?}"),
        }
        prop_assert_eq!(super::entries(&outside), [] as [String; 0]);
        scene.assert_clean();
    }
}

/// Without root, one who is not root may keep no device and no owner.
#[test]
fn owners_are_those_that_the_sandbox_shows() {
    let mut scene = Scene::new();
    fs::write(scene.upper().join("a"), "a").unwrap();
    scene.capture();
    let left = leave(&scene.chain());
    let told = &left.iter().find(|entry| entry.path == path("/a")).unwrap().meta;
    assert_eq!((told.uid, told.gid), (0, 0));
    let mut foreign = entry("/b", file(0, &[]));
    (foreign.meta.uid, foreign.meta.gid) = (1234, 1235);
    let came = arrive(&scene.store, name(9), [foreign]).unwrap();
    let owner = fs::metadata(came.tree_path().join("b")).unwrap();
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    assert_eq!((owner.uid(), owner.gid()), if is_root() { (1234, 1235) } else { own });
    let device = entry("/dev", TreeNode::Device { block: true, major: 7, minor: 0 });
    let made = arrive(&scene.store, name(10), [device]);
    assert_eq!(made.is_ok(), is_root(), "{made:?}");
}
