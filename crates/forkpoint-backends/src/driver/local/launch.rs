//! A new sandbox: namespaces, root file system, and an init that waits for requests.
//!
//! ```text
//!   launcher                         child, soon process 1
//!   clone3 ────────────────────────► joins its cgroups
//!   writes the maps of users ──────► becomes root inside
//!                                    mounts, changes its root, drops rights
//!   writes the record ◄──────────── ready
//!   go ────────────────────────────► serves
//! ```
//!
//! A child whose launcher dies on the way ends: nothing lives that no record tells of.

use std::{
    fs::File,
    io::{self, Write as _},
    mem,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::PathBuf,
    time::Duration,
};

use forkpoint_checkpoint::{
    Chain,
    pager::{Guard, Pager},
    restore::{Plan, Steps},
};

use forkpoint_core::spec::Network;
use rustix::{
    fs::{Gid, Mode, OFlags, Uid, open},
    process::{DumpableBehavior, Pid, Signal, kill_process, set_dumpable_behavior, setsid, umask},
    system::sethostname,
    thread::{
        UnshareFlags, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};
use serde::{Deserialize, Serialize};

use super::{
    caps, init,
    mount::{OverlaySpec, clone_tree},
    record::{InitRecord, Record, StagedRecord},
    root::{self, Entered, Floor, Furniture},
    seccomp,
    spawner::{self, Outcome, Shared},
    sys,
    wire::{self, Doing as _, Failure},
};
use crate::layer::Marks;

pub(super) mod blank;

const SHARED_MEMORY_MAX: u64 = 256 << 20;

const BRING_BACK: &str = "bring processes back";
const WRITE_RECORD: &str = "write the sandbox's record";

/// How long processes may take to come back.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a sandbox's users stand to the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Isolation {
    /// Made by root: the users inside are nobody outside.
    Mapped,
    /// Made by root on a kernel or file system that cannot map: root inside is root, with few rights.
    Plain,
    /// Made by somebody else, who is its root and its only user.
    Rootless,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LaunchSpec {
    pub(super) isolation: Isolation,
    /// The driver's directory.
    pub(super) data: PathBuf,
    pub(super) marks: Marks,
    pub(super) overlays: Vec<OverlaySpec>,
    pub(super) network: Network,
    /// What is put over files of the sandbox.
    pub(super) files: Vec<(PathBuf, String)>,
    /// What runs in it is brought back from these, the lowest first.
    pub(super) images: Vec<PathBuf>,
    /// Whether the first descriptor after the socket is a cgroup to be born in.
    pub(super) into_cgroup: bool,
    /// Written when the sandbox is ready.
    pub(super) record: Record,
}

/// What comes with the order.
struct Fds {
    /// Held until the record is written; the kernel lets go of it if we die.
    _lock: OwnedFd,
    listener: OwnedFd,
    cgroup: Option<OwnedFd>,
    /// Version 1 cgroups are joined by writing to a file.
    tasks: Vec<OwnedFd>,
}

impl Fds {
    fn sort(spec: &LaunchSpec, fds: Vec<OwnedFd>) -> io::Result<Self> {
        let missing = || io::Error::other("a descriptor is missing");
        let mut fds = fds.into_iter();
        let lock = fds.next().ok_or_else(missing)?;
        let listener = fds.next().ok_or_else(missing)?;
        let cgroup = match spec.into_cgroup {
            true => Some(fds.next().ok_or_else(missing)?),
            false => None,
        };
        Ok(Self { _lock: lock, listener, cgroup, tasks: fds.collect() })
    }
}

/// How what was prepared is brought back, if anything is.
pub(super) fn plan<'a>(
    shared: &'a Shared,
    images: &[PathBuf],
) -> Result<Option<Plan<'a>>, Failure> {
    let plan = shared.images(images).map(|images| Plan::new(&images.chain, &images.steps));
    plan.transpose().map_err(not_back)
}

