//! `REF:PATH`: a path in a sandbox or a snapshot.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::PathBuf,
};

/// In front of a name these say whose sandbox it is, as in `docker:web:/srv`.
const DRIVERS: [&[u8]; 2] = [b"docker", b"local"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) reference: String,
    /// From the root, as it was typed; nothing else is known of it.
    pub(crate) path: PathBuf,
}

/// One side of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// On this machine.
    Here(PathBuf),
    There(Place),
    /// Standard input or output.
    Stream,
}

impl Place {
    /// With a path, or without one for the root.
    pub(crate) fn or_root(text: &OsStr) -> Result<Self, String> {
        match split(text) {
            Some((reference, path)) => Self::new(reference, path),
            None => Self::new(text.as_bytes(), b"/"),
        }
    }

    pub(crate) fn with_path(text: &OsStr) -> Result<Self, String> {
        match split(text) {
            Some((reference, path)) if !path.is_empty() => Self::new(reference, path),
            _ => Err("give a path behind the name, as in `web:/etc/hosts`".to_owned()),
        }
    }

    fn new(reference: &[u8], path: &[u8]) -> Result<Self, String> {
        let reference = String::from_utf8(reference.to_vec());
        let reference = reference.map_err(|_| "a name is text".to_owned())?;
        if reference.is_empty() {
            return Err("there is no name in front of the colon".to_owned());
        }
        Ok(Self { reference, path: OsString::from_vec(path.to_vec()).into() })
    }
}

impl Side {
    /// What begins with a slash or a dot is a path here, and so is what has no colon.
    pub(crate) fn new(text: &OsStr) -> Result<Self, String> {
        let is_path = matches!(text.as_bytes().first(), Some(b'/' | b'.') | None);
        match split(text) {
            _ if text == "-" => Ok(Self::Stream),
            Some((reference, path)) if !is_path => Place::new(reference, path).map(Self::There),
            _ => Ok(Self::Here(text.into())),
        }
    }
}

/// At the colon behind the reference, if it has one before the first slash.
fn split(text: &OsStr) -> Option<(&[u8], &[u8])> {
    let bytes = text.as_bytes();
    let colon = |from: usize| {
        let end = bytes.iter().position(|byte| *byte == b'/').unwrap_or(bytes.len());
        let found = bytes.get(from..end)?.iter().position(|byte| *byte == b':')?;
        Some(from + found)
    };
    let first = colon(0)?;
    let at = match DRIVERS.contains(&&bytes[..first]) {
        true => colon(first + 1)?,
        false => first,
    };
    Some((&bytes[..at], &bytes[at + 1..]))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever the bytes are; and nothing of them is lost.
        #[test]
        fn every_place_is_one_or_refused(
            bytes in prop_oneof![vec(any::<u8>(), 0..20), vec(prop::sample::select(b"a:/.-@\xff".to_vec()), 0..12)]
        ) {
            let text = OsStr::from_bytes(&bytes);
            let _ = Place::or_root(text);
            if let Ok(Place { reference, path }) = Place::with_path(text) {
                prop_assert_eq!([reference.as_bytes(), b":", path.as_os_str().as_bytes()].concat(), bytes.clone());
            }
            match Side::new(text) {
                Ok(Side::Here(path)) => prop_assert_eq!(path.as_os_str(), text),
                Ok(Side::There(place)) => prop_assert!(!place.reference.is_empty()),
                Ok(Side::Stream) => prop_assert_eq!(text, "-"),
                Err(reason) => prop_assert!(!reason.is_empty()),
            }
        }
    }

    fn place(reference: &str, path: &str) -> Place {
        Place { reference: reference.to_owned(), path: path.into() }
    }

    #[test]
    fn a_reference_ends_at_its_colon() {
        for (text, reference, path) in [
            ("web:/etc/hosts", "web", "/etc/hosts"),
            ("web@2:/a", "web@2", "/a"),
            ("web:srv/a:b", "web", "srv/a:b"),
            ("web:/a:b", "web", "/a:b"),
            ("docker:web:/srv", "docker:web", "/srv"),
            ("local:web:x", "local:web", "x"),
        ] {
            assert_eq!(
                Place::with_path(OsStr::new(text)).unwrap(),
                place(reference, path),
                "{text}"
            );
        }
        assert_eq!(Place::or_root(OsStr::new("web")).unwrap(), place("web", "/"));
        assert_eq!(Place::or_root(OsStr::new("docker:web")).unwrap(), place("docker:web", "/"));
        for bad in ["web", "web:", ":/a", ""] {
            assert!(Place::with_path(OsStr::new(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_path_here_can_have_a_colon() {
        let side = |text: &str| Side::new(OsStr::new(text)).unwrap();
        for path in ["./a:b", "/tmp/a:b", "../a:b", "dir/a:b", "plain", "docker:x"] {
            assert_eq!(side(path), Side::Here(path.into()), "{path}");
        }
        assert_eq!(side("web:a"), Side::There(place("web", "a")));
        assert_eq!(side("-"), Side::Stream);
        let odd = OsStr::from_bytes(b"web:/\xff");
        assert!(matches!(Side::new(odd), Ok(Side::There(_))));
    }
}
