//! A restore that lets large processes run before all their memory is there. See [`crate::pager`].

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

use super::{Assembled, Found, Plan, Steps, identity::Spots};
use crate::{
    error::{Doing as _, Result},
    freeze::{Frozen, Held},
    image::{Alive, Chain, Process},
    pager::{Guard, Lazy, Pager},
    script::{Call, Outcome},
    sys::fault::Maker,
};

/// What steps have whose processes ask for their pages.
#[derive(Debug)]
pub(super) struct Laziness {
    pub(super) maker: Maker,
    /// One for each process of the image.
    pub(super) processes: Vec<Option<Lazy>>,
}

impl Laziness {
    /// `None`: everything is to be there at once.
    pub(super) fn of(chain: &Chain, spots: &[Spots]) -> Option<Self> {
        if chain.is_shared() {
            return None;
        }
        let lazy = |(process, spots): (&Process, &Spots)| {
            Lazy::of(process.pid, process.alive()?, chain, &spots.pages())
        };
        let processes: Vec<Option<Lazy>> =
            chain.top().snapshot.processes.iter().zip(spots).map(lazy).collect();
        if processes.iter().all(Option::is_none) {
            return None;
        }
        Some(Self { maker: Maker::find()?, processes })
    }
}

impl Steps {
    /// As [`Steps::new`], but large processes run before all their memory is there.
    pub fn lazily(chain: &Chain) -> Result<Self> {
        Self::assemble(chain, |spots| Laziness::of(chain, spots))
    }
}

impl Plan<'_> {
    /// As [`Plan::build`]; what is returned must be kept and looked at.
    pub fn build_lazily(&self) -> Result<Option<Guard>> {
        let guard = self.guard();
        self.build_all()?;
        Ok(guard)
    }

    /// What process 1 keeps; the other side is not its own.
    pub(super) fn guard(&self) -> Option<Guard> {
        let (keeper, guard) = self.sides.borrow_mut().take()?;
        drop(keeper);
        Some(guard)
    }

    /// As [`Plan::finish`]; what is returned must be run, in a process of its own, as soon as possible.
    pub fn finish_lazily(&self, init: i32, patience: Duration) -> Result<Option<Pager>> {
        self.bring(init, patience, true)
    }

    /// Who will bring the missing pages, if there are any.
    pub(super) fn pager(&self) -> Result<Option<Pager>> {
        let Some((keeper, guard)) = self.sides.borrow_mut().take() else { return Ok(None) };
        drop(guard);
        Pager::new(self.chain, keeper).map(Some).system("map the pages")
    }

    /// Has every process that stands asked for its pages, from its first step on.
    pub(super) fn ask_for_pages(&self, frozen: &mut Frozen, pager: &mut Pager) -> Result<()> {
        for held in &mut frozen.processes {
            let Found { process, alive, script, .. } = self.find(held)?;
            let at = self.snapshot().processes.iter().position(|p| p.pid == process.pid);
            let lazy = at.and_then(|at| self.steps.laziness.as_ref()?.processes.get(at)?.as_ref());
            if let Some(lazy) = lazy {
                let asked = ask(held, alive, script, lazy, pager);
                asked.doing("ask for the pages", process.pid)?;
            }
        }
        Ok(())
    }
}

fn ask(
    held: &Held,
    alive: &Alive,
    script: &Assembled,
    lazy: &Lazy,
    pager: &mut Pager,
) -> io::Result<()> {
    let uffd = descriptor(held, script)?;
    let uffd = uffd.ok_or_else(|| io::Error::other("it made no userfaultfd"))?;
    let uffd: OwnedFd = pidfd_getfd(&held.pidfd, uffd, PidfdGetfdFlags::empty())?;
    let soon: Vec<u64> = alive.threads.iter().flat_map(|thread| thread.registers.soon()).collect();
    pager.add(held.pid, uffd, lazy, &soon)
}

/// The number of the userfaultfd that a process made for us.
fn descriptor(held: &Held, script: &Assembled) -> io::Result<Option<i32>> {
    let (Some(call), Some(leader)) = (script.asks, script.scripts.first()) else { return Ok(None) };
    let made = Outcome::read(held.pid, leader)?.result(call)?;
    Ok(Some(made as i32))
}

/// A call that takes the descriptor away again, before the program could see it.
pub(super) fn forget(held: &Held, script: &Assembled) -> io::Result<Option<Call>> {
    let number = descriptor(held, script)?;
    Ok(number.map(|number| Call::new(libc::SYS_close, &[number as u64])))
}
