//! Sandboxes from templates with a name, and templates from snapshots.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use forkpoint_core::{
    ErrorKind,
    driver::{Command, Driver as _, ExitStatus},
    spec::SandboxSpec,
};
use forkpoint_testkit::image::{TarEntry, TestImage, archive, tar};
use serde_json::json;

use crate::layer::needs_root;

use super::{
    Machine,
    full::seal_full,
    images::Shelf,
    scene::{Scene, exec, finish, python, seal, sh},
};

/// The machine's own shell, with what it is linked to: an image that runs.
pub(super) fn shell() -> Vec<TarEntry> {
    let mut entries = vec![
        TarEntry::directory("bin"),
        TarEntry::directory("etc"),
        TarEntry::file("etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:7:8::/home/app:/bin/sh\n"),
        TarEntry::file("etc/group", "root:x:0:\napp:x:8:\n"),
    ];
    for program in ["sh", "cat", "ls", "id", "mknod", "rm", "mkdir", "ln", "stat"] {
        let path = Path::new("/usr/bin").join(program);
        add_file(&mut entries, &format!("bin/{program}"), &path);
        let linked = std::process::Command::new("ldd").arg(&path).output().unwrap();
        for word in String::from_utf8(linked.stdout).unwrap().split_ascii_whitespace() {
            if word.starts_with('/') {
                add_file(&mut entries, word, Path::new(word));
            }
        }
    }
    entries
}

fn add_file(entries: &mut Vec<TarEntry>, name: &str, from: &Path) {
    let name = name.trim_start_matches('/');
    if entries.iter().any(|entry| entry.path == name.as_bytes()) {
        return;
    }
    let mode = fs::metadata(from).unwrap().permissions().mode() & 0o7777;
    entries.push(TarEntry::file(name, fs::read(from).unwrap()).mode(mode));
}

fn image() -> TestImage {
    let upper = tar([
        TarEntry::directory("etc"),
        TarEntry::file("etc/motd", "from the second layer"),
        TarEntry::file("etc/.wh.gone", ""),
        TarEntry::directory("srv"),
        TarEntry::file("srv/.wh..wh..opq", ""),
        TarEntry::file("srv/new", "new"),
    ]);
    let lower = shell().into_iter().chain([
        TarEntry::file("etc/gone", "x"),
        TarEntry::directory("srv"),
        TarEntry::file("srv/old", "old"),
    ]);
    let run = json!({"Env": ["A=image", "B=image"], "WorkingDir": "/srv", "User": "app"});
    TestImage { run, ..TestImage::new(vec![tar(lower), upper]) }
}

struct Stage {
    scene: Scene,
    shelf: Shelf,
}

impl Stage {
    /// One machine, looked at from both sides.
    fn new() -> Self {
        let shelf = Shelf::new();
        let directory = shelf.machine.directory.path().to_owned();
        let scene = Scene::on(Machine::beside(&directory));
        let file = shelf.file("image.tar", archive(&image().saved_old()));
        shelf.add("app", &file).unwrap();
        Self { scene, shelf }
    }

