//! Digests: what a thing must be, whoever sends it.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

const ALGORITHM: &str = "sha256";
const HEX: usize = 64;

/// A SHA-256 in the form of images, `sha256:` and 64 small hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    #[must_use]
    pub fn hex(&self) -> &str {
        &self.0[ALGORITHM.len() + 1..]
    }

    /// As people write it.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.hex()[..12]
    }

    /// Names a directory; cannot lead elsewhere.
    pub(super) fn file_name(&self) -> String {
        format!("{ALGORITHM}-{}", self.hex())
    }

    pub(super) fn from_file_name(name: &str) -> Option<Self> {
        format!("{ALGORITHM}:{}", name.strip_prefix(ALGORITHM)?.strip_prefix('-')?).parse().ok()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a digest of the form `sha256:…`, the only one that is read")]
pub struct DigestError(String);

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let hex = text.strip_prefix(ALGORITHM).and_then(|rest| rest.strip_prefix(':'));
        match hex {
            Some(hex) if hex.len() == HEX && hex.bytes().all(is_hex) => Ok(Self(text.to_owned())),
            _ => Err(DigestError(text.chars().take(80).collect())),
        }
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Hasher(Sha256);

impl Hasher {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn finish(self) -> Digest {
        let hex: String = self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Digest(format!("{ALGORITHM}:{hex}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_form_is_taken() {
        let empty = Digest::of(b"");
        assert_eq!(empty.short(), "e3b0c44298fc");
        assert_eq!(empty.as_str().parse::<Digest>().unwrap(), empty);
        assert_eq!(Digest::from_file_name(&empty.file_name()), Some(empty.clone()));
        let upper = empty.as_str().to_uppercase();
        for bad in ["", "sha256:", "sha512:00", "sha256:../x", &upper, &format!("{empty}0")] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
