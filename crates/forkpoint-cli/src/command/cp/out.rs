//! From a sandbox or a snapshot to this machine.
//!
//! What is copied was made by strangers: names are single ones, no link is followed on the way down,
//! and nothing comes out with the rights of whoever copies it.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use forkpoint_backends::image::Progress;
use forkpoint_core::{
    Error, ErrorKind,
    driver::{FileFacts, FileKind},
    engine::{Look, Spot},
    path::SandboxPath,
};
use futures::TryStreamExt as _;
use rustix::fs::FileType;

use super::{Copied, here::Here, means_content};
use crate::{
    app::App,
    args::place::Place,
    fail::{About, Failure},
    output::file::kind_name,
};

/// Of a mode, what comes out: set-user-id and the like mean something else here.
const MODE: u32 = 0o777;

pub(super) async fn copy(
    app: &App,
    from: &Place,
    to: &Path,
    recursive: bool,
    progress: &Progress,
) -> Result<Copied, Failure> {
    let about = || About::Source(from.reference.clone());
    let look = app.engine.look(&from.reference).await;
    let look = look.map_err(|err| Failure::new(err, about()))?;
    let found = match recursive {
        true => look.find(&from.path).await?,
        false => look.follow(&from.path).await?,
    };
    let spot = found.ok_or_else(|| look.missing(&from.path))?;
    if spot.facts.kind == FileKind::Directory && !recursive {
        let path = from.path.display();
        return Err(Error::invalid(format!("`{path}` is a directory: give `-r`")).into());
    }
    if spot.facts.kind == FileKind::File {
        // How much is in a directory is known when all of it was seen.
        progress.expect(spot.facts.len_bytes);
    }
    let copied = Copied::default();
    let mut copier = Copier { look: &look, progress, copied, closed: Vec::new() };
    copier.copy(&from.path, &spot, to).await?;
    for (directory, mode) in &copier.closed {
        directory.set_mode(*mode)?;
    }
    Ok(copier.copied)
}

struct Copier<'a> {
    look: &'a Look,
    progress: &'a Progress,
    copied: Copied,
    /// Directories that nobody may write into, once everything is in them.
    closed: Vec<(Here, u32)>,
}

impl Copier<'_> {
    async fn copy(&mut self, typed: &Path, spot: &Spot, to: &Path) -> Result<(), Error> {
        let is_directory = spot.facts.kind == FileKind::Directory;
        let (here, name) = match to.is_dir() {
            true if is_directory && means_content(typed) => {
                return self.fill(&spot.path, Here::open(to)?).await;
            }
            true => {
                let name = typed.file_name().or(spot.path.as_path().file_name());
                (Here::open(to)?, name.unwrap_or(OsStr::new("root")).to_owned())
            }
            false => target(to, is_directory)?,
        };
        if is_directory {
            let made = self.make(&here, &name, &spot.facts)?;
            return self.fill(&spot.path, made).await;
        }
        self.put(&spot.path, &spot.facts, &here, &name).await
    }

    fn make(&mut self, here: &Here, name: &OsStr, facts: &FileFacts) -> Result<Here, Error> {
        let (made, is_new) = here.make(name)?;
        self.copied.directories += 1;
        let mode = facts.mode & MODE;
        if is_new {
            made.set_mode(mode | 0o700)?;
        }
        if is_new && mode & 0o700 != 0o700 {
            self.closed.push((made.clone(), mode));
        }
        Ok(made)
    }

    /// Everything in a directory.
    async fn fill(&mut self, from: &SandboxPath, to: Here) -> Result<(), Error> {
        let mut pending = vec![(from.clone(), to)];
        while let Some((from, here)) = pending.pop() {
            for (name, facts) in self.look.entries(&from).await? {
                check(&name)?;
                let path = SandboxPath::new(from.as_path().join(&name))?;
                if facts.kind == FileKind::Directory {
                    let made = self.make(&here, &name, &facts)?;
                    pending.push((path, made));
                } else {
                    self.put(&path, &facts, &here, &name).await?;
                }
            }
        }
        Ok(())
    }

    async fn put(
        &mut self,
        from: &SandboxPath,
        facts: &FileFacts,
        here: &Here,
        name: &OsStr,
    ) -> Result<(), Error> {
        if matches!(facts.kind, FileKind::File | FileKind::Symlink)
            && here.kind(name)? == Some(FileType::Directory)
        {
            let path = here.path_of(name);
            let message = format!("`{}` is a directory, and stays one", path.display());
            return Err(Error::invalid(message));
        }
        match facts.kind {
            FileKind::Symlink => {
                here.link(name, &self.look.read_link(from).await?)?;
                self.copied.links += 1;
            }
            FileKind::File => {
                self.write(from, facts, here, name).await?;
                self.copied.files += 1;
            }
            kind => self.copied.add(Copied::skipped(from.as_path(), kind_name(kind))),
        }
        Ok(())
    }

    async fn write(
        &mut self,
        from: &SandboxPath,
        facts: &FileFacts,
        here: &Here,
        name: &OsStr,
    ) -> Result<(), Error> {
        let mut bytes = self.look.read(from).await?;
        let failed = |err| {
            let message = format!("failed to read `{from}` of {}", self.look.title());
            Error::new(ErrorKind::Unavailable, message).with_source(err)
        };
        let mut new = here.write(name)?;
        while let Some(chunk) = bytes.try_next().await.map_err(failed)? {
            new.write(&chunk)?;
            self.copied.bytes += chunk.len() as u64;
            self.progress.pass(chunk.len() as u64);
        }
        new.finish(name, facts.mode & MODE)
    }
}

/// A new name in a directory that is there.
fn target(to: &Path, is_directory: bool) -> Result<(Here, OsString), Error> {
    let name =
        to.file_name().filter(|_| is_directory || !to.as_os_str().as_bytes().ends_with(b"/"));
    let Some(name) = name else {
        return Err(Error::not_found(format!("there is no directory `{}`", to.display())));
    };
    Ok((Here::open(to.parent().unwrap_or(Path::new(".")))?, name.to_owned()))
}

/// One name, and none that leads anywhere else.
fn check(name: &OsStr) -> Result<(), Error> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
        return Err(Error::new(ErrorKind::Corrupt, format!("{name:?} is not the name of a file")));
    }
    Ok(())
}