    async fn spec(&self, template: &str) -> SandboxSpec {
        let spec = SandboxSpec::new(template.parse().unwrap());
        let now = "2026-08-15T09:50:55Z".parse().unwrap();
        self.scene.driver.complete(&spec, now).await.unwrap()
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_sandbox_of_an_image_sees_its_layers_and_runs_as_the_image_says() {
    let stage = Stage::new();
    stage.scene.run(async {
        let mut spec = stage.spec("app").await;
        spec.env.insert("B".to_owned(), "mine".to_owned());
        let sandbox = stage.scene.create_as(&spec).await;
        let told =
            sh(&*sandbox, "echo $A $B; ls; cat /etc/motd; ls /etc/gone 2>&1; id -u; id -g").await;
        let user = if is_root() { ["7", "8"] } else { ["0", "0"] };
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(&lines[..2], ["image mine", "new"], "{told}");
        assert!(told.contains("from the second layer") && told.contains("No such file"), "{told}");
        assert_eq!(&lines[lines.len() - 2..], user, "{told}");
    });
}

#[test]
fn snapshots_forks_and_rollbacks_of_an_image_work() {
    let stage = Stage::new();
    stage.scene.run(async {
        let spec = SandboxSpec { user: None, ..stage.spec("app").await };
        let sandbox = stage.scene.create_as(&spec).await;
        sh(&*sandbox, "rm /srv/new /etc/motd; echo mine > /srv/mine").await;
        let artifact = seal(&*sandbox).await;
        let id = stage.scene.new_id();
        let copy = stage.scene.driver.restore(id, &spec, &artifact).await.unwrap();
        stage.scene.note(id);
        assert_eq!(sh(&*copy, "ls /srv; ls /etc").await, "mine\ngroup\npasswd\n");
        sh(&*sandbox, "rm -r /srv; mkdir /srv").await;
        stage.scene.driver.rollback(sandbox.id(), &spec, &artifact).await.unwrap();
        assert_eq!(sh(&*sandbox, "cat /srv/mine").await, "mine\n");
    });
}

/// Empty layers are all the same, and old images have several.
#[test]
fn an_image_may_have_a_layer_more_than_once() {
    let stage = Stage::new();
    let (empty, mut twice) = (tar([]), image());
    let upper = twice.layers[1].clone();
    twice.layers.extend([empty.clone(), upper, empty]);
    let file = stage.shelf.file("twice.tar", archive(&twice.saved_old()));
    assert_eq!(stage.shelf.add("twice", &file).unwrap().layers.len(), 5);
    stage.scene.run(async {
        let spec = SandboxSpec { user: None, ..stage.spec("twice").await };
        let sandbox = stage.scene.create_as(&spec).await;
        assert_eq!(sh(&*sandbox, "ls /srv; cat /etc/motd").await, "new\nfrom the second layer");
    });
}

#[test]
fn a_template_in_use_stays_and_says_by_whom() {
    let stage = Stage::new();
    stage.scene.run(async {
        let sandbox = stage.scene.create_as(&stage.spec("app").await).await;
        let err = stage.shelf.templates.remove("app").unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Conflict);
        assert!(err.to_string().contains(&sandbox.id().to_string()), "{err}");
        stage.scene.driver.destroy(sandbox.id()).await.unwrap();
        stage.shelf.templates.remove("app").unwrap().finish().unwrap();
        assert_eq!(stage.shelf.layers(), [] as [String; 0]);
    });
}

#[test]
fn what_is_promoted_needs_its_snapshot_no_longer() {
    let stage = Stage::new();
    let now = "2026-08-15T09:50:55Z".parse().unwrap();
    stage.scene.run(async {
        for template in ["app", "host"] {
            let mut spec = SandboxSpec { user: None, ..stage.spec(template).await };
            spec.env.insert("KEPT".to_owned(), "yes".to_owned());
            let sandbox = stage.scene.create_as(&spec).await;
            sh(&*sandbox, "mkdir -p /usr/made /kept; echo one > /usr/made/one; echo a > /kept/a")
                .await;
            let first = seal(&*sandbox).await;
            sh(&*sandbox, "rm /kept/a; echo b > /kept/b; rm -f /etc/motd /etc/issue").await;
            let second = seal(&*sandbox).await;
            let name = format!("{template}-ready");
            let record = stage.shelf.templates.promote(&second, &spec, &name, now).unwrap();
            assert_eq!(record.config.env["KEPT"], "yes");
            stage.scene.driver.destroy(sandbox.id()).await.unwrap();
            for piece in second.pieces.iter().chain(&first.pieces) {
                stage.scene.driver.discard(&piece.name).await.unwrap();
            }
            let again = stage.scene.create_as(&stage.spec(&name).await).await;
            let told = sh(&*again, "cat /usr/made/one; ls /kept; echo $KEPT; ls /etc").await;
            assert!(told.starts_with("one\nb\nyes\n"), "{told}");
            assert!(!told.contains("motd") && !told.contains("issue"), "{told}");
            let third = seal(&*again).await;
            let twice = stage.shelf.templates.promote(&third, &stage.spec(&name).await, "x", now);
            assert_eq!(twice.unwrap().layers, record.layers);
            stage.shelf.templates.remove("x").unwrap().finish().unwrap();
        }
        let taken = stage.shelf.templates.list().unwrap();
        assert_eq!(taken.len(), 3, "{taken:?}");
    });
}

#[test]
fn a_promoted_template_keeps_the_layers_of_the_image_that_it_lies_on() {
    let stage = Stage::new();
    let now = "2026-08-15T09:50:55Z".parse().unwrap();
    stage.scene.run(async {
        let spec = SandboxSpec { user: None, ..stage.spec("app").await };
        let sandbox = stage.scene.create_as(&spec).await;
        sh(&*sandbox, "echo x > /srv/x").await;
        let artifact = seal(&*sandbox).await;
        stage.shelf.templates.promote(&artifact, &spec, "ready", now).unwrap();
        stage.scene.driver.destroy(sandbox.id()).await.unwrap();
        stage.shelf.templates.remove("app").unwrap().finish().unwrap();
        assert_eq!(stage.shelf.layers().len(), 2);
        let again = stage.scene.create_as(&stage.spec("ready").await).await;
        assert_eq!(sh(&*again, "cat /srv/x /srv/new").await, "x\nnew");
    });
}

#[test]
fn a_template_that_another_lies_on_goes_with_the_last_that_needs_it() {
    let stage = Stage::new();
    let (now, driver) = ("2026-08-15T09:50:55Z".parse().unwrap(), &stage.scene.driver);
    let templates = &stage.shelf.templates;
    let layers = || fs::read_dir(stage.scene.root().join("store/layers")).unwrap().count();
    stage.scene.run(async {
        let mut gone = Vec::new();
        for (from, name) in [("host", "one"), ("one", "two")] {
            let spec = stage.spec(from).await;
            let sandbox = stage.scene.create_as(&spec).await;
            sh(&*sandbox, &format!("echo {name} > /srv/{name}; mkdir /usr/{name}")).await;
            let artifact = seal(&*sandbox).await;
            templates.promote(&artifact, &spec, name, now).unwrap();
            gone.push((sandbox.id(), artifact));
        }
        let spec = stage.spec("two").await;
        let last = stage.scene.create_as(&spec).await;
        for (id, artifact) in gone {
            driver.destroy(id).await.unwrap();
            for piece in &artifact.pieces {
                driver.discard(&piece.name).await.unwrap();
            }
        }
        templates.remove("one").unwrap().finish().unwrap();
        driver.stop(last.id()).await.unwrap();
        driver.start(last.id(), &spec).await.unwrap();
        let last = driver.attach(last.id()).await.unwrap();
        let look = "cat /srv/one /srv/two; ls -d /usr/one /usr/two";
        assert_eq!(sh(&*last, look).await, "one\ntwo\n/usr/one\n/usr/two\n");
        let artifact = seal(&*last).await;
        let id = stage.scene.new_id();
        let copy = driver.restore(id, &spec, &artifact).await.unwrap();
        stage.scene.note(id);
        assert_eq!(sh(&*copy, look).await, "one\ntwo\n/usr/one\n/usr/two\n");
        for id in [last.id(), id] {
            driver.destroy(id).await.unwrap();
        }
        let removal = templates.remove("two").unwrap();
        assert!(removal.is_under(&artifact), "with it, the layer of the first would go");
        for piece in &artifact.pieces {
            driver.discard(&piece.name).await.unwrap();
        }
        removal.finish().unwrap();
        assert_eq!(layers(), 0, "nobody needs any of them");
    });
}

#[test]
fn nothing_of_an_image_makes_a_device_or_a_way_out() {
    let stage = Stage::new();
    stage.scene.run(async {
        let spec = SandboxSpec { user: None, ..stage.spec("app").await };
        let sandbox = stage.scene.create_as(&spec).await;
        let (told, status) = exec(&*sandbox, &["mknod", "/srv/sda", "b", "8", "0"]).await;
        assert_ne!(status, ExitStatus::Code(0), "{told}");
        let there = sandbox.exec(&Command::new(["cat", "/dev/null"])).await.unwrap();
        assert_eq!(finish(there).await, (String::new(), ExitStatus::Code(0)));
    });
}

#[test]
fn a_template_that_is_a_directory_is_seen_by_its_name() {
    let shelf = Shelf::new();
    fs::create_dir_all(shelf.path("root/etc")).unwrap();
    let source = format!("dir:{}", shelf.path("root").display());
    shelf.add("tree", &source).unwrap();
    assert_eq!(shelf.add("tree", &source).unwrap().source, source);
    assert!(shelf.add("tree", "dir:/nonexistent").is_err());
    shelf.templates.remove("tree").unwrap().finish().unwrap();
    assert!(shelf.path("root/etc").is_dir(), "it is somebody's");
}

#[test]
fn names_that_mean_something_already_are_refused() {
    let shelf = Shelf::new();
    for name in ["host", "dir:x", "oci:x", "../x", "a/b", ""] {
        let err = shelf.add(name, "/nonexistent").unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Invalid, "{name}");
    }
}

