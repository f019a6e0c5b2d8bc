//! Images on disk: round trips, chains, and what damage does to them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::sys::PAGE;

fn alive(pid: i32, stored: Vec<Stored>) -> Alive {
    let start = 0x40_0000;
    let pages = vec![(start, start + 2 * PAGE), (start + 4 * PAGE, start + 5 * PAGE)];
    let thread = Thread {
        tid: pid,
        name: "sleep".to_owned(),
        registers: Registers::default(),
        extended: Bytes(vec![7; 576]),
        mask: 1 << 9,
        signal_stack: [0, 2, 0],
        clear_tid: 0x1000,
        robust_list: (0x2000, 24),
        rseq: Some((0x3000, 32, 9)),
        pending: vec![Bytes([10].into_iter().chain([0; 127]).collect())],
        credentials: Credentials {
            uids: [0, 1, 2, 3],
            gids: [4; 4],
            groups: vec![20],
            inheritable: 0,
            permitted: 1,
            effective: 1,
            bounding: 3,
            ambient: 0,
            securebits: 0,
            no_new_privs: true,
        },
        death_signal: 0,
        scheduling: [0, 0, 5],
        affinity: Bytes(vec![3]),
        timer_slack: 50_000,
        filters: vec![vec![6, 7]],
    };
    let kind = MappingKind::Anonymous { grows_down: false };
    Alive {
        threads: vec![thread],
        space: Space {
            fields: [0x40_0000; 11],
            auxv: Bytes(vec![0; 32]),
            exe: "/bin/sleep".to_owned(),
            vdso: Some(0x7fff_0000_0000),
        },
        mappings: vec![Mapping {
            start,
            end: start + 8 * PAGE,
            access: 3,
            kind,
            pages,
            stored,
            advice: Vec::new(),
            guards: Vec::new(),
            droppable: false,
        }],
        descriptors: vec![Descriptor { number: 0, file: 0, close_on_exec: false }],
        cwd: "/".to_owned(),
        umask: 0o22,
        limits: vec![(1, 2); 16],
        actions: vec![[0; 4]; 64],
        timers: vec![[0; 4]; 3],
        posix_timers: Vec::new(),
        pending: Vec::new(),
        terminal: None,
        job_stopped: false,
        subreaper: false,
        dumpable: 1,
        oom_score_adj: 0,
        locks: Vec::new(),
        known_at: None,
    }
}

fn mount() -> KeptMount {
    let entry = |path: &str, kind| KeptEntry {
        path: path.to_owned(),
        kind,
        mode: 0o644,
        uid: 0,
        gid: 5,
        times: [(1, 2), (3, 4)],
        attributes: vec![("user.a".to_owned(), Bytes(vec![1]))],
    };
    let stored = vec![Stored { start: 0, end: PAGE, at: 0 }];
    let entries = vec![
        entry("", EntryKind::Directory),
        entry("file", EntryKind::File { len_bytes: 5, stored }),
        entry("dir", EntryKind::Directory),
        entry("dir/same", EntryKind::Same { path: "file".to_owned() }),
        entry("link", EntryKind::Link { target: "/x".to_owned() }),
    ];
    KeptMount { path: "/dev/shm".to_owned(), entries }
}

fn segment() -> Segment {
    Segment {
        id: 3,
        key: 7,
        len_bytes: 9,
        mode: 0o600,
        owner: (0, 1),
        maker: (2, 3),
        doomed: true,
        stored: vec![Stored { start: 0, end: PAGE, at: 0 }],
    }
}

fn snapshot(stored: Vec<Stored>) -> Snapshot {
    let process = |pid, parent, life| Process {
        pid,
        parent,
        group: 2,
        session: 2,
        name: "sleep".to_owned(),
        life,
    };
    let path = FileKind::Path {
        path: "/dev/null".to_owned(),
        position: 0,
        directory: false,
        lock: Some(Lock::Shared),
    };
    Snapshot {
        machine: Machine {
            arch: "x86_64".to_owned(),
            kernel: "6.18".to_owned(),
            boot: "one".to_owned(),
            features: 7,
        },
        processes: vec![
            process(2, 1, Life::Alive(Box::new(alive(2, stored)))),
            process(3, 2, Life::Dead { status: 256 }),
        ],
        memories: Vec::new(),
        mounts: vec![mount()],
        segments: vec![segment()],
        files: vec![OpenFile { locks: Vec::new(), flags: 2, kind: path, identity: None }],
    }
}

