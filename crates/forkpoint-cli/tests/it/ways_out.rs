//! `docs/full-state.md` has the way out of every refusal of a full snapshot.
//!
//! What a refusal says is found in the sources: each text of more than one word is one, unless it tells of what was
//! being done. The document has the same words in a row of a table, so that who was refused finds them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Below `crates/`: who refuses, and from where on.
const WHO: [(&str, &str); 10] = [
    ("forkpoint-checkpoint/src/coverage.rs", "const NOT_TEXT"),
    ("forkpoint-checkpoint/src/dump.rs", ""),
    ("forkpoint-checkpoint/src/dump", ""),
    ("forkpoint-checkpoint/src/error.rs", "enum Error"),
    ("forkpoint-checkpoint/src/freeze.rs", ""),
    ("forkpoint-checkpoint/src/mounts.rs", ""),
    ("forkpoint-checkpoint/src/mounts/look.rs", ""),
    ("forkpoint-checkpoint/src/pager/guard.rs", ""),
    ("forkpoint-checkpoint/src/segments.rs", ""),
    ("forkpoint-backends/src/driver/local/memory.rs", "fn refusal("),
];

/// What stands before a text that tells no user why.
const DOING: [&str; 9] = [
    ".doing(",
    "held.pid, ",
    ".system(",
    ".file(",
    "doing: ",
    "io::Error::other(",
    "unreachable!(",
    "== 32, ",
    "failed to ",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(path: &Path) -> Vec<String> {
    if path.is_dir() {
        let entries = fs::read_dir(path).expect("a folder of sources").flatten();
        return entries.flat_map(|entry| sources(&entry.path())).collect();
    }
    vec![fs::read_to_string(path).unwrap_or_else(|err| panic!("{}: {err}", path.display()))]
}

/// Without comments and tests.
fn code(source: &str, from: &str) -> String {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let start = source.find(from).unwrap_or_else(|| panic!("`{from}` is gone"));
    let lines = source[start..].lines().map(str::trim);
    lines.filter(|line| !line.starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Every text in the code, with what stands before it.
fn texts(code: &str) -> Vec<(&str, String)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = code[at..].find('"').map(|index| at + index) {
        let text = &code[start + 1..];
        let end = text.match_indices('"').find(|(end, _)| !text[..*end].ends_with('\\'));
        let Some((end, _)) = end else { break };
        found.push((&code[..start], text[..end].replace("\\\n", "")));
        at = start + 1 + end + 1;
    }
    found
}

/// What is told up to the way out, with `…` for what differs.
fn told(text: &str) -> String {
    let mut told = String::new();
    for (index, part) in text.split('{').enumerate() {
        let rest =
            if index == 0 { part } else { part.split_once('}').map_or("", |(_, rest)| rest) };
        told.push_str(if index == 0 { "" } else { "…" });
        told.push_str(rest);
    }
    plain(told.split(';').next().unwrap_or_default())
}

fn plain(text: &str) -> String {
    text.replace('`', "").trim().to_owned()
}

fn is_a_refusal(before: &str, text: &str) -> bool {
    let before = before.trim_end_matches('\n');
    let doing = DOING.iter().any(|doing| before.ends_with(doing) || text.starts_with(doing));
    !doing && words(text) > 1
}

/// `/memfd:…` and `(descriptor` are none.
fn words(text: &str) -> usize {
    let words = text.split([' ', ':', ',']).filter(|word| !word.is_empty());
    words.filter(|word| word.chars().all(|each| each.is_alphabetic() || each == '\'')).count()
}

fn refusals() -> Vec<String> {
    let mut all = Vec::new();
    for (path, from) in WHO {
        for source in sources(&root().join("crates").join(path)) {
            let code = code(&source, from);
            let texts = texts(&code).into_iter().map(|(before, text)| (before, told(&text)));
            all.extend(
                texts.filter(|(before, text)| is_a_refusal(before, text)).map(|(_, told)| told),
            );
        }
    }
    all.sort();
    all.dedup();
    all
}

/// What is said, and the way out.
fn rows() -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join("docs/full-state.md")).expect("the guide");
    let (_, tables) = text.split_once("## What is refused").expect("the section");
    let rows = tables.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.filter_map(|row| row.split_once(" | "))
        .map(|(said, out)| (plain(said), plain(out)))
        .collect()
}

#[test]
fn every_refusal_has_a_row_with_the_way_out() {
    let (refusals, rows) = (refusals(), rows());
    assert!(refusals.len() > 90, "refusals are not found any more: {refusals:#?}");
    let has = |refusal: &&String| {
        rows.iter().any(|(said, out)| said.contains(*refusal) && !out.is_empty())
    };
    let lost: Vec<&String> = refusals.iter().filter(|refusal| !has(refusal)).collect();
    assert!(lost.is_empty(), "docs/full-state.md has no row that says {lost:#?}");
}

#[test]
fn every_row_is_of_a_refusal_that_there_is() {
    let refusals = refusals();
    for (said, _) in rows().into_iter().filter(|(said, _)| said != "what is said") {
        let known = refusals.iter().any(|refusal| said.contains(refusal));
        assert!(known, "docs/full-state.md has a row for what nobody says: {said}");
    }
}
