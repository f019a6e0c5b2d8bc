//! A sandbox that is nobody's yet.
//!
//! ```text
//!   keeper, a copy of the spawner      child, soon process 1
//!   clone3, maps ────────────────────► becomes root inside, mounts what every sandbox has
//!   tells the driver ◄─────────────── ready; waits
//!   … an order comes, with a root ───► takes its name and its root; from here on as in a launch
//! ```
//!
//! The keeper ends what it keeps when the driver goes away, or when the child does. It is used once.
//!
//! A launch that is the only one begins as such a one: while the driver prepares what the sandbox needs, its first process is
//! born. Where several are under way, the processors have enough to do.

use std::{
    io, mem,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use forkpoint_checkpoint::restore::Plan;
use forkpoint_core::spec::Network;
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    Fds, Home, Isolation, LaunchSpec, Ours, Overlays, Told, attend, bear, begin_at, get_rid, join,
    let_begin, serve, settle_in, shared_memory, spawner_overlays, sys_for, take_name, tell_failure,
    told,
};
use crate::driver::local::{
    cgroup::Cgroup,
    root::{Entered, Furniture, Stage},
    spawner::{Outcome, Shared},
    sys,
    wire::{self, Doing as _, FDS_MAX, Failure},
};

/// What of a sandbox must be known before it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Shape {
    pub(in super::super) isolation: Isolation,
    pub(in super::super) network: Network,
    /// What runs in it will be brought back from these, the lowest first.
    pub(in super::super) images: Vec<PathBuf>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) struct BlankSpec {
    pub(in super::super) shape: Shape,
    /// What it is born in, and what goes with it. Its directory is the descriptor after the socket.
    pub(in super::super) cgroup: Cgroup,
    pub(in super::super) into_cgroup: bool,
}

/// What the child is told when it is somebody's. With its listening socket, one descriptor for each overlay,
/// and files of cgroups to join.
#[derive(Debug, Serialize, Deserialize)]
struct Adoption {
    hostname: String,
    #[serde(with = "wire::paths")]
    overlays: Vec<PathBuf>,
    files: Vec<(PathBuf, String)>,
    shared_memory_bytes: u64,
}

/// The keeper's side. With the driver's socket, where orders come from and answers go, and a cgroup.
pub(in super::super) fn keep(
    spec: &BlankSpec,
    prepared: Result<(), Failure>,
    shared: &Shared,
    fds: Vec<OwnedFd>,
) {
    let mut fds = fds.into_iter();
    let Some(driver) = fds.next() else { return };
    let cgroup = fds.next().filter(|_| spec.into_cgroup);
    let size = shared_memory(None);
    let begin = || Blank::begin(&spec.shape, size, shared, cgroup.as_ref(), Patience::Long);
    let begun = prepared.and_then(|()| begin());
    let made = begun.and_then(|blank| {
        blank.wait_for_stage().inspect_err(|_| blank.end())?;
        Ok(blank)
    });
    let outcome = match made {
        Err(failure) => Outcome::Failed(failure),
        // If nobody hears it, nobody sends an order either.
        Ok(blank) => match wire::send(&driver, &Outcome::Done, &[]).map(|()| blank.wait(&driver)) {
            Ok(Some((order, fds))) => {
                let launched = use_images(&order.images, shared)
                    .and_then(|()| spawner_overlays(&order, shared))
                    .and_then(|overlays| blank.launch(&order, overlays, fds));
                let outcome = launched.unwrap_or_else(|failure| {
                    blank.give_up();
                    Outcome::Failed(failure)
                });
                // Whoever asked waits, and all of it goes with this process.
                mem::forget(blank);
                outcome
            }
            Ok(None) | Err(_) => {
                blank.end();
                Outcome::Done
            }
        },
    };
    if !matches!(outcome, Outcome::Launched { .. }) {
        // What stays is swept by the next driver.
        let _ = spec.cgroup.remove();
    }
    let _ = wire::send(&driver, &outcome, &[]);
}

/// Whether they are still what was read.
pub(in super::super) fn use_images(images: &[PathBuf], shared: &Shared) -> Result<(), Failure> {
    if shared.images(images).is_some_and(|images| !images.chain.is_as_opened()) {
        let err = io::Error::other("it was changed since it was read");
        return Err(Failure::new("use an image", &err));
    }
    Ok(())
}

/// What is known of a sandbox before it is launched.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(in super::super) struct Birth {
    pub(in super::super) network: Network,
    pub(in super::super) memory_bytes: Option<u64>,
}

/// How somebody waits for what is told next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    /// It comes soon, and the processor has nothing else to do.
    Soon,
    Long,
}

impl Patience {
    fn receive<T: DeserializeOwned>(
        self,
        socket: &OwnedFd,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        match self {
            Self::Soon => wire::receive_soon(socket),
            Self::Long => wire::receive(socket),
        }
    }
}

/// A sandbox whose first process is on its way to its stage.
pub(in super::super) struct Blank<'a> {
    pid: Pid,
    child: OwnedFd,
    plan: Option<Plan<'a>>,
    patience: Patience,
}

impl<'a> Blank<'a> {
    /// One that somebody waits for.
    pub(in super::super) fn born(
        birth: &Birth,
        (isolation, images): (Isolation, &[PathBuf]),
        shared: &'a Shared,
        cgroup: Option<&OwnedFd>,
    ) -> Result<Self, Failure> {
        let shape = Shape { isolation, network: birth.network, images: images.to_vec() };
        Self::begin(&shape, shared_memory(birth.memory_bytes), shared, cgroup, Patience::Soon)
    }

