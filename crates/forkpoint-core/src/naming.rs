//! Names that people give to sandboxes and snapshots, and patterns that make them.

use std::{fmt, str::FromStr};

use jiff::{Timestamp, tz::TimeZone};
use serde::{Deserialize, Serialize};

use crate::{
    driver::SnapshotKind,
    error::Error,
    id::{OperationId, SandboxId, SnapshotId},
    trigger::Trigger,
};

const MAX_NAME_BYTES: usize = 128;

/// Digits of an id's random end that make a taken name free again.
const SUFFIX_DIGITS: usize = 10;

/// Letters, digits, `.`, `_` and `-`, beginning with a letter or digit; never mistaken for an id.
///
/// `@`, `:` and `/` stay out: they have a meaning in references (`web@latest`, `docker:web`,
/// `snap:/etc/hosts`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// This name with a number behind it, for one of several copies.
    pub fn numbered(&self, number: usize) -> Result<Self, Error> {
        format!("{self}-{number}").parse()
    }

    /// This name made unique by the end of `id`, cut where it would get too long.
    #[must_use]
    pub fn made_unique(&self, id: SnapshotId) -> Self {
        let id = id.to_string();
        let suffix = &id[id.len() - SUFFIX_DIGITS..];
        let room = MAX_NAME_BYTES - SUFFIX_DIGITS - 1;
        Self(format!("{}_{suffix}", &self.0[..self.0.len().min(room)]))
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let shown: String = text.chars().take(64).collect();
        let starts_well = text.starts_with(|first: char| first.is_ascii_alphanumeric());
        if !starts_well || text.len() > MAX_NAME_BYTES || !text.bytes().all(allowed) {
            return Err(Error::invalid(format!(
                "{shown:?} cannot be a name: that is 1 to {MAX_NAME_BYTES} letters, digits, `.`, `_` or `-`, beginning with a letter or digit"
            )));
        }
        if is_id(text) {
            return Err(Error::invalid(format!("`{text}` cannot be a name: it is an id")));
        }
        Ok(Self(text.to_owned()))
    }
}

fn allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

fn is_id(text: &str) -> bool {
    text.parse::<SandboxId>().is_ok()
        || text.parse::<SnapshotId>().is_ok()
        || text.parse::<OperationId>().is_ok()
}

