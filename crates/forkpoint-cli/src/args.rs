//! What can be typed: one struct for each verb, with its help and its examples.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

mod apply;
mod care;
mod config;
mod container;
mod examples;
mod look;
pub(crate) mod place;
mod quick;
mod run;
mod shell;
mod snapshot;
mod template;
pub(crate) mod value;
mod watch;
mod workspace;

pub(crate) use apply::ApplyArgs;
pub(crate) use care::{ImportLegacyArgs, PruneArgs, ValidateArgs};
pub(crate) use config::{ConfigArgs, ConfigVerb};
pub(crate) use container::ContainerArgs;
pub(crate) use look::{CatArgs, CpArgs, DiffArgs, LsArgs};
pub(crate) use run::{CreateArgs, ExecArgs, RunArgs, SandboxArgs, StreamArgs};
pub(crate) use snapshot::{
    DeleteArgs, EditArgs, ForkArgs, Full, ListArgs, LogArgs, RestoreArgs, RollbackArgs, ShowArgs,
    SnapshotArgs, Tcp,
};
pub(crate) use template::{AddArgs, PromoteArgs, TemplateArgs, TemplateVerb};
pub(crate) use watch::WatchArgs;

pub(crate) use shell::{CompleteArgs, CompletionsArgs, ManArgs, Shell};

use value::WaitTime;

/// Saves, rewinds and forks the sandboxes that AI agents work in
#[derive(Debug, Parser)]
#[command(
    name = "forkpoint",
    version,
    after_help = examples::MAIN,
    subcommand_required = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,

    #[command(subcommand)]
    pub(crate) verb: Verb,
}

