//! `import-legacy`: what the older manager kept.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use super::Dock;
use crate::harness::assert_told;

const ID: &str = "0d2f7a4e-9c1b-4e8a-b6b1-3a1f5c7d9e20";
const LOST: &str = "1d2f7a4e-9c1b-4e8a-b6b1-3a1f5c7d9e20";

/// As the older manager would have kept a container: an image, a document and an index.
fn keep(dock: &Dock, of: &str) -> PathBuf {
    let name = dock.name(of);
    let tag = format!("cua-snapshot/{name}:manual-20250815_095055");
    let image = dock.docker(["commit", &name, &tag]);
    let told = dock.inspect(of);
    let storage = dock.home.path().join("snapshots");
    fs::create_dir_all(storage.join("metadata")).expect("a directory");
    let document = json!({
        "snapshot_id": ID, "container_id": told["Id"], "container_name": name,
        "timestamp": "2025-08-15T09:50:55", "trigger": "manual", "action_context": null,
        "run_id": "r1", "status": "completed", "image_id": image, "image_tag": tag,
        "size_bytes": 8_294_400, "description": "kept", "labels": {"cua.snapshot.version": "1.0"},
        "agent_metadata": {
            "original_config": told["Config"], "original_mounts": told["Mounts"],
            "original_network_settings": told["NetworkSettings"],
        },
        "parent_snapshot_id": null, "restoration_count": 3,
    });
    write(&storage, ID, &document);
    let mut lost = document;
    lost["snapshot_id"] = json!(LOST);
    lost["image_id"] = json!(format!("sha256:{}", "0".repeat(64)));
    lost["parent_snapshot_id"] = json!(ID);
    write(&storage, LOST, &lost);
    fs::write(storage.join("metadata/half.json"), "{\"snapshot_id\": \"ha").expect("a file");
    fs::write(storage.join("index.json"), "{\"snapshots\": {").expect("a file");
    storage
}

fn write(storage: &std::path::Path, id: &str, document: &Value) {
    fs::write(storage.join(format!("metadata/{id}.json")), document.to_string()).expect("a file");
}

#[test]
fn what_the_older_manager_kept_is_restored_and_stays_theirs() {
    let dock = Dock::new();
    let web = dock.reference("web");
    dock.start("web", &["-p", "80", "-e", "MODE=old"]);
    dock.sh("web", "echo kept > /note");
    let storage = keep(&dock, "web");
    let path = storage.to_str().expect("a path");

    let planned = dock.run(&["import-legacy", path, "--dry-run"]);
    assert!(planned.stderr.contains("would take over 2 snapshots"), "{planned:?}");
    assert_eq!(dock.ok(&["list", "-q"]).stdout, "");
    let run = dock.run(&["import-legacy", path]);
    assert_told!("import_legacy", run.told());
    let again = dock.run(&["import-legacy", path, "--json"]);
    assert_eq!(again.code, Some(1), "{again:?}");
    let rows = again.json();
    let fates: Vec<_> = rows["snapshots"].as_array().expect("rows").iter().collect();
    let fate = |id: &str| &fates.iter().find(|row| row["legacy_id"] == id).expect("it")["outcome"];
    assert_eq!(
        (fate(ID), fate(LOST), fate("half")),
        (&json!("known"), &json!("failed"), &json!("failed"))
    );

    let listed = dock.ok(&["list", "--container", &web, "--json-output"]).json();
    let snapshot = &listed["snapshots"][0];
    assert_eq!(snapshot["created"], "2025-08-15T09:50:55Z");
    assert_eq!((&snapshot["restore_count"], &snapshot["run_id"]), (&json!(3), &json!("r1")));
    assert_eq!(snapshot["labels"]["legacy.snapshot"], ID);
    dock.docker(["rm", "-f", &dock.name("web")]);
    dock.ok(&["restore", &format!("{web}@latest"), "--container-name", &dock.name("again")]);
    assert_eq!(dock.sh("again", "cat /note; echo $MODE"), "kept\nold");

    let id = snapshot["id"].as_str().expect("an id").to_owned();
    dock.ok(&["rm", "--force", &dock.reference("again")]);
    dock.ok(&["delete", "--force", &id]);
    let image = format!("cua-snapshot/{}:manual-20250815_095055", dock.name("web"));
    assert!(dock.docker(["image", "inspect", &image]).contains("sha256:"), "theirs");
    let ours = dock.docker(["images", "-q", &format!("forkpoint/{id}")]);
    assert_eq!(ours, "", "and ours is gone");
    dock.docker(["rmi", &image]);
}

#[test]
fn what_is_no_storage_is_told() {
    let dock = Dock::new();
    let empty = dock.home.path().join("empty");
    fs::create_dir(&empty).expect("a directory");
    let run = dock.run(&["import-legacy", empty.to_str().expect("a path")]);
    assert!(run.code == Some(3) && run.stderr.contains("no `metadata`"), "{run:?}");
    fs::create_dir(empty.join("metadata")).expect("a directory");
    let run = dock.ok(&["import-legacy", empty.to_str().expect("a path")]);
    assert!(run.stderr.contains("took over 0 snapshots"), "{run:?}");
}

#[test]
fn an_engine_that_cannot_be_found_is_told() {
    let dock = Dock::new();
    let storage = dock.home.path().join("snapshots");
    fs::create_dir_all(storage.join("metadata")).expect("a directory");
    let mut command = dock.home.command(["import-legacy", storage.to_str().expect("a path")]);
    let output = command.env("DOCKER_HOST", "ssh://somewhere").output().expect("the binary starts");
    let run = crate::harness::Run::of(output);
    assert!(run.code == Some(2) && run.stderr.contains("`ssh://` is not spoken here"), "{run:?}");
}
