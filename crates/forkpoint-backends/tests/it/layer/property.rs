//! Random trees and random changes: after every capture the layers show what the sandbox shows.

use std::{
    ffi::OsStr,
    fs::{self, File, Permissions},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileExt as _, PermissionsExt as _, chown, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use forkpoint_backends::layer::{Below, Layer, LayerName, Marks};
use forkpoint_core::id::SnapshotId;
use proptest::{collection::vec, prelude::*};
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, mknodat, utimensat};

use super::{Scene, is_root, looks::against, merge, mount, settle, travel, view};

/// Few enough that changes meet.
const NAMES: [&[u8]; 7] = [b"a", b"b", b"c", b"dir", b"\xff\xfe odd\n", b"...", b"x y"];

#[derive(Clone, Debug)]
pub(crate) enum Change {
    Write(Vec<u8>, u16),
    Sparse(u8),
    Append(u8),
    MakeDir,
    Remove,
    Replace,
    Rename(Vec<usize>),
    Link(Vec<usize>),
    Symlink(u8),
    Fifo,
    Socket,
    Device,
    Mode(u32),
    Owner(u32, u32),
    Time(u32, u32),
    Attribute(u8, Vec<u8>),
    Capability,
    AccessList,
    Swap(Vec<usize>),
    LinkedDir(Vec<usize>),
}

pub(crate) type Step = (Vec<usize>, Change);

fn path() -> impl Strategy<Value = Vec<usize>> {
    vec(0..NAMES.len(), 1..4)
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (vec(any::<u8>(), 0..40), any::<u16>()).prop_map(|(bytes, times)| Change::Write(bytes, times)),
        1 => any::<u8>().prop_map(Change::Sparse),
        2 => any::<u8>().prop_map(Change::Append),
        5 => Just(Change::MakeDir),
        4 => Just(Change::Remove),
        2 => Just(Change::Replace),
        4 => path().prop_map(Change::Rename),
        3 => path().prop_map(Change::Link),
        1 => any::<u8>().prop_map(Change::Symlink),
        1 => Just(Change::Fifo),
        1 => Just(Change::Socket),
        1 => Just(Change::Device),
        2 => (0u32..0o10000).prop_map(Change::Mode),
        1 => (0u32..3, 0u32..3).prop_map(|(uid, gid)| Change::Owner(uid, gid)),
        1 => any::<(u32, u32)>().prop_map(|(s, ns)| Change::Time(s, ns % 1_000_000_000)),
        1 => (any::<u8>(), vec(any::<u8>(), 0..20)).prop_map(|(n, v)| Change::Attribute(n, v)),
        1 => Just(Change::Capability),
        1 => Just(Change::AccessList),
        2 => path().prop_map(Change::Swap),
        3 => path().prop_map(Change::LinkedDir),
    ]
}

pub(crate) fn steps(max: usize) -> impl Strategy<Value = Vec<Step>> {
    vec((path(), change()), 0..max)
}

fn join(root: &Path, names: &[usize]) -> PathBuf {
    names.iter().fold(root.to_owned(), |path, name| path.join(OsStr::from_bytes(NAMES[*name])))
}

/// What cannot be done to the tree as it is changes nothing. No link is gone through: it may lead to the
/// host's root.
pub(crate) fn apply(root: &Path, (names, change): &Step) -> Option<()> {
    if leads_elsewhere(root, names) || change.other().is_some_and(|to| leads_elsewhere(root, to)) {
        return None;
    }
    let path = &join(root, names);
    match change {
        Change::Write(bytes, times) => {
            fs::write(regular(path)?, bytes.repeat(usize::from(*times % 5000))).ok()?;
        }
        Change::Sparse(at) => {
            let file = File::create(regular(path)?).ok()?;
            file.write_all_at(b"data", u64::from(*at) << 14).ok()?;
            file.set_len((u64::from(*at) << 14) + 200_000).ok()?;
        }
        Change::Append(byte) => {
            let file = File::options().append(true).open(regular(path)?).ok()?;
            std::io::Write::write_all(&mut &file, &[*byte]).ok()?;
        }
        Change::MakeDir => fs::create_dir(path).ok()?,
        Change::Remove => remove(path)?,
        Change::Replace => {
            remove(path)?;
            fs::create_dir(path).ok()?;
            fs::write(path.join("new"), "new").ok()?;
        }
        Change::Rename(to) => fs::rename(path, join(root, to)).ok()?,
        Change::Link(to) => fs::hard_link(path, join(root, to)).ok()?,
        Change::LinkedDir(other) => {
            fs::create_dir(path).ok()?;
            fs::write(path.join("a"), "linked").ok()?;
            fs::hard_link(path.join("a"), join(root, other)).ok()?;
        }
        Change::Swap(with) => {
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(CWD, path, CWD, join(root, with), flags).ok()?;
        }
        _ => make_or_mark(path, change)?,
    }
    Some(())
}

