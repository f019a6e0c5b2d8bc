//! From a failure to what can be done about it, as one line.
//!
//! A hint follows from facts, asked for anew, and not from the words of a message.

use std::{error::Error as StdError, ffi::OsString, io, path::Path};

use clap::error::{ContextKind, ErrorKind as UsageError};
use forkpoint_core::{
    Engine, Error, ErrorKind,
    catalog::{SandboxQuery, SnapshotQuery},
    driver::SandboxState,
    engine::SandboxView,
};

use crate::{
    app::App,
    fail::{About, Failure},
};

/// With less room than this, a disk is full for whoever wants to keep something on it.
const LITTLE_BYTES: u64 = 1 << 20;

/// Among how many names the nearest is looked for.
const LOOK_AT: usize = 1000;

pub(crate) async fn hint(failure: &Failure, app: Option<&App>) -> Option<String> {
    let (about, engine) = (&failure.about, app.map(|app| &app.engine));
    if failure.error.busy_with().is_some() {
        return Some("wait for the other operation with `--wait 10s`".to_owned());
    }
    if let Some(hint) = no_room(&failure.error, app) {
        return Some(hint);
    }
    match (failure.error.kind(), engine) {
        (kind, _) if matches!(about, About::Config) => about_config(kind),
        (kind, _) if matches!(about, About::DataDir) => about_data(kind),
        (ErrorKind::Corrupt, _) if matches!(about, About::Image) => {
            Some("nothing of it was kept: get the image again".to_owned())
        }
        (ErrorKind::Corrupt, _) => about_data(ErrorKind::Corrupt),
        (ErrorKind::Unsupported, _) => unsupported(about),
        (ErrorKind::Invalid, _) => invalid(about),
        (ErrorKind::NotFound, Some(engine)) => missing(engine, about).await,
        (ErrorKind::Conflict, Some(engine)) => in_the_way(engine, about).await,
        (ErrorKind::Unavailable, Some(engine)) => unavailable(engine, about).await,
        (ErrorKind::Unavailable, None) if matches!(about, About::New { .. }) => unsupported(about),
        _ => None,
    }
}

/// A disk that is full keeps `prune` and `delete` from beginning too.
pub(crate) fn no_room(error: &Error, app: Option<&App>) -> Option<String> {
    if error.kind() != ErrorKind::Unavailable {
        return None;
    }
    let is_full = |data: &&Path| left_bytes(data).is_some_and(|left| left < LITTLE_BYTES);
    if let Some(data) = app.map(|app| app.data.as_path()).filter(is_full) {
        return Some(format!(
            "the disk of `{}` is full: free some room there; then `forkpoint prune` and `forkpoint delete` give back more",
            data.display()
        ));
    }
    says_no_room(error).then(|| {
        "no room is left where this was to be written: free some, or give it less".to_owned()
    })
}

/// What is left for others than root, as it is for a data directory of anybody.
fn left_bytes(place: &Path) -> Option<u64> {
    let room = rustix::fs::statvfs(place).ok()?;
    Some(room.f_bavail.saturating_mul(room.f_frsize))
}

fn says_no_room(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) {
            return true;
        }
        next = error.source();
    }
    false
}

/// `exec web ls` is what people try first.
pub(crate) fn about_usage(
    err: &clap::Error,
    mut typed: impl Iterator<Item = OsString>,
) -> Option<&'static str> {
    let found = err.get(ContextKind::InvalidArg)?.to_string();
    let is_command = err.kind() == UsageError::UnknownArgument && !found.starts_with('-');
    match is_command && typed.any(|word| word == "run" || word == "exec") {
        true => Some("a command stands behind `--`, as in `forkpoint exec web -- ls -l`"),
        false => None,
    }
}

fn about_data(kind: ErrorKind) -> Option<String> {
    match kind {
        ErrorKind::Corrupt => {
            Some("copy the data directory before anything else is done to it".to_owned())
        }
        ErrorKind::Unsupported => Some("a newer forkpoint can read it".to_owned()),
        _ => Some("choose another place with `--data-dir DIR`".to_owned()),
    }
}

fn about_config(kind: ErrorKind) -> Option<String> {
    match kind {
        ErrorKind::Denied => Some(
            "`--config none` works without it; `forkpoint config --help` tells what is trusted"
                .to_owned(),
        ),
        _ => Some("`--config none` works without it".to_owned()),
    }
}

