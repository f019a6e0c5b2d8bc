//! The guides tell what really happens.
//!
//! Each block of ```` ```console ```` in a document is typed into one shell, in order, in an empty directory; what
//! follows a command must be what it prints. `…` stands for anything in a line, and alone in a line
//! for any lines.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use forkpoint_testkit::docker::DockerEngine;
use tempfile::TempDir;

use crate::{docker::import_server, harness::Home};

#[derive(Debug)]
struct Step {
    command: String,
    /// Lines.
    told: Vec<String>,
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if inside && let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), told: Vec::new() });
        } else if inside && let Some(step) = steps.last_mut() {
            match line.strip_prefix("> ") {
                Some(more) if step.told.is_empty() => {
                    step.command.push('\n');
                    step.command.push_str(more);
                }
                _ => step.told.push(line.to_owned()),
            }
        }
    }
    for step in &mut steps {
        while step.told.last().is_some_and(String::is_empty) {
            step.told.pop();
        }
    }
    steps
}

/// What each command prints, in one shell.
fn play(home: &Home, steps: &[Step], engine: Option<&DockerEngine>) -> Vec<Vec<String>> {
    let mark = "@@ end of a step @@";
    let work = home.path().join("work");
    fs::create_dir_all(&work).expect("a directory to work in");
    let mut script = String::new();
    for step in steps {
        script.push_str(&format!("{}\necho '{mark}'\n", step.command));
    }
    let program = Path::new(env!("CARGO_BIN_EXE_forkpoint")).parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("bash")
        .args(["-c", &format!("exec 2>&1\n{script}")])
        .current_dir(&work)
        .env("PATH", format!("{}:{path}", program.display()))
        .env("FORKPOINT_DATA_DIR", home.path().join("data"))
        .env("HOME", &work)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env_remove("FORKPOINT_CONFIG")
        .envs(engine.map(|engine| ("DOCKER_HOST", engine.host())))
        .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "Ada")))
        .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_EMAIL"), "ada@example.org")))
        .stdin(Stdio::null())
        .output()
        .expect("bash starts");
    let text = String::from_utf8(output.stdout).expect("it prints UTF-8");
    let mut parts: Vec<Vec<String>> = vec![Vec::new()];
    for line in text.lines() {
        // A command may end without a line break.
        match line.strip_suffix(mark) {
            Some(rest) => {
                let last = parts.last_mut().expect("a step");
                last.extend((!rest.is_empty()).then(|| rest.to_owned()));
                parts.push(Vec::new());
            }
            None => parts.last_mut().expect("a step").push(line.trim_end().to_owned()),
        }
    }
    parts
}

fn fits_line(pattern: &str, line: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('…') else { return pattern == line };
    let Some(mut line) = line.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('…').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, after)) = line.split_once(part) else { return false };
        line = after;
    }
    line.ends_with(end)
}

fn fits(pattern: &[String], lines: &[String]) -> bool {
    match pattern.split_first() {
        None => lines.is_empty(),
        Some((first, rest)) if first == "…" => {
            (0..=lines.len()).any(|skipped| fits(rest, &lines[skipped..]))
        }
        Some((first, rest)) => lines
            .split_first()
            .is_some_and(|(line, more)| fits_line(first, line) && fits(rest, more)),
    }
}

fn check(document: &Path) {
    check_with(document, None);
}

/// With an engine of its own, for the names that a document uses; `nginx` is what serves a page there.
fn check_with_docker(document: &Path) {
    let directory = TempDir::new().expect("a directory");
    let engine = DockerEngine::own(directory.path());
    import_server(&engine, "nginx", directory.path());
    check_with(document, Some(&engine));
}

fn check_with(document: &Path, engine: Option<&DockerEngine>) {
    let text = fs::read_to_string(document).expect("a document");
    let steps = steps(&text);
    assert!(!steps.is_empty(), "{}: nothing to try", document.display());
    let home = match engine {
        Some(engine) => Home::with_env("DOCKER_HOST", engine.host()),
        None => Home::new(),
    };
    let played = play(&home, &steps, engine);
    for (step, told) in steps.iter().zip(&played) {
        assert!(
            fits(&step.told, told),
            "{}:\n$ {}\nis to print:\n{}\n\nbut prints:\n{}\n",
            document.display(),
            step.command,
            step.told.join("\n"),
            told.join("\n"),
        );
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_tour_of_the_readme_is_true() {
    check_with_docker(&root().join("README.md"));
}

#[test]
fn an_agent_is_rewound_as_the_guide_says() {
    check(&root().join("docs/rewind-an-agent.md"));
}

#[test]
fn a_search_explores_as_the_guide_says() {
    check(&root().join("docs/explore-in-parallel.md"));
}

#[test]
fn a_workspace_is_kept_as_the_guide_says() {
    check(&root().join("docs/keep-a-workspace.md"));
}

#[test]
fn templates_are_made_as_the_guide_says() {
    check(&root().join("docs/use-an-image.md"));
}

#[test]
fn containers_are_kept_as_the_guide_says() {
    check_with_docker(&root().join("docs/docker.md"));
}

#[test]
fn what_runs_is_kept_as_the_guide_says() {
    check(&root().join("docs/full-state.md"));
}

/// A guide that nobody tries is soon wrong.
#[test]
fn every_guide_is_tried() {
    let code = include_str!("guides.rs");
    for guide in fs::read_dir(root().join("docs")).expect("guides").flatten() {
        let name = guide.file_name().into_string().expect("a name");
        assert!(code.contains(&format!("docs/{name}")), "{name}");
    }
}

#[test]
fn a_pattern_stands_for_what_varies() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(fits_line("took `…`, … B of its own", "took `web`, 12 B of its own"));
    assert!(!fits_line("took `…`, … B of its own", "took `web`, 12 B"));
    assert!(fits_line("plain", "plain") && !fits_line("plain", "plain "));
    assert!(fits(&lines("a\n…\nd"), &lines("a\nb\nc\nd")) && fits(&lines("…"), &[]));
    assert!(!fits(&lines("a\n…\nd"), &lines("a\nb")));
}
