//! The configuration: where it is looked for, whom it believes, and what it changes.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use serde_json::{Value, json};

use crate::harness::{Home, Run, assert_told};

/// Writes the user's own configuration.
fn configured(home: &Home, text: &str) -> PathBuf {
    let dir = home.path().join("config/forkpoint");
    fs::create_dir_all(&dir).expect("a directory for it");
    let path = dir.join("forkpoint.toml");
    fs::write(&path, text).expect("a configuration");
    path
}

/// Runs in a directory that holds this `forkpoint.toml`.
fn in_project(home: &Home, text: &str, mode: u32, args: &[&str]) -> Run {
    let dir = home.path().join("project");
    fs::create_dir_all(&dir).expect("a directory for it");
    let path = dir.join("forkpoint.toml");
    fs::write(&path, text).expect("a configuration");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
    Run::of(home.command(args).current_dir(dir).output().expect("the binary starts"))
}

fn setting(run: &Run, key: &str) -> Value {
    let shown = run.json();
    let all = shown["settings"].as_array().expect("a list").iter();
    all.clone().find(|row| row["key"] == key).expect("the key").clone()
}

#[test]
fn show_tells_every_value_and_where_it_comes_from() {
    let home = Home::new();
    configured(&home, "[retention]\nmax_total = 5\nmax_size = \"5G\"\n");
    let run = home.ok(["config", "show"]);
    assert_told!(run.stdout);
    let run = in_project(
        &home,
        "[snapshots]\nnaming = \"{sandbox_name}\"",
        0o644,
        &["config", "show", "--json"],
    );
    assert_eq!(setting(&run, "snapshots.naming")["origin"], "./forkpoint.toml");
    assert_eq!(setting(&run, "retention.max_total")["value"], 5, "both files count");
    assert_eq!(setting(&run, "data_dir")["origin"], "--data-dir");
}

#[test]
fn path_names_the_files_that_are_read_or_where_one_would_be() {
    let home = Home::new();
    let none = home.ok(["config", "path"]);
    assert!(none.stderr.contains("where yours would be"), "{none:?}");
    let path = configured(&home, "");
    assert_eq!(home.ok(["config", "path"]).stdout.trim_end(), path.to_str().unwrap());
    assert_eq!(none.stdout.trim_end(), path.to_str().unwrap());
    let run = in_project(&home, "", 0o644, &["config", "path"]);
    assert_eq!(run.stdout, format!("./forkpoint.toml\n{}\n", path.display()));
    assert_eq!(home.ok(["--config", "none", "config", "path"]).stdout, "");
}

