//! A directory as it is, under the sandbox's own changes.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::symlink},
};

use forkpoint_core::{
    driver::{Driver as _, Severity, SnapshotKind},
    path::HostPath,
    spec::WorkspaceMode::Live,
};

use super::{
    super::scene::{seal, sh, start, with_causes},
    *,
};

#[test]
fn a_sandbox_changes_a_directory_for_itself_alone() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let before = tree(&desk.dir());
        let sandbox = desk.enter(Live).await;
        assert_eq!(sh(&*sandbox, "pwd; cat a.txt src/deep/er/file").await, "/workspace\nadeep");
        sh(&*sandbox, "echo x > a.txt; rm -r src; mkdir new; ln b.txt new/b; mv b.txt c").await;
        assert_eq!(sh(&*sandbox, "ls; cat a.txt").await, "a.txt\nc\nnew\nx\n");
        assert_eq!(tree(&desk.dir()), before);
    });
}

#[test]
fn a_sandbox_can_work_in_many_directories() {
    const MANY: usize = 33;
    let desk = Desk::new();
    desk.scene.run(async {
        let mut spec = desk.spec(Live).await;
        let one = spec.workspaces.remove(0);
        for number in 0..MANY {
            desk.write(&format!("{number}/name"), &format!("{number} "));
            let source = HostPath::new(desk.path(&number.to_string())).unwrap();
            let at = SandboxPath::new(format!("/w{number}")).unwrap();
            spec.workspaces.push(Workspace { source, at, ..one.clone() });
        }
        spec.workdir = None;
        let names: String = (0..MANY).map(|number| format!("{number} ")).collect();
        let look = format!("for i in $(seq 0 {}); do cat /w$i/name; done", MANY - 1);
        let sandbox = desk.scene.create_as(&spec).await;
        assert_eq!(sh(&*sandbox, &look).await, names);
        let sealed = seal(&*sandbox).await;
        assert_eq!(sh(&*desk.restore(&spec, &sealed).await, &look).await, names);
    });
}

#[test]
fn what_was_changed_is_in_snapshots_copies_and_rollbacks_and_the_rest_is_the_hosts() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let spec = desk.spec(Live).await;
        let sandbox = desk.scene.create_as(&spec).await;
        sh(&*sandbox, "echo 1 > a.txt; rm src/main.rs").await;
        let idle = seal(&*sandbox).await;
        sh(&*sandbox, "echo 2 > a.txt; rm -r src; mkdir src").await;
        let busy = start(&*sandbox, "echo on; exec sleep 1000").await;
        let second = seal(&*sandbox).await;
        busy.control.signal(9).await.unwrap();
        desk.write("b.txt", "b of the host");
        desk.write("src/new", "new");
        let look = "cat a.txt b.txt; ls src";
        let copy = desk.restore(&spec, &idle).await;
        assert_eq!(sh(&*copy, look).await, "1\nb of the hostdeep\nnew\n");
        let copy = desk.restore(&spec, &second).await;
        assert_eq!(sh(&*copy, look).await, "2\nb of the host");
        desk.scene.driver.rollback(sandbox.id(), &spec, &idle).await.unwrap();
        desk.scene.note(sandbox.id());
        assert_eq!(sh(&*sandbox, look).await, "1\nb of the hostdeep\nnew\n");
        desk.scene.driver.stop(sandbox.id()).await.unwrap();
        desk.scene.driver.start(sandbox.id(), &spec).await.unwrap();
        desk.scene.note(sandbox.id());
        assert_eq!(sh(&*sandbox, look).await, "1\nb of the hostdeep\nnew\n");
    });
}

