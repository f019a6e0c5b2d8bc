//! `completions` and `man`: what clap knows of the verbs, for shells and for readers.
//!
//! Verbs and options are in the script. Names of sandboxes, snapshots and templates are asked for when somebody
//! presses the key, from the hidden verb `__complete`.

use std::{io, path::Path};

use clap::{Command, CommandFactory as _};
use clap_complete::{Generator, shells};
use forkpoint_core::Error;

use super::{Exit, Outcome};
use crate::{
    args::{Cli, CompletionsArgs, ManArgs, Shell},
    fail::Failure,
    output::Output,
};

const BASH: &str = include_str!("completions/names.bash");
const FISH: &str = include_str!("completions/names.fish");
const ZSH: &str = include_str!("completions/names.zsh");

pub(crate) fn completions(out: &Output, args: &CompletionsArgs) -> Outcome {
    let script = match args.shell {
        Shell::Bash => format!("{}\n{BASH}", generated(shells::Bash)?),
        Shell::Fish => format!("{}\n{FISH}", generated(shells::Fish)?),
        Shell::Zsh => zsh(&generated(shells::Zsh)?),
    };
    out.text(script.trim_end())?;
    Ok(Exit::DONE)
}

fn generated(shell: impl Generator) -> Result<String, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(), "forkpoint", &mut script);
    String::from_utf8(script).map_err(|err| io::Error::other(err).into())
}

/// Without what nobody is meant to type.
fn visible() -> Command {
    let all = Cli::command();
    let hidden: Vec<String> = all
        .get_subcommands()
        .filter(|verb| verb.is_hide_set())
        .map(|verb| verb.get_name().to_owned())
        .collect();
    let kept = all.get_subcommands().filter(|verb| !hidden.contains(&verb.get_name().to_owned()));
    let kept: Vec<Command> = kept.cloned().collect();
    // There is no way to take one out: so all of them again, on the same options.
    let mut bare = Command::new("forkpoint").version(env!("CARGO_PKG_VERSION"));
    for argument in all.get_arguments() {
        bare = bare.arg(argument.clone());
    }
    let about = all.get_about().cloned().unwrap_or_default();
    let after = all.get_after_help().cloned().unwrap_or_default();
    bare.about(about).after_help(after).subcommands(kept)
}

const ABOUT_NAMES: [&str; 12] = [
    ":sandbox -- ",
    ":sandboxes -- ",
    ":snapshot -- ",
    ":snapshots -- ",
    ":source -- ",
    ":from -- ",
    ":to -- ",
    ":place -- ",
    ":places -- ",
    ":templates -- ",
    ":SANDBOX:",
    ":TEMPLATE:",
];

/// Where the script would offer files for a sandbox or a snapshot, it asks for names.
fn zsh(script: &str) -> String {
    let names = |line: &str| match ABOUT_NAMES.iter().any(|place| line.contains(place)) {
        true => line.replace(":_default' \\", ":_forkpoint_names' \\"),
        false => line.to_owned(),
    };
    let lines: Vec<String> = script.lines().map(names).collect();
    let script = lines.join("\n");
    match script.split_once("\n\n") {
        Some((head, rest)) => format!("{head}\n\n{ZSH}\n{rest}"),
        None => format!("{script}\n{ZSH}"),
    }
}

pub(crate) fn man(out: &Output, args: &ManArgs) -> Outcome {
    match &args.directory {
        Some(directory) => pages(out, directory)?,
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(visible()).render(&mut page)?;
            out.text(String::from_utf8_lossy(&page).trim_end())?;
        }
    }
    Ok(Exit::DONE)
}

fn pages(out: &Output, directory: &Path) -> Result<(), Failure> {
    let written = std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(visible(), directory));
    written.map_err(|err| {
        let message = format!("failed to write manual pages to `{}`", directory.display());
        Failure::from(Error::invalid(message).with_source(err))
    })?;
    out.note(format!("manual pages are in `{}`", directory.display()));
    Ok(())
}
