//! What a copy gets of the networks, volumes and ports of its source, where its platform has any.

use clap::Args;
use forkpoint_core::spec::{Attachments, Publish, VolumeChoice};

use super::value;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Container options (Docker)")]
pub(crate) struct ContainerArgs {
    /// Join the networks that its source was in, which is what happens anyway
    #[arg(long, overrides_with = "no_preserve_networks")]
    pub(crate) preserve_networks: bool,

    /// Join only the engine's usual network
    #[arg(long, overrides_with = "preserve_networks")]
    pub(crate) no_preserve_networks: bool,

    /// Give it the volumes of its source, as --volumes says, which is what happens anyway
    #[arg(long, overrides_with = "no_preserve_volumes")]
    pub(crate) preserve_volumes: bool,

    /// The same as --volumes none
    #[arg(long, overrides_with = "preserve_volumes", conflicts_with = "volumes")]
    pub(crate) no_preserve_volumes: bool,

    /// What becomes of volumes: `copy` makes new ones with what the snapshot holds, `share` uses the
    /// source's own as they are now, `none` leaves them out [default: copy]
    #[arg(long, value_name = "copy|share|none", value_parser = value::volumes)]
    pub(crate) volumes: Option<VolumeChoice>,

    /// A port to publish instead of those of its source, as Docker writes it: `8080:80`, `80`,
    /// `127.0.0.1:8080:80/tcp`; repeatable. A port of the host that is taken is replaced, and told
    #[arg(long, short = 'p', value_name = "[[IP:]HOST:]PORT[/PROTOCOL]")]
    pub(crate) publish: Vec<Publish>,
}

impl ContainerArgs {
    pub(crate) fn attachments(&self) -> Attachments {
        let none = self.no_preserve_volumes.then_some(VolumeChoice::None);
        Attachments {
            networks: !self.no_preserve_networks,
            volumes: none.or(self.volumes).unwrap_or_default(),
            publish: self.publish.clone(),
            ..Attachments::default()
        }
    }
}
