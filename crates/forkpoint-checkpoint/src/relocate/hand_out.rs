//! Descriptors on their way into processes that stand.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags, open},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    process::{PidfdGetfdFlags, pidfd_getfd},
};

use crate::{
    error::{Doing as _, Result},
    freeze::Held,
    script::{Outcome, Script},
    sys::step,
};

/// The kernel takes a few more in one message.
const CHUNK: usize = 128;

/// Number, and whether it is closed when the process becomes another program.
type Number = (i32, bool);

/// For one process.
#[derive(Debug, Default)]
pub(super) struct Parcel<'a> {
    /// Each with the numbers that it is to have.
    pub(super) files: Vec<(&'a OwnedFd, Vec<Number>)>,
    /// The directory that it is to be in, and the one that it is in.
    pub(super) cwd: Option<(OwnedFd, OwnedFd)>,
}

impl Parcel<'_> {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let cwds = self.cwd.iter().flat_map(|(new, old)| [new.as_fd(), old.as_fd()]);
        cwds.chain(self.files.iter().map(|(fd, _)| fd.as_fd())).collect()
    }
}

/// What a process has got.
#[derive(Debug, Default)]
pub(super) struct Handed {
    /// The number that each came under, and those that it is to have.
    pub(super) files: Vec<(i32, Vec<Number>)>,
    cwd: Option<(i32, i32)>,
    /// Numbers of nothing but the way here, and of what came when not all of it did.
    rest: Vec<i32>,
}

impl Handed {
    /// All that is to be closed again.
    pub(super) fn numbers(&self) -> impl Iterator<Item = i32> {
        let cwds = self.cwd.iter().flat_map(|(new, old)| [*new, *old]);
        cwds.chain(self.files.iter().map(|(number, _)| *number)).chain(self.rest.iter().copied())
    }
}

pub(super) fn cwd_of(pid: i32) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(open(format!("/proc/{pid}/cwd"), flags, Mode::empty())?)
}

/// Gives each process what is for it, and has it change its directory. An error comes with what was given until then.
pub(super) fn hand_out(
    processes: &mut [Held],
    parcels: &[Parcel<'_>],
) -> std::result::Result<Vec<Handed>, (String, Vec<Handed>)> {
    let mut all = Vec::with_capacity(parcels.len());
    for (held, parcel) in processes.iter_mut().zip(parcels) {
        step();
        let mut handed = Handed::default();
        let given = give(held, parcel, &mut handed);
        all.push(handed);
        if let Err(err) = given {
            let why = format!("process {} cannot be given its files ({err})", held.pid);
            return Err((why, all));
        }
    }
    Ok(all)
}

fn give(held: &mut Held, parcel: &Parcel<'_>, handed: &mut Handed) -> io::Result<()> {
    let fds = parcel.fds();
    if fds.is_empty() {
        return Ok(());
    }
    let way = open_way(held, handed)?;
    let mut came = Vec::with_capacity(fds.len());
    for chunk in fds.chunks(CHUNK) {
        send(&way, chunk)?;
        let numbers = receive(held, handed.rest[0], chunk.len())?;
        let is_whole = numbers.len() == chunk.len();
        came.extend(numbers);
        if !is_whole {
            handed.rest.extend(came);
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
    }
    let mut came = came.into_iter();
    handed.cwd = parcel.cwd.as_ref().and_then(|_| came.next().zip(came.next()));
    handed.files = came.zip(parcel.files.iter().map(|(_, numbers)| numbers.clone())).collect();
    let Some((new, _)) = handed.cwd else { return Ok(()) };
    change_directory(held, new)
}

/// A pair of sockets in the process, one of which is ours too.
fn open_way(held: &mut Held, handed: &mut Handed) -> io::Result<OwnedFd> {
    const KIND: i32 = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let mut script = held.script(0, 64);
    let pair = script.room(8)?;
    script.call(libc::SYS_socketpair, &[libc::AF_UNIX as u64, KIND as u64, 0, pair]);
    let outcome = run(held, &script)?;
    let [both] = outcome.words::<1>(pair);
    let (theirs, ours) = (both as u32 as i32, (both >> 32) as i32);
    handed.rest.extend([theirs, ours]);
    Ok(pidfd_getfd(&held.pidfd, ours, PidfdGetfdFlags::empty())?)
}

fn send(way: &OwnedFd, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(CHUNK))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(way, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The numbers that a message's descriptors came under: fewer, if there is no room for all.
fn receive(held: &mut Held, way: i32, count: usize) -> io::Result<Vec<i32>> {
    const HEADER: usize = 16;
    const FLAGS: i32 = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    let control_len = (HEADER + 4 * count).next_multiple_of(8);
    let mut script = held.script(0, 512 + control_len);
    let byte = script.room(8)?;
    let vector = script.put_words(&[byte, 1])?;
    let control = script.room(control_len)?;
    let message = script.put_words(&[0, 0, vector, 1, control, control_len as u64, 0])?;
    script.call(libc::SYS_recvmsg, &[way as u64, message, FLAGS as u64]);
    let outcome = run(held, &script)?;
    let [.., used, _] = outcome.words::<7>(message);
    let words: [u64; HEADER / 8 + CHUNK / 2] = outcome.words(control);
    // What the kernel wrote lies in the program's memory, where nobody of it runs.
    let told = (words[0].min(used) as usize).saturating_sub(HEADER) / 4;
    let number = |index: usize| (words[2 + index / 2] >> (32 * (index % 2))) as u32 as i32;
    Ok((0..told.min(count)).map(number).collect())
}

fn change_directory(held: &mut Held, number: i32) -> io::Result<()> {
    let mut script = held.script(0, 0);
    script.call(libc::SYS_fchdir, &[number as u64]);
    run(held, &script).map(drop)
}

/// All of it must succeed.
fn run(held: &mut Held, script: &Script) -> io::Result<Outcome> {
    let outcome = held.run(0, script)?;
    match outcome.failure() {
        Some((_, err)) => Err(err),
        None => Ok(outcome),
    }
}

/// As if nothing had been handed out.
pub(super) fn take_back(processes: &mut [Held], handed: &[Handed]) -> Result<()> {
    for (held, handed) in processes.iter_mut().zip(handed) {
        let mut script = held.script(0, 0);
        if let Some((_, old)) = handed.cwd {
            script.call(libc::SYS_fchdir, &[old as u64]);
        }
        for number in handed.numbers() {
            script.call(libc::SYS_close, &[number as u64]);
        }
        if !script.calls().is_empty() {
            run(held, &script).doing("take files back", held.pid)?;
        }
    }
    Ok(())
}
