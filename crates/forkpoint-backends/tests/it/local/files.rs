//! The files of a sandbox, named by somebody outside and arranged by somebody inside.

use std::{ffi::OsStr, fs, io, os::unix::ffi::OsStrExt as _, time::Duration};

use bytes::Bytes;
use forkpoint_core::{
    driver::{Command, DriverError, EntryKind, NewEntry, Sandbox, WriteMode},
    path::SandboxPath,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::layer::is_root;

use super::scene::{Scene, bytes, path, python, read, read_text, sh, start, with_causes, write};
use super::unique;

/// A file of the host that no sandbox has, at a path that each could have.
struct Secret(String);

impl Secret {
    fn new() -> Self {
        let path = format!("/var/tmp/forkpoint-test-{:x}", unique());
        fs::write(&path, "secret").unwrap();
        Self(path)
    }

    fn assert_untouched(&self) {
        assert_eq!(fs::read_to_string(&self.0).unwrap(), "secret");
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn links_lead_nowhere(map_users: bool) {
    let Some(scene) = Scene::new(map_users) else { return };
    let secret = Secret::new();
    let (path_outside, name) = (&*secret.0, secret.0.rsplit('/').next().unwrap());
    let up = "../".repeat(30);
    let prepare = format!(
        "mkdir -p /srv/dir && cd /srv && ln -s {path_outside} absolute && ln -s {up}{path_outside} relative \
         && ln -s /proc/self/root self && ln -s /proc/1/root one && ln -s /var/tmp directory \
         && ln -s /proc/self/cwd cwd && ln -s /proc/self/exe exe && ln -s /proc/1/exe init \
         && ln -s /proc/self/fd fds && ln -s loop loop && ln -s /etc/shadow shadow"
    );
    scene.run(async {
        let sandbox = scene.create().await;
        sh(&*sandbox, &prepare).await;
        let ways =
            ["absolute", "relative", "self/SECRET", "one/SECRET", "directory/NAME", "shadow"];
        for way in ways {
            let way = way.replace("SECRET", path_outside).replace("NAME", name);
            let at = format!("/srv/{way}");
            // A write below may have made one of that name inside.
            if let Ok(found) = read(&*sandbox, &at).await {
                assert_eq!(found, b"mine", "{at}");
            }
            // Through a link, a write may make a file inside; never one outside.
            for mode in [WriteMode::Replace, WriteMode::Append, WriteMode::Create] {
                let _ = sandbox.write(&path(&at), bytes("mine"), mode).await;
                secret.assert_untouched();
            }
        }
        for way in ["cwd", "exe", "init", "fds", "fds/0", "fds/3", "loop", "self", "one"] {
            let at = format!("/srv/{way}");
            assert!(read(&*sandbox, &at).await.is_err(), "{at}");
            let _ = write(&*sandbox, &format!("{at}/x"), "x").await;
            let _ = sandbox.entries(&path(&at), 2).await;
        }
        let up = format!("/srv/{up}{path_outside}");
        assert!(SandboxPath::new(&up).is_err());
        assert_eq!(sh(&*sandbox, "echo still here").await, "still here\n");
    });
    secret.assert_untouched();
}

#[test]
fn links_lead_nowhere_outside() {
    links_lead_nowhere(true);
}

#[test]
fn links_lead_nowhere_outside_without_mapped_users() {
    links_lead_nowhere(false);
}

/// Swaps a directory and a link that leads up, as fast as it can.
const SWAP: &str = "
import os
os.makedirs('/srv/real/var/tmp', exist_ok=True)
os.symlink('/proc/1/root/../../../../../..', '/srv/link')
os.rename('/srv/real', '/srv/turn')
print('on', flush=True)
while True:
    os.rename('/srv/turn', '/srv/real'); os.rename('/srv/link', '/srv/turn')
    os.rename('/srv/turn', '/srv/link'); os.rename('/srv/real', '/srv/turn')
";

#[test]
fn names_that_change_while_they_are_looked_up_lead_nowhere_outside() {
    // As the host's root, where that can be.
    let Some(scene) = Scene::new(!is_root()) else { return };
    let secret = Secret::new();
    scene.run(async {
        let sandbox = scene.create().await;
        let swap = sandbox.exec(&Command::new(["python3", "-c", SWAP])).await.unwrap();
        let mut stdout = swap.stdout;
        stdout.next().await;
        let at = format!("/srv/turn{}", secret.0);
        let mut worked = 0;
        for _ in 0..200 {
            worked += u32::from(write(&*sandbox, &at, "mine").await.is_ok());
            if let Ok(found) = read(&*sandbox, &at).await {
                assert_eq!(found, b"mine");
            }
        }
        assert!(worked > 0);
        secret.assert_untouched();
        swap.control.signal(9).await.unwrap();
    });
}

/// Who puts a file in its place does so under a name with its own number in it, and numbers come again when
/// a sandbox is started again or copied.
#[test]
fn what_a_killed_writer_left_is_in_nobodys_way() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        let plant = "mkdir -p /srv && cd /srv && for n in $(seq 2 200); do \
                     echo half > .forkpoint-$n-text; ln -s half .forkpoint-$n-link; done";
        sh(&*sandbox, plant).await;
        for round in 0..5 {
            write(&*sandbox, "/srv/text", &format!("whole {round}")).await.unwrap();
            assert_eq!(read_text(&*sandbox, "/srv/text").await, format!("whole {round}"));
            let link = NewEntry::Symlink { target: "text".into() };
            sandbox.make(&path("/srv/to"), &link).await.unwrap();
            assert_eq!(read_text(&*sandbox, "/srv/to").await, format!("whole {round}"));
        }
    });
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        sh(&*sandbox, "mkdir -p /srv/dir && mkfifo /srv/fifo && ln -s fifo /srv/link").await;
        python(&*sandbox, "import socket; socket.socket(socket.AF_UNIX).bind('/srv/socket')").await;
        for name in
            ["/srv/fifo", "/srv/link", "/srv/socket", "/dev/zero", "/dev/tty", "/srv/dir", "/"]
        {
            let quick = Duration::from_secs(30);
            let read = tokio::time::timeout(quick, read(&*sandbox, name)).await.expect(name);
            let err = read.unwrap_err();
            assert!(!matches!(err, DriverError::PathMissing { .. }), "{name}: {err}");
            for mode in [WriteMode::Replace, WriteMode::Append, WriteMode::Create] {
                let at = path(name);
                let write = sandbox.write(&at, bytes("x"), mode);
                let err = tokio::time::timeout(quick, write).await.expect(name).unwrap_err();
                assert!(matches!(err, DriverError::Io { .. }), "{name}: {err}");
            }
        }
        let kinds = sh(&*sandbox, "stat -c %F /srv/fifo /srv/link /srv/socket /dev/zero").await;
        assert_eq!(kinds, "fifo\nsymbolic link\nsocket\ncharacter special file\n");
        assert_eq!(sh(&*sandbox, "find /srv -name '.forkpoint*'").await, "");
    });
}

