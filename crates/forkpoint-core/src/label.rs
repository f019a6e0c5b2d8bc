//! Labels: what people and programs write on a sandbox or a snapshot to find it again.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::error::Error;

const MAX_LABELS: usize = 64;
const MAX_KEY_BYTES: usize = 128;
const MAX_VALUE_BYTES: usize = 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    pub fn new<K: Into<String>, V: Into<String>>(
        labels: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, Error> {
        let labels: BTreeMap<String, String> =
            labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        if labels.len() > MAX_LABELS {
            let count = labels.len();
            return Err(Error::invalid(format!("{count} labels are more than {MAX_LABELS}")));
        }
        for (key, value) in &labels {
            check(key, value)?;
        }
        Ok(Self(labels))
    }

    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether all of `wanted` are here, with the same values.
    #[must_use]
    pub fn contain(&self, wanted: &Self) -> bool {
        wanted.iter().all(|(key, value)| self.get(key) == Some(value))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn check(key: &str, value: &str) -> Result<(), Error> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
    if key.is_empty() || key.len() > MAX_KEY_BYTES || !key.bytes().all(known) {
        return Err(Error::invalid(format!(
            "label key {key:?} is not 1 to {MAX_KEY_BYTES} letters, digits, `.`, `_`, `-` or `/`"
        )));
    }
    if value.len() > MAX_VALUE_BYTES || value.chars().any(char::is_control) {
        return Err(Error::invalid(format!(
            "the value of label `{key}` is longer than {MAX_VALUE_BYTES} bytes or has control characters"
        )));
    }
    Ok(())
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(BTreeMap::<String, String>::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_no_table_could_show() {
        for (key, value) in [("", "x"), ("a b", "x"), ("k", "line\nbreak"), ("k\u{e9}", "x")] {
            assert!(Labels::new([(key, value)]).is_err(), "{key:?}={value:?}");
        }
        assert!(Labels::new([("k", "v".repeat(1025))]).is_err());
        assert!(Labels::new((0..65).map(|n| (format!("k{n}"), ""))).is_err());
        assert!(Labels::new([("app.kubernetes.io/name", "a value with spaces \u{e9}")]).is_ok());
    }

    #[test]
    fn contain_asks_for_equal_values() {
        let labels = Labels::new([("a", "1"), ("b", "2")]).unwrap();
        assert!(labels.contain(&Labels::default()));
        assert!(labels.contain(&Labels::new([("b", "2")]).unwrap()));
        assert!(!labels.contain(&Labels::new([("b", "3")]).unwrap()));
    }
}
