//! What a sandbox is asked to be.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{error::Error, path::SandboxPath};

mod attachments;
mod workspace;

pub use attachments::{Attachments, Protocol, Publish, VolumeChoice};
pub use workspace::{Workspace, WorkspaceMode};

const MAX_TEMPLATE_BYTES: usize = 4096;

/// Kept with every sandbox and every snapshot: a copy is made from this and the artifact alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    pub template: Template,
    pub workdir: Option<SandboxPath>,
    pub user: Option<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub network: Network,
    #[serde(default)]
    pub resources: Resources,
    /// Directories of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workspaces: Vec<Workspace>,
    /// What only platforms with networks, volumes and ports of their own can give.
    #[serde(default, skip_serializing_if = "Attachments::is_default")]
    pub attachments: Attachments,
}

impl SandboxSpec {
    #[must_use]
    pub fn new(template: Template) -> Self {
        Self {
            template,
            workdir: None,
            user: None,
            env: BTreeMap::new(),
            network: Network::default(),
            resources: Resources::default(),
            workspaces: Vec::new(),
            attachments: Attachments::default(),
        }
    }

    /// Refuses what no driver could run.
    pub fn check(&self) -> Result<(), Error> {
        for (key, value) in &self.env {
            if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
                return Err(Error::invalid(format!("{key:?} cannot be an environment variable")));
            }
        }
        let Resources { memory_bytes, cpu_millis, pids } = self.resources;
        for (what, limit) in [
            ("memory", memory_bytes),
            ("cpus", cpu_millis.map(u64::from)),
            ("pids", pids.map(u64::from)),
        ] {
            if limit == Some(0) {
                return Err(Error::invalid(format!(
                    "a limit of 0 {what} leaves nothing to run on"
                )));
            }
        }
        self.attachments.check()?;
        workspace::check(&self.workspaces)
    }
}

/// A named starting point, such as `host`, `dir:/srv/root` or an image. What a name means is its
/// driver's business.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Template(String);

impl Template {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Template {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.is_empty() || text.len() > MAX_TEMPLATE_BYTES || text.chars().any(char::is_control)
        {
            return Err(Error::invalid(format!(
                "template {:?} is empty, longer than {MAX_TEMPLATE_BYTES} bytes or has control characters",
                text.chars().take(64).collect::<String>()
            )));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Template {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Template> for String {
    fn from(template: Template) -> Self {
        template.0
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Its own loopback and nothing else.
    #[default]
    None,
    Host,
}

/// Limits; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    pub memory_bytes: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u32>,
    pub pids: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_cannot_run() {
        let good = SandboxSpec::new("host".parse().unwrap());
        good.check().unwrap();
        for key in ["", "A=B", "A\0"] {
            let env = BTreeMap::from([(key.to_owned(), String::new())]);
            assert!(SandboxSpec { env, ..good.clone() }.check().is_err(), "{key:?}");
        }
        let resources = Resources { pids: Some(0), ..Resources::default() };
        assert!(
            SandboxSpec { resources, ..good }.check().unwrap_err().to_string().contains("pids")
        );
        for template in ["", "a\nb", &"x".repeat(5000)] {
            assert!(template.parse::<Template>().is_err());
        }
    }
}