pub(super) fn launch(
    spec: &LaunchSpec,
    shared: &Shared,
    plan: Option<&Plan<'_>>,
    fds: Vec<OwnedFd>,
) -> Result<Outcome, Failure> {
    let fds = Fds::sort(spec, fds).doing("launch")?;
    let overlays = match spec.isolation {
        Isolation::Rootless => Vec::new(),
        _ => spawner_overlays(spec, shared)?,
    };
    let mut furniture = Furniture {
        overlays,
        sys: sys_for(spec.isolation, spec.network)?,
        own_network: spec.network == Network::None,
        shared_memory_bytes: spec.shared_memory(),
        files: spec.files.clone(),
    };
    let (ours, theirs) = wire::pair().doing("launch")?;
    let cgroup = fds.cgroup.as_ref().map(|fd| fd.as_fd());
    let (born, home) = bear(spec.isolation, spec.network, shared, cgroup)?;
    match born {
        None => {
            drop(ours);
            let Err(failure) = live(spec, (&mut furniture, home), fds, &theirs, plan);
            tell_failure(&theirs, failure)
        }
        Some(pid) => {
            drop((theirs, furniture));
            let result = let_begin(spec.isolation, &home, pid, &ours)
                .and_then(|()| attend(spec, pid, &ours, plan));
            if result.is_err() {
                let _ = kill_process(pid, Signal::KILL);
            }
            result
        }
    }
}

/// Whether users and network of a sandbox were there before it, and a floor.
#[derive(Debug)]
enum Home {
    Ready { floor: Floor },
    New,
}

/// Copies this process into the namespaces of a sandbox: `None` is the copy.
fn bear(
    isolation: Isolation,
    network: Network,
    shared: &Shared,
    cgroup: Option<BorrowedFd<'_>>,
) -> Result<(Option<Pid>, Home), Failure> {
    let wanted = isolation == Isolation::Mapped && network == Network::None;
    // If it cannot be used, all is as if there were none.
    if let Some(spare) = shared.take_spare().filter(|_| wanted)
        && let Ok((born, floor)) = spare.bear(cgroup)
    {
        return Ok((born, Home::Ready { floor }));
    }
    let born = sys::clone(namespaces(isolation, network), cgroup).doing("create namespaces")?;
    Ok((born, Home::New))
}

fn namespaces(isolation: Isolation, network: Network) -> u64 {
    let users = if isolation == Isolation::Plain { 0 } else { sys::NEW_USER };
    let network = if network == Network::None { sys::NEW_NET } else { 0 };
    sys::NEW_REST | users | network
}

fn sys_for(isolation: Isolation, network: Network) -> Result<Option<OwnedFd>, Failure> {
    match (isolation, network) {
        (Isolation::Rootless, _) | (_, Network::None) => Ok(None),
        (_, Network::Host) => host_sys().map(Some).doing("open /sys"),
    }
}

fn tell_failure(launcher: &OwnedFd, failure: Failure) -> ! {
    // If nobody hears it, nobody waits for us either.
    let _ = wire::send(launcher, &Told::Failed(failure), &[]);
    std::process::exit(1);
}

impl LaunchSpec {
    fn shared_memory(&self) -> u64 {
        shared_memory(self.record.spec.resources.memory_bytes)
    }
}

/// What lies in `/dev/shm` is nobody's: if it could take all the memory that a sandbox may have, who
/// is killed for it in the end is init.
pub(super) fn shared_memory(limit: Option<u64>) -> u64 {
    limit.map_or(SHARED_MEMORY_MAX, |limit| SHARED_MEMORY_MAX.min(limit / 2))
}

pub(super) type Overlays = Vec<(PathBuf, OwnedFd)>;

/// Once for all copies of this process.
pub(super) fn open_images(images: &[PathBuf], share: bool) -> Result<(Chain, Steps), Failure> {
    let chain = Chain::open(images.iter().cloned());
    let mut chain = chain.map_err(|err| Failure::of(BRING_BACK, &err))?;
    if share {
        chain.share_memory().doing("keep pages in memory")?;
    }
    let steps = Steps::lazily(&chain).map_err(not_back)?;
    Ok((chain, steps))
}

fn not_back(err: forkpoint_checkpoint::Error) -> Failure {
    Failure::of(BRING_BACK, &err)
}

pub(super) fn spawner_overlays(spec: &LaunchSpec, shared: &Shared) -> Result<Overlays, Failure> {
    let LaunchSpec { isolation, data, marks, overlays, .. } = spec;
    spawner::overlays(*isolation, data, *marks, overlays, shared)
}

