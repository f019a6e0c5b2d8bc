//! Random trees and random changes: the host has what the sandbox had, or nothing changed.

use std::{ffi::OsString, os::unix::ffi::OsStringExt as _};

use proptest::{collection::vec, prelude::*, test_runner::Config};
use serde_json::{Value, json};

use super::{
    super::scene::{python, seal, start},
    *,
};

/// Few enough that changes meet.
const NAMES: [&str; 6] = ["a", "b", "c", "dir", "x y", "6fff"];

#[derive(Clone, Debug)]
enum Change {
    Write(u8),
    Append(u8),
    MakeDir,
    Remove,
    Rename(Vec<usize>),
    Symlink(u8),
    Mode(u32),
    Link(Vec<usize>),
}

type Steps = Vec<(Vec<usize>, Change)>;

fn path() -> impl Strategy<Value = Vec<usize>> {
    vec(0..NAMES.len(), 1..4)
}

fn steps_of(max: usize) -> impl Strategy<Value = Steps> {
    let change = prop_oneof![
        6 => any::<u8>().prop_map(Change::Write),
        2 => any::<u8>().prop_map(Change::Append),
        5 => Just(Change::MakeDir),
        4 => Just(Change::Remove),
        4 => path().prop_map(Change::Rename),
        2 => any::<u8>().prop_map(Change::Symlink),
        2 => (0u32..0o1000).prop_map(|mode| Change::Mode(mode | 0o700)),
        1 => path().prop_map(Change::Link),
    ];
    vec((path(), change), 0..max)
}

/// What a script makes of the steps: whatever cannot be done is passed over.
fn script(root: &str, steps: &Steps) -> String {
    let name = |path: &[usize]| path.iter().map(|&name| NAMES[name]).collect::<Vec<_>>().join("/");
    let steps: Vec<Value> = steps
        .iter()
        .map(|(path, change)| {
            let path = name(path);
            match change {
                Change::Write(byte) => json!(["write", path, byte]),
                Change::Append(byte) => json!(["append", path, byte]),
                Change::MakeDir => json!(["mkdir", path, 0]),
                Change::Remove => json!(["remove", path, 0]),
                Change::Rename(to) => json!(["rename", path, name(to)]),
                Change::Symlink(byte) => json!(["symlink", path, byte]),
                Change::Mode(mode) => json!(["chmod", path, mode]),
                Change::Link(to) => json!(["link", path, name(to)]),
            }
        })
        .collect();
    let steps = Value::from(steps).to_string();
    format!(
        r#"
import json, os, shutil
os.chdir('{root}')
def write(path, how, byte):
    if not os.path.islink(path):
        open(path, how).write(chr(97 + byte % 26) * (byte + 1))
def remove(path, _):
    if os.path.isdir(path) and not os.path.islink(path): shutil.rmtree(path)
    else: os.remove(path)
def chmod(path, mode):
    if not os.path.islink(path): os.chmod(path, mode)
def link(path, to):
    if os.path.isfile(path) and not os.path.islink(path): os.link(path, to)
def inside(path):
    real = os.path.realpath(os.path.dirname(path))
    return real == os.path.join(os.getcwd(), os.path.dirname(path)).rstrip('/')
do = dict(write=lambda p, b: write(p, 'w', b), append=lambda p, b: write(p, 'a', b),
    mkdir=lambda p, _: os.mkdir(p), remove=remove, rename=os.rename, chmod=chmod, link=link,
    symlink=lambda p, b: os.symlink('/nowhere/%d' % b, p))
for what, path, more in json.loads(r'''{steps}'''):
    path = path.replace('6fff', '6\udcff\n')
    if isinstance(more, str): more = more.replace('6fff', '6\udcff\n')
    try:
        if inside(path) and (not isinstance(more, str) or inside(more)): do[what](path, more)
    except OSError: pass
"#
    )
}

/// The tree as a sandbox sees it.
const LOOK: &str = r"
import json, os, stat
found = []
for top, dirs, files in os.walk(b'/workspace'):
    for name in dirs + files:
        path = os.path.join(top, name)
        seen = os.lstat(path)
        link = list(os.readlink(path)) if stat.S_ISLNK(seen.st_mode) else None
        content = list(open(path, 'rb').read()) if stat.S_ISREG(seen.st_mode) else None
        found.append([list(path[11:]), seen.st_mode, link, content])
print(json.dumps(found))
";

fn parse(text: &str) -> BTreeMap<PathBuf, Seen> {
    let bytes = |value: &Value| -> PathBuf {
        let bytes = serde_json::from_value(value.clone()).unwrap();
        OsString::from_vec(bytes).into()
    };
    let found: Vec<(Value, u32, Value, Value)> = serde_json::from_str(text).unwrap();
    let seen = |(path, mode, link, content): (Value, u32, Value, Value)| {
        let seen = match mode & 0o170_000 {
            0o120_000 => Seen::Link(bytes(&link)),
            0o040_000 => Seen::Directory(mode & 0o7777),
            0o100_000 => Seen::File(mode & 0o7777, serde_json::from_value(content).unwrap()),
            _ => Seen::Other,
        };
        (bytes(&path), seen)
    };
    found.into_iter().map(seen).collect()
}

fn on_host(desk: &Desk, steps: &Steps) {
    let root = desk.dir();
    let script = script(root.to_str().unwrap(), steps);
    let output = std::process::Command::new("python3").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

proptest! {
    #![proptest_config(Config { cases: 24, max_shrink_iters: 60, failure_persistence: None, ..Config::default() })]

    #[test]
    fn the_host_has_what_the_sandbox_had_or_nothing_changed(
        copied in any::<bool>(),
        sealed in 0u8..3,
        begin in steps_of(30),
        first in steps_of(25),
        meanwhile in prop_oneof![2 => Just(Vec::new()), 1 => steps_of(4)],
        second in steps_of(12),
    ) {
        let desk = Desk::new();
        on_host(&desk, &begin);
        let mode = if copied { WorkspaceMode::Copy } else { WorkspaceMode::Live };
        desk.scene.run(async {
            let spec = desk.spec(mode).await;
            let sandbox = desk.scene.create_as(&spec).await;
            python(&*sandbox, &script("/workspace", &first)).await;
            if sealed == 1 {
                seal(&*sandbox).await;
            } else if sealed == 2 {
                let _busy = start(&*sandbox, "echo on; exec sleep 1000").await;
                seal(&*sandbox).await;
            }
            let before = tree(&desk.dir());
            on_host(&desk, &meanwhile);
            let alone = tree(&desk.dir()) == before;
            for steps in [&Vec::new(), &second] {
                python(&*sandbox, &script("/workspace", steps)).await;
                let before = tree(&desk.dir());
                let report = desk.apply_as(&*sandbox, &ApplyRequest::default()).await;
                assert!(desk.is_clean());
                if !report.done {
                    assert!(!meanwhile.is_empty(), "{report:?}");
                    assert!(!report.conflicts.is_empty());
                    assert_eq!(tree(&desk.dir()), before, "refused, and changed something");
                    return;
                }
                if alone {
                    let inside = parse(&python(&*sandbox, LOOK).await);
                    assert_eq!(tree(&desk.dir()), inside, "{report:?}");
                }
            }
        });
    }
}
