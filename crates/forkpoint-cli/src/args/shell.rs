//! The verbs for shells and manuals.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, ValueEnum};

#[derive(Clone, Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// bash, zsh or fish
    #[arg(value_enum, hide_possible_values = true)]
    pub(crate) shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ManArgs {
    /// Where to write a page for each verb [default: the main page on stdout]
    pub(crate) directory: Option<PathBuf>,
}

/// What was typed so far, with the word that is being typed as the last.
#[derive(Clone, Debug, Args)]
pub(crate) struct CompleteArgs {
    #[arg(last = true)]
    pub(crate) words: Vec<OsString>,
}