#[test]
fn a_record_of_a_later_format_or_a_damaged_one_is_told_and_left() {
    let shelf = Shelf::new();
    let path = shelf.root().join("templates/late.json");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let late = json!({"format": 99, "name": "late", "kind": "image", "source": "x", "digest": null,
        "created": "2026-08-15T09:50:55Z"});
    fs::write(&path, late.to_string()).unwrap();
    let err = shelf.templates.find("late").unwrap_err();
    assert!(err.to_string().contains("format 99"), "{err}");
    fs::write(&path, "{").unwrap();
    assert_eq!(shelf.templates.find("late").unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(path.exists());
}

/// What this release writes, for later ones to read.
#[test]
fn format_1_is_read() {
    let shelf = Shelf::new();
    let path = shelf.root().join("templates/python:3.12.json");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, include_str!("../../fixtures/template-v1.json")).unwrap();
    let record = shelf.templates.find("python:3.12").unwrap().unwrap();
    assert_eq!((record.layers.len(), record.bytes), (2, 6));
    assert_eq!(record.config.entrypoint, ["/entry"]);
}

/// A program that has prepared itself, and needs not do so again.
const WARM: &str = "
import os, time
table = {n: n * n for n in range(200000)}
if os.fork(): os._exit(0)
for fd in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), fd)
while True:
    if os.path.exists('/tmp/ask'):
        with open('/tmp/new', 'w') as file: file.write(str(table[int(open('/tmp/ask').read())]))
        os.rename('/tmp/new', '/tmp/answer')
        os.unlink('/tmp/ask')
    time.sleep(0.002)
