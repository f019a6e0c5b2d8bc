//! Names of layers: our mark, and the snapshot that a layer was made for.

use std::{fmt, str::FromStr};

use forkpoint_core::id::SnapshotId;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::LayerError;

const MARK: &str = "lyr";
const TAG_MAX: usize = 16;
const PIN: &str = "pin";

/// `lyr` and a snapshot id, and for a further layer of the same snapshot a dash and a tag:
/// `lyrsnp01k…`, `lyrsnp01k…-flat1`. So it is a valid file name and cannot lead elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerName(String);

impl LayerName {
    #[must_use]
    pub fn of(snapshot: SnapshotId) -> Self {
        Self(format!("{MARK}{snapshot}"))
    }

    /// For what is made later for the same snapshot, such as a flattened chain.
    pub fn tagged(snapshot: SnapshotId, tag: &str) -> Result<Self, LayerError> {
        format!("{MARK}{snapshot}-{tag}").parse()
    }

    /// For what lies below the first snapshot of a sandbox and was copied from the host.
    pub(crate) fn pin(snapshot: SnapshotId) -> Self {
        Self(format!("{MARK}{snapshot}-{PIN}"))
    }

    pub(crate) fn is_pin(&self) -> bool {
        self.0.rsplit_once('-').is_some_and(|(_, tag)| tag == PIN)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LayerName {
    type Err = LayerError;

    fn from_str(text: &str) -> Result<Self, LayerError> {
        if is_ours(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(LayerError::Foreign { name: text.chars().take(64).collect() })
        }
    }
}

fn is_ours(text: &str) -> bool {
    let Some(rest) = text.strip_prefix(MARK) else { return false };
    let (id, tag) = rest.split_once('-').map_or((rest, None), |(id, tag)| (id, Some(tag)));
    id.parse::<SnapshotId>().is_ok() && tag.is_none_or(is_tag)
}

fn is_tag(tag: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=TAG_MAX).contains(&tag.len()) && tag.bytes().all(plain)
}

impl fmt::Display for LayerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Serialize for LayerName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LayerName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_our_mark_are_taken() {
        let snapshot = SnapshotId::from_u128(7);
        let plain = LayerName::of(snapshot);
        let tagged = LayerName::tagged(snapshot, "flat1").unwrap();
        for name in [plain.as_str(), tagged.as_str()] {
            assert_eq!(name.parse::<LayerName>().unwrap().as_str(), name);
        }
        for foreign in ["", "lyr", "lyrx", "etc", "..", "lyr../..", &snapshot.to_string()] {
            assert!(matches!(foreign.parse::<LayerName>(), Err(LayerError::Foreign { .. })));
        }
        for tag in ["", "A", "a/b", "a-b", ".", "12345678901234567"] {
            assert!(LayerName::tagged(snapshot, tag).is_err(), "{tag}");
        }
    }
}
