//! A sign of life for what takes longer than a second.

use std::io::{self, Write as _};

use forkpoint_backends::image::Progress;

use super::{Output, human::size};

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

/// `3.2 MiB`, or `3.2 MiB of 8.0 MiB, 40 %` where somebody knows how much it will be.
pub(crate) fn far(progress: &Progress) -> String {
    let (passed, total) = (progress.passed_bytes(), progress.total_bytes());
    // What grows meanwhile is more than was expected.
    match total >= passed && total > 0 {
        true => {
            let part = u128::from(passed) * 100 / u128::from(total);
            format!(" {} of {}, {part} %", size(passed), size(total))
        }
        false => format!(" {}", size(passed)),
    }
}

impl Drop for Spinner<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_of_what_is_known() {
        for (passed, total, told) in [
            (0, 0, " 0 B"),
            (3 << 20, 0, " 3.0 MiB"),
            (0, 10, " 0 B of 10 B, 0 %"),
            (999, 1000, " 999 B of 1000 B, 99 %"),
            (1000, 1000, " 1000 B of 1000 B, 100 %"),
            (1001, 1000, " 1001 B"),
            (u64::MAX / 2, u64::MAX, " 8192 PiB of 16384 PiB, 49 %"),
        ] {
            let progress = Progress::default();
            progress.expect(total);
            progress.pass(passed);
            assert_eq!(far(&progress), told);
        }
    }
}
