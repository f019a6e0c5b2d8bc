//! The machine restarts: no process is left, no cgroup, and it is another boot; the files are as they were.

use std::{fs, path::Path};

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{Home, until};

/// Of all sandboxes.
fn restart(home: &Home) {
    for id in home.sandboxes() {
        let path = home.path().join("data/local/sandboxes").join(&id).join("record.json");
        let record = fs::read(&path).expect("a record");
        let mut record: Value = serde_json::from_slice(&record).expect("a record");
        if !record["init"].is_object() {
            continue;
        }
        let init = home.init_of(&id);
        kill_process(init, Signal::KILL).expect("it is killed");
        let cgroups = cgroups(&record);
        for cgroup in &cgroups {
            // What stands still dies when it goes on.
            let _ = fs::write(Path::new(cgroup).join("cgroup.freeze"), "0");
            let _ = fs::write(Path::new(cgroup).join("freezer.state"), "THAWED");
        }
        assert!(until(|| !is_alive(init.as_raw_nonzero().get())), "{id}");
        let gone = |cgroup: &String| !Path::new(cgroup).exists() || fs::remove_dir(cgroup).is_ok();
        assert!(until(|| cgroups.iter().all(gone)), "{cgroups:?}");
        record["init"]["boot"] = json!("another");
        fs::write(&path, record.to_string()).expect("a record");
    }
}

fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

fn cgroups(record: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect(&record["cgroup"], &mut found);
    found
}

fn collect(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(path) if path.starts_with('/') => found.push(path.clone()),
        Value::Array(all) => all.iter().for_each(|each| collect(each, found)),
        Value::Object(all) => all.values().for_each(|each| collect(each, found)),
        _ => {}
    }
}

fn states(home: &Home) -> Vec<(String, String)> {
    let told = home.ok(["ps", "--json"]).json();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let all = told["sandboxes"].as_array().expect("a list").iter();
    let mut states: Vec<_> = all.map(|each| (text(&each["name"]), text(&each["state"]))).collect();
    states.sort();
    states
}

fn all(state: &str) -> Vec<(String, String)> {
    NAMES.map(|name| (name.to_owned(), state.to_owned())).to_vec()
}

const NAMES: [&str; 4] = ["copy", "paused", "running", "stopped"];

#[test]
fn after_a_restart_of_the_machine_the_truth_is_told_and_everything_comes_back() {
    let home = Home::new();
    for name in ["running", "paused", "stopped"] {
        home.ok(["create", "--name", name]);
        home.sh(name, &format!("echo {name} 1 > /srv/text; rm -rf /usr/share/doc"));
        home.ok(["snapshot", name, "--name", &format!("{name}-idle")]);
        home.sh(name, &format!("echo {name} 2 > /srv/text; sleep 1000 > /dev/null 2>&1 &"));
        home.ok(["snapshot", name, "--name", &format!("{name}-busy")]);
    }
    home.ok(["restore", "running-idle", "--name", "copy"]);
    home.sh("copy", "echo copy 2 > /srv/text");
    for name in NAMES {
        home.sh(name, &format!("echo {name} 3 >> /srv/text"));
    }
    home.ok(["pause", "paused"]);
    home.ok(["stop", "stopped"]);
    restart(&home);

    assert_eq!(states(&home), all("stopped"));
    let run = home.run(["exec", "paused", "--", "true"]);
    assert!(run.stderr.contains("hint: `forkpoint start paused` starts it"), "{run:?}");
    for name in NAMES {
        home.ok(["start", name]);
        assert_eq!(home.sh(name, "cat /srv/text"), format!("{name} 2\n{name} 3\n"));
        assert_eq!(home.sh(name, "ls -d /usr/share/doc 2> /dev/null | wc -l"), "0\n");
    }
    assert_eq!(states(&home), all("running"));
    for name in ["running", "paused", "stopped"] {
        for (kind, number) in [("idle", 1), ("busy", 2)] {
            let copy = home.ok(["restore", &format!("{name}-{kind}")]).id().to_owned();
            assert_eq!(home.sh(&copy, "cat /srv/text"), format!("{name} {number}\n"));
            home.ok(["rm", "--force", &copy]);
        }
    }

    restart(&home);
    home.ok(["rollback", "running", "running-idle"]);
    assert_eq!(home.sh("running", "cat /srv/text"), "running 1\n");
    home.ok(["snapshot", "stopped", "--name", "after"]);
    let copy = home.ok(["restore", "after"]).id().to_owned();
    assert_eq!(home.sh(&copy, "cat /srv/text"), "stopped 2\nstopped 3\n");
    home.ok(["rm", "--force", "copy", "paused"]);
}
