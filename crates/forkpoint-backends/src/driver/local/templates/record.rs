//! What `templates/<name>.json` says.

use std::{fs, io, path::Path};

use forkpoint_core::{Error, Timestamp, driver::DriverResult};
use serde::{Deserialize, Serialize};

use super::super::{host::io_error, template::Base};
use crate::{
    image::{Digest, ImageConfig, ImageError},
    layer::{LayerName, unique_name},
};

const FORMAT: u32 = 1;

const NAME_MAX: usize = 128;

/// Of layers that were made for templates: nobody else knows them.
const TAG: &str = "tpl";
const TAG_DIGITS: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemplateKind {
    Image,
    /// A snapshot that was promoted.
    Snapshot,
    Directory,
}

impl TemplateKind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Snapshot => "snapshot",
            Self::Directory => "directory",
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TemplateRecord {
    pub(super) format: u32,
    pub name: String,
    pub kind: TemplateKind,
    /// What it was made of, as it was typed or would be.
    pub source: String,
    /// Of an image.
    pub digest: Option<Digest>,
    /// Layers of images, from the bottom up; those that a promoted snapshot lies on, too.
    #[serde(default)]
    pub layers: Vec<Digest>,
    /// Of a promoted snapshot: what it held, and what that lies on.
    #[serde(default)]
    pub(super) layer: Option<LayerName>,
    #[serde(default)]
    pub(super) under: Option<Base>,
    /// Of a promoted snapshot with processes: how many images of them there are, each over the last.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) memory: usize,
    #[serde(default)]
    pub config: ImageConfig,
    pub created: Timestamp,
    /// Of the files in it, whoever else has them too.
    #[serde(default)]
    pub bytes: u64,
    #[serde(default)]
    pub devices_left_out: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl TemplateRecord {
    pub(super) fn new(name: &str, kind: TemplateKind, source: &str, created: Timestamp) -> Self {
        Self {
            format: FORMAT,
            name: name.to_owned(),
            kind,
            source: source.to_owned(),
            digest: None,
            layers: Vec::new(),
            layer: None,
            under: None,
            memory: 0,
            config: ImageConfig::default(),
            created,
            bytes: 0,
            devices_left_out: 0,
        }
    }

    pub(super) fn read(path: &Path) -> DriverResult<Option<Self>> {
        let bytes = match fs::read(path) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(io_error("read", path))?,
        };
        let what = || format!("template file `{}`", path.display());
        let record: Self = serde_json::from_slice(&bytes)
            .map_err(|err| ImageError::Damaged { what: what(), reason: err.to_string() })?;
        if record.format > FORMAT {
            let reason =
                format!("it has format {}, and this release reads up to {FORMAT}", record.format);
            return Err(ImageError::Refused { what: what(), reason }.into());
        }
        Ok(Some(record))
    }

    /// Whether adding the one where the other is changes nothing.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let same_source = match self.kind {
            TemplateKind::Image => self.digest == other.digest && self.layers == other.layers,
            TemplateKind::Directory => self.source == other.source,
            TemplateKind::Snapshot => false,
        };
        self.kind == other.kind && same_source
    }
}

/// Letters, digits, `.`, `_`, `-` and `:`, as in `python:3.12`; nothing that is taken for where an
/// image comes from.
pub(super) fn check_name(name: &str) -> Result<(), Error> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
    let starts_well = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    let shown: String = name.chars().take(64).collect();
    if !starts_well || name.len() > NAME_MAX || !name.bytes().all(allowed) {
        return Err(Error::invalid(format!(
            "{shown:?} cannot be the name of a template: that is 1 to {NAME_MAX} letters, digits, \
             `.`, `_`, `-` or `:`, beginning with a letter or digit"
        )));
    }
    let scheme = name.split(':').next().unwrap_or(name);
    let taken = ["oci", "archive", "docker-daemon", "docker", "registry", "dir"];
    if name == "host" || (name.contains(':') && taken.contains(&scheme)) {
        return Err(Error::invalid(format!(
            "`{shown}` cannot be the name of a template: it means something already"
        )));
    }
    Ok(())
}

/// Differs for each template that is made of one snapshot.
pub(super) fn layer_tag() -> String {
    let unique = unique_name("t");
    let digits: String = unique.rsplit('-').next().unwrap_or_default().chars().collect();
    format!("{TAG}{}", &digits[..digits.len().min(TAG_DIGITS)])
}

pub(super) fn is_tagged(layer: &LayerName) -> bool {
    layer.as_str().rsplit_once('-').is_some_and(|(_, tag)| tag.starts_with(TAG))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_source_and_no_path() {
        for good in ["python:3.12", "a", "debian-12", "9.x_y"] {
            check_name(good).unwrap();
        }
        for bad in ["", "host", "dir:x", "oci:x", "docker:python", "../x", "a/b", ".a", "-a", "a b"]
        {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn layers_of_templates_are_told_from_others() {
        let snapshot = forkpoint_core::id::SnapshotId::from_u128(7);
        let layer = LayerName::tagged(snapshot, &layer_tag()).unwrap();
        assert!(is_tagged(&layer), "{layer}");
        assert_ne!(layer, LayerName::tagged(snapshot, &layer_tag()).unwrap());
        assert!(!is_tagged(&LayerName::of(snapshot)));
        assert!(!is_tagged(&LayerName::tagged(snapshot, "flat1").unwrap()));
    }
}
