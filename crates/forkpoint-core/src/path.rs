//! A path inside a sandbox, and one outside.

use std::{
    ffi::OsString,
    fmt,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::error::Error;

const MAX_BYTES: usize = 4096;

/// Absolute, without `..`, `.` or doubled slashes; any bytes but NUL, as on Linux.
///
/// This keeps honest callers from surprises. It confines nobody: a symbolic link inside the
/// sandbox can point anywhere, so a driver resolves a path inside the sandbox's root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct SandboxPath(PathBuf);

/// Text where it is text. JSON has no way to write other bytes but as numbers.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(Vec<u8>),
}

impl SandboxPath {
    pub fn new(path: impl AsRef<Path>) -> Result<Self, Error> {
        plain(path.as_ref()).map(Self)
    }

    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl TryFrom<Written> for SandboxPath {
    type Error = Error;

    fn try_from(written: Written) -> Result<Self, Error> {
        plain(&written.into_path()).map(Self)
    }
}

impl From<SandboxPath> for Written {
    fn from(path: SandboxPath) -> Self {
        Self::of(&path.0)
    }
}

/// A path of the machine that a driver works on, as plain as a [`SandboxPath`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct HostPath(PathBuf);

impl HostPath {
    pub fn new(path: impl AsRef<Path>) -> Result<Self, Error> {
        plain(path.as_ref()).map(Self)
    }

    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for HostPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl TryFrom<Written> for HostPath {
    type Error = Error;

    fn try_from(written: Written) -> Result<Self, Error> {
        plain(&written.into_path()).map(Self)
    }
}

impl From<HostPath> for Written {
    fn from(path: HostPath) -> Self {
        Self::of(&path.0)
    }
}

impl Written {
    fn of(path: &Path) -> Self {
        match path.to_str() {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Bytes(path.as_os_str().as_bytes().to_vec()),
        }
    }

    fn into_path(self) -> PathBuf {
        match self {
            Self::Text(text) => text.into(),
            Self::Bytes(bytes) => OsString::from_vec(bytes).into(),
        }
    }
}

fn plain(path: &Path) -> Result<PathBuf, Error> {
    let refuse = |why: &str| Err(Error::invalid(format!("path {path:?} {why}")));
    if !path.is_absolute() {
        return refuse("is not absolute");
    }
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.len() > MAX_BYTES {
        return refuse("is longer than 4096 bytes");
    }
    if bytes.contains(&0) {
        return refuse("holds a NUL byte");
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return refuse("goes up with `..`");
    }
    // Collecting the components drops `.`, doubled slashes and a slash at the end.
    Ok(path.components().collect())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn is_absolute_and_plain() {
        for (given, kept) in [("/", "/"), ("//a/./b//", "/a/b"), ("/a..b", "/a..b")] {
            assert_eq!(SandboxPath::new(given).unwrap().as_path(), Path::new(kept));
        }
        for bad in ["", "a", "./a", "/a/../b", "/..", "/a\0b", &"/a".repeat(2049)] {
            assert!(SandboxPath::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn need_not_be_utf8() {
        let odd = OsStr::from_bytes(b"/\xff\xfe");
        let path = SandboxPath::new(odd).unwrap();
        assert_eq!(path.as_path().as_os_str(), odd);
        let json = serde_json::to_string(&path).unwrap();
        assert_eq!(serde_json::from_str::<SandboxPath>(&json).unwrap(), path);
        let plain = serde_json::to_value(SandboxPath::new("/a").unwrap()).unwrap();
        assert_eq!(plain, "/a");
        assert!(serde_json::from_str::<SandboxPath>("[47, 46, 46]").is_err(), "`/..` as bytes");
    }
}
