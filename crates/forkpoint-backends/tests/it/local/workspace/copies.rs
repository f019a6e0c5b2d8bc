//! A directory that is copied when the sandbox begins.

use std::fs;

use forkpoint_core::{
    driver::{Command, Driver as _, ExitStatus, FileState},
    spec::WorkspaceMode::Copy,
};

use super::{
    super::scene::{Scene, finish, seal, sh, with_causes},
    *,
};

fn layers(scene: &Scene) -> Vec<String> {
    let entries = fs::read_dir(scene.root().join("store/layers")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_copy_stays_what_it_was() {
    let desk = Desk::with_files();
    set_mode(&desk.path("b.txt"), 0o751);
    desk.scene.run(async {
        let sandbox = desk.enter(Copy).await;
        desk.write("a.txt", "later");
        fs::remove_dir_all(desk.path("src")).unwrap();
        let look = "cat a.txt src/main.rs; stat -c %a b.txt; ls";
        assert_eq!(sh(&*sandbox, look).await, "amain751\na.txt\nb.txt\nsrc\n");
        sh(&*sandbox, "echo x > b.txt; rm -r src").await;
        assert_eq!(desk.read("b.txt"), "b");
    });
}

/// A layer's root is that of the sandbox: the store's own mode would lock out everybody but root.
#[test]
fn the_root_of_a_sandbox_with_a_copy_looks_as_without() {
    let desk = Desk::with_files();
    let look = "stat -c '%a %u %g %Y' /";
    desk.scene.run(async {
        let plain = desk.scene.create_as(&spec()).await;
        let expected = sh(&*plain, look).await;
        let spec = desk.spec(Copy).await;
        let sandbox = desk.scene.create_as(&spec).await;
        let restored = desk.restore(&spec, &seal(&*sandbox).await).await;
        for sandbox in [sandbox, restored] {
            assert_eq!(sh(&*sandbox, look).await, expected);
            if rustix::process::geteuid().is_root() {
                let user = Some("nobody".to_owned());
                let command = Command { user, ..Command::new(["cat", "/etc/os-release"]) };
                let process = sandbox.exec(&command).await.unwrap();
                let (told, status) = finish(process).await;
                assert_eq!(status, ExitStatus::Code(0), "{told}");
            }
        }
    });
}

#[test]
fn the_copy_goes_with_the_sandbox_or_with_the_last_snapshot_of_it() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let (driver, scene) = (&desk.scene.driver, &desk.scene);
        let spec = desk.spec(Copy).await;
        let sandbox = scene.create_as(&spec).await;
        assert_eq!(layers(scene).len(), 1);
        driver.destroy(sandbox.id()).await.unwrap();
        assert_eq!(layers(scene), [] as [String; 0], "without a snapshot");

        let sandbox = scene.create_as(&spec).await;
        sh(&*sandbox, "echo x > a.txt").await;
        let artifact = seal(&*sandbox).await;
        assert_eq!(artifact.pieces.len(), 2, "{artifact:?}");
        assert_eq!(artifact.pieces[0].over.as_ref(), Some(&artifact.pieces[1].name));
        driver.destroy(sandbox.id()).await.unwrap();
        assert_eq!(layers(scene).len(), 2, "the snapshot has it now");
        let copy = desk.restore(&spec, &artifact).await;
        assert_eq!(sh(&*copy, "cat a.txt b.txt").await, "x\nb");
        driver.destroy(copy.id()).await.unwrap();
        for piece in &artifact.pieces {
            driver.discard(&piece.name).await.unwrap();
        }
        assert_eq!(layers(scene), [] as [String; 0]);

        let sandbox = scene.create_as(&spec).await;
        let artifact = seal(&*sandbox).await;
        driver.unseal(artifact.snapshot).await.unwrap();
        driver.destroy(sandbox.id()).await.unwrap();
        assert_eq!(layers(scene), [] as [String; 0], "after a snapshot that never came to be");
    });
}

#[test]
fn a_copy_for_a_sandbox_that_never_came_to_be_is_cleared_away() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let sandbox = desk.enter(Copy).await;
        let id = sandbox.id();
        desk.scene.driver.stop(id).await.unwrap();
        let pin = layers(&desk.scene).remove(0);
        // As somebody leaves it who is killed between the copy and the launch.
        let place = desk.scene.place(id);
        fs::remove_file(place.join("record.json")).unwrap();
        fs::write(place.join("pinned"), &pin).unwrap();
        desk.scene.driver.destroy(id).await.unwrap();
        assert_eq!(layers(&desk.scene), [] as [String; 0]);
        assert!(!place.exists());
        // A note that names the copy of another is not believed.
        let (other, third) = (desk.enter(Copy).await, desk.enter(Copy).await);
        desk.scene.driver.stop(third.id()).await.unwrap();
        let place = desk.scene.place(third.id());
        let theirs = layers(&desk.scene);
        let theirs = theirs.iter().find(|name| name.contains(&other.id().to_string()[3..]));
        fs::remove_file(place.join("record.json")).unwrap();
        fs::write(place.join("pinned"), theirs.unwrap()).unwrap();
        desk.scene.driver.destroy(third.id()).await.unwrap();
        assert!(layers(&desk.scene).contains(theirs.unwrap()));
    });
}