impl Cli {
    /// What was typed, or what is to be told about it.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let line: Vec<OsString> = std::env::args_os().collect();
        quick::read(&line).map_or_else(|| Self::try_parse_from(&line), Ok)
    }
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Where sandboxes and snapshots are kept [default: /var/lib/forkpoint for root, else
    /// forkpoint in the XDG data directory]
    #[arg(
        long,
        global = true,
        overrides_with = "data_dir",
        env = "FORKPOINT_DATA_DIR",
        alias = "storage-path",
        hide_env_values = true,
        value_name = "DIR"
    )]
    pub(crate) data_dir: Option<PathBuf>,

    /// The configuration, instead of those that are looked for; `none` for none
    #[arg(
        long,
        global = true,
        overrides_with = "config",
        env = "FORKPOINT_CONFIG",
        hide_env_values = true,
        value_name = "FILE"
    )]
    pub(crate) config: Option<PathBuf>,

    /// Print one JSON document on stdout; an error is a JSON object on stderr
    #[arg(long, global = true, alias = "json-output")]
    pub(crate) json: bool,

    /// Print results and errors only; `ps` and `list` print ids alone
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Tell on stderr what was cleaned up and what has to wait
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub(crate) verbose: bool,

    /// No spinner on stderr, however long it takes
    #[arg(long, global = true)]
    pub(crate) no_progress: bool,

    /// Colours: on a terminal without NO_COLOR, always, or never
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub(crate) color: ColorChoice,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// A guided tour: create, snapshot, break, compare, roll back, fork; leaves nothing behind
    #[command(after_help = examples::DEMO)]
    Demo(DemoArgs),

    /// What this machine can do, and for each "no" the way out
    #[command(after_help = examples::DOCTOR)]
    Doctor,

    /// Create a sandbox and run a command in it
    #[command(after_help = examples::RUN)]
    Run(Box<RunArgs>),

    /// Create a sandbox; prints its id
    #[command(after_help = examples::CREATE)]
    Create(Box<CreateArgs>),

    /// Run a command in a sandbox
    #[command(after_help = examples::EXEC)]
    Exec(ExecArgs),

    /// List the sandboxes
    #[command(after_help = examples::PS)]
    Ps(PsArgs),

    /// Remove sandboxes; their snapshots stay
    #[command(after_help = examples::RM)]
    Rm(RmArgs),

    /// Stop what runs in a sandbox; its files stay
    #[command(after_help = examples::STOP)]
    Stop(PowerArgs),

    /// Start a stopped sandbox again
    #[command(after_help = examples::START)]
    Start(PowerArgs),

    /// Freeze everything that runs in a sandbox
    #[command(after_help = examples::PAUSE)]
    Pause(PowerArgs),

    /// Let a paused sandbox go on
    #[command(after_help = examples::RESUME)]
    Resume(PowerArgs),

    /// Take a snapshot of a sandbox; prints its id
    #[command(after_help = examples::SNAPSHOT)]
    Snapshot(Box<SnapshotArgs>),

    /// Make a new sandbox from a snapshot; prints its id
    #[command(after_help = examples::RESTORE)]
    Restore(RestoreArgs),

    /// Put a sandbox back where a snapshot was taken, in place
    #[command(after_help = examples::ROLLBACK)]
    Rollback(RollbackArgs),

    /// Make copies of a sandbox or a snapshot; prints their ids
    #[command(after_help = examples::FORK)]
    Fork(ForkArgs),

    /// List the snapshots, newest first
    #[command(after_help = examples::LIST)]
    List(ListArgs),

    /// Everything about one snapshot
    #[command(after_help = examples::SHOW)]
    Show(ShowArgs),

    /// The lineage as a tree, with where each sandbox stands
    #[command(after_help = examples::LOG)]
    Log(LogArgs),

    /// Bring home what a sandbox changed in its workspace
    #[command(after_help = examples::APPLY)]
    Apply(ApplyArgs),

    /// What changed between two states, or since one
    #[command(after_help = examples::DIFF)]
    Diff(DiffArgs),

    /// List files in a sandbox or a snapshot
    #[command(after_help = examples::LS)]
    Ls(LsArgs),

    /// Print files of a sandbox or a snapshot
    #[command(after_help = examples::CAT)]
    Cat(CatArgs),

    /// Copy files out of a sandbox or a snapshot, or into a sandbox
    #[command(after_help = examples::CP)]
    Cp(CpArgs),

    /// Change what is written on a snapshot: name, description, labels, pin, expiry
    #[command(after_help = examples::EDIT)]
    Edit(EditArgs),

    /// Delete snapshots; what grew from them stays whole
    #[command(after_help = examples::DELETE)]
    Delete(DeleteArgs),

    /// Take snapshots every so often, and when a sandbox ends
    #[command(after_help = examples::WATCH)]
    Watch(WatchArgs),

    /// Delete what the limits no longer leave room for; tells the plan first
    #[command(after_help = examples::PRUNE, alias = "cleanup")]
    Prune(PruneArgs),

    /// How much there is, and what it occupies
    #[command(after_help = examples::STATS)]
    Stats,

    /// Whether a sandbox can be snapshotted, and what would be left out
    #[command(after_help = examples::VALIDATE)]
    Validate(ValidateArgs),

    /// Take over the snapshots of the older snapshot manager
    #[command(after_help = examples::IMPORT_LEGACY)]
    ImportLegacy(ImportLegacyArgs),

    /// What is configured, and where
    #[command(after_help = examples::CONFIG)]
    Config(ConfigArgs),

    /// Starting points: list, add, remove, and make one of a snapshot
    #[command(after_help = examples::TEMPLATE)]
    Template(TemplateArgs),

    /// A script that completes verbs, options and names in your shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions(CompletionsArgs),

    /// The manual, as pages for `man`
    #[command(after_help = examples::MAN, hide = true)]
    Man(ManArgs),

    /// Names that fit what is being typed
    #[command(name = "__complete", hide = true)]
    Complete(CompleteArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DemoArgs {
    /// How many copies to fork
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) count: u16,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PsArgs {
    /// Only sandboxes with this label; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = value::pair)]
    pub(crate) labels: Vec<(String, String)>,

    /// What each uses: disk (since its last snapshot), memory, processes, processor time. Memory and
    /// processes are known where there is a limit or the kernel counts them
    #[arg(long)]
    pub(crate) usage: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RmArgs {
    /// Which ones
    #[arg(required = true, value_name = "SANDBOX")]
    pub(crate) sandboxes: Vec<String>,

    /// Do not ask, and do not mind those that are gone already
    #[arg(short, long)]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PowerArgs {
    /// Which ones
    #[arg(required = true, value_name = "SANDBOX")]
    pub(crate) sandboxes: Vec<String>,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct WaitArgs {
    /// Wait this long for another operation that is in the way, such as 10s
    #[arg(long, value_name = "DURATION", default_value = "0s", hide_default_value = true)]
    pub(crate) wait: WaitTime,
}

impl WaitArgs {
    pub(crate) fn wait(self) -> forkpoint_core::engine::Wait {
        self.wait.into()
    }
}
