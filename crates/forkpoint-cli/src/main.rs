//! The one binary, `forkpoint`.

#![forbid(unsafe_code)]

use clap::{CommandFactory as _, Parser};

/// Saves, rewinds and forks the sandboxes that AI agents work in
#[derive(Debug, Parser)]
#[command(name = "forkpoint", version, after_help = AFTER_HELP)]
struct Cli {}

const AFTER_HELP: &str = "\
This version holds the engine, its catalog and the harness that tests them.
The commands (run, snapshot, rollback, fork, …) come with the embedded runtime.";

fn main() {
    let Cli {} = Cli::parse();
    // Nothing was asked for: the usage, and the exit code of a usage error.
    eprint!("{}", Cli::command().render_help());
    std::process::exit(2);
}