#[test]
fn a_mistake_in_it_is_told_with_its_line() {
    let home = Home::new();
    configured(&home, "[retention]\nmax_totl = 5\n");
    assert_told!(home.run(["ps"]).told(), @r"
    error: `[home]/config/forkpoint/forkpoint.toml` line 2: there is no key `retention.max_totl`: did you mean `retention.max_total`?
    hint: `--config none` works without it
    exit code 2
    ");
    assert_eq!(home.run(["ps", "--config", "none"]).code, Some(0));
    let missing = home.run(["ps", "--config", "/nowhere/f.toml"]);
    assert_eq!(missing.code, Some(3), "{missing:?}");
    assert!(missing.stderr.contains("`/nowhere/f.toml`"), "{missing:?}");
    configured(&home, "driver = \"podman\"");
    assert_eq!(home.run(["ps"]).code, Some(5));
}

#[test]
fn a_file_that_came_with_a_project_does_no_harm() {
    let home = Home::new();
    let run = in_project(&home, "data_dir = \"/\"", 0o644, &["ps"]);
    assert_told!(run.told(), @r"
    error: `./forkpoint.toml` line 1: `data_dir` is not taken from a file that was found in the working directory: say `--config ./forkpoint.toml` if you mean it
    hint: `--config none` works without it; `forkpoint config --help` tells what is trusted
    exit code 6
    ");
    home.ok(["create", "--name", "web"]);
    for text in ["[hooks]\nbefore_snapshot = \"echo x > /srv/x\"", "[snapshots]\ntriggers = []"] {
        let run = in_project(&home, text, 0o644, &["snapshot", "web"]);
        assert_eq!(run.code, Some(6), "{run:?}");
        assert_eq!(home.sh("web", "ls /srv"), "", "{text}");
    }
    let run = in_project(&home, "", 0o666, &["ps"]);
    assert_eq!(run.code, Some(6), "{run:?}");
    assert!(run.stderr.contains("others can write it"), "{run:?}");
    let meant = ["--config", "forkpoint.toml", "config", "show", "--json"];
    let run = in_project(&home, "[retention]\nmax_total = 7", 0o644, &meant);
    assert_eq!(setting(&run, "retention.max_total")["value"], 7);
}

#[test]
fn nobody_waits_for_a_configuration_that_is_a_fifo() {
    let home = Home::new();
    let path = home.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let run = home.run(["ps", "--config", path.to_str().unwrap()]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("it is not a file"), "{run:?}");
}

#[test]
fn data_is_where_the_flag_says_else_where_the_configuration_does() {
    let home = Home::new();
    let other = home.path().join("other");
    configured(&home, &format!("data_dir = \"{}\"", other.display()));
    let mut command = home.command(["ps"]);
    assert!(command.status().unwrap().success());
    assert!(!other.exists(), "the flag comes first");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_forkpoint"));
    command.arg("ps").env("XDG_CONFIG_HOME", home.path().join("config"));
    command.env_remove("FORKPOINT_DATA_DIR").env_remove("FORKPOINT_CONFIG");
    assert!(command.status().unwrap().success());
    assert!(other.join("catalog.db").exists());
}

#[test]
fn what_is_configured_is_what_a_new_sandbox_gets() {
    let home = Home::new();
    configured(&home, "[defaults]\nworkdir = \"/srv\"\nnetwork = \"host\"\n");
    let made = home.ok(["create", "--json", "--name", "web"]).json();
    assert_eq!((&made["workdir"], &made["network"]), (&json!("/srv"), &json!("host")));
    let made = home.ok(["create", "--json", "--network", "none"]).json();
    assert_eq!(made["network"], "none");
}

#[test]
fn a_trigger_that_is_off_takes_nothing_and_names_come_from_the_pattern() {
    let home = Home::with_web();
    configured(&home, "[snapshots]\ntriggers = [\"run_end\"]\nnaming = \"{sandbox_name}-x\"\n");
    let run = home.ok(["snapshot", "web", "--trigger", "run_start"]);
    assert_told!(run.told(), @r"
    nothing was taken: trigger `run_start` is not enabled
    exit code 0
    ");
    let run = home.ok(["snapshot", "web", "--trigger", "run_end", "--json"]);
    assert_eq!(run.json()["name"], "web-x");
}

#[test]
fn the_older_managers_configuration_works() {
    let home = Home::with_web();
    let path = home.path().join("older.json");
    let text = r#"{"max_snapshots_per_container": 1, "naming_pattern": "{container_name}_old",
        "cleanup_on_exit": true}"#;
    fs::write(&path, text).unwrap();
    let taken = |name: &str| {
        home.ok(["snapshot", "web", "--name", name, "--config", path.to_str().unwrap()])
    };
    taken("one");
    let two = taken("two");
    assert!(two.stderr.contains("retention deleted 1 snapshot"), "{two:?}");
    assert_eq!(home.ok(["list", "--json"]).json()["snapshots"][0]["name"], "two");
    assert_eq!(home.ok(["list", "-q"]).stdout.lines().count(), 1);
}

#[test]
fn the_usual_end_is_that_of_copies_too() {
    let home = Home::with_web();
    home.ok(["snapshot", "web", "--name", "one"]);
    configured(&home, "[defaults]\nttl = \"4h\"\n");
    let end = |args: &[&str]| {
        let id = home.ok(args).id().to_owned();
        let all = home.ok(["ps", "--json"]).json();
        let all = all["sandboxes"].as_array().expect("a list").iter();
        all.clone().find(|sandbox| sandbox["id"] == id.as_str()).expect("it")["expires"].clone()
    };
    let created = end(&["create"]);
    let (forked, restored) = (end(&["fork", "one"]), end(&["restore", "one"]));
    assert!(created.is_string() && forked.is_string() && restored.is_string());
    let longer = end(&["fork", "web", "--ttl", "900h"]);
    assert!(longer.as_str() > forked.as_str(), "{longer} {forked}");
}
