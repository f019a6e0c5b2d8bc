//! The process that launches sandboxes and changes their roots.
//!
//! A program with threads must not be copied, and may not enter the namespaces of others. So the
//! driver starts its own program once more, as a process with a single thread, and asks that one.
//! Each request is done by a copy of it, so that several run at once, and none can leave a mark.
//!
//! When the driver goes away, so does this process, once the trash is empty.

use std::{cell::RefCell, ffi::OsStr, fs, io, mem::ManuallyDrop, os::fd::OwnedFd, path::PathBuf};

use forkpoint_checkpoint::{Chain, restore::Steps};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, Signal, kill_process},
    thread::CpuSet,
    time::Timespec,
};
use serde::{Deserialize, Serialize};

use super::{
    capture::LayerWork,
    cgroup::Cgroup,
    launch::{
        self, Isolation, LaunchSpec,
        blank::{self, Birth, Blank, BlankSpec, OVERLAYS_MAX},
    },
    memory::merge::MergeWork,
    sys,
    wire::{self, Doing as _, Failure},
};
use crate::layer::{LayerName, LayerStore};

mod rotate;
mod spare;
mod switch;

pub(super) use {
    rotate::Turn,
    spare::Spare,
    switch::{SwitchSpec, overlays},
};

/// What the program is called when it is to be a spawner.
pub(super) const NAME: &str = "forkpoint-spawner";

/// Says so when it is started.
pub(super) const SHARE_MEMORY: &str = "--share-memory";

/// As which users of the host the users of a sandbox appear: far above those that exist.
pub(super) const FIRST_OWNER: u32 = 2_000_000_000;
const OWNERS: u32 = 100_000_000;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// The first one, with what is rung once after each that follows. Copies may run on these processors: the one who is
    /// copied is kept off some (`Client`).
    Bell { processors: Vec<usize> },
    /// There will be an order to launch. Nobody waits for this.
    Prepare(Isolation),
    /// There will be work, told and answered at the one descriptor that comes with this: while it is
    /// prepared, so is whoever does it.
    StandBy(Readiness),
    /// With where to answer and to listen, and the cgroup that it is born in.
    Blank(Box<BlankSpec>),
    /// Without root: with where to answer, the sandbox's lock, and its namespaces.
    Layers { store: PathBuf, work: Box<LayerWork> },
    /// With what is to be let go of when nobody needs the processor. Nobody waits for this.
    Sweep { store: PathBuf, cgroups: Vec<Cgroup> },
    /// Nobody waits for this.
    Merge(MergeWork),
    /// Nobody waits for this.
    Unpack { store: PathBuf, layer: LayerName },
}

/// What is known of work before it is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Readiness {
    pub(super) isolation: Isolation,
    /// Whether there will be a sandbox with a network of its own.
    pub(super) own_network: bool,
    /// What will be brought back, the lowest first.
    pub(super) images: Vec<PathBuf>,
    /// Whose trash is emptied in the end.
    pub(super) store: Option<PathBuf>,
    /// Whether there may be none: who hears nothing for [`EXPECTED`] ends.
    pub(super) perhaps: bool,
}

/// Much longer than anybody is taken for fresh who was expected (`expect.rs`): nobody ends while he is given work.
const EXPECTED: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// For one who stands by.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Work {
    /// Of a sandbox that will be launched: its first process is born at once. With the cgroup that it is born in, if
    /// there is one.
    Birth(Birth),
    /// With the sandbox's lock, its listening socket, and what its cgroups need.
    Launch(Box<LaunchSpec>),
    /// With the sandbox's lock, and without root its namespaces of users and mounts.
    Switch(SwitchSpec),
    /// The same where programs run: what follows is told by [`Turn`]. With the lock and what lies below the root.
    Rotate(SwitchSpec),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Outcome {
    Launched {
        pid: i32,
        started: u64,
    },
    /// With the new overlays.
    Made,
    Switched,
    Done,
    Failed(Failure),
}

/// What all copies share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// A user namespace whose only use is its map.
    owners: Option<OwnedFd>,
    /// What was brought back last, and is likely to be brought back again: to read it takes as long as to bring it
    /// back.
    images: Option<Images>,
    /// Whether copies share what they do not write to.
    share_memory: bool,
    /// For one sandbox.
    spare: RefCell<Option<Spare>>,
    /// Whether one was given away, or could have been.
    needs_spare: bool,
}

/// Images, and how what they hold is brought back.
#[derive(Debug)]
pub(super) struct Images {
    paths: Vec<PathBuf>,
    pub(super) chain: Chain,
    pub(super) steps: Steps,
}

