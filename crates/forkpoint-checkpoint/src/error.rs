//! What can go wrong, and with whom.

use std::{fmt, io};

use crate::{coverage::Whose, image::ImageError};

/// Something that cannot be captured, or not brought back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its number inside the sandbox.
    pub pid: i32,
    /// What it calls itself.
    pub process: String,
    pub thing: String,
    /// Why, and what one can do about it.
    pub reason: String,
    /// Whether it goes away by itself.
    pub passes: bool,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, process, thing, reason, .. } = self;
        // What is process 1's is everybody's.
        if *pid == 1 {
            return write!(f, "the sandbox has {thing}: {reason}");
        }
        write!(f, "process {pid} (`{process}`) has {thing}: {reason}")
    }
}

/// At least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusals(pub Vec<Refusal>);

impl Refusals {
    /// Whether it is worth another try. One that passes by itself is enough: others may be there because of it, as a terminal seems to
    /// be somebody's outside while its other end is refused.
    #[must_use]
    pub fn pass(&self) -> bool {
        self.0.iter().any(|refusal| refusal.passes)
    }
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 5;
        for (index, refusal) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{refusal}", if index == 0 { "" } else { "; " })?;
        }
        match self.0.len().checked_sub(SHOWN) {
            Some(more @ 1..) => write!(f, "; and {more} more"),
            _ => Ok(()),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Refused(Refusals),
    /// Number and name are those inside the sandbox.
    #[error("process {pid} (`{process}`) does not stand still: {why}; try again")]
    Restless { pid: i32, process: String, why: &'static str },
    #[error("a process ended meanwhile; try again")]
    Ended { pid: i32 },
    #[error("failed to {doing} of process {pid}")]
    Process { doing: &'static str, pid: i32, source: io::Error },
    #[error("failed to {doing}")]
    System { doing: &'static str, source: io::Error },
    #[error("failed to {doing} `{path}`")]
    File { doing: &'static str, path: String, source: io::Error },
    #[error("process {pid} could not be brought back: {step}")]
    Step { pid: i32, step: String, source: io::Error },
    #[error("the processes were not brought back in time: {ready} of {wanted} threads were")]
    Late { ready: u32, wanted: u32 },
    #[error("captured on {theirs}, and this is {ours}; take a new snapshot here")]
    OtherMachine { theirs: String, ours: String },
    #[error("it cannot be rolled back in place: {why}; restore it instead")]
    NotInPlace { why: String },
    #[error(transparent)]
    Image(#[from] ImageError),
}

impl Error {
    /// Of a task, by its number from here.
    pub(crate) fn restless(outside: i32, why: &'static str) -> Self {
        // One that is gone meanwhile has neither number nor name inside.
        let gone = |_| Whose { pid: outside, name: "ended".to_owned() };
        let Whose { pid, name: process } = Whose::of(outside).unwrap_or_else(gone);
        Self::Restless { pid, process, why }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds what was being done to a plain error.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str, pid: i32) -> Result<T>;
    fn system(self, doing: &'static str) -> Result<T>;
    fn file(self, doing: &'static str, path: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, doing: &'static str, pid: i32) -> Result<T> {
        self.map_err(|source| Error::Process { doing, pid, source: source.into() })
    }

    fn system(self, doing: &'static str) -> Result<T> {
        self.map_err(|source| Error::System { doing, source: source.into() })
    }

    fn file(self, doing: &'static str, path: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error::File { doing, path: path.into(), source: source.into() })
    }
}

/// For who is told in words: an error with all that led to it.
pub(crate) fn with_causes(err: &dyn std::error::Error) -> String {
    let mut text = err.to_string();
    let mut cause = err.source();
    while let Some(err) = cause {
        text = format!("{text}: {err}");
        cause = err.source();
    }
    text
}
