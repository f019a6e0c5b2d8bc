//! What a person sees of every verb, when all goes well.

use std::{fmt::Write as _, fs};

use crate::{harness::Home, help::VERBS};

#[test]
fn every_verb_tells_what_it_did() {
    let home = Home::new();
    fs::create_dir(home.path().join("project")).expect("a directory");
    fs::write(home.path().join("project/file"), "one\n").expect("a file");
    fs::create_dir_all(home.path().join("tree/etc")).expect("a directory");
    let mut told = String::new();
    for line in [
        "create --name web --label team=a --workspace [home]/project",
        "exec web -- sh -c echo${IFS}two>/workspace/file;echo${IFS}new>/srv/new",
        "ps",
        "snapshot web --name one -m first --run-id r1 --step 1 --label kind=good",
        "list",
        "show one",
        "log",
        "validate web",
        "diff one",
        "diff one --stat",
        "ls one:/srv",
        "ls -l one:/srv",
        "cat one:/srv/new",
        "cp one:/srv/new [home]/copied",
        "edit one -m better --pin",
        "apply web --dry-run",
        "apply web",
        "rollback web one",
        "restore one --name again",
        "pause again",
        "ps",
        "fork one -n 2 --name try",
        "resume again",
        "stop again",
        "start again",
        "rm again",
        "template add tree dir:[home]/tree",
        "template ls",
        "run --rm --template host -- echo hello",
        "template rm tree",
        "create --name plain",
        "snapshot plain --name base",
        "template promote base app",
        "delete base",
        "snapshot web --name two",
        "log",
        "prune --dry-run --max-per-sandbox 1",
        "prune --max-per-sandbox 1",
        "stats",
        "config path",
        "rm web try-1 try-2 plain",
    ] {
        let line = line.replace("[home]", home.path().to_str().expect("text"));
        let run = home.ok(line.split(' '));
        writeln!(told, "$ forkpoint {line}\n{}{}", run.stdout, run.stderr).expect("text");
    }
    insta::with_settings!({
        filters => vec![
            (r"\b(sbx|snp|opr)[0-9a-z]{26}\b", "[$1]"),
            (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d UTC)?", "[time]"),
            (r"\b(now|\d+[sm])\b( ago)?", "[age]"),
            (r"\b\d+(\.\d)? (B|KiB|MiB|GiB|TiB)", "[size]"),
            (r"(/[\w.-]+)+/\.tmp\w+", "[home]"),
            // A column is as wide as what is in it.
            (r" {2,}", "  "),
        ]
    }, { insta::assert_snapshot!(told) });
}

/// One that goes wrong is in `errors.rs`; these print other than a few lines.
#[test]
fn no_verb_is_forgotten() {
    let elsewhere = ["doctor", "completions", "demo", "watch", "import-legacy"];
    let told = include_str!("told.rs");
    for verb in VERBS {
        let asked = told.contains(&format!("\"{verb} ")) || told.contains(&format!("\"{verb}\""));
        assert!(asked, "nobody tries `{verb}`, and it is not among {elsewhere:?}");
    }
}
