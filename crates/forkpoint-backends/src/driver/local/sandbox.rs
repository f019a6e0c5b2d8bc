//! A live sandbox: commands, files, and standing still.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use forkpoint_checkpoint::Connections;
use forkpoint_core::{
    driver::{
        Artifact, Command, DriverError, DriverResult, Entry, EntryKind, NewEntry, PausedSandbox,
        Process, Sandbox, SandboxState, SnapshotKind, WriteMode,
    },
    id::{SandboxId, SnapshotId},
    part::ByteStream,
    path::SandboxPath,
};
use futures::{StreamExt as _, stream};

use super::{
    DRIVER, blocking,
    connection::Connection,
    host::{Host, failed},
    init::{self, Listed, ListedKind, Reply, Request},
    process,
    record::Record,
    spool::Spool,
    wire::{Failure, Text},
};

const CHUNK: usize = 64 << 10;

/// How long a helper inside may take to open a file, or to list a tree: somebody inside could have
/// stopped it.
const FILE_MAX: Duration = Duration::from_secs(30);
const LIST_MAX: Duration = Duration::from_secs(300);

/// The largest `/etc/passwd` that is read to find a user.
const ACCOUNTS_MAX: u64 = 4 << 20;

#[derive(Clone, Debug)]
pub(super) struct LocalSandbox {
    host: Arc<Host>,
    id: SandboxId,
    /// Why a rollback did so.
    made_anew: Option<String>,
}

impl LocalSandbox {
    pub(super) fn new(host: Arc<Host>, id: SandboxId) -> Self {
        Self { host, id, made_anew: None }
    }

    pub(super) fn anew(self, made_anew: Option<String>) -> Self {
        Self { made_anew, ..self }
    }

    /// The record of a sandbox that can be worked in.
    fn running(&self) -> DriverResult<Record> {
        let mut record = self.host.record(self.id)?;
        if record.undoing {
            // It takes a moment; whoever died at it left something to do.
            let _lock = self.host.lock(self.id)?;
            record = self.host.finish(self.host.record(self.id)?)?;
        }
        let state = match (record.is_alive(), record.paused) {
            (false, _) => SandboxState::Stopped,
            (true, true) => SandboxState::Paused,
            // A pause of ours lasts milliseconds: whoever comes meanwhile waits.
            (true, false) => return Ok(record),
        };
        Err(DriverError::NotRunning { id: self.id, state })
    }

    fn connect(&self) -> DriverResult<(Record, Connection)> {
        let record = self.running()?;
        match Connection::open(&self.host.place(self.id), &record) {
            Ok(connection) => Ok((record, connection)),
            Err(err) => {
                // It may have been rolled back between the two.
                let record = self.running()?;
                let again = Connection::open(&self.host.place(self.id), &record);
                again.map(|connection| (record, connection)).map_err(|_| unreachable(err))
            }
        }
    }

    fn file_error(
        &self,
        path: &SandboxPath,
        operation: &'static str,
    ) -> impl Fn(Failure) -> DriverError {
        let (id, path) = (self.id, path.clone());
        move |failure| match failure.errno {
            Some(libc::ENOENT | libc::ENOTDIR) => {
                DriverError::PathMissing { id, path: path.clone() }
            }
            _ => {
                let source = failure.to_io();
                DriverError::Io { operation, path: path.as_path().to_owned(), source }
            }
        }
    }

    async fn open(&self, path: &SandboxPath) -> DriverResult<File> {
        let (_, connection) = self.connect()?;
        let request = Request::Read { path: path.as_path().as_os_str().into() };
        let (reply, fds) = connection.ask_within(&request, FILE_MAX).await.map_err(unreachable)?;
        connection.helper_ended().await;
        match reply {
            Reply::Opened => first(fds),
            Reply::Failed(failure) => Err(self.file_error(path, "read")(failure)),
            _ => Err(odd_reply()),
        }
    }

    /// Whom a command runs as: a name, a number, or either with `:` and a group.
    async fn user(&self, user: Option<&str>) -> DriverResult<(init::User, Option<String>)> {
        let Some(user) = user.filter(|user| !matches!(*user, "0" | "root" | "0:0")) else {
            return Ok((init::User::default(), Some("/root".to_owned())));
        };
        let passwd = self.read_text("/etc/passwd").await?;
        let group = self.read_text("/etc/group").await?;
        process::find_user(user, &passwd, &group)
            .map_err(|reason| DriverError::Invalid { driver: DRIVER, reason })
    }

