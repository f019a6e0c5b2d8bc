//! `apply`: bringing a workspace's changes home.

use std::ffi::OsString;

use clap::Args;

#[derive(Clone, Debug, Args)]
pub(crate) struct ApplyArgs {
    /// A sandbox, as it is now, or a snapshot
    #[arg(value_name = "SANDBOX|SNAPSHOT")]
    pub(crate) source: String,

    /// Tell what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Print what would be applied as a patch that `git apply` takes, and do nothing
    #[arg(short, long, conflicts_with_all = ["dry_run", "force"])]
    pub(crate) patch: bool,

    /// Also where the original changed meanwhile: what it has there is lost
    #[arg(long)]
    pub(crate) force: bool,

    /// Only these, with what is below them: from the workspace's root, or as the sandbox sees them
    #[arg(last = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
}
