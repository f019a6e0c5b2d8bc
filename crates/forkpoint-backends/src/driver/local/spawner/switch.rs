//! Another root under the feet of a live sandbox.

use std::{fs::File, os::fd::OwnedFd, path::PathBuf};

use rustix::process::{chroot, fchdir};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use super::{Outcome, Shared, as_sandbox_root};
use crate::{
    driver::local::{
        capture::LayerWork,
        launch::Isolation,
        mount::{Layers, OverlaySpec},
        root, sys,
        wire::{Doing as _, Failure},
    },
    layer::{LayerStore, Marks},
};

#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) struct SwitchSpec {
    pub(in super::super) isolation: Isolation,
    pub(in super::super) data: PathBuf,
    pub(in super::super) marks: Marks,
    /// Of the sandbox's init.
    pub(in super::super) pid: i32,
    pub(in super::super) overlays: Vec<OverlaySpec>,
}

/// Letting go of the old root takes as long as it has files in memory; the caller does so after
/// it has answered.
pub(super) fn switch(
    spec: &SwitchSpec,
    shared: &Shared,
    mut fds: Vec<OwnedFd>,
) -> Result<(Outcome, OwnedFd), Failure> {
    let _lock = take_first(&mut fds)?;
    let (mounts, root) = match <[OwnedFd; 3]>::try_from(fds) {
        Ok([users, mounts, root]) => {
            enter(&users, LinkNameSpaceType::User)?;
            // Mounts are made in a namespace of the same owner that still sees the host.
            sys::unshare(UnshareFlags::NEWNS).doing("leave the host's mounts")?;
            (mounts, root)
        }
        Err(_) if spec.isolation == Isolation::Rootless => {
            let older = "its init is of an older release: stop the sandbox, and start it again";
            return Err(Failure::new("find the sandbox's root", &std::io::Error::other(older)));
        }
        Err(_) => {
            let open = |what| File::open(format!("/proc/{}/{what}", spec.pid)).map(OwnedFd::from);
            let both = open("ns/mnt").and_then(|mounts| Ok((mounts, open("root")?)));
            both.doing("find the sandbox's init")?
        }
    };
    let overlays = make_overlays(spec, shared)?;
    enter(&mounts, LinkNameSpaceType::Mount)?;
    stand_where(&root)?;
    let old = root::replace(&overlays)?;
    Ok((Outcome::Switched, old))
}

/// Not on what lies on top of it, which somebody left who died at this: only those who stand on the root
/// that is replaced are taken along.
pub(super) fn stand_where(root: &OwnedFd) -> Result<(), Failure> {
    let stand = fchdir(root).and_then(|()| chroot("."));
    stand.doing("stand where the sandbox's init stands")
}

/// The next of the descriptors that came. The first is the sandbox's lock, held while we work: whoever finds the sandbox of a
/// driver that was killed waits for us.
pub(super) fn take_first(fds: &mut Vec<OwnedFd>) -> Result<OwnedFd, Failure> {
    match fds.is_empty() {
        true => {
            Err(Failure::new("take what came", &std::io::Error::other("a descriptor is missing")))
        }
        false => Ok(fds.remove(0)),
    }
}

/// As root of the sandbox, who may read what its owner may not.
pub(super) fn on_layers(
    store: &std::path::Path,
    work: &LayerWork,
    mut fds: Vec<OwnedFd>,
) -> Result<Outcome, Failure> {
    let _lock = take_first(&mut fds)?;
    if let Some(users) = fds.first() {
        enter(users, LinkNameSpaceType::User)?;
    }
    let run = || work.run(&LayerStore::open_made(store)?);
    run().map_err(|err| Failure::of("copy what changed", &err))?;
    Ok(Outcome::Done)
}

pub(super) fn make_overlays(
    spec: &SwitchSpec,
    shared: &Shared,
) -> Result<Vec<(PathBuf, OwnedFd)>, Failure> {
    overlays(spec.isolation, &spec.data, spec.marks, &spec.overlays, shared)
}

/// The mounts of a sandbox, in the order in which they are attached.
pub(in super::super) fn overlays(
    isolation: Isolation,
    data: &std::path::Path,
    marks: Marks,
    specs: &[OverlaySpec],
    shared: &Shared,
) -> Result<Vec<(PathBuf, OwnedFd)>, Failure> {
    let owners = shared.owners().doing("map users")?;
    let layers = Layers::open(data, marks, owners)?;
    let make = || {
        let mount = |spec: &OverlaySpec| Ok((spec.at.clone(), layers.overlay(spec)?));
        specs.iter().map(mount).collect()
    };
    let made = match isolation {
        Isolation::Mapped => {
            // overlayfs works with the rights of whoever mounts it.
            sys::keep_capabilities().doing("keep capabilities")?;
            as_sandbox_root(make)
        }
        Isolation::Plain | Isolation::Rootless => make(),
    };
    // To let go of a view takes until all processors have taken note. It goes with this process, or when that
    // closes what it does not need, and nobody waits.
    std::mem::forget(layers);
    made
}

pub(super) fn enter(namespace: &OwnedFd, kind: LinkNameSpaceType) -> Result<(), Failure> {
    move_into_link_name_space(std::os::fd::AsFd::as_fd(namespace), Some(kind))
        .doing("enter the sandbox")
}
