//! What can be captured, and what is refused.
//!
//! The rule is a list of what is known to come back; all else is refused, with the process, the
//! thing and the way out. Nothing is left out in silence.

use std::io;

use crate::{
    dump::proc::Status,
    error::{Error, Refusal, Refusals, Result},
};

/// What was found that cannot be captured.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Refusal>);

/// Whose things are looked at.
#[derive(Clone, Debug)]
pub(crate) struct Whose {
    pub(crate) pid: i32,
    pub(crate) name: String,
}

impl Whose {
    /// Of a task that stands or runs, by its number from here.
    pub(crate) fn of(outside: i32) -> io::Result<Self> {
        let status = Status::of(outside)?;
        Ok(Self { pid: status.last("NStgid")?, name: status.text("Name").to_owned() })
    }
}

/// Why something is refused.
#[derive(Debug)]
pub(crate) struct Reason {
    text: String,
    passes: bool,
}

impl Reason {
    /// What is in the way goes away by itself, most often within milliseconds: it is worth another try.
    pub(crate) fn passing(text: impl Into<String>) -> Self {
        Self { text: text.into(), passes: true }
    }
}

impl<T: Into<String>> From<T> for Reason {
    fn from(text: T) -> Self {
        Self { text: text.into(), passes: false }
    }
}

impl Findings {
    pub(crate) fn refuse(
        &mut self,
        whose: &Whose,
        thing: impl Into<String>,
        reason: impl Into<Reason>,
    ) {
        let (process, thing) = (whose.name.clone(), thing.into());
        let Reason { text: reason, passes } = reason.into();
        self.0.push(Refusal { pid: whose.pid, process, thing, reason, passes });
    }

    pub(crate) fn verdict(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::Refused(Refusals(self.0))) }
    }
}

/// Of a thread, or of anything that it has open or mapped or is in.
pub(crate) const NOT_TEXT: (&str, &str) =
    ("a name that is not text", "only names in UTF-8 are captured; rename it, or close it first");

/// Devices that are the same in every sandbox and hold no state.
pub(crate) const DEVICES: [&str; 5] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Why an anonymous inode cannot be captured.
pub(crate) fn anonymous(kind: &str) -> &'static str {
    match kind {
        "[io_uring]" => {
            "its requests are in the kernel, where nobody can read them; run the program without io_uring"
        }
        "[userfaultfd]" => "its faults are answered by the program; wait until it is closed",
        "[perf_event]" => "it measures this machine; close it first",
        "[fanotify]" => "what it watches is not told; close it first",
        kind if kind.starts_with("bpf") => "it is the kernel's; close it first",
        _ => "this kind of descriptor is not known to come back; close it first",
    }
}

/// Why a mapping of this name cannot be captured.
pub(crate) fn mapping(name: &str) -> &'static str {
    if name.starts_with("/SYSV") {
        "of memory of System V only whole segments are captured; detach it first"
    } else if name.starts_with("/anon_hugepage") {
        "huge pages are the machine's; use ordinary memory"
    } else if name.starts_with("anon_inode:") {
        anonymous(name.trim_start_matches("anon_inode:"))
    } else if name.starts_with("/[aio]") {
        "its requests are in the kernel, where nobody can read them; use other input and output"
    } else {
        "this kind of memory is not known to come back"
    }
}
