//! The verb that goes on until it is told to stop.

use std::time::Duration;

use clap::Args;

use super::value;

#[derive(Clone, Debug, Args)]
pub(crate) struct WatchArgs {
    /// Which one
    pub(crate) sandbox: String,

    /// Take a snapshot every so often, such as 5m, if something changed
    #[arg(long, value_name = "DURATION", value_parser = value::timeout)]
    pub(crate) every: Option<Duration>,

    /// Leave when so many were taken
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,

    /// What somebody should know about these states
    #[arg(short = 'm', long, value_name = "TEXT")]
    pub(crate) description: Option<String>,

    /// The agent's run that they belong to
    #[arg(long, value_name = "ID")]
    pub(crate) run_id: Option<String>,

    /// A label to find them by; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = value::pair)]
    pub(crate) labels: Vec<(String, String)>,

    /// Let retention delete each when it is older, such as 7d
    #[arg(long, value_name = "DURATION", value_parser = value::timeout)]
    pub(crate) expires: Option<Duration>,

    /// Do not wait until each is safe from a power cut: faster
    #[arg(long)]
    pub(crate) no_sync: bool,
}
