//! Looking into states of files, and comparing them.

use std::{path::Path, sync::Arc};

use forkpoint_core::driver::{
    ChangeKind, Driver, FileDiff, FileKind, FileState, FileTree, NewEntry, Sandbox,
};

use super::scene::*;

async fn read_in(tree: &dyn FileTree, at: &str) -> String {
    collect(tree.read(&path(at)).await.unwrap()).await
}

async fn names_in(tree: &dyn FileTree, at: &str) -> Vec<String> {
    let entries = tree.entries(&path(at)).await.unwrap();
    entries.into_iter().map(|(name, _)| name.into_string().unwrap()).collect()
}

fn beginning(fixture: Fixture<'_>, of: &FileState) -> FileState {
    FileState::Beginning { of: Box::new(of.clone()), spec: Box::new(fixture.spec()) }
}

/// Of files: whether directories are told depends on whether the platform has any.
fn told(diff: &FileDiff) -> Vec<String> {
    let is_directory =
        |facts: &forkpoint_core::driver::FileFacts| facts.kind == FileKind::Directory;
    let files = diff
        .changes
        .iter()
        .filter(|change| !change.before.iter().chain(&change.after).any(is_directory));
    files
        .map(|change| {
            let path = change.path.display();
            match &change.kind {
                ChangeKind::Added => format!("A {path}"),
                ChangeKind::Deleted => format!("D {path}"),
                ChangeKind::Changed => format!("M {path}"),
                ChangeKind::Retyped => format!("T {path}"),
                ChangeKind::Attributes => format!("m {path}"),
                ChangeKind::Renamed { from } => format!("R {} {path}", from.display()),
            }
        })
        .collect()
}

async fn changes(driver: &Arc<dyn Driver>, from: &FileState, to: &FileState) -> Vec<String> {
    told(&driver.diff(from, to, &[]).await.unwrap())
}

/// Everything that a small sandbox has to its name.
async fn fill(sandbox: &dyn Sandbox) {
    write(sandbox, "/data/a", "first").await;
    write(sandbox, "/data/deep/b", "second").await;
}

pub async fn states_can_be_looked_into(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    fill(sandbox.as_ref()).await;
    let sealed = seal(fixture, sandbox.as_ref()).await;
    write(sandbox.as_ref(), "/data/a", "later").await;
    let (then, now) = (FileState::Snapshot(sealed.clone()), FileState::Sandbox(sandbox.id()));
    let tree = driver.tree(&then).await.unwrap();
    let tree = tree.as_ref();
    assert_eq!(read_in(tree, "/data/a").await, "first");
    assert_eq!(names_in(tree, "/data").await, ["a", "deep"]);
    let facts = tree.entry(&path("/data/deep/b")).await.unwrap().unwrap();
    assert_eq!((facts.kind, facts.len_bytes, facts.mode), (FileKind::File, 6, 0o644));
    assert_eq!(tree.entry(&path("/")).await.unwrap().unwrap().kind, FileKind::Directory);
    assert_eq!(tree.entry(&path("/data/none")).await.unwrap(), None);
    assert_eq!(tree.entry(&path("/data/a/b")).await.unwrap(), None);
    assert!(tree.entries(&path("/data/a")).await.is_err());
    assert!(tree.read(&path("/data")).await.is_err());

    let live = driver.tree(&now).await.unwrap();
    assert_eq!(read_in(live.as_ref(), "/data/a").await, "later");
    let begun = driver.tree(&beginning(fixture, &then)).await.unwrap();
    assert_eq!(begun.entry(&path("/data")).await.unwrap(), None);
    driver.stop(sandbox.id()).await.unwrap();
    let stopped = driver.tree(&now).await.unwrap();
    assert_eq!(read_in(stopped.as_ref(), "/data/a").await, "later");
    driver.destroy(sandbox.id()).await.unwrap();
    assert_eq!(read_in(driver.tree(&then).await.unwrap().as_ref(), "/data/a").await, "first");
    assert!(driver.tree(&now).await.is_err());
    discard_all(&driver, &sealed).await;
}

pub async fn what_differs_is_told(fixture: Fixture<'_>) {
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    fill(sandbox.as_ref()).await;
    let now = FileState::Sandbox(sandbox.id());
    let begun = beginning(fixture, &now);
    assert_eq!(changes(&driver, &begun, &now).await, ["A /data/a", "A /data/deep/b"]);
    let sealed = seal(fixture, sandbox.as_ref()).await;
    let then = FileState::Snapshot(sealed.clone());
    assert_eq!(changes(&driver, &then, &now).await, [] as [&str; 0]);
    assert_eq!(changes(&driver, &begun, &then).await, ["A /data/a", "A /data/deep/b"]);

    write(sandbox.as_ref(), "/data/a", "other").await;
    write(sandbox.as_ref(), "/data/new", "something new").await;
    run(sandbox.as_ref(), &["rm", "/data/deep/b"]).await;
    let expected = ["M /data/a", "D /data/deep/b", "A /data/new"];
    assert_eq!(changes(&driver, &then, &now).await, expected);
    let back = ["M /data/a", "A /data/deep/b", "D /data/new"];
    assert_eq!(changes(&driver, &now, &then).await, back);
    let deep = driver.diff(&then, &now, &[path("/data/deep")]).await.unwrap();
    assert_eq!(told(&deep), ["D /data/deep/b"]);

    write(sandbox.as_ref(), "/data/a", "first").await;
    let expected = ["D /data/deep/b", "A /data/new"];
    assert_eq!(changes(&driver, &then, &now).await, expected, "it is what it was again");
    driver.destroy(sandbox.id()).await.unwrap();
    discard_all(&driver, &sealed).await;
}

pub async fn directories_links_and_modes_are_made(fixture: Fixture<'_>) {
    if !fixture.real() {
        return;
    }
    let driver = fixture.driver();
    let sandbox = create(fixture, &driver).await;
    let make = async |at: &str, entry| sandbox.make(&path(at), &entry).await;
    let target = Path::new("a").to_owned();
    make("/new/dir", NewEntry::Directory { mode: 0o750 }).await.unwrap();
    make("/new/dir", NewEntry::Directory { mode: 0o700 }).await.unwrap();
    write(sandbox.as_ref(), "/new/dir/a", "#!/bin/sh\necho ran").await;
    make("/new/dir/a", NewEntry::Mode(0o755)).await.unwrap();
    make("/new/dir/link", NewEntry::Symlink { target: "nowhere".into() }).await.unwrap();
    make("/new/dir/link", NewEntry::Symlink { target: target.clone() }).await.unwrap();
    let said =
        shell(sandbox.as_ref(), "stat -c '%a %N' /new/dir /new/dir/link; /new/dir/link").await;
    assert_eq!(said, "750 '/new/dir'\n777 '/new/dir/link' -> 'a'\nran\n");
    let tree = driver.tree(&FileState::Sandbox(sandbox.id())).await.unwrap();
    assert_eq!(tree.read_link(&path("/new/dir/link")).await.unwrap(), target);

    assert!(make("/new/dir/a", NewEntry::Directory { mode: 0o700 }).await.is_err());
    assert!(make("/new/dir", NewEntry::Symlink { target }).await.is_err());
    assert!(make("/new/dir/link", NewEntry::Mode(0o600)).await.is_err());
    assert!(make("/new/none", NewEntry::Mode(0o600)).await.is_err());
    assert_eq!(shell(sandbox.as_ref(), "ls -A /new/dir").await, "a\nlink\n");
    driver.destroy(sandbox.id()).await.unwrap();
}