fn leads_elsewhere(root: &Path, names: &[usize]) -> bool {
    (1..names.len()).any(|depth| join(root, &names[..depth]).is_symlink())
}

impl Change {
    /// The other path that it concerns.
    fn other(&self) -> Option<&[usize]> {
        match self {
            Self::Rename(to) | Self::Link(to) | Self::Swap(to) | Self::LinkedDir(to) => Some(to),
            _ => None,
        }
    }
}

fn regular(path: &Path) -> Option<&Path> {
    let there = fs::symlink_metadata(path);
    there.map_or(true, |meta| meta.is_file()).then_some(path)
}

fn remove(path: &Path) -> Option<()> {
    let meta = fs::symlink_metadata(path).ok()?;
    if meta.is_dir() { fs::remove_dir_all(path).ok() } else { fs::remove_file(path).ok() }
}

fn make_or_mark(path: &Path, change: &Change) -> Option<()> {
    let node = |kind, dev| mknodat(CWD, path, kind, Mode::RUSR | Mode::WGRP, dev).ok();
    let set = |name: &str, value: &[u8]| {
        rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).ok()
    };
    let meta = fs::symlink_metadata(path).ok();
    let is_symlink = meta.as_ref().is_some_and(fs::Metadata::is_symlink);
    match change {
        Change::Symlink(to) => {
            symlink(format!("/{}", "../x".repeat(usize::from(*to))), path).ok()?;
        }
        Change::Fifo => node(FileType::Fifo, 0)?,
        Change::Socket => drop(UnixListener::bind(path).ok()?),
        Change::Device if is_root() => node(FileType::CharacterDevice, rustix::fs::makedev(1, 7))?,
        Change::Mode(mode) if !is_symlink => {
            // Without root we must be able to go on.
            let mode = if is_root() { *mode } else { *mode | 0o700 };
            fs::set_permissions(path, Permissions::from_mode(mode)).ok()?;
        }
        Change::Owner(uid, gid) if is_root() && !is_symlink => {
            chown(path, Some(*uid), Some(*gid)).ok()?;
        }
        Change::Time(tv_sec, tv_nsec) => {
            let time = Timespec { tv_sec: i64::from(*tv_sec), tv_nsec: i64::from(*tv_nsec) };
            let times = Timestamps { last_access: time, last_modification: time };
            utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok()?;
        }
        Change::Attribute(name, value) if is_root() && name % 2 == 0 => set("trusted.test", value)?,
        Change::Attribute(name, value) => set(&format!("user.test{}", name % 4), value)?,
        Change::Capability if is_root() && regular(path).is_some() => {
            set("security.capability", &CAPABILITY)?;
        }
        Change::AccessList if !is_symlink => set("system.posix_acl_access", &access_list())?,
        _ => {}
    }
    Some(())
}

/// Version 2, `cap_net_raw` permitted.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn access_list() -> Vec<u8> {
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let entries = [(1, 7, !0), (2, 5, 1000), (4, 4, !0), (0x10, 5, !0), (0x20, 0, !0)];
    let entries = entries.map(|(tag, perm, id)| entry(tag, perm, id)).concat();
    [&2u32.to_le_bytes()[..], &entries].concat()
}

/// A sandbox as the property sees it: with root an overlay over a base, else a bare directory.
struct Live {
    scene: Scene,
    base: PathBuf,
    mounted: Option<mount::Mounted>,
}

impl Live {
    fn new(first: &[Step], pack: bool) -> Self {
        let scene = if pack { Scene::packing() } else { Scene::new() };
        let base = scene.path("base");
        fs::create_dir(&base).unwrap();
        if !is_root() {
            return Self { scene, base, mounted: None };
        }
        for step in first {
            apply(&base, step);
        }
        fs::create_dir(scene.path("work")).unwrap();
        let lowers = std::slice::from_ref(&base);
        let mounted = mount::writable(lowers, &scene.upper(), &scene.path("work"));
        Self { scene, base, mounted: Some(mounted) }
    }

    fn root(&self) -> PathBuf {
        self.mounted.as_ref().map_or_else(|| self.scene.upper(), mount::Mounted::path)
    }

