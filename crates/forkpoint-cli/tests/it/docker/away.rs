//! An engine that is not there, goes away or comes back.

use forkpoint_backends::catalog::SqliteCatalog;
use forkpoint_core::{
    catalog::{Catalog as _, NewSandbox, Operation, OperationKind},
    id::{OperationId, SandboxId},
};

use super::Dock;
use crate::harness::{Home, Run, assert_told};

fn without(home: &Home, host: &str, args: &[&str]) -> Run {
    let mut command = home.command(args);
    Run::of(command.env("DOCKER_HOST", host).output().expect("the binary starts"))
}

#[test]
fn nothing_but_containers_needs_an_engine() {
    let home = Home::new();
    let nowhere = format!("unix://{}/no.sock", home.path().display());
    for args in [&["create", "--name", "web"][..], &["snapshot", "web"], &["ps"], &["stats"]] {
        let run = without(&home, &nowhere, args);
        assert_eq!(run.code, Some(0), "{run:?}");
    }
    let run = without(&home, &nowhere, &["snapshot", "docker:web"]);
    assert_told!("no_engine", run.told());
    let run = without(&home, "ssh://somewhere", &["ps", "-q"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{run:?}");
    let run = without(&home, "ssh://somewhere", &["snapshot", "docker:web"]);
    assert_told!("odd_host", run.told());
}

#[test]
fn doctor_tells_of_the_engine() {
    let dock = Dock::new();
    let told = dock.ok(&["doctor", "--json"]).json();
    assert_eq!(told["docker"]["works"], true, "{told}");
    let check = |name: &str| {
        let checks = told["docker"]["checks"].as_array().expect("checks").iter();
        checks.clone().find(|check| check["name"] == name).expect("such a check").clone()
    };
    let detail = check("engine")["detail"].as_str().expect("a text").to_owned();
    assert!(detail.contains(dock.engine.host().as_str()) && detail.contains("API"), "{detail}");
    assert_eq!(check("storage")["verdict"], "yes");
    assert!(check("checkpoints")["detail"].is_string());
    let text = dock.ok(&["doctor"]).stdout;
    assert!(text.contains("\ndriver docker\n") && text.contains("can be snapshotted"), "{text}");

    let nowhere = format!("unix://{}/no.sock", dock.home.path().display());
    let run = without(&dock.home, &nowhere, &["doctor"]);
    assert_eq!(run.code, Some(0), "the default driver works: {run:?}");
    let section = run.stdout.split("driver docker\n").nth(1).expect("a section").to_owned();
    assert_told!("doctor_without_an_engine", section);
}

#[test]
fn what_is_known_is_read_while_the_engine_is_away() {
    let dock = Dock::new();
    let web = dock.reference("web");
    dock.start("web", &[]);
    let snapshot = dock.ok(&["snapshot", &web]).id().to_owned();
    let nowhere = format!("unix://{}/no.sock", dock.home.path().display());
    let away = |args: &[&str]| without(&dock.home, &nowhere, args);
    assert!(away(&["ps"]).stdout.contains("unknown"));
    assert_eq!(away(&["list", "-q", "--sandbox", &web]).stdout.trim_end(), snapshot);
    assert_eq!(away(&["show", &format!("{web}@latest")]).code, Some(0));
    for args in [&["snapshot", &web][..], &["rollback", &web], &["restore", &snapshot]] {
        let run = away(args);
        assert_eq!(run.code, Some(1), "{run:?}");
        assert!(run.stderr.contains("no.sock"), "{run:?}");
    }
    assert_eq!(dock.ok(&["stats", "--json"]).json()["open_operations"], 0, "recovered");
    dock.ok(&["rollback", &web]);
}

/// An operation of a process that is gone.
fn leave_open(home: &Home) {
    let catalog = SqliteCatalog::open(home.path().join("data/catalog.db")).expect("a catalog");
    let sandbox = NewSandbox { id: SandboxId::from_u128(4711), name: None };
    let operation = Operation {
        id: OperationId::from_u128(7),
        driver: "docker".to_owned(),
        kind: OperationKind::Create { sandbox },
        started: "2026-08-15T09:50:55Z".parse().expect("a time"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(catalog.begin(&operation)).expect("nobody else holds it");
}

#[test]
fn what_was_left_open_waits_for_the_engine() {
    let dock = Dock::new();
    dock.ok(&["ps"]);
    leave_open(&dock.home);
    let nowhere = format!("unix://{}/no.sock", dock.home.path().display());
    let run = without(&dock.home, &nowhere, &["-v", "create", "--name", "web"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stderr.contains("waits for the next recovery"), "{run:?}");
    let stats = without(&dock.home, &nowhere, &["stats", "--json"]).json();
    assert_eq!(stats["open_operations"], 1);
    let run = dock.ok(&["-v", "ps"]);
    assert!(run.stderr.contains("recovery undid operation"), "{run:?}");
    assert_eq!(dock.ok(&["stats", "--json"]).json()["open_operations"], 0);
}
