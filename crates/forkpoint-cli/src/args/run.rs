//! The verbs that make a sandbox or run something in one.

use std::{collections::BTreeMap, ffi::OsString, time::Duration};

use clap::{Args, ValueEnum};
use forkpoint_core::{
    Error, Timestamp,
    engine::CreateRequest,
    label::Labels,
    naming::Name,
    path::SandboxPath,
    spec::{Attachments, Network, Publish, Resources, SandboxSpec, Template},
};

use super::{WaitArgs, value, workspace::WorkspaceArgs};
use crate::config::Defaults;

/// What a new sandbox is asked to be.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sandbox options")]
pub(crate) struct SandboxArgs {
    /// A name for the sandbox
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// What to start from: `host` is this machine's own system, `dir:/PATH` a directory, another name
    /// what `forkpoint template add` made; `oci:PATH`, `archive:FILE`, `docker-daemon:IMAGE` and
    /// `registry:IMAGE` are images [default: host]. With --driver docker, an image that the engine has
    #[arg(long)]
    pub(crate) template: Option<String>,

    /// Who runs it: `local`, or `docker` for a container [default: local]
    #[arg(long)]
    pub(crate) driver: Option<String>,

    /// A label to find it by; repeatable
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = value::pair)]
    pub(crate) labels: Vec<(String, String)>,

    /// An environment variable, or the name of one to take from here; repeatable
    #[arg(long = "env", short = 'e', value_name = "KEY[=VALUE]", value_parser = value::env)]
    pub(crate) env: Vec<(String, String)>,

    /// The directory that commands start in
    #[arg(long, short = 'w', value_name = "PATH")]
    pub(crate) workdir: Option<OsString>,

    /// The user that commands run as, by name or number
    #[arg(long, short = 'u')]
    pub(crate) user: Option<String>,

    /// `none` is a loopback of its own and nothing else; `host` is this machine's network
    /// [default: none]
    #[arg(long, value_enum, hide_possible_values = true, value_name = "none|host")]
    pub(crate) network: Option<NetworkArg>,

    /// A port to publish, where the driver has ports, as Docker writes it: `8080:80`; repeatable
    #[arg(long, short = 'p', value_name = "[[IP:]HOST:]PORT[/PROTOCOL]")]
    pub(crate) publish: Vec<Publish>,

    /// The most memory it may use, such as 512M
    #[arg(long, value_name = "SIZE", value_parser = value::bytes)]
    pub(crate) memory: Option<u64>,

    /// How many processors it may use, such as 1.5
    #[arg(long, value_name = "N", value_parser = value::cpus)]
    pub(crate) cpus: Option<u32>,

    /// How many processes and threads it may have
    #[arg(long, value_name = "N")]
    pub(crate) pids: Option<u32>,

    /// Remove it when it is older, such as 4h: what runs in it ends then, and the next command
    /// removes it
    #[arg(long, value_name = "DURATION", value_parser = value::timeout)]
    pub(crate) ttl: Option<Duration>,

    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetworkArg {
    None,
    Host,
}

impl SandboxArgs {
    pub(crate) fn template<'a>(&'a self, defaults: &'a Defaults) -> &'a str {
        let default = defaults.template.as_ref().map_or("host", Template::as_str);
        self.template.as_deref().unwrap_or(default)
    }

    pub(crate) fn ttl(&self, defaults: &Defaults) -> Option<Duration> {
        self.ttl.or(defaults.ttl)
    }

    /// `since` is when the sandbox begins.
    pub(crate) fn request(
        &self,
        defaults: &Defaults,
        since: Timestamp,
    ) -> Result<CreateRequest, Error> {
        let limits = defaults.resources;
        let workspace = self.workspace.read(since)?;
        let place = workspace.as_ref().map(|workspace| workspace.at.clone());
        let place = place.or_else(|| defaults.workdir.clone());
        let spec = SandboxSpec {
            workdir: path(self.workdir.as_ref())?.or(place),
            user: self.user.clone().or_else(|| defaults.user.clone()),
            env: self.env.iter().cloned().collect(),
            network: match self.network {
                None => defaults.network,
                Some(NetworkArg::None) => Network::None,
                Some(NetworkArg::Host) => Network::Host,
            },
            resources: Resources {
                memory_bytes: self.memory.or(limits.memory_bytes),
                cpu_millis: self.cpus.or(limits.cpu_millis),
                pids: self.pids.or(limits.pids),
            },
            workspaces: workspace.into_iter().collect(),
            attachments: Attachments { publish: self.publish.clone(), ..Attachments::default() },
            ..SandboxSpec::new(self.template(defaults).parse()?)
        };
        Ok(CreateRequest {
            driver: self.driver.clone(),
            name: self.name.as_deref().map(str::parse::<Name>).transpose()?,
            labels: Labels::new(self.labels.clone())?,
            expires: self.ttl(defaults).map(value::from_now).transpose()?,
            wait: self.wait.wait(),
            ..CreateRequest::new(spec)
        })
    }
}

fn path(text: Option<&OsString>) -> Result<Option<SandboxPath>, Error> {
    text.map(SandboxPath::new).transpose()
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

/// How a command is connected to this terminal or pipe.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct StreamArgs {
    /// Connect standard input; without it the command's input is empty
    #[arg(short, long)]
    pub(crate) interactive: bool,

    /// Give the command a terminal
    #[arg(short, long)]
    pub(crate) tty: bool,

    /// Kill the command when it runs longer, such as 30s; then the exit code is 124
    #[arg(long, value_name = "DURATION", value_parser = value::timeout)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// The command and its arguments [default: that of the template's image, or a shell; on a
    /// terminal as with -it]
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) streams: StreamArgs,

    /// Instead of what the image of the template puts before each command; empty for nothing
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) entrypoint: Option<OsString>,

    /// Remove the sandbox afterwards, however the command ends
    #[arg(long)]
    pub(crate) rm: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ExecArgs {
    /// Where to run it
    pub(crate) sandbox: String,

    #[command(flatten)]
    pub(crate) streams: StreamArgs,

    /// An environment variable, or the name of one to take from here; repeatable
    #[arg(long = "env", short = 'e', value_name = "KEY[=VALUE]", value_parser = value::env)]
    pub(crate) env: Vec<(String, String)>,

    /// The directory to start in
    #[arg(long, short = 'w', value_name = "PATH")]
    pub(crate) workdir: Option<OsString>,

    /// The user to run as, by name or number
    #[arg(long, short = 'u')]
    pub(crate) user: Option<String>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl ExecArgs {
    pub(crate) fn workdir(&self) -> Result<Option<SandboxPath>, Error> {
        path(self.workdir.as_ref())
    }

    pub(crate) fn env(&self) -> BTreeMap<OsString, OsString> {
        self.env.iter().map(|(key, value)| (key.into(), value.into())).collect()
    }
}
