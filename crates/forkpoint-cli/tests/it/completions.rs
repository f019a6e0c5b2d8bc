//! Completion in shells, and the manual.

use std::{fs, process::Command};

use crate::harness::{Home, Run};

/// What bash would offer for these words, the last of which is being typed.
fn offered(home: &Home, words: &[&str]) -> Vec<String> {
    let script = home.path().join("completion.bash");
    fs::write(&script, home.ok(["completions", "bash"]).stdout).expect("the script");
    let ask = r#"source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _forkpoint_with_names "$1" "${@: -1}" "${@: -2:1}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut bash = Command::new("bash");
    bash.args(["-c", ask, "bash"]).arg(script).arg(env!("CARGO_BIN_EXE_forkpoint")).args(words);
    bash.env("FORKPOINT_DATA_DIR", home.path().join("data")).env_remove("FORKPOINT_CONFIG");
    bash.env("XDG_CONFIG_HOME", home.path().join("config"));
    let run = Run::of(bash.output().expect("bash runs"));
    assert_eq!(run.stderr, "", "{words:?}");
    run.stdout.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_verbs_options_and_names() {
    let home = Home::with_web();
    home.ok(["create", "--name", "worker"]);
    home.ok(["snapshot", "web", "--name", "good"]);
    assert_eq!(offered(&home, &["exec", "we"]), ["web"]);
    assert_eq!(offered(&home, &["rm", ""]), ["web", "worker"]);
    assert_eq!(offered(&home, &["rollback", "web", "g"]), ["good"]);
    assert_eq!(offered(&home, &["fork", ""]), ["good", "web", "worker"]);
    assert_eq!(offered(&home, &["ls", "g"]), ["good"]);
    assert_eq!(offered(&home, &["diff", "good", "we"]), ["web"]);
    home.ok(["template", "promote", "good", "base"]);
    assert_eq!(offered(&home, &["template", "rm", ""]), ["base"]);
    assert_eq!(offered(&home, &["create", "--template", ""]), ["base", "host"]);
    assert_eq!(offered(&home, &["restor"]), ["restore"]);
    assert_eq!(offered(&home, &["prune", "--dry"]), ["--dry-run"]);
    let all = offered(&home, &["restore", "snp"]);
    assert!(all.len() == 1 && all[0].starts_with("snp"), "{all:?}");
    assert!(!offered(&home, &[""]).iter().any(|verb| verb.starts_with("__")));
}

#[test]
fn completion_is_silent_and_changes_nothing_whatever_is_amiss() {
    let home = Home::new();
    let ask = ["__complete", "--", "exec", ""];
    assert_eq!(home.ok(ask).told(), "exit code 0");
    assert!(!home.path().join("data").exists(), "nothing was made");
    fs::create_dir(home.path().join("data")).unwrap();
    fs::write(home.path().join("data/catalog.db"), "no catalog at all").unwrap();
    assert_eq!(home.ok(ask).told(), "exit code 0");
    let dir = home.path().join("config/forkpoint");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("forkpoint.toml"), "nonsense").unwrap();
    assert_eq!(home.ok(ask).told(), "exit code 0");
    assert_eq!(home.ok(["__complete", "--"]).told(), "exit code 0");
    fs::remove_file(home.path().join("data/catalog.db")).unwrap();
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_sandbox_whose_time_is_over_is_not_removed_by_a_key() {
    let home = Home::new();
    home.ok(["create", "--name", "short", "--ttl", "1ms"]);
    assert_eq!(home.ok(["__complete", "--", "rm", "s"]).stdout, "short\n");
    let removed = home.ok(["ps"]);
    assert!(removed.stderr.contains("removed sandbox `short`"), "{removed:?}");
}

#[test]
fn zsh_and_fish_ask_for_names_too() {
    let home = Home::new();
    let zsh = home.ok(["completions", "zsh"]).stdout;
    assert!(zsh.starts_with("#compdef forkpoint\n"), "{zsh}");
    for place in [":sandbox -- ", "'*::snapshots -- ", ":source -- ", ":snapshot -- "] {
        let line = zsh.lines().find(|line| line.contains(place)).unwrap_or_default();
        assert!(line.ends_with(":_forkpoint_names' \\"), "{place}: {line}");
    }
    let fish = home.ok(["completions", "fish"]).stdout;
    assert!(fish.contains("forkpoint __complete -- "), "{fish}");
    assert_eq!(home.run(["completions", "tcsh"]).code, Some(2));
}

#[test]
fn there_is_a_manual_page_for_every_verb() {
    let home = Home::new();
    let dir = home.path().join("man");
    home.ok(["man", dir.to_str().unwrap()]);
    let help = home.ok(["--help"]).stdout;
    let verbs = help.split("Commands:").nth(1).unwrap_or_default().split("\n\n").next();
    let verbs: Vec<&str> = verbs
        .unwrap_or_default()
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "help")
        .collect();
    assert!(verbs.len() > 20, "{help}");
    for verb in verbs {
        let page = fs::read_to_string(dir.join(format!("forkpoint-{verb}.1"))).expect(verb);
        let example = format!("forkpoint {verb}");
        assert!(page.replace("\\-", "-").contains(&example), "{verb}: {page}");
        assert!(page.contains("Examples:"), "{verb}: {page}");
    }
    assert!(!dir.join("forkpoint-__complete.1").exists());
    let main = home.ok(["man"]).stdout;
    assert!(main.contains(".TH forkpoint 1"), "{main}");
}
