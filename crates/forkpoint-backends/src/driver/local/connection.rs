//! A connection to a sandbox's init, for tasks that wait without blocking a thread.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    init::{Reply, Request},
    record::{Place, Record},
    sys, wire,
};

/// Init answers at once, or never.
const INIT_MAX: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) struct Connection(AsyncFd<OwnedFd>);

impl Connection {
    pub(super) fn open(place: &Place, record: &Record) -> io::Result<Self> {
        let socket = wire::connect_in(&place.open()?, &Place::socket(record.launches))?;
        Ok(Self(sys::watch(socket)?))
    }

    pub(super) async fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.0.async_io(Interest::WRITABLE, |socket| wire::send(socket, request, fds)).await
    }

    pub(super) async fn receive(&self) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let received = self.0.async_io(Interest::READABLE, |socket| wire::receive(socket)).await?;
        received.ok_or_else(|| io::Error::new(io::ErrorKind::ConnectionReset, "the sandbox ended"))
    }

    pub(super) async fn ask_within(
        &self,
        request: &Request,
        time: Duration,
    ) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let ask = async {
            self.send(request, &[]).await?;
            self.receive().await
        };
        tokio::time::timeout(time, ask).await?
    }

    /// Waits until the helper on the other side is on its way out: a sandbox in which nothing else
    /// runs is idle then.
    pub(super) async fn helper_ended(&self) {
        const PATIENCE: Duration = Duration::from_millis(100);
        // Whoever takes longer was stopped by somebody inside, and costs the next seal a copy.
        let _ = tokio::time::timeout(PATIENCE, self.receive()).await;
    }
}

/// The same, for a thread that may block.
pub(super) fn ask_blocking(
    place: &Place,
    record: &Record,
    request: &Request,
) -> io::Result<(Reply, Vec<OwnedFd>)> {
    ask_with(place, record, request, &[])
}

/// The same, with descriptors.
pub(super) fn ask_with(
    place: &Place,
    record: &Record,
    request: &Request,
    fds: &[BorrowedFd<'_>],
) -> io::Result<(Reply, Vec<OwnedFd>)> {
    let line = Line::open(place, record)?;
    line.send(request, fds)?;
    line.receive()
}

/// The same, for several questions.
#[derive(Debug)]
pub(super) struct Line(OwnedFd);

impl Line {
    pub(super) fn open(place: &Place, record: &Record) -> io::Result<Self> {
        Self::open_named(place, &Place::socket(record.launches))
    }

    pub(super) fn open_named(place: &Place, name: &str) -> io::Result<Self> {
        let socket = wire::connect_in(&place.open()?, name)?;
        rustix::io::ioctl_fionbio(&socket, false)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(INIT_MAX))?;
        Ok(Self(socket))
    }

    pub(super) fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        wire::send(self.0.as_fd(), request, fds)
    }

    /// The answer to the first question that has none.
    pub(super) fn receive(&self) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let ended = || io::Error::new(io::ErrorKind::ConnectionReset, "the sandbox ended");
        wire::receive(&self.0)?.ok_or_else(ended)
    }
}
