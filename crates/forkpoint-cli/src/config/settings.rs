//! What can be decided beforehand, as values of the right type; `None` where nobody said anything.

use std::{path::PathBuf, time::Duration};

use forkpoint_core::{
    engine::Hooks,
    naming::NamingPattern,
    path::SandboxPath,
    retention::{KeepGroup, RetentionPolicy},
    spec::{Network, Resources, Template},
    trigger::Trigger,
};

#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) driver: Option<String>,
    pub(crate) triggers: Option<Vec<Trigger>>,
    pub(crate) naming: Option<NamingPattern>,
    pub(crate) skip_unchanged: bool,
    pub(crate) max_agent_state: Option<usize>,
    pub(crate) max_forks: Option<usize>,
    pub(crate) parallel_forks: Option<usize>,
    /// How many sandboxes the local driver keeps ready.
    pub(crate) warm: usize,
    /// Whether copies of a full snapshot share what they do not write to.
    pub(crate) share_memory: bool,
    /// Whether a full snapshot may exchange the root under programs that have written much, which it does unless said otherwise.
    pub(crate) live_rotation: Option<bool>,
    /// But for `keep_last`.
    pub(crate) retention: RetentionPolicy,
    pub(crate) keep_last: Option<u64>,
    pub(crate) keep_last_by: Option<KeepGroup>,
    pub(crate) hooks: Hooks,
    pub(crate) defaults: Defaults,
}

/// What a new sandbox is when nobody asks for anything else.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defaults {
    pub(crate) template: Option<Template>,
    pub(crate) network: Network,
    pub(crate) resources: Resources,
    pub(crate) user: Option<String>,
    pub(crate) workdir: Option<SandboxPath>,
    /// How old it may get.
    pub(crate) ttl: Option<Duration>,
}