#[test]
fn a_workspace_may_be_anywhere_and_its_way_stays_where_it_is() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        for at in ["/home/some/body/project", "/usr/local/share/project", "/opt", "/etc/x"] {
            let spec = desk.spec_at(Live, at).await;
            let sandbox = desk.scene.create_as(&spec).await;
            assert_eq!(sh(&*sandbox, "pwd; cat a.txt").await, format!("{at}\na"));
            let script = format!(
                "cd /; echo x > {at}/x; for way in {at} $(dirname {at}); do
                 mv $way /elsewhere; rm -rf $way; mv -T $way /srv; done 2>/dev/null; ls {at}/x"
            );
            // Whatever they took away, the place is there, and after a snapshot too.
            super::super::scene::exec(&*sandbox, &["sh", "-c", &script]).await;
            sh(&*sandbox, &format!("echo y > {at}/y")).await;
            let copy = desk.restore(&spec, &seal(&*sandbox).await).await;
            assert_eq!(sh(&*copy, &format!("cat {at}/y")).await, "y\n");
            assert_eq!(sh(&*sandbox, &format!("cat {at}/y")).await, "y\n");
        }
        assert_eq!(desk.read("a.txt"), "a");
    });
}

#[test]
fn names_that_are_not_text_are_as_good_as_others() {
    let desk = Desk::new();
    let odd = desk.dir().join(OsStr::from_bytes(b"odd \xff\n"));
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join(OsStr::from_bytes(b"\xfe")), "content").unwrap();
    desk.scene.run(async {
        let mut spec = desk.spec(Live).await;
        spec.workspaces[0].source = HostPath::new(&odd).unwrap();
        spec.workspaces[0].at = SandboxPath::new(OsStr::from_bytes(b"/home/\xfd/x")).unwrap();
        spec.workdir = Some(spec.workspaces[0].at.clone());
        let sandbox = desk.scene.create_as(&spec).await;
        assert_eq!(sh(&*sandbox, "cat *; for f in *; do echo new > \"$f\"; done").await, "content");
        let copy = desk.restore(&spec, &seal(&*sandbox).await).await;
        assert_eq!(sh(&*copy, "cat *").await, "new\n");
        desk.apply(&*copy).await;
        assert_eq!(fs::read(odd.join(OsStr::from_bytes(b"\xfe"))).unwrap(), b"new\n");
    });
}

#[test]
fn what_cannot_be_a_workspace_is_refused_with_the_reason() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let at = |source: &Path, at: &str| {
            let (source, at) = (source.to_owned(), at.to_owned());
            let desk = &desk;
            async move {
                let mut spec = desk.spec_at(Live, &at).await;
                spec.workspaces[0].source = HostPath::new(source).unwrap();
                desk.refused(&spec).await
            }
        };
        let root = fs::canonicalize(desk.scene.root()).unwrap();
        symlink("/etc", desk.path("link")).unwrap();
        for (source, place, why) in [
            (desk.path("nothing"), "/w", "is gone"),
            (desk.path("a.txt"), "/w", "is not a directory"),
            (desk.path("link"), "/w", "is not a directory"),
            (root.join("store"), "/w", "lies in our own data directory"),
            (root.parent().unwrap().to_owned(), "/w", "holds our own data directory"),
            (desk.dir(), "/usr", "has `/usr` there"),
            (desk.dir(), "/bin/x", "no directory `/bin`"),
            (desk.dir(), "/etc/passwd/x", "no directory `/etc/passwd`"),
        ] {
            let told = at(&source, place).await;
            assert!(told.contains(why), "{}: {told}", source.display());
        }
    });
}

#[test]
fn a_source_that_is_gone_is_told_before_anything_is_made() {
    let desk = Desk::with_files();
    let moved = desk.dir().with_extension("moved");
    desk.scene.run(async {
        let spec = desk.spec(Live).await;
        let sandbox = desk.scene.create_as(&spec).await;
        let artifact = seal(&*sandbox).await;
        let before = desk.scene.driver.list().await.unwrap();
        fs::rename(desk.dir(), &moved).unwrap();
        let id = desk.scene.new_id();
        let restored = desk.scene.driver.restore(id, &spec, &artifact).await.map(drop);
        let rolled = desk.scene.driver.rollback(sandbox.id(), &spec, &artifact).await.map(drop);
        for result in [restored, rolled] {
            let told = with_causes(&result.unwrap_err());
            assert!(told.contains("is gone"), "{told}");
        }
        assert_eq!(desk.scene.driver.list().await.unwrap(), before);
        fs::rename(&moved, desk.home.path()).unwrap();
        assert_eq!(sh(&*desk.restore(&spec, &artifact).await, "cat a.txt").await, "a");
    });
}