    fn begin(
        shape: &Shape,
        shared_memory_bytes: u64,
        shared: &'a Shared,
        cgroup: Option<&OwnedFd>,
        patience: Patience,
    ) -> Result<Self, Failure> {
        let Shape { isolation, network, images } = shape;
        let (isolation, network) = (*isolation, *network);
        let furniture = Furniture {
            overlays: Vec::new(),
            sys: sys_for(isolation, network)?,
            own_network: network == Network::None,
            shared_memory_bytes,
            files: Vec::new(),
        };
        let plan = super::plan(shared, images)?;
        let (ours, theirs) = wire::pair().doing("launch")?;
        let cgroup: Option<BorrowedFd<'_>> = cgroup.map(|fd| fd.as_fd());
        let (born, home) = bear(isolation, network, shared, cgroup)?;
        match born {
            None => {
                drop(ours);
                let begins = Begins { isolation, home, patience };
                let Err(failure) = live(begins, &furniture, &theirs, plan.as_ref());
                tell_failure(&theirs, failure)
            }
            Some(pid) => {
                let blank = Self { pid, child: ours, plan, patience };
                drop((theirs, furniture));
                let began = let_begin(isolation, &home, pid, &blank.child);
                began.inspect_err(|_| blank.end()).map(|()| blank)
            }
        }
    }

    /// Until its first process has what every sandbox has.
    pub(in super::super) fn wait_for_stage(&self) -> Result<(), Failure> {
        told(self.patience.receive(&self.child), &self.child)
    }

    /// `None` when there will be no order, or nobody to follow it.
    fn wait(&self, driver: &OwnedFd) -> Option<(Box<LaunchSpec>, Vec<OwnedFd>)> {
        loop {
            let fds = [driver, &self.child];
            let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::IN));
            match poll(&mut fds, None) {
                Ok(_) if !fds[1].revents().is_empty() => return None,
                Ok(_) if !fds[0].revents().is_empty() => {
                    return wire::receive(driver).ok().flatten();
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }

    /// From its stage.
    pub(in super::super) fn launch(
        &self,
        spec: &LaunchSpec,
        overlays: Overlays,
        fds: Vec<OwnedFd>,
    ) -> Result<Outcome, Failure> {
        let fds = Fds::sort(spec, fds).doing("launch")?;
        let (overlays, mounts): (Vec<PathBuf>, Vec<OwnedFd>) = overlays.into_iter().unzip();
        let adoption = Adoption {
            hostname: spec.record.hostname.clone(),
            overlays,
            files: spec.files.clone(),
            shared_memory_bytes: spec.shared_memory(),
        };
        let handed = [&fds.listener].into_iter().chain(&mounts).chain(&fds.tasks);
        let handed: Vec<_> = handed.map(|fd| fd.as_fd()).collect();
        wire::send(&self.child, &adoption, &handed).doing("launch")?;
        drop(mounts);
        attend(spec, self.pid, &self.child, self.plan.as_ref())
    }

    /// Before it is launched.
    pub(in super::super) fn end(&self) {
        self.give_up();
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }

    /// When that has failed. Those that were brought back may be traced by us: they are gone, and so is it, when we are, and
    /// whoever waited for it here would wait for ever.
    pub(in super::super) fn give_up(&self) {
        let _ = kill_process(self.pid, Signal::KILL);
    }
}

/// Of how many overlays a sandbox can be made of a blank: their descriptors go with others in one message.
pub(in super::super) const OVERLAYS_MAX: usize = FDS_MAX - 6;

/// As what a child begins.
struct Begins {
    isolation: Isolation,
    home: Home,
    patience: Patience,
}

/// The child's side: it returns only to fail.
fn live(
    Begins { isolation, home, patience }: Begins,
    furniture: &Furniture,
    launcher: &OwnedFd,
    plan: Option<&Plan<'_>>,
) -> Result<std::convert::Infallible, Failure> {
    sys::restore_signals();
    let floor = begin_at(home, isolation, furniture.own_network, launcher)?;
    let stage = Stage::enter(furniture, floor)?;
    let terminals = settle_in()?;
    wire::send(launcher, &Told::Ready, &[]).doing("launch")?;
    let order = patience.receive::<Adoption>(launcher).doing("wait for an order")?;
    let Some((adoption, fds)) = order else {
        std::process::exit(0);
    };
    let Adoption { hostname, overlays, files, shared_memory_bytes } = adoption;
    let mut fds = fds.into_iter();
    let missing = || Failure::new("launch", &io::Error::other("a descriptor is missing"));
    let listener = fds.next().ok_or_else(missing)?;
    let mounts: Vec<OwnedFd> = fds.by_ref().take(overlays.len()).collect();
    let overlays: Vec<_> = overlays.into_iter().zip(mounts).collect();
    join(&fds.collect::<Vec<_>>())?;
    take_name(&hostname)?;
    let own_network = furniture.own_network;
    let furniture = Furniture { overlays, sys: None, own_network, shared_memory_bytes, files };
    let Entered { floor, used } = stage.leave(&furniture)?;
    get_rid(used, launcher)?;
    drop(furniture);
    serve(Ours { listener, terminals, floor }, launcher, plan)
}
