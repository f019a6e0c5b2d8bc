//! Signals, as things that happen while we wait.

use std::{future::poll_fn, io, task::Poll};

use tokio::signal::unix::{Signal, SignalKind, signal};

pub(crate) const SIGHUP: i32 = 1;
pub(crate) const SIGINT: i32 = 2;
pub(crate) const SIGQUIT: i32 = 3;
pub(crate) const SIGTERM: i32 = 15;
pub(crate) const SIGWINCH: i32 = 28;

/// From its making on, these signals no longer end the process, for good.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(i32, Signal)>);

impl Signals {
    pub(crate) fn listen(numbers: &[i32]) -> io::Result<Self> {
        let listen = |&number| Ok((number, signal(SignalKind::from_raw(number))?));
        numbers.iter().map(listen).collect::<io::Result<_>>().map(Self)
    }

    /// What asks a process to end.
    pub(crate) fn that_end() -> io::Result<Self> {
        Self::listen(&[SIGINT, SIGTERM, SIGHUP])
    }

    pub(crate) async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            let mut came = self.0.iter_mut().filter_map(|(number, signal)| {
                matches!(signal.poll_recv(context), Poll::Ready(Some(()))).then_some(*number)
            });
            came.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}
