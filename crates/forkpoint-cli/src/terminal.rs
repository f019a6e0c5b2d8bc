//! The terminal that we run on: its size, and raw mode that always ends.

use std::io::{self, IsTerminal as _};

use forkpoint_core::driver::TtySize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

const USUAL: TtySize = TtySize { rows: 24, columns: 80 };

/// The size of the terminal on any of our streams.
pub(crate) fn size() -> TtySize {
    let found = [tcgetwinsize(io::stdout()), tcgetwinsize(io::stdin()), tcgetwinsize(io::stderr())];
    let sizes = found.into_iter().flatten();
    sizes
        .map(|size| TtySize { rows: size.ws_row, columns: size.ws_col })
        .find(|size| size.rows > 0 && size.columns > 0)
        .unwrap_or(USUAL)
}

pub(crate) fn is_on_stdin() -> bool {
    io::stdin().is_terminal()
}

/// While this lives, keys go to the command as they are. Dropping it, also in a panic, gives the
/// terminal back as it was. Signals that would end us are listened to meanwhile, so that none can
/// end the process in between.
#[derive(Debug)]
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    pub(crate) fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}
