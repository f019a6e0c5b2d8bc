//! Files of a container, through the engine: it follows no link out of the container, and works on one
//! that is stopped as well.

use std::{
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use forkpoint_core::{
    driver::{
        Command, DriverError, DriverResult, Entry, EntryKind, ExitStatus, NewEntry, SandboxState,
        WriteMode,
    },
    id::SandboxId,
    part::ByteStream,
    path::SandboxPath,
};
use futures::{SinkExt as _, StreamExt as _, stream};
use serde_json::Value;

use super::{
    archive::Reader,
    container::Container,
    engine::{escape_into, failed, found},
    host::Host,
    http::{HttpResult, LONG, Request},
};
use crate::{driver::local::spool::Spool, tar};

/// The bits of a mode as the engine's language has them.
const IS_DIR: u64 = 1 << 31;
const IS_SYMLINK: u64 = 1 << 27;
const IS_ODD: u64 = 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19;

/// What an engine says of a path. Its last name is not followed.
#[derive(Clone, Debug)]
pub(super) struct Stat {
    bits: u64,
    /// Where a link leads in the end, from the root.
    target: PathBuf,
}

impl Stat {
    fn is_dir(&self) -> bool {
        self.bits & IS_DIR != 0
    }

    fn is_symlink(&self) -> bool {
        self.bits & IS_SYMLINK != 0
    }

    fn is_file(&self) -> bool {
        self.bits & (IS_DIR | IS_SYMLINK | IS_ODD) == 0
    }
}

fn archive_path(container: &str, path: &[u8]) -> String {
    let mut text = format!("/containers/{container}/archive?path=");
    escape_into(&mut text, path);
    text
}

fn no_file(operation: &'static str, path: &SandboxPath, kind: io::ErrorKind) -> DriverError {
    let path = path.as_path().to_owned();
    DriverError::Io { operation, path, source: kind.into() }
}

impl Host {
    pub(super) async fn stat(&self, container: &str, path: &[u8]) -> DriverResult<Option<Stat>> {
        let request = Request::new("HEAD", archive_path(container, path));
        let answer = match self.engine.send(request).await {
            // A file where a directory should be.
            Err(err) if matches!(err.status(), Some(400 | 500)) => return Ok(None),
            result => found(result).map_err(failed("look at a file"))?,
        };
        let Some(answer) = answer else { return Ok(None) };
        let told = answer.header("X-Docker-Container-Path-Stat").unwrap_or_default();
        let told = BASE64_STANDARD.decode(told).unwrap_or_default();
        let told: Value = serde_json::from_slice(&told).unwrap_or_default();
        Ok(Some(Stat {
            bits: told["mode"].as_u64().unwrap_or_default(),
            target: told["linkTarget"].as_str().unwrap_or_default().into(),
        }))
    }

    async fn get_archive(&self, container: &str, path: &Path) -> HttpResult<Option<Reader>> {
        let path = archive_path(container, path.as_os_str().as_bytes());
        let request = Request::new("GET", path).patience(Some(LONG));
        let answer = found(self.engine.send(request).await)?;
        Ok(answer.map(|answer| Reader::new(answer.body)))
    }

    /// All below a directory, as the engine sends it; `None` where there is nothing.
    pub(super) async fn archive_of(
        &self,
        container: &str,
        path: &Path,
    ) -> DriverResult<Option<ByteStream>> {
        let path = archive_path(container, path.as_os_str().as_bytes());
        let request = Request::new("GET", path).patience(Some(LONG));
        let answer = found(self.engine.send(request).await).map_err(failed("read a directory"))?;
        Ok(answer.map(|answer| answer.body.stream()))
    }

    /// Unpacks an archive below a directory.
    pub(super) async fn put_archive(
        &self,
        container: &str,
        path: &Path,
        archive: ByteStream,
    ) -> DriverResult<()> {
        let path = archive_path(container, path.as_os_str().as_bytes());
        let request = Request::new("PUT", path).stream(archive).patience(Some(LONG));
        self.engine.send(request).await.map(drop).map_err(failed("write files"))
    }

    /// What its header in an archive says.
    async fn header(&self, container: &str, path: &Path) -> DriverResult<Option<tar::Entry>> {
        let read = self.get_archive(container, path).await.map_err(failed("look at a file"))?;
        let Some(mut reader) = read else { return Ok(None) };
        reader.next().await.map_err(|source| io_at("look at", path, source))
    }

    /// Where a path leads in the end, and what is there.
    async fn follow(&self, container: &str, path: &Path) -> DriverResult<(PathBuf, Option<Stat>)> {
        let stat = self.stat(container, path.as_os_str().as_bytes()).await?;
        match stat {
            Some(link) if link.is_symlink() => {
                let there = self.stat(container, link.target.as_os_str().as_bytes()).await?;
                Ok((link.target, there))
            }
            stat => Ok((path.to_owned(), stat)),
        }
    }

    pub(super) async fn read(&self, id: SandboxId, path: &SandboxPath) -> DriverResult<ByteStream> {
        let container = self.container(id).await?;
        let (at, stat) = self.follow(container.id(), path.as_path()).await?;
        let missing = || DriverError::PathMissing { id, path: path.clone() };
        let stat = stat.ok_or_else(missing)?;
        if !stat.is_file() {
            let kind =
                if stat.is_dir() { io::ErrorKind::IsADirectory } else { io::ErrorKind::Other };
            return Err(no_file("read", path, kind));
        }
        let reader = self.get_archive(container.id(), &at).await.map_err(failed("read a file"))?;
        let mut reader = reader.ok_or_else(missing)?;
        let entry = reader.next().await.map_err(|err| io_at("read", path.as_path(), err))?;
        if entry.is_none_or(|entry| entry.kind != tar::EntryKind::File) {
            return Err(no_file("read", path, io::ErrorKind::Other));
        }
        Ok(contents(reader))
    }

    pub(super) async fn write(
        self: &Arc<Self>,
        id: SandboxId,
        path: &SandboxPath,
        bytes: ByteStream,
        mode: WriteMode,
    ) -> DriverResult<()> {
        let container = self.container(id).await?;
        let (at, stat) = self.follow(container.id(), path.as_path()).await?;
        match &stat {
            Some(_) if mode == WriteMode::Create => {
                return Err(no_file("create", path, io::ErrorKind::AlreadyExists));
            }
            Some(stat) if !stat.is_file() => {
                let kind =
                    if stat.is_dir() { io::ErrorKind::IsADirectory } else { io::ErrorKind::Other };
                return Err(no_file("write", path, kind));
            }
            _ => {}
        }
        let bytes = match (&stat, mode) {
            (Some(_), WriteMode::Append) => match self.append(id, &container, &at, bytes).await? {
                None => return Ok(()),
                Some(bytes) => self.after_what_is_there(&container, &at, bytes).await?,
            },
            _ => bytes,
        };
        let mut entry = match stat {
            Some(_) => self.header(container.id(), &at).await?,
            None => None,
        }
        .unwrap_or_else(|| tar::Entry::new(Vec::new(), tar::EntryKind::File));
        (entry.kind, entry.attributes) = (tar::EntryKind::File, Vec::new());
        let spool = Spool::take(&self.place("spool")?, bytes).await;
        let spool = spool.map_err(|err| io_at("write", path.as_path(), err))?;
        self.put(&container, &at, entry, Some(spool)).await
    }

    /// By a command in the container, which writes to the same file. What comes back was not written.
    async fn append(
        self: &Arc<Self>,
        id: SandboxId,
        container: &Container,
        at: &Path,
        bytes: ByteStream,
    ) -> DriverResult<Option<ByteStream>> {
        if container.state() != SandboxState::Running {
            return Ok(Some(bytes));
        }
        let mut command = Command::new(["/bin/sh", "-c", "exec cat >> \"$1\"", "sh"]);
        command.argv.push(at.as_os_str().to_owned());
        command.stdin = true;
        command.user = Some("0".to_owned());
        let mut process = match self.exec(id, &command).await {
            Ok(process) => process,
            Err(DriverError::CommandMissing { .. } | DriverError::CommandRefused { .. }) => {
                return Ok(Some(bytes));
            }
            Err(err) => return Err(err),
        };
        if let Some(mut stdin) = process.stdin.take() {
            let mut bytes = bytes;
            while let Some(chunk) = bytes.next().await {
                let chunk = chunk.map_err(|err| io_at("write", at, err))?;
                stdin.send(chunk).await.map_err(|err| io_at("write", at, err))?;
            }
        }
        match process.control.wait().await? {
            ExitStatus::Code(0) => Ok(None),
            status => {
                Err(io_at("write", at, io::Error::other(format!("`cat` ended with {status:?}"))))
            }
        }
    }

    async fn after_what_is_there(
        &self,
        container: &Container,
        at: &Path,
        bytes: ByteStream,
    ) -> DriverResult<ByteStream> {
        let reader = self.get_archive(container.id(), at).await.map_err(failed("read a file"))?;
        let Some(mut reader) = reader else { return Ok(bytes) };
        reader.next().await.map_err(|err| io_at("read", at, err))?;
        Ok(contents(reader).chain(bytes).boxed())
    }

    pub(super) async fn make(
        &self,
        id: SandboxId,
        path: &SandboxPath,
        entry: &NewEntry,
    ) -> DriverResult<()> {
        let container = self.container(id).await?;
        let at = path.as_path();
        let stat = self.stat(container.id(), at.as_os_str().as_bytes()).await?;
        match entry {
            NewEntry::Directory { mode } => {
                let there = match &stat {
                    Some(link) if link.is_symlink() => self.follow(container.id(), at).await?.1,
                    stat => stat.clone(),
                };
                match there {
                    Some(stat) if stat.is_dir() => return Ok(()),
                    _ if stat.is_some() => {
                        return Err(no_file("create", path, io::ErrorKind::AlreadyExists));
                    }
                    _ => {}
                }
                let entry = tar::Entry::new(Vec::new(), tar::EntryKind::Directory);
                let entry = tar::Entry { mode: *mode, ..entry };
                self.put(&container, at, entry, None).await
            }
            NewEntry::Symlink { target } => {
                if stat.is_some_and(|stat| stat.is_dir()) {
                    return Err(no_file("create", path, io::ErrorKind::IsADirectory));
                }
                let link = target.as_os_str().as_bytes().to_vec();
                let entry = tar::Entry::new(Vec::new(), tar::EntryKind::Symlink);
                let entry = tar::Entry { link, mode: 0o777, ..entry };
                self.put(&container, at, entry, None).await
            }
            NewEntry::Mode(mode) => {
                let Some(stat) = stat else {
                    return Err(DriverError::PathMissing { id, path: path.clone() });
                };
                if !stat.is_dir() && !stat.is_file() {
                    return Err(no_file("set the mode of", path, io::ErrorKind::InvalidInput));
                }
                self.set_mode(&container, path, *mode).await
            }
        }
    }

    /// An engine takes a mode only with all that it is the mode of.
    async fn set_mode(
        &self,
        container: &Container,
        path: &SandboxPath,
        mode: u32,
    ) -> DriverResult<()> {
        let at = path.as_path();
        let reader = self.get_archive(container.id(), at).await.map_err(failed("read a file"))?;
        let gone = || no_file("set the mode of", path, io::ErrorKind::NotFound);
        let mut reader = reader.ok_or_else(gone)?;
        let entry = reader.next().await.map_err(|err| io_at("read", at, err))?;
        let mut entry = entry.ok_or_else(gone)?;
        (entry.mode, entry.attributes) = (mode, Vec::new());
        let spool = match entry.kind == tar::EntryKind::File {
            true => {
                let taken = Spool::take(&self.place("spool")?, contents(reader)).await;
                Some(taken.map_err(|err| io_at("read", at, err))?)
            }
            false => None,
        };
        self.put(container, at, entry, spool).await
    }

    /// Puts one thing at a path, with the directories that lead there.
    async fn put(
        &self,
        container: &Container,
        at: &Path,
        mut entry: tar::Entry,
        content: Option<Spool>,
    ) -> DriverResult<()> {
        let (mut below, mut missing) = (at.parent().unwrap_or(Path::new("/")), Vec::new());
        loop {
            let (_, stat) = self.follow(container.id(), below).await?;
            match stat {
                Some(stat) if stat.is_dir() => break,
                Some(_) => {
                    return Err(io_at("create", at, io::ErrorKind::NotADirectory.into()));
                }
                None => missing.push(below.to_owned()),
            }
            match below.parent() {
                Some(parent) => below = parent,
                None => break,
            }
        }
        let relative =
            |path: &Path| path.strip_prefix(below).unwrap_or(path).as_os_str().as_bytes().to_vec();
        let mut head = Vec::new();
        for directory in missing.iter().rev() {
            let directory = tar::Entry::new(relative(directory), tar::EntryKind::Directory);
            head.extend(tar::write::header(&tar::Entry { mode: 0o755, ..directory }));
        }
        let len = content.as_ref().map_or(0, Spool::len);
        (entry.path, entry.len_bytes) = (relative(at), len);
        if let Some(now) = now().filter(|_| entry.modified == (0, 0) || content.is_some()) {
            entry.modified = now;
        }
        head.extend(tar::write::header(&entry));
        let mut tail = vec![0; tar::write::fill(len)];
        tail.extend_from_slice(&tar::write::END);
        let content = content.map_or_else(|| stream::empty().boxed(), Spool::into_stream);
        let body = once(head).chain(content).chain(once(tail)).boxed();
        let path = archive_path(container.id(), below.as_os_str().as_bytes());
        let request = Request::new("PUT", path).stream(body).patience(Some(LONG));
        self.engine.send(request).await.map(drop).map_err(failed("write a file"))
    }

    pub(super) async fn entries(
        &self,
        id: SandboxId,
        path: &SandboxPath,
        depth: u32,
    ) -> DriverResult<Vec<Entry>> {
        let container = self.container(id).await?;
        let (at, stat) = self.follow(container.id(), path.as_path()).await?;
        match stat {
            None => return Err(DriverError::PathMissing { id, path: path.clone() }),
            Some(stat) if !stat.is_dir() => {
                return Err(no_file("list", path, io::ErrorKind::NotADirectory));
            }
            Some(_) => {}
        }
        let reader = self.get_archive(container.id(), &at).await.map_err(failed("list files"))?;
        let Some(mut reader) = reader else { return Ok(Vec::new()) };
        let mut entries = Vec::new();
        let io = |err| io_at("list", path.as_path(), err);
        while let Some(found) = reader.next().await.map_err(io)? {
            if let Some(entry) = listed(path, &found, depth) {
                entries.push(entry);
            }
        }
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(entries)
    }
}

/// The archive of a directory has its own name before every name in it.
fn listed(directory: &SandboxPath, found: &tar::Entry, depth: u32) -> Option<Entry> {
    let path = found.path.strip_suffix(b"/").unwrap_or(&found.path);
    let path = path.strip_prefix(b"./").unwrap_or(path);
    let inner = match directory.as_path() == Path::new("/") && !path.starts_with(b"/") {
        // Of the root itself there is no name, or a slash.
        true if matches!(path, b"" | b".") => return None,
        true => path,
        false => path.splitn(2, |byte| *byte == b'/').nth(1)?,
    };
    let inner = Path::new(std::ffi::OsStr::from_bytes(inner));
    let deep = inner.components().count();
    if deep == 0 || deep > depth as usize {
        return None;
    }
    let kind = match found.kind {
        tar::EntryKind::File | tar::EntryKind::HardLink => EntryKind::File,
        tar::EntryKind::Directory => EntryKind::Directory,
        tar::EntryKind::Symlink => {
            let target = PathBuf::from(std::ffi::OsStr::from_bytes(&found.link));
            EntryKind::Symlink { target }
        }
        _ => EntryKind::Other,
    };
    let path = SandboxPath::new(directory.as_path().join(inner)).ok()?;
    Some(Entry { path, kind, len_bytes: found.len_bytes, mode: found.mode })
}

fn contents(reader: Reader) -> ByteStream {
    stream::try_unfold(reader, |mut reader| async move {
        Ok(reader.chunk().await?.map(|bytes| (bytes, reader)))
    })
    .boxed()
}

fn once(bytes: Vec<u8>) -> ByteStream {
    stream::once(async move { Ok(Bytes::from(bytes)) }).boxed()
}

/// What the kernel would write down now.
fn now() -> Option<(i64, u32)> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Some((now.tv_sec, u32::try_from(now.tv_nsec).ok()?))
}

pub(super) fn io_at(operation: &'static str, path: &Path, source: io::Error) -> DriverError {
    DriverError::Io { operation, path: path.to_owned(), source }
}
