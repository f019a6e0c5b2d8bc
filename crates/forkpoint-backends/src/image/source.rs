//! Where an image comes from, as it is typed.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::error::{ImageError, ImageResult};

/// `oci:PATH[:TAG]`, `archive:PATH[:TAG]`, `docker-daemon:IMAGE`, `registry:IMAGE` or `docker:IMAGE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageSource {
    /// A directory in the form of an OCI layout.
    Layout {
        path: PathBuf,
        tag: Option<String>,
    },
    /// A file: an OCI layout, what `docker save` wrote, or the files of a system; compressed or not.
    Archive {
        path: PathBuf,
        tag: Option<String>,
    },
    /// What a local Docker has.
    Daemon(String),
    Registry(String),
}

impl ImageSource {
    /// `None` when the text is a name and no source.
    pub fn parse(text: &str) -> ImageResult<Option<Self>> {
        let Some((scheme, rest)) = text.split_once(':') else { return Ok(None) };
        let with_tag = || {
            let (path, tag) = split_tag(rest);
            (PathBuf::from(path), tag.map(str::to_owned))
        };
        let source = match scheme {
            "oci" => {
                let (path, tag) = with_tag();
                Self::Layout { path, tag }
            }
            "archive" => {
                let (path, tag) = with_tag();
                Self::Archive { path, tag }
            }
            "docker-daemon" => Self::Daemon(rest.to_owned()),
            "registry" | "docker" => Self::Registry(rest.trim_start_matches("//").to_owned()),
            _ => return Ok(None),
        };
        if rest.is_empty() {
            let reason = "it names nothing".to_owned();
            return Err(ImageError::Source { source_text: text.to_owned(), reason });
        }
        Ok(Some(source))
    }

    /// A path as it is typed: what is there says what it is.
    #[must_use]
    pub fn of_path(path: PathBuf) -> Self {
        match path.is_dir() {
            true => Self::Layout { path, tag: None },
            false => Self::Archive { path, tag: None },
        }
    }

    /// Paths that mean the same from everywhere.
    pub fn absolute(self) -> ImageResult<Self> {
        let absolute = |path: PathBuf| {
            std::path::absolute(&path).map_err(super::error::io_error("find", path))
        };
        Ok(match self {
            Self::Layout { path, tag } => Self::Layout { path: absolute(path)?, tag },
            Self::Archive { path, tag } => Self::Archive { path: absolute(path)?, tag },
            other => other,
        })
    }
}

impl fmt::Display for ImageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, path, tag) = match self {
            Self::Layout { path, tag } => ("oci", path, tag),
            Self::Archive { path, tag } => ("archive", path, tag),
            Self::Daemon(image) => return write!(f, "docker-daemon:{image}"),
            Self::Registry(image) => return write!(f, "registry:{image}"),
        };
        write!(f, "{scheme}:{}", path.display())?;
        tag.as_ref().map_or(Ok(()), |tag| write!(f, ":{tag}"))
    }
}

/// A colon may be part of a path, and of a tag that is a whole name; what is there decides.
fn split_tag(text: &str) -> (&str, Option<&str>) {
    if Path::new(text).exists() {
        return (text, None);
    }
    let mut colons = text.match_indices(':').map(|(at, _)| (&text[..at], &text[at + 1..]));
    if let Some((path, tag)) = colons.find(|(path, _)| Path::new(path).exists()) {
        return (path, Some(tag));
    }
    match text.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_a_scheme_and_a_name_has_none() {
        let parse = |text: &str| ImageSource::parse(text).unwrap();
        for name in ["host", "python", "dir:/srv", "python:3.12"] {
            assert_eq!(parse(name), None, "{name}");
        }
        for (text, printed) in [
            ("oci:/srv/x:v1", "oci:/srv/x:v1"),
            ("archive:/srv/x.tar", "archive:/srv/x.tar"),
            ("docker-daemon:python:3.12", "docker-daemon:python:3.12"),
            ("docker://python:3.12", "registry:python:3.12"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), printed);
        }
        assert!(ImageSource::parse("oci:").is_err());
    }

    #[test]
    fn a_colon_in_a_path_that_is_there_is_part_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a:b");
        std::fs::create_dir(&path).unwrap();
        let source = ImageSource::parse(&format!("oci:{}", path.display())).unwrap();
        assert_eq!(source, Some(ImageSource::Layout { path, tag: None }));
    }

    #[test]
    fn a_tag_may_be_a_whole_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("two.tar");
        std::fs::write(&path, "").unwrap();
        for tag in ["v1", "b:1", "example.com:5000/me/b:1"] {
            let text = format!("archive:{}:{tag}", path.display());
            let source = ImageSource::parse(&text).unwrap();
            let tag = Some(tag.to_owned());
            assert_eq!(source, Some(ImageSource::Archive { path: path.clone(), tag }));
        }
    }
}
