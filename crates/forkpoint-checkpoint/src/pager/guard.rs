//! What keeps a program from seeing memory that is not there.
//!
//! Where nobody has a userfaultfd any more, missing pages are empty pages. So while a pager runs, copies of its
//! descriptors lie in the queue of a socket that process 1 of the sandbox has too: when the pager dies, they
//! are still there, and whoever touches a missing page waits, until process 1 has heard of it and ends
//! everything. Copies of process 1 may have the socket as well and as long as they like: the pager empties
//! the queue itself.

use std::{
    fs, io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::MemfdFlags,
    io::{Errno, IoSlice, IoSliceMut},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    },
    pipe::{PipeFlags, pipe_with},
    process::{WaitOptions, wait},
    time::Timespec,
};

use crate::{
    error::{Error, Result},
    sys::{Deadline, Patience, task},
};

const MARKER: &str = "forkpoint-missing-memory";
/// So many descriptors go into one message.
const BATCH: usize = 128;
/// Above so many messages in the queue, they are put into fewer.
const MESSAGES_MAX: usize = 96;
const DONE: u8 = b'd';

/// What process 1 of a sandbox keeps until all memory of its processes is there.
#[derive(Debug)]
pub struct Guard {
    /// Has the descriptors in its queue. Nobody reads it here.
    kept: OwnedFd,
    /// Who looks from outside sees it.
    marker: OwnedFd,
    news: OwnedFd,
}

/// How far the memory of a sandbox is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Some of it is on its way; look again when there is something to read.
    Coming,
    /// All of it is there: the guard can go.
    Whole,
    /// It will never come: [`Guard::end_all`], at once.
    Lost,
}

impl Guard {
    /// For a process 1 that moves its descriptors to other numbers.
    #[must_use]
    pub fn into_descriptors(self) -> [OwnedFd; 3] {
        [self.kept, self.marker, self.news]
    }

    #[must_use]
    pub fn from_descriptors([kept, marker, news]: [OwnedFd; 3]) -> Self {
        Self { kept, marker, news }
    }

    /// Does not wait.
    #[must_use]
    pub fn look(&self) -> Memory {
        let mut word = [0];
        match rustix::io::read(&self.news, &mut word) {
            Ok(1) if word == [DONE] => Memory::Whole,
            Err(Errno::AGAIN | Errno::INTR) => Memory::Coming,
            _ => Memory::Lost,
        }
    }

    /// Ends everything in the sandbox, and then process 1, which is the calling one. It must not end by
    /// itself: its descriptors would be closed before the others are killed.
    pub fn end_all(self) -> ! {
        if rustix::process::getpid().as_raw_pid() == 1 {
            // In a namespace of its own, these are all processes of the sandbox, and not this one.
            let _ = task::kill(-1, libc::SIGKILL);
            while !matches!(wait(WaitOptions::empty()), Err(Errno::CHILD)) {}
        }
        task::end_as(1 << 8)
    }
}

/// To wait until there is something to look at.
impl AsFd for Guard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}

/// The pager's side.
#[derive(Debug)]
pub(crate) struct Keeper {
    put: OwnedFd,
    kept: OwnedFd,
    news: OwnedFd,
    messages: usize,
}

/// Both sides: for the launcher, whose copies each keep one.
pub(crate) fn pair() -> io::Result<(Keeper, Guard)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (put, kept) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let marker = rustix::fs::memfd_create(MARKER, MemfdFlags::CLOEXEC)?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let guard = Guard { kept: kept.try_clone()?, marker, news: reader };
    Ok((Keeper { put, kept, news: writer, messages: 0 }, guard))
}

impl Keeper {
    /// Keeps a descriptor alive beyond our own life. `others` are all that are kept already and are still needed.
    pub(super) fn keep(
        &mut self,
        new: BorrowedFd<'_>,
        others: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        if self.messages >= MESSAGES_MAX {
            let old = std::mem::take(&mut self.messages);
            others.chunks(BATCH).try_for_each(|fds| self.send(fds))?;
            (0..old).try_for_each(|_| self.take())?;
        }
        self.send(&[new])
    }

    fn send(&mut self, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(fds));
        let word = [IoSlice::new(b"k")];
        sendmsg(&self.put, &word, &mut control, SendFlags::NOSIGNAL)?;
        self.messages += 1;
        Ok(())
    }

    /// Takes the oldest message out of the queue, with what is in it.
    fn take(&self) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut word = [0];
        let mut words = [IoSliceMut::new(&mut word)];
        recvmsg(&self.kept, &mut words, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        // Descriptors that nobody takes are closed.
        control.drain().for_each(drop);
        Ok(())
    }

    /// All memory is there, and our own descriptors are closed.
    pub(super) fn finish(self) -> io::Result<()> {
        (0..self.messages).try_for_each(|_| self.take())?;
        match rustix::io::write(&self.news, &[DONE]) {
            // A sandbox that ended wants to know nothing.
            Ok(_) | Err(Errno::PIPE) => Ok(()),
            Err(err) => Err(err.into()),
        }
    }

    /// Whether anybody has the other side.
    pub(super) fn is_guarded(&self) -> bool {
        let mut news = [PollFd::new(&self.news, PollFlags::empty())];
        let looked = poll(&mut news, Some(&Timespec::default()));
        looked.is_ok() && !news[0].revents().contains(PollFlags::ERR)
    }

    /// Has an error when nobody has the other side any more.
    pub(super) fn news(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.put.as_fd(), self.kept.as_fd(), self.news.as_fd()]
    }
}

/// Whether all memory below a process 1 is there, as far as we brought it back.
pub(crate) fn is_whole(init: i32) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{init}/fd")) else { return true };
    let marker = format!("/memfd:{MARKER} (deleted)");
    let links = open.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    !links.into_iter().any(|link| link.as_os_str() == marker.as_str())
}

/// Waits until then. A page that is on its way looks like one that is empty.
pub(crate) fn until_whole(init: i32, deadline: Deadline) -> Result<()> {
    let mut patience = Patience::default();
    while !is_whole(init) {
        if deadline.passed() {
            let why = "its memory is still on its way from the image";
            return Err(Error::restless(init, why));
        }
        patience.wait();
    }
    Ok(())
}
