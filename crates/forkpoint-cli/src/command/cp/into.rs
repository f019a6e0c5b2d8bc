//! From this machine into a sandbox that runs.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use forkpoint_backends::image::Progress;
use forkpoint_core::{
    Error,
    driver::{FileKind, NewEntry, Sandbox, WriteMode},
    engine::Look,
    error::Context as _,
    part::ByteStream,
    path::SandboxPath,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use rustix::fs::{Dir, FileType, readlinkat};

use super::{
    Copied,
    here::{Here, failed},
    means_content,
};
use crate::{
    app::App,
    args::place::{Place, Side},
    fail::{About, Failure},
};

const CHUNK: usize = 256 << 10;

/// Files that are on their way at the same time.
const AT_ONCE: usize = 8;

const SPECIAL: &str = "neither file, directory nor link";

/// What a new file has without being asked.
const USUAL_MODE: u32 = 0o644;

pub(super) async fn copy(
    app: &App,
    from: &Side,
    to: &Place,
    recursive: bool,
    progress: &Progress,
) -> Result<Copied, Failure> {
    let about = || About::Sandbox(to.reference.clone());
    let failed = |err| Failure::new(err, about());
    let look = app.engine.look(&to.reference).await.map_err(failed)?;
    let sandbox = app.engine.attach(&to.reference).await.map_err(failed)?;
    let copier = Copier { look, sandbox, progress: progress.clone() };
    let copied = match from {
        Side::Here(path) => copier.copy(path, &to.path, recursive).await,
        _ => copier.feed(&to.path).await,
    };
    copied.map_err(failed)
}

struct Copier {
    look: Look,
    sandbox: Arc<dyn Sandbox>,
    progress: Progress,
}

impl Copier {
    async fn copy(&self, from: &Path, to: &Path, recursive: bool) -> Result<Copied, Error> {
        let meta = match recursive {
            true => from.symlink_metadata(),
            false => from.metadata(),
        };
        let meta = meta.map_err(failed("open", from))?;
        if meta.is_dir() && !recursive {
            let path = from.display();
            return Err(Error::invalid(format!("`{path}` is a directory: give `-r`")));
        }
        if meta.is_file() {
            // How much is in a directory is known when all of it was seen.
            self.progress.expect(meta.len());
        }
        let content = meta.is_dir() && means_content(from);
        let to = self.target(from, to, meta.is_dir(), content).await?;
        if meta.is_dir() {
            self.make(&to, meta.mode()).await?;
            return self.fill(Here::open(from)?, to).await;
        }
        if meta.is_file() && !recursive {
            // Links to it were followed: they are whoever's who typed the name.
            let file = File::open(from).map_err(failed("open", from))?;
            return self.write(file, from, &to).await;
        }
        let name = from.file_name().unwrap_or_default();
        let parent = Here::open(from.parent().unwrap_or(Path::new(".")))?;
        self.put(&parent, name, &to).await
    }

    /// Where in the sandbox, as `cp` has it: into a directory that is there, else under that name.
    async fn target(
        &self,
        from: &Path,
        to: &Path,
        is_directory: bool,
        content: bool,
    ) -> Result<SandboxPath, Error> {
        let wants_directory = to.as_os_str().as_bytes().ends_with(b"/");
        match self.look.follow(to).await? {
            Some(spot) if spot.facts.kind == FileKind::Directory => match from.file_name() {
                Some(name) if !content => SandboxPath::new(spot.path.as_path().join(name)),
                _ => Ok(spot.path),
            },
            Some(spot) if !is_directory && !wants_directory => Ok(spot.path),
            None if is_directory || !wants_directory => self.new_name(to).await,
            None => Err(self.no_directory(to)),
            Some(_) => Err(Error::invalid(format!("`{}` is not a directory", to.display()))),
        }
    }

    /// A name that is not there yet, in a directory that may be.
    async fn new_name(&self, to: &Path) -> Result<SandboxPath, Error> {
        let (Some(name), Some(parent)) = (to.file_name(), to.parent()) else {
            return Err(self.no_directory(to));
        };
        match self.look.follow(parent).await? {
            Some(spot) if spot.facts.kind == FileKind::Directory => {
                SandboxPath::new(spot.path.as_path().join(name))
            }
            _ => Err(self.no_directory(parent)),
        }
    }

    fn no_directory(&self, path: &Path) -> Error {
        let path = path.display();
        Error::not_found(format!("there is no directory `{path}` in {}", self.look.title()))
    }

    async fn fill(&self, from: Here, to: SandboxPath) -> Result<Copied, Error> {
        let mut copied = Copied::default();
        let mut pending = vec![(from, to)];
        while let Some((here, to)) = pending.pop() {
            copied.directories += 1;
            let mut others = Vec::new();
            for name in names(&here)? {
                let path = SandboxPath::new(to.as_path().join(&name))?;
                if here.kind(&name)? == Some(FileType::Directory) {
                    let below = here.enter(&name)?;
                    self.make(&path, below.mode()?).await?;
                    pending.push((below, path));
                } else {
                    others.push((name, path));
                }
            }
            let puts = others.iter().map(|(name, path)| self.put(&here, name, path));
            let mut puts = stream::iter(puts).buffer_unordered(AT_ONCE);
            while let Some(put) = puts.try_next().await? {
                copied.add(put);
            }
        }
        Ok(copied)
    }

    async fn put(&self, here: &Here, name: &OsStr, to: &SandboxPath) -> Result<Copied, Error> {
        match here.kind(name)? {
            Some(FileType::RegularFile) => {
                let (file, path) = (here.read(name)?, here.path_of(name));
                self.write(file, &path, to).await
            }
            Some(FileType::Symlink) => {
                let target = readlinkat(&here.fd, name, Vec::new());
                let target = target.map_err(failed("read", &here.path_of(name)))?;
                let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
                self.sandbox_make(to, &NewEntry::Symlink { target }).await?;
                Ok(Copied { links: 1, ..Copied::default() })
            }
            Some(_) => Ok(Copied::skipped(&here.path_of(name), SPECIAL)),
            // It went away meanwhile.
            None => Ok(Copied::default()),
        }
    }

    async fn make(&self, to: &SandboxPath, mode: u32) -> Result<(), Error> {
        self.sandbox_make(to, &NewEntry::Directory { mode: mode & 0o7777 }).await
    }

    async fn sandbox_make(&self, to: &SandboxPath, entry: &NewEntry) -> Result<(), Error> {
        let made = self.sandbox.make(to, entry).await;
        made.context(|| format!("failed to make `{to}` in {}", self.look.title()))
    }

    async fn write(&self, file: File, from: &Path, to: &SandboxPath) -> Result<Copied, Error> {
        let meta = file.metadata().map_err(failed("look at", from))?;
        if !meta.is_file() {
            return Ok(Copied::skipped(from, SPECIAL));
        }
        let there = self.look.find(to.as_path()).await?;
        let (to, is_new) = match there.map(|spot| spot.facts.kind) {
            None => (to.clone(), true),
            Some(FileKind::Symlink) => (self.look.expect(to.as_path()).await?.path, false),
            Some(_) => (to.clone(), false),
        };
        self.send(&to, stream_of(file)).await?;
        let mode = meta.mode() & 0o7777;
        if mode != USUAL_MODE || !is_new {
            self.sandbox_make(&to, &NewEntry::Mode(mode)).await?;
        }
        Ok(Copied { files: 1, bytes: meta.len(), ..Copied::default() })
    }

    async fn send(&self, to: &SandboxPath, bytes: ByteStream) -> Result<(), Error> {
        let progress = self.progress.clone();
        let bytes = bytes.inspect_ok(move |chunk| progress.pass(chunk.len() as u64)).boxed();
        let written = self.sandbox.write(to, bytes, WriteMode::Replace).await;
        written.context(|| format!("failed to write `{to}` in {}", self.look.title()))
    }

    /// Standard input.
    async fn feed(&self, to: &Path) -> Result<Copied, Error> {
        let to = match self.look.follow(to).await? {
            Some(spot) if spot.facts.kind == FileKind::Directory => {
                let path = to.display();
                return Err(Error::invalid(format!("`{path}` is a directory: give a file's name")));
            }
            Some(spot) => spot.path,
            None => self.new_name(to).await?,
        };
        self.send(&to, standard_input()).await?;
        Ok(Copied { files: 1, bytes: self.progress.passed_bytes(), ..Copied::default() })
    }
}

fn names(here: &Here) -> Result<Vec<OsString>, Error> {
    let listed = || -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&here.fd)? {
            let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    };
    listed().map_err(failed("list", &here.path))
}

fn stream_of(file: File) -> ByteStream {
    let read = |mut file: File| async move {
        let mut buffer = vec![0; CHUNK];
        let len = file.read(&mut buffer)?;
        buffer.truncate(len);
        Ok::<_, io::Error>((len > 0).then(|| (Bytes::from(buffer), file)))
    };
    stream::try_unfold(file, read).boxed()
}

fn standard_input() -> ByteStream {
    use tokio::io::AsyncReadExt as _;
    let read = |mut stdin: tokio::io::Stdin| async move {
        let mut buffer = vec![0; CHUNK];
        let len = stdin.read(&mut buffer).await?;
        buffer.truncate(len);
        Ok::<_, io::Error>((len > 0).then(|| (Bytes::from(buffer), stdin)))
    };
    stream::try_unfold(tokio::io::stdin(), read).boxed()
}
