//! Looking into snapshots and sandboxes, and comparing them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use forkpoint_core::{
    Engine, Error, ErrorKind,
    driver::ChangeKind,
    engine::{CompareRequest, CreateRequest, Wait},
    spec::SandboxSpec,
};
use forkpoint_testkit::{
    Simulation, World,
    harness::ops::{named, snapshot, write},
};

fn world() -> World {
    World::new(Simulation::in_order())
}

async fn compare(engine: &Engine, from: &str, to: Option<&str>) -> Result<Vec<String>, Error> {
    let request =
        CompareRequest { from: from.to_owned(), to: to.map(str::to_owned), under: Vec::new() };
    let found = engine.compare(&request).await?;
    let mut lines = vec![format!("{} -> {}", found.from.title(), found.to.title())];
    for change in found.diff.changes {
        let mark = match change.kind {
            ChangeKind::Added => "A",
            ChangeKind::Deleted => "D",
            ChangeKind::Changed => "M",
            _ => "?",
        };
        lines.push(format!("{mark} {}", change.path.display()));
    }
    Ok(lines)
}

#[test]
fn one_alone_is_compared_with_what_it_grew_from() {
    world().run(|engine| async move {
        engine.create(named("web")).await.unwrap();
        write(&engine, "web", "/a", "1").await;
        let begun = ["its beginning, template `tiny` -> sandbox `web`", "A /a"];
        assert_eq!(compare(&engine, "web", None).await.unwrap(), begun);
        snapshot(&engine, "web", "one").await;
        let begun = ["its beginning, template `tiny` -> snapshot `one`", "A /a"];
        assert_eq!(compare(&engine, "one", None).await.unwrap(), begun);
        write(&engine, "web", "/a", "2").await;
        snapshot(&engine, "web", "two").await;
        write(&engine, "web", "/b", "3").await;
        let now = ["snapshot `two` -> sandbox `web`", "A /b"];
        assert_eq!(compare(&engine, "web", None).await.unwrap(), now);
        let then = ["snapshot `one` -> snapshot `two`", "M /a"];
        assert_eq!(compare(&engine, "two", None).await.unwrap(), then);
        let back = ["sandbox `web` -> snapshot `one`", "M /a", "D /b"];
        assert_eq!(compare(&engine, "web", Some("web@2")).await.unwrap(), back);
        // What is deleted is passed over.
        engine.delete_snapshot("two", Wait::No).await.unwrap();
        let now = ["snapshot `one` -> sandbox `web`", "M /a", "A /b"];
        assert_eq!(compare(&engine, "web", None).await.unwrap(), now);
    });
}

#[test]
fn what_cannot_be_compared_is_said() {
    world().run(|engine| async move {
        engine.create(named("web")).await.unwrap();
        let other = SandboxSpec::new("other".parse().unwrap());
        let name = Some("other".parse().unwrap());
        engine.create(CreateRequest { name, ..CreateRequest::new(other) }).await.unwrap();
        let err = compare(&engine, "web", Some("other")).await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Invalid);
        assert_eq!(
            err.to_string(),
            "sandbox `web` and sandbox `other` cannot be compared: their templates are `tiny` and `other`"
        );
        let err = compare(&engine, "nobody", None).await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::NotFound);
        // A name that two have is the sandbox's.
        let taken = snapshot(&engine, "web", "other").await;
        assert_eq!(engine.look("other").await.unwrap().title(), "sandbox `other`");
        assert_eq!(engine.look("other@latest").await.unwrap_err().kind(), ErrorKind::NotFound);
        engine.look(&taken.id.to_string()).await.unwrap();
    });
}

#[test]
fn a_path_leads_where_it_would_inside() {
    world().run(|engine| async move {
        engine.create(named("web")).await.unwrap();
        write(&engine, "web", "/data/deep/a", "1").await;
        let look = engine.look("web").await.unwrap();
        let found: BTreeMap<&str, Option<PathBuf>> = all_of(&look).await;
        let at = |path: &str| Some(PathBuf::from(path));
        assert_eq!(found["data/deep/a"], at("/data/deep/a"));
        assert_eq!(found["/data/deep/../deep/./a"], at("/data/deep/a"));
        assert_eq!(found["/../../data"], at("/data"));
        assert_eq!(found["/data/deep/a/../a"], None, "a file is no way");
        assert_eq!(found["/data/none/../deep"], None);
        let err = look.expect(Path::new("/none")).await.unwrap_err();
        assert_eq!(err.to_string(), "there is no `/none` in sandbox `web`");
        assert_eq!(err.kind(), ErrorKind::NotFound);
    });
}

async fn all_of(look: &forkpoint_core::engine::Look) -> BTreeMap<&'static str, Option<PathBuf>> {
    let mut found = BTreeMap::new();
    for path in [
        "data/deep/a",
        "/data/deep/../deep/./a",
        "/../../data",
        "/data/deep/a/../a",
        "/data/none/../deep",
    ] {
        let spot = look.follow(Path::new(path)).await.unwrap();
        found.insert(path, spot.map(|spot| spot.path.as_path().to_owned()));
    }
    found
}
