//! `ls`: what is in a directory of a sandbox or a snapshot.

use std::{
    error::Error as _,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use forkpoint_core::{
    Error,
    driver::{FileFacts, FileKind},
    engine::Look,
    path::SandboxPath,
};
use serde::Serialize;

use super::{Exit, Outcome};
use crate::{
    app::App,
    args::LsArgs,
    fail::{About, Failure},
    output::{
        Output,
        file::{FactsJson, PathJson, mode_string},
        pager::enough,
        quote::quote,
    },
};

#[derive(Serialize)]
struct Listing<'a> {
    entries: Vec<EntryJson<'a>>,
}

#[derive(Serialize)]
struct EntryJson<'a> {
    path: PathJson<'a>,
    #[serde(flatten)]
    facts: FactsJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<PathJson<'a>>,
}

/// Something to be listed.
#[derive(Debug)]
struct Row {
    path: PathBuf,
    facts: FileFacts,
    target: Option<PathBuf>,
}

pub(super) async fn ls(app: &App, args: &LsArgs) -> Outcome {
    let about = || About::Source(args.place.reference.clone());
    let look = app.engine.look(&args.place.reference).await;
    let look = look.map_err(|err| Failure::new(err, about()))?;
    let spot = look.expect(&args.place.path).await?;
    let (top, pending) = (spot.path.clone(), Vec::new());
    let mut walk = Walk { look: &look, top, pending, recursive: args.recursive };
    if spot.facts.kind != FileKind::Directory {
        let row = walk.row(spot.path.as_path().to_owned(), spot.facts).await?;
        return print(app, args, &[row]);
    }
    walk.pending.push(spot.path);
    let (mut all, mut is_first) = (Vec::new(), true);
    while let Some((directory, rows)) = walk.next(app).await? {
        if app.out.json {
            all.extend(rows);
            continue;
        }
        let title = args.recursive.then_some(&directory);
        if let Err(err) = list(app, args, title, &rows, is_first) {
            enough(Err(err))?;
            return Ok(Exit::DONE);
        }
        is_first = false;
    }
    if app.out.json { print(app, args, &all) } else { Ok(Exit::DONE) }
}

struct Walk<'a> {
    look: &'a Look,
    top: SandboxPath,
    pending: Vec<SandboxPath>,
    recursive: bool,
}

impl Walk<'_> {
    /// The next directory and what is in it.
    async fn next(&mut self, app: &App) -> Result<Option<(SandboxPath, Vec<Row>)>, Error> {
        let (directory, entries) = loop {
            let Some(directory) = self.pending.pop() else { return Ok(None) };
            match self.look.entries(&directory).await {
                Err(err) if directory != self.top && is_gone(&err) => {}
                result => break (directory, result?),
            }
        };
        let mut rows = Vec::new();
        let mut below = Vec::new();
        for (name, facts) in entries {
            let path = directory.as_path().join(name);
            if self.recursive && facts.kind == FileKind::Directory {
                match SandboxPath::new(&path) {
                    Ok(path) => below.push(path),
                    Err(_) => app.out.warn(format!("a directory in `{directory}` lies too deep")),
                }
            }
            rows.push(self.row(path, facts).await?);
        }
        self.pending.extend(below.into_iter().rev());
        Ok(Some((directory, rows)))
    }

    async fn row(&self, path: PathBuf, facts: FileFacts) -> Result<Row, Error> {
        let target = match (facts.kind, SandboxPath::new(&path)) {
            // It may have gone since it was listed.
            (FileKind::Symlink, Ok(path)) => self.look.read_link(&path).await.ok(),
            _ => None,
        };
        Ok(Row { path, facts, target })
    }
}

/// Whether a directory went away, or became something else, since it was listed.
fn is_gone(err: &Error) -> bool {
    let gone = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    let mut cause = err.source();
    while let Some(err) = cause {
        if err.downcast_ref().is_some_and(|err: &io::Error| gone.contains(&err.kind())) {
            return true;
        }
        cause = err.source();
    }
    false
}

fn print(app: &App, args: &LsArgs, rows: &[Row]) -> Outcome {
    if !app.out.json {
        enough(list(app, args, None, rows, true))?;
        return Ok(Exit::DONE);
    }
    app.out.json(&Listing { entries: rows.iter().map(entry_json).collect() })?;
    Ok(Exit::DONE)
}

fn entry_json(row: &Row) -> EntryJson<'_> {
    EntryJson {
        path: PathJson(&row.path),
        facts: FactsJson::from(&row.facts),
        target: row.target.as_deref().map(PathJson),
    }
}

fn list(
    app: &App,
    args: &LsArgs,
    title: Option<&SandboxPath>,
    rows: &[Row],
    is_first: bool,
) -> io::Result<()> {
    let mut stdout = io::BufWriter::new(io::stdout());
    if let Some(title) = title {
        let gap = if is_first { "" } else { "\n" };
        writeln!(stdout, "{gap}{}:", quote(title.as_path()))?;
    }
    let lines = if args.long { long(&app.out, rows) } else { short(&app.out, rows) };
    for line in lines {
        writeln!(stdout, "{line}")?;
    }
    stdout.flush()
}

fn short(out: &Output, rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| row.name(out)).collect()
}

fn long(out: &Output, rows: &[Row]) -> Vec<String> {
    let owner = |row: &Row| format!("{}:{}", row.facts.uid, row.facts.gid);
    let size = |row: &Row| row.facts.len_bytes.to_string();
    let widest = |text: &dyn Fn(&Row) -> String| rows.iter().map(|row| text(row).len()).max();
    let (owners, sizes) = (widest(&owner).unwrap_or(0), widest(&size).unwrap_or(0));
    let line = |row: &Row| {
        let (mode, modified) = (mode_string(&row.facts), row.facts.modified);
        let time = modified.strftime("%Y-%m-%d %H:%M");
        let link = row.target.as_ref().map(|to| format!(" -> {}", quote(to))).unwrap_or_default();
        let name = row.name(out);
        format!("{mode} {:<owners$} {:>sizes$} {time} {name}{link}", owner(row), size(row))
    };
    rows.iter().map(line).collect()
}

impl Row {
    fn name(&self, out: &Output) -> String {
        let name = self.path.file_name().map_or(self.path.as_path(), Path::new);
        let name = quote(name);
        match self.facts.kind {
            FileKind::Directory => out.paint.bold(&name),
            FileKind::Symlink => out.paint.cyan(&name),
            FileKind::File if self.facts.mode & 0o111 != 0 => out.paint.green(&name),
            _ => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use forkpoint_core::ErrorKind;

    use super::*;

    #[test]
    fn only_what_went_away_is_passed_over() {
        let because = |kind: io::ErrorKind| {
            let err = Error::new(ErrorKind::Unavailable, "failed to open");
            err.with_source(io::Error::from(kind)).context("failed to list")
        };
        assert!(is_gone(&because(io::ErrorKind::NotFound)));
        assert!(is_gone(&because(io::ErrorKind::NotADirectory)));
        assert!(!is_gone(&because(io::ErrorKind::PermissionDenied)));
    }
}