pub(super) fn is_asked() -> bool {
    std::env::args_os().next().is_some_and(|name| name == OsStr::new(NAME))
}

/// Serves the socket at descriptor 0 until the driver is gone.
pub(super) fn serve() -> ! {
    let socket = sys::take_fd(0);
    sys::close_on_exec_from(3);
    sys::reset_signals();
    sys::forget_children();
    // It was started through a descriptor, whose number would be its name.
    let _ = rustix::thread::set_name(c"forkpoint-spawn");
    // A Ctrl-C in the driver's terminal is not for us: work that was begun is finished.
    let _ = rustix::process::setsid();
    let share_memory = std::env::args_os().any(|argument| argument == SHARE_MEMORY);
    let mut shared = Shared { share_memory, ..Shared::default() };
    let mut store = None;
    let mut bell = None;
    let mut processors = None;
    while let Ok(Some((order, mut fds))) = hear(&socket, bell.as_ref(), &mut shared) {
        match order {
            Order::Bell { processors: numbers } => {
                bell = fds.pop();
                processors = (!numbers.is_empty()).then(|| set_of(&numbers));
            }
            Order::Prepare(isolation) => drop(shared.prepare_owners(isolation)),
            Order::Sweep { store: path, cgroups } => {
                store = Some(path);
                shared.forget_images();
                in_a_copy(&shared, processors, || {
                    sweep(&cgroups);
                    let_go_later(fds);
                });
            }
            Order::StandBy(ready) => {
                let prepared = shared.prepare(ready.isolation, &ready.images);
                let work = || stand_by(&ready, prepared, &shared, fds);
                match ready.own_network {
                    true => {
                        in_a_copy_with_spare(processors, work);
                        shared.give_spare(ready.isolation);
                    }
                    false => in_a_copy(&shared, processors, work),
                }
                store = ready.store.or(store);
            }
            Order::Blank(spec) => {
                let prepared = shared.prepare(spec.shape.isolation, &spec.shape.images);
                // Nobody waits for it: the spare is for somebody else.
                in_a_copy(&shared, processors, || blank::keep(&spec, prepared, &shared, fds));
            }
            Order::Merge(work) => in_a_copy(&shared, processors, || {
                let _ = rustix::process::nice(19);
                // If it fails, a chain stays as long as it is.
                let _ = work.run();
            }),
            // Whoever needs it meanwhile waits for this, so it is as quick as others.
            Order::Unpack { store, layer } => in_a_copy(&shared, processors, || {
                let _ = rustix::thread::nanosleep(&LATER);
                // If it fails, whoever needs the layer is told.
                let _ = LayerStore::open_made(&store).and_then(|store| store.layer(&layer));
            }),
            Order::Layers { store, work } => in_a_copy(&shared, processors, || {
                answer(fds, |fds| Ok((switch::on_layers(&store, &work, fds)?, ())));
            }),
        }
    }
    drop(socket);
    if let Some(path) = store {
        // What cannot be deleted is tried again at the next time.
        let _ = crate::layer::empty_trash(&path);
    }
    std::process::exit(0);
}

/// Sleeps until the bell rings, for every order once. The kernel takes whoever sends a message for one that
/// goes to sleep at once, and wakes the receiver on the same processor, where it would wait for whoever
/// goes on. A bell wakes it on one that is idle.
fn hear(
    socket: &OwnedFd,
    bell: Option<&OwnedFd>,
    shared: &mut Shared,
) -> io::Result<Option<(Order, Vec<OwnedFd>)>> {
    if let Some(bell) = bell {
        // An order as such wakes nobody, only that none will come.
        let mut fds = [PollFd::new(bell, PollFlags::IN), PollFd::new(socket, PollFlags::empty())];
        loop {
            match poll(&mut fds, shared.needs_spare.then_some(&spare::QUIET)) {
                Ok(0) => shared.make_spare(),
                Err(Errno::INTR) => {}
                _ => break,
            }
        }
        if fds[1].revents().is_empty() {
            rustix::io::read(bell, &mut [0; 8])?;
        }
    }
    wire::receive(socket)
}

fn set_of(numbers: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    numbers.iter().for_each(|number| set.set(*number));
    set
}

/// Which keeps nothing that is made for somebody else.
fn in_a_copy(shared: &Shared, processors: Option<CpuSet>, work: impl FnOnce()) {
    in_a_copy_with_spare(processors, || {
        drop(shared.take_spare());
        work();
    });
}