async fn missing(engine: &Engine, about: &About) -> Option<String> {
    match about {
        About::Sandbox(sandbox) | About::Full(sandbox) | About::Watch(sandbox) => {
            missing_sandbox(engine, sandbox).await
        }
        About::Rollback(sandbox, to) => match engine.sandbox(sandbox).await {
            Err(_) => missing_sandbox(engine, sandbox).await,
            Ok(_) => match to {
                Some(to) => missing_snapshot(engine, to).await,
                None => Some(format!("`forkpoint snapshot {sandbox}` takes one")),
            },
        },
        About::Snapshot(snapshot) => missing_snapshot(engine, snapshot).await,
        About::Source(source) if source.contains('@') => missing_snapshot(engine, source).await,
        About::Source(source) => {
            let mut known = sandbox_names(engine).await;
            known.extend(snapshot_names(engine).await);
            Some(nearest_or(
                source,
                known,
                "`forkpoint ps` and `forkpoint list` tell what there is",
            ))
        }
        About::New { template: Some(_), .. } => Some(TEMPLATES.to_owned()),
        About::Image => Some(SOURCES.to_owned()),
        About::Template => Some("`forkpoint template ls` lists the templates".to_owned()),
        About::Command => {
            Some("commands are looked for inside the sandbox, along its PATH".to_owned())
        }
        _ => None,
    }
}

const TEMPLATES: &str = "a template is `host`, this machine's own system, `dir:/PATH`, or what `forkpoint template ls` lists; `forkpoint template add NAME SOURCE` makes one of an image";

const SOURCES: &str =
    "an image is `oci:PATH`, `archive:FILE`, `docker-daemon:IMAGE`, `registry:IMAGE`, or a path";

async fn missing_sandbox(engine: &Engine, sandbox: &str) -> Option<String> {
    match engine.sandbox(sandbox).await {
        Ok(SandboxView { status: Ok(None), .. }) => {
            return Some(format!(
                "its platform lost it: `forkpoint rollback {sandbox}` makes it again from its newest snapshot, `forkpoint rm {sandbox}` forgets it"
            ));
        }
        // Something else is missing.
        Ok(_) => return None,
        Err(_) => {}
    }
    if let Some((driver, _)) = sandbox.split_once(':').filter(|(driver, _)| *driver == "docker") {
        return Some(format!(
            "`{driver} ps -a` lists the engine's containers, `forkpoint ps` those that are known here"
        ));
    }
    let known = sandbox_names(engine).await;
    if known.is_empty() {
        return Some("there is none yet: `forkpoint create --name NAME` makes one".to_owned());
    }
    Some(nearest_or(sandbox, known, "`forkpoint ps` lists the sandboxes"))
}

async fn missing_snapshot(engine: &Engine, snapshot: &str) -> Option<String> {
    if let Some((sandbox, _)) = snapshot.rsplit_once('@') {
        return match engine.sandbox(sandbox).await {
            Ok(_) => Some(format!("`forkpoint list --sandbox {sandbox}` lists its snapshots")),
            Err(_) => missing_sandbox(engine, sandbox).await,
        };
    }
    let known = snapshot_names(engine).await;
    if known.is_empty() {
        return Some("there is none yet: `forkpoint snapshot SANDBOX` takes one".to_owned());
    }
    Some(nearest_or(snapshot, known, "`forkpoint list` lists the snapshots"))
}

async fn sandbox_names(engine: &Engine) -> Vec<String> {
    let query = SandboxQuery { limit: Some(LOOK_AT), ..SandboxQuery::default() };
    let found = engine.sandboxes(&query).await.map(|page| page.items).unwrap_or_default();
    found.iter().map(|view| crate::output::record::shown(&view.record)).collect()
}

async fn snapshot_names(engine: &Engine) -> Vec<String> {
    let query = SnapshotQuery { limit: Some(LOOK_AT), ..SnapshotQuery::default() };
    let found = engine.list(&query).await.map(|page| page.items).unwrap_or_default();
    found.into_iter().map(|snapshot| snapshot.name.to_string()).collect()
}