    fn marks(&self) -> &'static str {
        match self.scene.store.marks() {
            Marks::Trusted => "trusted.overlay.",
            Marks::User | Marks::Plain => "user.overlay.",
        }
    }

    fn assert_shown_by(&self, layers: &[Layer], with_base: bool, what: &str) {
        let live = view::read(&self.root(), "");
        let mut lowers: Vec<_> = layers.iter().map(Layer::tree_path).collect();
        if with_base {
            lowers.push(self.base.clone());
        }
        view::assert_same(&live, &merge::merge(&lowers, self.marks()), &format!("{what}, merged"));
        if is_root() {
            let mounted = mount::read_only(&lowers);
            view::assert_same(&live, &view::read(&mounted.path(), ""), &format!("{what}, mounted"));
        }
    }

    fn assert_flattens(&self, chain: &[Layer], from: usize, to: usize, tag: &str) {
        let snapshot = SnapshotId::from_u128(99);
        let whole = to == chain.len();
        let over = chain.get(to).map(|layer| layer.name().clone());
        let mut stage =
            self.scene.store.stage(LayerName::tagged(snapshot, tag).unwrap(), over).unwrap();
        stage.flatten(&chain[from..to], Below::Something).unwrap();
        let flat = stage.commit(false).unwrap();
        let mut layers = chain[..from].to_vec();
        layers.push(flat);
        layers.extend_from_slice(&chain[to..]);
        self.assert_shown_by(&layers, true, &format!("flattened {from}..{to} {whole}"));
    }
}

/// So many that several threads copy from then on: it comes first.
fn fill(directory: &Path) {
    fs::create_dir(directory).unwrap();
    for number in 0..80 {
        fs::write(directory.join(number.to_string()), "small").unwrap();
    }
}

fn captures_show_what_the_sandbox_shows(
    first: &[Step],
    rounds: &[Vec<Step>],
    cut: usize,
    pack: bool,
) {
    let mut live = Live::new(first, pack);
    if pack {
        fill(&live.root().join("!"));
    }
    let mut states = vec![against::State::captured(&live.scene, &live.base, &live.base)];
    for (number, round) in rounds.iter().enumerate() {
        for step in round {
            apply(&live.root(), step);
        }
        if number % 3 != 1 {
            settle();
        }
        let captured = live.scene.capture();
        assert!(number > 0 || captured.is_packed() == live.scene.pack);
        live.assert_shown_by(&live.scene.chain(), true, &format!("capture {number}"));
        states.push(against::State::captured(&live.scene, &live.base, &live.root()));
    }
    states.push(against::State::live(&live.scene, &live.base, &live.root()));
    against::assert_differences(&states);
    let chain = live.scene.chain();
    let name = LayerName::tagged(SnapshotId::from_u128(99), "came").unwrap();
    let came = travel::arrive(&live.scene.store, name, travel::leave(&chain)).unwrap();
    live.assert_shown_by(&[came], true, "came");
    live.assert_flattens(&chain, 0, chain.len(), "all");
    let cut = cut % chain.len();
    live.assert_flattens(&chain, 0, cut.max(1), "upper");
    live.assert_flattens(&chain, cut, chain.len(), "lower");
    live.mounted = None;
    live.scene.assert_clean();
}

#[test]
fn no_change_goes_through_a_link() {
    let scene = Scene::new();
    let (root, outside) = (scene.path("root"), scene.path("outside"));
    for directory in [&root, &outside] {
        fs::create_dir(directory).unwrap();
    }
    fs::write(outside.join("b"), "b").unwrap();
    fs::write(root.join("c"), "c").unwrap();
    symlink(&outside, root.join("a")).unwrap();
    let before = view::read(&outside, "");
    let changes = [
        (vec![0, 1], Change::Write(vec![1], 1)),
        (vec![0, 1], Change::Append(1)),
        (vec![0, 2], Change::MakeDir),
        (vec![0, 1], Change::Mode(0o600)),
        (vec![0, 1, 2], Change::MakeDir),
        (vec![2], Change::Rename(vec![0, 2])),
        (vec![2], Change::Link(vec![0, 2])),
        (vec![2], Change::Swap(vec![0, 1])),
        (vec![3], Change::LinkedDir(vec![0, 2])),
        (vec![0, 1], Change::Remove),
    ];
    for step in changes {
        assert_eq!(apply(&root, &step), None, "{step:?}");
    }
    view::assert_same(&before, &view::read(&outside, ""), "outside");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn layers_show_what_the_sandbox_shows(
        first in steps(30),
        rounds in vec(steps(25), 1..6),
        cut in 0usize..6,
    ) {
        captures_show_what_the_sandbox_shows(&first, &rounds, cut, false);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 25, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn layers_whose_small_files_are_made_later_show_it_too(
        first in steps(30),
        rounds in vec(steps(25), 1..4),
        cut in 0usize..6,
    ) {
        captures_show_what_the_sandbox_shows(&first, &rounds, cut, true);
    }
}
