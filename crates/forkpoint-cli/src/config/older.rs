//! The JSON of an older snapshot manager, as it is.
//!
//! Only what is written there holds; the defaults that its manager would have added do not. A relative
//! `storage_path` begins in the working directory, as it did there.

use serde_json::{Map, Value};

use super::{
    Entry, key,
    parse::{File, Mistake, line},
};

/// Its keys, and ours for the same.
const KEYS: [(&str, &str); 7] = [
    ("triggers", "snapshots.triggers"),
    ("storage_path", "data_dir"),
    ("max_snapshots_per_container", "retention.max_per_sandbox"),
    ("max_total_snapshots", "retention.max_total"),
    ("max_storage_size_gb", "retention.max_size"),
    ("auto_cleanup_days", "retention.max_age_days"),
    ("naming_pattern", "snapshots.naming"),
];

/// What has no counterpart here.
const IGNORED: [&str; 5] = [
    "cleanup_on_exit",
    "compression_enabled",
    "parallel_operations",
    "include_volumes",
    "exclude_paths",
];

const GB: f64 = 1_073_741_824.0;

pub(super) fn read(text: &str) -> Result<File, Mistake> {
    let all: Map<String, Value> =
        serde_json::from_str(text).map_err(|err| (err.line().max(1), err.to_string()))?;
    let mut file = File { is_older: true, ..File::default() };
    for (name, value) in all {
        let line = line_of(text, &name);
        if IGNORED.contains(&name.as_str()) {
            file.ignored.push(name);
            continue;
        }
        let Some((_, ours)) = KEYS.iter().find(|(theirs, _)| *theirs == name) else {
            let known = KEYS.iter().map(|(theirs, _)| (*theirs).to_owned()).collect();
            return Err((line, key::unknown(&name, known)));
        };
        let value = match *ours {
            "retention.max_size" => size(&value).map_err(|message| (line, message))?,
            _ => value,
        };
        file.entries.push(Entry { key: (*ours).to_owned(), value, line });
    }
    Ok(file)
}

fn size(value: &Value) -> Result<Value, String> {
    let refuse = || format!("`max_storage_size_gb` = {value}: a number above 0 is expected");
    let gb = value.as_f64().filter(|gb| *gb > 0.0 && *gb < 8e9).ok_or_else(refuse)?;
    Ok(Value::from((gb * GB) as u64))
}

/// Where the key stands first. All of them stand in one object.
fn line_of(text: &str, name: &str) -> usize {
    line(text, text.find(&format!("\"{name}\"")).unwrap_or(0))
}
