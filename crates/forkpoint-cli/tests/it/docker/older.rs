//! The older manager's surface, through ours.

use std::fs;

use serde_json::json;

use super::Dock;

#[test]
fn its_configuration_and_its_commands_work() {
    let dock = Dock::new();
    let web = dock.reference("web");
    dock.start("web", &[]);
    let config = dock.home.path().join("config.json");
    let data = dock.home.path().join("data");
    let written = json!({
        "triggers": ["run_start", "run_end", "manual"], "storage_path": data,
        "max_snapshots_per_container": 2, "max_total_snapshots": 100, "max_storage_size_gb": 5.0,
        "auto_cleanup_days": 7, "naming_pattern": "{container_name}_{trigger}_{timestamp}",
    });
    fs::write(&config, written.to_string()).expect("a file");
    let config = config.to_str().expect("a path");
    let older = |args: &[&str]| dock.run(&[&["--config", config], args].concat());

    for number in 0..3 {
        dock.sh("web", &format!("echo {number} > /note"));
        let run =
            older(&["snapshot", &web, "--trigger", "manual", "--run-id", "r7", "-m", "by hand"]);
        assert_eq!(run.code, Some(0), "{run:?}");
    }
    let off = older(&["snapshot", &web, "--trigger", "after_action"]);
    assert!(off.code == Some(0) && off.stderr.contains("not enabled"), "{off:?}");
    let listed = older(&["list", "--container", &web, "--limit", "5", "--json-output"]).json();
    let rows = listed["snapshots"].as_array().expect("rows");
    assert_eq!(rows.len(), 2, "the limit of each container bites, by name too: {listed}");
    let prefix = format!("{}_manual_", dock.name("web"));
    assert!(rows[0]["name"].as_str().is_some_and(|name| name.starts_with(&prefix)), "{listed}");

    let planned = older(&["cleanup", "--max-age-days", "0", "--dry-run", "--json"]).json();
    assert_eq!(planned["dry_run"], true);
    assert_eq!(older(&["list", "-q"]).stdout.lines().count(), 2, "a dry run is dry");
    let cleaned = older(&["cleanup", "--max-age-days", "0", "--force"]);
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
    assert_eq!(older(&["list", "-q"]).stdout.lines().count(), 1, "the newest stays");

    let stats = older(&["stats", "--json"]).json();
    assert!(stats["stored_bytes"].as_u64() < stats["total_bytes"].as_u64(), "{stats}");
    assert_eq!(older(&["validate", &web]).code, Some(0));
    assert!(older(&["validate", &web, "--full", "--json"]).json()["findings"].is_array());
    let latest = format!("{web}@latest");
    let args = ["restore", &latest, "--container-name", &dock.name("old")];
    assert_eq!(older(&args).code, Some(0));
    assert_eq!(dock.sh("old", "cat /note"), "2");
    assert_eq!(older(&["delete", "--force", &latest]).code, Some(0));
}

#[test]
fn layers_that_are_shared_are_counted_once() {
    let dock = Dock::new();
    let web = dock.reference("web");
    dock.start("web", &[]);
    dock.sh("web", "dd if=/dev/urandom of=/large bs=1M count=4 2>/dev/null");
    for number in 0..5 {
        dock.sh("web", &format!("echo {number} > /note"));
        dock.ok(&["snapshot", &web]);
    }
    let stats = dock.ok(&["stats", "--json"]).json();
    let stored = stats["stored_bytes"].as_u64().expect("a number");
    assert!((4 << 20..8 << 20).contains(&stored), "four megabytes once: {stats}");
    assert!(stats["total_bytes"].as_u64().expect("a number") > 5 * (4 << 20), "{stats}");
}
