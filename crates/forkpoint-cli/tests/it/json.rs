//! What a script gets of every verb: the fields, and what is in each.

use std::{fmt::Write as _, fs};

use serde_json::Value;

use crate::{
    harness::{Home, assert_told},
    help::VERBS,
};

/// Values differ from run to run; what they are does not.
fn shape(value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::Bool(_) => "yes or no".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "text".into(),
        Value::Array(items) => items.iter().take(1).map(shape).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (key.clone(), shape(value))).collect()
        }
    }
}

struct Script {
    home: Home,
    told: String,
}

impl Script {
    /// One document on stdout, whatever the verb, and nothing else there.
    fn ask(&mut self, line: &str) {
        let line = line.replace("[home]", self.home.path().to_str().expect("text"));
        let run = self.home.ok(line.split(' ').chain(["--json"]));
        self.assert_documented(&line, &run.json());
        let shape = serde_json::to_string_pretty(&shape(&run.json())).expect("JSON");
        writeln!(self.told, "$ forkpoint {line} --json\n{shape}\n").expect("text");
    }
}

impl Script {
    /// The help names every field of the document itself, or the verb whose help does.
    fn assert_documented(&self, line: &str, document: &Value) {
        let words = line.split(' ').take(if line.starts_with("template ") { 2 } else { 1 });
        let help = |words: &[&str]| self.home.ok(words.iter().chain(&["--help"])).stdout;
        let words: Vec<&str> = words.collect();
        let mut named = help(&words);
        let others =
            named.split("`forkpoint ").skip(1).filter_map(|rest| rest.split_once(" --help`"));
        let others: String =
            others.map(|(verb, _)| help(&verb.split(' ').collect::<Vec<_>>())).collect();
        named.push_str(&others);
        for field in document.as_object().expect("an object").keys() {
            assert!(named.contains(&format!("\"{field}\"")), "{words:?}: no help names `{field}`");
        }
    }
}

#[test]
fn every_verb_speaks_json() {
    // Whatever engine this machine may have.
    let home = Home::with_env("DOCKER_HOST", "unix:///nowhere/docker.sock".to_owned());
    fs::create_dir(home.path().join("project")).expect("a directory");
    fs::write(home.path().join("project/file"), "one\n").expect("a file");
    fs::create_dir_all(home.path().join("tree/etc")).expect("a directory");
    let mut script = Script { home, told: String::new() };
    script.ask("create --name web --label team=a --workspace [home]/project --memory 512M");
    script.home.sh("web", "echo two > /workspace/file; echo new > /srv/new");
    for line in [
        "ps",
        "ps --usage",
        "snapshot web --name one -m first --run-id r1 --step 1 --label kind=good",
        "list",
        "show one",
        "log",
        "validate web",
        "diff web@latest web",
        "diff one",
        "diff one --stat",
        "ls one:/srv",
        "cp one:/srv/new [home]/copied",
        "edit one -m better --pin",
        "apply web --dry-run",
        "apply web",
        "rollback web one",
        "restore one --name again",
        "fork one -n 1 --name try",
        "pause again",
        "resume again",
        "stop again",
        "start again",
        "rm again",
        "template add tree dir:[home]/tree",
        "create --name plain",
        "snapshot plain --name base",
        "template promote base app",
        "template ls",
        "template rm app",
        "snapshot web --name two",
        "delete two",
        "prune --dry-run --keep-last 1",
        "prune --keep-last 1",
        "stats",
        "config show",
        "config path",
        "doctor",
    ] {
        script.ask(line);
    }
    assert_told!(script.told);
}

/// Those whose output is the command's or the file's own, and those that print for people or shells alone. What the
/// two of containers say is told where there is an engine.
#[test]
fn no_verb_is_forgotten() {
    let plain = ["run", "exec", "cat", "completions", "demo", "watch", "import-legacy"];
    let told = include_str!("json.rs");
    for verb in VERBS {
        let asked = told.contains(&format!("\"{verb} ")) || told.contains(&format!("\"{verb}\""));
        assert!(asked, "`{verb}` is not asked for JSON, and is not among {plain:?}");
    }
}
