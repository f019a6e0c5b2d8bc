//! `create`, `ps`, `rm`, `stop`, `start`, `pause`, `resume` and `doctor`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{Home, assert_told};

fn states(home: &Home) -> Vec<(String, String)> {
    let listing = home.ok(["ps", "--json"]).json();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let all = listing["sandboxes"].as_array().expect("a list").iter();
    all.map(|sandbox| (text(&sandbox["name"]), text(&sandbox["state"]))).collect()
}

fn state(home: &Home) -> String {
    states(home).pop().expect("one sandbox").1
}

#[test]
fn doctor_says_that_this_machine_will_do() {
    let home = Home::new();
    let report = home.ok(["doctor", "--json"]).json();
    assert_eq!(report["works"], json!(true), "{report}");
    assert!(report["checks"].as_array().is_some_and(|checks| !checks.is_empty()), "{report}");
    let told = home.ok(["doctor"]).stdout;
    assert!(told.contains("this machine can run sandboxes"), "{told}");
}

#[test]
fn create_prints_the_id_alone_and_tells_the_rest_on_stderr() {
    let home = Home::new();
    let run = home.ok(["create", "--name", "web"]);
    assert!(run.id().starts_with("sbx"), "{run:?}");
    assert_told!(run.stderr, @"created sandbox `web`");
    let quiet = home.ok(["create", "-q"]);
    assert_eq!(quiet.stderr, "");
    assert_eq!(home.ok(["ps", "-q"]).stdout.lines().count(), 2);
}

#[test]
fn create_as_json_says_what_was_asked_for_without_its_environment() {
    let home = Home::new();
    let run = home.ok([
        "create",
        "--json",
        "--name=web",
        "--label=team=a",
        "--env=TOKEN=secret",
        "--workdir=/srv",
        "--user=0",
        "--network=host",
    ]);
    assert!(!run.stdout.contains("secret"), "{run:?}");
    assert_told!(run.stdout);
}

#[test]
fn ps_fits_what_it_shows() {
    let home = Home::with_web();
    home.ok(["create", "--name", "labelled", "--label", "team=a"]);
    let told = home.ok(["ps"]).stdout;
    let mut lines = told.lines();
    let head: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["NAME", "STATE", "TEMPLATE", "HEAD", "AGE", "DRIVER"]);
    let web: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!((&web[..4], web[5]), (&["web", "running", "host", "-"][..], "local"));
    let labelled = home.ok(["ps", "--label", "team=a"]).stdout;
    assert!(labelled.contains("labelled") && !labelled.contains("web"), "{labelled}");
    let none = home.ok(["ps", "--label", "team=b"]);
    assert_eq!(none.stdout, "");
    assert!(!none.stdout.contains('\u{1b}') && !told.contains('\u{1b}'), "no colours in a pipe");
    let coloured = home.ok(["ps", "--color", "always"]).stdout;
    assert!(coloured.contains("\u{1b}[32mrunning"), "{coloured:?}");
}

