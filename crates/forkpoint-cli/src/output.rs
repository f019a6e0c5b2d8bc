//! What is printed, and where: results on stdout, everything else on stderr.

use std::{
    fmt::Display,
    io::{self, IsTerminal as _, Write as _},
};

use serde::Serialize;

use crate::args::{ColorChoice, GlobalArgs};

pub(crate) mod file;
pub(crate) mod human;
pub(crate) mod pager;
pub(crate) mod paint;
pub(crate) mod progress;
pub(crate) mod quote;
pub(crate) mod record;
pub(crate) mod table;

use human::clean;
use paint::Paint;

/// How this run prints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
    pub(crate) progress: bool,
    /// Colours on stdout.
    pub(crate) paint: Paint,
    /// Colours on stderr.
    pub(crate) paint_err: Paint,
    /// Columns of the terminal that stdout is; `None` in a pipe, where nothing is cut.
    pub(crate) width: Option<usize>,
}

impl Output {
    pub(crate) fn new(args: &GlobalArgs) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let paint = |terminal: bool| match args.color {
            ColorChoice::Auto => Paint::new(terminal && !plain),
            ColorChoice::Always => Paint::new(true),
            ColorChoice::Never => Paint::new(false),
        };
        let err_terminal = io::stderr().is_terminal();
        Self {
            json: args.json,
            quiet: args.quiet,
            verbose: args.verbose,
            progress: err_terminal && !args.quiet && !args.no_progress,
            paint: paint(io::stdout().is_terminal()),
            paint_err: paint(err_terminal),
            width: width(),
        }
    }

    /// One JSON document.
    pub(crate) fn json(&self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string_pretty(value)?;
        self.text(&human::clean_json(&text))
    }

    /// A result, as it is, with a line break.
    pub(crate) fn text(&self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.write_all(b"\n")?;
        stdout.flush()
    }

    /// Something good to know, unless nobody wants to.
    pub(crate) fn note(&self, text: impl Display) {
        if !self.quiet && !self.json {
            say(&clean(&text.to_string()));
        }
    }

    /// Something for those who asked for more.
    pub(crate) fn detail(&self, text: impl Display) {
        if self.verbose {
            say(&self.paint_err.dim(&clean(&text.to_string())));
        }
    }

    /// Something that went wrong and does not end the work.
    pub(crate) fn warn(&self, text: impl Display) {
        let text = clean(&text.to_string());
        say(&format!("{}: {text}", self.paint_err.yellow("warning")));
    }

    /// What can be done about what was told before.
    pub(crate) fn hint(&self, text: &str) {
        say(&format!("{}: {}", self.paint_err.cyan("hint"), clean(text)));
    }
}

/// Keys and what they stand for, one below the other.
pub(crate) fn facts(out: &Output, rows: &[(&str, String)]) -> String {
    let wide = rows.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
    let line = |(key, value): &(&str, String)| {
        let key = format!("{key:wide$}");
        format!("{}  {}", out.paint.dim(&key), clean(value))
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A line on stderr. When nobody can read it, nobody is told.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Asks before something that cannot be undone. Without a terminal there is nobody to ask: yes.
pub(crate) fn confirm(question: &str) -> io::Result<bool> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(true);
    }
    let mut stderr = io::stderr().lock();
    write!(stderr, "{} [y/N] ", clean(question))?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

fn width() -> Option<usize> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0).or(Some(80))
}