fn in_a_copy_with_spare(processors: Option<CpuSet>, work: impl FnOnce()) {
    // If it fails, whoever asked sees the connection close without an answer.
    if let Ok(None) = sys::fork() {
        if let Some(processors) = processors {
            let _ = rustix::thread::sched_setaffinity(None, &processors);
        }
        sys::restore_signals();
        // The driver must see when the spawner is gone, whoever of us lives longer.
        let _ = rustix::stdio::dup2_stdin(rustix::stdio::stdout());
        work();
        // To end takes as long as a tenth of the work, and whoever was answered needs the processor now; and then perhaps
        // the next one.
        let _ = rustix::process::nice(19);
        let _ = rustix::thread::nanosleep(&SOON);
        std::process::exit(0);
    }
}

/// Ends without a trace if no work comes: whoever would have told it has failed, or is gone.
fn stand_by(
    ready: &Readiness,
    prepared: Result<(), Failure>,
    shared: &Shared,
    mut fds: Vec<OwnedFd>,
) {
    let Some(driver) = fds.pop().filter(|driver| !ready.perhaps || is_told(driver)) else { return };
    let kind = (ready.isolation, &*ready.images);
    // Of one who may have stood by for a while.
    let prepared = match ready.perhaps {
        true => prepared.and_then(|()| blank::use_images(&ready.images, shared)),
        false => prepared,
    };
    // Whoever asked waits, and all of it goes with this process.
    let mut begun = ManuallyDrop::new(prepared.map(|()| None));
    loop {
        // What was born waits too. Where nothing was, others need the processor.
        let told = match &*begun {
            Ok(Some(_)) => wire::receive_soon::<Work>(&driver),
            _ => wire::receive(&driver),
        };
        match told {
            Ok(Some((Work::Birth(birth), fds))) => {
                let born = || Blank::born(&birth, kind, shared, fds.first()).map(Some);
                begun = ManuallyDrop::new(ManuallyDrop::into_inner(begun).and_then(|_| born()));
            }
            Ok(Some((Work::Launch(spec), more))) => {
                let begun = begun.as_ref().map(Option::as_ref).map_err(Failure::clone);
                let work = |fds| Ok((launch_begun(&spec, begun?, shared, fds)?, ()));
                answer([driver].into_iter().chain(more).collect(), work);
                return;
            }
            Ok(Some((Work::Switch(spec), more))) => {
                let begun = begun.as_ref().map(drop).map_err(Failure::clone);
                let work = |fds| begun.and_then(|()| switch::switch(&spec, shared, fds));
                let old = answer([driver].into_iter().chain(more).collect(), work);
                let_go_later(old.into_iter().collect());
                return;
            }
            Ok(Some((Work::Rotate(spec), more))) => {
                rotate::rotate(&spec, shared, &driver, more);
                return;
            }
            Ok(None) | Err(_) => {
                if let Ok(Some(blank)) = &*begun {
                    blank.end();
                }
                return;
            }
        }
    }
}

fn is_told(driver: &OwnedFd) -> bool {
    let waits = || poll(&mut [PollFd::new(driver, PollFlags::IN)], Some(&EXPECTED));
    wire::comes_soon(driver) || waits().is_ok_and(|heard| heard > 0)
}

fn launch_begun(
    spec: &LaunchSpec,
    begun: Option<&Blank<'_>>,
    shared: &Shared,
    fds: Vec<OwnedFd>,
) -> Result<Outcome, Failure> {
    let Some(blank) = begun.filter(|_| spec.overlays.len() <= OVERLAYS_MAX) else {
        begun.inspect(|blank| blank.end());
        let plan = ManuallyDrop::new(launch::plan(shared, &spec.images)?);
        return launch::launch(spec, shared, plan.as_ref(), fds);
    };
    // While its first process is still on its way.
    let launched = launch::spawner_overlays(spec, shared).and_then(|overlays| {
        blank.wait_for_stage()?;
        blank.launch(spec, overlays, fds)
    });
    launched.inspect_err(|_| blank.give_up())
}

/// Whoever asked comes first among the descriptors.
fn answer<T>(
    mut fds: Vec<OwnedFd>,
    work: impl FnOnce(Vec<OwnedFd>) -> Result<(Outcome, T), Failure>,
) -> Option<T> {
    if fds.is_empty() {
        return None;
    }
    let to = fds.remove(0);
    // If nobody hears it, there is nobody to be told so.
    match work(fds) {
        Ok((outcome, rest)) => wire::send(&to, &outcome, &[]).ok().map(|()| rest),
        Err(failure) => wire::send(&to, &Outcome::Failed(failure), &[]).ok().and(None),
    }
}

