//! What a sandbox needs before it is launched: directories, overlays, cgroups, an identity.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    path::{Path, PathBuf},
};

use forkpoint_core::{
    driver::{DriverError, DriverResult},
    id::SandboxId,
    spec::{Network, Resources, SandboxSpec},
};

use super::{
    cgroup::{Cgroup, CgroupError},
    client::{Worker, ask},
    expect::readiness,
    host::{Host, failed, io_error, launch_error, layer_error},
    launch::{
        Isolation, LaunchSpec,
        blank::{Birth, OVERLAYS_MAX, Shape},
    },
    mount::OverlaySpec,
    record::{Place, Record},
    root,
    spawner::{Outcome, Work},
    template,
    warm::{Blank, Launching},
    wire::{self, Failure},
    workspace::is_plain_dir,
};
use crate::layer::{Layer, LayerName, unique_name};

impl Host {
    /// The overlays of a sandbox that writes to `generation` and lies on `below` and then `top`.
    pub(super) fn overlays(
        &self,
        record: &Record,
        generation: u32,
        below: Option<&Path>,
        top: Option<&LayerName>,
    ) -> DriverResult<Vec<OverlaySpec>> {
        Ok(self.overlays_on(record, generation, below, &self.chain(top)?))
    }

    /// A layer and all that it lies on.
    pub(super) fn chain(&self, top: Option<&LayerName>) -> DriverResult<Vec<Layer>> {
        match top {
            Some(top) => self.store.chain(top).map_err(layer_error("read the layers")),
            None => Ok(Vec::new()),
        }
    }

    /// The same as [`Host::overlays`] for one who has read the layers.
    pub(super) fn overlays_on(
        &self,
        record: &Record,
        generation: u32,
        below: Option<&Path>,
        chain: &[Layer],
    ) -> Vec<OverlaySpec> {
        let trees = chain.iter().map(Layer::tree_path);
        let trees: Vec<PathBuf> = below.map(Path::to_owned).into_iter().chain(trees).collect();
        let place = self.place(record.id);
        let directory = place.generation(generation);
        let overlay = |(number, bottom): (usize, &template::Bottom)| {
            let at_root = bottom.at.as_os_str().is_empty();
            let parts = trees.iter().map(|tree| tree.join(&bottom.at));
            let is_there = |path: &PathBuf| at_root || is_plain_dir(path);
            let lowers = parts.filter(is_there).chain(bottom.lowers.iter().cloned()).collect();
            OverlaySpec {
                at: bottom.at.clone(),
                upper: place.upper(generation).join(&bottom.at),
                work: directory.join(format!("w{number}")),
                lowers,
            }
        };
        record.bottoms().iter().enumerate().map(overlay).collect()
    }

    /// Takes away what somebody left who was killed before the generation came to be.
    pub(super) fn clear_generation(&self, place: &Place, generation: u32) -> DriverResult<()> {
        let left = place.generation(generation);
        self.store.throw_away(&left).map_err(layer_error("remove a work directory"))
    }

    /// The directories that overlays write to: the work directories always new, since the kernel
    /// refuses those of an overlay that was not unmounted.
    pub(super) fn make_generation(&self, overlays: &[OverlaySpec]) -> DriverResult<()> {
        let mut new = Vec::new();
        for overlay in overlays {
            let mut make = || -> io::Result<()> {
                if overlay.work.exists() {
                    self.store.throw_away(&overlay.work).map_err(io::Error::other)?;
                }
                make_upper(overlay, overlays, &mut new)?;
                fs::create_dir(&overlay.work)
            };
            make().map_err(io_error("create", &overlay.upper))?;
        }
        // One may be in another, and what is made in a directory changes its time.
        for (upper, like) in new {
            self.look_like(&upper, &like).map_err(io_error("create", &upper))?;
        }
        Ok(())
    }

