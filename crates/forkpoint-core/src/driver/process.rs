//! A command that runs in a sandbox.

use std::{ffi::OsString, fmt, io, pin::Pin, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::Sink;
use serde::{Deserialize, Serialize};

use super::{CommandEnv, DriverResult};
use crate::{part::ByteStream, path::SandboxPath};

pub type ByteSink = Pin<Box<dyn Sink<Bytes, Error = io::Error> + Send>>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// The program and its arguments; never empty.
    pub argv: Vec<OsString>,
    /// Added to the sandbox's own environment.
    pub env: CommandEnv,
    pub workdir: Option<SandboxPath>,
    pub user: Option<String>,
    /// Whether the caller will write to its standard input; otherwise that is empty.
    pub stdin: bool,
    /// A terminal instead of three pipes: then everything printed is on `stdout`.
    pub tty: Option<TtySize>,
    /// Killed when it runs longer.
    pub timeout: Option<Duration>,
    pub leaves: Leaves,
}

/// What of the processes that a command started may go on when it has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Leaves {
    #[default]
    Anything,
    /// Nothing, unless it ended with 0.
    AnythingWhenDone,
    Nothing,
}

impl Command {
    pub fn new<A: Into<OsString>>(argv: impl IntoIterator<Item = A>) -> Self {
        Self { argv: argv.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TtySize {
    pub rows: u16,
    pub columns: u16,
}

/// A running command. Dropping it closes the streams and leaves the command alone.
pub struct Process {
    /// Dropping it is the end of the input.
    pub stdin: Option<ByteSink>,
    pub stdout: ByteStream,
    pub stderr: ByteStream,
    pub control: Box<dyn ProcessControl>,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("control", &self.control).finish_non_exhaustive()
    }
}

#[async_trait]
pub trait ProcessControl: fmt::Debug + Send + Sync {
    /// Sends a signal by its Linux number.
    async fn signal(&self, signal: i32) -> DriverResult<()>;

    async fn resize(&self, size: TtySize) -> DriverResult<()>;

    /// Answers the same however often it is asked.
    async fn wait(&self) -> DriverResult<ExitStatus>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    Code(i32),
    Signal(i32),
    TimedOut,
}

/// A process in a full snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptProcess {
    /// In the sandbox.
    pub pid: i32,
    /// What it calls itself.
    pub name: String,
    pub threads: usize,
    /// Its own: what it shares with its files is not counted.
    pub memory_bytes: u64,
}
