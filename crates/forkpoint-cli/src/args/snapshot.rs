//! The verbs about snapshots.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use forkpoint_core::{Error, Timestamp, trigger::Trigger};

use super::{
    ContainerArgs, WaitArgs,
    value::{self, Expiry},
};
use crate::config::Defaults;

#[derive(Clone, Debug, Args)]
pub(crate) struct SnapshotArgs {
    /// Of which sandbox
    pub(crate) sandbox: String,

    /// What somebody should know about this state
    #[arg(short = 'm', long, value_name = "TEXT")]
    pub(crate) description: Option<String>,

    /// A name for the snapshot [default: SANDBOX_TRIGGER_TIME]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Why it is taken: manual, run_start, run_end, before_action, after_action, on_error, periodic
    #[arg(long, default_value = "manual")]
    pub(crate) trigger: Trigger,

    /// What the agent was about to do or had done
    #[arg(long, value_name = "TEXT")]
    pub(crate) context: Option<String>,

    /// The agent's run that it belongs to
    #[arg(long, value_name = "ID")]
    pub(crate) run_id: Option<String>,

    /// The step in that run
    #[arg(long, value_name = "N")]
    pub(crate) step: Option<u64>,

    /// A label to find it by; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = value::pair)]
    pub(crate) labels: Vec<(String, String)>,

    /// Keep processes and memory too: they go on in every copy. `auto` keeps files alone, and says
    /// why, where the rest cannot be kept
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    pub(crate) full: Option<Full>,

    /// What becomes of processes with a connection to somebody outside: `close` keeps them, and copies
    /// find it reset, while the sandbox itself keeps it
    #[arg(long, value_name = "WHAT", default_value = "refuse", requires = "full")]
    pub(crate) tcp: Tcp,

    /// Keep what is in tmpfs mounts and /dev/shm too (containers; with --full they are kept anyway)
    #[arg(long)]
    pub(crate) tmpfs: bool,

    /// Take nothing if nothing changed since its last snapshot and that one is as durable, pinned and
    /// lasting; prints its id. With --name, one is taken, and with --full too: what runs always
    /// counts as changed
    #[arg(long)]
    pub(crate) skip_unchanged: bool,

    /// Keep it whatever the limits say, until it is unpinned or deleted
    #[arg(long)]
    pub(crate) pin: bool,

    /// Let retention delete it when it is older, such as 7d
    #[arg(long, value_name = "DURATION", value_parser = value::timeout, visible_alias = "ttl")]
    pub(crate) expires: Option<Duration>,

    /// Keep this file's bytes with it, `-` for standard input: the agent's own memory of this moment
    #[arg(long, value_name = "FILE")]
    pub(crate) agent_state: Option<PathBuf>,

    /// Return before it is safe from a power cut: faster
    #[arg(long)]
    pub(crate) no_sync: bool,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

/// What becomes of connections to somebody outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tcp {
    Refuse,
    Close,
}

/// When processes and memory are kept too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Full {
    Always,
    Auto,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RestoreArgs {
    /// From which snapshot
    pub(crate) snapshot: String,

    /// A name for the new sandbox, and on a platform with names of its own for the container
    #[arg(long, alias = "container-name")]
    pub(crate) name: Option<String>,

    #[command(flatten)]
    pub(crate) copy: CopyArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ForkArgs {
    /// A sandbox, as it is now, or a snapshot
    #[arg(value_name = "SANDBOX|SNAPSHOT")]
    pub(crate) source: String,

    /// How many copies
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    pub(crate) count: usize,

    /// The copies are called PREFIX-1, PREFIX-2, …
    #[arg(long, value_name = "PREFIX")]
    pub(crate) name: Option<String>,

    #[command(flatten)]
    pub(crate) copy: CopyArgs,
}

/// What may differ between a sandbox and its copy.
#[derive(Clone, Debug, Args)]
pub(crate) struct CopyArgs {
    /// An environment variable, or the name of one to take from here; repeatable
    #[arg(long = "env", short = 'e', value_name = "KEY[=VALUE]", value_parser = value::env)]
    pub(crate) env: Vec<(String, String)>,

    /// A label to find it by; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = value::pair)]
    pub(crate) labels: Vec<(String, String)>,

    /// Remove it when it is older, such as 4h: what runs in it ends then, and the next command
    /// removes it
    #[arg(long, value_name = "DURATION", value_parser = value::timeout)]
    pub(crate) ttl: Option<Duration>,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    #[command(flatten)]
    pub(crate) container: ContainerArgs,
}

impl CopyArgs {
    pub(crate) fn expires(&self, defaults: &Defaults) -> Result<Option<Timestamp>, Error> {
        self.ttl.or(defaults.ttl).map(value::from_now).transpose()
    }

    pub(crate) fn env(&self) -> BTreeMap<String, String> {
        self.env.iter().cloned().collect()
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RollbackArgs {
    /// Which sandbox
    pub(crate) sandbox: String,

    /// Where to [default: its newest snapshot]
    pub(crate) snapshot: Option<String>,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ListArgs {
    /// Only snapshots of this sandbox, also when it is gone
    #[arg(long, alias = "container")]
    pub(crate) sandbox: Option<String>,

    /// Only snapshots taken for this reason
    #[arg(long)]
    pub(crate) trigger: Option<Trigger>,

    /// Only snapshots with this label; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = value::pair)]
    pub(crate) labels: Vec<(String, String)>,

    /// At most so many [default: 100 in a table, all with --json or -q]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ShowArgs {
    /// Which one
    pub(crate) snapshot: String,

    /// Only the bytes that the agent left with it, as they are
    #[arg(long, conflicts_with = "json")]
    pub(crate) agent_state: bool,

    /// Write these bytes to a file
    #[arg(short, long, value_name = "FILE", requires = "agent_state")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct EditArgs {
    /// Which one
    pub(crate) snapshot: String,

    /// Another name
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// What somebody should know about this state; an empty text takes it away
    #[arg(short = 'm', long, value_name = "TEXT")]
    pub(crate) description: Option<String>,

    /// Keep it whatever the limits say
    #[arg(long, conflicts_with = "unpin")]
    pub(crate) pin: bool,

    /// Let the limits decide again
    #[arg(long)]
    pub(crate) unpin: bool,

    /// A label to add or to change; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = value::pair)]
    pub(crate) labels: Vec<(String, String)>,

    /// A label to take away; repeatable
    #[arg(long = "remove-label", value_name = "KEY")]
    pub(crate) remove_labels: Vec<String>,

    /// Let retention delete it after this time from now, such as 7d; `never` takes that back
    #[arg(long, value_name = "DURATION|never", value_parser = value::expiry)]
    pub(crate) expires: Option<Expiry>,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct LogArgs {
    /// Only the tree that this sandbox stands in
    pub(crate) sandbox: Option<String>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Which ones
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<String>,

    /// Do not ask, and do not mind those that are gone already
    #[arg(short, long)]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}
