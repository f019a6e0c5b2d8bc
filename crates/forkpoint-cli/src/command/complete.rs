//! `__complete`: the names that fit what is being typed. For shells: fast, and silent when anything is
//! amiss. It reads the catalog and changes nothing, not even what others left half-done.

use std::{ffi::OsString, path::Path, time::Duration};

use clap::{Arg, ArgAction, Command, CommandFactory as _};
use forkpoint_backends::{
    catalog::SqliteReader,
    driver::{docker::container_names, local::template_names},
};
use forkpoint_core::catalog::{CatalogResult, SandboxQuery, SnapshotQuery};

use super::Exit;
use crate::{
    args::{Cli, CompleteArgs, GlobalArgs},
    config::Config,
    output::{Output, record::shown},
    wire,
};

/// In front of the name of a container.
const CONTAINER: &str = "docker:";

/// How long somebody who pressed a key waits for an engine.
const PATIENCE: Duration = Duration::from_secs(1);

/// Among how many names those that fit are looked for.
const LOOK_AT: usize = 1000;

/// What may stand in a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wanted {
    sandboxes: bool,
    snapshots: bool,
    templates: bool,
    /// The template that is always there, and cannot be removed.
    host: bool,
}

impl Wanted {
    const NOTHING: Self =
        Self { sandboxes: false, snapshots: false, templates: false, host: false };
    const SANDBOXES: Self = Self { sandboxes: true, ..Self::NOTHING };
    const SNAPSHOTS: Self = Self { snapshots: true, ..Self::NOTHING };
    const BOTH: Self = Self { sandboxes: true, ..Self::SNAPSHOTS };
    const TEMPLATES: Self = Self { templates: true, ..Self::NOTHING };

    /// By the name of the argument, so that a new verb need not be told of here.
    fn of(argument: &Arg) -> Self {
        match argument.get_id().as_str() {
            "sandbox" | "sandboxes" => Self::SANDBOXES,
            "snapshot" | "snapshots" => Self::SNAPSHOTS,
            "source" | "from" | "to" | "place" | "places" => Self::BOTH,
            "template" => Self { host: true, ..Self::TEMPLATES },
            "templates" => Self::TEMPLATES,
            _ => Self::NOTHING,
        }
    }
}

pub(crate) async fn complete(out: &Output, args: &CompleteArgs, global: &GlobalArgs) -> Exit {
    let words: Option<Vec<&str>> = args.words.iter().map(|word| word.to_str()).collect();
    let Some((typed, before)) = words.as_deref().and_then(<[&str]>::split_last) else {
        return Exit::DONE;
    };
    let wanted = wanted(&Cli::command(), before);
    if wanted == Wanted::NOTHING {
        return Exit::DONE;
    }
    let global = GlobalArgs { ..with_places(global, before) };
    let Ok(config) = Config::load(&global) else { return Exit::DONE };
    let Ok(data) = wire::data_dir(&global, &config) else { return Exit::DONE };
    let mut names = known(&data.join("catalog.db"), wanted).await.unwrap_or_default();
    if wanted.templates {
        names.extend(wanted.host.then(|| "host".to_owned()));
        names.extend(template_names(&data.join("local")).unwrap_or_default());
    }
    if wanted.sandboxes && is_container(typed) {
        names.extend(containers(&data).await.unwrap_or_default());
    }
    let names = fitting(names, typed);
    if !names.is_empty() {
        // A shell that has gone needs no names.
        let _ = out.text(&names.join("\n"));
    }
    Exit::DONE
}

/// Whether somebody is typing the name of a container. Only then the engine is asked.
fn is_container(typed: &str) -> bool {
    typed.starts_with(CONTAINER) || !typed.is_empty() && CONTAINER.starts_with(typed)
}

/// What the engine knows, if it says so at once.
async fn containers(data: &Path) -> Option<Vec<String>> {
    let config = wire::docker(data).ok()?;
    let names = tokio::time::timeout(PATIENCE, container_names(&config)).await.ok()?;
    Some(names.into_iter().map(|name| format!("{CONTAINER}{name}")).collect())
}

/// Where the data is may have been typed too.
fn with_places(global: &GlobalArgs, before: &[&str]) -> GlobalArgs {
    let value = |option: &str| {
        let at = before.iter().position(|word| *word == option);
        let apart = at.and_then(|at| before.get(at + 1)).copied();
        let together =
            || before.iter().find_map(|word| word.strip_prefix(option)?.strip_prefix('='));
        apart.or_else(together).map(|value| OsString::from(value).into())
    };
    GlobalArgs {
        data_dir: value("--data-dir").or_else(|| global.data_dir.clone()),
        config: value("--config").or_else(|| global.config.clone()),
        ..global.clone()
    }
}