#[test]
fn a_snapshot_of_another_workspace_is_no_place_to_go_back_to() {
    let (desk, other) = (Desk::with_files(), TempDir::new().unwrap());
    desk.scene.run(async {
        let spec = desk.spec(Live).await;
        let sandbox = desk.scene.create_as(&spec).await;
        let mut strange = spec.clone();
        strange.workspaces[0].source =
            HostPath::new(fs::canonicalize(other.path()).unwrap()).unwrap();
        let artifact = seal(&*desk.scene.create_as(&strange).await).await;
        let err = desk.scene.driver.rollback(sandbox.id(), &spec, &artifact).await.map(drop);
        let told = with_causes(&err.unwrap_err());
        assert!(told.contains("another workspace") && told.contains("restore"), "{told}");
        assert_eq!(sh(&*sandbox, "cat a.txt").await, "a");
    });
}

#[test]
fn what_the_host_changes_meanwhile_is_told() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let spec = desk.spec(Live).await;
        let sandbox = desk.scene.create_as(&spec).await;
        let since = next_tick().await;
        // The clock of snapshots is ahead of that of files.
        let since = since.checked_add(std::time::Duration::from_millis(11)).unwrap();
        let drift = |at| desk.scene.driver.drift(&spec, at);
        assert_eq!(drift(since).await.unwrap(), []);
        while next_tick().await < since {}
        desk.write("b.txt", "changed");
        desk.write("src/new", "new");
        fs::remove_file(desk.path("src/deep/er/file")).unwrap();
        let found = drift(since).await.unwrap();
        assert_eq!((found.len(), found[0].changed, found[0].complete), (1, 3, true), "{found:?}");
        let told = found[0].to_string();
        assert!(told.contains("3 entries") && told.contains("`src/deep/er`"), "{told}");
        let findings = desk.scene.driver.validate(sandbox.id(), SnapshotKind::Files).await.unwrap();
        let about = findings.iter().filter(|each| each.severity == Severity::Note);
        let about: Vec<&str> = about.map(|each| each.message.as_str()).collect();
        assert!(about.len() == 1 && about[0].contains("`b.txt`"), "{findings:?}");
        let copied = desk.spec(WorkspaceMode::Copy).await;
        assert_eq!(desk.scene.driver.drift(&copied, since).await.unwrap(), []);
    });
}

/// Deeper than what removes the directory of a test can go.
struct Deep(PathBuf);

impl Drop for Deep {
    fn drop(&mut self) {
        let _ = std::process::Command::new("rm").arg("-rf").arg(&self.0).status();
    }
}

#[test]
fn ten_thousand_levels_are_entered_as_any_other() {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    let desk = Desk::with_files();
    let _deep = Deep(desk.path("d"));
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(CWD, desk.dir(), flags, Mode::empty()).unwrap();
    for _ in 0..10_000 {
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = openat(&at, "d", flags, Mode::empty()).unwrap();
    }
    drop(at);
    desk.scene.run(async {
        for mode in MODES {
            let spec = desk.spec(mode).await;
            let sandbox = desk.scene.create_as(&spec).await;
            sh(&*sandbox, "echo x > a.txt; cd d/d/d/d; echo y > file").await;
            desk.scene.driver.drift(&spec, spec.workspaces[0].since).await.unwrap();
            if mode == Live {
                let drawn = desk.apply(&*sandbox).await;
                assert_eq!(drawn.steps.len(), 2, "{drawn:?}");
            }
        }
    });
}
