//! What lies below a snapshot, told so that others can find it.
//!
//! A path of the machine that a snapshot comes from means nothing here, or something else: whoever restores it would show
//! a directory of the host to a sandbox because a stranger named it. So only what is in our own data directory is found
//! again, and the `/usr` of the host template. Of everything else the sandbox's template decides.

use std::path::{Component, Path, PathBuf};

use forkpoint_core::{
    driver::{DriverError, DriverResult},
    spec::SandboxSpec,
};
use serde::{Deserialize, Serialize};

use super::{
    super::{
        DRIVER,
        host::{ArtifactData, Host},
        template::{self, Base, Bottom},
        templates::is_of_template,
        workspace::is_plain_dir,
    },
    invalid,
};

const USR: &str = "/usr";

/// Empty when nobody knows.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ToldBase(Vec<ToldBottom>);

#[derive(Debug, Serialize, Deserialize)]
struct ToldBottom {
    at: PathBuf,
    lowers: Vec<ToldLower>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ToldLower {
    /// From the data directory.
    Ours(PathBuf),
    /// Of the machine. Told for people.
    Outside(PathBuf),
}

impl ToldBase {
    fn of(base: &Base, root: &Path) -> Self {
        let lower = |lower: &PathBuf| match lower.strip_prefix(root) {
            Ok(ours) => ToldLower::Ours(ours.to_owned()),
            Err(_) => ToldLower::Outside(lower.clone()),
        };
        let bottom = |bottom: &Bottom| ToldBottom {
            at: bottom.at.clone(),
            lowers: bottom.lowers.iter().map(lower).collect(),
        };
        Self(base.0.iter().map(bottom).collect())
    }

    fn is_of_a_host(&self) -> bool {
        let lowers = self.0.iter().flat_map(|bottom| &bottom.lowers);
        lowers.into_iter().any(|lower| *lower == ToldLower::Outside(USR.into()))
    }

    /// The layers of images in it, which are what they are called.
    pub(super) fn digests(&self) -> Vec<String> {
        let lowers = self.0.iter().flat_map(|bottom| &bottom.lowers);
        let digest = |lower: &ToldLower| {
            match lower {
                ToldLower::Ours(path) => Some(path.strip_prefix("images/layers").ok()?.parent()?),
                ToldLower::Outside(_) => None,
            }
            .map(|digest| digest.to_string_lossy().into_owned())
        };
        lowers.filter_map(digest).collect()
    }
}

impl Host {
    pub(super) fn told_base(&self, data: &ArtifactData) -> ToldBase {
        ToldBase::of(&data.base, &self.root)
    }

    /// `None` when a part of it is not here, or is nothing that may be believed.
    pub(super) fn find_base(&self, told: &ToldBase) -> Option<Base> {
        if told.is_of_a_host() {
            // Where nobody has used it yet, it is not there yet. If it is another now, it is not found.
            let _ = template::resolve("host", &self.root);
        }
        let mut bottoms = Vec::new();
        for bottom in &told.0 {
            let is_plain = bottom.at.components().all(|part| matches!(part, Component::Normal(_)));
            let lowers: Option<Vec<PathBuf>> =
                (0..bottom.lowers.len()).map(|index| self.find_lower(bottom, index)).collect();
            bottoms.push(Bottom { at: is_plain.then(|| bottom.at.clone())?, lowers: lowers? });
        }
        let has_root = bottoms.iter().any(|bottom| bottom.at.as_os_str().is_empty());
        has_root.then_some(Base(bottoms))
    }

    fn find_lower(&self, bottom: &ToldBottom, index: usize) -> Option<PathBuf> {
        let path = match &bottom.lowers[index] {
            ToldLower::Ours(path) if may_be_shown(path) => self.root.join(path),
            // What in it is not for everybody is hidden by what lies on it.
            ToldLower::Outside(path) if path == Path::new(USR) => {
                let ToldLower::Ours(above) = bottom.lowers.get(index.checked_sub(1)?)? else {
                    return None;
                };
                let above = above.strip_prefix("base").ok()?.to_str()?;
                (above.starts_with("host") && above.ends_with(USR)).then(|| path.clone())?
            }
            _ => return None,
        };
        is_plain_dir(&path).then_some(path)
    }

    /// What a sandbox lies on that is made of a snapshot: what that lay on, while it is there.
    pub(in super::super) fn base_under(
        &self,
        data: Option<&ArtifactData>,
        spec: &SandboxSpec,
    ) -> DriverResult<Base> {
        if let Some(data) = data
            && data.base.is_there()
        {
            return Ok(data.base.clone());
        }
        let base = self.base_of(&spec.template)?;
        let lies_on = data.map_or(&[][..], |data| &data.lies_on);
        if !lies_on.is_empty() && ToldBase::of(&base, &self.root).digests() != *lies_on {
            return invalid(&format!(
                "the snapshot lies over another image than template `{}`: add the image with layer `{}` as a template",
                spec.template, lies_on[0]
            ));
        }
        self.make_room(base, spec)
    }
}

impl ArtifactData {
    /// For those who have nobody to ask which template it was.
    pub(in super::super) fn known_base(&self) -> DriverResult<&Base> {
        if !self.base.0.is_empty() {
            return Ok(&self.base);
        }
        let reason = "the snapshot came from elsewhere, and what it lies on is not known here: restore it, and look at \
                      the sandbox";
        Err(DriverError::Invalid { driver: DRIVER, reason: reason.to_owned() })
    }
}

/// What templates are made of; never a sandbox, a snapshot, or what is being made.
fn may_be_shown(path: &Path) -> bool {
    let parts: Option<Vec<&str>> = path
        .components()
        .map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();
    match parts.as_deref() {
        Some(["base", _, ..]) => true,
        Some(["images", "layers", _, "tree"]) => true,
        Some(["store", "layers", layer, "tree", ..]) => {
            layer.parse().is_ok_and(|layer| is_of_template(&layer))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_others_may_be_shown() {
        for good in ["base/points", "base/host1-0/usr", "images/layers/sha256-0/tree"] {
            assert!(may_be_shown(Path::new(good)), "{good}");
        }
        let bad = [
            "",
            "base",
            "/etc",
            "base/../sandboxes",
            "sandboxes/x",
            "store/layers/lyrsnp00000000000000000000000002/tree",
            "store/staging/x/tree",
            "images/layers/../../x",
            "memory/x",
            "templates/x",
        ];
        for bad in bad {
            assert!(!may_be_shown(Path::new(bad)), "{bad}");
        }
    }
}
