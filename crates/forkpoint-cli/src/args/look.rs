//! The verbs that look into snapshots and sandboxes.

use std::{ffi::OsString, path::PathBuf};

use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser as _},
};

use super::place::Place;

#[derive(Clone, Debug, Args)]
pub(crate) struct DiffArgs {
    /// A sandbox or a snapshot
    pub(crate) from: String,

    /// Another one, to see what leads from the first to it. Without it, what led to the first: from
    /// the snapshot before it, or for a sandbox from where it stands
    pub(crate) to: Option<String>,

    /// How much changed in each file
    #[arg(long, conflicts_with_all = ["patch", "name_only"])]
    pub(crate) stat: bool,

    /// The changes themselves, as a patch that `git apply` takes
    #[arg(short, long, conflicts_with = "name_only")]
    pub(crate) patch: bool,

    /// Paths alone
    #[arg(long)]
    pub(crate) name_only: bool,

    /// Only what lies at these paths or below
    #[arg(last = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct LsArgs {
    /// What to list: a sandbox or a snapshot, with a path or without
    #[arg(value_name = "REF[:PATH]", value_parser = OsStringValueParser::new().try_map(|text| Place::or_root(&text)))]
    pub(crate) place: Place,

    /// Mode, owner, size and time of each
    #[arg(short)]
    pub(crate) long: bool,

    /// What is in the directories too
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,

    /// For those who are used to it: nothing is ever hidden
    #[arg(short, hide = true)]
    pub(crate) all: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CatArgs {
    /// Which files
    #[arg(required = true, value_name = "REF:PATH", value_parser = OsStringValueParser::new().try_map(|text| Place::with_path(&text)))]
    pub(crate) places: Vec<Place>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CpArgs {
    /// Directories with all that is in them
    #[arg(short, long)]
    pub(crate) recursive: bool,

    /// A path on this machine, REF:PATH, or - for stdin
    #[arg(value_name = "SRC")]
    pub(crate) from: OsString,

    /// A path on this machine, SANDBOX:PATH, or - for stdout
    #[arg(value_name = "DST")]
    pub(crate) to: OsString,
}