/// When whoever was answered has gone on.
const LATER: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// When whoever was answered has answered in turn.
const SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 3_000_000 };

/// Whoever was answered goes on, and needs the processor more: an old root may have a hundred thousand
/// files in memory, and the kernel rarely gives way while it lets go of them.
fn let_go_later(old: Vec<OwnedFd>) {
    if !old.is_empty() {
        let _ = rustix::process::nice(19);
        let _ = rustix::thread::nanosleep(&LATER);
        drop(old);
    }
}

impl Shared {
    fn prepare(&mut self, isolation: Isolation, images: &[PathBuf]) -> Result<(), Failure> {
        self.prepare_owners(isolation)?;
        self.prepare_images(images)
    }

    fn prepare_images(&mut self, wanted: &[PathBuf]) -> Result<(), Failure> {
        self.forget_images();
        if !wanted.is_empty() && self.images(wanted).is_none() {
            // First, so that there is never more than one in memory.
            self.images = None;
            let (chain, steps) = launch::open_images(wanted, self.share_memory)?;
            self.images = Some(Images { paths: wanted.to_vec(), chain, steps });
        }
        Ok(())
    }

    /// Those that were deleted: what is open takes room on the disk.
    fn forget_images(&mut self) {
        self.images.take_if(|images| !images.chain.is_as_opened());
    }

    /// What was prepared, if it was asked for.
    pub(super) fn images(&self, wanted: &[PathBuf]) -> Option<&Images> {
        self.images.as_ref().filter(|images| images.paths == wanted)
    }

    /// Nobody waits. What cannot be made now is made with the sandbox.
    fn make_spare(&mut self) {
        self.needs_spare = false;
        self.spare = RefCell::new(Spare::make().ok());
    }

    /// To the copy that was just made: whatever becomes of it there, it is nobody else's.
    fn give_spare(&mut self, isolation: Isolation) {
        self.spare = RefCell::default();
        self.needs_spare = isolation == Isolation::Mapped;
    }

    /// For a sandbox with a network of its own, once.
    pub(super) fn take_spare(&self) -> Option<Spare> {
        self.spare.take()
    }

    fn prepare_owners(&mut self, isolation: Isolation) -> Result<(), Failure> {
        if isolation == Isolation::Mapped && self.owners.is_none() {
            self.owners = Some(make_owners().doing("map users")?);
        }
        Ok(())
    }

    pub(super) fn owners(&self) -> io::Result<Option<OwnedFd>> {
        self.owners.as_ref().map(OwnedFd::try_clone).transpose()
    }
}

fn make_owners() -> io::Result<OwnedFd> {
    let (ours, theirs) = wire::pair()?;
    match sys::clone(sys::NEW_USER, None)? {
        None => {
            drop(ours);
            // Ends when the other side closes.
            let _ = wire::receive::<()>(&theirs);
            std::process::exit(0);
        }
        Some(pid) => {
            let result = write_maps(pid, FIRST_OWNER, FIRST_OWNER, OWNERS)
                .and_then(|()| fs::File::open(format!("/proc/{}/ns/user", pid.as_raw_nonzero())));
            let _ = kill_process(pid, Signal::KILL);
            Ok(result?.into())
        }
    }
}

pub(super) fn map_all_owners(pid: Pid) -> io::Result<()> {
    write_maps(pid, FIRST_OWNER, FIRST_OWNER, OWNERS)
}

/// Only we ourselves exist inside, as its root.
pub(super) fn map_one_owner(pid: Pid) -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    fs::write(format!("/proc/{}/setgroups", pid.as_raw_nonzero()), "deny")?;
    write_maps(pid, uid.as_raw(), gid.as_raw(), 1)
}

fn write_maps(pid: Pid, uid: u32, gid: u32, count: u32) -> io::Result<()> {
    let pid = pid.as_raw_nonzero();
    fs::write(format!("/proc/{pid}/uid_map"), format!("0 {uid} {count}"))?;
    fs::write(format!("/proc/{pid}/gid_map"), format!("0 {gid} {count}"))
}

/// Cgroups of sandboxes that were killed: they can be removed when the last process is gone.
fn sweep(cgroups: &[Cgroup]) {
    for cgroup in cgroups {
        // What stays is empty, and harms nobody.
        let _ = cgroup.remove();
    }
}

/// The owner of files that a sandbox's root makes, as the host sees it.
pub(super) fn as_sandbox_root<T>(work: impl FnOnce() -> T) -> T {
    sys::set_file_owner(FIRST_OWNER, FIRST_OWNER);
    let result = work();
    sys::set_file_owner(0, 0);
    result
}
