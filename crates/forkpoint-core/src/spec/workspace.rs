//! A directory of the host that a sandbox sees and changes for itself alone.

use std::{fmt, path::Path};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    path::{HostPath, SandboxPath},
};

/// Where the kernel's own things are: nothing of a user's can lie there.
const OF_THE_KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Nothing is ever written to `source` by a sandbox; what it changed is brought home on request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workspace {
    /// A directory, without symbolic links on its way.
    pub source: HostPath,
    /// Where the sandbox sees it.
    pub at: SandboxPath,
    pub mode: WorkspaceMode,
    /// When the sandbox began, by the clock that files are dated with. What is younger in `source`
    /// changed since.
    pub since: Timestamp,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceMode {
    /// What the sandbox has not changed is what the host has now.
    #[default]
    Live,
    /// What the host had when the sandbox began.
    Copy,
}

impl WorkspaceMode {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Copy => "copy",
        }
    }
}

impl fmt::Display for WorkspaceMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Workspace {
    /// Refuses places where no directory of a user's can be.
    fn check(&self) -> Result<(), Error> {
        let (source, at) = (self.source.as_path(), self.at.as_path());
        if source == Path::new("/") {
            return Err(Error::invalid(
                "`/` cannot be a workspace: it holds the whole machine. Give a directory",
            ));
        }
        if at == Path::new("/") {
            return Err(Error::invalid(format!(
                "workspace `{}` cannot be at `/`: the sandbox's own system is there",
                self.source
            )));
        }
        match OF_THE_KERNEL.into_iter().find(|place| at.starts_with(place)) {
            Some(place) => Err(Error::invalid(format!(
                "workspace `{}` cannot be at `{}`: `{place}` is the kernel's",
                self.source, self.at
            ))),
            None => Ok(()),
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let (one, other) = (self.at.as_path(), other.at.as_path());
        one.starts_with(other) || other.starts_with(one)
    }
}

pub(super) fn check(workspaces: &[Workspace]) -> Result<(), Error> {
    for (index, workspace) in workspaces.iter().enumerate() {
        workspace.check()?;
        if let Some(other) = workspaces[..index].iter().find(|other| other.overlaps(workspace)) {
            return Err(Error::invalid(format!(
                "workspaces `{}` and `{}` overlap inside the sandbox",
                other.at, workspace.at
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(source: &str, at: &str) -> Workspace {
        Workspace {
            source: HostPath::new(source).unwrap(),
            at: SandboxPath::new(at).unwrap(),
            mode: WorkspaceMode::Live,
            since: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_workspace_is_somewhere_sensible() {
        check(&[workspace("/srv/a", "/a"), workspace("/srv/b", "/ab")]).unwrap();
        for (source, at, why) in [
            ("/", "/a", "whole machine"),
            ("/a", "/", "own system"),
            ("/a", "/proc/a", "kernel"),
            ("/a", "/dev", "kernel"),
            ("/a", "/sys/fs", "kernel"),
        ] {
            let err = check(&[workspace(source, at)]).unwrap_err().to_string();
            assert!(err.contains(why), "{err}");
        }
        for (one, other) in [("/a", "/a/b"), ("/a/b", "/a"), ("/a", "/a")] {
            let err = check(&[workspace("/x", one), workspace("/y", other)]).unwrap_err();
            assert!(err.to_string().contains("overlap"), "{err}");
        }
    }
}