#[test]
fn an_empty_list_says_how_to_begin() {
    let home = Home::new();
    let run = home.ok(["ps"]);
    assert_told!(run.told(), @r"
    no sandboxes: `forkpoint create --name NAME` makes one
    exit code 0
    ");
    assert_eq!(home.ok(["ps", "--json"]).json(), json!({"sandboxes": []}));
}

#[test]
fn stop_and_start_keep_the_files() {
    let home = Home::with_web();
    home.sh("web", "echo kept > /srv/file");
    assert_told!(home.ok(["stop", "web"]).told(), @r"
    sandbox `web` is stopped
    exit code 0
    ");
    assert_eq!(state(&home), "stopped");
    let refused = home.run(["exec", "web", "--", "true"]);
    assert_told!(refused.told(), @r"
    error: sandbox `[sbx]` is stopped
    hint: `forkpoint start web` starts it
    exit code 125
    ");
    home.ok(["stop", "web"]);
    home.ok(["start", "web"]);
    assert_eq!(state(&home), "running");
    assert_eq!(home.sh("web", "cat /srv/file"), "kept\n");
}

#[test]
fn pause_and_resume() {
    let home = Home::with_web();
    home.ok(["pause", "web"]);
    assert_eq!(state(&home), "paused");
    let refused = home.run(["exec", "web", "--", "true"]);
    assert!(refused.stderr.contains("hint: `forkpoint resume web`"), "{refused:?}");
    assert_eq!(refused.code, Some(125));
    home.ok(["snapshot", "web"]);
    assert_eq!(state(&home), "paused", "a snapshot leaves it paused");
    home.ok(["resume", "web"]);
    assert_eq!(home.sh("web", "echo on"), "on\n");
}

#[test]
fn several_at_once_each_have_their_fate() {
    let home = Home::with_web();
    home.ok(["create", "--name", "api"]);
    let run = home.run(["stop", "web", "nosuch", "api", "--json"]);
    assert_eq!(run.code, Some(3), "{run:?}");
    let report = run.json();
    assert_eq!(report["done"].as_array().map(Vec::len), Some(2), "{report}");
    assert_eq!(report["done"][0]["state"], "stopped");
    assert_eq!(report["failed"][0]["reference"], "nosuch");
}

#[test]
fn rm_minds_what_is_missing_unless_forced() {
    let home = Home::with_web();
    let run = home.run(["rm", "wbe"]);
    assert_told!(run.told(), @r"
    error: no sandbox matches `wbe`
    hint: did you mean `web`? `forkpoint ps` lists the sandboxes
    exit code 3
    ");
    home.ok(["rm", "--force", "wbe", "web"]);
    assert_eq!(home.ok(["ps", "-q"]).stdout, "");
    home.ok(["rm", "-f", "web"]);
}

#[test]
fn rm_leaves_the_snapshots() {
    let home = Home::with_web();
    home.ok(["snapshot", "web", "--name", "kept"]);
    let removed = home.ok(["rm", "web", "--json"]).json();
    assert_eq!(removed["removed"].as_array().map(Vec::len), Some(1), "{removed}");
    let restored = home.ok(["restore", "kept", "--name", "web"]);
    assert!(restored.id().starts_with("sbx"));
}

#[test]
fn what_a_sandbox_uses_is_told() {
    let home = Home::with_web();
    home.sh("web", "head -c 3000000 /dev/urandom > /srv/big");
    let table = home.ok(["ps", "--usage"]).stdout;
    assert!(table.contains("DISK") && table.contains("2.9 MiB"), "{table}");
    let json = home.ok(["ps", "--usage", "--json"]).json();
    let usage = &json["sandboxes"][0]["usage"];
    assert!(usage["disk_bytes"].as_u64().unwrap() >= 3_000_000, "{usage}");
    let plain = home.ok(["ps", "--json"]).json();
    assert!(plain["sandboxes"][0].get("usage").is_none(), "{plain}");
}

/// The kernel is the host's, and so is what it knows of chance: no seed in a file is ever used.
#[test]
fn a_copy_has_an_identity_and_chances_of_its_own() {
    const LOOK: &str = "cat /etc/machine-id /proc/sys/kernel/random/boot_id; \
                        head -c 32 /dev/urandom | od -A n -t x8; cat /proc/sys/kernel/random/uuid";
    let home = Home::with_web();
    home.sh("web", "mkdir -p /var/lib/systemd; echo seed > /var/lib/systemd/random-seed");
    home.ok(["fork", "web", "-n", "2", "--name", "copy"]);
    home.ok(["snapshot", "web", "--name", "good"]);
    home.ok(["restore", "good", "--name", "again"]);
    let all = ["web", "copy-1", "copy-2", "again"];
    let mut seen = BTreeSet::new();
    for name in all {
        let told = home.sh(name, LOOK);
        for line in told.lines() {
            assert!(line.len() > 30 && seen.insert(line.to_owned()), "{name} has {line}");
        }
        assert_eq!(home.sh(name, "cat /var/lib/systemd/random-seed"), "seed\n", "files stay");
    }
    let machine = |name| home.sh(name, "cat /etc/machine-id");
    let before = machine("web");
    home.ok(["rollback", "web", "good"]);
    assert_eq!(machine("web"), before, "what goes back stays the same machine");
}