async fn in_the_way(engine: &Engine, about: &About) -> Option<String> {
    match about {
        About::New { name: Some(name), .. } => {
            Some(format!("choose another name, or remove what is called `{name}`"))
        }
        About::Apply(source) => Some(format!(
            "`forkpoint apply {source} -- PATH…` applies others, `forkpoint apply {source} --force` overwrites these"
        )),
        About::Image | About::Promote(_) => {
            Some("choose another name, or `forkpoint template rm` the one that is there".to_owned())
        }
        About::Template => Some(
            "remove what uses it first: `forkpoint rm SANDBOX`, `forkpoint delete SNAPSHOT`"
                .to_owned(),
        ),
        _ => about_state(engine, about).await,
    }
}

async fn unavailable(engine: &Engine, about: &About) -> Option<String> {
    match about_state(engine, about).await {
        None if matches!(about, About::New { .. } | About::Sandbox(_)) => unsupported(about),
        hint => hint,
    }
}

async fn about_state(engine: &Engine, about: &About) -> Option<String> {
    let (About::Sandbox(sandbox) | About::Full(sandbox) | About::Rollback(sandbox, _)) = about
    else {
        return None;
    };
    let status = engine.sandbox(sandbox).await.ok()?.status.ok()??;
    match status.state {
        SandboxState::Stopped => Some(format!("`forkpoint start {sandbox}` starts it")),
        SandboxState::Paused => Some(format!("`forkpoint resume {sandbox}` lets it go on")),
        SandboxState::Running => None,
    }
}

fn unsupported(about: &About) -> Option<String> {
    match about {
        About::Image => Some("get the image for this machine's architecture".to_owned()),
        About::Watch(_) => Some(
            "`--every 5m` takes snapshots by the clock, whatever the driver can tell".to_owned(),
        ),
        About::Full(_) => {
            Some("without `--full` a snapshot keeps the files, and `forkpoint doctor` tells what this machine can do".to_owned())
        }
        _ => Some("`forkpoint doctor` tells what this machine can do".to_owned()),
    }
}

fn invalid(about: &About) -> Option<String> {
    match about {
        About::Edit => Some("say one of the options that `forkpoint edit --help` lists".to_owned()),
        About::Limits => Some(
            "give one, such as `--max-age-days 14`, or write it into `[retention]` of the configuration"
                .to_owned(),
        ),
        About::New { template: Some(template), .. } if template != "host" => {
            Some(TEMPLATES.to_owned())
        }
        About::Apply(_) => {
            Some("`forkpoint create --workspace DIR` makes a sandbox that has one".to_owned())
        }
        About::Image => Some(SOURCES.to_owned()),
        About::Promote(Some(live)) => Some(format!(
            "`forkpoint create --workspace {live} --workspace-mode copy` makes a sandbox whose snapshots hold the files too, and can become templates"
        )),
        _ => None,
    }
}

fn nearest_or(given: &str, known: Vec<String>, otherwise: &str) -> String {
    match nearest(given, known) {
        Some(near) => format!("did you mean `{near}`? {otherwise}"),
        None => otherwise.to_owned(),
    }
}

/// The known name that is a few slips of the finger away.
pub(crate) fn nearest(given: &str, known: Vec<String>) -> Option<String> {
    // Names are not longer; what is would only cost time.
    let given: &str = given.get(..128).unwrap_or(given);
    let most = given.chars().count().min(9).div_ceil(3);
    let near = known.into_iter().map(|name| (distance(given, &name), name));
    near.filter(|(distance, _)| *distance <= most).min().map(|(_, name)| name)
}

/// How many letters have to be put in, taken out, changed, or swapped with their neighbour.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut table = vec![vec![0; to.len() + 1]; from.len() + 1];
    for i in 0..=from.len() {
        for j in 0..=to.len() {
            if i == 0 || j == 0 {
                table[i][j] = i + j;
                continue;
            }
            let change = table[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut least = change.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                least = least.min(table[i - 2][j - 2] + 1);
            }
            table[i][j] = least;
        }
    }
    table[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_slip_and_nothing_far() {
        let known = || vec!["web".to_owned(), "database".to_owned(), "try-1".to_owned()];
        assert_eq!(nearest("wbe", known()).as_deref(), Some("web"));
        assert_eq!(nearest("wev", known()).as_deref(), Some("web"));
        assert_eq!(nearest("databas", known()).as_deref(), Some("database"));
        assert_eq!(nearest("nothing-like-it", known()), None);
        assert_eq!(nearest("", known()), None);
    }

    #[test]
    fn distances() {
        for (a, b, expected) in [("", "abc", 3), ("kitten", "sitting", 3), ("web", "web", 0)] {
            assert_eq!(distance(a, b), expected);
        }
    }
}