const START: u64 = 0x40_0000;

fn all_stored() -> Vec<Stored> {
    vec![
        Stored { start: START, end: START + 2 * PAGE, at: 0 },
        Stored { start: START + 4 * PAGE, end: START + 5 * PAGE, at: 2 * PAGE },
    ]
}

fn page(byte: u8) -> Vec<u8> {
    vec![byte; PAGE as usize]
}

/// An image of three pages.
fn first(dir: &Path) -> (PathBuf, ImageId) {
    let path = dir.join("first");
    let blocks = [[page(1), page(2)].concat(), page(3)];
    let id = write(&path, None, &snapshot(all_stored()), &blocks, true).unwrap();
    (path, id)
}

#[test]
fn what_is_written_is_read() {
    let dir = TempDir::new().unwrap();
    let (path, id) = first(dir.path());
    let image = Image::open(&path).unwrap();
    image.check_pages().unwrap();
    assert_eq!((image.id, image.snapshot), (id, snapshot(all_stored())));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    let err = write(&path, None, &snapshot(all_stored()), &[], false).unwrap_err();
    assert!(err.to_string().contains("first"), "{err}");
}

#[test]
fn the_newest_page_counts() {
    let dir = TempDir::new().unwrap();
    let (below, id) = first(dir.path());
    let above = dir.path().join("second");
    let stored = vec![Stored { start: START + PAGE, end: START + 2 * PAGE, at: 0 }];
    write(&above, Some(id), &snapshot(stored), &[page(9)], false).unwrap();
    let chain = Chain::open([below.clone(), above.clone()]).unwrap();
    let mapping = &chain.top().snapshot.processes[0].alive().unwrap().mappings[0];
    let pieces: Vec<_> =
        chain.pieces(2, mapping).iter().map(|p| (p.start - START, p.image, p.at)).collect();
    assert_eq!(pieces, [(0, 0, 0), (PAGE, 1, 0), (4 * PAGE, 0, 2 * PAGE)]);
    // Alone, it is not whole; and it lies over that one only.
    let err = Chain::open([above.clone()]).unwrap_err();
    assert!(matches!(err, ImageError::OtherParent { .. }), "{err}");
    let err = Chain::open([below.clone(), below]).unwrap_err();
    assert!(matches!(err, ImageError::OtherParent { .. }), "{err}");
}

#[test]
fn pages_that_are_nowhere_are_noticed() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("image");
    let stored = vec![Stored { start: START, end: START + PAGE, at: 0 }];
    write(&path, None, &snapshot(stored), &[page(1)], false).unwrap();
    let err = Chain::open([path]).unwrap_err();
    assert!(err.to_string().contains("are in no image"), "{err}");
}

#[test]
fn another_format_is_refused_by_name() {
    let dir = TempDir::new().unwrap();
    let (path, _) = first(dir.path());
    let header = path.join("image.json");
    let text = fs::read_to_string(&header).unwrap();
    fs::write(&header, text.replacen("forkpoint-checkpoint 1 ", "forkpoint-checkpoint 2 ", 1))
        .unwrap();
    let err = Image::open(&path).unwrap_err();
    assert!(matches!(err, ImageError::Newer { format: 2, .. }), "{err}");
    fs::write(&header, "something else\n{}").unwrap();
    assert!(matches!(Image::open(&path).unwrap_err(), ImageError::Foreign { .. }));
    fs::remove_file(&header).unwrap();
    assert!(matches!(Image::open(&path).unwrap_err(), ImageError::File { .. }));
}

/// The image that the first version wrote.
#[test]
fn format_1_is_read() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/image-v1");
    let chain = Chain::open([path.into()]).unwrap();
    // It knew neither.
    let wanted = Snapshot { mounts: Vec::new(), segments: Vec::new(), ..snapshot(all_stored()) };
    assert_eq!(chain.top().snapshot, wanted);
}

/// Every byte, flipped; every length, cut.
#[test]
fn no_damage_goes_unnoticed() {
    let dir = TempDir::new().unwrap();
    let (path, _) = first(dir.path());
    for name in ["image.json", "pages"] {
        let file = path.join(name);
        let good = fs::read(&file).unwrap();
        let step = if name == "pages" { 61 } else { 1 };
        for at in (0..good.len()).step_by(step) {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&file, &bad).unwrap();
            let err = Chain::open([path.clone()]).expect_err("a flipped bit");
            assert!(err.to_string().contains(path.to_str().unwrap()), "{err}");
        }
        for len in (0..good.len()).step_by(7 * step) {
            fs::write(&file, &good[..len]).unwrap();
            let err = Chain::open([path.clone()]).expect_err("a cut file");
            assert!(err.to_string().contains(path.to_str().unwrap()), "{err}");
        }
        fs::write(&file, &good).unwrap();
    }
    Chain::open([path]).unwrap();
}

