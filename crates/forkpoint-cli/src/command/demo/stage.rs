//! What the audience sees: steps with their times, and what came of them.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use forkpoint_core::Timestamp;
use serde::Serialize;

use super::Stop;
use crate::{
    app::now,
    output::{Output, human::clean},
};

/// Columns of a step's name and of what it says.
const NAME: usize = 9;
const SAYS: usize = 50;

#[derive(Debug)]
pub(super) struct Stage {
    pub(super) out: Output,
    asked_to_stop: Arc<AtomicBool>,
    began: Timestamp,
    steps: Vec<Step>,
}

#[derive(Debug, Serialize)]
struct Step {
    name: &'static str,
    ms: f64,
}

#[derive(Serialize)]
struct Report {
    steps: Vec<Step>,
    total_ms: f64,
}

impl Stage {
    pub(super) fn new(out: Output, asked_to_stop: Arc<AtomicBool>) -> Self {
        Self { out, asked_to_stop, began: now(), steps: Vec::new() }
    }

    pub(super) fn open(&self, place: &Path) -> io::Result<()> {
        let title = "Forkpoint saves, rewinds and forks the sandboxes that AI agents work in.";
        self.line(&self.out.paint.bold(title))?;
        let place = clean(&place.display().to_string());
        self.line(&self.out.paint.dim(&format!("A tour in {place}, which is gone at the end.")))?;
        self.line("")
    }

    /// A step that is done. The tour stops here if somebody asked for it.
    pub(super) fn step(
        &mut self,
        name: &'static str,
        says: &str,
        since: Timestamp,
    ) -> Result<(), Stop> {
        self.last_step(name, says, since)?;
        match self.asked_to_stop.load(Ordering::Relaxed) {
            true => Err(Stop::Asked),
            false => Ok(()),
        }
    }

    pub(super) fn last_step(
        &mut self,
        name: &'static str,
        says: &str,
        since: Timestamp,
    ) -> io::Result<()> {
        let ms = milliseconds(since);
        self.steps.push(Step { name, ms });
        let paint = self.out.paint;
        let (name, says) = (format!("{name:NAME$}"), format!("{says:SAYS$}"));
        let time = format!("{ms:>8.1} ms");
        self.line(&format!("  {} {says} {}", paint.cyan(&name), paint.green(&time)))
    }

    /// The command that does what was just done.
    pub(super) fn typed(&self, command: &str) -> io::Result<()> {
        self.told(&self.out.paint.dim(&format!("$ {command}")))
    }

    /// Something to see below a step.
    pub(super) fn told(&self, text: &str) -> io::Result<()> {
        self.line(&format!("  {:NAME$} {text}", ""))
    }

    pub(super) fn close(self) -> io::Result<()> {
        let total_ms = milliseconds(self.began);
        if self.out.json {
            return self.out.json(&Report { steps: self.steps, total_ms });
        }
        let paint = self.out.paint;
        self.line("")?;
        let total =
            format!("All of it took {total_ms:.0} ms. Nothing on this machine has changed.");
        self.line(&paint.bold(&total))?;
        self.line("")?;
        self.line("Go on with")?;
        for (command, what) in [
            ("forkpoint run", "a shell in a sandbox of your own"),
            ("forkpoint create --name web", "a sandbox to come back to"),
            ("forkpoint --help", "everything else"),
        ] {
            self.line(&format!("  {}{}", paint.cyan(&format!("{command:30}")), paint.dim(what)))?;
        }
        Ok(())
    }

    fn line(&self, text: &str) -> io::Result<()> {
        match self.out.json {
            true => Ok(()),
            false => self.out.text(text.trim_end()),
        }
    }
}

fn milliseconds(since: Timestamp) -> f64 {
    let exact = now().duration_since(since).as_secs_f64() * 1000.0;
    (exact * 1000.0).round() / 1000.0
}