    async fn read_text(&self, path: &str) -> DriverResult<String> {
        let path = SandboxPath::new(path).map_err(failed("name a file"))?;
        let file = match self.open(&path).await {
            Err(DriverError::PathMissing { .. }) => return Ok(String::new()),
            result => result?,
        };
        blocking(move || {
            let mut bytes = Vec::new();
            file.take(ACCOUNTS_MAX).read_to_end(&mut bytes).map_err(unreachable)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        })
        .await
    }
}

pub(super) fn unreachable(err: io::Error) -> DriverError {
    DriverError::Unreachable { driver: DRIVER, source: err.into() }
}

pub(super) fn odd_reply() -> DriverError {
    unreachable(io::Error::other("the sandbox's init gave an odd answer"))
}

pub(super) fn first(fds: Vec<OwnedFd>) -> DriverResult<File> {
    fds.into_iter().next().map(File::from).ok_or_else(odd_reply)
}

/// The content of a file, read by threads that may block.
pub(in crate::driver) fn read_file(file: File) -> ByteStream {
    stream::try_unfold(Arc::new(file), |file| async move {
        let reader = Arc::clone(&file);
        let read = tokio::task::spawn_blocking(move || {
            let mut buffer = vec![0; CHUNK];
            let len = (&*reader).read(&mut buffer)?;
            buffer.truncate(len);
            Ok::<_, io::Error>(Bytes::from(buffer))
        });
        let bytes = read.await.map_err(io::Error::other)??;
        Ok(if bytes.is_empty() { None } else { Some((bytes, file)) })
    })
    .boxed()
}

#[async_trait]
impl Sandbox for LocalSandbox {
    fn id(&self) -> SandboxId {
        self.id
    }

    fn made_anew(&self) -> Option<String> {
        self.made_anew.clone()
    }

    async fn exec(&self, command: &Command) -> DriverResult<Process> {
        if command.argv.is_empty() {
            let reason = "there is no command to run".to_owned();
            return Err(DriverError::Invalid { driver: DRIVER, reason });
        }
        let (record, connection) = self.connect()?;
        let user = command.user.as_deref().or(record.spec.user.as_deref());
        let (user, home) = self.user(user).await?;
        let request = process::request(command, &record.spec, user, home);
        process::start(self.id, command, connection, request).await
    }

    async fn read(&self, path: &SandboxPath) -> DriverResult<ByteStream> {
        Ok(read_file(self.open(path).await?))
    }

    async fn write(
        &self,
        path: &SandboxPath,
        bytes: ByteStream,
        mode: WriteMode,
    ) -> DriverResult<()> {
        let write_error = |source| DriverError::Io {
            operation: "write",
            path: path.as_path().to_owned(),
            source,
        };
        self.running()?;
        let content = Spool::take(&self.host.root, bytes).await.map_err(write_error)?;
        let how = match mode {
            WriteMode::Create => init::WriteHow::Create,
            WriteMode::Replace => init::WriteHow::Replace,
            WriteMode::Append => init::WriteHow::Append,
        };
        // We write from outside, where no freezer reaches us: so nobody seals meanwhile.
        let (host, id) = (Arc::clone(&self.host), self.id);
        let _lock = blocking(move || host.lock_for_writing(id)).await?;
        let (_, connection) = self.connect()?;
        let request = Request::Write { path: path.as_path().as_os_str().into(), mode: how };
        let (reply, fds) = connection.ask_within(&request, FILE_MAX).await.map_err(unreachable)?;
        let file = match reply {
            Reply::Opened => first(fds)?,
            Reply::Failed(failure) => return Err(self.file_error(path, "write")(failure)),
            _ => return Err(odd_reply()),
        };
        let filled = tokio::task::spawn_blocking(move || content.copy_to(file)).await;
        filled.map_err(io::Error::other).flatten().map_err(write_error)?;
        let (reply, _) =
            connection.ask_within(&Request::Commit, FILE_MAX).await.map_err(unreachable)?;
        connection.helper_ended().await;
        match reply {
            Reply::Done => Ok(()),
            Reply::Failed(failure) => Err(self.file_error(path, "write")(failure)),
            _ => Err(odd_reply()),
        }
    }

