//! What goes wrong says so, helps, and has its exit code.

use crate::harness::{Home, assert_told};

#[test]
fn names_that_cannot_be() {
    let home = Home::new();
    for name in ["a/b", "../up", "a\nb", "a b", "-a", "", "\u{1b}[31mred", "sbx0000"] {
        let run = home.run(["create", &format!("--name={name}")]);
        if name == "sbx0000" {
            assert_eq!(run.code, Some(0), "a prefix is no id: {run:?}");
            continue;
        }
        assert_eq!(run.code, Some(2), "{name:?}: {run:?}");
        assert!(run.stderr.contains("cannot be a name"), "{run:?}");
        assert!(!run.stderr.contains('\u{1b}'), "{run:?}");
    }
    let long = home.run(["create", "--name", &"x".repeat(1000)]);
    assert_eq!(long.code, Some(2));
    assert!(long.stderr.len() < 400, "{long:?}");
}

#[test]
fn a_name_is_taken_once() {
    let home = Home::with_web();
    let run = home.run(["create", "--name", "web"]);
    assert_told!(run.told(), @r"
    error: failed to create sandbox `web`: the name `web` is taken by `[sbx]`
    hint: choose another name, or remove what is called `web`
    exit code 4
    ");
    home.ok(["snapshot", "web", "--name", "good"]);
    let run = home.run(["snapshot", "web", "--name", "good"]);
    assert_eq!(run.code, Some(4), "{run:?}");
    assert!(run.stderr.contains("hint: choose another name"), "{run:?}");
}

#[test]
fn references_that_lead_nowhere() {
    let home = Home::with_web();
    for args in [
        &["rm", "nosuch"][..],
        &["snapshot", "nosuch"],
        &["restore", "nosuch"],
        &["show", "web@latest"],
        &["show", "web@7"],
        &["rollback", "web"],
        &["rollback", "web", "nosuch"],
        &["fork", "nosuch"],
        &["delete", "nosuch"],
        &["list", "--sandbox", "nosuch"],
        &["log", "nosuch"],
        &["start", "nosuch"],
        &["rm", &"x".repeat(1000)],
        &["rm", "new\nline"],
    ] {
        let run = home.run(args);
        assert_eq!(run.code, Some(3), "{args:?}: {run:?}");
        assert!(run.stderr.contains("\nhint: "), "{args:?}: {run:?}");
        assert_eq!(run.stderr.lines().count(), 2, "{run:?}");
    }
    for args in [&["show", "web@zero"][..], &["show", "web@0"], &["snapshot", "web", "--trigger=x"]]
    {
        assert_eq!(home.run(args).code, Some(2), "{args:?}");
    }
}

#[test]
fn a_prefix_that_could_be_two() {
    let home = Home::with_web();
    let one = home.ok(["ps", "-q"]).stdout;
    home.ok(["create", "--name", "api"]);
    let run = home.run(["stop", "sbx0"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("give more of it"), "{run:?}");
    home.ok(["stop", one.trim()]);
}

#[test]
fn templates_that_do_not_do() {
    let home = Home::new();
    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let inside = home.path().join("data/local");
    std::fs::create_dir_all(&inside).unwrap();
    for template in [
        "nosuch".to_owned(),
        "dir:/no/such/place".to_owned(),
        "dir:relative".to_owned(),
        format!("dir:{}", file.display()),
        format!("dir:{}", inside.display()),
        format!("dir:{}", inside.parent().unwrap().display()),
        format!("dir:{}", home.path().display()),
        "dir:/".to_owned(),
        String::new(),
        "two\nlines".to_owned(),
    ] {
        let run = home.run(["create", &format!("--template={template}")]);
        assert!(matches!(run.code, Some(2 | 3)), "{template:?}: {run:?}");
        assert!(run.stderr.contains("hint: a template is `host`"), "{template:?}: {run:?}");
    }
    assert_eq!(home.ok(["ps", "-q"]).stdout, "", "nothing is left of them");
}

#[test]
fn values_that_cannot_be() {
    let home = Home::new();
    for arg in [
        "--memory=lots",
        "--memory=0",
        "--cpus=0",
        "--cpus=-1",
        "--pids=0",
        "--label=novalue",
        "--network=wifi",
        "--env==x",
        "--workdir=relative",
        "--workdir=/a/../b",
        "--wait=10",
    ] {
        let run = home.run(["create", arg]);
        assert_eq!(run.code, Some(2), "{arg}: {run:?}");
    }
    let driver = home.run(["create", "--driver=podman"]);
    assert_eq!(driver.code, Some(5), "{driver:?}");
}

#[test]
fn a_full_snapshot_is_refused_before_it_starts() {
    let home = Home::with_web();
    home.ok(["stop", "web"]);
    let run = home.run(["snapshot", "web", "--full"]);
    assert_told!(run.told(), @r"
    error: failed to take a snapshot of sandbox `web`: driver `local` cannot take a snapshot with processes and memory here: nothing runs in it: a snapshot of files is all that there is
    hint: without `--full` a snapshot keeps the files, and `forkpoint doctor` tells what this machine can do
    exit code 5
    ");
}

#[test]
fn agent_state_must_be_there_and_small() {
    let home = Home::with_web();
    let missing = home.run(["snapshot", "web", "--agent-state", "/no/such/file"]);
    assert_eq!(missing.code, Some(3), "{missing:?}");
    let big = home.path().join("big");
    std::fs::write(&big, vec![0; (1 << 20) + 1]).unwrap();
    let run = home.run(["snapshot", "web", "--agent-state", big.to_str().unwrap()]);
    assert_eq!(run.code, Some(2), "{run:?}");
    // However much is configured, what is not read to its end is not taken for all of it.
    let config = home.path().join("large.toml");
    std::fs::write(&config, "[snapshots]\nmax_agent_state = \"1G\"\n").unwrap();
    std::fs::File::create(&big).unwrap().set_len((256 << 20) + 1).unwrap();
    let (config, big) = (config.to_str().unwrap(), big.to_str().unwrap());
    let run = home.run(["snapshot", "web", "--agent-state", big, "--config", config]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("is longer than 256 MiB"), "{run:?}");
    assert_eq!(home.ok(["list", "-q"]).stdout, "");
}

#[test]
fn with_json_an_error_is_json_on_stderr() {
    let home = Home::new();
    let run = home.run(["--json", "show", "nosuch"]);
    assert_eq!(run.stdout, "");
    assert_told!(run.told(), @r#"
    {
      "error": {
        "kind": "not_found",
        "message": "no snapshot matches `nosuch`",
        "hint": "there is none yet: `forkpoint snapshot SANDBOX` takes one"
      }
    }
    exit code 3
    "#);
}

#[test]
fn a_data_directory_that_cannot_be() {
    let home = Home::new();
    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let run = home.run(["--data-dir", file.to_str().unwrap(), "ps"]);
    assert!(matches!(run.code, Some(1 | 2)), "{run:?}");
    assert!(run.stderr.contains("hint: choose another place with `--data-dir DIR`"), "{run:?}");
    let run = home.run(["--data-dir", file.to_str().unwrap(), "exec", "web", "--", "true"]);
    assert_eq!(run.code, Some(125), "{run:?}");
}

#[test]
fn a_damaged_catalog_is_corrupt() {
    let home = Home::new();
    let data = home.path().join("data");
    home.ok(["ps"]);
    let catalog = data.join("catalog.db");
    let whole = std::fs::read(&catalog).unwrap();
    std::fs::write(&catalog, &whole[..whole.len() / 2]).unwrap();
    for extra in ["catalog.db-wal", "catalog.db-shm"] {
        let _ = std::fs::remove_file(data.join(extra));
    }
    let run = home.run(["ps"]);
    assert_eq!(run.code, Some(7), "{run:?}");
    assert!(run.stderr.contains("hint: copy the data directory"), "{run:?}");
}
