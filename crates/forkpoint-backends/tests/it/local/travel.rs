//! Snapshots that go elsewhere and come from there.

use std::{
    env,
    ffi::OsStr,
    fs, io,
    path::Path,
    process::{Command as Program, Stdio},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use forkpoint_core::{
    driver::{Artifact, Driver as _, DriverError, DriverResult, FileState, Sandbox, SnapshotKind},
    id::SnapshotId,
    part::{ByteStream, Part, PartContent, PartFormat, TreeEntry, end_tree},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use super::{
    full::{count, counting, counts_on, seal_full, start_writing},
    scene::{
        Scene, bytes, new_snapshot, read, read_text, seal, sh, spec, start, until, with_causes,
        write,
    },
    trees,
};

mod cut;

/// Whose turn it is to be killed, and where.
const VICTIM: &str = "FORKPOINT_TEST_IMPORTS_IN";

async fn moved(scene: &Scene, artifact: &Artifact, to: &Scene) -> Artifact {
    let parts = scene.driver.export(artifact).await.unwrap();
    let came = to.driver.import(new_snapshot(), parts).await;
    came.unwrap_or_else(|err| panic!("{}", with_causes(&err)))
}

/// Everything that a driver keeps of snapshots.
fn kept(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for place in ["store/layers", "store/staging", "store/trash", "memory"] {
        let Ok(entries) = fs::read_dir(root.join(place)) else { continue };
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        found.extend(entries.map(|entry| format!("{place}/{}", name(entry).to_string_lossy())));
    }
    found.sort();
    found
}

fn nothing_more_than(scene: &Scene, before: &[String]) {
    until("nothing is left", || {
        kept(&scene.root()).into_iter().filter(|place| !before.contains(place)).collect()
    });
}

async fn discard_all(scene: &Scene, artifact: &Artifact) {
    for piece in artifact.pieces.iter().rev() {
        scene.driver.discard(&piece.name).await.unwrap();
    }
}

async fn collect(bytes: ByteStream) -> Vec<u8> {
    bytes.try_collect::<BytesMut>().await.unwrap().to_vec()
}

/// Parts of bytes as bytes, so that they can be changed.
async fn opened(parts: Vec<Part>) -> Vec<(PartFormat, Result<Vec<u8>, PartContent>)> {
    let mut all = Vec::new();
    for Part { format, content } in parts {
        all.push(match content {
            PartContent::Bytes(bytes) => (format, Ok(collect(bytes).await)),
            tree @ PartContent::Tree(_) => (format, Err(tree)),
        });
    }
    all
}

fn closed(parts: Vec<(PartFormat, Result<Vec<u8>, PartContent>)>) -> Vec<Part> {
    let close = |(format, content)| Part {
        format,
        content: match content {
            Ok(content) => PartContent::Bytes(bytes(Bytes::from(content))),
            Err(tree) => tree,
        },
    };
    parts.into_iter().map(close).collect()
}

fn format(text: &str) -> PartFormat {
    let (name, version) = text.split_once('/').unwrap();
    PartFormat { name: name.to_owned(), version: version.parse().unwrap() }
}

fn part(text: &str, content: impl Into<Bytes>) -> Part {
    Part { format: format(text), content: PartContent::Bytes(bytes(content)) }
}

fn empty_tree() -> Part {
    let none: Vec<io::Result<TreeEntry>> = Vec::new();
    Part { format: PartFormat::tree(), content: PartContent::Tree(end_tree(stream::iter(none))) }
}

fn described(text: &Value) -> Vec<Part> {
    vec![part("local-snapshot/1", text.to_string()), empty_tree()]
}

#[derive(Clone, Debug)]
struct Round {
    seed: u32,
    count: u32,
    busy: bool,
}

fn round() -> impl Strategy<Value = Round> {
    (any::<u32>(), 5u32..120, any::<bool>()).prop_map(|(seed, count, busy)| Round {
        seed,
        count,
        busy,
    })
}

async fn imported_is_what_was(scene: &Scene, there: &Scene, rounds: &[Round]) {
    let sandbox = scene.create().await;
    // What it has of the template only has the dates of the template.
    sh(&*sandbox, "touch /srv").await;
    for (number, round) in rounds.iter().enumerate() {
        trees::change(&*sandbox, round.seed, round.count, &trees::ROOTS).await;
        let busy = match round.busy {
            true => Some(start(&*sandbox, "echo on; exec sleep 1000").await),
            false => None,
        };
        let artifact = seal(&*sandbox).await;
        trees::stop(busy).await;
        let here = scene.restore(&moved(scene, &artifact, scene).await).await;
        let expected = trees::list(&*sandbox, &trees::ROOTS).await;
        let found = trees::list(&*here, &trees::ROOTS).await;
        trees::assert_same(&expected, &found, &format!("imported {number}"));
        scene.driver.destroy(here.id()).await.unwrap();
        // There the template is copied anew, and has dates of its own.
        let far = there.restore(&moved(scene, &artifact, there).await).await;
        let expected = trees::list(&*sandbox, &["/srv"]).await;
        trees::assert_same(
            &expected,
            &trees::list(&*far, &["/srv"]).await,
            &format!("there {number}"),
        );
        // And on from there.
        write(&*far, "/on", "on").await.unwrap();
        let back = scene.restore(&moved(there, &seal(&*far).await, scene).await).await;
        assert_eq!(read_text(&*back, "/on").await, "on");
        trees::assert_same(
            &expected,
            &trees::list(&*back, &["/srv"]).await,
            &format!("back {number}"),
        );
        for (scene, sandbox) in [(there, far), (scene, back)] {
            scene.driver.destroy(sandbox.id()).await.unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 5,
        max_shrink_iters: 10,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_imported_is_what_was_there(rounds in vec(round(), 1..4), map_users: bool) {
        if let (Some(scene), Some(there)) = (Scene::new(map_users), Scene::new(map_users)) {
            scene.run(imported_is_what_was(&scene, &there, &rounds));
        }
    }
}

async fn refused(scene: &Scene, parts: Vec<Part>) -> String {
    let err = scene.driver.import(new_snapshot(), parts).await.unwrap_err();
    with_causes(&err)
}

#[test]
fn parts_of_a_stranger_are_refused_and_leave_nothing() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let files = json!({ "kind": "files", "base": [] });
        let full = json!({ "kind": "full", "base": [] });
        let image = json!({ "id": "00", "len_bytes": 4 });
        let told = json!({ "kind": "full", "base": [], "images": [image] });
        let with =
            |text: &Value, more: Vec<Part>| described(text).into_iter().chain(more).collect();
        let tree_of_bytes = part("tree/1", "bytes");
        let bytes_of_tree = Part { format: format("local-snapshot/1"), ..empty_tree() };
        let never = stream::once(async { panic!("nobody may read it") }).boxed();
        let unread = Part { format: format("tree/1"), content: PartContent::Bytes(never) };
        let newer = Part { format: format("tree/2"), ..empty_tree() };
        let broken = stream::iter([Ok(Bytes::from("{")), Err(io::Error::other("cut"))]).boxed();
        let broken =
            Part { format: format("local-snapshot/1"), content: PartContent::Bytes(broken) };
        let cases: Vec<(&str, Vec<Part>)> = vec![
            ("`unknown/1`, which it does not know", vec![unread, part("unknown/1", "")]),
            ("`tree/2`, and this release reads up to `tree/1`", vec![newer]),
            ("`local-snapshot/7`", vec![part("local-snapshot/7", ""), empty_tree()]),
            ("does not know", vec![part("tree/0", "")]),
            ("holds bytes", vec![tree_of_bytes]),
            ("holds a tree", vec![bytes_of_tree]),
            ("0 trees", Vec::new()),
            ("2 trees", vec![empty_tree(), empty_tree()]),
            ("0 trees", vec![part("local-snapshot/1", files.to_string())]),
            ("not those of one", with(&files, vec![part("local-snapshot/1", files.to_string())])),
            ("not those of one", with(&files, vec![part("process-image/1", "")])),
            ("not those of one", with(&files, vec![part("process-pages/1", "")])),
            ("cannot be read", vec![part("local-snapshot/1", "{"), empty_tree()]),
            ("cannot be read", vec![part("local-snapshot/1", "{}"), empty_tree()]),
            ("4 MiB", vec![part("local-snapshot/1", vec![b' '; 5 << 20]), empty_tree()]),
            ("cut", vec![broken, empty_tree()]),
            ("not true", described(&full)),
            ("0 images", described(&told)),
            (
                "1 images",
                with(&files, vec![part("process-image/1", ""), part("process-pages/1", "")]),
            ),
            (
                "longer than 4 bytes",
                with(&told, vec![part("process-image/1", ""), part("process-pages/1", "12345")]),
            ),
            (
                "no image of processes",
                with(&told, vec![part("process-image/1", "x"), part("process-pages/1", "1234")]),
            ),
            (
                "format 9",
                with(
                    &told,
                    vec![
                        part("process-image/1", "forkpoint-checkpoint 9 x\n{}"),
                        part("process-pages/1", "1234"),
                    ],
                ),
            ),
        ];
        for (why, parts) in cases {
            let told = refused(&scene, parts).await;
            assert!(told.contains(why), "{why}: {told}");
        }
        nothing_more_than(&scene, &[]);
    });
}

/// Whoever restores it would show the stranger's sandbox a directory of this machine.
#[test]
fn what_a_stranger_says_of_this_machine_is_not_believed() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let secret = scene.root().join("secret");
        fs::create_dir(&secret).unwrap();
        fs::write(secret.join("key"), "secret").unwrap();
        let victim = scene.create().await;
        write(&*victim, "/key", "secret").await.unwrap();
        let layer = seal(&*victim).await.data["layer"].as_str().unwrap().to_owned();
        let upper = format!("sandboxes/{}/g0/u", victim.id());
        let lowers = [
            json!({ "outside": secret }),
            json!({ "outside": "/etc" }),
            json!({ "ours": "secret" }),
            json!({ "ours": "base/../secret" }),
            json!({ "ours": secret }),
            json!({ "ours": upper }),
            json!({ "ours": format!("store/layers/{layer}/tree") }),
            json!({ "outside": "/usr" }),
        ];
        for lower in lowers {
            let base = json!([{ "at": "", "lowers": [lower] }]);
            let parts = described(&json!({ "kind": "files", "base": base }));
            let came = scene.driver.import(new_snapshot(), parts).await.unwrap();
            assert_eq!(came.data["base"], json!([]), "{lower}");
            let copy = scene.restore(&came).await;
            assert!(read(&*copy, "/key").await.is_err(), "{lower}");
            assert!(read(&*copy, "/etc/os-release").await.is_ok(), "it has the template's files");
            let look = scene.driver.tree(&FileState::Snapshot(came)).await.map(drop);
            let told = with_causes(&look.unwrap_err());
            assert!(told.contains("not known here"), "{told}");
            scene.driver.destroy(copy.id()).await.unwrap();
        }
        let layers = json!([{ "ours": "images/layers/sha256-0/tree" }]);
        let base = json!([{ "at": "", "lowers": layers }]);
        let parts = described(&json!({ "kind": "files", "base": base }));
        let came = scene.driver.import(new_snapshot(), parts).await.unwrap();
        let err = scene.driver.restore(scene.new_id(), &spec(), &came).await.unwrap_err();
        assert!(with_causes(&err).contains("another image"), "{}", with_causes(&err));
    });
}