    async fn make(&self, path: &SandboxPath, entry: &NewEntry) -> DriverResult<()> {
        self.running()?;
        let entry = match entry {
            NewEntry::Directory { mode } => init::MadeEntry::Directory { mode: *mode },
            NewEntry::Symlink { target } => {
                init::MadeEntry::Symlink { target: target.as_os_str().into() }
            }
            NewEntry::Mode(mode) => init::MadeEntry::Mode(*mode),
        };
        let (host, id) = (Arc::clone(&self.host), self.id);
        let _lock = blocking(move || host.lock_for_writing(id)).await?;
        let (_, connection) = self.connect()?;
        let request = Request::Make { path: path.as_path().as_os_str().into(), entry };
        let (reply, _) = connection.ask_within(&request, FILE_MAX).await.map_err(unreachable)?;
        connection.helper_ended().await;
        match reply {
            Reply::Done => Ok(()),
            Reply::Failed(failure) => Err(self.file_error(path, "make")(failure)),
            _ => Err(odd_reply()),
        }
    }

    async fn entries(&self, path: &SandboxPath, depth: u32) -> DriverResult<Vec<Entry>> {
        let (_, connection) = self.connect()?;
        let request = Request::Entries { path: path.as_path().as_os_str().into(), depth };
        let (reply, _) = connection.ask_within(&request, LIST_MAX).await.map_err(unreachable)?;
        connection.helper_ended().await;
        match reply {
            Reply::Entries(entries) => entries.into_iter().map(entry).collect(),
            Reply::Failed(failure) => Err(self.file_error(path, "list")(failure)),
            _ => Err(odd_reply()),
        }
    }

    async fn pause(&self, kind: SnapshotKind) -> DriverResult<Box<dyn PausedSandbox>> {
        let (host, id) = (Arc::clone(&self.host), self.id);
        let lock = blocking(move || match kind {
            SnapshotKind::Files => host.hold_still(id),
            SnapshotKind::Full => host.hold(id),
        });
        let (host, lock) = (Arc::clone(&self.host), Arc::new(lock.await?));
        Ok(Box::new(Paused {
            host,
            id,
            lock,
            kind,
            connections: Connections::Refuse,
            is_long: false,
            sealed: None,
        }))
    }
}

fn entry(listed: Listed) -> DriverResult<Entry> {
    let as_path = |text: Text| PathBuf::from(std::ffi::OsString::from(text));
    let kind = match listed.kind {
        ListedKind::File => EntryKind::File,
        ListedKind::Directory => EntryKind::Directory,
        ListedKind::Symlink(target) => EntryKind::Symlink { target: as_path(target) },
        ListedKind::Other => EntryKind::Other,
    };
    let path = SandboxPath::new(as_path(listed.path)).map_err(failed("name a file"))?;
    Ok(Entry { path, kind, len_bytes: listed.len_bytes, mode: listed.mode })
}

#[derive(Debug)]
struct Paused {
    host: Arc<Host>,
    id: SandboxId,
    lock: Arc<OwnedFd>,
    kind: SnapshotKind,
    connections: Connections,
    /// Whether it lies on many layers.
    is_long: bool,
    /// Whose small files are to be made when it runs again.
    sealed: Option<SnapshotId>,
}

#[async_trait]
impl PausedSandbox for Paused {
    async fn seal(&mut self, snapshot: SnapshotId, kind: SnapshotKind) -> DriverResult<Artifact> {
        let (host, id, lock) = (Arc::clone(&self.host), self.id, Arc::clone(&self.lock));
        let connections = self.connections;
        let seal = move || match kind {
            SnapshotKind::Files => host.seal_files(&lock, id, snapshot),
            SnapshotKind::Full => host.seal_full(&lock, id, snapshot, connections),
        };
        let (artifact, is_long) = blocking(seal).await?;
        (self.is_long, self.sealed) = (is_long, Some(snapshot));
        Ok(artifact)
    }

    async fn close_connections(&mut self) -> DriverResult<()> {
        self.connections = Connections::Close;
        Ok(())
    }

    async fn is_unchanged(&mut self, since: &Artifact) -> DriverResult<bool> {
        let (host, id, kind) = (Arc::clone(&self.host), self.id, self.kind);
        let since = since.clone();
        blocking(move || match kind {
            SnapshotKind::Files => host.is_unchanged(id, since.snapshot),
            SnapshotKind::Full => host.is_wholly_unchanged(id, &since),
        })
        .await
    }

    async fn resume(self: Box<Self>) -> DriverResult<()> {
        blocking(move || {
            if self.kind == SnapshotKind::Files {
                self.host.let_go(self.id)?;
            }
            if let Some(snapshot) = self.sealed {
                self.host.unpack_later(snapshot);
            }
            if self.is_long {
                // It is tried again next time, and costs nothing but time until then.
                let _ = self.host.shorten(&self.lock, self.id);
            }
            Ok(())
        })
        .await
    }
}
