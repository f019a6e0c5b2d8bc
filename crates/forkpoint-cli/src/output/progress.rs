//! A sign of life for what takes longer than a second.

use std::io::{self, Write as _};

use super::Output;

const FRAMES: [&str; 4] = ["·  ", "·· ", "···", " ··"];

/// Ticks that pass in silence: most work is done by then.
const SILENT: usize = 5;

/// The time between two ticks.
pub(crate) const TICK_MS: u64 = 200;

/// A line on the terminal of stderr that is gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Spinner<'a> {
    doing: &'a str,
    shows: bool,
    ticks: usize,
    drawn: bool,
}

impl<'a> Spinner<'a> {
    pub(crate) fn new(out: &Output, doing: &'a str) -> Self {
        Self { doing, shows: out.progress, ticks: 0, drawn: false }
    }

    pub(crate) fn tick(&mut self) {
        self.tick_at("");
    }

    /// With how far it has come.
    pub(crate) fn tick_at(&mut self, far: &str) {
        self.ticks += 1;
        if self.shows && self.ticks >= SILENT {
            let frame = FRAMES[self.ticks % FRAMES.len()];
            let mut stderr = io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[K{} {frame}{far}", self.doing);
            let _ = stderr.flush();
            self.drawn = true;
        }
    }

    /// Makes room for a line of text.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let mut stderr = io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[K");
            let _ = stderr.flush();
        }
    }
}

impl Drop for Spinner<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}
