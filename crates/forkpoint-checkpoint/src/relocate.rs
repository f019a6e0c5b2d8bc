//! The open files of a tree that stands, exchanged for the same files of other mounts.
//!
//! ```text
//!   look ─► open there ─► hand out ─► the caller's switch ─► exchange
//!   └ nothing touched ┘   └────── our death is the tree's ──────┘
//! ```
//!
//! So what a sandbox has written becomes a layer as it is, while its programs run. Everything that can write moves: what
//! cannot move is told before anything is touched, and the caller does without. What is only mapped or has no name any more stays
//! where it was, and that may be made read-only.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
};

use crate::{
    error::{Doing as _, Error, Result},
    freeze::{Frozen, Held, Tree},
    image::{Alive, FileKind, Process, Snapshot},
    restore::record_locks,
    rollback::end_all,
    script::Script,
    sys::step,
};

mod hand_out;
mod look;

use self::{
    hand_out::{Handed, Parcel, hand_out, take_back},
    look::{Moves, Why},
};

/// A mount of the sandbox, and the one that takes its place.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    /// Where it is, from the sandbox's root; empty for the root itself.
    pub at: &'a Path,
    /// The new one, which need not be attached anywhere.
    pub new: BorrowedFd<'a>,
    /// Where the old one keeps what was changed: what is not there is the same file in both.
    pub upper: &'a Path,
}

/// Something that is polled and moves: what was told of the one before goes with it.
#[derive(Debug)]
struct Poll {
    /// Which process.
    by: usize,
    /// Its number there.
    poll: i32,
    number: i32,
    events: u32,
    data: u64,
}

/// What the caller did when everything was ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    Done,
    /// Nothing happened.
    NotDone,
}

/// A tree in the moment of its capture.
#[derive(Debug)]
pub struct Still<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) frozen: &'a mut Frozen,
    pub(crate) snapshot: &'a Snapshot,
}