#[test]
fn a_file_that_may_not_be_read_is_named() {
    let desk = Desk::with_files();
    if rustix::process::geteuid().is_root() {
        return; // Root may read everything.
    }
    set_mode(&desk.path("b.txt"), 0);
    desk.scene.run(async {
        let told = desk.refused(&desk.spec(Copy).await).await;
        assert!(told.contains("b.txt"), "{told}");
        assert_eq!(layers(&desk.scene), [] as [String; 0]);
        // A live one is just seen with its mode.
        let sandbox = desk.enter(WorkspaceMode::Live).await;
        assert_eq!(sh(&*sandbox, "stat -c %a b.txt").await, "0\n");
    });
    set_mode(&desk.path("b.txt"), 0o600);
}

#[test]
fn a_long_row_of_snapshots_still_knows_what_it_began_with() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let spec = desk.spec(Copy).await;
        let sandbox = desk.scene.create_as(&spec).await;
        let mut last = None;
        for number in 0..45 {
            sh(&*sandbox, &format!("echo {number} > number; rm -f b.txt")).await;
            last = Some(seal(&*sandbox).await);
        }
        let report = desk.scene.driver.apply(&FileState::Snapshot(last.unwrap()), &forced()).await;
        let told = steps(&report.unwrap());
        let expected =
            [("b.txt".to_owned(), ApplyStep::Delete), ("number".to_owned(), ApplyStep::Create)];
        assert_eq!(told, expected);
        assert_eq!(desk.read("number"), "44\n");
        sh(&*sandbox, "echo more > number").await;
        desk.apply(&*sandbox).await;
        assert_eq!(desk.read("number"), "more\n");
    });
}

#[test]
fn a_workspace_that_was_removed_and_made_again_comes_home_as_it_is() {
    for sealed in [false, true] {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let sandbox = desk.enter(Copy).await;
            let script = "cd /; rm -rf /workspace; mkdir /workspace; echo n > /workspace/n";
            sh(&*sandbox, script).await;
            if sealed {
                seal(&*sandbox).await;
            }
            desk.apply(&*sandbox).await;
            assert_eq!(tree(&desk.dir()).keys().collect::<Vec<_>>(), [Path::new("n")]);
        });
    }
}

#[test]
fn a_workspace_that_is_no_directory_any_more_is_refused() {
    let scripts = [
        "cd /; rm -rf /deep/workspace",
        "cd /; rm -rf /deep/workspace; mkdir /else; ln -s /else /deep/workspace",
        "cd /; mv /deep /deeper",
    ];
    for script in scripts {
        let desk = Desk::with_files();
        desk.scene.run(async {
            let spec = desk.spec_at(Copy, "/deep/workspace").await;
            let sandbox = desk.scene.create_as(&spec).await;
            sh(&*sandbox, script).await;
            let before = tree(&desk.dir());
            let err = desk.try_apply(&*sandbox, &forced()).await.unwrap_err();
            let told = with_causes(&err);
            assert!(told.contains("no directory `/deep/workspace` any more"), "{script}: {told}");
            assert_eq!(tree(&desk.dir()), before);
        });
    }
}

/// What was there in the beginning stays apart from what was changed.
#[test]
fn a_copy_travels_with_what_it_was() {
    let desk = Desk::with_files();
    desk.scene.run(async {
        let spec = desk.spec(Copy).await;
        let sandbox = desk.scene.create_as(&spec).await;
        sh(&*sandbox, "echo x > b.txt; rm -r src; echo new > new.txt").await;
        let artifact = seal(&*sandbox).await;
        let driver = &desk.scene.driver;
        let parts = driver.export(&artifact).await.unwrap();
        let snapshot = super::super::scene::new_snapshot();
        let came = driver.import(snapshot, parts).await.unwrap();
        assert_eq!(came.pieces.len(), 2, "{:?}", came.pieces);
        let changes = async |artifact: &Artifact| {
            let of = FileState::Snapshot(artifact.clone());
            let spec = Box::new(spec.clone());
            let beginning = FileState::Beginning { of: Box::new(of.clone()), spec };
            driver.diff(&beginning, &of, &[]).await.unwrap()
        };
        assert_eq!(changes(&came).await, changes(&artifact).await);
        assert!(!changes(&came).await.changes.is_empty());
        let copy = desk.restore(&spec, &came).await;
        assert_eq!(
            sh(&*copy, "cat a.txt b.txt new.txt; ls").await,
            "ax\nnew\na.txt\nb.txt\nnew.txt\n"
        );
        desk.apply(&*copy).await;
        assert_eq!(
            (desk.read("b.txt"), desk.read("new.txt")),
            ("x\n".to_owned(), "new\n".to_owned())
        );
        assert!(!desk.path("src").exists());
    });
}
