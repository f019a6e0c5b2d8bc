//! Names in an archive: where an entry goes, and what it hides.

use std::ffi::{CStr, CString};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// What the kernel takes as one name.
const NAME_MAX: usize = 255;

/// A path below the root of a layer, without `..`. A leading `/` or `./` means nothing, as for
/// Docker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntryName {
    path: Vec<u8>,
    parent_len: usize,
    last: CString,
}

/// What an entry with a name of the form `.wh.…` hides of the layers below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hides {
    /// All that its directory shows of them.
    Everything,
    Name(CString),
    /// It is a note that an old program left.
    Nothing,
}

impl EntryName {
    /// `None` for the root itself.
    pub(super) fn new(text: &[u8]) -> Result<Option<Self>, &'static str> {
        let mut path = Vec::with_capacity(text.len());
        let mut parent_len = 0;
        let mut last: &[u8] = &[];
        for part in text.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => continue,
                b".." => return Err("a name that goes up with `..`"),
                _ if part.contains(&0) => return Err("a name with a NUL byte"),
                _ if part.len() > NAME_MAX => return Err("a name longer than 255 bytes"),
                _ => {}
            }
            parent_len = path.len();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(part);
            last = part;
        }
        if path.is_empty() {
            return Ok(None);
        }
        let last = CString::new(last).map_err(|_| "a name with a NUL byte")?;
        Ok(Some(Self { path, parent_len, last }))
    }

    pub(super) fn path(&self) -> &[u8] {
        &self.path
    }

    /// Empty when that is the root.
    pub(super) fn parent(&self) -> &[u8] {
        &self.path[..self.parent_len]
    }

    pub(super) fn last(&self) -> &CString {
        &self.last
    }

    /// From the root down.
    pub(super) fn parents(&self) -> impl Iterator<Item = CString> {
        let parts = self.parent().split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        parts.filter_map(|part| CString::new(part).ok())
    }

    pub(super) fn hides(&self) -> Result<Option<Hides>, &'static str> {
        let last = self.last.to_bytes();
        let Some(hidden) = last.strip_prefix(WHITEOUT) else { return Ok(None) };
        match hidden {
            // overlayfs does not look for the mark on the root of a layer.
            _ if last == OPAQUE && self.parent_len == 0 => Err("it hides all layers below its own"),
            _ if last == OPAQUE => Ok(Some(Hides::Everything)),
            _ if hidden.starts_with(WHITEOUT) => Ok(Some(Hides::Nothing)),
            b"" | b"." | b".." => Err("it hides what is no name"),
            _ => Ok(Some(Hides::Name(self.hidden(hidden)))),
        }
    }

    fn hidden(&self, name: &[u8]) -> CString {
        // Part of a name that has no NUL byte.
        CStr::from_bytes_until_nul(&[name, b"\0"].concat()).map(CStr::to_owned).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Result<Option<String>, &'static str> {
        let name = EntryName::new(text.as_bytes())?;
        Ok(name.map(|name| String::from_utf8(name.path().to_vec()).unwrap()))
    }

    #[test]
    fn a_name_stays_below_the_root() {
        for (given, kept) in [
            ("./a/b", "a/b"),
            ("/a//b/", "a/b"),
            ("a/./b", "a/b"),
            ("..a", "..a"),
            ("a/...", "a/..."),
        ] {
            assert_eq!(path(given).unwrap().as_deref(), Some(kept), "{given}");
        }
        for root in ["", "/", ".", "./", "//."] {
            assert_eq!(path(root).unwrap(), None, "{root}");
        }
        for bad in ["..", "../a", "a/../b", "/..", "a/..", &"x".repeat(256), "a\0b"] {
            assert!(path(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_hidden_is_a_name_in_the_same_directory() {
        let hides = |text: &str| EntryName::new(text.as_bytes()).unwrap().unwrap().hides();
        assert_eq!(hides("a/b"), Ok(None));
        assert_eq!(hides("a/.wh.b"), Ok(Some(Hides::Name(c"b".to_owned()))));
        assert_eq!(hides("a/.wh..wh..opq"), Ok(Some(Hides::Everything)));
        assert_eq!(hides("a/.wh..wh.plnk"), Ok(Some(Hides::Nothing)));
        for bad in [".wh.", ".wh..", ".wh...", ".wh..wh..opq", "./.wh..wh..opq"] {
            assert!(hides(bad).is_err(), "{bad}");
        }
    }
}