impl TryFrom<String> for Name {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A pattern such as `{sandbox_name}_{trigger}_{timestamp}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NamingPattern(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Field(Field),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    ContainerName,
    SandboxName,
    SandboxId,
    SnapshotId,
    Trigger,
    Timestamp,
    Date,
    Time,
    Kind,
    Driver,
    RunId,
    Step,
}

impl Field {
    /// `container_name` is what an older tool called the sandbox; its patterns still work.
    const ALL: [(&'static str, Self); 12] = [
        ("container_name", Self::ContainerName),
        ("sandbox_name", Self::SandboxName),
        ("sandbox_id", Self::SandboxId),
        ("snapshot_id", Self::SnapshotId),
        ("trigger", Self::Trigger),
        ("timestamp", Self::Timestamp),
        ("date", Self::Date),
        ("time", Self::Time),
        ("kind", Self::Kind),
        ("driver", Self::Driver),
        ("run_id", Self::RunId),
        ("step", Self::Step),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, field)| *field == self).map_or("", |(name, _)| name)
    }

    fn render(self, facts: &NamingFacts<'_>) -> String {
        let time = |format: &str| facts.at.to_zoned(TimeZone::UTC).strftime(format).to_string();
        match self {
            Self::ContainerName | Self::SandboxName => {
                facts.sandbox_name.map_or_else(|| facts.sandbox.to_string(), ToString::to_string)
            }
            Self::SandboxId => facts.sandbox.to_string(),
            Self::SnapshotId => facts.snapshot.to_string(),
            Self::Trigger => facts.trigger.to_string(),
            Self::Timestamp => time("%Y%m%d_%H%M%S"),
            Self::Date => time("%Y%m%d"),
            Self::Time => time("%H%M%S"),
            Self::Kind => facts.kind.to_string(),
            Self::Driver => facts.driver.to_owned(),
            Self::RunId => facts.run_id.unwrap_or("none").to_owned(),
            Self::Step => facts.step.map_or_else(|| "0".to_owned(), |step| step.to_string()),
        }
    }
}

/// What a pattern may speak of.
#[derive(Clone, Copy, Debug)]
pub struct NamingFacts<'a> {
    pub sandbox: SandboxId,
    pub sandbox_name: Option<&'a Name>,
    pub snapshot: SnapshotId,
    pub trigger: Trigger,
    pub kind: SnapshotKind,
    pub driver: &'a str,
    pub run_id: Option<&'a str>,
    pub step: Option<u64>,
    pub at: Timestamp,
}

impl NamingPattern {
    /// Always a valid name, whatever the facts hold: what a name cannot have becomes `-`.
    ///
    /// Not always a free one: two snapshots in one second may get the same. The engine then takes
    /// [`Name::made_unique`].
    #[must_use]
    pub fn render(&self, facts: &NamingFacts<'_>) -> Name {
        let text: String = self
            .0
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => text.clone(),
                Piece::Field(field) => field.render(facts),
            })
            .collect();
        let mut name: String = text
            .chars()
            .map(|c| u8::try_from(c).ok().filter(|byte| allowed(*byte)).map_or('-', char::from))
            .collect();
        if !name.starts_with(|first: char| first.is_ascii_alphanumeric()) {
            name.insert_str(0, "snapshot");
        }
        name.truncate(MAX_NAME_BYTES);
        // A bare `{snapshot_id}` would be an id, and an id finds its snapshot without a name.
        if is_id(&name) {
            name.insert_str(0, "snapshot-");
        }
        Name(name)
    }
}

impl Default for NamingPattern {
    fn default() -> Self {
        let text = |text: &str| Piece::Text(text.to_owned());
        Self(vec![
            Piece::Field(Field::SandboxName),
            text("_"),
            Piece::Field(Field::Trigger),
            text("_"),
            Piece::Field(Field::Timestamp),
        ])
    }
}

impl FromStr for NamingPattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (field, after) = after.split_once('}').ok_or_else(|| {
                Error::invalid(format!("naming pattern `{text}` opens a `{{` and never closes it"))
            })?;
            pieces.push(Piece::Text(before.to_owned()));
            pieces.push(Piece::Field(find_field(text, field)?));
            rest = after;
        }
        pieces.push(Piece::Text(rest.to_owned()));
        pieces.retain(|piece| *piece != Piece::Text(String::new()));
        if pieces.is_empty() {
            return Err(Error::invalid("a naming pattern cannot be empty"));
        }
        Ok(Self(pieces))
    }
}

fn find_field(pattern: &str, name: &str) -> Result<Field, Error> {
    Field::ALL.iter().find(|(known, _)| *known == name).map(|(_, field)| *field).ok_or_else(|| {
        let known = Field::ALL.map(|(name, _)| name).join(", ");
        Error::invalid(format!("naming pattern `{pattern}` has no field `{name}` to use: {known}"))
    })
}

impl TryFrom<String> for NamingPattern {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<NamingPattern> for String {
    fn from(pattern: NamingPattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for NamingPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            Piece::Text(text) => f.write_str(text),
            Piece::Field(field) => write!(f, "{{{}}}", field.name()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(pattern: &str, sandbox_name: &str) -> String {
        let name = sandbox_name.parse::<Name>().ok();
        let facts = NamingFacts {
            sandbox: SandboxId::from_u128(1),
            sandbox_name: name.as_ref(),
            snapshot: SnapshotId::from_u128(2),
            trigger: Trigger::AfterAction,
            kind: SnapshotKind::Files,
            driver: "local",
            run_id: Some("run/7 \u{e9}"),
            step: Some(3),
            at: "2026-08-15T09:50:55.7Z".parse().unwrap(),
        };
        pattern.parse::<NamingPattern>().unwrap().render(&facts).to_string()
    }

    #[test]
    fn fills_in_every_field() {
        for (pattern, name) in [
            ("{container_name}_{trigger}_{timestamp}", "web_after_action_20260815_095055"),
            ("{sandbox_name}.{date}-{time}", "web.20260815-095055"),
            ("{driver}-{kind}-{step}", "local-files-3"),
            ("{run_id}", "run-7--"),
            ("-{trigger}", "snapshot-after_action"),
            ("x{snapshot_id}", "xsnp00000000000000000000000002"),
            ("{snapshot_id}", "snapshot-snp00000000000000000000000002"),
            ("{sandbox_id}", "snapshot-sbx00000000000000000000000001"),
        ] {
            assert_eq!(render(pattern, "web"), name);
        }
        assert_eq!(render("{sandbox_name}!", "no name"), "sbx00000000000000000000000001-");
    }

    #[test]
    fn refuses_a_pattern_that_it_cannot_fill() {
        for bad in ["", "{", "{name}", "{trigger", "{}", "a{{trigger}}"] {
            assert!(bad.parse::<NamingPattern>().is_err(), "{bad:?}");
        }
        let err = "{host}".parse::<NamingPattern>().unwrap_err().to_string();
        assert!(err.contains("`host`") && err.contains("sandbox_name"), "{err}");
    }

    #[test]
    fn prints_what_it_was_parsed_from() {
        let text = "a{trigger}b{step}";
        assert_eq!(text.parse::<NamingPattern>().unwrap().to_string(), text);
        let default = NamingPattern::default().to_string();
        assert_eq!(default.parse::<NamingPattern>().unwrap(), NamingPattern::default());
    }

    #[test]
    fn a_name_is_no_id_and_no_path() {
        for bad in ["", "-a", ".a", "a/b", "a@1", "a:b", "a\nb", &"a".repeat(129), "\u{e9}"] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
        assert!(SandboxId::from_u128(9).to_string().parse::<Name>().is_err());
        assert!("sbx-web.1_x".parse::<Name>().is_ok());
    }

    #[test]
    fn a_unique_name_is_still_a_name() {
        let long: Name = "a".repeat(128).parse().unwrap();
        let unique = long.made_unique(SnapshotId::from_u128(u128::MAX));
        assert_eq!(unique.as_str().len(), 128);
        unique.as_str().parse::<Name>().unwrap();
    }
}
