//! What a platform has, and others made of it.

use serde_json::Value;

use super::Artifact;
use crate::{id::SandboxId, spec::SandboxSpec};

/// A state that somebody else kept, as they tell of it.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeState {
    /// The platform's name or id of it.
    pub name: String,
    /// The platform's id of the sandbox that it was taken of.
    pub of: Option<String>,
    /// What was written down beside it, in the form of whoever did. Not to be believed.
    pub told: Value,
}

/// A state of others that can be restored now.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    pub artifact: Artifact,
    /// What it was taken of: the id that adopting that would have given.
    pub sandbox: SandboxId,
    pub spec: SandboxSpec,
}
