//! The verb about the configuration.

use clap::{Args, Subcommand};

#[derive(Clone, Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) verb: ConfigVerb,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Every key, with its value and the file that it comes from
    Show,
    /// The files that are read; if there is none, where to put one
    Path,
}