/// What the next word could name.
fn wanted(cli: &Command, before: &[&str]) -> Wanted {
    let mut verb = cli;
    let (mut position, mut value_of) = (0, None);
    for word in before {
        if *word == "--" {
            return Wanted::NOTHING;
        }
        if value_of.take().is_some() {
            continue;
        }
        if word.starts_with('-') {
            value_of = option(cli, verb, word);
        } else if let Some(found) = verb.find_subcommand(word).filter(|_| position == 0) {
            verb = found;
        } else {
            position += 1;
        }
    }
    if let Some(option) = value_of {
        return Wanted::of(option);
    }
    if std::ptr::eq(verb, cli) {
        return Wanted::NOTHING;
    }
    let places: Vec<&Arg> = verb.get_positionals().collect();
    let last = places.last().filter(|last| matches!(last.get_action(), ArgAction::Append));
    let place = places.get(position).or(last);
    place.filter(|place| !place.is_last_set()).map_or(Wanted::NOTHING, |place| Wanted::of(place))
}

/// The option that takes the word behind this one.
fn option<'a>(cli: &'a Command, verb: &'a Command, word: &str) -> Option<&'a Arg> {
    let is_it = |argument: &&Arg| {
        let long = argument.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long));
        let short = |c: char| argument.get_short() == Some(c);
        let short = word.len() == 2 && word.chars().nth(1).is_some_and(short);
        (long || short) && argument.get_action().takes_values()
    };
    verb.get_arguments().chain(cli.get_arguments()).find(is_it)
}

/// What the catalog knows.
async fn known(catalog: &Path, wanted: Wanted) -> CatalogResult<Vec<String>> {
    let mut names = Vec::new();
    if !catalog.exists() || wanted.templates {
        return Ok(names);
    }
    let catalog = SqliteReader::new(catalog)?;
    if wanted.sandboxes {
        let query = SandboxQuery { limit: Some(LOOK_AT), ..SandboxQuery::default() };
        for record in catalog.sandboxes(&query).await?.items {
            names.extend([shown(&record), record.id.to_string()]);
        }
    }
    if wanted.snapshots {
        let query = SnapshotQuery { limit: Some(LOOK_AT), ..SnapshotQuery::default() };
        for record in catalog.snapshots(&query).await?.items {
            names.extend([record.name.to_string(), record.id.to_string()]);
        }
    }
    Ok(names)
}

fn fitting(mut names: Vec<String>, typed: &str) -> Vec<String> {
    let is_id = |name: &str| name.starts_with("sbx") || name.starts_with("snp");
    // Nobody wants to read ids who did not begin to type one.
    names.retain(|name| name.starts_with(typed) && (!is_id(name) || is_id(typed)));
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_follows_from_the_arguments_of_the_verb() {
        let cli = Cli::command();
        let (sandboxes, snapshots) = (Wanted::SANDBOXES, Wanted::SNAPSHOTS);
        let (both, templates) = (Wanted::BOTH, Wanted::TEMPLATES);
        for (typed, expected) in [
            ("", Wanted::NOTHING),
            ("exec", sandboxes),
            ("exec web", Wanted::NOTHING),
            ("exec -e A=1 --workdir /srv", sandboxes),
            ("exec web --", Wanted::NOTHING),
            ("--data-dir /srv snapshot", sandboxes),
            ("snapshot web --name", Wanted::NOTHING),
            ("rm one two three", sandboxes),
            ("restore", snapshots),
            ("rollback", sandboxes),
            ("rollback web", snapshots),
            ("rollback web one", Wanted::NOTHING),
            ("fork -n 3", both),
            ("list --sandbox", sandboxes),
            ("list", Wanted::NOTHING),
            ("delete one", snapshots),
            ("edit", snapshots),
            ("nosuch", Wanted::NOTHING),
            ("ls", both),
            ("cat web:/a", both),
            ("cp -r", both),
            ("cp a", both),
            ("diff one", both),
            ("diff one two --", Wanted::NOTHING),
            ("template rm one", templates),
            ("template add", Wanted::NOTHING),
            ("template add app", Wanted::NOTHING),
            ("template promote", snapshots),
            ("create --template", Wanted { host: true, ..templates }),
            ("config show", Wanted::NOTHING),
        ] {
            let words: Vec<&str> = typed.split_whitespace().collect();
            assert_eq!(wanted(&cli, &words), expected, "{typed}");
        }
    }
}
