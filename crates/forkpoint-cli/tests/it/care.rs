//! `prune`, `stats` and `validate`.

use serde_json::{Value, json};

use crate::harness::{Home, assert_told};

/// A sandbox `web` with snapshots `one` to `four`, each with a file of its own.
fn with_four() -> Home {
    let home = Home::with_web();
    for name in ["one", "two", "three", "four"] {
        home.sh("web", &format!("head -c 100000 /dev/urandom > /srv/{name}"));
        home.ok(["snapshot", "web", "--name", name]);
    }
    home
}

fn left(home: &Home) -> Vec<String> {
    let listing = home.ok(["list", "--json"]).json();
    let all = listing["snapshots"].as_array().expect("a list").iter();
    all.map(|snapshot| snapshot["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_plan_can_be_seen_before_it_is_done() {
    let home = with_four();
    let plan = home.ok(["prune", "--max-total", "3", "--dry-run"]);
    let rows: Vec<&str> = plan.stdout.lines().collect();
    assert_eq!(rows.len(), 2, "{plan:?}");
    assert!(rows[0].starts_with("NAME") && rows[1].starts_with("one "), "{plan:?}");
    assert!(rows[1].ends_with("too many in total"), "{plan:?}");
    assert!(plan.stderr.starts_with("would delete 1 snapshot of 4; at most "), "{plan:?}");
    assert_eq!(left(&home).len(), 4);
    let done = home.ok(["prune", "--max-total", "3", "--json"]).json();
    assert_eq!(done["deleted"].as_array().map(Vec::len), Some(1), "{done}");
    assert_eq!(done["plan"][0]["reason"], "too_many_in_total", "{done}");
    assert_eq!(left(&home), ["four", "three", "two"]);
}

#[test]
fn pruning_frees_space_and_leaves_the_rest_whole() {
    let home = with_four();
    home.ok(["rm", "web"]);
    let run = home.ok(["prune", "--keep-last", "1", "-y"]);
    assert!(run.stderr.contains("deleted 3 snapshots of 4"), "{run:?}");
    home.ok(["restore", "four", "--name", "again"]);
    assert_eq!(home.sh("again", "ls /srv").split_whitespace().count(), 4);
    let nothing = home.ok(["prune", "--keep-last", "1"]);
    assert!(nothing.stderr.contains("nothing to prune"), "{nothing:?}");
    let age = home.ok(["prune", "--max-age-days", "0"]);
    assert!(age.stderr.contains("nothing to prune"), "its sandbox's newest stays: {age:?}");
}

#[test]
fn without_any_limit_there_is_nothing_to_go_by() {
    let home = Home::with_web();
    assert_told!(home.run(["prune"]).told(), @r"
    error: no limit was given, and none is configured
    hint: give one, such as `--max-age-days 14`, or write it into `[retention]` of the configuration
    exit code 2
    ");
    for bad in ["--max-size=0", "--keep-last=0", "--max-age-days=-1", "--max-total=many"] {
        assert_eq!(home.run(["prune", bad]).code, Some(2), "{bad}");
    }
}

#[test]
fn limits_come_from_the_configuration_and_what_is_said_now_is_stronger() {
    let home = with_four();
    let dir = home.path().join("config/forkpoint");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("forkpoint.toml"), "[retention]\nmax_per_sandbox = 3\n").unwrap();
    let plan = home.ok(["prune", "--dry-run", "--json"]).json();
    assert_eq!(plan["plan"][0]["reason"], "too_many_in_sandbox", "{plan}");
    let plan = home.ok(["prune", "--dry-run", "--max-per-sandbox", "1", "--json"]).json();
    assert_eq!(plan["plan"].as_array().map(Vec::len), Some(3), "{plan}");
    home.ok(["snapshot", "web", "--name", "five"]);
    assert_eq!(left(&home), ["five", "four", "three"], "and after each snapshot");
}

#[test]
fn stats_count_what_there_is_and_what_sharing_saves() {
    let home = with_four();
    home.ok(["create", "--name", "api"]);
    home.ok(["stop", "api"]);
    let stats = home.ok(["stats", "--json"]).json();
    assert_eq!(stats["sandboxes"]["running"], 1, "{stats}");
    assert_eq!(stats["sandboxes"]["stopped"], 1, "{stats}");
    assert_eq!((&stats["snapshots"], &stats["pinned"]), (&json!(4), &json!(0)));
    let number = |key: &str| stats[key].as_u64().unwrap_or_default();
    assert!(number("total_bytes") > number("stored_bytes"), "{stats}");
    assert!(number("disk_free_bytes") > 0, "{stats}");
    let told = home.ok(["stats"]).stdout;
    for word in ["1 running, 1 stopped", "if nothing were shared", "disk free", "local: 4"] {
        assert!(told.contains(word), "{told}");
    }
    assert!(home.path().join("data").to_str().is_some_and(|dir| told.contains(dir)));
}

#[test]
fn validate_tells_what_a_snapshot_leaves_out() {
    let home = Home::with_web();
    assert_told!(home.ok(["validate", "web"]).told(), @r"
    yes: a snapshot of files of sandbox `web` can be taken
      left out: memory, and what is in `/dev/shm`
    exit code 0
    ");
    home.sh("web", "exec 5>/srv/gone; rm /srv/gone; sleep 1000 >/dev/null 2>&1 </dev/null &");
    let report = home.ok(["validate", "web", "--json"]).json();
    let messages: Vec<&str> = report["findings"]
        .as_array()
        .map(|all| all.iter().filter_map(|each| each["message"].as_str()).collect())
        .unwrap_or_default();
    assert!(messages.iter().any(|text| text.contains("(sleep)")), "{report}");
    assert!(messages.iter().any(|text| text.contains("deleted (/srv/gone)")), "{report}");
    assert_eq!(report["can"], json!(true));
    let full = home.ok(["validate", "web", "--full"]).stdout;
    assert!(full.starts_with("yes: a full snapshot"), "{full}");
    home.ok(["stop", "web"]);
    let full = home.run(["validate", "web", "--full"]);
    assert_eq!(full.code, Some(1), "{full:?}");
    assert!(full.stdout.starts_with("no: a full snapshot"), "{full:?}");
    assert!(home.ok(["validate", "web"]).stdout.contains("note: it is stopped"));
    assert_eq!(home.run(["validate", "wbe"]).code, Some(3));
    let state: &Value = &report["sandbox"]["state"];
    assert_eq!(state, "running");
}
