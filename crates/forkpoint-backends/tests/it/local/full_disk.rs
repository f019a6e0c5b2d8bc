//! A disk without room: a clear error, everything as before, and all of it works again later.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

use forkpoint_backends::image::Progress;
use forkpoint_core::{
    ErrorKind,
    driver::{Driver as _, DriverError, Sandbox, SandboxState, WriteMode},
};
use forkpoint_testkit::image::{TarEntry, tar};
use tempfile::TempDir;

use crate::layer::needs_root;

use super::{
    Machine,
    full::{seal_full, try_seal_full},
    scene::{
        Scene, bytes, loop_devices, new_snapshot, path, python, read_text, seal, sh, spec, start,
        try_seal, until, with_causes, write,
    },
};

/// A small disk, that is gone when the test is.
struct Disk {
    at: PathBuf,
    image: TempDir,
}

impl Disk {
    /// Mounted where the machine keeps everything.
    fn below(machine: &Machine) -> Self {
        let image = TempDir::new().unwrap();
        let file = image.path().join("disk");
        File::create(&file).unwrap().set_len(48 << 20).unwrap();
        let at = machine.directory.path().to_owned();
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0", "-N", "6000"]).arg(&file));
        run(Command::new("mount").args(["-o", "loop"]).arg(&file).arg(&at));
        Self { at, image }
    }

    fn ballast(&self) -> PathBuf {
        self.at.join("ballast")
    }