/// As somebody would write it who can also compute checksums.
fn forged(dir: &Path, body: &[u8]) -> Result<Chain, ImageError> {
    let path = dir.join("forged");
    let _ = fs::create_dir(&path);
    fs::write(path.join("pages"), [page(1), page(2), page(3)].concat()).unwrap();
    let mut text = format!("forkpoint-checkpoint 1 {}\n", blake3::hash(body)).into_bytes();
    text.extend(body);
    fs::write(path.join("image.json"), text).unwrap();
    Chain::open([path])
}

/// Worth to be remembered.
fn large(dir: &Path) -> PathBuf {
    let path = dir.join("large");
    let mut block = vec![1; 2 * PAGE as usize];
    block.resize(2 << 20, 7);
    write(&path, None, &snapshot(all_stored()), &[block], false).unwrap();
    path
}

fn flip(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt as _;
    let file = fs::File::options().write(true).open(path.join("pages")).unwrap();
    file.write_all_at(&[0xee], at).unwrap();
}

#[test]
fn pages_are_compared_once_and_again_when_they_change() {
    let dir = TempDir::new().unwrap();
    let path = large(dir.path());
    Chain::open([path.clone()]).unwrap();
    assert!(path.join("checked").exists(), "this file system does not tell every change");
    for at in [0, 5000, (2 << 20) - 1] {
        flip(&path, at);
        let err = Chain::open([path.clone()]).unwrap_err().to_string();
        assert!(err.contains("not what was written"), "{at}: {err}");
        fs::remove_dir_all(&path).unwrap();
        large(dir.path());
    }
    // Compared, remembered, and changed at once.
    fs::remove_file(path.join("checked")).unwrap();
    Chain::open([path.clone()]).unwrap();
    assert!(path.join("checked").exists());
    flip(&path, 77);
    Chain::open([path.clone()]).unwrap_err();
    // A file that only says what the right one would.
    let image = Image::open(&path).unwrap();
    let line = seen::line(image.id, &image.pages.metadata().unwrap()).unwrap();
    let forged = |text: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt as _;
        fs::write(path.join("checked"), text).unwrap();
        fs::set_permissions(path.join("checked"), fs::Permissions::from_mode(mode)).unwrap();
        Chain::open([path.clone()])
    };
    forged(&line, 0o600).expect("nothing is compared that is remembered");
    forged(&line, 0o666).unwrap_err();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let other = "00000000-0000-0000-0000-000000000000";
    forged(&line.replace(boot.trim(), other), 0o600).unwrap_err();
}

fn body(dir: &Path) -> serde_json::Value {
    let (path, _) = first(dir);
    let text = fs::read_to_string(path.join("image.json")).unwrap();
    serde_json::from_str(text.split_once('\n').unwrap().1).unwrap()
}

#[test]
fn a_header_is_read_again_when_it_changes() {
    let dir = TempDir::new().unwrap();
    let (path, _) = first(dir.path());
    let last = LastMachine::default();
    let wanted = machine(&path).unwrap();
    for _ in 0..2 {
        assert_eq!(last.of(&path).unwrap(), wanted);
    }
    let header = path.join(FILES[0]);
    let mut bytes = fs::read(&header).unwrap();
    bytes[200] ^= 1;
    fs::write(&header, bytes).unwrap();
    last.of(&path).unwrap_err();
    fs::remove_dir_all(&path).unwrap();
    last.of(&path).unwrap_err();
}

