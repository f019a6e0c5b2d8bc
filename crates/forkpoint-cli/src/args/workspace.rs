//! `--workspace`: a directory of this machine for a sandbox to work in.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::ffi::OsStrExt as _,
};

use clap::{Args, ValueEnum};
use forkpoint_core::{
    Error, ErrorKind, Timestamp,
    path::{HostPath, SandboxPath},
    spec::{Workspace, WorkspaceMode},
};

const PLACE: &str = "/workspace";

#[derive(Clone, Debug, Args)]
pub(crate) struct WorkspaceArgs {
    /// A directory to work in, seen at PATH [default: /workspace]. The original is never written to:
    /// `forkpoint apply` brings home what changed
    #[arg(long, value_name = "DIR[:PATH]")]
    pub(crate) workspace: Option<OsString>,

    /// `live`: a file that the sandbox has not changed is what DIR has now, and entering takes no
    /// time. `copy`: DIR is copied first, and what happens to it later is not seen
    #[arg(
        long,
        value_enum,
        default_value = "live",
        hide_possible_values = true,
        value_name = "live|copy"
    )]
    pub(crate) workspace_mode: ModeArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    Live,
    Copy,
}

impl WorkspaceArgs {
    /// `since` is when the sandbox begins.
    pub(super) fn read(&self, since: Timestamp) -> Result<Option<Workspace>, Error> {
        let Some(text) = &self.workspace else { return Ok(None) };
        let (source, at) = split(text);
        let mode = match self.workspace_mode {
            ModeArg::Live => WorkspaceMode::Live,
            ModeArg::Copy => WorkspaceMode::Copy,
        };
        let at = SandboxPath::new(at)?;
        Ok(Some(Workspace { source: find(source)?, at, mode, since }))
    }
}

/// At the last colon that a path from the root follows: names may have colons.
fn split(text: &OsStr) -> (&OsStr, &OsStr) {
    let bytes = text.as_bytes();
    let colon = bytes.windows(2).rposition(|pair| pair == b":/").filter(|colon| *colon > 0);
    match colon {
        Some(colon) => {
            let (source, at) = bytes.split_at(colon);
            (OsStr::from_bytes(source), OsStr::from_bytes(&at[1..]))
        }
        None => (text, OsStr::new(PLACE)),
    }
}

fn find(source: &OsStr) -> Result<HostPath, Error> {
    let shown = source.display();
    let real = fs::canonicalize(source).map_err(|err| {
        let kind = match err.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            _ => ErrorKind::Invalid,
        };
        Error::new(kind, format!("workspace `{shown}` cannot be used")).with_source(err)
    })?;
    match real.is_dir() {
        true => HostPath::new(real),
        false => Err(Error::invalid(format!("workspace `{shown}` is not a directory"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_inside_follows_the_last_colon_that_has_one() {
        for (text, source, at) in [
            (".", ".", PLACE),
            ("a:/b", "a", "/b"),
            ("a:b", "a:b", PLACE),
            ("/x:/y:/z", "/x:/y", "/z"),
            (":/y", ":/y", PLACE),
            ("a:", "a:", PLACE),
        ] {
            assert_eq!(split(OsStr::new(text)), (OsStr::new(source), OsStr::new(at)), "{text}");
        }
    }
}