#[test]
fn large_files_pass_without_being_held() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        sh(&*sandbox, "mkdir -p /srv && cd /srv && truncate -s 300M sparse && echo end >> sparse")
            .await;
        let mut stream = sandbox.read(&path("/srv/sparse")).await.unwrap();
        let (mut len, mut last) = (0, Bytes::new());
        while let Some(chunk) = stream.try_next().await.unwrap() {
            len += chunk.len();
            last = chunk;
        }
        assert_eq!(len, (300 << 20) + 4);
        assert!(last.ends_with(b"end\n"));
        // What grows while it is read, or is cut short, is what it was.
        let mut stream = sandbox.read(&path("/srv/sparse")).await.unwrap();
        stream.try_next().await.unwrap();
        sh(&*sandbox, "rm /srv/sparse").await;
        assert!(stream.try_next().await.unwrap().is_some());
    });
}

async fn names_in_work(sandbox: &dyn Sandbox) -> String {
    sh(sandbox, "ls -A /srv").await
}

#[test]
fn a_write_that_fails_half_way_changes_nothing() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        write(&*sandbox, "/srv/old", "old").await.unwrap();
        // Without root there is one owner.
        let owner = if is_root() { "5:6" } else { "0:0" };
        sh(&*sandbox, &format!("chown {owner} /srv/old && chmod 4751 /srv/old")).await;
        let half =
            || stream::iter([Ok(Bytes::from("half")), Err(io::Error::other("gone"))]).boxed();
        for (name, mode) in
            [("old", WriteMode::Replace), ("new", WriteMode::Replace), ("new", WriteMode::Create)]
        {
            let at = path(&format!("/srv/{name}"));
            let err = sandbox.write(&at, half(), mode).await.unwrap_err();
            assert!(with_causes(&err).ends_with("gone"), "{err}");
        }
        // A caller that goes away, too.
        let forever = stream::iter([Ok(Bytes::from("half"))]).chain(stream::pending()).boxed();
        let at = path("/srv/old");
        let write_forever = sandbox.write(&at, forever, WriteMode::Replace);
        assert!(tokio::time::timeout(Duration::from_millis(200), write_forever).await.is_err());
        let mut names = names_in_work(&*sandbox).await;
        for _ in 0..100 {
            if names == "old\n" {
                break;
            }
            names = names_in_work(&*sandbox).await;
        }
        assert_eq!(names, "old\n");
        assert_eq!(read_text(&*sandbox, "/srv/old").await, "old");

        write(&*sandbox, "/srv/old", "new").await.unwrap();
        let face = sh(&*sandbox, "stat -c '%a %u:%g' /srv/old; cat /srv/old").await;
        assert_eq!(face, format!("4751 {owner}\nnew"));
        let err = sandbox.write(&at, bytes("x"), WriteMode::Create).await.unwrap_err();
        assert!(with_causes(&err).contains("exists"), "{}", with_causes(&err));
    });
}