#[test]
fn a_tree_alone_is_a_snapshot_of_files() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        sh(&*sandbox, "mkdir /srv/d; echo text > /srv/d/a; rm /etc/issue").await;
        let artifact = seal(&*sandbox).await;
        let parts = scene.driver.export(&artifact).await.unwrap();
        let tree = parts.into_iter().filter(|part| part.format == PartFormat::tree()).collect();
        let came = scene.driver.import(new_snapshot(), tree).await.unwrap();
        assert_eq!((came.kind, came.counted), (SnapshotKind::Files, true));
        assert!(came.own_bytes > 0 && came.file_count > 0);
        let copy = scene.restore(&came).await;
        assert_eq!(
            sh(&*copy, "cat /srv/d/a; ls /etc/issue 2>/dev/null || echo gone").await,
            "text\ngone\n"
        );
        // It is one like any other: it can be sealed over, taken back and discarded.
        let before = kept(&scene.root());
        let synced = scene.driver.sync(&came).await.unwrap();
        assert!(synced.durable);
        scene.driver.destroy(copy.id()).await.unwrap();
        discard_all(&scene, &came).await;
        assert!(scene.driver.restore(scene.new_id(), &spec(), &came).await.is_err());
        nothing_more_than(&scene, &before);
        let taken = scene.driver.import(new_snapshot(), vec![empty_tree()]).await.unwrap();
        scene.driver.unseal(taken.snapshot).await.unwrap();
        nothing_more_than(&scene, &before);
        let again = scene.driver.import(artifact.snapshot, vec![empty_tree()]).await.map(drop);
        assert!(matches!(again, Err(DriverError::Invalid { .. })), "an id twice: {again:?}");
        scene.restore(&artifact).await;
    });
}