    /// To the last byte.
    fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.ballast()).unwrap();
        for len in [1 << 20, 1 << 14, 1 << 10, 1] {
            let chunk = vec![b'x'; len];
            while file.write_all(&chunk).and_then(|()| file.sync_data()).is_ok() && len > 1024 {}
        }
    }

    fn free(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Whoever still lets go of it may.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

/// First the sandboxes go, then the disk below them.
struct Small {
    scene: Option<Scene>,
    disk: Option<Disk>,
}

impl Small {
    fn new() -> Option<Self> {
        if needs_root("a small file system must be mounted") {
            return None;
        }
        let machine = Machine::new(true);
        let disk = Disk::below(&machine);
        Some(Self { scene: Some(Scene::on(machine)), disk: Some(disk) })
    }

    fn scene(&self) -> &Scene {
        self.scene.as_ref().unwrap()
    }

    fn disk(&self) -> &Disk {
        self.disk.as_ref().unwrap()
    }
}

fn no_room(err: &DriverError) {
    let text = with_causes(err);
    let code = io::Error::from_raw_os_error(28).to_string();
    assert!(text.contains(code.trim_end_matches(" (os error 28)")), "{text}");
}

fn entries(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_full_disk_costs_nothing_that_was_there() {
    let Some(small) = Small::new() else { return };
    let (scene, disk) = (small.scene(), small.disk());
    scene.run(async {
        let sandbox = scene.create().await;
        let id = sandbox.id();
        write(&*sandbox, "/srv/old", "old").await.unwrap();
        let first = seal(&*sandbox).await;
        write(&*sandbox, "/srv/old", "newer").await.unwrap();
        sh(
            &*sandbox,
            "head -c 200000 /dev/urandom > /srv/random; sha256sum /srv/random > /srv/sum",
        )
        .await;
        disk.fill();

        let big = bytes(vec![1; 1 << 20]);
        let err = sandbox.write(&path("/srv/old"), big, WriteMode::Replace).await.unwrap_err();
        no_room(&err);
        assert_eq!(read_text(&*sandbox, "/srv/old").await, "newer");
        let check = "cd /srv && sha256sum -c --quiet sum && ls -A /srv";
        for _ in 0..100 {
            if sh(&*sandbox, check).await == "old\nrandom\nsum\n" {
                break;
            }
        }
        assert_eq!(sh(&*sandbox, check).await, "old\nrandom\nsum\n");

        // What has no tree is no layer, and goes when there is room.
        let layers = || {
            let all = scene.root().join("store/layers");
            let is_one = |name: &String| all.join(name).join("tree").exists();
            entries(&all).into_iter().filter(is_one).collect::<Vec<_>>()
        };
        let before = layers();
        let list = scene.driver.list().await.unwrap();
        for _ in 0..3 {
            // What was let go of in the background has given back its room.
            disk.fill();
            let new = scene.new_id();
            no_room(&scene.driver.create(new, &spec()).await.unwrap_err());
            scene.driver.destroy(new).await.unwrap();
            no_room(&scene.driver.restore(new, &spec(), &first).await.unwrap_err());
            scene.driver.destroy(new).await.unwrap();
            no_room(&scene.driver.rollback(id, &spec(), &first).await.unwrap_err());
            no_room(&try_seal(&*sandbox).await.unwrap_err());
            let busy = start(&*sandbox, "echo on; exec sleep 1000").await;
            no_room(&try_seal(&*sandbox).await.unwrap_err());
            busy.control.signal(9).await.unwrap();
            busy.control.wait().await.unwrap();
            scene.driver.settle(id).await.unwrap();
        }
        assert_eq!(layers(), before);
        assert_eq!(scene.driver.list().await.unwrap(), list);
        let status = scene.driver.status(id).await.unwrap().unwrap();
        assert_eq!((status.state, status.base), (SandboxState::Running, Some(first.snapshot)));
        assert_eq!(sh(&*sandbox, check).await, "old\nrandom\nsum\n");

        disk.free();
        let second = seal(&*sandbox).await;
        let copy = scene.restore(&second).await;
        assert_eq!(sh(&*copy, check).await, "old\nrandom\nsum\n");
        assert_eq!(read_text(&*copy, "/srv/old").await, "newer");
        scene.driver.rollback(id, &spec(), &first).await.unwrap();
        scene.note(id);
        assert_eq!(read_text(&*sandbox, "/srv/old").await, "old");
    });
    finish(small);
}

/// The disk is full when the sandbox is stopped, sealed, and started again.
#[test]
fn what_is_stopped_on_a_full_disk_comes_back() {
    let Some(small) = Small::new() else { return };
    let (scene, disk) = (small.scene(), small.disk());
    scene.run(async {
        let sandbox = scene.create().await;
        let id = sandbox.id();
        write(&*sandbox, "/srv/old", "old").await.unwrap();
        scene.driver.stop(id).await.unwrap();
        disk.fill();
        for _ in 0..3 {
            disk.fill();
            no_room(&try_seal(&*sandbox).await.unwrap_err());
            scene.driver.unseal(new_snapshot()).await.unwrap();
            match scene.driver.start(id, &spec()).await {
                Ok(()) => {
                    scene.note(id);
                    assert_eq!(read_text(&*sandbox, "/srv/old").await, "old");
                    scene.driver.stop(id).await.unwrap();
                    disk.fill();
                }
                Err(err) => no_room(&err),
            }
        }
        disk.free();
        let snapshot = seal(&*sandbox).await;
        scene.driver.start(id, &spec()).await.unwrap();
        scene.note(id);
        assert_eq!(read_text(&*sandbox, "/srv/old").await, "old");
        assert_eq!(read_text(&*scene.restore(&snapshot).await, "/srv/old").await, "old");
    });
    finish(small);
}

/// Every amount of room, so that each step of a seal is the one that finds none.
#[test]
fn a_seal_finds_the_disk_full_at_every_step() {
    let Some(small) = Small::new() else { return };
    let (scene, disk) = (small.scene(), small.disk());
    scene.run(async {
        let sandbox = scene.create().await;
        let id = sandbox.id();
        disk.fill();
        let len = fs::metadata(disk.ballast()).unwrap().len();
        let ballast = File::options().write(true).open(disk.ballast()).unwrap();
        let mut sealed = Vec::new();
        for step in 0..24u64 {
            // One block more each time; what is thrown away gives room too.
            disk.fill();
            ballast.set_len(len - (1 << 20)).unwrap();
            write(&*sandbox, "/srv/step", &step.to_string()).await.unwrap();
            let busy = match step % 3 {
                0 => Some(start(&*sandbox, "echo on; exec sleep 1000").await),
                _ => None,
            };
            if step % 3 == 2 {
                scene.driver.stop(id).await.unwrap();
            }
            disk.fill();
            let now = fs::metadata(disk.ballast()).unwrap().len();
            ballast.set_len(now - (step / 3) * 4096).unwrap();
            match try_seal(&*sandbox).await {
                Ok(artifact) => sealed.push((step, artifact)),
                Err(err) => no_room(&err),
            }
            ballast.set_len(len - (2 << 20)).unwrap();
            if let Some(busy) = busy {
                busy.control.signal(9).await.unwrap();
                busy.control.wait().await.unwrap();
            }
            scene.driver.settle(id).await.unwrap();
            scene.driver.start(id, &spec()).await.unwrap();
            assert_eq!(read_text(&*sandbox, "/srv/step").await, step.to_string());
        }
        scene.note(id);
        disk.free();
        assert!(!sealed.is_empty() && sealed.len() < 24, "{} of 24", sealed.len());
        for (step, artifact) in &sealed {
            let copy = scene.restore(artifact).await;
            assert_eq!(read_text(&*copy, "/srv/step").await, step.to_string());
            scene.driver.destroy(copy.id()).await.unwrap();
        }
    });
    finish(small);
}

#[test]
fn an_image_that_finds_no_room_leaves_nothing() {
    let Some(small) = Small::new() else { return };
    let templates = small.scene().driver.templates();
    let elsewhere = TempDir::new().unwrap();
    let file = elsewhere.path().join("system.tar");
    fs::write(&file, tar([TarEntry::file("etc/large", vec![7; 60 << 20])])).unwrap();
    let now = "2026-08-15T09:50:55Z".parse().unwrap();
    let file = file.to_str().unwrap();
    let err = templates.add(Some("large"), file, now, &Progress::default()).unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unavailable);
    assert!(err.to_string().contains("may be used of this disk"), "{err}");
    assert!(templates.list().unwrap().is_empty());
    for left in ["images/layers", "images/staging"] {
        assert_eq!(entries(&small.scene().root().join(left)), [] as [String; 0]);
    }
    // It holds on to the disk.
    drop(templates);
    finish(small);
}

/// Has some memory, and counts where no disk is.
const COUNTER: &str = "
import os, time
heap = os.urandom(4 << 20)
fd = os.open('/dev/shm/count', os.O_RDWR | os.O_CREAT)
if os.fork(): os._exit(0)
for number in (0, 1, 2): os.dup2(os.open('/dev/null', os.O_RDWR), number)
count = 0
while True:
    count += 1
    os.pwrite(fd, b'%08d' % count, 0)
    time.sleep(0.002)
";

async fn counts_on(sandbox: &dyn Sandbox) {
    let wait = "a=$(cat /dev/shm/count); while [ \"$(cat /dev/shm/count)\" = \"$a\" ]; do sleep 0.01; done";
    sh(sandbox, wait).await;
}

#[test]
fn memory_that_finds_no_room_leaves_nothing_and_harms_nobody() {
    let Some(small) = Small::new() else { return };
    let (scene, disk) = (small.scene(), small.disk());
    scene.run(async {
        let sandbox = scene.create().await;
        python(&*sandbox, COUNTER).await;
        // Once where nothing fits, and once where the memory does not.
        for some in [0, 2 << 20] {
            disk.fill();
            if some > 0 {
                let ballast = File::options().write(true).open(disk.ballast()).unwrap();
                ballast.set_len(ballast.metadata().unwrap().len() - some).unwrap();
            }
            let err = try_seal_full(&*sandbox).await.unwrap_err();
            no_room(&err);
            let kept = fs::read_dir(scene.root().join("memory")).map_or(0, Iterator::count);
            assert_eq!(kept, 0);
            disk.free();
            counts_on(&*sandbox).await;
        }
        let artifact = seal_full(&*sandbox).await;
        counts_on(&*scene.restore(&artifact).await).await;
        counts_on(&*sandbox).await;
    });
    finish(small);
}

/// Everything below a directory that is not a template's.
fn kept(root: &Path) -> Vec<String> {
    let places = ["store/layers", "store/staging", "store/trash", "memory"].map(|at| root.join(at));
    let names = places.iter().filter(|place| place.exists()).flat_map(|place| entries(place));
    names.collect()
}

/// Every amount of room: for nothing, for some of the files, for some of the memory, for all but the last.
#[test]
fn an_import_that_finds_no_room_leaves_nothing_and_succeeds_later() {
    let Some(small) = Small::new() else { return };
    let Some(source) = Scene::by_root(true, "a small file system must be mounted") else { return };
    let (scene, disk) = (small.scene(), small.disk());
    scene.run(async {
        let sandbox = source.create().await;
        sh(
            &*sandbox,
            "head -c 3000000 /dev/urandom > /srv/random; mkdir /srv/d; cd /srv/d && touch $(seq 99)",
        )
        .await;
        python(&*sandbox, COUNTER).await;
        let artifact = seal_full(&*sandbox).await;
        let snapshot = new_snapshot();
        let mut places = BTreeSet::new();
        let import = || async {
            let parts = source.driver.export(&artifact).await.unwrap();
            scene.driver.import(snapshot, parts).await
        };
        for some in [0, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 3 << 20, 4 << 20, 6 << 20] {
            disk.fill();
            let ballast = File::options().write(true).open(disk.ballast()).unwrap();
            ballast.set_len(ballast.metadata().unwrap().len() - some).unwrap();
            let err = import().await.unwrap_err();
            no_room(&err);
            places.insert(with_causes(&err).rsplit('/').next().unwrap_or_default().to_owned());
            until("nothing is left", || kept(&scene.root()));
        }
        assert!(places.len() > 2, "not always the same: {places:?}");
        disk.free();
        let came = import().await.unwrap();
        let copy = scene.restore(&came).await;
        let sum = "sha256sum /srv/random; ls /srv/d";
        assert_eq!(sh(&*copy, sum).await, sh(&*sandbox, sum).await);
        counts_on(&*copy).await;
    });
    finish(small);
}

/// The sandboxes are gone before the disk, and nothing holds it.
fn finish(mut small: Small) {
    let disk = small.disk.take().unwrap();
    let root = small.scene().root();
    let scene = small.scene.take().unwrap();
    let driver = scene.another_driver();
    super::run(async {
        for id in driver.list().await.unwrap() {
            driver.destroy(id).await.unwrap();
        }
    });
    drop(driver);
    let left = entries(&root.join("sandboxes"));
    assert_eq!(left, [] as [String; 0]);
    let image = disk.image.path().to_str().unwrap().to_owned();
    drop(disk);
    drop(scene);
    until("the disk is let go of", || {
        loop_devices().into_iter().filter(|file| file.contains(&image)).collect()
    });
}