    /// A new upper directory hides the owner, mode, times and attributes of the directory below it.
    pub(super) fn look_like(&self, new: &Path, like: &Path) -> io::Result<()> {
        use std::os::unix::fs::{MetadataExt as _, chown};
        let there = fs::metadata(like)?;
        if rustix::process::geteuid().is_root() {
            chown(new, Some(there.uid()), Some(there.gid()))?;
        }
        self.store.copy_extended(like, new).map_err(io::Error::other)?;
        fs::set_permissions(new, there.permissions())?;
        let times = fs::FileTimes::new().set_modified(there.modified()?);
        fs::File::open(new)?.set_times(times)
    }

    /// Without root, we are the owner of what a sandbox writes, and no more: of its roots, its owner keeps
    /// the right to go in. Its own root goes in anyway. Nothing in it runs.
    pub(super) fn let_owner_in(&self, record: &Record) -> DriverResult<()> {
        if record.isolation != Isolation::Rootless {
            return Ok(());
        }
        let upper = self.place(record.id).upper(record.generation);
        for bottom in record.bottoms() {
            let depth = bottom.at.components().count() + 1;
            let path = upper.join(&bottom.at);
            let mut ways: Vec<&Path> = path.ancestors().take(depth).collect();
            ways.reverse();
            for way in ways {
                let Ok(there) = fs::symlink_metadata(way) else { break };
                let mut permissions = there.permissions();
                if there.is_dir() && permissions.mode() & 0o700 != 0o700 {
                    permissions.set_mode(permissions.mode() | 0o700);
                    fs::set_permissions(way, permissions).map_err(io_error("enter", way))?;
                }
            }
        }
        Ok(())
    }

