//! How overlayfs writes down what a layer hides.

use std::os::fd::AsFd;

use rustix::{
    fs::{FileType, Mode, Stat, XattrFlags, fgetxattr, fsetxattr, mknodat},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::error::{During as _, Fault};

/// Under which names overlayfs keeps its attributes: `trusted.` needs privilege over the whole
/// machine, `user.` goes with the mount option `userxattr`. A chain must agree on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Marks {
    Trusted,
    User,
}

/// What becomes of an extended attribute on its way into a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Kept,
    /// It means something to overlayfs about the tree that it is in, and nothing elsewhere.
    Dropped,
    /// Of a file, that it is there tells that the file was below and was copied up; from where, nobody
    /// can tell any more.
    Emptied,
    /// Without the directory or the data that it points to, the entry is not what it seems.
    Refused,
}

impl Marks {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Trusted => "trusted",
            Self::User => "user",
        }
    }

    const fn prefix(self) -> &'static [u8] {
        match self {
            Self::Trusted => b"trusted.overlay.",
            Self::User => b"user.overlay.",
        }
    }

    const fn opaque(self) -> &'static str {
        match self {
            Self::Trusted => "trusted.overlay.opaque",
            Self::User => "user.overlay.opaque",
        }
    }

    const fn origin(self) -> &'static str {
        match self {
            Self::Trusted => "trusted.overlay.origin",
            Self::User => "user.overlay.origin",
        }
    }

    pub(crate) fn fate(self, attribute: &[u8]) -> Fate {
        match attribute.strip_prefix(self.prefix()) {
            // overlayfs stores here what somebody inside set as an overlay attribute of theirs.
            None => Fate::Kept,
            Some(inner) if inner.starts_with(b"overlay.") => Fate::Kept,
            Some(b"redirect" | b"metacopy") => Fate::Refused,
            Some(b"origin") => Fate::Emptied,
            Some(_) => Fate::Dropped,
        }
    }

    pub(super) fn is_opaque(self, directory: impl AsFd) -> Result<bool, Fault> {
        let mut value = [0u8; 2];
        match fgetxattr(directory, self.opaque(), &mut value) {
            Ok(len) => Ok(value[..len] == *b"y"),
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(false),
            Err(err) => Err(err).during("read attributes of"),
        }
    }

    pub(crate) fn set_opaque(self, directory: impl AsFd) -> Result<(), Fault> {
        fsetxattr(directory, self.opaque(), b"y", XattrFlags::empty()).during("mark as opaque")
    }

    /// Must be on a directory with whiteouts: where nothing lies below the directory, the kernel
    /// looks for them only if it seems copied up, and else lists them as names that nobody can
    /// open. An empty value means that the origin is unknown.
    pub(crate) fn set_whiteouts(self, directory: impl AsFd) -> Result<(), Fault> {
        fsetxattr(directory, self.origin(), b"", XattrFlags::empty()).during("mark")
    }

    /// Whether a file of a layer was one of a layer below before somebody wrote to it.
    pub(crate) fn is_copied_up(self, file: impl AsFd) -> bool {
        // Too long for the buffer is there as well.
        matches!(fgetxattr(file, self.origin(), &mut [0u8; 256]), Ok(_) | Err(Errno::RANGE))
    }

    /// What the file system below `directory` lets us write.
    pub(super) fn probe(directory: impl AsFd) -> Self {
        let trusted = Self::Trusted.set_whiteouts(directory);
        if trusted.is_ok() { Self::Trusted } else { Self::User }
    }
}

pub(crate) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

pub(crate) fn put_whiteout(directory: impl AsFd, name: &std::ffi::CStr) -> Result<(), Fault> {
    mknodat(directory, name, FileType::CharacterDevice, Mode::empty(), 0).during("hide")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_overlayfs_itself_wrote_is_left_behind() {
        let fate = |name: &str| Marks::Trusted.fate(name.as_bytes());
        assert_eq!(fate("trusted.overlay.origin"), Fate::Emptied);
        assert_eq!(fate("trusted.overlay.opaque"), Fate::Dropped);
        assert_eq!(fate("trusted.overlay.overlay.opaque"), Fate::Kept);
        assert_eq!(fate("trusted.overlay.redirect"), Fate::Refused);
        assert_eq!(fate("user.overlay.opaque"), Fate::Kept);
        assert_eq!(Marks::User.fate(b"user.overlay.opaque"), Fate::Dropped);
        assert_eq!(fate("security.capability"), Fate::Kept);
    }
}