fn host_sys() -> io::Result<OwnedFd> {
    let sys = clone_tree(rustix::fs::CWD, "/sys")?;
    let read_only = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID;
    sys::set_mount_flags(&sys, read_only | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC)?;
    Ok(sys)
}

#[derive(Debug, Serialize, Deserialize)]
enum Told {
    /// With what takes a while to let go of, for one who ends soon and whom nobody waits for.
    Rid,
    Ready,
    Failed(Failure),
}

/// The launcher's side, from the clone on.
fn let_begin(isolation: Isolation, home: &Home, pid: Pid, child: &OwnedFd) -> Result<(), Failure> {
    if matches!(home, Home::Ready { .. }) {
        return Ok(());
    }
    match isolation {
        Isolation::Mapped => spawner::map_all_owners(pid).doing("map users")?,
        Isolation::Rootless => spawner::map_one_owner(pid).doing("map users")?,
        Isolation::Plain => {}
    }
    wire::send(child, &(), &[]).doing("launch")
}

fn wait_for_child(child: &OwnedFd) -> Result<(), Failure> {
    told(wire::receive(child), child)
}

/// What a child has said, or says next.
fn told(told: io::Result<Option<(Told, Vec<OwnedFd>)>>, child: &OwnedFd) -> Result<(), Failure> {
    match told.doing("launch")? {
        Some((Told::Rid, fds)) => {
            mem::forget(fds);
            wait_for_child(child)
        }
        Some((Told::Ready, _)) => Ok(()),
        Some((Told::Failed(failure), _)) => Err(failure),
        None => Err(Failure::new("launch", &io::Error::other("it ended at once"))),
    }
}

fn attend(
    spec: &LaunchSpec,
    pid: Pid,
    child: &OwnedFd,
    plan: Option<&Plan<'_>>,
) -> Result<Outcome, Failure> {
    // While the child works. If it fails, that says more than that it is gone.
    let staged = stage_record(spec, pid);
    wait_for_child(child)?;
    let (init, record) = staged?;
    if let Some(plan) = plan {
        let pager = plan.finish_lazily(pid.as_raw_nonzero().get(), PATIENCE).map_err(not_back)?;
        // From here on it runs, and may wait for its memory.
        pager.map(Pager::spawn).transpose().doing(BRING_BACK)?;
    }
    record.publish().doing(WRITE_RECORD)?;
    wire::send(child, &(), &[]).doing("launch")?;
    Ok(Outcome::Launched { pid: init.pid, started: init.started })
}

fn stage_record(spec: &LaunchSpec, pid: Pid) -> Result<(InitRecord, StagedRecord), Failure> {
    let init = InitRecord::of(pid).doing("look at the new process")?;
    let record = Record { init: Some(init.clone()), ..spec.record.clone() };
    let staged = record.stage(&spec.data).doing(WRITE_RECORD)?;
    Ok((init, staged))
}

fn wait_for_launcher(launcher: &OwnedFd) -> Result<(), Failure> {
    match wire::receive::<()>(launcher).doing("wait for the launcher")? {
        Some(_) => Ok(()),
        None => std::process::exit(1),
    }
}

/// The child's side: it returns only to fail.
fn live(
    spec: &LaunchSpec,
    (furniture, home): (&mut Furniture, Home),
    fds: Fds,
    launcher: &OwnedFd,
    plan: Option<&Plan<'_>>,
) -> Result<std::convert::Infallible, Failure> {
    sys::restore_signals();
    join(&fds.tasks)?;
    begin_at(home, spec.isolation, furniture.own_network, launcher)?;
    take_name(&spec.record.hostname)?;
    if spec.isolation == Isolation::Rootless {
        furniture.overlays = spawner_overlays(spec, &Shared::default())?;
    }
    let Entered { floor, used } = root::enter(furniture)?;
    let terminals = settle_in()?;
    get_rid(used, launcher)?;
    let ours = Ours { listener: fds.listener, terminals, floor };
    serve(ours, launcher, plan)
}

/// Cgroups of version 1.
fn join(tasks: &[OwnedFd]) -> Result<(), Failure> {
    for tasks in tasks {
        let mut tasks = File::from(tasks.try_clone().doing("join a cgroup")?);
        tasks.write_all(b"0").doing("join a cgroup")?;
    }
    Ok(())
}