#[test]
fn odd_and_deep_names_are_named_as_they_are() {
    let Some(scene) = Scene::new(true) else { return };
    let longest = "n".repeat(255);
    let names: [&[u8]; 8] = [
        b"a b",
        b"new\nline",
        b"\xff\xfe",
        b"...",
        b"-rf",
        b"\"quoted\"",
        "\u{1f600}".as_bytes(),
        longest.as_bytes(),
    ];
    scene.run(async {
        let sandbox = scene.create().await;
        for name in names {
            let at = [b"/srv/odd/", name].concat();
            let at = SandboxPath::new(OsStr::from_bytes(&at)).unwrap();
            let content = Bytes::copy_from_slice(name);
            sandbox.write(&at, bytes(content), WriteMode::Create).await.unwrap();
            sandbox.write(&at, bytes("!"), WriteMode::Append).await.unwrap();
            let found: Vec<Bytes> = sandbox.read(&at).await.unwrap().try_collect().await.unwrap();
            assert_eq!(found.concat(), [name, b"!"].concat());
        }
        let mut listed: Vec<Vec<u8>> = Vec::new();
        for entry in sandbox.entries(&path("/srv/odd"), 1).await.unwrap() {
            assert_eq!(entry.kind, EntryKind::File);
            listed.push(entry.path.as_path().file_name().unwrap().as_bytes().to_vec());
        }
        let mut expected = names.map(<[u8]>::to_vec);
        expected.sort();
        assert_eq!(listed, expected);

        let deep = format!("/srv{}", "/deep".repeat(300));
        write(&*sandbox, &format!("{deep}/file"), "deep").await.unwrap();
        assert_eq!(read_text(&*sandbox, &format!("{deep}/file")).await, "deep");
        let entries = sandbox.entries(&path("/srv/deep"), 1000).await.unwrap();
        assert_eq!(entries.len(), 300);
        // Deeper than a path can say.
        let script = "import os\nos.chdir('/srv')\nfor _ in range(1200):\n    os.mkdir('downward'); os.chdir('downward')";
        python(&*sandbox, script).await;
        match sandbox.entries(&path("/srv"), 5000).await {
            Ok(entries) => assert!(entries.len() > 700, "{}", entries.len()),
            Err(err) => assert!(matches!(err, DriverError::Io { .. }), "{}", with_causes(&err)),
        }
        assert_eq!(sh(&*sandbox, "echo still here").await, "still here\n");
    });
}

#[test]
fn a_directory_of_many_is_listed_whole() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        // Names that take most room on the way: no text, and long.
        let script = "
import os
os.chdir('/dev/shm')
for n in range(20000):
    os.close(os.open(b'%05d' % n + b'\\xff' * 250, os.O_CREAT))
";
        python(&*sandbox, script).await;
        let entries = sandbox.entries(&path("/dev/shm"), 1).await.unwrap();
        assert_eq!(entries.len(), 20_000);
    });
}

#[test]
fn somebody_who_kills_the_helpers_harms_only_the_call() {
    let Some(scene) = Scene::new(true) else { return };
    scene.run(async {
        let sandbox = scene.create().await;
        write(&*sandbox, "/srv/file", "content").await.unwrap();
        let killer = "echo on; while :; do kill -9 -1; done";
        let killer = start(&*sandbox, killer).await;
        for _ in 0..30 {
            let quick = Duration::from_secs(30);
            let read = tokio::time::timeout(quick, read(&*sandbox, "/srv/file")).await;
            if let Ok(found) = read.expect("it hangs") {
                assert_eq!(found, b"content");
            }
        }
        killer.control.signal(9).await.unwrap();
        killer.control.wait().await.unwrap();
        assert_eq!(read_text(&*sandbox, "/srv/file").await, "content");
    });
}
