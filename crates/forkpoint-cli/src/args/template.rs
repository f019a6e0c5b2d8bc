//! `template` and what can be done with templates.

use clap::{Args, Subcommand};

use super::examples;

#[derive(Clone, Debug, Args)]
pub(crate) struct TemplateArgs {
    #[command(subcommand)]
    pub(crate) verb: TemplateVerb,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum TemplateVerb {
    /// List the templates
    #[command(after_help = examples::TEMPLATE_LS)]
    Ls,

    /// Make a template of an image or a directory; prints its name
    #[command(after_help = examples::TEMPLATE_ADD)]
    Add(AddArgs),

    /// Remove templates that no sandbox and no snapshot uses
    #[command(after_help = examples::TEMPLATE_RM)]
    Rm(TemplateRmArgs),

    /// Make a template of a snapshot, which it does not need any more; prints its name
    #[command(after_help = examples::TEMPLATE_PROMOTE)]
    Promote(PromoteArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AddArgs {
    /// What it is called from now on, such as python:3.12
    pub(crate) name: String,

    /// `oci:PATH[:TAG]`, `archive:FILE[:TAG]`, `docker-daemon:IMAGE`, `registry:IMAGE`, `dir:PATH`, or
    /// the path of a layout or an archive, which is looked at
    #[arg(value_name = "SOURCE")]
    pub(crate) image: String,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct TemplateRmArgs {
    /// Which ones
    #[arg(required = true, value_name = "NAME")]
    pub(crate) templates: Vec<String>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PromoteArgs {
    /// Which one
    pub(crate) snapshot: String,

    /// What it is called from now on
    pub(crate) name: String,
}
