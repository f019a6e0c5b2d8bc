//! A disk without room for anything, the catalog included: clear errors, everything as before, and all of it works
//! again later.

use std::{
    fs::{self, File},
    io::Write as _,
    path::PathBuf,
    process::Command,
};

use tempfile::TempDir;

use crate::harness::{Home, Run, until};

/// A small disk, that is gone when the test is.
struct Disk {
    at: PathBuf,
    _image: TempDir,
}

impl Disk {
    fn new() -> Self {
        let image = tempfile::tempdir().expect("a directory for the test");
        let (file, at) = (image.path().join("disk"), image.path().join("at"));
        File::create(&file).and_then(|file| file.set_len(48 << 20)).expect("a file");
        fs::create_dir(&at).expect("a directory");
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0", "-N", "6000"]).arg(&file));
        run(Command::new("mount").args(["-o", "loop"]).arg(&file).arg(&at));
        Self { at, _image: image }
    }

    fn ballast(&self) -> File {
        let path = self.at.join("ballast");
        File::options().create(true).append(true).open(path).expect("a file")
    }

    /// To the last byte, but for some.
    fn fill_but(&self, room: u64) {
        let mut file = self.ballast();
        // What is not on the disk yet may need more room there than was thought.
        for len in [1 << 20, 1 << 14, 1 << 10, 1 << 10] {
            let chunk = vec![b'x'; len];
            while file.write_all(&chunk).is_ok() {}
            let _ = file.sync_data();
        }
        let len = file.metadata().expect("a file").len();
        file.set_len(len - room).expect("room");
    }

    /// Enough for anything here.
    fn free_some(&self) {
        let file = self.ballast();
        let len = file.metadata().expect("a file").len();
        file.set_len(len - (12 << 20)).expect("room");
    }

    fn free(&self) {
        fs::remove_file(self.at.join("ballast")).expect("room");
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("it starts");
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
    home: Home,
    disk: Disk,
}

const READ: &str = "cat /srv/text; ls -A /srv; pgrep -c sleep || true";

impl Small {
    /// Whose sandbox has a snapshot of files, a full one, and something new. Only root mounts.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let disk = Disk::new();
        let home = Home::below(&disk.at);
        home.ok(["create", "--name", "web"]);
        home.sh("web", "echo old > /srv/text");
        home.ok(["snapshot", "web", "--name", "files"]);
        home.sh("web", "sleep 100000 > /dev/null 2>&1 < /dev/null &");
        home.ok(["snapshot", "web", "--full", "--name", "full"]);
        home.sh("web", "echo new > /srv/text");
        fs::write(home.path().join("large"), vec![7; 2 << 20]).expect("a file");
        Some(Self { home, disk })
    }

    /// All that needs room, with a name for what is made.
    fn verbs(&self) -> Vec<Vec<String>> {
        let large = self.home.path().join("large");
        let large = large.to_str().expect("text");
        let all = [
            "create --name made",
            "snapshot web --name made",
            "snapshot web --full --name made",
            "restore files --name made",
            "restore full --name made",
            "fork web --name made",
            "fork full -n 2 --name made",
            "rollback web files",
            "rollback web full",
        ];
        let split = |verb: &str| verb.split(' ').map(str::to_owned).collect();
        let copy = vec!["cp".to_owned(), large.to_owned(), "web:/srv/large".to_owned()];
        all.into_iter().map(split).chain([copy]).collect()
    }

    fn told(&self) -> (String, String) {
        (self.home.ok(["ps", "-q"]).stdout, self.home.ok(["list", "-q"]).stdout)
    }

    fn is_whole(&self) {
        let known = || self.told().0.lines().map(str::to_owned).collect();
        assert!(until(|| self.home.sandboxes() == known()), "{:?}", self.home.sandboxes());
    }
}

fn is_clear(verb: &[String], run: &Run) {
    let told = &run.stderr;
    assert_eq!(run.code, Some(1), "{verb:?}: {run:?}");
    assert!(told.contains("disk is full") || told.contains("No space left"), "{verb:?}: {told}");
    assert!(told.contains("hint: ") && told.contains("free some"), "{verb:?}: {told}");
}

#[test]
fn a_full_disk_is_told_and_costs_nothing_that_was_there() {
    let Some(small) = Small::new() else { return };
    let Small { home, disk } = &small;
    let before = small.told();
    for verb in small.verbs() {
        disk.fill_but(0);
        is_clear(&verb, &home.run(&verb));
        assert_eq!(small.told(), before, "{verb:?}");
        small.is_whole();
        assert_eq!(home.sh("web", READ), "new\ntext\n1\n", "{verb:?}");
    }
    let json = home.run(["snapshot", "web", "--json"]);
    assert!(json.stderr.contains("\"unavailable\"") && json.stderr.contains("is full"), "{json:?}");
    disk.free();
    for verb in small.verbs() {
        home.ok(&verb);
        home.run(["rm", "--force", "made", "made-1", "made-2"]);
        home.run(["delete", "--force", "made"]);
        small.is_whole();
    }
    assert_eq!(home.sh("web", "cat /srv/text; wc -c < /srv/large"), "old\n2097152\n");
}

/// Room for some of it: for what is noted beforehand, for some of the files, for some of the memory.
#[test]
fn a_disk_that_becomes_full_half_way_leaves_nothing_half_visible() {
    let Some(small) = Small::new() else { return };
    let Small { home, disk } = &small;
    let before = small.told();
    let mut failed = 0;
    for room in [8, 40, 160].map(|kilobytes: u64| kilobytes << 10) {
        for verb in small.verbs() {
            disk.fill_but(room);
            let run = home.run(&verb);
            if run.code != Some(0) {
                failed += 1;
                is_clear(&verb, &run);
            }
            disk.free_some();
            small.is_whole();
            let text = home.sh("web", READ);
            let back = verb[0] == "rollback";
            assert!(
                text == "new\ntext\n1\n" || back && text.starts_with("old\n"),
                "{verb:?}: {text}"
            );
            if run.code != Some(0) && !text.starts_with("new") {
                // Only that it was done could not be noted any more.
                assert!(run.stderr.contains("will be finished or undone by recovery"), "{run:?}");
            }
            // Of several copies, each has its own fate.
            if run.code != Some(0) && verb[0] != "fork" {
                assert_eq!(small.told().0, before.0, "{verb:?}");
            }
            if run.code == Some(0) || verb[0] == "fork" || !text.starts_with("new") {
                home.run(["rm", "--force", "made", "made-1", "made-2"]);
                home.run(["delete", "--force", "made"]);
                home.ok(["rollback", "web", "full"]);
                home.sh("web", "echo new > /srv/text");
            }
            let (sandboxes, snapshots) = small.told();
            assert_eq!(sandboxes, before.0, "{verb:?}");
            assert!(snapshots.contains(&before.1), "{verb:?}: {snapshots}");
        }
    }
    assert!(failed > 5, "{failed}");
    disk.free();
    home.ok(["restore", "files", "--name", "one"]);
    home.ok(["restore", "full", "--name", "two"]);
    assert_eq!(home.sh("one", "cat /srv/text"), "old\n");
    assert_eq!(home.sh("two", READ), "old\ntext\n1\n");
}
