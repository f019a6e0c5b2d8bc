//! Long output: through a pager on a terminal, else straight to stdout.

use std::{
    io::{self, BufWriter, IsTerminal as _, Write},
    process::{Child, Command, Stdio},
};

use super::Output;
use crate::signal::{SIGINT, Signals};

#[derive(Debug)]
pub(crate) struct Pager {
    to: BufWriter<Sink>,
    /// While it lives, Ctrl-C is the pager's.
    _signals: Option<Signals>,
}

#[derive(Debug)]
enum Sink {
    Stdout(io::Stdout),
    Pager(Child),
}

impl Pager {
    /// `$FORKPOINT_PAGER`, `$PAGER` or `less`; none if that cannot be started.
    pub(crate) fn open(out: &Output) -> Self {
        let wanted = io::stdout().is_terminal() && !out.json && !out.quiet;
        let started = wanted.then(start).flatten();
        let signals = started.as_ref().and_then(|_| Signals::listen(&[SIGINT]).ok());
        let sink = started.map_or_else(|| Sink::Stdout(io::stdout()), Sink::Pager);
        Self { to: BufWriter::new(sink), _signals: signals }
    }

    pub(crate) fn is_paged(&self) -> bool {
        matches!(self.to.get_ref(), Sink::Pager(_))
    }

    /// Waits for whoever reads. One who has read enough is no failure.
    pub(crate) fn close(mut self) -> io::Result<()> {
        let flushed = enough(self.to.flush());
        if let Sink::Pager(child) = self.to.get_mut() {
            drop(child.stdin.take());
            child.wait()?;
        }
        flushed
    }
}

/// A reader that went away wants no more, and that is all.
pub(crate) fn enough(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

impl Write for Pager {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(stdout) => stdout.write(bytes),
            Self::Pager(child) => match &mut child.stdin {
                Some(stdin) => stdin.write(bytes),
                None => Err(io::ErrorKind::BrokenPipe.into()),
            },
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(stdout) => stdout.flush(),
            Self::Pager(_) => Ok(()),
        }
    }
}

fn start() -> Option<Child> {
    let asked = ["FORKPOINT_PAGER", "PAGER"].into_iter().find_map(std::env::var_os);
    let Some(asked) = asked else { return spawn(Command::new("less").arg("-FRX")) };
    let text = asked.to_str()?;
    if text.contains(['|', '&', ';', '<', '>', '$', '`', '"', '\'', '\\', '(', '~', '*']) {
        return spawn(Command::new("/bin/sh").arg("-c").arg(text));
    }
    let mut words = text.split_whitespace();
    match words.next() {
        None | Some("cat") => None,
        Some(program) => spawn(Command::new(program).args(words)),
    }
}

fn spawn(command: &mut Command) -> Option<Child> {
    command.stdin(Stdio::piped()).spawn().ok()
}