/// The child's side of it, with its floor if there is one.
fn begin_at(
    home: Home,
    isolation: Isolation,
    own_network: bool,
    launcher: &OwnedFd,
) -> Result<Option<Floor>, Failure> {
    match home {
        Home::Ready { floor } => settle_as_root(isolation).map(|()| Some(floor)),
        Home::New => begin(isolation, own_network, launcher).map(|()| None),
    }
}

/// When its users are there.
pub(super) fn begin(
    isolation: Isolation,
    own_network: bool,
    launcher: &OwnedFd,
) -> Result<(), Failure> {
    wait_for_launcher(launcher)?;
    settle_as_root(isolation)?;
    if own_network {
        sys::loopback_up().doing("start the loopback interface")?;
    }
    Ok(())
}

fn settle_as_root(isolation: Isolation) -> Result<(), Failure> {
    become_root(isolation).doing("become root inside")?;
    let _ = setsid();
    umask(Mode::from_raw_mode(0o022));
    Ok(())
}

/// In its cgroups.
fn take_name(name: &str) -> Result<(), Failure> {
    sethostname(name.as_bytes()).doing("set the host name")?;
    sys::unshare(UnshareFlags::NEWCGROUP).doing("hide the host's cgroups")
}

/// In a root with `/dev`: the answer is the directory of terminals.
fn settle_in() -> Result<OwnedFd, Failure> {
    let terminals =
        open("/dev/pts", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .doing("open /dev/pts")?;
    let null =
        open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).doing("open /dev/null")?;
    let stdio = rustix::stdio::dup2_stdin(&null)
        .and_then(|()| rustix::stdio::dup2_stdout(&null))
        .and_then(|()| rustix::stdio::dup2_stderr(&null));
    stdio.doing("close the standard streams")?;
    Ok(terminals)
}

fn get_rid(used: OwnedFd, launcher: &OwnedFd) -> Result<(), Failure> {
    wire::send(launcher, &Told::Rid, &[used.as_fd()]).doing("launch")
}

/// What init keeps of what it was launched with.
#[derive(Debug)]
pub(super) struct Ours {
    pub(super) listener: OwnedFd,
    /// The directory of the sandbox's pseudo-terminals.
    pub(super) terminals: OwnedFd,
    /// What lies below the sandbox's root.
    pub(super) floor: OwnedFd,
}

/// In the sandbox's own root.
fn serve(
    ours: Ours,
    launcher: &OwnedFd,
    plan: Option<&Plan<'_>>,
) -> Result<std::convert::Infallible, Failure> {
    let guard = plan.map(Plan::build_lazily).transpose().map_err(not_back)?.flatten();
    let launcher = launcher.try_clone().doing("launch")?;
    let Ours { listener, terminals, floor } = ours;
    let ([listener, terminals, floor, launcher], guard) =
        keep_only([listener, terminals, floor, launcher], guard)
            .doing("close what is the host's")?;
    let signals = sys::child_signals().doing("watch children")?;
    drop_rights().doing("drop rights")?;
    wire::send(&launcher, &Told::Ready, &[]).doing("launch")?;
    wait_for_launcher(&launcher)?;
    drop(launcher);
    init::serve(Ours { listener, terminals, floor }, signals, guard)
}

fn keep_only(
    ours: [OwnedFd; 4],
    guard: Option<Guard>,
) -> io::Result<([OwnedFd; 4], Option<Guard>)> {
    let Some(guard) = guard else { return Ok((sys::keep_only(ours)?, None)) };
    let ([a, b, c, d], [e, f, g]) = (ours, guard.into_descriptors());
    let [a, b, c, d, e, f, g] = sys::keep_only([a, b, c, d, e, f, g])?;
    Ok(([a, b, c, d], Some(Guard::from_descriptors([e, f, g]))))
}

fn become_root(isolation: Isolation) -> io::Result<()> {
    if isolation == Isolation::Plain {
        return Ok(());
    }
    if isolation == Isolation::Mapped {
        set_thread_groups(&[])?;
    }
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    Ok(set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?)
}

/// Init keeps the rights that it has, since it never becomes another program; what it starts is cut
/// down by the bounding set.
fn drop_rights() -> io::Result<()> {
    caps::drop_bounding()?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_no_new_privs(true)?;
    seccomp::install(seccomp::filter())
}
