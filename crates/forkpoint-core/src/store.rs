//! Bytes that outlive a machine.

use std::{fmt, str::FromStr};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::error::{BoxError, Error};

/// A flat, write-once namespace of bytes: a name is the hash of the content.
#[async_trait]
pub trait BlobStore: fmt::Debug + Send + Sync {
    /// Returns when the bytes survive a power cut. Putting what is there is a success.
    async fn put(&self, name: &BlobName, bytes: Bytes) -> StoreResult<()>;

    async fn get(&self, name: &BlobName) -> StoreResult<Bytes>;

    async fn contains(&self, name: &BlobName) -> StoreResult<bool>;

    fn list(&self, kind: BlobKind) -> BoxStream<'_, StoreResult<BlobName>>;

    /// Succeeds if there is none.
    async fn remove(&self, name: &BlobName) -> StoreResult<()>;
}

/// What a blob is for, so that a sweep need not open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlobKind {
    /// Content.
    Data,
    /// What names other blobs.
    Index,
}

impl BlobKind {
    pub const ALL: [Self; 2] = [Self::Data, Self::Index];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Index => "index",
        }
    }
}

/// A kind and the BLAKE3 hash of the content; prints as `data/6af1…`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobName {
    kind: BlobKind,
    hash: [u8; 32],
}

impl BlobName {
    #[must_use]
    pub fn of(kind: BlobKind, bytes: &[u8]) -> Self {
        Self { kind, hash: *blake3::hash(bytes).as_bytes() }
    }

    #[must_use]
    pub fn kind(&self) -> BlobKind {
        self.kind
    }

    /// Whether this is the name of `bytes`.
    #[must_use]
    pub fn fits(&self, bytes: &[u8]) -> bool {
        *self == Self::of(self.kind, bytes)
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.as_str(), blake3::Hash::from_bytes(self.hash).to_hex())
    }
}

impl fmt::Debug for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for BlobName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = || {
            let (kind, hash) = text.split_once('/')?;
            let kind = BlobKind::ALL.into_iter().find(|known| known.as_str() == kind)?;
            let parsed = blake3::Hash::from_hex(hash).ok()?;
            // Upper-case digits would give one blob two names.
            (parsed.to_hex().as_str() == hash).then_some(Self { kind, hash: *parsed.as_bytes() })
        };
        parse().ok_or_else(|| Error::invalid(format!("{text:?} is not the name of a blob")))
    }
}

pub type StoreResult<T> = Result<T, StoreError>;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the store has no blob `{name}`")]
    Missing { name: BlobName },

    #[error("the bytes of blob `{name}` do not match its name")]
    Mismatch { name: BlobName },

    #[error("failed to {operation} in the store")]
    Unavailable {
        operation: &'static str,
        #[source]
        source: BoxError,
    },
}

impl StoreError {
    pub(crate) fn into_source(self) -> Option<BoxError> {
        match self {
            Self::Unavailable { source, .. } => Some(source),
            Self::Missing { .. } | Self::Mismatch { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_prints_and_parses_and_fits_its_bytes_only() {
        let name = BlobName::of(BlobKind::Data, b"hello");
        assert_eq!(name.to_string().parse::<BlobName>().unwrap(), name);
        assert!(name.fits(b"hello") && !name.fits(b"hellO"));
        assert_ne!(name, BlobName::of(BlobKind::Index, b"hello"));
        let upper = format!("data/{}", name.to_string()[5..].to_uppercase());
        for bad in ["", "data/", "data/00", "nope/00", "data", upper.as_str()] {
            assert!(bad.parse::<BlobName>().is_err(), "{bad:?}");
        }
    }
}