/// What is done in the moment of a capture, while nothing runs. A closure is one too.
pub trait Moment {
    fn come(self, still: &mut Still<'_>) -> io::Result<()>;
}

impl<F: FnOnce() -> io::Result<()>> Moment for F {
    fn come(self, _: &mut Still<'_>) -> io::Result<()> {
        self()
    }
}

impl Still<'_> {
    /// Has all processes use the files of other mounts. `switch` puts those in the place of the old ones; from then on, what fails
    /// [ends](Self::end) all of them. Answers which mounts anybody still has something of, by their numbers. The inner error says why it
    /// cannot be done; then nothing was. Where it was done, our death is the tree's until it is [let go](Self::unbind) of: when
    /// somebody else knows what was done.
    pub fn relocate(
        &mut self,
        mounts: &[Exchange<'_>],
        switch: impl FnOnce() -> io::Result<Switch>,
    ) -> Result<std::result::Result<Vec<u64>, String>> {
        let prepare = || -> std::result::Result<_, Why> {
            let moves = Moves::look(self, mounts)?;
            let opened = moves.open(mounts)?;
            let polls = self.polls(&opened)?;
            Ok((moves, opened, polls))
        };
        let (moves, opened, polls) = match prepare() {
            Ok(prepared) => prepared,
            Err(Why(why)) => return Ok(Err(why)),
        };
        let parcels = match self.parcels(&moves, &opened) {
            Ok(parcels) => parcels,
            Err(err) => return Ok(Err(Why::from(err).0)),
        };
        // Whoever dies with half of it done must not leave it running: what was handed out would stay in the processes.
        if let Err(err) = self.frozen.bind() {
            return self.undo(&[], err.to_string());
        }
        let handed = match hand_out(&mut self.frozen.processes, &parcels) {
            Ok(handed) => handed,
            Err((why, handed)) => return self.undo(&handed, why),
        };
        // They are in the processes now; no lock must seem to be ours.
        drop(parcels);
        drop(opened);
        step();
        match switch() {
            Ok(Switch::Done) => step(),
            Ok(Switch::NotDone) => {
                return self.undo(&handed, "the root was not changed".to_owned());
            }
            Err(err) => {
                self.end();
                return Err(err).system("change the root");
            }
        }
        let exchanged = self.exchange(&handed, &polls);
        exchanged.inspect_err(|_| self.end())?;
        Ok(Ok(moves.in_use.into_iter().collect()))
    }

    /// The tree outlives us again.
    pub fn unbind(&self) -> Result<()> {
        self.frozen.unbind()
    }

    /// Ends all processes, which must not go on, and process 1, as our death would: a sandbox that lost its programs must not
    /// seem to run.
    pub fn end(&mut self) {
        end_all(&mut self.frozen.processes);
        end_all(&mut self.frozen.bystanders);
    }

    fn undo(
        &mut self,
        handed: &[Handed],
        why: String,
    ) -> Result<std::result::Result<Vec<u64>, String>> {
        let undone = take_back(&mut self.frozen.processes, handed);
        let undone = undone.and_then(|()| self.frozen.unbind());
        undone.inspect_err(|_| self.end())?;
        Ok(Err(why))
    }

    fn alive(&self) -> impl Iterator<Item = (&Held, &Process, &Alive)> {
        let processes = self.frozen.processes.iter().zip(&self.snapshot.processes);
        processes.filter_map(|(held, process)| Some((held, process, process.alive()?)))
    }

    /// What each process gets.
    fn parcels<'a>(
        &self,
        moves: &Moves,
        opened: &'a [(usize, OwnedFd)],
    ) -> io::Result<Vec<Parcel<'a>>> {
        let mut parcels = Vec::new();
        for ((held, _, alive), cwd) in self.alive().zip(&moves.cwds) {
            let mut parcel = Parcel::default();
            for (file, fd) in opened {
                let its = alive.descriptors.iter().filter(|descriptor| descriptor.file == *file);
                let numbers: Vec<_> = its.map(|its| (its.number, its.close_on_exec)).collect();
                if !numbers.is_empty() {
                    parcel.files.push((fd, numbers));
                }
            }
            if let Some(new) = cwd {
                parcel.cwd = Some((new.try_clone()?, hand_out::cwd_of(held.pid)?));
            }
            parcels.push(parcel);
        }
        Ok(parcels)
    }

    /// Which polls must be told of what moves, and by whom: one who has both.
    fn polls(&self, opened: &[(usize, OwnedFd)]) -> std::result::Result<Vec<Poll>, Why> {
        let mut polls = Vec::new();
        for (index, file) in self.snapshot.files.iter().enumerate() {
            let FileKind::Poll { watched, targets, .. } = &file.kind else { continue };
            for ((number, events, data), target) in watched.iter().zip(targets) {
                if !opened.iter().any(|(moved, _)| moved == target) {
                    continue;
                }
                let found = self.alive().enumerate().find_map(|(by, (_, _, alive))| {
                    let its =
                        |file: usize| alive.descriptors.iter().filter(move |d| d.file == file);
                    its(*target).find(|polled| polled.number == *number)?;
                    Some((by, its(index).next()?.number))
                });
                let (by, poll) = found.ok_or("what is polled is another's by now")?;
                polls.push(Poll { by, poll, number: *number, events: *events, data: *data });
            }
        }
        Ok(polls)
    }

    fn exchange(&mut self, handed: &[Handed], polls: &[Poll]) -> Result<()> {
        let mut scripts = Vec::new();
        for (by, ((held, process, alive), handed)) in self.alive().zip(handed).enumerate() {
            let polls: Vec<_> = polls.iter().filter(|poll| poll.by == by).collect();
            let script = exchange_script(held, alive, handed, &polls);
            scripts.push(script.doing("assemble steps", process.pid)?);
        }
        let all = self.frozen.processes.iter_mut().zip(&scripts);
        let mut all: Vec<_> = all.filter(|(_, script)| !script.calls().is_empty()).collect();
        for (held, script) in &mut all {
            step();
            held.start(0, script).doing("lead the steps", held.pid)?;
        }
        for (held, script) in all {
            let pid = held.pid;
            let outcome = held.finish(0, script).doing("lead the steps", pid)?;
            if let Some((call, source)) = outcome.failure() {
                return Err(Error::Step { pid, step: format!("exchange files ({call})"), source });
            }
        }
        Ok(())
    }
}

/// Each number gets the new file, and what was handed out is closed. The locks of a process come last: it loses those of a
/// file with any descriptor of it that it closes.
fn exchange_script(
    held: &Held,
    alive: &Alive,
    handed: &Handed,
    polls: &[&Poll],
) -> io::Result<Script> {
    let mut script = held.script(0, 64 * (alive.locks.len() + polls.len()));
    for (from, numbers) in &handed.files {
        for (number, close_on_exec) in numbers {
            let flags = if *close_on_exec { libc::O_CLOEXEC } else { 0 };
            script.call(libc::SYS_dup3, &[*from as u64, *number as u64, flags as u64]);
        }
    }
    for number in handed.numbers() {
        script.call(libc::SYS_close, &[number as u64]);
    }
    if !handed.files.is_empty() {
        record_locks(&mut script, alive)?;
    }
    for poll in polls {
        // As the kernel has it: four bytes of events, and right behind them eight of data.
        let event = [&poll.events.to_le_bytes()[..], &poll.data.to_le_bytes()].concat();
        let event = script.put(&event)?;
        let add = libc::EPOLL_CTL_ADD as u64;
        script.call(libc::SYS_epoll_ctl, &[poll.poll as u64, add, poll.number as u64, event]);
    }
    Ok(script)
}