#[test]
fn a_counter_counts_on_where_it_came_to() {
    let Some(scene) = Scene::new(true) else { return };
    let Some(there) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let before = count(&*sandbox).await;
        let artifact = seal_full(&*sandbox).await;
        let far = counts_on(&*sandbox, count(&*sandbox).await + 300).await;
        for to in [&scene, &there] {
            let empty = kept(&to.root());
            let came = moved(&scene, &artifact, to).await;
            assert_eq!(came.kind, SnapshotKind::Full);
            assert_eq!(came.pieces.len(), 2, "{:?}", came.pieces);
            assert_ne!(came.data["base"], json!([]), "the same template is here");
            let copy = to.restore(&came).await;
            let first = count(&*copy).await;
            assert!((before..far).contains(&first), "{before} {first} {far}");
            counts_on(&*copy, first).await;
            assert_eq!(to.driver.processes(&came).await.unwrap().len(), 1);
            let back = to.driver.rollback(copy.id(), &spec(), &came).await.unwrap();
            let first = count(&*back).await;
            assert!((before..far).contains(&first), "{before} {first} {far}");
            counts_on(&*back, first).await;
            // One over a template of which nobody knows whether it is the same is made anew.
            let mut unknown = came.clone();
            unknown.data["base"] = json!([]);
            let back = to.driver.rollback(copy.id(), &spec(), &unknown).await.unwrap();
            let first = count(&*back).await;
            assert!((before..far).contains(&first), "{before} {first} {far}");
            to.driver.destroy(copy.id()).await.unwrap();
            discard_all(to, &came).await;
            nothing_more_than(to, &empty);
        }
    });
}