    /// Whoever will launch a sandbox, with the processes of `images` if there are any. To be asked for as soon as so
    /// much is known of it: getting ready takes time, in which it can be prepared.
    pub(super) fn launcher<'a>(
        &'a self,
        (id, launches): (SandboxId, u32),
        isolation: Isolation,
        spec: &'a SandboxSpec,
        images: Vec<PathBuf>,
    ) -> DriverResult<Launcher<'a>> {
        let launching = self.pool.launching();
        let shape = Shape { isolation, network: spec.network, images };
        // Never the name of one that was there: it may be on its way out, and whoever removes it goes by
        // the name.
        let name = unique_name(&cgroup_name(id, launches));
        let by = match self.pool.take(&shape) {
            Some(blank) => By::Blank(blank),
            None => {
                let alone = launching.is_alone();
                By::Worker(self.stand_by_for(&shape, &name, &spec.resources, alone)?)
            }
        };
        Ok(Launcher { by, shape, name, launching })
    }

    fn stand_by_for<'a>(
        &'a self,
        shape: &Shape,
        name: &str,
        resources: &Resources,
        alone: bool,
    ) -> DriverResult<Standing<'a>> {
        let cgroup = self.cgroups.create(name, resources).map_err(cgroup_error)?;
        let cgroup = Unused { host: self, cgroup: Some(cgroup) };
        let into = cgroup.get().unified_dir().map_err(failed("open the sandbox's cgroup"))?;
        // To be born early is more work. And without root, its mounts can only be made by itself, when they are
        // known.
        let birth = (alone && shape.isolation != Isolation::Rootless)
            .then_some(Birth { network: shape.network, memory_bytes: resources.memory_bytes });
        let begin = |worker: &Worker| match birth {
            Some(birth) => worker.bear(birth, into.as_ref()),
            None => Ok(()),
        };
        // One that was expected may be gone.
        let expected = self.take_expected(shape).filter(|worker| begin(worker).is_ok());
        let begin_anew = || {
            let worker = self.client.stand_by(readiness(shape, false))?;
            begin(&worker).map(|()| worker)
        };
        let worker = expected.map_or_else(begin_anew, Ok).map_err(launch_error(LAUNCH))?;
        Ok(Standing { worker, cgroup, into })
    }

    /// Starts the sandbox that the record tells of, and writes the record.
    pub(super) fn launch(
        &self,
        lock: &OwnedFd,
        mut record: Record,
        chain: &[Layer],
        launcher: Launcher<'_>,
    ) -> DriverResult<Record> {
        let Launcher { by, shape, name, launching } = launcher;
        let place = self.place(record.id);
        self.let_owner_in(&record)?;
        let overlays = self.overlays_on(&record, record.generation, None, chain);
        self.make_generation(&overlays)?;
        let directory = place.open().map_err(io_error("open", place.directory()))?;
        let socket = Place::socket(record.launches);
        if fs::remove_file(place.directory().join(&socket)).is_ok() {
            // A launch was cut short, and has left more than its socket.
            let start = format!("{}-", cgroup_name(record.id, record.launches));
            let mut left = self.cgroups.find_named(&start);
            left.retain(|left| left.name() != Some(&name));
            left.iter().for_each(|left| self.end(None, Some(left)));
        }
        let listener = wire::listen_in(&directory, &socket)
            .map_err(io_error("listen in", place.directory()))?;
        let images = &shape.images;
        let order = Launch { lock, listener: &listener, overlays: &overlays, images };
        let standing = match by {
            By::Worker(standing) => Some(standing),
            By::Blank(blank) if overlays.len() <= OVERLAYS_MAX => {
                match self.launch_on(blank, &name, record.clone(), &order) {
                    Ok(record) => return Ok(record),
                    // It may be the blank's fault alone; a work directory is used once.
                    Err(_) => self.make_generation(&overlays)?,
                }
                None
            }
            By::Blank(_) => None,
        };
        let resources = &record.spec.resources;
        let anew = || self.stand_by_for(&shape, &name, resources, launching.is_alone());
        let standing = standing.map_or_else(anew, Ok)?;
        let Standing { worker, cgroup, into } = standing;
        let cgroup = cgroup.take();
        record.cgroup = Some(cgroup.clone());
        let launched = self.launch_in(&record, &cgroup, into.as_ref(), &order, |spec, fds| {
            worker.ask(&Work::Launch(spec), fds)
        });
        launched.inspect_err(|_| {
            let _ = fs::remove_file(place.directory().join(socket));
        })
    }

    fn launch_on(
        &self,
        blank: Blank,
        name: &str,
        mut record: Record,
        order: &Launch<'_>,
    ) -> DriverResult<Record> {
        let cgroup = self.cgroups.create_on(blank.cgroup, name, &record.spec.resources);
        let cgroup = cgroup.map_err(cgroup_error)?;
        record.cgroup = Some(cgroup.clone());
        self.launch_in(&record, &cgroup, None, order, |spec, fds| ask(&blank.socket, &spec, fds))
    }

    fn launch_in(
        &self,
        record: &Record,
        cgroup: &Cgroup,
        into: Option<&OwnedFd>,
        order: &Launch<'_>,
        send: impl FnOnce(Box<LaunchSpec>, &[BorrowedFd<'_>]) -> Result<Outcome, Failure>,
    ) -> DriverResult<Record> {
        let tasks = cgroup.tasks_files().map_err(failed("open the sandbox's cgroup"));
        let tasks = tasks.inspect_err(|_| self.end(None, Some(cgroup)))?;
        let spec = LaunchSpec {
            isolation: record.isolation,
            data: self.root.clone(),
            marks: self.store.marks(),
            overlays: order.overlays.to_vec(),
            network: record.spec.network,
            files: identity(record),
            images: order.images.to_vec(),
            into_cgroup: into.is_some(),
            record: record.clone(),
        };
        let fds = [order.lock, order.listener].into_iter().chain(into).chain(&tasks);
        let fds: Vec<_> = fds.map(|fd| fd.as_fd()).collect();
        match send(Box::new(spec), &fds).map_err(launch_error(LAUNCH)) {
            Ok(_) => self.record(record.id),
            Err(err) => {
                // Whoever was asked may have died between the deed and the answer.
                if let Ok(Some(there)) = self.find(record.id)
                    && there.launches == record.launches
                    && there.is_alive()
                    && self.ask_init(&there).is_ok()
                {
                    return Ok(there);
                }
                self.end(None, Some(cgroup));
                Err(err)
            }
        }
    }
}

const LAUNCH: &str = "launch a sandbox";

fn cgroup_name(id: SandboxId, launches: u32) -> String {
    format!("{id}-{launches}")
}

#[derive(Debug)]
pub(super) struct Launcher<'a> {
    by: By<'a>,
    /// What it is ready for.
    shape: Shape,
    /// Of the cgroup.
    name: String,
    launching: Launching<'a>,
}

