//! `--memory`, `--cpus` and `--pids` hold. That they are refused where they cannot be had, `without_root.rs` tells.

use std::{fs, path::PathBuf};

use serde_json::Value;

use crate::harness::Home;

/// The first of these files that one of the sandbox's cgroups has.
fn read(home: &Home, id: &str, names: [&str; 2]) -> String {
    let record = home.path().join("data/local/sandboxes").join(id).join("record.json");
    let record: Value =
        serde_json::from_slice(&fs::read(record).expect("a record")).expect("a document");
    let cgroup = &record["cgroup"];
    let v1 = cgroup["v1"].as_array().into_iter().flatten();
    let places = v1.chain([&cgroup["unified"]]).filter_map(Value::as_str).map(PathBuf::from);
    let files = places.flat_map(|place| names.map(|name| place.join(name)));
    files.filter_map(|file| fs::read_to_string(file).ok()).next().expect("a limit")
}

#[test]
fn limits_of_the_command_line_hold() {
    if !rustix::process::geteuid().is_root() {
        return; // Nobody gave us a cgroup.
    }
    let home = Home::new();
    let args = ["create", "--name", "web", "--memory=64M", "--cpus=0.5", "--pids=20"];
    let id = home.ok(args).id().to_owned();
    let hog = "head -c 300M /dev/zero | tail -c 290M > /dev/null";
    let run = home.run(["exec", "web", "--", "sh", "-c", hog]);
    assert_eq!(run.code, Some(137), "{run:?}");
    let crowd = "for n in $(seq 40); do sleep 1000 & done";
    let run = home.run(["exec", "web", "--", "sh", "-c", crowd]);
    assert!(run.code != Some(0) && run.stderr.contains("fork"), "{run:?}");
    let share = read(&home, &id, ["cpu.cfs_quota_us", "cpu.max"]);
    assert!(["50000", "50000 100000"].contains(&share.trim()), "{share}");
    // A copy has the limits of its source.
    home.ok(["snapshot", "web", "--name", "good"]);
    let copy = home.ok(["fork", "web"]).id().to_owned();
    let run = home.run(["exec", &copy, "--", "sh", "-c", hog]);
    assert_eq!(run.code, Some(137), "{run:?}");
}
