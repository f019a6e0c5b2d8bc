//! Identifiers: a ULID behind three letters that say what it names.
//!
//! They print as lower-case letters and digits only (`sbx01k9…`), so that an id is a valid DNS
//! label and a valid name for every platform and client that we speak to.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Crockford's base 32: no `i`, `l`, `o` or `u`.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Digits of base 32 that hold 128 bits.
const DIGITS: usize = 26;

const RANDOM_BITS: u32 = 80;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {what} id: that is `{prefix}` and 26 lower-case letters and digits")]
pub struct IdError {
    text: String,
    what: &'static str,
    prefix: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            /// An id that sorts by the time at which it was made.
            #[must_use]
            pub fn new(at: Timestamp, random: u128) -> Self {
                Self(ulid(at, random))
            }

            /// The id that a driver derives from a platform's own identity of a thing.
            #[must_use]
            pub const fn from_u128(bits: u128) -> Self {
                Self(bits)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{}", Self::PREFIX, encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                text.strip_prefix(Self::PREFIX).and_then(decode).map(Self).ok_or_else(|| IdError {
                    text: text.chars().take(64).collect(),
                    what: $what,
                    prefix: Self::PREFIX,
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

id!(SandboxId, "sbx", "sandbox");
id!(SnapshotId, "snp", "snapshot");
id!(OperationId, "opr", "operation");
id!(
    /// A process (or a thread of one) that works on a catalog. Never used twice, so one that is
    /// gone stays gone.
    OwnerId,
    "own",
    "owner"
);

fn ulid(at: Timestamp, random: u128) -> u128 {
    let millis = u128::try_from(at.as_millisecond()).unwrap_or(0) & ((1 << 48) - 1);
    millis << RANDOM_BITS | random & ((1 << RANDOM_BITS) - 1)
}

fn encode(bits: u128) -> String {
    (0..DIGITS).rev().map(|digit| ALPHABET[(bits >> (5 * digit)) as usize & 31] as char).collect()
}

fn decode(text: &str) -> Option<u128> {
    // 26 digits hold 130 bits: a first digit above 7 would not fit.
    if text.len() != DIGITS || text.as_bytes()[0] > b'7' {
        return None;
    }
    text.bytes().try_fold(0u128, |bits, byte| {
        let digit = ALPHABET.iter().position(|&known| known == byte)?;
        Some(bits << 5 | digit as u128)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_a_dns_label_and_parses_back() {
        for bits in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef] {
            let id = SandboxId::from_u128(bits);
            let text = id.to_string();
            assert_eq!(text.len(), 29);
            assert!(text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()));
            assert_eq!(text.parse(), Ok(id));
        }
    }

    #[test]
    fn refuses_what_is_not_an_id() {
        let good = SnapshotId::from_u128(7).to_string();
        for bad in ["", "snp", "sbx", &good[..28], &format!("{good}0"), &good.to_uppercase()] {
            assert!(bad.parse::<SnapshotId>().is_err(), "{bad:?}");
        }
        assert!("snp8zzzzzzzzzzzzzzzzzzzzzzzzz".parse::<SnapshotId>().is_err(), "129 bits");
        assert!("snpi0000000000000000000000000".parse::<SnapshotId>().is_err(), "not a digit");
        assert!(good.parse::<SandboxId>().is_err(), "another kind of thing");
        assert!("snp\u{e9}000000000000000000000000".parse::<SnapshotId>().is_err(), "not ASCII");
    }

    #[test]
    fn sorts_by_time() {
        let early = SnapshotId::new(Timestamp::from_millisecond(1_000).unwrap(), u128::MAX);
        let late = SnapshotId::new(Timestamp::from_millisecond(1_001).unwrap(), 0);
        assert!(early < late);
        assert!(early.to_string() < late.to_string());
    }
}