#[derive(Debug)]
enum By<'a> {
    Blank(Blank),
    Worker(Standing<'a>),
}

/// A copy of the spawner, and the cgroup in which it begins the sandbox.
#[derive(Debug)]
struct Standing<'a> {
    worker: Worker,
    cgroup: Unused<'a>,
    into: Option<OwnedFd>,
}

/// A cgroup that goes, with whoever is in it, unless it is taken.
#[derive(Debug)]
struct Unused<'a> {
    host: &'a Host,
    cgroup: Option<Cgroup>,
}

impl Unused<'_> {
    fn get(&self) -> Cgroup {
        self.cgroup.clone().unwrap_or_default()
    }

    fn take(mut self) -> Cgroup {
        self.cgroup.take().unwrap_or_default()
    }
}

impl Drop for Unused<'_> {
    fn drop(&mut self) {
        if let Some(cgroup) = self.cgroup.take() {
            self.host.end(None, Some(&cgroup));
        }
    }
}

/// What every way to launch a sandbox needs.
struct Launch<'a> {
    lock: &'a OwnedFd,
    listener: &'a OwnedFd,
    overlays: &'a [OverlaySpec],
    images: &'a [PathBuf],
}

/// What tells a copy from its source.
fn identity(record: &Record) -> Vec<(PathBuf, String)> {
    let machine = format!("{}\n", hash(record, "machine"));
    let boot = boot_id(record, &record.launches.to_string());
    let mut files = vec![(root::MACHINE_ID.into(), machine), (root::BOOT_ID.into(), boot)];
    if record.spec.network == Network::Host
        && let Ok(resolver) = fs::read_to_string("/etc/resolv.conf")
    {
        files.push((root::RESOLVER.into(), resolver));
    }
    files
}

/// Another for each `time`, as it is told inside.
pub(super) fn boot_id(record: &Record, time: &str) -> String {
    let boot = hash(record, &format!("boot {time}"));
    format!(
        "{}-{}-4{}-a{}-{}\n",
        &boot[..8],
        &boot[8..12],
        &boot[13..16],
        &boot[17..20],
        &boot[20..]
    )
}

fn hash(record: &Record, what: &str) -> String {
    let hash = |half: u8| {
        let mut hasher = DefaultHasher::new();
        (what, half, record.id.to_string()).hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", hash(0), hash(1))
}

/// An upper directory, and those that lead to it: `new` gets each with what it hides and is to look
/// like. A sandbox may have written to some of them, so no link is followed.
fn make_upper(
    overlay: &OverlaySpec,
    all: &[OverlaySpec],
    new: &mut Vec<(PathBuf, PathBuf)>,
) -> io::Result<()> {
    let Some(depth) = overlay.at.components().count().checked_add(1) else { return Ok(()) };
    let mut ways: Vec<&Path> = overlay.upper.ancestors().take(depth).collect();
    if is_plain_dir(&overlay.upper) {
        return Ok(());
    }
    if let Some(generation) = ways.last().and_then(|root| root.parent()) {
        fs::create_dir_all(generation)?;
    }
    ways.reverse();
    for way in ways {
        match fs::create_dir(way) {
            Ok(()) => {}
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists && is_plain_dir(way) => continue,
            Err(err) => return Err(err),
        }
        let like = all.iter().filter(|other| way.starts_with(&other.upper));
        let like = like.max_by_key(|other| other.upper.as_os_str().len());
        let hidden = like.and_then(|other| {
            let rest = way.strip_prefix(&other.upper).ok()?;
            other.lowers.iter().map(|lower| lower.join(rest)).find(|path| is_plain_dir(path))
        });
        new.extend(hidden.map(|hidden| (way.to_owned(), hidden)));
    }
    Ok(())
}

fn cgroup_error(err: CgroupError) -> DriverError {
    match err {
        CgroupError::Unavailable { what, reason } => DriverError::LimitUnavailable { what, reason },
        err => failed("create a cgroup")(err),
    }
}
