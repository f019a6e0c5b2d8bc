//! The documents name things that exist.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|err| panic!("{name}: {err}"))
}

fn sources(folder: &Path, found: &mut String) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push_str(&fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

/// Every `code` in a text.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_promise_has_a_test() {
    let mut code = String::new();
    sources(&root().join("crates"), &mut code);
    let promises = read("PROMISES.md");
    let rows: Vec<&str> = promises.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert!(rows.len() > 10, "the table of promises is gone");
    for row in rows {
        let tests = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        assert!(quoted(tests).next().is_some(), "a promise without a test: {row}");
        for test in quoted(tests) {
            let name = test.rsplit("::").next().unwrap_or(test);
            let known =
                code.contains(&format!("fn {name}(")) || code.contains(&format!("\"{name}\""));
            assert!(known, "PROMISES.md names the test `{test}`, and there is none");
        }
    }
}

#[test]
fn every_file_that_the_architecture_names_is_there() {
    let text = read("ARCHITECTURE.md");
    let paths: Vec<&str> = quoted(&text)
        .filter(|each| each.starts_with("crates/") || each.ends_with(".md"))
        .filter(|each| !each.contains(['*', ' ', '…']))
        .collect();
    assert!(paths.len() > 10, "the map is gone");
    for path in paths {
        assert!(root().join(path).exists(), "ARCHITECTURE.md names `{path}`, and it is not there");
    }
}