async fn large(scene: &Scene) -> (Arc<dyn Sandbox>, Artifact) {
    let sandbox = scene.create().await;
    start_writing(&*sandbox).await;
    seal_full(&*sandbox).await;
    let last = seal_full(&*sandbox).await;
    assert!(last.own_bytes < 8 << 20, "it holds what was written since: {}", last.own_bytes);
    (sandbox, last)
}

#[test]
fn images_that_lie_over_each_other_come_together_and_go_together() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let (sandbox, artifact) = large(&scene).await;
        let before = kept(&scene.root());
        let came = moved(&scene, &artifact, &scene).await;
        assert_eq!(came.pieces.len(), 3, "{:?}", came.pieces);
        assert!(came.own_bytes > 40 << 20, "{}", came.own_bytes);
        assert_eq!(scene.driver.sync(&came).await.unwrap().own_bytes, came.own_bytes);
        scene.driver.destroy(sandbox.id()).await.unwrap();
        discard_all(&scene, &artifact).await;
        let copy = scene.restore(&came).await;
        let now = count(&*copy).await;
        counts_on(&*copy, now).await;
        scene.driver.destroy(copy.id()).await.unwrap();
        // What was never committed is taken back by its id.
        scene.driver.unseal(came.snapshot).await.unwrap();
        nothing_more_than(&scene, &before);
    });
}

#[test]
fn memory_that_is_not_what_it_was_is_refused() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let artifact = seal_full(&*sandbox).await;
        let before = kept(&scene.root());
        let parts = || async { opened(scene.driver.export(&artifact).await.unwrap()).await };
        let kinds: Vec<String> =
            parts().await.iter().map(|(format, _)| format.to_string()).collect();
        assert_eq!(kinds, ["local-snapshot/1", "tree/1", "process-image/1", "process-pages/1"]);
        let import = |parts| scene.driver.import(new_snapshot(), closed(parts));
        type Harm = fn(&mut Vec<u8>);
        let harms: [(usize, Harm); 6] = [
            (3, |pages| pages[70_000] ^= 1),
            (3, |pages| drop(pages.split_off(4096))),
            (3, |pages| pages.push(0)),
            (2, |header| header[300] ^= 1),
            (2, |header| drop(header.split_off(300))),
            (0, |told| {
                let mut text: Value = serde_json::from_slice(told).unwrap();
                text["images"][0]["id"] = "0".repeat(64).into();
                *told = serde_json::to_vec(&text).unwrap();
            }),
        ];
        for (number, (which, harm)) in harms.into_iter().enumerate() {
            let mut parts = parts().await;
            harm(parts[which].1.as_mut().unwrap());
            let result: DriverResult<Artifact> = import(parts).await;
            let is_told =
                matches!(result, Err(DriverError::Damaged { .. } | DriverError::Invalid { .. }));
            assert!(is_told, "{number}: {result:?}");
        }
        // A line that is cut in the middle of the pages.
        let mut cut = closed(parts().await);
        let pages = stream::iter([Ok(Bytes::from(vec![0; 4096])), Err(io::Error::other("cut"))]);
        cut[3].content = PartContent::Bytes(pages.boxed());
        assert!(refused(&scene, cut).await.contains("cut"));
        nothing_more_than(&scene, &before);
        let well = import(parts().await).await.unwrap();
        scene.restore(&well).await;
    });
}