#[test]
fn what_cannot_be_true_is_refused() {
    let dir = TempDir::new().unwrap();
    let good = body(dir.path());
    forged(dir.path(), &serde_json::to_vec(&good).unwrap()).unwrap();
    let alive = "/snapshot/processes/0/life/alive";
    let mount = "/snapshot/mounts/0";
    let cases = [
        ("/snapshot/processes/0/pid".to_owned(), serde_json::json!(1), "no number"),
        ("/snapshot/processes/1/parent".to_owned(), serde_json::json!(9), "does not come before"),
        ("/snapshot/processes/1/pid".to_owned(), serde_json::json!(2), "twice"),
        (format!("{alive}/mappings/0/start"), serde_json::json!(0), "cannot be there"),
        (format!("{alive}/mappings/0/end"), serde_json::json!(u64::MAX - 4095), "cannot be there"),
        (format!("{alive}/mappings/0/end"), serde_json::json!(START + 1), "not on pages"),
        (
            format!("{alive}/mappings/0/stored/0/at"),
            serde_json::json!(u64::MAX - 4095),
            "not stored",
        ),
        (format!("{alive}/mappings/0/stored/1/at"), serde_json::json!(3 * PAGE), "not stored"),
        (
            format!("{alive}/mappings/0/pages/0/1"),
            serde_json::json!(START + 64 * PAGE),
            "out of order",
        ),
        (format!("{alive}/descriptors/0/file"), serde_json::json!(1), "no open file"),
        (format!("{alive}/descriptors/0/number"), serde_json::json!(-1), "no such descriptor"),
        (format!("{alive}/threads/0/tid"), serde_json::json!(5), "first thread is another"),
        (format!("{alive}/threads"), serde_json::json!([]), "first thread is another"),
        (format!("{alive}/threads/0/extended"), serde_json::json!("00"), "no such registers"),
        (format!("{alive}/threads/0/pending/0"), serde_json::json!("ff"), "a signal that is none"),
        (format!("{alive}/cwd"), serde_json::json!("../x"), "a path that is none"),
        (format!("{alive}/space/auxv"), serde_json::json!("0011"), "auxiliary vector"),
        (format!("{alive}/actions"), serde_json::json!([]), "each signal"),
        (format!("{mount}/path"), serde_json::json!("dev/shm"), "a path that is none"),
        (format!("{mount}/entries"), serde_json::json!([]), "no root"),
        (format!("{mount}/entries/0/path"), serde_json::json!("x"), "no root"),
        (format!("{mount}/entries/1/path"), serde_json::json!(".."), "no such name"),
        (format!("{mount}/entries/1/path"), serde_json::json!("/etc/passwd"), "in no directory"),
        (format!("{mount}/entries/1/path"), serde_json::json!("a/../b"), "in no directory"),
        (format!("{mount}/entries/1/path"), serde_json::json!("link"), "twice"),
        (format!("{mount}/entries/1/mode"), serde_json::json!(0o100_644), "no such mode"),
        (format!("{mount}/entries/1/kind/file/len_bytes"), serde_json::json!(0), "out of order"),
        (
            format!("{mount}/entries/1/kind/file/stored/0/at"),
            serde_json::json!(1_u64 << 40),
            "stored",
        ),
        (format!("{mount}/entries/1/kind"), serde_json::json!("directory"), "of nothing"),
        (format!("{mount}/entries/2/kind"), serde_json::json!("fifo"), "in no directory"),
        ("/snapshot/segments/0/len_bytes".to_owned(), serde_json::json!(0), "no such length"),
        ("/snapshot/segments/0/id".to_owned(), serde_json::json!(-1), "no such state"),
        (
            format!("{alive}/mappings/0/kind"),
            serde_json::json!({"segment": {"id": 3}}),
            "a segment is missing",
        ),
        ("/sums/0".to_owned(), serde_json::json!("00"), "not what was written"),
        ("/pages_len_bytes".to_owned(), serde_json::json!(2 * PAGE), "not stored"),
    ];
    for (at, value, why) in cases {
        let mut bad = good.clone();
        *bad.pointer_mut(&at).unwrap_or_else(|| panic!("no {at}")) = value;
        let err = forged(dir.path(), &serde_json::to_vec(&bad).unwrap()).expect_err(&at);
        assert!(err.to_string().contains(why), "{at}: {err}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    /// Whatever is forged is read or refused, and nobody panics.
    #[test]
    fn forged_headers_harm_nobody(
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0usize..12), 1..6)
    ) {
        let dir = TempDir::new().unwrap();
        let mut body = serde_json::to_vec(&body(dir.path())).unwrap();
        for (at, byte, len) in cuts {
            let at = at.index(body.len());
            let end = (at + len).min(body.len());
            body.splice(at..end, b"0123456789-,[]{}\":null"[usize::from(byte) % 22..].iter().copied().take(len));
            if body.is_empty() { break; }
        }
        let _ = forged(dir.path(), &body);
    }
}
