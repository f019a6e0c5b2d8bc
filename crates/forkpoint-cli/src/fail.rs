//! What went wrong, what it was about, and the exit code that says so.

use std::io;

use forkpoint_core::{Error, ErrorKind, path::HostPath};
use serde::Serialize;

use crate::output::{Output, human::clean, human::clean_json, say};

/// The exit code of what was interrupted.
pub(crate) const INTERRUPTED: u8 = 130;

/// As a process that SIGPIPE ended.
const CLOSED_PIPE: u8 = 141;

/// A failure of ours in `run` and `exec`, where other codes are the command's.
pub(crate) const OURS: u8 = 125;

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Box<Error>,
    pub(crate) about: About,
    /// Instead of what the kind of the error gives.
    code: Option<u8>,
    /// Nobody reads our output any more.
    silent: bool,
}

/// What the failed request was about, for a hint that helps.
#[derive(Clone, Debug, Default)]
pub(crate) enum About {
    #[default]
    Nothing,
    /// A reference to a sandbox.
    Sandbox(String),
    /// A reference to a snapshot.
    Snapshot(String),
    /// A reference to either.
    Source(String),
    /// A sandbox, and the snapshot that it was to go to.
    Rollback(String, Option<String>),
    /// A new thing with a name of its choice, of a template.
    New { name: Option<String>, template: Option<String> },
    /// A snapshot with processes and memory.
    Full(String),
    /// An image or directory that was to become a template.
    Image,
    /// A snapshot that was to become a template, and the live workspace that it lies over.
    Promote(Option<HostPath>),
    /// A template that was to go.
    Template,
    /// A program that was to run in a sandbox.
    Command,
    /// What was to be brought home.
    Apply(String),
    /// Where everything is kept.
    DataDir,
    /// A change of nothing.
    Edit,
    /// A sandbox that was to be watched.
    Watch(String),
    /// Limits that nobody set.
    Limits,
    /// What was decided beforehand.
    Config,
}

impl Failure {
    pub(crate) fn new(error: impl Into<Error>, about: About) -> Self {
        Self { error: Box::new(error.into()), about, code: None, silent: false }
    }

    pub(crate) fn with_code(mut self, code: u8) -> Self {
        self.code = self.code.or(Some(code));
        self
    }

    pub(crate) fn exit_code(&self) -> u8 {
        self.code.unwrap_or_else(|| exit_code(self.error.kind()))
    }

    pub(crate) fn print(&self, out: &Output, hint: Option<&str>) {
        if self.silent {
            return;
        }
        let message = self.error.chain().to_string();
        if out.json {
            let kind = kind_name(&self.error);
            let error = ErrorJson { kind, message: &message, hint };
            if let Ok(text) = serde_json::to_string_pretty(&Envelope { error }) {
                say(&clean_json(&text));
            }
            return;
        }
        say(&format!("{}: {}", out.paint_err.red("error"), clean(&message)));
        if let Some(hint) = hint {
            out.hint(hint);
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error, About::Nothing)
    }
}

/// Of writing a result.
impl From<io::Error> for Failure {
    fn from(err: io::Error) -> Self {
        let silent = err.kind() == io::ErrorKind::BrokenPipe;
        let error = Error::new(ErrorKind::Unavailable, "failed to print").with_source(err);
        let code = silent.then_some(CLOSED_PIPE);
        Self { code, silent, ..Self::from(error) }
    }
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: ErrorJson<'a>,
}

#[derive(Serialize)]
struct ErrorJson<'a> {
    kind: &'static str,
    message: &'a str,
    hint: Option<&'a str>,
}

/// The one place that turns what a caller can do into an exit code.
pub(crate) fn exit_code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Invalid => 2,
        ErrorKind::NotFound => 3,
        ErrorKind::Conflict => 4,
        ErrorKind::Unsupported => 5,
        ErrorKind::Denied => 6,
        ErrorKind::Corrupt => 7,
        _ => 1,
    }
}

fn kind_name(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => "not_found",
        ErrorKind::Conflict if error.busy_with().is_some() => "busy",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Invalid => "invalid",
        ErrorKind::Denied => "denied",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Corrupt => "corrupt",
        _ => "internal",
    }
}