#[test]
fn a_snapshot_of_another_boot_comes_and_is_not_restored() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = counting(&scene).await;
        let artifact = seal_full(&*sandbox).await;
        let mut parts = opened(scene.driver.export(&artifact).await.unwrap()).await;
        let header = parts[2].1.as_mut().unwrap();
        let cut = header.iter().position(|byte| *byte == b'\n').unwrap();
        let mut body: Value = serde_json::from_slice(&header[cut + 1..]).unwrap();
        body["snapshot"]["machine"]["boot"] = "another".into();
        let body = serde_json::to_vec(&body).unwrap();
        let id = blake3::hash(&body).to_string();
        *header = [format!("forkpoint-checkpoint 1 {id}\n").as_bytes(), &body].concat();
        let told = parts[0].1.as_mut().unwrap();
        let mut text: Value = serde_json::from_slice(told).unwrap();
        text["images"][0]["id"] = id.into();
        *told = serde_json::to_vec(&text).unwrap();
        let came = scene.driver.import(new_snapshot(), closed(parts)).await.unwrap();
        let err = scene.driver.restore(scene.new_id(), &spec(), &came).await.unwrap_err();
        let told = with_causes(&err);
        assert!(told.contains("boot `another`"), "{told}");
        assert!(matches!(err, DriverError::KindUnavailable { .. }), "{told}");
    });
}

/// A process that is killed while it imports: what it had made goes with the next one who looks.
#[test]
fn a_killed_import_leaves_nothing() {
    if let Some(root) = env::var_os(VICTIM) {
        return hang(&root);
    }
    let Some(scene) = Scene::new(true) else { return };
    let before = kept(&scene.root());
    let staged = || kept(&scene.root()).iter().any(|place| place.contains("store/staging/"));
    for _ in 0..3 {
        let mut victim = Program::new(env::current_exe().unwrap())
            .args(["--exact", "local::travel::a_killed_import_leaves_nothing"])
            .env(VICTIM, scene.root())
            .env_remove("NEXTEST_EXECUTION_MODE")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        until("something is staged", || match staged() {
            true => Vec::new(),
            false => vec!["nothing yet".to_owned()],
        });
        victim.kill().unwrap();
        victim.wait().unwrap();
        let _another = scene.another_driver();
        nothing_more_than(&scene, &before);
    }
}

/// Half of a tree comes, and then nothing any more.
fn hang(root: &OsStr) {
    use forkpoint_backends::driver::local::{LocalConfig, LocalDriver};
    let mut config = LocalConfig::new(root);
    config.helper = Some(super::helper());
    let driver = LocalDriver::open(config).unwrap();
    super::run(async {
        let tree = stream::pending().boxed();
        let parts = vec![Part { format: PartFormat::tree(), content: PartContent::Tree(tree) }];
        driver.import(SnapshotId::from_u128(super::unique()), parts).await.unwrap();
    });
}

#[test]
fn a_description_of_version_1_is_read() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let text = include_str!("../../fixtures/local-snapshot-v1.json");
        let parts = vec![part("local-snapshot/1", text), empty_tree(), empty_tree()];
        let came = scene.driver.import(new_snapshot(), parts).await.unwrap();
        let told: Value = serde_json::from_str(text).unwrap();
        for what in ["workspaces", "line"] {
            assert_eq!(came.data[what], told[what], "{what}");
        }
        assert_eq!(came.data["base"], json!([]), "it is not here");
        assert_eq!(came.pieces.len(), 2);
        discard_all(&scene, &came).await;
        nothing_more_than(&scene, &[]);
    });
}
