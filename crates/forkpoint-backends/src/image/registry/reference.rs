//! Names of images, as Docker writes them.

use std::fmt;

use super::super::{
    digest::Digest,
    error::{ImageError, ImageResult},
};

const HUB: &str = "docker.io";
/// All of them are the one registry.
const HUB_NAMES: [&str; 3] = [HUB, "index.docker.io", HUB_HOST];
const HUB_HOST: &str = "registry-1.docker.io";

/// What `docker login` files the login for the hub under.
const HUB_KEY: &str = "https://index.docker.io/v1/";

/// `[HOST[:PORT]/]PATH[:TAG][@DIGEST]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) host: String,
    pub(super) path: String,
    tag: String,
    pub(super) digest: Option<Digest>,
}

impl Reference {
    pub(super) fn parse(text: &str) -> ImageResult<Self> {
        let bad = |reason: &str| ImageError::Source {
            source_text: format!("registry:{text}"),
            reason: reason.to_owned(),
        };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => {
                (rest, Some(digest.parse::<Digest>().map_err(|err| bad(&err.to_string()))?))
            }
            None => (text, None),
        };
        let (rest, tag) = match rest.rsplit_once(':') {
            Some((rest, tag)) if !tag.contains('/') => (rest, tag),
            _ => (rest, "latest"),
        };
        let is_host = |first: &str| first.contains(['.', ':']) || first == "localhost";
        let (host, path) = match rest.split_once('/') {
            Some((first, path)) if HUB_NAMES.contains(&first) => (HUB, path),
            Some((first, path)) if is_host(first) => (first, path),
            _ => (HUB, rest),
        };
        let path = match host == HUB && !path.contains('/') {
            true => format!("library/{path}"),
            false => path.to_owned(),
        };
        let in_path = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-/".contains(&byte)
        };
        let in_tag = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let in_host = |byte: u8| in_tag(byte) || b":[]".contains(&byte);
        let parts_are_names = path
            .split('/')
            .all(|part| part.starts_with(|first: char| first.is_ascii_alphanumeric()));
        if !parts_are_names || !path.bytes().all(in_path) {
            return Err(bad("its path is small letters, digits, `.`, `_`, `-` and `/`"));
        }
        if tag.is_empty() || !tag.bytes().all(in_tag) || !host.bytes().all(in_host) {
            return Err(bad("its host or tag has odd letters"));
        }
        Ok(Self { host: host.to_owned(), path, tag: tag.to_owned(), digest })
    }

    /// Whether the registry is on this machine.
    pub(super) fn is_here(&self) -> bool {
        let host = match self.host.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => &self.host,
        };
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }

    pub(super) fn url(&self) -> String {
        let scheme = if self.is_here() { "http" } else { "https" };
        let host = if self.host == HUB { HUB_HOST } else { &self.host };
        format!("{scheme}://{host}/v2/{}", self.path)
    }

    pub(super) fn wanted(&self) -> String {
        self.digest.as_ref().map_or_else(|| self.tag.clone(), ToString::to_string)
    }

    pub(super) fn credentials_key(&self) -> String {
        if self.host == HUB { HUB_KEY.to_owned() } else { self.host.clone() }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, path, .. } = self;
        match &self.digest {
            Some(digest) => write!(f, "{host}/{path}@{digest}"),
            None => write!(f, "{host}/{path}:{}", self.tag),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is typed; and what is a name is one when it is printed.
        #[test]
        fn a_name_is_one_or_refused(
            text in prop_oneof![any::<String>(), "([a-z.]{1,9}(:[0-9]{1,5})?/)?[a-z0-9/._-]{0,12}(:[A-Za-z0-9.]{0,9})?"]
        ) {
            if let Ok(reference) = Reference::parse(&text) {
                prop_assert!(reference.url().starts_with("http"));
                prop_assert_eq!(Reference::parse(&reference.to_string()).ok(), Some(reference));
            }
        }
    }

    #[test]
    fn names_are_read_as_docker_reads_them() {
        for (text, url, wanted) in [
            ("python", "https://registry-1.docker.io/v2/library/python", "latest"),
            ("python:3.12", "https://registry-1.docker.io/v2/library/python", "3.12"),
            ("docker.io/python:3.12", "https://registry-1.docker.io/v2/library/python", "3.12"),
            ("index.docker.io/python", "https://registry-1.docker.io/v2/library/python", "latest"),
            ("docker.io/me/app", "https://registry-1.docker.io/v2/me/app", "latest"),
            ("me/app:v1", "https://registry-1.docker.io/v2/me/app", "v1"),
            ("ghcr.io/me/app", "https://ghcr.io/v2/me/app", "latest"),
            ("localhost:5000/app:v1", "http://localhost:5000/v2/app", "v1"),
            ("127.0.0.1:5000/a/b", "http://127.0.0.1:5000/v2/a/b", "latest"),
            ("example.com:5000/app", "https://example.com:5000/v2/app", "latest"),
        ] {
            let reference = Reference::parse(text).unwrap();
            assert_eq!((&*reference.url(), &*reference.wanted()), (url, wanted), "{text}");
        }
        for text in ["python", "docker.io/python", "index.docker.io/library/python"] {
            let reference = Reference::parse(text).unwrap();
            assert_eq!(reference.to_string(), "docker.io/library/python:latest");
            assert_eq!(reference.credentials_key(), HUB_KEY, "{text}");
        }
        let digest = Digest::of(b"x");
        let pinned = Reference::parse(&format!("a.b/c:v1@{digest}")).unwrap();
        assert_eq!(pinned.wanted(), digest.to_string());
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for bad in ["", "UPPER", "a/../b", "a b", "a:", "a.b/x?y", "a@sha256:00", "-x", "a//b"] {
            assert!(Reference::parse(bad).is_err(), "{bad}");
        }
        assert!(!Reference::parse("localhost.example.com/x").unwrap().is_here());
    }
}