";

const ASK: &str = "echo 777 > /tmp/asked; mv /tmp/asked /tmp/ask; while ! [ -e /tmp/answer ]; do sleep 0.01; done; cat /tmp/answer; rm /tmp/answer";

#[test]
fn processes_of_a_promoted_snapshot_run_in_every_sandbox_made_of_it() {
    if needs_root("there are no full snapshots") {
        return;
    }
    let stage = Stage::new();
    let (now, driver) = ("2026-08-15T09:50:55Z".parse().unwrap(), &stage.scene.driver);
    stage.scene.run(async {
        let spec = stage.spec("host").await;
        let sandbox = stage.scene.create_as(&spec).await;
        python(&*sandbox, WARM).await;
        seal_full(&*sandbox).await;
        // The second lies over the first.
        let artifact = seal_full(&*sandbox).await;
        let record = stage.shelf.templates.promote(&artifact, &spec, "warm", now).unwrap();
        assert!(record.bytes > 10 << 20, "{}", record.bytes);
        driver.destroy(sandbox.id()).await.unwrap();
        for piece in &artifact.pieces {
            driver.discard(&piece.name).await.unwrap();
        }
        let spec = stage.spec("warm").await;
        for _ in 0..3 {
            let copy = stage.scene.create_as(&spec).await;
            assert_eq!(sh(&*copy, ASK).await, "603729");
            assert_eq!(sh(&*copy, "hostname").await.trim(), copy.id().to_string());
        }
        // One that was stopped begins with nothing, as any other.
        let copy = stage.scene.create_as(&spec).await;
        driver.stop(copy.id()).await.unwrap();
        driver.start(copy.id(), &spec).await.unwrap();
        let copy = driver.attach(copy.id()).await.unwrap();
        assert_eq!(sh(&*copy, "pgrep -c python3 || true").await, "0\n");
        for id in driver.list().await.unwrap() {
            driver.destroy(id).await.unwrap();
        }
        stage.shelf.templates.remove("warm").unwrap().finish().unwrap();
        let left = fs::read_dir(stage.scene.root().join("memory")).unwrap().flatten();
        let left: Vec<_> = left
            .map(|entry| entry.file_name())
            .filter(|name| name.to_string_lossy().contains("-tpl"))
            .collect();
        assert_eq!(left, [] as [std::ffi::OsString; 0]);
    });
}
