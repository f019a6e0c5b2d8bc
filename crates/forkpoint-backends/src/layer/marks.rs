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
///
/// `plain` is none of both: such a layer is a whole tree as it is, which lies on nothing and is for no
/// overlay. What would mean something to overlayfs is content there like everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Marks {
    Trusted,
    User,
    Plain,
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
            Self::Plain => "plain",
        }
    }

    const fn prefix(self) -> Option<&'static [u8]> {
        match self {
            Self::Trusted => Some(b"trusted.overlay."),
            Self::User => Some(b"user.overlay."),
            Self::Plain => None,
        }
    }

    const fn opaque(self) -> Option<&'static str> {
        match self {
            Self::Trusted => Some("trusted.overlay.opaque"),
            Self::User => Some("user.overlay.opaque"),
            Self::Plain => None,
        }
    }

    const fn origin(self) -> Option<&'static str> {
        match self {
            Self::Trusted => Some("trusted.overlay.origin"),
            Self::User => Some("user.overlay.origin"),
            Self::Plain => None,
        }
    }

    /// Whether it stands for the absence of what is below.
    pub(super) fn is_whiteout(self, stat: &Stat) -> bool {
        self != Self::Plain && is_whiteout(stat)
    }

    pub(crate) fn fate(self, attribute: &[u8]) -> Fate {
        match self.prefix().and_then(|prefix| attribute.strip_prefix(prefix)) {
            // overlayfs stores here what somebody inside set as an overlay attribute of theirs.
            None => Fate::Kept,
            Some(inner) if inner.starts_with(b"overlay.") => Fate::Kept,
            Some(b"redirect" | b"metacopy") => Fate::Refused,
            Some(b"origin") => Fate::Emptied,
            Some(_) => Fate::Dropped,
        }
    }

    pub(super) fn is_opaque(self, directory: impl AsFd) -> Result<bool, Fault> {
        let Some(opaque) = self.opaque() else { return Ok(false) };
        let mut value = [0u8; 2];
        match fgetxattr(directory, opaque, &mut value) {
            Ok(len) => Ok(value[..len] == *b"y"),
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(false),
            Err(err) => Err(err).during("read attributes of"),
        }
    }

    pub(crate) fn set_opaque(self, directory: impl AsFd) -> Result<(), Fault> {
        let Some(opaque) = self.opaque() else { return Ok(()) };
        fsetxattr(directory, opaque, b"y", XattrFlags::empty()).during("mark as opaque")
    }

    /// Must be on a directory with whiteouts: where nothing lies below the directory, the kernel
    /// looks for them only if it seems copied up, and else lists them as names that nobody can
    /// open. An empty value means that the origin is unknown.
    pub(crate) fn set_whiteouts(self, directory: impl AsFd) -> Result<(), Fault> {
        let Some(origin) = self.origin() else { return Ok(()) };
        fsetxattr(directory, origin, b"", XattrFlags::empty()).during("mark")
    }

    /// Makes a file one that was in a layer below before somebody wrote to it.
    pub(super) fn set_origin(self, file: impl AsFd) -> Result<(), Fault> {
        self.set_whiteouts(file)
    }

    /// The name by which somebody inside knows an attribute that is kept.
    pub(super) fn shown(self, attribute: &[u8]) -> Vec<u8> {
        let inner =
            self.prefix().and_then(|prefix| Some((prefix, attribute.strip_prefix(prefix)?)));
        match inner.and_then(|(prefix, inner)| Some((prefix, inner.strip_prefix(b"overlay.")?))) {
            Some((prefix, inner)) => [prefix, inner].concat(),
            None => attribute.to_vec(),
        }
    }

    /// The name under which overlayfs keeps what somebody inside calls so.
    pub(super) fn stored(self, attribute: &[u8]) -> Vec<u8> {
        match self.prefix().and_then(|prefix| Some((prefix, attribute.strip_prefix(prefix)?))) {
            Some((prefix, inner)) => [prefix, b"overlay.", inner].concat(),
            None => attribute.to_vec(),
        }
    }

    /// Whether a file of a layer was one of a layer below before somebody wrote to it.
    pub(crate) fn is_copied_up(self, file: impl AsFd) -> bool {
        let Some(origin) = self.origin() else { return false };
        // Too long for the buffer is there as well.
        matches!(fgetxattr(file, origin, &mut [0u8; 256]), Ok(_) | Err(Errno::RANGE))
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
    fn what_comes_from_elsewhere_is_no_mark() {
        for marks in [Marks::Trusted, Marks::User] {
            for name in
                ["trusted.overlay.opaque", "user.overlay.redirect", "user.x", "user.overlay."]
            {
                let stored = marks.stored(name.as_bytes());
                assert_eq!(marks.fate(&stored), Fate::Kept, "{name}");
                assert_eq!(marks.shown(&stored), name.as_bytes());
            }
        }
        assert_eq!(Marks::Trusted.stored(b"trusted.overlay.x"), b"trusted.overlay.overlay.x");
    }

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
        for name in ["trusted.overlay.opaque", "trusted.overlay.redirect", "user.overlay.origin"] {
            assert_eq!(Marks::Plain.fate(name.as_bytes()), Fate::Kept);
        }
    }
}
