//! The verbs that keep things in order.

use std::path::PathBuf;

use clap::Args;

use super::value;

#[derive(Clone, Debug, Args)]
pub(crate) struct PruneArgs {
    /// Delete what is older, but for the newest of each sandbox
    #[arg(long, value_name = "N", value_parser = value::days)]
    pub(crate) max_age_days: Option<jiff::SignedDuration>,

    /// Keep the newest N of each sandbox; alone, delete the others
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keep_last: Option<u64>,

    /// At most N of each sandbox
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_per_sandbox: Option<u64>,

    /// At most N in all: the oldest go first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_total: Option<u64>,

    /// At most this much in all, such as 5G: the oldest go first
    #[arg(long, value_name = "SIZE", value_parser = value::some_bytes)]
    pub(crate) max_size: Option<u64>,

    /// Tell the plan, and delete nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Do not ask
    #[arg(short, long, short_alias = 'y', visible_alias = "yes")]
    pub(crate) force: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ValidateArgs {
    /// Which one
    pub(crate) sandbox: String,

    /// For a snapshot with processes and memory
    #[arg(long)]
    pub(crate) full: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ImportLegacyArgs {
    /// The older manager's storage: the directory that has `metadata` in it
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,

    /// Tell what would be taken over, and take nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}
