//! From the text of a `forkpoint.toml` to its keys, each with its line.

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::Entry;

/// What a file holds, whichever its form.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) entries: Vec<Entry>,
    pub(super) is_older: bool,
    pub(super) ignored: Vec<String>,
}

/// A mistake with its line.
pub(super) type Mistake = (usize, String);

pub(super) fn toml(text: &str) -> Result<File, Mistake> {
    let table = DeTable::parse(text).map_err(|err| {
        let at = err.span().map_or(0, |span| span.start);
        (line(text, at), err.message().to_owned())
    })?;
    let mut file = File::default();
    for (key, value) in table.get_ref() {
        let name = key.get_ref();
        match value.get_ref() {
            DeValue::Table(section) => {
                for (key, value) in section {
                    let name = format!("{name}.{}", key.get_ref());
                    let line = line(text, key.span().start);
                    file.entries.push(Entry { key: name, value: plain(value.get_ref()), line });
                }
            }
            value => {
                let line = line(text, key.span().start);
                file.entries.push(Entry { key: name.to_string(), value: plain(value), line });
            }
        }
    }
    Ok(file)
}

/// Numbers from 1. An offset that is none counts as the end.
pub(super) fn line(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Boolean(flag) => Value::from(*flag),
        DeValue::Integer(number) => {
            // One that is too large stays a text, and is refused as such.
            let parsed = i64::from_str_radix(number.as_str(), number.radix());
            parsed.map_or_else(|_| Value::from(number.as_str()), Value::from)
        }
        DeValue::Float(number) => {
            let parsed = number.as_str().parse::<f64>();
            parsed.map_or_else(|_| Value::from(number.as_str()), Value::from)
        }
        DeValue::Datetime(time) => Value::from(time.to_string()),
        DeValue::Array(items) => items.iter().map(|item| plain(item.get_ref())).collect(),
        DeValue::Table(table) => {
            let pairs = table.iter();
            pairs.map(|(key, value)| (key.get_ref().to_string(), plain(value.get_ref()))).collect()
        }
    }
}
