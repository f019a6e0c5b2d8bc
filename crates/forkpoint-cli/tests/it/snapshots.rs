//! `snapshot`, `restore`, `rollback`, `fork`, `list`, `show`, `log` and `delete`.

use serde_json::{Value, json};

use crate::harness::{Home, assert_told};

fn names(home: &Home, args: &[&str]) -> Vec<String> {
    let listing = home.ok(["list", "--json"].iter().chain(args)).json();
    let all = listing["snapshots"].as_array().expect("a list").iter();
    all.map(|snapshot| snapshot["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_rollback_brings_back_what_was_deleted() {
    let home = Home::with_web();
    home.sh("web", "mkdir /srv/app && echo one > /srv/app/file && chmod 640 /srv/app/file");
    let taken = home.ok(["snapshot", "web", "-m", "it works"]);
    assert!(taken.id().starts_with("snp"), "{taken:?}");
    home.sh("web", "rm -r /srv/app; echo junk > /srv/junk");
    let back = home.ok(["rollback", "web"]);
    assert_told!(back.told(), @r"
    sandbox `web` is back at `web_manual_[time]`
    exit code 0
    ");
    assert_eq!(
        home.sh("web", "stat -c %a /srv/app/file; cat /srv/app/file; ls /srv"),
        "640\none\napp\n"
    );
}

#[test]
fn a_rollback_goes_to_any_snapshot_and_back_again() {
    let home = Home::with_web();
    for step in ["one", "two", "three"] {
        home.sh("web", &format!("echo {step} > /srv/step"));
        home.ok(["snapshot", "web", "--name", step]);
    }
    for (to, step) in
        [("one", "one"), ("three", "three"), ("web@2", "two"), ("web@latest", "three")]
    {
        home.ok(["rollback", "web", to]);
        assert_eq!(home.sh("web", "cat /srv/step").trim(), step, "{to}");
    }
    let report = home.ok(["rollback", "web", "one", "--json"]).json();
    assert_eq!(report["to"]["name"], "one");
    assert_eq!(report["sandbox"]["head"], report["to"]["id"]);
}

#[test]
fn a_snapshot_keeps_what_is_said_of_it() {
    let home = Home::with_web();
    let state = home.path().join("memory.json");
    std::fs::write(&state, b"{\"goal\": 1}").unwrap();
    let run = home.ok([
        "snapshot",
        "web",
        "--json",
        "--name=good",
        "-m=it works",
        "--trigger=after_action",
        "--context=ran the tests",
        "--run-id=r7",
        "--step=12",
        "--label=team=a",
        "--agent-state",
        state.to_str().unwrap(),
    ]);
    let mut taken = run.json();
    assert_eq!(taken["durable"], json!(true), "{taken}");
    for size in ["own_bytes", "total_bytes", "file_count"] {
        assert!(taken[size].is_u64(), "{taken}");
        taken[size] = json!("[number]");
    }
    assert_told!(serde_json::to_string_pretty(&taken).unwrap());
    let told = home.ok(["show", "good"]).stdout;
    for (key, value) in [("name", "good"), ("description", "it works"), ("label", "team=a")] {
        let line = told.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        assert!(line.ends_with(value), "{told}");
    }
}

#[test]
fn show_tells_the_lineage() {
    let home = Home::with_web();
    for name in ["one", "two", "three"] {
        home.ok(["snapshot", "web", "--name", name, "--no-sync"]);
    }
    let shown = home.ok(["show", "two", "--json"]).json();
    assert_eq!(shown["ancestors"].as_array().map(Vec::len), Some(1), "{shown}");
    assert_eq!(shown["children"].as_array().map(Vec::len), Some(1), "{shown}");
    let told = home.ok(["show", "two"]).stdout;
    assert!(told.contains("comes from") && told.contains("one (snp") && told.contains("led to"));
    for _ in 0..5 {
        home.ok(["snapshot", "web", "--no-sync"]);
    }
    let told = home.ok(["show", "web@latest"]).stdout;
    assert!(told.contains("… and 2 more"), "{told}");
}

#[test]
fn restore_makes_a_sandbox_of_its_own() {
    let home = Home::with_web();
    home.sh("web", "echo one > /srv/file");
    home.ok(["snapshot", "web", "--name", "good"]);
    home.ok(["restore", "good", "--name", "again", "--env", "SEED=7", "--label", "team=a"]);
    home.sh("again", "echo two > /srv/file");
    assert_eq!(home.sh("web", "cat /srv/file"), "one\n");
    assert_eq!(home.sh("again", "cat /srv/file; echo $SEED"), "two\n7\n");
}

#[test]
fn forks_differ_and_the_source_is_untouched() {
    let home = Home::with_web();
    home.sh("web", "echo source > /srv/file");
    let run = home.ok(["fork", "web", "-n", "5", "--name", "try"]);
    assert_eq!(run.stdout.lines().filter(|line| line.starts_with("sbx")).count(), 5, "{run:?}");
    assert_eq!(run.stderr, "made 5 of 5 copies of `web`\n");
    for number in 1..=5 {
        let name = format!("try-{number}");
        assert_eq!(home.sh(&name, "cat /srv/file"), "source\n");
        home.sh(&name, &format!("echo {number} > /srv/file"));
    }
    assert_eq!(home.sh("try-3", "cat /srv/file"), "3\n");
    assert_eq!(home.sh("web", "cat /srv/file"), "source\n");
    let again = home.ok(["fork", "web@latest", "--json"]).json();
    assert_eq!(again["sandboxes"].as_array().map(Vec::len), Some(1), "{again}");
    assert_eq!(again["failed"], json!([]));
}

#[test]
fn a_fork_of_nothing_and_of_too_many_is_refused() {
    let home = Home::with_web();
    for count in ["0", "1001"] {
        let run = home.run(["fork", "web", "-n", count]);
        assert_eq!(run.code, Some(2), "{run:?}");
    }
    let run = home.run(["fork", "wbe"]);
    assert_told!(run.told(), @r"
    error: no sandbox and no snapshot matches `wbe`
    hint: did you mean `web`? `forkpoint ps` and `forkpoint list` tell what there is
    exit code 3
    ");
    home.ok(["create", "--name", "try-2"]);
    let taken = home.run(["fork", "web", "-n", "3", "--name", "try"]);
    assert_eq!(taken.code, Some(4), "{taken:?}");
    assert!(taken.stderr.contains("hint: "), "{taken:?}");
    assert_eq!(home.ok(["list", "-q"]).stdout, "", "no snapshot was taken for nothing");
}

#[test]
fn a_fork_goes_by_names_before_it_guesses() {
    let home = Home::with_web();
    home.ok(["create", "--name", "api"]);
    let id = home.ok(["snapshot", "web", "--name", "s"]).id().to_owned();
    // Every id of a sandbox begins with an `s` too.
    let report = home.ok(["fork", "s", "--json"]).json();
    assert_eq!(report["snapshot"], json!(id), "{report}");
    let report = home.ok(["fork", &id[..20], "--json"]).json();
    assert_eq!(report["snapshot"], json!(id), "{report}");
    let unclear = home.run(["fork", "sb"]);
    assert_eq!(unclear.code, Some(2), "{unclear:?}");
    home.ok(["snapshot", "api", "--name", "web"]);
    let report = home.ok(["fork", "web", "--json"]).json();
    assert_ne!(report["snapshot"], json!(id), "the sandbox `web`, not the snapshot: {report}");
}

#[test]
fn a_copy_that_cannot_be_made_is_told_and_the_code_is_1() {
    let home = Home::with_web();
    home.sh("web", "echo 1 > /srv/file");
    home.ok(["snapshot", "web", "--name", "good"]);
    home.ok(["rm", "web"]);
    let layers = home.path().join("data/local/store/layers");
    std::fs::rename(&layers, home.path().join("lost")).unwrap();
    std::fs::create_dir(&layers).unwrap();
    let run = home.run(["fork", "good", "-n", "2"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{run:?}");
    assert_eq!(run.stderr.matches("warning: failed to restore").count(), 2, "{run:?}");
    let report = home.run(["fork", "good", "-n", "2", "--json"]).json();
    assert_eq!(report["failed"].as_array().map(Vec::len), Some(2), "{report}");
    assert!(report["failed"][0]["error"].is_string(), "{report}");
    let restored = home.run(["restore", "good"]);
    assert!(matches!(restored.code, Some(1 | 7)), "{restored:?}");
    assert_eq!(home.ok(["ps", "-q"]).stdout, "");
}

#[test]
fn list_is_newest_first_and_can_be_narrowed() {
    let home = Home::with_web();
    home.ok(["create", "--name", "api"]);
    home.ok(["snapshot", "web", "--name", "a", "--trigger", "run_start"]);
    home.ok(["snapshot", "api", "--name", "b", "--label", "team=x"]);
    home.ok(["snapshot", "web", "--name", "c", "-m", "line\nbreak \u{1b}[31m"]);
    assert_eq!(names(&home, &[]), ["c", "b", "a"]);
    assert_eq!(names(&home, &["--sandbox", "web"]), ["c", "a"]);
    assert_eq!(names(&home, &["--trigger", "run_start"]), ["a"]);
    assert_eq!(names(&home, &["--label", "team=x"]), ["b"]);
    assert_eq!(names(&home, &["--limit", "2"]), ["c", "b"]);
    let told = home.ok(["list", "--limit", "1"]);
    assert!(told.stdout.contains(r"line\nbreak \u{1b}[31m"), "{told:?}");
    assert!(told.stderr.contains("there are more"), "{told:?}");
    home.ok(["rm", "web"]);
    assert_eq!(names(&home, &["--sandbox", "web"]), ["c", "a"], "also when it is gone");
}

#[test]
fn log_draws_branches_and_marks_where_sandboxes_stand() {
    let home = Home::with_web();
    home.ok(["snapshot", "web", "--name", "one", "-m", "the first"]);
    home.ok(["snapshot", "web", "--name", "two"]);
    home.ok(["rollback", "web", "one"]);
    home.ok(["snapshot", "web", "--name", "three"]);
    home.ok(["fork", "two", "--name", "try"]);
    let told = home.ok(["log"]).stdout;
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].starts_with("● one ") && lines[0].ends_with("the first"), "{told}");
    assert!(lines[1].starts_with("├─● two ") && lines[1].ends_with("◀ try-1"), "{told}");
    assert!(lines[2].starts_with("└─● three ") && lines[2].ends_with("◀ web"), "{told}");
    let tree = home.ok(["log", "web", "--json"]).json();
    let depths: Vec<&Value> =
        tree["snapshots"].as_array().unwrap().iter().map(|node| &node["depth"]).collect();
    assert_eq!(depths, [0, 1, 1], "{tree}");
    assert_eq!(tree["snapshots"][1]["here"].as_array().map(Vec::len), Some(1), "{tree}");
}

#[test]
fn delete_takes_several_and_the_children_stay_whole() {
    let home = Home::with_web();
    home.sh("web", "echo one > /srv/one");
    let one = home.ok(["snapshot", "web", "--name", "one"]).id().to_owned();
    home.sh("web", "echo two > /srv/two");
    home.ok(["snapshot", "web", "--name", "two"]);
    home.ok(["delete", "one"]);
    let again = home.ok(["delete", &one]);
    assert!(again.stderr.contains("gone already"), "{again:?}");
    let run = home.run(["delete", "onne", "two", "--json"]);
    assert_eq!(run.code, Some(3), "{run:?}");
    assert_eq!(run.json()["deleted"].as_array().map(Vec::len), Some(1), "{run:?}");
    assert_eq!(home.ok(["list", "-q"]).stdout, "");
    assert_eq!(home.sh("web", "cat /srv/one /srv/two"), "one\ntwo\n");
}

#[test]
fn a_restored_child_of_a_deleted_parent_has_its_files() {
    let home = Home::with_web();
    home.sh("web", "echo one > /srv/one");
    home.ok(["snapshot", "web", "--name", "one"]);
    home.sh("web", "echo two > /srv/two");
    home.ok(["snapshot", "web", "--name", "two"]);
    home.ok(["delete", "--force", "one"]);
    home.ok(["rm", "--force", "web"]);
    home.ok(["restore", "two", "--name", "web"]);
    assert_eq!(home.sh("web", "cat /srv/one /srv/two"), "one\ntwo\n");
}
