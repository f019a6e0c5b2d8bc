//! What can go wrong with cgroups.

use std::{error::Error, io, path::PathBuf};

#[derive(Debug, thiserror::Error)]
pub(in crate::driver::local) enum CgroupError {
    #[error("this machine cannot limit {what}: {reason}")]
    Unavailable { what: &'static str, reason: String },

    #[error("failed to limit {what}: failed to write `{value}` to `{path}`")]
    Limit {
        what: &'static str,
        value: String,
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    #[error("failed to create cgroup `{path}`")]
    Create {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// In one line, for a description.
pub(in crate::driver::local) fn with_causes(err: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(err), |err| (*err).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
