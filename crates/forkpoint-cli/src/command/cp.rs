//! `cp`: files out of a sandbox or a snapshot, or into a sandbox.

use std::{
    io::{self, IsTerminal as _},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use forkpoint_backends::image::Progress;
use forkpoint_core::{Error, engine::Subject};
use serde::Serialize;

use super::{Exit, Outcome, cat};
use crate::{
    app::App,
    args::{
        CpArgs,
        place::{Place, Side},
    },
    fail::{About, Failure, INTERRUPTED},
    output::{
        human::{clean, size},
        pager::enough,
        quote::quote,
    },
};

mod here;
mod into;
mod out;

/// What was copied.
#[derive(Debug, Default, Serialize)]
struct Copied {
    files: u64,
    directories: u64,
    links: u64,
    bytes: u64,
    /// What is neither file, directory nor link.
    skipped: Vec<String>,
}

pub(super) async fn cp(app: &App, args: &CpArgs) -> Outcome {
    let side = |text| Side::new(text).map_err(Error::invalid);
    let progress = Progress::default();
    let copied = match (side(&args.from)?, side(&args.to)?) {
        (Side::There(from), Side::Stream) => return print(app, &from).await,
        (Side::There(from), Side::Here(to)) => {
            let copy = out::copy(app, &from, &to, args.recursive, &progress);
            app.copy_until_interrupted("copying", &progress, copy).await?
        }
        (from @ (Side::Here(_) | Side::Stream), Side::There(to)) => {
            check_target(app, &to).await?;
            let copy = into::copy(app, &from, &to, args.recursive, &progress);
            app.copy_until_interrupted("copying", &progress, copy).await?
        }
        (Side::There(_), Side::There(_)) => {
            return Err(refused("one side of a copy is a path on this machine"));
        }
        _ => return Err(refused("one side of a copy is REF:PATH, as in `web:/srv`")),
    };
    match copied {
        Some(copied) => tell(app, &copied?),
        None => Ok(Exit(INTERRUPTED)),
    }
}

fn refused(why: &str) -> Failure {
    Error::invalid(why).into()
}

async fn print(app: &App, from: &Place) -> Outcome {
    let (look, spot) = cat::open_file(app, from).await?;
    enough(cat::write(&look, &spot, &mut io::stdout()).await?)?;
    Ok(Exit::DONE)
}

async fn check_target(app: &App, to: &Place) -> Result<(), Failure> {
    let about = About::Source(to.reference.clone());
    match app.engine.subject(&to.reference).await.map_err(|err| Failure::new(err, about))? {
        Subject::Sandbox(_) => Ok(()),
        Subject::Snapshot(record) => Err(refused(&format!(
            "snapshot `{name}` never changes: `forkpoint restore {name}` makes a sandbox of it",
            name = record.name
        ))),
    }
}

fn tell(app: &App, copied: &Copied) -> Outcome {
    for path in &copied.skipped {
        app.out.warn(format!("left out {path}"));
    }
    if app.out.json {
        app.out.json(copied)?;
    } else if io::stderr().is_terminal() || app.out.verbose {
        let Copied { files, bytes, .. } = copied;
        app.out.note(clean(&format!("copied {files} files, {}", size(*bytes))));
    }
    Ok(Exit::DONE)
}

impl Copied {
    fn skipped(path: &Path, what: &str) -> Self {
        Self { skipped: vec![format!("{} ({what})", quote(path))], ..Self::default() }
    }

    fn add(&mut self, other: Self) {
        self.files += other.files;
        self.directories += other.directories;
        self.links += other.links;
        self.bytes += other.bytes;
        self.skipped.extend(other.skipped);
    }
}

/// Whether what is in a directory is meant, and not the directory: `dir/.`
fn means_content(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes == b"." || bytes.ends_with(b"/.") || bytes == b"/" || bytes == b".."
}
