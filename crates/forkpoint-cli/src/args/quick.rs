//! The verbs of every day, read without describing all the others.
//!
//! To describe every verb with its options and texts takes half a millisecond, and a snapshot takes three. So first
//! only the verb that seems to be meant is described. Whatever then is not a plain command, be it a mistake or a
//! question for help, is read again with all of them.

use std::ffi::OsString;

use clap::{Args as _, Command, FromArgMatches as _};

use super::{
    Cli, CreateArgs, ExecArgs, ForkArgs, GlobalArgs, ListArgs, PowerArgs, PsArgs, RestoreArgs,
    RmArgs, RollbackArgs, RunArgs, ShowArgs, SnapshotArgs,
};

type Describe = fn(Command) -> Command;

const VERBS: [(&str, Describe); 13] = [
    ("create", CreateArgs::augment_args),
    ("exec", ExecArgs::augment_args),
    ("fork", ForkArgs::augment_args),
    ("list", ListArgs::augment_args),
    ("ps", PsArgs::augment_args),
    ("restore", RestoreArgs::augment_args),
    ("rm", RmArgs::augment_args),
    ("rollback", RollbackArgs::augment_args),
    ("run", RunArgs::augment_args),
    ("show", ShowArgs::augment_args),
    ("snapshot", SnapshotArgs::augment_args),
    ("start", PowerArgs::augment_args),
    ("stop", PowerArgs::augment_args),
];

/// `None` unless it is a plain command with one of these verbs.
pub(super) fn read(line: &[OsString]) -> Option<Cli> {
    let mut meant = line.iter().skip(1).filter_map(|word| word.to_str());
    let (verb, describe) =
        meant.find_map(|word| VERBS.iter().find(|(verb, _)| *verb == word)).copied()?;
    let command = GlobalArgs::augment_args(Command::new("forkpoint"));
    let command = command.subcommand_required(true).subcommand(describe(Command::new(verb)));
    Cli::from_arg_matches(&command.try_get_matches_from(line).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    /// All that is typed all day.
    const PLAIN: [&str; 15] = [
        "create",
        "create --name a --memory 1G --env A=B --label x=y",
        "exec a -- ls -la",
        "exec -t a -- true",
        "--json exec a -- snapshot --full",
        "fork -n 4 a",
        "list --json",
        "ps -q",
        "restore a --name b",
        "rm --force a b",
        "rollback a",
        "run -- true",
        "show a",
        "snapshot --no-sync -q a",
        "stop a --verbose",
    ];

    /// Questions, mistakes, other verbs, and what only looks like one of these.
    const OTHERS: [&str; 8] = [
        "--data-dir exec create",
        "--data-dir exec stats",
        "fork",
        "ps --no-such",
        "snapshot --help",
        "--version exec",
        "stats",
        "snap a",
    ];

    fn words(line: &str) -> Vec<OsString> {
        std::iter::once("forkpoint").chain(line.split(' ')).map(OsString::from).collect()
    }

    #[test]
    fn says_what_the_whole_says() {
        for line in PLAIN.map(words) {
            let quick = read(&line).unwrap_or_else(|| panic!("{line:?} was not read"));
            let whole = Cli::try_parse_from(&line).expect("a plain command");
            assert_eq!(format!("{quick:?}"), format!("{whole:?}"));
        }
    }

    #[test]
    fn leaves_the_rest_to_the_whole() {
        for line in OTHERS.map(words) {
            assert!(read(&line).is_none(), "{line:?} was read");
        }
    }

    #[test]
    fn every_verb_is_one() {
        let all = <Cli as clap::CommandFactory>::command();
        for (verb, _) in VERBS {
            assert!(all.find_subcommand(verb).is_some(), "`{verb}` is no verb");
        }
    }
}
